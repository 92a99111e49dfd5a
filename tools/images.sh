#!/usr/bin/env bash
# Builds the images that stand in for Frappe's, MariaDB's, Redis's, Caddy's and HAProxy's
# where no registry can be reached (docs/frappe.md), from Debian's packages and Caddy's
# program, which make caddy builds, as root:
#
#   HASH/images.tar   for docker load
#   HASH/registry/    what Debian's docker-registry serves, see registry.yml there
#   HASH/mariadb/bin  MariaDB's programs from the same packages, which run on this machine. .prego/bin leads to them
#
# HASH is that of the recipe. They are built below PREGO_CACHE, for all checkouts, and DIR/current leads there.
# All but those of an edge share their layers: Debian's packages, and what is laid over them as the originals have it. They have
# the names that the declared stack has.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
mkdir -p "${1:?a directory that is to lead to them}"
current=$(readlink -f "$1")/current
dir=${PREGO_CACHE:?}/images
mkdir -p "$dir"
bench_image=frappe/erpnext:v15
caddy=${CADDY:-.prego/bin/caddy}
[ -x "$caddy" ] || { echo "$caddy is missing: make caddy builds it" >&2; exit 1; }

packages="mariadb-server mariadb-client redis-server redis-tools haproxy nginx-light nodejs gunicorn python3-click python3-pymysql python3-cryptography
	gettext-base gzip file wait-for-it jq media-types ca-certificates util-linux"
hash_of() { find "$@" -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16; }
base=base-$(printf '%s' "$packages" | cat - <(sed -n '/^build_base/,/^}/p' "$0") | sha256sum | cut -c1-16)
# Of the stack, the images' names are all that counts.
hash=$({ hash_of tools/images.sh tools/images lab/sim/bench; grep -o '"image": "[^"]*"' internal/config/stack.json | sort -u; sha256sum <"$caddy"; } | sha256sum | cut -c1-16)
out=$dir/$hash

exec 9>"$dir/lock"
flock 9 # another checkout, or a test, may be building the same

lead_there() {
	ln -sfn "$out" "$current"
	mkdir -p .prego/bin
	for program in mariadbd mariadb-install-db; do
		ln -sfn "$out/mariadb/bin/$program" .prego/bin/$program
	done
}

if [ -e "$out/complete" ]; then
	touch "$out" "$dir/$base.tar"
	lead_there
	exit 0
fi
[ "$(id -u)" = 0 ] || { echo "the images can only be built as root" >&2; exit 1; }

# Debian's archive, as this machine reaches it.
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | head -1 || true)
archive=${archive:-http://deb.debian.org/debian}

build_base() { # file for the layer
	local root=$1.root
	rm -rf "$root"
	debootstrap --variant=minbase trixie "$root" "${archive%/}" >"$1.log"
	cp --dereference /etc/resolv.conf "$root/etc/resolv.conf"
	apt-config dump | grep -E '^Acquire::(https?|ftp|Retries|Check-)' >"$root/etc/apt/apt.conf.d/00build" || true
	printf 'path-exclude=/usr/share/%s/*\n' doc man info locale lintian i18n/locales zoneinfo-icu >"$root/etc/dpkg/dpkg.cfg.d/small"
	printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
	chmod 755 "$root/usr/sbin/policy-rc.d"
	mount -t proc proc "$root/proc"
	local status=0
	# shellcheck disable=SC2086
	chroot "$root" /usr/bin/env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -euc '
		apt-get -q -y update
		apt-get -q -y --no-install-recommends install "$@"
		apt-get clean' sh $packages >>"$1.log" 2>&1 || status=$?
	umount "$root/proc"
	if [ "$status" != 0 ]; then
		tail -20 "$1.log" >&2
		return "$status"
	fi
	# What the images' programs make anew, or never look at.
	rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/{apt,debconf,ldconfig}/* "$root"/var/log/* "$root"/var/lib/{mysql,redis}/* "$root"/usr/sbin/policy-rc.d \
		"$root"/etc/apt/apt.conf.d/00build "$root"/usr/share/{doc,man,info,locale,lintian}/* "$root"/usr/share/{perl,python3}/debpython/__pycache__ "$root"/tmp/* "$root"/dev/*
	: >"$root/etc/resolv.conf"
	mkdir -p "$root"/var/log/{nginx,mysql,redis}
	# What HAProxy's image has of all this.
	chroot "$root" /bin/sh -euc 'for p in /usr/sbin/haproxy /usr/bin/dash; do echo "$p"; ldd "$p" | grep -o "/[^ ]*"; done' |
		while read -r f; do chroot "$root" realpath --no-symlinks "$f"; chroot "$root" realpath "$f"; done | sed 's,^/lib,/usr/lib,' | sort -u >"$root/haproxy.files"
	tar -C "$root" --sort=name --numeric-owner --mtime=@0 -cf "$1.new" .
	rm -rf "$root"
	mv "$1.new" "$1"
}

# unpack_mariadb takes the server out of the base, with the libraries and the loader that it needs: tests and simulated
# hosts run the version that the declared stack has, whatever Debian this is.
unpack_mariadb() { # directory
	local program root=$1/root
	mkdir -p "$root" "$1/bin" "$1/sbin" "$1/lib" "$1/libexec"
	tar -C "$root" -xf "$dir/$base.tar" --wildcards ./usr/sbin/mariadbd ./usr/bin/mariadb-install-db \
		./usr/bin/my_print_defaults ./usr/bin/resolveip ./usr/share/mariadb './usr/lib/*-linux-gnu/*.so*'
	mv "$root"/usr/*bin/* "$1/libexec"
	mv "$root/usr/share" "$1"
	cp -L "$root"/usr/lib/*-linux-gnu/ld-linux* "$1/lib/ld.so"
	for program in mariadbd my_print_defaults resolveip; do
		"$1/lib/ld.so" --library-path "$(echo "$root"/usr/lib/*-linux-gnu)" --list "$1/libexec/$program"
	done | grep -o "$root/[^ ]*" | sort -u | xargs cp -L -t "$1/lib"
	rm -r "$root"
	local load="exec $1/lib/ld.so --library-path $1/lib $1/libexec"
	for program in my_print_defaults resolveip; do
		printf '#!/bin/sh\n%s/%s "$@"\n' "$load" "$program" >"$1/bin/$program"
	done
	# An option that must be the first, as --no-defaults, is.
	printf '#!/bin/sh\n%s/mariadbd "$@" --basedir=%s\n' "$load" "$1" >"$1/bin/mariadbd"
	printf '#!/bin/sh\nexec %s/libexec/mariadb-install-db "$@" --basedir=%s\n' "$1" "$1" >"$1/bin/mariadb-install-db"
	cp "$1/bin/mariadbd" "$1/sbin" # where mariadb-install-db looks for it
	chmod 755 "$1"/bin/* "$1"/sbin/*
}

if [ ! -e "$dir/$base.tar" ]; then
	echo "building $dir/$base.tar from Debian's packages (once, a minute or two)"
	build_base "$dir/$base.tar"
fi
rm -rf "$out"
mkdir -p "$out"
python3 tools/images/pack.py --base "$dir/$base.tar" --out "$out" --bench-image "$bench_image" --stack internal/config/stack.json \
	--files tools/images --bench lab/sim/bench --caddy "$caddy"
unpack_mariadb "$out/mariadb"
: >"$out/complete"
lead_there
# Those of other recipes go when no checkout has used them for a week.
find "$dir" -mindepth 1 -maxdepth 1 \( -name 'base-*' ! -name "$base.tar" -o -type d ! -name "$hash" \) -mtime +7 -exec rm -rf {} +
