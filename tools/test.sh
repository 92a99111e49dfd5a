#!/usr/bin/env bash
# Runs go test for the packages in PACKAGES; arguments are go test's, after TESTFLAGS. A test that fails is
# run once more by itself, with all its parts, which build on one another, unless more than twenty tests and parts
# failed or the race detector found something. One that passes then is flaky: its first failure is printed like
# any other, and its name once more at the end, since it is a defect to mend. PREGO_TEST_DRAW says which cases
# tests draw that play some of many: both times the same.
set -euo pipefail
cd "$(dirname "$0")/.."
flaky=$(mktemp)
trap 'rm -f "$flaky"' EXIT
export PREGO_TEST_DRAW=${PREGO_TEST_DRAW:-$RANDOM}
echo "PREGO_TEST_DRAW=$PREGO_TEST_DRAW"
# A process with the race detector sleeps for a second before it ends, to see what its goroutines still
# do. Tests start hundreds of them, each for one request.
export GORACE=${GORACE:-atexit_sleep_ms=10}
status=0
"$GOTESTSUM" --format "${FORMAT:-standard-quiet}" --hide-summary skipped \
	--rerun-fails=1 --rerun-fails-run-root-test --rerun-fails-max-failures=20 --rerun-fails-abort-on-data-race --rerun-fails-report "$flaky" \
	--packages "$PACKAGES" -- ${TESTFLAGS:-} "$@" || status=$?
if [ "$status" = 0 ] && [ -s "$flaky" ]; then
	echo "FLAKY, passed only when run again:"
	cat "$flaky"
fi
exit "$status"
