#!/usr/bin/env bash
# Puts axe-core, which tests hold the console's pages against, into .prego/bin: axe.sh VERSION.
# It is under the Mozilla Public License and not part of this repository.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/packages.sh npm
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
(cd "$dir" && npm pack --silent "axe-core@$1" >/dev/null && tar -xzf ./*.tgz package/axe.min.js)
mkdir -p .prego/bin
install -m 0644 "$dir/package/axe.min.js" .prego/bin/axe.min.js
cp .prego/bin/axe.min.js ".prego/bin/axe-core-$1.js"
