#!/usr/bin/env bash
# Times the first run from source, phase by phase: what a newcomer waits for. What is already here takes no time; to
# time everything, use a fresh clone and empty directories as PREGO_CACHE and GOCACHE.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
chmod 755 "$dir" # Postgres is another user
demo=
trap '[ -z "$demo" ] || kill $demo 2>/dev/null || true; wait; rm -rf "$dir"' EXIT

phase() { # name, when it began, its goal in seconds if there is one
	printf '%-16s %4d s%s\n' "$1" $((SECONDS - $2)) "${3:+   (goal: $3 s)}" >>"$dir/times"
}

for part in packages build programs; do
	began=$SECONDS
	case $part in
	build) make --no-print-directory build ;;
	*) make --no-print-directory demo-$part ;;
	esac
	phase $part $began
done
began=$SECONDS
bin/prego-lab dev --demo --exit --data-dir "$dir/data" >"$dir/log" 2>&1 &
demo=$!
until grep -qs '^Console  ' "$dir/log" || ! kill -0 $demo 2>/dev/null; do sleep 0.1; done
phase "console answers" $began 20
status=0
wait $demo || status=$?
demo=
phase "demo is done" $began
[ "$status" = 0 ] || tail -30 "$dir/log"
cat "$dir/times"
exit "$status"
