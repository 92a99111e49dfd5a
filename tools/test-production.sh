#!/usr/bin/env bash
# Runs the end-to-end tests on what docker-compose.yml runs, as processes: a Postgres
# made by deploy/postgres/init.sql, Temporal's own server with deploy/temporal's files,
# and the two one-shot scripts. Arguments are go test's. Everything is stopped by its
# process id, and dies with this script if that is killed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/private-postgres.sh
. tools/private-postgres.sh
: "${TEMPORAL_SERVER:?the directory of temporal-server and temporal-sql-tool}"
export PATH="$TEMPORAL_SERVER:$PATH"

work=$(mktemp -d /var/tmp/prego-production.XXXXXX)
chmod 0755 "$work"
stop_ours() {
	local pid
	for pid in "${ours[@]}" ${sim_pid:-}; do kill "$pid" 2>/dev/null || true; done
	for pid in "${ours[@]}" ${sim_pid:-}; do
		for _ in $(seq 300); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	ours=() sim_pid=
}
ours=()
finish() {
	local status=$?
	set +e # as much as can be
	stop_ours
	if [ -n "${temporal_pid:-}" ]; then
		kill "$temporal_pid" 2>/dev/null || true
		for _ in $(seq 100); do kill -0 "$temporal_pid" 2>/dev/null || break; sleep 0.1; done
		kill -KILL "$temporal_pid" 2>/dev/null || true
		wait "$temporal_pid" 2>/dev/null || true
	fi
	stop_postgres
	if [ "$status" != 0 ]; then
		mkdir -p .prego/production-logs
		cp "$work"/*.log "$work"/postgres/*.log .prego/production-logs/ 2>/dev/null || true
		echo "the server's logs are in .prego/production-logs" >&2
	fi
	rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM
step() { printf '%6.1fs  %s\n' "$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN {print b - a}')" "$*"; }
began=$EPOCHREALTIME

secrets=$work/secrets
mkdir "$secrets" && echo none >"$secrets/hcloud_token"
PREGO_SECRETS=$secrets PREGO_ENV=test deploy/secrets.sh
start_postgres "$work/postgres" "$secrets"
step "postgres is ready, with the roles of deploy/postgres/init.sql"

DATABASE_URL_FILE=$secrets/database_url timeout 60 bin/prego migrate
step "prego's database is migrated, by its own role"

export TEMPORAL_DB_PASSWORD_FILE=$secrets/temporal_db_password
for times in once twice; do # as an upgrade does it again
	SQL_HOST=127.0.0.1 SQL_PORT=$postgres_port timeout 120 deploy/temporal/schema.sh >"$work/schema.log" 2>&1 || { tail -20 "$work/schema.log" >&2; exit 1; }
	step "temporal's schema is set up ($times)"
done

temporal-server validate-dynamic-config deploy/temporal/dynamic.yaml >"$work/dynamic.log" || { cat "$work/dynamic.log" >&2; exit 1; }
if grep -E 'error|warning' "$work/dynamic.log"; then exit 1; fi

frontend=$(free_port)
env TEMPORAL_SERVER_CONFIG_FILE_PATH="$PWD/deploy/temporal/server.yaml" DYNAMIC_CONFIG_FILE_PATH="$PWD/deploy/temporal/dynamic.yaml" \
	TEMPORAL_DB_ADDRESS="127.0.0.1:$postgres_port" TEMPORAL_ALLOW_NO_AUTH=true LOG_LEVEL=warn BIND_ON_IP=127.0.0.1 TEMPORAL_BROADCAST_ADDRESS=127.0.0.1 \
	FRONTEND_GRPC_PORT="$frontend" FRONTEND_HTTP_PORT="$(free_port)" FRONTEND_MEMBERSHIP_PORT="$(free_port)" HISTORY_GRPC_PORT="$(free_port)" HISTORY_MEMBERSHIP_PORT="$(free_port)" \
	MATCHING_GRPC_PORT="$(free_port)" MATCHING_MEMBERSHIP_PORT="$(free_port)" WORKER_GRPC_PORT="$(free_port)" WORKER_MEMBERSHIP_PORT="$(free_port)" \
	setpriv --pdeathsig KILL temporal-server start >"$work/temporal.log" 2>&1 &
temporal_pid=$!
export TEMPORAL_ADDRESS=127.0.0.1:$frontend
for times in once twice; do
	TEMPORAL_NAMESPACE=default timeout 120 deploy/temporal/namespace.sh >"$work/namespace.log" 2>&1 || {
		cat "$work/namespace.log" >&2
		tail -20 "$work/temporal.log" >&2
		exit 1
	}
	step "temporal $(temporal-server --version | awk '{print $NF}') serves; its namespace is set up ($times)"
done

# Our own processes as docker-compose.yml runs them: as its user, with the files and the
# keys that each is given and no others, two workers, and a cloud to make a server in.
mkdir "$work/bin" "$work/sim"
install bin/prego bin/prego-agent "$work/bin"
chmod 0755 "$secrets" # in a container its files are mounted one by one
as=()
[ "$(id -u)" != 0 ] || as=(--reuid 65532 --regid 65532 --clear-groups)
api=127.0.0.1:$(free_port) gateway=127.0.0.1:$(free_port) cloud=127.0.0.1:$(free_port) relay=127.0.0.1:$(free_port)
common=(
	PATH="$PATH" HOME=/tmp PREGO_ENV=test PREGO_AGENTGW_URL="https://$gateway" PREGO_EGRESS_CIDRS=127.0.0.1/32 PREGO_AGENTGW_AGENT_BINARY="$work/bin/prego-agent"
	DATABASE_URL_FILE="$secrets/database_url" TEMPORAL_ADDRESS="$TEMPORAL_ADDRESS" TEMPORAL_NAMESPACE=default
	HCLOUD_ENDPOINT="http://$cloud/v1" PREGO_SIMULATED=true PREGO_AGENT_PORT=8443 PREGO_HCLOUD_POLL=200ms
)
start() { # name, process, variables of its own
	local name=$1 process=$2 tries=0
	shift 2
	(cd / && exec env -i "${common[@]}" "$@" setpriv --pdeathsig KILL "${as[@]}" "$work/bin/prego" "$process") >"$work/$name.log" 2>&1 &
	ours+=($!)
	until env -i "${common[@]}" "$@" "$work/bin/prego" health >"$work/health.log" 2>&1; do
		tries=$((tries + 1))
		if [ "$tries" -gt 300 ] || ! kill -0 "${ours[-1]}" 2>/dev/null; then
			cat "$work/health.log" >&2
			tail -15 "$work/$name.log" >&2
			return 1
		fi
		sleep 0.1
	done
}
setpriv --pdeathsig KILL "$work/bin/prego" sim --fast --token none --state-dir "$work/sim" --listen "$cloud" >"$work/sim.log" 2>&1 &
sim_pid=$!
start api api PREGO_KEYS_DIR="$secrets/keys-api" PREGO_API_LISTEN="$api" PREGO_RELAY_URL="https://$relay"
start agentgw agentgw PREGO_KEYS_DIR="$secrets/keys-agentgw" PREGO_AGENTGW_LISTEN="$gateway" PREGO_METRICS_LISTEN="127.0.0.1:$(free_port)"
for listen in "$relay" "127.0.0.1:$(free_port)"; do
	start "worker-${listen##*:}" worker PREGO_RELAY_LISTEN="$listen" PREGO_KEYS_DIR="$secrets/keys-worker" PREGO_MASTER_KEY_FILE="$secrets/master_key" HCLOUD_TOKEN_FILE="$secrets/hcloud_token" PREGO_METRICS_LISTEN="127.0.0.1:$(free_port)"
done
step "api, agentgw and two workers are ready, as the image's user and each with its own keys"
PREGO_TOKEN=$(PREGO_ENV=test PREGO_KEYS_DIR=$secrets/keys bin/prego token create --subject test --role operator)
export PREGO_TOKEN PREGO_API_URL=http://$api
timeout 120 bin/prego server create first --role app --region eu --watch >"$work/server.log" || { cat "$work/server.log" >&2; exit 1; }
kill "${ours[-1]}" # a worker goes, as in an upgrade
timeout 120 bin/prego server delete first --watch >>"$work/server.log" || { cat "$work/server.log" >&2; exit 1; }
step "a server was made by two workers and taken down by the one that was left"
stop_ours
unset PREGO_TOKEN PREGO_API_URL

env -u TEMPORAL_ADDRESS PREGO_TEST_TEMPORAL_ADDRESS="$TEMPORAL_ADDRESS" go test -count=1 -timeout 30m -parallel 4 "$@" ./internal/e2e
kill -0 "$temporal_pid" || { echo "temporal ended meanwhile" >&2; exit 1; }
step "the end-to-end tests pass on it"
