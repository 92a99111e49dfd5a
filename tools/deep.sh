#!/usr/bin/env bash
# Which of the deep tests (tools/deep.txt) run now. A push runs one share of twenty: the share is the number of
# the commit modulo 20, so that twenty commits run them all, and PREGO_SHARE=n chooses another.
#
#   deep.sh skip      a pattern of the end-to-end tests that this push leaves out
#   deep.sh machines  a pattern of the scenarios on real Debians that it runs
#   deep.sh commands  its other commands, one a line
#   deep.sh check     fails if the list names a test that does not exist
#
#   deep.sh all       runs everything (make test-deep)
set -euo pipefail
cd "$(dirname "$0")/.."
shares=20
share=${PREGO_SHARE:-$(($(git rev-list --count HEAD 2>/dev/null || echo 0) % shares))}

# rows prints the rest of the lines of a kind that are in the share (mine) or are not (others).
rows() { # kind, mine or others
	awk -v kind="$1" -v which="$2" -v share="$share" -v shares=$shares '
		/^#/ || NF == 0 { next }
		{ line = n++; mine = share == "all" || line % shares == share }
		$1 == kind && (which == "mine") == mine { sub(/^[^ ]+ +/, ""); print }' tools/deep.txt
}

pattern() { # of names on standard input; one that nothing has if there are none
	paste -sd'|' - | sed -e 's/^$/-/' -e 's/^/^(/' -e 's/$/)$/'
}

case "${1:-}" in
skip) rows e2e others | pattern ;;
machines) rows machines mine | pattern ;;
commands) rows run mine ;;
all)
	share=all
	PREGO_PARTS=${PREGO_PARTS:-$(mktemp)}
	export PREGO_PARTS
	. tools/behind.sh
	behind tools/deep.sh computing # its lines come last
	# Each by itself: its result is there at once, and no test suffers from what Temporal's development server suffered.
	for name in $(rows e2e mine); do
		tools/part.sh "end to end: $name" env CGO_ENABLED=0 PACKAGES=./lab/e2e tools/test.sh -count 1 -timeout 60m -parallel 4 -run "^$name\$" </dev/null || true
	done
	tools/part.sh "real Debians" tools/test-machines.sh </dev/null || true
	while read -r command; do tools/part.sh "$command" bash -c "$command" </dev/null || true; done < <(rows run mine; rows deep mine)
	awaited || true
	echo
	awk -F '\t' '{ printf "%6d s  %-6s  %s\n", $2, $3, $1; failed += $3 != "passed" } END { exit failed > 0 || NR == 0 }' "$PREGO_PARTS"
	;;
computing) # a part of all
	# Properties on PREGO_TEST_DEEP times as many cases.
	tools/part.sh "properties" go test ${TESTFLAGS:-} -count 1 -timeout 120m $(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | awk '/pgregory.net\/rapid/ {print $1}') \
		-rapid.checks=$((100 * ${PREGO_TEST_DEEP:-1})) || true
	# Pushes play other seeds: twenty of them, 160 more.
	tools/part.sh "seeded world and all planted bugs" env SEEDS=1000 tools/chaos.sh || true
	;;
check)
	for name in $(awk '$1 == "e2e" || $1 == "machines" { print $2 }' tools/deep.txt); do
		git grep -q "^func $name(t \*testing.T)" -- lab/e2e || { echo "tools/deep.txt: there is no $name in lab/e2e" >&2; exit 1; }
	done
	;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | head -n -1 >&2
	exit 2
	;;
esac
