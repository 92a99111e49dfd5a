#!/usr/bin/env bash
# part.sh NAME COMMAND…: runs a part of a push. Its time and result are a line of the
# file $PREGO_PARTS, the source of the table of .ci/run.
set -uo pipefail
name=$1
shift
began=$EPOCHREALTIME
"$@"
status=$?
awk -v name="$name" -v a="$began" -v b="$EPOCHREALTIME" -v status="$status" \
	'BEGIN { printf "%s\t%.0f\t%s\n", name, b - a, status ? "failed" : "passed" }' >>"${PREGO_PARTS:-/dev/null}"
exit "$status"
