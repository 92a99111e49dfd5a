# Sourced: a Postgres of our own, made as docker-compose.yml makes its one: by
# deploy/postgres/init.sql, with passwords over TCP. It ends with the script, however
# that ends.
# shellcheck shell=bash

free_port() { # below the ports that the system gives to outgoing connections
	local port
	for _ in $(seq 200); do
		port=$((12000 + RANDOM % 20000))
		if ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
			echo "$port"
			return
		fi
	done
	return 1
}

start_postgres() { # directory for its files, which is recreated; directory of secrets
	local dir=$1 secrets=$2 bin tries=0 as=()
	bin=$(dirname "$(readlink -f "$(command -v postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' | sort -V | tail -1)")")
	mkdir -p "$dir"
	if [ "$(id -u)" = 0 ]; then # Postgres refuses to be root
		as=(setpriv --reuid postgres --regid postgres --init-groups)
		chown postgres "$dir"
	fi
	postgres_port=$(free_port)
	install -m 0444 "$secrets/postgres_password" "$dir/password"
	(
		cd / # where every user may be
		"${as[@]}" "$bin/initdb" -D "$dir/data" -U postgres --auth-local=trust --auth-host=scram-sha-256 --pwfile="$dir/password" --encoding=UTF8 --locale=C.UTF-8 --no-sync >"$dir/initdb.log" 2>&1
	) || { cat "$dir/initdb.log" >&2; return 1; }
	rm "$dir/password"
	(cd / && exec setpriv --pdeathsig KILL "${as[@]:1}" "$bin/postgres" -D "$dir/data" -p "$postgres_port" -c listen_addresses=127.0.0.1 -c unix_socket_directories="$dir" \
		-c max_connections=300 -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c log_min_messages=warning >"$dir/postgres.log" 2>&1) &
	postgres_pid=$!
	until PGPASSWORD=$(cat "$secrets/postgres_password") psql -qAtX -h 127.0.0.1 -p "$postgres_port" -U postgres -c 'SELECT 1' >/dev/null 2>&1; do
		tries=$((tries + 1))
		if [ "$tries" -gt 150 ] || ! kill -0 "$postgres_pid" 2>/dev/null; then
			echo "postgres does not start:" >&2
			tail -15 "$dir/postgres.log" >&2
			return 1
		fi
		sleep 0.2
	done
	PGPASSWORD=$(cat "$secrets/postgres_password") PREGO_DB_PASSWORD_FILE=$secrets/prego_db_password TEMPORAL_DB_PASSWORD_FILE=$secrets/temporal_db_password \
		psql -qX -h 127.0.0.1 -p "$postgres_port" -U postgres -f deploy/postgres/init.sql
	sed -i "s/@postgres:5432/@127.0.0.1:$postgres_port/" "$secrets/database_url"
}

stop_postgres() {
	[ -n "${postgres_pid:-}" ] || return 0
	kill -INT "$postgres_pid" 2>/dev/null || true
	wait "$postgres_pid" 2>/dev/null || true
	postgres_pid=
}
