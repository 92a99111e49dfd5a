#!/usr/bin/env bash
# direct-provisioning §11: what must not come into this code base.
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
refuse() { # message, pattern, files…
	local message="$1" pattern="$2"
	shift 2
	if git grep -nIE -e "$pattern" -- "$@" ':!tools/forbidden.sh'; then
		echo "forbidden: $message" >&2
		bad=1
	fi
}
refuse "no Pulumi" 'exec[^"]*"pulumi|pulumi (up|stack|preview)|github.com/pulumi' '*.go' '*.sh' go.mod
refuse "no Ansible" 'ansible-playbook|prego-ansible' '*.go' '*.sh' go.mod
refuse "no SSH" 'exec[^"]*"(ssh|scp|sshpass)"|golang.org/x/crypto/ssh' '*.go' go.mod
refuse "no shell on hosts" '/agent/v1/(shell|docker)' '*.go' '*.yaml'
refuse "commands are vectors, never a shell" 'exec\.Command(Context)?\([^)]*"(/bin/)?(ba)?sh", *"-c"' '*.go'
# Every endpoint of the agent is an exec endpoint, whose request names a kind.
if git grep -nIoE -e '/agent/v1/[a-z/-]+' -- '*.go' '*.yaml' | grep -vE ':/agent/v1/exec(/stream)?$'; then
	echo "forbidden: an endpoint of the agent without a kind" >&2
	bad=1
fi
exit "$bad"
