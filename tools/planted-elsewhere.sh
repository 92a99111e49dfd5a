#!/usr/bin/env bash
# planted-elsewhere.sh [BUG...]: other tests also catch the bugs that are planted for the seeded world, as far as
# their patches name one (Elsewhere: package test). Runs each of these tests with its bug active: it must fail.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
tools/planted.sh "$dir/tree" >"$dir/overlay.json"
[ $# -gt 0 ] || set -- $(cd lab/world/testdata/bugs && ls -- *.patch | sed 's/[.]patch$//')
caught=0 unknown=0 missed=0
for bug; do
	read -r package test < <(sed -n 's/^Elsewhere: //p' "lab/world/testdata/bugs/$bug.patch")
	if [ "$package" = none ]; then
		unknown=$((unknown + 1))
		continue
	fi
	binary=$dir/$(tr -c 'a-z\n' _ <<<"$package").test
	[ -x "$binary" ] || CGO_ENABLED=0 go test -trimpath -vet=off -overlay "$dir/overlay.json" -c -o "$binary" "$package"
	if (cd "$package" && CHAOS_BUG=none PREGO_TEST_PLANTED=none "$binary" -test.timeout 5m -test.run "^$test\$") >"$dir/log" 2>&1 &&
		! (cd "$package" && CHAOS_BUG=$bug PREGO_TEST_PLANTED=$bug "$binary" -test.timeout 5m -test.run "^$test\$") >"$dir/log" 2>&1; then
		echo "caught $bug: $package $test"
		caught=$((caught + 1))
	else
		echo "NOT CAUGHT $bug: $package $test"
		tail -n 5 "$dir/log"
		missed=$((missed + 1))
	fi
done
echo "planted bugs caught elsewhere $caught of $((caught + missed)), $unknown by the seeded world alone"
[ "$missed" = 0 ]
