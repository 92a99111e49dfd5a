#!/usr/bin/env bash
# Lays out what the Dockerfile copies: static binaries, certificates, a user.
set -euo pipefail
context=${1:?the directory that is made}
cd "$(dirname "$0")/.."
rm -rf "$context"
mkdir -p "$context/etc/ssl/certs" "$context/tmp"
install -m 0755 bin/prego bin/prego-agent "$context"
install -m 0644 /etc/ssl/certs/ca-certificates.crt "$context/etc/ssl/certs/"
echo 'prego:x:65532:65532:prego:/:/prego' >"$context/etc/passwd"
echo 'prego:x:65532:' >"$context/etc/group"
chmod 1777 "$context/tmp"
