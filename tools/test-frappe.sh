#!/usr/bin/env bash
# Runs the suite of lab/frappetest against an image that has Frappe 15, on the Docker
# engine that runs or on a private one. Without an image it takes the stand-in's.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/engine.sh
. tools/engine.sh
image=${1:-}
finish() {
	set +e
	stop_engine
}
trap finish EXIT
start_engine "$PWD/.prego/engine"
if [ -z "$image" ]; then
	tools/images.sh .prego/images
	docker load --quiet -i .prego/images/current/images.tar >/dev/null
	image=frappe/erpnext:v15
	export PREGO_TEST_MARIADB_IMAGE=mariadb:11.8 PREGO_TEST_REDIS_IMAGE=redis:7-alpine
else
	for wanted in "$image" "${PREGO_TEST_MARIADB_IMAGE:-mariadb:11.8}" "${PREGO_TEST_REDIS_IMAGE:-redis:7-alpine}"; do
		docker image inspect "$wanted" >/dev/null 2>&1 || docker pull --quiet "$wanted"
	done
fi
PREGO_TEST_FRAPPE_IMAGE=$image PREGO_TEST_AGENT=$PWD/bin/prego-agent go test -tags frappe -count=1 -v -timeout 60m -run "${RUN:-.}" ./lab/frappetest
