# Shared by the boot scripts. The bootstrap token never stands on a command line:
# curl reads it from its standard input.
set -eu
ROOT="${PREGO_ROOT:-}"
. "$ROOT/etc/prego-agent/boot.env"

call() { # path, then curl's own arguments
	path="$1"
	shift
	printf 'header = "Authorization: Bearer %s"\n' "$(cat "$ROOT/etc/prego-agent/bootstrap.token")" |
		curl --config - --silent --show-error --fail --tlsv1.3 --cacert "$ROOT/etc/prego-agent/gateway-ca.pem" \
			--connect-to "$GATEWAY_NAME:$GATEWAY_PORT:$GATEWAY_HOST:$GATEWAY_PORT" --connect-timeout 5 --max-time 120 \
			"$@" "https://$GATEWAY_NAME:$GATEWAY_PORT$path"
}

# report tells the gateway how far the boot has come. That it can't be told stops
# nothing.
report() {
	call "$PATH_BOOT_STAGE" --output /dev/null --max-time 10 --header 'Content-Type: application/json' \
		--data "{\"server_id\":\"$SERVER_ID\",\"stage\":\"$1\",\"detail\":\"${2:-}\"}" || true
}

# insist repeats a command with growing pauses.
insist() {
	n=0
	until "$@"; do
		n=$((n + 1))
		[ "$n" -lt "${PREGO_TRIES:-6}" ] || return 1
		sleep "${PREGO_PAUSE:-$((n * n))}"
	done
}

STEP=start
trap 'status=$?; [ "$status" -eq 0 ] || report failed "$STEP ended with status $status"' EXIT
