#!/usr/bin/env bash
# Checks docker-compose.yml with the Compose that is here, the current one or, as on
# older Debian, the one before: that it parses, and what must hold for every service.
set -euo pipefail
cd "$(dirname "$0")/.."
if docker compose version >/dev/null 2>&1; then compose=(docker compose); else compose=(docker-compose); fi
rendered=$(mktemp)
trap 'rm -f "$rendered"' EXIT
"${compose[@]}" --env-file deploy/example.env -f docker-compose.yml config >"$rendered"

bad=0
wrong() { echo "docker-compose.yml: $*" >&2; bad=1; }
services=$("${compose[@]}" --env-file deploy/example.env -f docker-compose.yml config --services)
for service in $services; do
	text=$(awk -v s="  $service:" '/^[a-z]/ {top = $1} top == "services:" && /^  [a-z]/ {in_it = ($0 == s)} top == "services:" && in_it' "$rendered")
	has() { grep -qE "$1" <<<"$text" || wrong "$service $2"; }
	has '^    read_only: true' "can write to its root file system"
	has 'no-new-privileges:true' "can gain privileges"
	has '^ +- ALL$' "keeps capabilities"
	has '^    user: ' "may run as root"
	has '^          memory: ' "has no limit of memory"
	has '^    restart: ' "has no restart policy"
	case "$service" in
	api | agentgw | temporal-ui) has '^    ports:' "is not published" ;;
	*) if grep -q '^    ports:' <<<"$text"; then wrong "$service is published"; fi ;;
	esac
	case "$service" in
	temporal-schema | temporal-namespace | migrate) ;;
	*) has '^    healthcheck:' "has no health check" ;;
	esac
done
# What runs once and what the repository knows agree.
for name in $(sed -n 's/^for name in \(.*\); do$/\1/p' deploy/temporal/namespace.sh); do echo "$name"; done | sort >"$rendered"
grep -oE 'NewSearchAttributeKeyKeyword\("[a-z_]+"\)' workflows/options.go | cut -d'"' -f2 | sort | cmp -s - "$rendered" ||
	wrong "deploy/temporal/namespace.sh makes other search attributes than workflows/options.go names"
[ "$bad" = 0 ] && echo "docker-compose.yml holds, $(wc -w <<<"$services") services"
exit "$bad"
