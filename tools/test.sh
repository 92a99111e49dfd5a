#!/usr/bin/env bash
# Runs go test for the packages in PACKAGES; arguments are go test's, after TESTFLAGS. A test that fails under load is a
# defect, of the test or of the product: nothing is run again. PREGO_TEST_DRAW states which cases tests draw that play
# some of many; a run prints it, so that a failure can be repeated with the same cases.
set -euo pipefail
cd "$(dirname "$0")/.."
export PREGO_TEST_DRAW=${PREGO_TEST_DRAW:-$RANDOM}
echo "PREGO_TEST_DRAW=$PREGO_TEST_DRAW"
# A process with the race detector sleeps for a second before it ends, to see what its goroutines still
# do. Tests start hundreds of them, each for one request.
export GORACE=${GORACE:-atexit_sleep_ms=10}
exec "$GOTESTSUM" --format "${FORMAT:-standard-quiet}" --hide-summary skipped --packages "$PACKAGES" -- ${TESTFLAGS:-} "$@"
