#!/bin/sh
# Makes the namespace and the search attributes that runs are found by. Every step can
# be repeated.
#
# Needs TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE; RETENTION is for how long ended runs
# can be looked at.
set -eu

tries=0
until temporal operator cluster health >/dev/null 2>&1; do
	tries=$((tries + 1))
	if [ "$tries" -ge 60 ]; then
		echo "Temporal at $TEMPORAL_ADDRESS does not answer:" >&2
		temporal operator cluster health >&2
		exit 1
	fi
	sleep 1
done

if temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1; then
	temporal operator namespace update --namespace "$TEMPORAL_NAMESPACE" --retention "${RETENTION:-720h}" >/dev/null
else
	temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "${RETENTION:-720h}" --description "prego"
fi

# As in workflows.SearchAttributes; make compose-config compares. The frontends know of a new
# namespace a few seconds later.
for name in server_id region role tenant_id org_id fleet_id name outcome kind; do
	tries=0
	until temporal operator search-attribute list --namespace "$TEMPORAL_NAMESPACE" 2>/dev/null | grep -q "^ *$name "; do
		tries=$((tries + 1))
		if [ "$tries" -ge 30 ]; then
			echo "the search attribute $name can't be made" >&2
			exit 1
		fi
		temporal operator search-attribute create --namespace "$TEMPORAL_NAMESPACE" --name "$name" --type Keyword || sleep 1
	done
done
echo "namespace $TEMPORAL_NAMESPACE is ready"
