#!/usr/bin/env bash
# The parts of make test, each with its seconds (tools/part.sh). All are run, even after a failure. RACE and PLAIN are the
# packages whose tests run with the race detector and without it.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0
part() { tools/part.sh "$@" || status=1; }

part "unit tests with the race detector" env PACKAGES="$RACE" tools/test.sh -race -timeout 15m -p 4 -skip '^TestTheDeclaredStack$|^TestStandIn' # in their turns: tools/deep.txt
part "unit tests" env CGO_ENABLED=0 PACKAGES="$PLAIN" tools/test.sh -timeout 15m -p 4
part "end to end" env CGO_ENABLED=0 PACKAGES=./lab/e2e tools/test.sh -timeout 30m -parallel 6 -skip "$(tools/deep.sh skip)"

# Machines boot and wait much of their time; the seeded world has its own clock and takes the processors that
# they leave. Its lines come after theirs.
world() {
	chaos=$(mktemp)
	setsid nice -n 19 tools/part.sh "seeded world" env SEEDS=30 BUGS=1 tools/chaos.sh >"$chaos" 2>&1 &
	pid=$!
	trap 'kill -- -"$pid" 2>/dev/null || true; rm -f "$chaos"' EXIT
	"$@"
	wait "$pid" || status=1
	cat "$chaos"
}
if [ "$(id -u)" = 0 ]; then
	world part "real Debians" tools/test-machines.sh -run "^TestMachineConformance$|$(tools/deep.sh machines)"
else
	world true # machines need root
fi

while read -r command; do
	part "share: $command" bash -c "$command" </dev/null
done < <(tools/deep.sh commands)
exit "$status"
