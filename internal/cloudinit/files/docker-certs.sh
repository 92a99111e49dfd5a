#!/bin/sh
# Gives dockerd the certificates that the agent got for it, first and renewed: it
# reads them when it starts. Containers go on running meanwhile (live-restore), but
# what was begun in them loses its streams and is killed, so commands may end first.
set -eu
from=/var/lib/prego-agent/docker
to=/etc/docker/prego
dropin=/etc/systemd/system/docker.service.d
changed=0
put() { # mode, from, to
	cmp -s "$2" "$3" && return 0
	install -m "$1" -o root -g root "$2" "$3"
	changed=1
}
[ -s "$from/cert.pem" ] || exit 0
install -d -m 0700 -o root -g root "$to" "$dropin"
for f in ca.pem cert.pem key.pem; do
	put 0600 "$from/$f" "$to/$f"
done
put 0644 /usr/local/lib/prego/docker-tls.conf "$dropin/prego.conf"
# A restart that failed is not forgotten.
[ "$changed" = 0 ] || : >"$to/restart"
[ -e "$to/restart" ] || exit 0
# Held to the end, so that the next command begins with the new dockerd.
lock=/run/prego-agent-bench/lock
if [ -e "$lock" ]; then
	exec 9<"$lock"
	flock --exclusive --timeout 960 9 || true
fi
systemctl daemon-reload
systemctl restart docker.service
rm -f "$to/restart"
