#!/usr/bin/env bash
# Plays the person who installs a release (docs/install.md), as root:
#
#   release-install-test.sh        builds a release twice, in different directories, and compares; then installs it
#   release-install-test.sh DIR    installs the release in DIR, which must be signed
#
# The Debian that it is installed on boots systemd in a namespace, without Go and without a way out. Postgres and
# Temporal's development server are in the same network.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "only root can boot a Debian"
version=v0.0.1-test

if [ $# = 0 ]; then
	work=$(mktemp -d /var/tmp/prego-release.XXXXXX)
	trap 'rm -rf "$work"' EXIT
	openssl genpkey -algorithm ed25519 -out "$work/key.pem"
	# What differs between the two: directory, depth, file modes, time zone, and who has the key.
	for clone in one two/deeper; do
		umask "$([ $clone = one ] && echo 022 || echo 077)"
		git clone -q --shared . "$work/$clone"
		mkdir "$work/$clone/.prego"
	done
	umask 022
	echo "== build, twice"
	TZ=Asia/Tokyo make -s -C "$work/one" release VERSION=$version RELEASE_KEY="$work/key.pem"
	release=$work/one/.prego/release/$version
	trusted=$(openssl pkey -in "$work/key.pem" -pubout -outform DER | tail -c 32 | base64)
	make -s -C "$work/two/deeper" release VERSION=$version AGENT_RELEASE_KEYS="$trusted"
	again=$work/two/deeper/.prego/release/$version
	diff "$release/SHA256SUMS" "$again/SHA256SUMS" || fail "two builds of a commit differ"
	[ ! -e "$again/SHA256SUMS.sig" ] || fail "a build without a key is signed"
	echo "two builds are identical: $(wc -l <"$again/SHA256SUMS") files"
	rm -rf "$work/two"
	"$0" "$release"
	exit
fi

if [ $# = 1 ]; then
	echo "== the image"
	# shellcheck source=tools/engine.sh
	. tools/engine.sh
	trap stop_engine EXIT
	start_engine "$PWD/.prego/engine"
	image=$(docker load -q -i "$1/prego-image-linux-$(dpkg --print-architecture).tar" | sed 's/^Loaded image: //')
	docker run --rm --network none --read-only --cap-drop ALL "$image" --version
	user=$(docker image inspect --format '{{.Config.User}}' "$image")
	[ "$user" = 65532:65532 ] || fail "the image runs as $user"
	docker image rm -f "$image" >/dev/null
	stop_engine
	for debian in 12 13; do
		# A network without a way out, a process tree and mounts, which all end with this command.
		unshare --net --pid --mount --fork --kill-child --mount-proc "$0" "$(readlink -f "$1")" $debian
	done
	exit
fi
release=$1 debian=$2
arch=$(dpkg --print-architecture)
ip link set lo up
work=$(mktemp -d /var/tmp/prego-install.XXXXXX)
finish() {
	set +e
	[ -z "${shown:-}" ] || tail -n 60 "$work/console.log" >&2
	[ -z "${machine:-}" ] || { kill -KILL "$machine"; wait "$machine" 2>/dev/null; }
	stop_postgres
	[ -z "${temporal:-}" ] || { kill -KILL "$temporal"; wait "$temporal" 2>/dev/null; }
	mountpoint -q "$work/root" && umount "$work/root"
	rm -rf "$work"
	[ ! -d "$group" ] || echo $$ >/sys/fs/cgroup/systemd/cgroup.procs
	[ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} +
}
# shellcheck source=tools/private-postgres.sh
. tools/private-postgres.sh
trap finish EXIT
chmod 755 "$work"
# With control groups of version 1, nspawn needs one that is empty otherwise.
group=/sys/fs/cgroup/systemd/$(basename "$work")
[ ! -d /sys/fs/cgroup/systemd ] || { mkdir "$group" && echo $$ >"$group/cgroup.procs"; }

echo "== verify"
cd "$release"
openssl pkeyutl -verify -pubin -inkey release-key.pem -rawin -in SHA256SUMS -sigfile SHA256SUMS.sig
sha256sum --check --quiet SHA256SUMS
sed 's/^./x/' SHA256SUMS >"$work/forged"
! openssl pkeyutl -verify -pubin -inkey release-key.pem -rawin -in "$work/forged" -sigfile SHA256SUMS.sig >/dev/null ||
	fail "a changed SHA256SUMS is accepted"
cd - >/dev/null

mkdir "$work/secrets" "$work/upper" "$work/root"
for file in postgres_password prego_db_password temporal_db_password; do echo "$file" >"$work/secrets/$file"; done
chmod 755 "$work/secrets"
echo "postgres://prego:prego_db_password@postgres:5432/prego?sslmode=disable" >"$work/secrets/database_url"
start_postgres "$work/postgres" "$work/secrets"
attributes=()
for name in $(sed -n 's/^for name in \(.*\); do$/\1/p' deploy/temporal/namespace.sh); do
	attributes+=(--search-attribute "$name=Keyword")
done
.prego/bin/temporal server start-dev --headless --ip 127.0.0.1 --log-level error "${attributes[@]}" \
	>"$work/temporal.log" 2>&1 &
temporal=$!

echo "== boot Debian $debian"
mkdir "$work/upper/root" "$work/upper/work"
lower=$(readlink -f .prego/machines/current)/debian-$debian-minimal
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$work/upper/root,workdir=$work/upper/work" "$work/root"
# Without this the boot waits for a network and for the provider.
ln -s /dev/null "$work/root/etc/systemd/system/systemd-networkd-wait-online.service"
touch "$work/root/etc/cloud/cloud-init.disabled"
SYSTEMD_NSPAWN_API_VFS_WRITABLE=network systemd-nspawn --quiet --boot --directory="$work/root" \
	--machine=prego-install --register=no --keep-unit --kill-signal=SIGRTMIN+3 --resolv-conf=off --timezone=off \
	--link-journal=no --console=read-only --bind-ro="$release:/release" >"$work/console.log" 2>&1 &
machine=$!
shown=yes
leader=
inside() {
	nsenter --target "$leader" --mount --uts --ipc --pid --cgroup --root -- /usr/bin/env -i --chdir=/ \
		PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
# eventually repeats a command for a minute.
eventually() {
	local tries=0
	until "$@"; do
		tries=$((tries + 1))
		[ "$tries" -lt 150 ] || return 1
		sleep 0.4
	done
}
booted() {
	leader=$(pgrep -P "$machine") || return 1
	state=$(inside systemctl is-system-running 2>/dev/null) || [ "$state" = degraded ]
}
eventually booted || fail "Debian does not boot"
shown=
echo "Debian is $state"

echo "== install"
package() {
	inside apt-get "$1" -y -q "${@:2}" >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2; fail "apt-get $1 fails"; }
}
package install "/release/prego-linux-$arch.deb"
tail -n 1 "$work/apt.log"
if inside sh -c 'command -v go'; then fail "this Debian has Go"; fi
said=$(inside prego --version)
packed=$(dpkg-deb -f "$release/prego-linux-$arch.deb" Version | tr '~' -)
[ "$said" = "prego version v$packed" ] || fail "prego --version prints $said"

echo "== set up"
if inside prego-secrets 2>"$work/said"; then fail "prego-secrets accepts an installation without a name"; fi
grep "PREGO_ENV is not set in /etc/prego/prego.env" "$work/said"
inside sed -i -E 's,^#(PREGO_(ENV|AGENTGW_URL|EGRESS_CIDRS|API_PUBLIC_URL))=,\1=,' /etc/prego/prego.env
if inside prego-secrets 2>"$work/said"; then fail "prego-secrets doesn't miss the secrets"; fi
[ "$(grep -c '^missing: ' "$work/said")" = 2 ] || fail "prego-secrets misses: $(cat "$work/said")"
secret() { inside install -m 0600 /dev/stdin "/etc/prego/secrets/$1"; }
echo postgres://prego:prego@127.0.0.1:1/prego | secret database_url
echo token | secret hcloud_token
inside prego-secrets

echo "== start"
journal() { inside journalctl --no-pager -q -o cat -n 40 -u "prego-$1" >&2; }
status=0
inside timeout 60 systemctl start prego-migrate 2>"$work/said" || status=$?
[ $status != 0 ] && [ $status != 124 ] || fail "a failed migration ends with $status"
inside systemctl stop prego-migrate
secret database_url <"$work/secrets/database_url"
inside systemctl start prego-migrate || { journal migrate; fail "the database is not migrated"; }
inside systemctl enable -q --now prego-api prego-agentgw prego-worker
ready() { inside prego health >"$work/said" 2>&1; }
eventually ready || {
	for process in api agentgw worker; do journal $process; done
	cat "$work/said" >&2
	fail "not all processes are ready"
}
cat "$work/said"

echo "== what each process may do"
for process in api agentgw worker; do
	pid=$(inside systemctl show -P MainPID prego-$process)
	[ "$(inside systemctl show -P NRestarts prego-$process)" = 0 ] || fail "prego-$process has restarted"
	inside systemd-analyze security --no-pager --threshold=20 "prego-$process" >"$work/said" ||
		{ cat "$work/said"; fail "prego-$process is exposed"; }
	tail -n 1 "$work/said"
	status=$(inside cat "/proc/$pid/status")
	grep -q '^CapBnd:.0*$' <<<"$status" && grep -q '^NoNewPrivs:.1$' <<<"$status" && ! grep -q '^Uid:.0' <<<"$status" ||
		fail "prego-$process has rights: $status"
	for other in api agentgw worker; do
		keys=$(inside find "/proc/$pid/root/etc/prego/keys-$other" -type f | wc -l)
		if [ $other = $process ]; then [ "$keys" -gt 0 ]; else [ "$keys" = 0 ]; fi ||
			fail "prego-$process sees $keys keys of prego-$other"
	done
	files=$(inside find "/proc/$pid/root/etc/prego/keys" "/proc/$pid/root/etc/prego/secrets" -type f)
	[ -z "$files" ] || fail "prego-$process sees $files"
done

echo "== a release of the agent"
inside env PREGO_ENV=prod DATABASE_URL_FILE=/etc/prego/secrets/database_url prego token create --name me --role operator |
	inside install -m 0600 /dev/stdin /root/token
prego() { inside env PREGO_TOKEN_FILE=/root/token prego "$@"; }
prego agent release create --signed "/release/prego-agent-linux-$arch.signed.json" --percent 5,50 --soak 1h

echo "== upgrade and remove"
package install --reinstall "/release/prego-linux-$arch.deb"
inside grep -q '^PREGO_ENV=prod$' /etc/prego/prego.env || fail "an upgrade replaces the settings"
inside systemctl restart prego-migrate prego-api prego-agentgw prego-worker
eventually ready || { cat "$work/said" >&2; fail "not all processes are ready after an upgrade"; }
package purge prego
if inside pgrep -x prego; then fail "prego still runs after its removal"; fi
inside test -s /etc/prego/secrets/master_key || fail "the master key went with the package"
echo "Debian $debian: the release is installed, runs, is upgraded and removed"
