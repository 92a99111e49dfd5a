#!/bin/sh
# The first of two stages, for hosts whose boot files would be too large for
# user_data: fetches the rest, checks it against the pinned digest, and runs it.
. /usr/local/lib/prego/lib.sh

step second_stage
insist "fetch the second stage" python3 -I "$LIB/gateway.py" fetch "$PATH_STAGE_TWO" "$STAGE_TWO_SHA256" /run/prego-stage-two.tar.gz
try "unpack the second stage" tar --extract --gzip --file /run/prego-stage-two.tar.gz --directory / --no-same-owner
rm -f /run/prego-stage-two.tar.gz
trap - EXIT
exec sh "$LIB/bootstrap.sh"
