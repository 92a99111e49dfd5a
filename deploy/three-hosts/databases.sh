#!/bin/sh
# Creates the databases of prego and Temporal on the primary, once, from any of the three hosts. It can be repeated, and
# is when Temporal is upgraded.
set -eu
secrets=/etc/prego/secrets
share=/usr/share/prego
PGPASSWORD=$(cat $secrets/postgres_password)
PREGO_DB_PASSWORD_FILE=$secrets/prego_db_password
TEMPORAL_DB_PASSWORD_FILE=$secrets/temporal_db_password
export PGPASSWORD PREGO_DB_PASSWORD_FILE TEMPORAL_DB_PASSWORD_FILE
primary() { psql -qAtX -v ON_ERROR_STOP=1 -h 127.0.0.1 -p 5000 -U postgres "$@"; }

tries=0
until primary -c 'SELECT 1' >/dev/null 2>&1; do
	tries=$((tries + 1))
	if [ $tries -ge 120 ]; then
		echo "there is no primary. These commands report why:" >&2
		echo "  patronictl -c /etc/patroni/config.yml list" >&2
		echo "  journalctl -u patroni -u etcd -u haproxy -n 50" >&2
		primary -c 'SELECT 1' >&2
	fi
	sleep 1
done
[ -n "$(primary -c "SELECT 1 FROM pg_database WHERE datname = 'prego'")" ] || primary -f $share/postgres/init.sql
PATH=$PATH:/usr/local/bin SQL_HOST=127.0.0.1 SQL_PORT=5000 sh $share/temporal/schema.sh
echo "the databases of prego and Temporal are there"
