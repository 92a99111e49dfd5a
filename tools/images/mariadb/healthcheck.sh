#!/bin/bash
# The checks of MariaDB's image that the declared stack names. All given must hold. They ask
# over the socket, also whether there is a network, since a server may require TLS on it.
ask() { mariadb --defaults-extra-file=/var/lib/mysql/.my-healthcheck.cnf --protocol socket --skip-ssl --skip-column-names -e "$1" 2>/dev/null; }
[ $# -gt 0 ] || { echo "no test was named" >&2; exit 1; }
for test in "$@"; do
	case $test in
	--connect) [ "$(ask 'SELECT @@skip_networking')" = 0 ] || exit 1 ;;
	--innodb_initialized) [ "$(ask "SELECT 1 FROM information_schema.ENGINES WHERE engine = 'innodb' AND support IN ('YES', 'DEFAULT', 'ENABLED')")" = 1 ] || exit 1 ;;
	*) echo "healthcheck unknown option: $test" >&2 && exit 1 ;;
	esac
done
