#!/usr/bin/env bash
# Installs the Debian packages behind the named tools, when they are missing and
# this user may; otherwise names the packages, and fails. promtool it only unpacks, into
# .prego/bin.
set -euo pipefail

has() {
	case "$1" in
	postgres) [ -n "${DATABASE_URL:-}" ] || command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ;;
	mariadbd | dockerd | nft | ip | debootstrap | losetup | sysctl) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ;;
	postgres-server) command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ;;
	mkfs.ext4) [ -x /sbin/mkfs.ext4 ] ;;
	compose) docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null ;;
	python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
	python3-pip) python3 -m pip --version >/dev/null 2>&1 ;;
	python3-click) /usr/bin/python3 -c 'import click' 2>/dev/null ;;
	python3-cryptography) /usr/bin/python3 -c 'import cryptography' 2>/dev/null ;;
	python3-pymysql) /usr/bin/python3 -c 'import pymysql' 2>/dev/null ;;
	ca-certificates) [ -s /etc/ssl/certs/ca-certificates.crt ] ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

package() {
	case "$1" in
	postgres | postgres-server) echo postgresql ;;
	compose) echo docker-compose ;;
	dockerd) echo docker.io ;;
	docker) if apt-cache show docker-cli >/dev/null 2>&1; then echo docker-cli; else echo docker.io; fi ;; # newer Debian has it apart
	node) echo nodejs ;;
	setpriv) echo util-linux ;;
	nft) echo nftables ;;
	ip) echo iproute2 ;;
	nc) echo netcat-openbsd ;;
	nsenter | unshare | mount) echo util-linux ;;
	sysctl) echo procps ;;
	hcloud) echo hcloud-cli ;;
	systemd-analyze) echo systemd ;;
	mariadbd) echo mariadb-server ;;
	systemd-nspawn) echo systemd-container ;;
	apt-ftparchive) echo apt-utils ;;
	losetup) echo mount ;;
	mkfs.ext4) echo e2fsprogs ;;
	*) echo "$1" ;;
	esac
}

# unpack takes one program out of a package, into .prego/bin: installing prometheus would
# start a server.
unpack() {
	local bin dir
	bin=$(cd "$(dirname "$0")/.." && pwd)/.prego/bin
	[ -x "$bin/$1" ] && return
	if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
		echo "missing here: $1, which is in Debian's package $2. Put it on PATH and try again." >&2
		exit 1
	fi
	[ "$(id -u)" != 0 ] || apt-get -qq update
	mkdir -p "$bin"
	dir=$(mktemp -d)
	(cd "$dir" && apt-get -qq -o APT::Sandbox::User=root download "$2")
	dpkg-deb --fsys-tarfile "$dir"/*.deb | tar -xO "./usr/bin/$1" >"$dir/$1"
	install "$dir/$1" "$bin/$1.new"
	mv "$bin/$1.new" "$bin/$1"
	rm -r "$dir"
}

missing=()
for tool in "$@"; do
	if ! has "$tool"; then
		case "$tool" in
		promtool) unpack promtool prometheus ;;
		*) missing+=("$(package "$tool")") ;;
		esac
	fi
done
[ "${#missing[@]}" -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "missing here: ${missing[*]}. Install them (on Debian: apt-get install ${missing[*]}) and try again." >&2
	[ "${missing[*]}" != postgresql ] || echo "Or set DATABASE_URL to a Postgres that is there." >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq -o DPkg::Lock::Timeout=600 update
# Another make, or the system itself, may be installing something.
apt-get -qq -y -o DPkg::Lock::Timeout=600 --no-install-recommends install "${missing[@]}" >/dev/null
