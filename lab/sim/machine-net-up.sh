#!/bin/sh
# Asks for the address of a private interface, with the client that the system has.
if command -v dhclient >/dev/null; then
	exec dhclient -d -4 -v -pf "/run/dhclient.$1.pid" -lf "/var/lib/dhcp/dhclient.$1.leases" "$1"
fi
exec dhcpcd --nobackground --ipv4only --noarp --nohook resolv.conf --nohook hostname "$1"
