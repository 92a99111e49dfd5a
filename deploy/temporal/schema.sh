#!/bin/sh
# Creates Temporal's two databases and brings them to the schema of this version of
# the tool. Every step can be repeated, so it runs before every start and upgrade.
#
# Needs SQL_HOST, SQL_PORT and TEMPORAL_DB_PASSWORD_FILE.
set -eu
SQL_PLUGIN=postgres12
SQL_USER=temporal
SQL_PASSWORD=$(cat "$TEMPORAL_DB_PASSWORD_FILE")
export SQL_PLUGIN SQL_USER SQL_PASSWORD

schema() { # database, name of the schema in the tool
	temporal-sql-tool --db "$1" create --defaultdb postgres
	# A newer existing version is not overwritten.
	temporal-sql-tool --db "$1" setup-schema -v 0.0
	temporal-sql-tool --db "$1" update-schema --schema-name "postgresql/v12/$2"
}
schema temporal temporal
schema temporal_visibility visibility
