#!/bin/bash
# What the declared stack needs of the entrypoint of MariaDB's image: on an empty volume
# a database with root's password, then the server as it is told.
set -eo pipefail
if [ "${1:0:1}" = - ]; then
	set -- mariadbd "$@"
fi
data=/var/lib/mysql
if [ "$1" = mariadbd ] && [ "$(id -u)" = 0 ]; then
	mkdir -p "$data" /run/mysqld
	chown mysql: "$data"
	chown mysql: /run/mysqld || true
	exec setpriv --reuid=mysql --regid=mysql --init-groups "$0" "$@"
fi
if [ "$1" != mariadbd ]; then
	exec "$@"
fi

note() { echo "$(date -u +%FT%TZ) [Entrypoint]: $*"; }
from_file() { # the value of a variable, or of the file that VARIABLE_FILE names
	local file=${1}_FILE
	if [ -n "${!file-}" ]; then cat "${!file}"; else printf %s "${!1-}"; fi
}
socket=/run/mysqld/mysqld.sock

if [ ! -d "$data/mysql" ]; then
	password=$(from_file MARIADB_ROOT_PASSWORD)
	[ -n "$password" ] || password=$(from_file MYSQL_ROOT_PASSWORD)
	if [ -z "$password" ]; then
		note "Database is uninitialized and password option is not specified: set MARIADB_ROOT_PASSWORD or MARIADB_ROOT_PASSWORD_FILE" >&2
		exit 1
	fi
	note "Initializing database files"
	mariadb-install-db --datadir="$data" --rpm --auth-root-authentication-method=normal --skip-test-db >/dev/null
	note "Starting temporary server"
	"$@" --skip-networking --default-time-zone=SYSTEM --socket="$socket" --wsrep-on=OFF --expire-logs-days=0 --loose-innodb-buffer-pool-load-at-startup=0 \
		--skip-ssl --ssl-cert='' --ssl-key='' --ssl-ca='' &
	server=$!
	for _ in $(seq 300); do
		if mariadb --no-defaults --skip-ssl --socket="$socket" -uroot -e 'SELECT 1' >/dev/null 2>&1; then ready=yes && break; fi
		kill -0 "$server" || exit 1
		sleep 0.1
	done
	[ -n "${ready-}" ] || { note "Unable to start server." >&2; exit 1; }
	health=$(tr -dc 'A-Za-z0-9' </dev/urandom | head -c 32 || true)
	mariadb --no-defaults --skip-ssl --socket="$socket" -uroot <<-SQL
		SET @@SESSION.SQL_LOG_BIN = 0;
		DELETE FROM mysql.global_priv WHERE User = 'root' AND Host <> 'localhost' OR User = '';
		FLUSH PRIVILEGES;
		SET PASSWORD FOR root@localhost = PASSWORD('${password//\'/\'\'}');
		CREATE USER root@'%' IDENTIFIED BY '${password//\'/\'\'}';
		GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;
		CREATE USER healthcheck@127.0.0.1 IDENTIFIED BY '$health';
		CREATE USER healthcheck@localhost IDENTIFIED BY '$health';
		GRANT USAGE ON *.* TO healthcheck@127.0.0.1, healthcheck@localhost;
	SQL
	(umask 077 && printf '[mariadb-client]\nport=3306\nsocket=%s\nuser=healthcheck\npassword=%s\n' "$socket" "$health" >"$data/.my-healthcheck.cnf")
	note "Stopping temporary server"
	kill "$server"
	wait "$server" || true
	note "MariaDB init process done. Ready for start up."
fi
exec "$@"
