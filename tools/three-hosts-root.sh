#!/usr/bin/env bash
# three-hosts-root.sh LINK: installs what docs/production-three-hosts.md installs from Debian's archive, over the root
# debian-13-minimal of tools/machine-root.sh, once, as root. LINK leads to the directory that lies over that root. It is
# kept below PREGO_CACHE, by a hash of both and of this recipe.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
link=$1
lower=$(readlink -f .prego/machines/current)/debian-13-minimal
install=$(sed -n '/^mkdir -p \/etc\/postgresql-common/,/^apt install -y postgresql/p' docs/production-three-hosts.md)
[ -n "$install" ] || { echo "docs/production-three-hosts.md installs nothing" >&2; exit 1; }
dir=${PREGO_CACHE:?}/three-hosts
hash=$( (echo "$lower" "$install"; cat "$0") | sha256sum | cut -c1-16)
out=$dir/$hash
mkdir -p "$dir"
exec 9>"$dir/lock"
flock 9 # another checkout may be building the same
if [ ! -e "$out/complete" ]; then
	echo "installing Postgres, Patroni, etcd and HAProxy in a Debian 13 (once, about a minute)"
	rm -rf "$out"
	mkdir -p "$out/upper" "$out/work" "$out/root"
	archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | head -1)
	export lower out install archive=${archive:-http://deb.debian.org/debian}
	unshare --mount bash -euo pipefail >"$out/log" 2>&1 9>&- <<-'BUILD' || { tail -n 20 "$out/log" >&2; exit 1; }
		mount -t overlay overlay -o "lowerdir=$lower,upperdir=$out/upper,workdir=$out/work" "$out/root"
		root=$out/root
		cp -a "$root/etc/apt/sources.list" "$out/sources.list"
		cp -a "$root/etc/resolv.conf" "$out/resolv.conf"
		rm -f "$root/etc/resolv.conf"
		cp --dereference /etc/resolv.conf "$root/etc/resolv.conf"
		apt-config dump | grep -E '^Acquire::(https?|ftp|Retries|Check-)' >"$root/etc/apt/apt.conf.d/00build" || true
		printf 'deb %s trixie main\n' "$archive" >"$root/etc/apt/sources.list"
		printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
		chmod 755 "$root/usr/sbin/policy-rc.d"
		mount -t proc proc "$root/proc"
		chrooted() {
			chroot "$root" /usr/bin/env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
				PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@" </dev/null
		}
		chrooted apt-get -q update
		chrooted sh -euc "$install"
		chrooted apt-get clean
		rm -rf "$root"/var/lib/apt/lists/* "$root/usr/sbin/policy-rc.d" "$root/etc/apt/apt.conf.d/00build"
		rm "$root/etc/resolv.conf"
		cp -a "$out/sources.list" "$root/etc/apt/sources.list"
		cp -a "$out/resolv.conf" "$root/etc/resolv.conf"
		umount "$root/proc"
		umount "$root"
	BUILD
	touch "$out/complete"
	# Those of other recipes go when no checkout has used them for a week.
	find "$dir" -mindepth 1 -maxdepth 1 -type d -mtime +7 ! -path "$out" -exec rm -rf {} +
fi
touch "$out"
mkdir -p "$(dirname "$link")"
ln -sfn "$out/upper" "$link"
