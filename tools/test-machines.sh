#!/usr/bin/env bash
# Runs the tests against machines (contributing/simulator.md), as root, and prints the result of
# each scenario, which is a test without subtests. Arguments are go
# test's, for example -run TestMachineBoot.
set -euo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
export PREGO_TEST_SCRATCH=/var/tmp # machines' disks are no small files
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
PACKAGES=./lab/e2e FORMAT=standard-verbose tools/test.sh -tags machines -timeout 30m -parallel 3 -run '^TestMachine' "$@" >"$log" 2>&1 || status=$?
# What failed is shown whole; of what passed, the names and times.
if [ "$status" = 0 ]; then
	grep -E '^ *--- |^FLAKY|^[^ ]*: [0-9]+ runs' "$log" || true
else
	grep -vE '^ *=== (RUN|PAUSE|CONT|NAME)' "$log" || true
fi
echo "machines took $((SECONDS - began)) s"
awk -v status="$status" '
	$1 == "---" { name = $3; result[name] = substr($2, 1, 4); while (sub("/[^/]*$", "", name)) parent[name] = 1 }
	END {
		for (n in result) if (!(n in parent)) { if (result[n] == "PASS") passed++; else failed++ }
		if (status != 0 && failed == 0) failed = 1 # it did not get as far as a result
		if (passed + failed == 0) failed = 1
		printf "machines: %d scenarios passed, %d failed\n", passed, failed
		exit failed > 0
	}' "$log"
