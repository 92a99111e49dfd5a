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
# What the provider's hc-utils have: a scan for private interfaces at boot, and a client of
# DHCP on each. Where it uses udev for those that come later, the hypervisor starts the unit.
cat >/run/systemd/system/hc-net-ifup@.service <<-'UNIT'
	[Unit]
	Description=Private network interface %i
	After=network-online.target
	[Service]
	ExecStart=/run/machine/net-up %i
	Restart=on-failure
	RestartSec=1
UNIT
cat >/run/systemd/system/hc-net-scan.service <<-'UNIT'
	[Unit]
	Description=Scan for private network interfaces
	After=network-online.target
	[Service]
	Type=oneshot
	ExecStart=/run/machine/net-scan
UNIT
mkdir -p /run/systemd/system/multi-user.target.wants
ln -s ../hc-net-scan.service /run/systemd/system/multi-user.target.wants/hc-net-scan.service
unset container container_uuid
exec /lib/systemd/systemd --show-status=1
