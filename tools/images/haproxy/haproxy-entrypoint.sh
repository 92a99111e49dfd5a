#!/bin/sh
# As HAProxy's image has it: options alone are HAProxy's, which runs as a master with its
# worker, and stays in the foreground.
set -e
if [ "${1#-}" != "$1" ]; then
	set -- haproxy "$@"
fi
if [ "$1" = haproxy ]; then
	shift
	set -- haproxy -W -db "$@"
fi
exec "$@"
