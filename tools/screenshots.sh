#!/usr/bin/env bash
# screenshots.sh [NAME,…]: plays the demo in a separate installation, and takes screenshots of the console's pages, or of
# those that are named; move is the film of a tenant's move.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
bin/prego-lab dev --demo --data-dir "$dir" --api-port 18080 --gateway-port 18444 --temporal-port 17233 --ui-port 18233 --postgres-port 15433 --sim-port 18085 --acme-port 14100 --storage-port 19070 --dns-port 18553 >"$dir.log" 2>&1 &
dev=$!
trap 'kill $dev 2>/dev/null; wait $dev 2>/dev/null; rm -rf "$dir" "$dir.log"' EXIT
for ((i = 0; ; i++)); do
	grep -q "Ctrl-C stops everything" "$dir.log" && break
	kill -0 $dev 2>/dev/null && ((i < 600)) || {
		tail -20 "$dir.log" >&2
		exit 1
	}
	sleep 1
done
go run ./tools/screenshots -api-url http://127.0.0.1:18080 -token-file "$dir/operator.token" -out docs/console -only "${1:-}"
