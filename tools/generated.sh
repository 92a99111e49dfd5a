#!/usr/bin/env bash
# Generated code is what its source generates.
set -euo pipefail
cd "$(dirname "$0")/.."
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
cp api/*.gen.go "$before"
go generate ./api
for file in api/*.gen.go; do
	if ! cmp -s "$before/${file#api/}" "$file"; then
		echo "$file is not what api/openapi.yaml generates: run make generate and commit the result" >&2
		exit 1
	fi
done
