#!/usr/bin/env bash
# Creates the missing secrets of docker-compose.yml, and gives
# each process the keys that it needs and no others. Run it again after every step of
# a rotation (docs/keys.md) and before an upgrade: processes follow the files.
#
# The originals, private keys of all CAs included, are in keys/; no container gets that
# directory. Keep it, and a copy elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${PREGO_SECRETS:-deploy/secrets}
group=65532 # of the containers' user
prego=${PREGO:-bin/prego}
[ -x "$prego" ] || { echo "there is no $prego: run make build, or set PREGO" >&2; exit 1; }
umask 077
mkdir -p "$dir"

owned() { # by the containers' group, when this user may
	if [ "$(id -u)" = 0 ]; then chgrp -R "$group" "$@"; fi
}
put() { # file; its content is on standard input
	cat >"$dir/$1.new"
	chmod 0440 "$dir/$1.new"
	owned "$dir/$1.new"
	mv "$dir/$1.new" "$dir/$1"
}
random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

# Existing files stay. Nothing is piped into a program that may not read it: the writer would be
# ended by the broken pipe, and this script with it.
for file in postgres_password prego_db_password temporal_db_password master_key; do
	[ -s "$dir/$file" ] || random | put "$file"
done
[ -s "$dir/database_url" ] ||
	echo "postgres://prego:$(cat "$dir/prego_db_password")@postgres:5432/prego?sslmode=disable" | put database_url
# Empty, until the master key is changed and where there is an adviser (docs/keys.md).
for file in master_key_earlier adviser_token; do
	[ -e "$dir/$file" ] || put "$file" </dev/null
done

[ ! -f .env ] || PREGO_ENV=${PREGO_ENV:-$(sed -n 's/^PREGO_ENV=//p' .env)}
PREGO_ENV=${PREGO_ENV:-prod} PREGO_KEYS_DIR="$dir/keys" "$prego" keys init

# internal/keyset lists them.
for process in api agentgw worker; do
	as=()
	[ "$(id -u)" != 0 ] || as=(--group "$group")
	PREGO_KEYS_DIR="$dir/keys" "$prego" keys share "${as[@]}" "$process" "$dir/keys-$process"
done

if [ ! -s "$dir/hcloud_token" ]; then
	echo "now put the project's token into $dir/hcloud_token: install -m 0440 -g $group /dev/stdin $dir/hcloud_token" >&2
fi
if [ "$(id -u)" != 0 ]; then
	echo "not root: give the files in $dir to the group $group, as which the containers read them" >&2
fi
