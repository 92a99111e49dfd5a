#!/usr/bin/env bash
# Times the first run, phase by phase: what a newcomer waits for. What is already here takes no time.
#
#   first-run.sh             from source; to time everything, use a fresh clone and empty directories as PREGO_CACHE and
#                            GOCACHE
#   first-run.sh --from DIR  from the release files in DIR, as docs/first-run.md describes it, in an empty directory and
#                            without Go
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
"") release= ;;
--from) release=$(readlink -f "${2:?a directory of release files}") ;;
*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1 >&2; exit 2 ;;
esac
dir=$(mktemp -d)
chmod 755 "$dir" # Postgres is another user
demo=
trap '[ -z "$demo" ] || kill $demo 2>/dev/null || true; wait; rm -rf "$dir"' EXIT

phase() { # name, when it began, its goal in seconds if there is one
	printf '%-16s %4d s%s\n' "$1" $((SECONDS - $2)) "${3:+   (goal: $3 s)}" >>"$dir/times"
}

lab=$PWD/bin/prego-lab
if [ -n "$release" ]; then
	arch=$(dpkg --print-architecture)
	began=$SECONDS
	(cd "$release" && sha256sum --check --quiet --ignore-missing SHA256SUMS)
	phase verify $began
	began=$SECONDS
	missing=()
	for package in $(sed -n 's/^apt install -y //p' docs/first-run.md); do
		dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
	done
	tools/packages.sh "${missing[@]}"
	phase packages $began
	began=$SECONDS
	/usr/bin/python3 -m venv "$dir/lab"
	"$dir/lab/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: \
		--require-hashes --requirement tools/wheels.txt
	for name in prego prego-agent prego-lab; do install "$release/$name-linux-$arch" "$dir/lab"; done
	export PATH="$dir/lab/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	! command -v go || { echo "Go is in the system's PATH" >&2; exit 1; }
	phase programs $began
	lab=$dir/lab/prego-lab-linux-$arch
	cd "$dir/lab"
else
	for part in packages build programs; do
		began=$SECONDS
		case $part in
		build) make --no-print-directory build ;;
		*) make --no-print-directory demo-$part ;;
		esac
		phase $part $began
	done
fi
began=$SECONDS
"$lab" dev --demo --exit --data-dir "$dir/data" >"$dir/log" 2>&1 &
demo=$!
until grep -qs '^Console  ' "$dir/log" || ! kill -0 $demo 2>/dev/null; do sleep 0.1; done
phase "console answers" $began 20
[ -z "$release" ] || phase "whole wait" 0 60
status=0
wait $demo || status=$?
demo=
phase "demo is done" $began
[ "$status" = 0 ] || tail -30 "$dir/log"
cat "$dir/times"
exit "$status"
