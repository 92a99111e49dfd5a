#!/bin/sh
# Runs at the first boot until it is done once: clock, firewall, Docker, agent. Each
# milestone is reported, so that a boot that fails before there is an agent can be
# seen. Power may fail at any moment, so that every step may be run again.
. /usr/local/lib/prego/lib.sh

step clock
settle_clock

step lock_down
try "lock root" passwd --lock root
systemctl disable --now ssh.service ssh.socket || true
systemctl mask ssh.service ssh.socket

installed() { [ "$(dpkg-query --show --showformat '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# apt_get waits a while for the lock, and is repeated by its caller, which reports who
# holds it. Without the error mode, an update that reached no mirror is a success.
apt_get() {
	apt-get --quiet --assume-yes --no-install-recommends -o DPkg::Lock::Timeout=$BRIEFLY -o Dpkg::Options::=--force-confold \
		-o APT::Update::Error-Mode=any -o Acquire::Retries=2 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 "$@" </dev/null
}

# get_missing finishes what a power cut left half done, and forgets the lists after a
# failure: the mirror may have moved on.
get_missing() {
	if [ "$FRESH" = 0 ]; then
		COMMAND='dpkg --configure'
		dpkg --force-confold --configure --pending </dev/null || return 1
		COMMAND='apt-get update'
		apt_get update || return 1
		FRESH=1
	fi
	COMMAND="apt-get install$missing"
	# shellcheck disable=SC2086 # several words
	apt_get install $missing || { FRESH=0 && return 1; }
}

# need installs packages, and asks no mirror when all are there.
FRESH=0
need() {
	missing=''
	for package; do installed "$package" || missing="$missing $package"; done
	[ -n "$missing" ] || return 0
	insist "apt-get install$missing" get_missing
	for package; do try "$package is not installed" installed "$package"; done
}

step packages
export DEBIAN_FRONTEND=noninteractive
need nftables ca-certificates

step firewall
systemctl daemon-reload
start prego-firewall.service
report firewall_ready

step volume
mount_volume() {
	for device in /dev/disk/by-id/scsi-0HC_Volume_*; do
		[ -e "$device" ] || { echo "the volume is not there" >&2 && return 1; }
		mkdir -p /srv/data
		grep --quiet ' /srv/data ' /etc/fstab || echo "$device /srv/data ext4 discard,nofail,defaults 0 0" >>/etc/fstab
		mountpoint --quiet /srv/data || mount /srv/data
		return
	done
}
[ "$VOLUME" = 0 ] || insist "mount the volume" mount_volume

step docker
# Docker loads its profile for containers with apparmor's parser where the kernel has
# AppArmor; docker.io only recommends it.
need docker.io apparmor
# Where the engine knows the option, ports that are published on any network are bound
# to the host itself, too. An older one would not start with it.
if ! cmp --silent "$LIB/daemon.json" /etc/docker/daemon.json && dockerd --validate --config-file "$LIB/daemon.json" >/dev/null 2>&1; then
	cp "$LIB/daemon.json" /etc/docker/daemon.json
	try "restart docker.service" systemctl restart docker.service
fi
start docker.service
report docker_installed

step agent
id prego-agent >/dev/null 2>&1 || try "add user prego-agent" useradd --system --home-dir /var/lib/prego-agent --shell /usr/sbin/nologin prego-agent
# Whoever runs commands is another, and owns what bench works on.
id prego-exec >/dev/null 2>&1 || try "add user prego-exec" useradd --system --create-home --home-dir /home/frappe --shell /usr/sbin/nologin prego-exec
agent=/usr/local/bin/prego-agent
if ! echo "$AGENT_SHA256  $agent" | sha256sum --check --status 2>/dev/null; then
	mkdir -p /usr/local/bin
	insist "fetch the agent" python3 -I "$LIB/gateway.py" fetch "$PATH_AGENT_BINARY" "$AGENT_SHA256" "$agent"
fi
chmod 0755 "$agent"
start prego-agent-prepare.service
start prego-agent-devices.socket
report agent_installed

step start
start prego-docker-certs.path
start prego-docker-stop.service
start prego-agent-exec.socket
start prego-agent-bench.socket
start prego-agent-watch.socket
start prego-agent-peers.socket
start prego-agent-update.service
start prego-service-certs.path
try "enable the agent" systemctl enable prego-docker-certs.service prego-service-certs.service prego-agent-exec.service prego-agent-bootstrap.service prego-agent.service
try "start the agent" systemctl start --no-block prego-agent-exec.service prego-agent-bootstrap.service prego-agent.service

# The agent itself reports that it has started, and enrolls. Until it has, this boot is
# not over: why it doesn't is in its journal.
step handshake
COMMAND=prego-agent
began=$(uptime)
until [ -s /var/lib/prego-agent/identity.json ]; do
	if [ $(($(uptime) - began)) -gt "$BRIEFLY" ]; then
		journalctl --quiet --no-pager --output cat --lines 1 _SYSTEMD_UNIT=prego-agent-bootstrap.service >"$ERRORS"
		exit 1
	fi
	sleep 0.2
done
sync
[ ! -d /var/lib/cloud/instance ] || : >/var/lib/cloud/instance/prego-booted
sync
