#!/usr/bin/env bash
# planted.sh DIR: copies to DIR the files that the planted bugs of the seeded world change, applies all
# of them, including the ones that no seed has caught yet, and prints an overlay for go build. CHAOS_BUG activates a bug.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$(pwd) tree=$1
mkdir -p "$tree"
bugs=(lab/world/testdata/bugs/*.patch lab/world/testdata/unproven/*.patch)
entries=()
for file in $(sed -n 's,^+++ b/,,p' "${bugs[@]}" | sort -u); do
	cp --parents "$file" "$tree"
	entries+=("\"$root/$file\":\"$tree/$file\"")
done
for bug in "${bugs[@]}"; do
	patch -s -p1 -d "$tree" <"$bug" || { echo "$bug does not apply any more" >&2; exit 1; }
	grep -q "planted(['\"]$(basename "$bug" .patch)['\"])" "$bug" || { echo "$bug does not ask planted() for its name" >&2; exit 1; }
done
for dir in $(cd "$tree" && find . -name '*.go' -printf '%h\n' | sort -u); do
	dir=${dir#./}
	printf 'package %s\n\nimport "os"\n\nfunc planted(bug string) bool { return os.Getenv("CHAOS_BUG") == bug }\n' "$(basename "$dir")" >"$tree/$dir/planted_bugs.go"
	entries+=("\"$root/$dir/planted_bugs.go\":\"$tree/$dir/planted_bugs.go\"")
done
(IFS=, && echo "{\"Replace\":{${entries[*]}}}")
