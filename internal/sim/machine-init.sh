#!/bin/sh
# The first process of a simulated machine: does what a kernel and a hypervisor do
# before there is systemd.
for c in cpu cpuacct cpuset memory devices freezer blkio pids; do
	# Without this the limits of units are not enforced.
	[ ! -d "/sys/fs/cgroup/$c" ] || mount -o remount,bind,rw "/sys/fs/cgroup/$c"
done
echo 0 >/proc/sys/net/ipv4/ip_forward # where it is 1, Docker leaves forwarding open
/run/machine/volumes
# systemd learns of disks from udev, which is not here: it would mount none of fstab's.
mount --all --types ext4
# cloud-init does not look for its provider inside a container.
for unit in cloud-init-local cloud-init cloud-init-main cloud-init-network cloud-config cloud-final; do
	mkdir -p "/run/systemd/system/$unit.service.d"
	printf '[Service]\nEnvironment=PATH=/run/machine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n' >"/run/systemd/system/$unit.service.d/machine.conf"
done
unset container container_uuid
exec /lib/systemd/systemd --show-status=1
