#!/bin/sh
# Removes what belongs to this one machine and would be shared by all that are made from
# its image, and powers off. ROOT is "" but for tests.
set -euf
ROOT="${ROOT:-}"

# gone removes what its patterns match below ROOT.
gone() {
	for path; do
		set +f
		# shellcheck disable=SC2086 # patterns
		rm -rf "$ROOT"$path
		set -f
	done
}

[ -n "$ROOT" ] || systemctl stop docker.service docker.socket containerd.service || true

[ ! -e "$ROOT/etc/prego-image/recipe.json" ] || cp "$ROOT/etc/prego-image/recipe.json" "$ROOT/etc/prego-image.json"

# Who it was: the machine's id, its name, its keys, what the network was.
: >"$ROOT/etc/machine-id"
gone /var/lib/dbus/machine-id /etc/hostname /etc/ssh/ssh_host_* /var/lib/docker/engine-id /etc/docker/key.json /var/lib/systemd/random-seed \
	/var/lib/systemd/credential.secret /etc/netplan/50-cloud-init.yaml /etc/network/interfaces.d/50-cloud-init /etc/udev/rules.d/70-persistent-net.rules \
	/var/lib/dhcp /etc/sudoers.d/90-cloud-init-users
mkdir -p "$ROOT/var/lib/dhcp"

# What cloud-init did, so that it does it again, with another user_data.
gone /var/lib/cloud/instance /var/lib/cloud/instances /var/lib/cloud/data /var/lib/cloud/sem /var/lib/cloud/seed /run/cloud-init

# What was said and downloaded.
gone /var/log/journal /var/log/cloud-init.log /var/log/cloud-init-output.log /var/log/apt /var/log/dpkg.log /var/log/wtmp /var/log/btmp /var/log/lastlog \
	/var/cache/apt/archives /var/cache/apt/pkgcache.bin /var/cache/apt/srcpkgcache.bin /var/lib/apt/lists /root/.bash_history /root/.cache /tmp/* /var/tmp/*
mkdir -p "$ROOT/var/cache/apt/archives/partial" "$ROOT/var/lib/apt/lists/partial" "$ROOT/var/log/journal"

# Last of all ourselves.
gone /etc/systemd/system/prego-image-seal.service /etc/prego-image
sync
[ -n "$ROOT" ] || systemctl --no-block poweroff
