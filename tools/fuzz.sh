#!/usr/bin/env bash
# Looks for inputs that break what a stranger's bytes are read by: every fuzz target of the
# project, FUZZTIME each. An input that breaks one stays in testdata/fuzz, where every go test
# reads it again.
set -euo pipefail
cd "$(dirname "$0")/.."
n=0
while IFS=: read -r file target; do
	echo "$target ($(dirname "$file"))"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" -fuzzminimizetime 3s -parallel "${FUZZPARALLEL:-2}" "./$(dirname "$file")"
	n=$((n + 1))
done < <(grep -rhoH --include='*_test.go' -E '^func Fuzz\w+' . | sed -E 's|^\./||; s/func //' | sort)
echo "fuzz targets: $n, all passed"
