#!/usr/bin/env bash
# Sends the API everything that its contract allows and much that it forbids, and checks the
# answers (contributing/testing.md): schemathesis, against a separate development stack.
# Three seeds are played, one after the other; SEED=n plays one, as to repeat it. SCHEMATHESIS_TIME is how long each may
# take.
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${SEED:-1 2 3} within=${SCHEMATHESIS_TIME:-240} venv=.prego/schemathesis
wanted=$(sha256sum tools/schemathesis/requirements.txt)
if [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ]; then
	echo "installing schemathesis (once)"
	python3 -m venv --clear "$venv"
	"$venv/bin/pip" install --quiet --disable-pip-version-check -r tools/schemathesis/requirements.txt
	echo "$wanted" >"$venv/installed"
fi
dir=$(mktemp -d)
dev=
stop() {
	[ -z "$dev" ] || { kill "$dev" 2>/dev/null && wait "$dev" || true; }
	rm -rf "$dir"
}
trap stop EXIT
# Separate ports, so that a running stack is left alone.
PREGO_API_RATE_PER_SECOND=100000 bin/prego-lab dev --data-dir "$dir/data" \
	--api-port 28080 --gateway-port 28444 --temporal-port 27233 --ui-port 27234 --postgres-port 25433 --sim-port 28085 \
	--acme-port 24000 --storage-port 29070 --dns-port 28553 >"$dir/dev.log" 2>&1 &
dev=$!
for ((i = 0; ; i++)); do
	[ -s "$dir/data/operator.token" ] && curl -fsS -o /dev/null http://127.0.0.1:28080/readyz 2>/dev/null && break
	if [ "$i" -ge 120 ] || ! kill -0 "$dev" 2>/dev/null; then
		cat "$dir/dev.log"
		exit 1
	fi
	sleep 0.5
done
# Only a few of the requested servers are built, no more than this machine carries.
curl -fsS -o /dev/null -X PUT http://127.0.0.1:28085/_sim/limits/servers/4
cd tools/schemathesis
failed=
for seed in $seeds; do
	echo "schemathesis: SEED=$seed, at most $within seconds"
	PREGO_TOKEN=$(cat "$dir/data/operator.token") PYTHONDONTWRITEBYTECODE=1 "../../$venv/bin/st" --config-file schemathesis.toml \
		run ../../api/openapi.yaml --url http://127.0.0.1:28080 --no-color --seed "$seed" --max-time "$within" --max-examples 20 --warnings off ||
		failed="$failed $seed"
done
[ -z "$failed" ] || { echo "schemathesis: failed with SEED:$failed" >&2; exit 1; }
