# For tools/push.sh and tools/deep.sh, to be sourced. What only computes takes the processors that tests of whole systems
# leave while they wait.

# behind starts a command at the lowest priority. It ends with the script. Linux groups processes by session, and the
# group's priority counts, not that of its processes (sched(7), autogroup).
behind() {
	behind_lines=$(mktemp)
	setsid bash -c 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@"' behind "$@" \
		>"$behind_lines" 2>&1 </dev/null &
	behind_pid=$!
	trap 'kill -- -"$behind_pid" 2>/dev/null || true; rm -f "$behind_lines"' EXIT
}

# awaited waits for it, prints its lines, and returns its status.
awaited() {
	local status=0
	wait "$behind_pid" || status=$?
	cat "$behind_lines"
	return "$status"
}
