#!/usr/bin/env bash
# Puts node-oidc-provider, the issuer of tests' logins, into .prego/bin: oidc.sh VERSION.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/packages.sh node npm
dir=.prego/bin/oidc-provider-$1
npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix "$dir.new" "oidc-provider@$1" >/dev/null
rm -rf "$dir"
mv "$dir.new" "$dir"
ln -sfn "oidc-provider-$1" .prego/bin/oidc-provider
