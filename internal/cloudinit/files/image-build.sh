#!/bin/sh
# Makes this machine what an image is taken of: packages and container images. It has
# no identity and talks to nobody of ours, so that it says how it went in one way only:
# it powers off when all is in place and cleaned up, and stays on when it is not.
set -eu
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
DIR=/etc/prego-image

# insist repeats a command for some minutes: mirrors and registries hiccup.
insist() {
	tries=0
	until "$@"; do
		tries=$((tries + 1))
		[ "$tries" -lt 10 ] || return 1
		sleep "$((tries * 3))"
	done
}

apt_get() {
	apt-get --quiet --assume-yes --no-install-recommends -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold \
		-o APT::Update::Error-Mode=any -o Acquire::Retries=3 "$@" </dev/null
}

install() {
	apt_get update
	# shellcheck disable=SC2046 # a word each
	apt_get install $(cat "$DIR/packages")
}

insist install
if [ -s "$DIR/containers" ]; then
	systemctl start docker.service
	while read -r image; do
		insist python3 -I "$DIR/pull.py" "$image"
	done <"$DIR/containers"
fi
# The seal cleans up after cloud-init, so it waits until that has ended.
systemctl daemon-reload
systemctl start --no-block prego-image-seal.service
