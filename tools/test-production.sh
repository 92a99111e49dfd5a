#!/usr/bin/env bash
# Runs the end-to-end tests on the Temporal of docker-compose.yml: a Postgres made by
# deploy/postgres/init.sql, Temporal's own server with deploy/temporal's files, and the
# two one-shot scripts, each of them twice. Arguments are go test's. Everything is stopped by its
# process id, and dies with this script if that is killed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/private-postgres.sh
. tools/private-postgres.sh
: "${TEMPORAL_SERVER:?the directory of temporal-server and temporal-sql-tool}"
export PATH="$TEMPORAL_SERVER:$PATH"

work=$(mktemp -d /var/tmp/prego-production.XXXXXX)
chmod 0755 "$work"
finish() {
	local status=$?
	set +e # as much as can be
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

env -u TEMPORAL_ADDRESS PREGO_TEST_TEMPORAL_ADDRESS="$TEMPORAL_ADDRESS" go test -count=1 -timeout 30m -parallel 4 "$@" ./lab/e2e
kill -0 "$temporal_pid" || { echo "temporal ended meanwhile" >&2; exit 1; }
step "the end-to-end tests pass on it"
