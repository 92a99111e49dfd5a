#!/usr/bin/env bash
# Builds the image that docker-compose.yml runs and tries it: version, user, and a
# health check that fails without a process and succeeds with a ready one.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/engine.sh
. tools/engine.sh
# shellcheck source=tools/private-postgres.sh
. tools/private-postgres.sh
image=${PREGO_IMAGE:-prego:latest}
version=$(bin/prego --version | awk '{print $NF}')

context=.prego/image
tools/image-context.sh "$context"

containers=()
finish() {
	set +e # as much as can be
	[ "${#containers[@]}" = 0 ] || docker rm -f "${containers[@]}" >/dev/null 2>&1 || true
	stop_engine
	stop_postgres
	[ -z "${work:-}" ] || rm -rf "$work"
}
trap finish EXIT
start_engine "$PWD/.prego/engine"
docker build --quiet --tag "$image" --label "org.opencontainers.image.version=$version" --file Dockerfile "$context" 2>&1 >/dev/null | grep -v -i -e buildkit -e "legacy builder" -e "environment-variable" -e "^ *$" >&2 || true
docker image inspect "$image" >/dev/null

fail() { echo "the image $image: $*" >&2; exit 1; }
hardened=(--read-only --cap-drop ALL --security-opt no-new-privileges)
[ "$(docker run --rm --network none "${hardened[@]}" "$image" --version)" = "prego version $version" ] || fail "is not of version $version"
[ "$(docker image inspect --format '{{.Config.User}}' "$image")" = 65532:65532 ] || fail "does not run as 65532"
if docker run --rm --network none "${hardened[@]}" "$image" health >/dev/null 2>&1; then fail "reports healthy without a process"; fi

# As in docker-compose.yml, with secrets from files, on a Postgres and without a
# Temporal: the schema is created, and the gateway lives and reports that it is not ready.
work=$(mktemp -d /var/tmp/prego-image.XXXXXX)
chmod 0755 "$work"
secrets=$work/secrets
mkdir "$secrets" && echo none >"$secrets/hcloud_token"
PREGO_SECRETS=$secrets PREGO_ENV=image deploy/secrets.sh
start_postgres "$work/postgres" "$secrets"
files=(--network host --volume "$secrets/database_url:/run/secrets/database_url:ro" -e PREGO_ENV=image -e DATABASE_URL_FILE=/run/secrets/database_url)
docker run --rm "${hardened[@]}" "${files[@]}" "$image" migrate || fail "can't migrate"
name=prego-image-$$ ops=127.0.0.1:$(free_port)
containers+=("$name")
docker run -d --name "$name" "${hardened[@]}" "${files[@]}" --volume "$secrets/keys-agentgw:/keys:ro" \
	-e PREGO_METRICS_LISTEN="$ops" -e PREGO_AGENTGW_LISTEN="127.0.0.1:$(free_port)" -e TEMPORAL_ADDRESS=127.0.0.1:1 "$image" agentgw >/dev/null
for _ in $(seq 100); do
	if docker exec "$name" /prego health --live >/dev/null 2>&1; then lives=yes && break; fi
	sleep 0.2
done
if [ -z "${lives:-}" ]; then
	docker logs "$name" >&2 || true
	docker exec "$name" /prego health --live >&2 || true
	fail "never is healthy"
fi
if docker exec "$name" /prego health >/dev/null 2>&1; then fail "reports ready without Temporal"; fi
[ "$(stat -c %u "/proc/$(docker inspect --format '{{.State.Pid}}' "$name")")" = 65532 ] || fail "does not run as 65532"
docker rm -f "$name" >/dev/null
containers=()

echo "$image is built and runs: version $version, user 65532, $(docker image inspect --format '{{.Size}}' "$image" | awk '{printf "%.1f MB", $1 / 1e6}')"
if [ "$engine" = own ]; then
	docker save "$image" | gzip -1 >bin/prego-image.tar.gz
	echo "no engine was running here, so it is in bin/prego-image.tar.gz: docker load -i bin/prego-image.tar.gz"
fi
