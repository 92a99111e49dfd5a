#!/usr/bin/env bash
# install.sh TARGET PACKAGE@VERSION…: installs Go programs at TARGET: one program as a file, several as a directory.
# They are built once for all checkouts, below PREGO_CACHE, and TARGET leads there; its name has the version.
set -euo pipefail
target=$1
shift
cached=${PREGO_CACHE:?}/bin/$(basename "$target")
mkdir -p "$(dirname "$cached")" "$(dirname "$target")"
exec 9>"$cached.lock"
flock 9 # another checkout may be building the same
if [ ! -e "$cached" ]; then
	new=$cached.new
	rm -rf "$new"
	for package in "$@"; do
		GOBIN=$new go install ${INSTALLFLAGS:+"$INSTALLFLAGS"} ${INSTALL_LDFLAGS:+-ldflags "$INSTALL_LDFLAGS"} "$package"
	done
	if [ "$#" = 1 ]; then
		mv "$new"/* "$cached"
		rmdir "$new"
	else
		mv "$new" "$cached"
	fi
fi
ln -sfn "$cached" "$target"
