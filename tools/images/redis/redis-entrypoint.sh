#!/bin/bash
# As Redis's image has it: options alone are the server's, which does not run as root, and
# takes connections from other containers without a password unless it is told not to.
set -e
if [ "${1:0:1}" = - ] || [ "${1%.conf}" != "$1" ]; then
	set -- redis-server "$@"
fi
if [ "$1" = redis-server ] && [ "$(id -u)" = 0 ]; then
	chown -R redis: .
	exec setpriv --reuid=redis --regid=redis --init-groups "$0" "$@"
fi
if [ "$1" = redis-server ] && [[ " $* " != *" --protected-mode "* ]]; then
	set -- "$@" --protected-mode no
fi
exec "$@"
