# Shared by the boot scripts.
set -eu
export LC_ALL=C # what commands say is reported
set -a
. /etc/prego-agent/boot.env
set +a
LIB=/usr/local/lib/prego
ERRORS=/run/prego-boot.errors # memory: a full disk must not keep us from saying so
STEP='' COMMAND=''

# A command that fails is repeated for PATIENCE seconds: a mirror's hiccup, a minute
# without names and a package manager at work elsewhere pass. What waits by itself does
# so for a part of them, so that what it waits for is told meanwhile.
BRIEFLY=$((PATIENCE < 180 ? PATIENCE / 4 : 45))
CLOCK_TOLERANCE=10 # seconds between this clock and the control plane's

tell() { python3 -I "$LIB/gateway.py" report "$@"; }

# report tells the gateway how far the boot has come, and tries twice. That it can't be
# told stops nothing.
report() { tell "$@" >/dev/null || { sleep 2 && tell "$@" >/dev/null; } || true; }

# uptime is a clock that nobody sets.
uptime() { read -r up _ </proc/uptime && echo "${up%%.*}"; }

step() {
	STEP="$1" COMMAND=''
	: >"$ERRORS"
}

# attempt runs a command and keeps what it says about errors.
attempt() {
	failed=0
	"$@" 2>"$ERRORS" || failed=$?
	cat "$ERRORS" >&2
	return "$failed"
}

# cause is the end of what the last command said about errors, as the gateway takes it.
cause() { grep . "$ERRORS" | tail -n 3 | tr '\n' ' ' | tr -cd '[:print:]' | tail -c 360; }

why() { echo "$STEP: ${COMMAND:+$COMMAND: }$(cause)"; }

# try runs a command. The first argument is what it is called in reports.
try() {
	COMMAND="$1"
	shift
	attempt "$@"
}

# insist repeats a command with growing pauses, and says what it is that keeps the
# boot waiting.
insist() {
	COMMAND="$1" began=$(uptime) wait=1
	shift
	until attempt "$@"; do
		[ $(($(uptime) - began)) -lt "$PATIENCE" ] || return 1
		report retrying "$(why)"
		sleep "$wait"
		[ "$wait" -ge 8 ] || wait=$((wait * 2))
	done
}

# start starts a unit, now and at each boot. Why it does not start is in its journal.
start() { insist "start $1" start_unit "$1"; }

start_unit() {
	systemctl enable --quiet --now "$1" && return 0
	systemctl reset-failed "$1" || true # from now on its starts are counted anew
	journalctl --quiet --no-pager --boot --output cat --lines 2 "_SYSTEMD_UNIT=$1" >&2
	return 1
}

# settle_clock waits until this host and the control plane agree about the time, and
# sets the clock where no time service does. Certificates and tokens would be refused
# on one side or the other. The gateway's word is good: its certificate was checked.
settle_clock() {
	began=$(uptime)
	while ahead=$(tell cloud_init_started); do
		[ "${ahead#-}" -gt "$CLOCK_TOLERANCE" ] || return 0
		COMMAND="clock_skew: this clock is $ahead s ahead of the control plane's"
		[ $(($(uptime) - began)) -lt "$BRIEFLY" ] || break
		report retrying "$(why)"
		sleep 3
	done
	[ -n "$ahead" ] || return 0 # nobody to ask: the next steps find out why
	attempt date --utc --set "@$(($(date +%s) - ahead))"
}

# The last word of a boot that fails must arrive.
finish() {
	status=$?
	trap - EXIT
	[ "$status" -ne 0 ] || exit 0
	[ -s "$ERRORS" ] || echo "ended with status $status" >"$ERRORS"
	began=$(uptime) said="$(why)"
	until tell failed "$said" >/dev/null || [ $(($(uptime) - began)) -gt 60 ]; do sleep 3; done
	exit "$status"
}
trap finish EXIT
