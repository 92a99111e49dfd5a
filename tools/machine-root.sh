#!/usr/bin/env bash
# Builds what simulated machines boot from (contributing/simulator.md), once, from Debian's
# packages, as root:
#
#   HASH/debian-12, debian-13                  roots like the provider's images
#   HASH/debian-12-minimal, debian-13-minimal  with nothing but what boots
#   HASH/mirror/bookworm, trixie               what hosts install at their first boot
#
# HASH is that of this recipe. They are built below PREGO_CACHE, for all checkouts, and DIR/current leads there. Where packages come from is
# what this machine's apt knows.
set -euo pipefail
umask 022
self=$(readlink -f "$0")
mkdir -p "${1:?a directory that is to lead to them}"
current=$(readlink -f "$1")/current
dir=${PREGO_CACHE:?}/machines
mkdir -p "$dir"
hash=$(sha256sum "$self" | cut -c1-16)
out=$dir/$hash

exec 9>"$dir/lock"
flock 9 # another checkout, or a test, may be building the same
if [ -e "$out/complete" ]; then
	touch "$out"
	ln -sfn "$out" "$current"
	exit 0
fi
[ "$(id -u)" = 0 ] || { echo "machine roots can only be built as root" >&2; exit 1; }
echo "building the roots of simulated machines in $out (once, some minutes)"
rm -rf "$out"
mkdir -p "$out/mirror"

# Debian's archive, as this machine reaches it.
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | head -1)
archive=${archive:-http://deb.debian.org/debian}
archive=${archive%/}

# What the agent's boot installs, with what it depends on. A package that a boot
# script installs and that is missing here makes that boot fail.
packages="nftables ca-certificates docker.io apparmor iptables curl netbase systemd-timesyncd"

# What boots at all and takes orders from a provider.
base="systemd-sysv dbus cloud-init curl ca-certificates iproute2 procps kmod less"
base_bookworm="$base ifupdown isc-dhcp-client"
base_trixie="$base systemd-resolved dhcpcd-base"
# What the provider's images have beside.
provider="netbase nftables apparmor apparmor-utils openssh-server sudo locales gnupg wget rsyslog e2fsprogs xfsprogs iputils-ping bash-completion systemd-timesyncd"

chrooted() { # root, then a command
	local root=$1
	shift
	chroot "$root" /usr/bin/env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# open_root lets apt work in a root as it does here, and starts nothing there.
open_root() {
	rm -f "$1/etc/resolv.conf" # may lead to a resolver that does not run here
	cp --dereference /etc/resolv.conf "$1/etc/resolv.conf"
	apt-config dump | grep -E '^Acquire::(https?|ftp|Retries|Check-)' >"$1/etc/apt/apt.conf.d/00build" || true
	printf 'deb %s %s main\n' "$archive" "$2" >"$1/etc/apt/sources.list"
	printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d"
	chmod 755 "$1/usr/sbin/policy-rc.d"
	mount -t proc proc "$1/proc"
}

close_root() {
	[ -e "$1/etc/dhcp/dhclient.conf" ] || chrooted "$1" systemctl --quiet enable systemd-networkd
	umount "$1/proc"
	chrooted "$1" apt-get clean
	rm -rf "$1"/var/lib/apt/lists/* "$1/usr/sbin/policy-rc.d" "$1/etc/apt/apt.conf.d/00build" "$1"/var/log/*.log "$1"/var/log/apt
	# As in an image: who the machine is, its disks and its resolver come with its
	# first boot.
	: >"$1/etc/machine-id"
	: >"$1/etc/fstab"
	rm -f "$1/etc/resolv.conf"
	if [ -e "$1/usr/lib/systemd/systemd-resolved" ]; then
		ln -s ../run/systemd/resolve/stub-resolv.conf "$1/etc/resolv.conf"
	else
		: >"$1/etc/resolv.conf"
	fi
	rm -f "$1/var/lib/dbus/machine-id" "$1"/etc/ssh/ssh_host_*
	rm -f "$1"/etc/network/interfaces.d/* "$1/etc/hostname"
	# Packages come from the provider's mirror, which the simulated cloud serves.
	printf 'deb [trusted=yes] http://mirror.cloud.example/%s ./\n' "$2" >"$1/etc/apt/sources.list"
	rm -f "$1"/etc/apt/sources.list.d/*
	cat >"$1/etc/cloud/cloud.cfg.d/90_provider.cfg" <<-'CFG'
		datasource_list: [ Hetzner, None ]
		apt: { preserve_sources_list: true }
		manage_etc_hosts: true
		disable_root: false
		locale: false
		# Its disk lies over another, and has no partitions.
		resize_rootfs: false
		growpart: { mode: "off" }
	CFG
	if [ -e "$1/etc/dhcp/dhclient.conf" ]; then
		# The bridge passes nothing in the second after a link came up: ask again soon.
		printf 'initial-interval 1;\nbackoff-cutoff 2;\n' >>"$1/etc/dhcp/dhclient.conf"
	fi
	printf '# made by the recipe of simulated machines\n' >"$1/etc/machine-image"
}

build() { # suite, number
	local suite=$1 minimal=$out/debian-$2-minimal full=$out/debian-$2 list=base_$1
	debootstrap --variant=minbase "$suite" "$minimal" "$archive" >"$out/$suite.log"
	open_root "$minimal" "$suite"
	chrooted "$minimal" apt-get -q -y update >>"$out/$suite.log"
	# shellcheck disable=SC2086
	chrooted "$minimal" apt-get -q -y --no-install-recommends install ${!list} >>"$out/$suite.log" 2>&1
	chrooted "$minimal" apt-get clean
	umount "$minimal/proc"
	open_root "$minimal" "$suite"
	# The mirror has what is installed on the least of the roots.
	# shellcheck disable=SC2086
	chrooted "$minimal" apt-get -q -y --no-install-recommends --download-only install $packages >>"$out/$suite.log" 2>&1
	mkdir -p "$out/mirror/$suite"
	mv "$minimal"/var/cache/apt/archives/*.deb "$out/mirror/$suite/"
	(cd "$out/mirror/$suite" && apt-ftparchive packages . >Packages && gzip -9kn Packages && apt-ftparchive -o APT::FTPArchive::Release::Suite="$suite" release . >Release.new && mv Release.new Release)
	umount "$minimal/proc"
	cp -a "$minimal" "$full"
	mount -t proc proc "$minimal/proc"
	close_root "$minimal" "$suite"
	open_root "$full" "$suite"
	# shellcheck disable=SC2086
	chrooted "$full" apt-get -q -y --no-install-recommends install $provider >>"$out/$suite.log" 2>&1
	close_root "$full" "$suite"
}

trap 'for r in "$out"/*/proc; do umount "$r" 2>/dev/null || true; done' EXIT
build bookworm 12 &
one=$!
build trixie 13 &
two=$!
failed=0
wait $one || failed=1
wait $two || failed=1
[ $failed = 0 ] || { tail -n 15 "$out"/*.log >&2; exit 1; }
date -u +%FT%TZ >"$out/complete"
ln -sfn "$out" "$current"
# Roots of other recipes go when no checkout has used them for a week, unless machines run from them.
for old in $(find "$dir" -mindepth 1 -maxdepth 1 -type d -mtime +7); do
	[ "$old" = "$out" ] || grep -q "$old" /proc/mounts || rm -rf "$old"
done
