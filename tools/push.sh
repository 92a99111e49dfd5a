#!/usr/bin/env bash
# The parts of make test, each with its seconds (tools/part.sh). All are run, even after a failure. RACE and PLAIN are the
# packages whose tests run with the race detector and without it.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/behind.sh
status=0
# What measures CPU runs alone.
CPU='^TestHostile.*CostLittle$'
part() { tools/part.sh "$@" || status=1; }

part "unit tests with the race detector" env PACKAGES="$RACE" tools/test.sh -race -timeout 15m -p 4 -skip '^TestTheDeclaredStack$|^TestStandIn' # the first two in their turns: tools/deep.txt
part "unit tests" env CGO_ENABLED=0 PACKAGES="$PLAIN" tools/test.sh -timeout 15m -p 4 -skip "$CPU"
part "documents" env CGO_ENABLED=0 PACKAGES=./lab/docsrun tools/test.sh -timeout 5m -run "^TestDocumentsAreWellFormed$"
part "tests of CPU" env CGO_ENABLED=0 PACKAGES=./api tools/test.sh -timeout 5m -run "$CPU"
# Whole systems and machines that boot wait for a part of their time.
behind tools/part.sh "seeded world" env SEEDS=4 BUGS=1 tools/chaos.sh
part "end to end" env CGO_ENABLED=0 PACKAGES=./lab/e2e tools/test.sh -timeout 30m -parallel 4 -skip "$(tools/deep.sh skip)"

# The README's first command. Its servers and the machines wait for each other's boots.
demo_lines=$(mktemp)
tools/part.sh "make demo" make demo ARGS="--exit --reset" >"$demo_lines" 2>&1 </dev/null &
demo=$!
if [ "$(id -u)" = 0 ]; then # machines need root
	part "real Debians" tools/test-machines.sh -run "^TestMachineConformance$|$(tools/deep.sh machines)"
fi
wait "$demo" || { status=1 && cat "$demo_lines"; }
tail -n 3 "$demo_lines"
rm -f "$demo_lines"
awaited || status=1

while read -r command; do
	part "share: $command" bash -c "$command" </dev/null
done < <(tools/deep.sh commands)
exit "$status"
