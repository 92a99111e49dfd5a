#!/bin/bash
# Writes nginx's configuration from the environment, and runs it.
default() { # variable, value
	if [ -z "${!1}" ]; then
		echo "$1 defaulting to $2"
		export "$1=$2"
	fi
}
default BACKEND 0.0.0.0:8000
default SOCKETIO 0.0.0.0:9000
default UPSTREAM_REAL_IP_ADDRESS 127.0.0.1
default UPSTREAM_REAL_IP_HEADER X-Forwarded-For
default UPSTREAM_REAL_IP_RECURSIVE off
default FRAPPE_SITE_NAME_HEADER "\$host"
default PROXY_READ_TIMEOUT 120
default CLIENT_MAX_BODY_SIZE 50m
variables=$(printf '${%s} ' BACKEND SOCKETIO UPSTREAM_REAL_IP_ADDRESS UPSTREAM_REAL_IP_HEADER UPSTREAM_REAL_IP_RECURSIVE \
	FRAPPE_SITE_NAME_HEADER PROXY_READ_TIMEOUT CLIENT_MAX_BODY_SIZE)
envsubst "$variables" </templates/nginx/frappe.conf.template >/etc/nginx/conf.d/frappe.conf || exit 1
exec nginx -g 'daemon off;'
