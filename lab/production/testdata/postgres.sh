#!/bin/bash
# What the entrypoint of the image postgres does, as far as docker-compose.yml uses it,
# for the Postgres that is installed here.
set -euo pipefail
bin=$(dirname "$(readlink -f "$(command -v postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' | sort -V | tail -1)")")
export PATH=$bin:$PATH PGDATA=/var/lib/postgresql/data
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	# shellcheck disable=SC2086 # words
	initdb --username=postgres --pwfile="$POSTGRES_PASSWORD_FILE" $POSTGRES_INITDB_ARGS >/tmp/initdb.log 2>&1 || { cat /tmp/initdb.log; exit 1; }
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
	echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
	echo "unix_socket_directories = '/run/postgresql'" >>"$PGDATA/postgresql.conf"
	pg_ctl -o "-c listen_addresses=''" -w start >/dev/null
	for f in /docker-entrypoint-initdb.d/*.sql; do
		PGHOST=/run/postgresql PGPASSWORD=$(cat "$POSTGRES_PASSWORD_FILE") psql -v ON_ERROR_STOP=1 --no-psqlrc -q -U postgres -f "$f"
	done
	pg_ctl -m fast -w stop >/dev/null
fi
exec "$@"
