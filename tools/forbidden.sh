#!/usr/bin/env bash
# direct-provisioning §11: what must not come into this code base (tools/forbidden).
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .prego/bin
CGO_ENABLED=0 go build -trimpath -o .prego/bin/forbidden ./tools/forbidden
go vet -vettool="$PWD/.prego/bin/forbidden" -tags "machines frappe scale soak" ./...
# The sums of tools/release name modules that its packager knows and does not build.
git ls-files -z -- ':!tools/release/go.sum' ':!*.go' ':!docs' ':!*.md' ':!tools/forbidden' ':!tools/frozen' ':!*.patch' ':!*.png' ':!*/testdata/fuzz' |
	xargs -0 grep -lIZ -e . | xargs -0 .prego/bin/forbidden
