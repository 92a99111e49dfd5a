#!/usr/bin/env bash
# Generated code is what its source generates.
set -euo pipefail
cd "$(dirname "$0")/.."
before=$(mktemp)
trap 'rm -f "$before"' EXIT
cp api/openapi.gen.go "$before"
go generate ./api
if ! cmp -s "$before" api/openapi.gen.go; then
	echo "api/openapi.gen.go is not what api/openapi.yaml generates: run make generate and commit the result" >&2
	exit 1
fi
