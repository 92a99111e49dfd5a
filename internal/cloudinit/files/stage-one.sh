#!/bin/sh
# The first of two stages, for hosts whose boot files would be too large for
# user_data: fetches the rest, checks it against the pinned digest, and runs it.
. "${PREGO_ROOT:-}/usr/local/lib/prego/lib.sh"

STEP=second_stage
archive="$ROOT/run/prego-stage-two.tar.gz"
fetch_stage() {
	call "$STAGE_TWO_PATH" --output "$archive" || return 1
	echo "$STAGE_TWO_SHA256  $archive" | sha256sum --check --status
}
mkdir -p "$ROOT/run"
insist fetch_stage
tar --extract --gzip --file "$archive" --directory "$ROOT/" --no-same-owner
rm -f "$archive"
trap - EXIT
exec sh "$ROOT/usr/local/lib/prego/bootstrap.sh"
