#!/bin/sh
# Starts a client on each private interface that none has configured.
for device in /sys/class/net/en*; do
	[ -e "$device" ] && [ "$(cat "$device/operstate")" = down ] || continue
	systemctl --no-block start "hc-net-ifup@${device##*/}.service"
done
