#!/usr/bin/env bash
# Plays seeds of the seeded world, and looks for bugs that are planted (docs/reliability.md).
#
#   SEEDS=n      how many seeds, 20 by default, from FIRST (by default the time)
#   SEED=n       one seed with its timeline; nothing else happens
#   BUGS=names   which of lab/world/testdata/bugs to plant; all by default, "none" for none, a number for so many by chance
#   BUG_SEEDS=n  within how many seeds each must be found, 200 by default
#   NAMES=1      with private networks, edges, names and certificates
#   JOBS=n       concurrent plays, 2 by default
set -euo pipefail
cd "$(dirname "$0")/.."
root=$(pwd)
seeds=${SEEDS:-20} first=${FIRST:-$(date +%s)} jobs=${JOBS:-2} bug_seeds=${BUG_SEEDS:-200}
dir=$(mktemp -d)
cluster=
trap '[ -z "$cluster" ] || { exec 3>&-; wait "$cluster"; }; rm -rf "$dir"' EXIT
export CHAOS_NAMES=${NAMES:-}
export GOGC=${GOGC:-400} # memory is cheap here

build() { CGO_ENABLED=0 go test -trimpath -vet=off "$@" -c ./app; }
play() (cd app && GOMAXPROCS=1 exec "$@" -test.run '^TestChaos$' -test.timeout 0)

build -o "$dir/world.test"
if [ -n "${SEED:-}" ]; then
	CHAOS_SEED=$SEED play "$dir/world.test"
	exit
fi

# One Postgres for all; it ends when no process holds the pipe any more.
if [ -z "${PREGO_TEST_DATABASE_URL:-}" ]; then
	mkfifo "$dir/hold"
	CHAOS_CLUSTER="$dir/url" "$dir/world.test" -test.run '^TestChaosCluster$' -test.timeout 0 <"$dir/hold" >"$dir/cluster" 2>&1 &
	cluster=$!
	exec 3>"$dir/hold"
	until [ -s "$dir/url" ]; do kill -0 "$cluster" || { cat "$dir/cluster"; exit 1; }; sleep 0.1; done
	PREGO_TEST_DATABASE_URL=$(cat "$dir/url")
	export PREGO_TEST_DATABASE_URL
fi

violations=0 missed=0
if [ "$seeds" -gt 0 ]; then
	echo "playing $seeds seeds from $first"
	players=()
	for ((i = 0; i < jobs; i++)); do
		n=$(((seeds + jobs - 1 - i) / jobs))
		[ "$n" -gt 0 ] || continue
		(CHAOS_SEEDS=$n CHAOS_FIRST=$((first + i)) CHAOS_STEP=$jobs CHAOS_VERBOSE=${VERBOSE:-} play "$dir/world.test" >"$dir/seeds.$i" 2>&1 3>&- || echo "FAILED" >>"$dir/seeds.$i") &
		players+=($!)
	done
	wait "${players[@]}"
	violations=$(cat "$dir"/seeds.* | grep -c '^VIOLATION' || true)
	grep -h -A 60 '^VIOLATION' "$dir"/seeds.* | grep -v '^met\|^---\|^ *world_test' || true
	# What the plays met, together.
	cat "$dir"/seeds.* | awk '$1 == "met" { n = $2; $1 = $2 = ""; met[$0] += n } END { for (what in met) printf "met %6d %s\n", met[what], what }' | sort -k3 >"$dir/met"
	[ -z "${VERBOSE:-}" ] || cat "$dir/met"
	if grep -q '^FAILED' "$dir"/seeds.* && [ "$violations" = 0 ]; then
		grep -h -A 200 '^panic:' "$dir"/seeds.* || tail -n 100 "$dir"/seeds.*
		echo "a play did not end" >&2
		exit 1
	fi
	# A run must have met what it is for; how often is in lab/world/sometimes.go.
	CHAOS_MET="$dir/met" CHAOS_SEEDS=$seeds "$dir/world.test" -test.run '^TestChaosMet$' -test.v 3>&- | grep '^not met' || true
	missed=$(CHAOS_MET="$dir/met" CHAOS_SEEDS=$seeds "$dir/world.test" -test.run '^TestChaosMet$' -test.v 3>&- | grep -c '^not met' || true)
fi

# All bugs are planted in one program, each asleep until CHAOS_BUG names it.
names=$(cd lab/world/testdata/bugs && ls -- *.patch | sed 's/\.patch$//')
case "${BUGS:-}" in
none) names= ;;
[0-9]*) names=$(shuf -n "$BUGS" <<<"$names") ;;
?*) names=$BUGS ;;
esac
planted=0 caught=0
if [ -n "$names" ]; then
	tools/planted.sh "$dir/tree" >"$dir/overlay.json"
	build -overlay "$dir/overlay.json" -o "$dir/planted.test"
	hunt() {
		local names=
		! grep -q '^Plays: names$' "lab/world/testdata/bugs/$1.patch" || names=1
		CHAOS_NAMES=$names CHAOS_BUG=$1 CHAOS_SEEDS=$bug_seeds CHAOS_FIRST=1 CHAOS_STOP=1 CHAOS_SHRINK=0 play "$dir/planted.test" >"$dir/$1.log" 2>&1 3>&- || true
		found=$(grep -m 1 '^VIOLATION' "$dir/$1.log" | grep -v 'failed to connect' || true) # without Postgres nothing is caught
		if [ -n "$found" ]; then
			echo "caught $1: ${found#VIOLATION }" | cut -c 1-220
		else
			echo "NOT CAUGHT within $bug_seeds seeds: $1"
			grep -A 400 '^panic:' "$dir/$1.log" || tail -n 3 "$dir/$1.log"
		fi
	}
	export -f hunt play
	export dir bug_seeds
	tr ' ' '\n' <<<"$names" | xargs -P "$jobs" -I{} bash -c 'hunt {}' 3>&- | tee "$dir/hunted"
	planted=$(wc -w <<<"$names")
	caught=$(grep -c '^caught' "$dir/hunted" || true)
fi
echo "seeds $seeds, violations $violations, not met $missed, planted bugs caught $caught of $planted"
[ "$violations" = 0 ] && [ "$missed" = 0 ] && [ "$caught" = "$planted" ]
