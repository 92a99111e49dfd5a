#!/bin/sh
# Plays seeds of the seeded world, and looks for bugs that are planted (docs/reliability.md).
#
#   SEEDS=n      how many seeds, 20 by default, from FIRST (by default the time)
#   SEED=n       one seed with its timeline; nothing else happens
#   BUGS=names   which of internal/world/testdata/bugs to plant; all by default, "none" for none
#   BUG_SEEDS=n  within how many seeds each must be found, 40 by default
#   JOBS=n       plays at once, 2 by default
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
seeds=${SEEDS:-20} first=${FIRST:-$(date +%s)} jobs=${JOBS:-2} bug_seeds=${BUG_SEEDS:-40}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

build() { go test -trimpath -vet=off "$@" -c ./cmd/prego; }
play() (cd cmd/prego && GOMAXPROCS=1 "$@" -test.run '^TestChaos$' -test.timeout 0)

build -o "$dir/world.test"
if [ -n "${SEED:-}" ]; then
	CHAOS_SEED=$SEED play "$dir/world.test"
	exit
fi

echo "playing $seeds seeds from $first"
i=0
while [ "$i" -lt "$jobs" ]; do
	n=$(((seeds + jobs - 1 - i) / jobs))
	if [ "$n" -gt 0 ]; then
		(CHAOS_SEEDS=$n CHAOS_FIRST=$((first + i)) CHAOS_STEP=$jobs CHAOS_VERBOSE=${VERBOSE:-} play "$dir/world.test" >"$dir/seeds.$i" 2>&1 || echo "FAILED" >>"$dir/seeds.$i") &
	fi
	i=$((i + 1))
done
wait
violations=$(cat "$dir"/seeds.* | grep -c '^VIOLATION' || true)
grep -h -A 60 '^VIOLATION' "$dir"/seeds.* | grep -v '^met\|^---\|^ *world_test' || true
# What the plays met, together.
cat "$dir"/seeds.* | awk '$1 == "met" { n = $2; $1 = $2 = ""; met[$0] += n } END { for (what in met) printf "met %6d %s\n", met[what], what }' | sort -k3
if grep -q '^FAILED' "$dir"/seeds.* && [ "$violations" = 0 ]; then
	tail -n 100 "$dir"/seeds.*
	echo "a play did not end" >&2
	exit 1
fi

planted=0 caught=0
for patch in internal/world/testdata/bugs/*.patch; do
	name=$(basename "$patch" .patch)
	case " ${BUGS:-$name} " in *" $name "*) ;; *) continue ;; esac
	planted=$((planted + 1))
	tree="$dir/$name" overlay=
	mkdir "$tree"
	for file in $(sed -n 's,^+++ b/,,p' "$patch"); do
		(cp --parents "$file" "$tree")
		overlay="$overlay${overlay:+,}\"$root/$file\":\"$tree/$file\""
	done
	patch -s -p1 -d "$tree" <"$patch"
	echo "{\"Replace\":{$overlay}}" >"$tree/overlay.json"
	build -overlay "$tree/overlay.json" -o "$tree/world.test"
	CHAOS_SEEDS=$bug_seeds CHAOS_FIRST=1 CHAOS_STOP=1 CHAOS_SHRINK=0 play "$tree/world.test" >"$tree/log" 2>&1 || true
	found=$(grep -m 1 '^VIOLATION' "$tree/log" || true)
	if [ -n "$found" ]; then
		caught=$((caught + 1))
		echo "caught $name: ${found#VIOLATION }" | cut -c 1-220
	else
		echo "NOT CAUGHT within $bug_seeds seeds: $name"
		tail -n 3 "$tree/log"
	fi
	rm -rf "$tree"
done
echo "seeds $seeds, violations $violations, planted bugs caught $caught of $planted"
[ "$violations" = 0 ] && [ "$caught" = "$planted" ]
