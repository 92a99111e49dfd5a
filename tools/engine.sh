# Sourced: a Docker engine to build with. A running engine is used; when there is none
# and this user is root, a private one is started, without any network, and stopped
# by its process id when the script ends. Sets DOCKER_HOST then, and engine=own.
# shellcheck shell=bash
engine=there
export DOCKER_BUILDKIT=0 # Debian's engine comes without the other builder

start_engine() { # directory for its files
	if docker version >/dev/null 2>&1; then return; fi
	if [ "$(id -u)" != 0 ]; then
		echo "no Docker engine answers, and only root can start one" >&2
		return 1
	fi
	engine=own
	local dir=$1 runtime tries=0
	runtime=$(mktemp -d /run/prego-engine.XXXXXX) # a socket's path is short
	mkdir -p "$dir"
	export DOCKER_HOST=unix://$runtime/docker.sock
	setpriv --pdeathsig TERM dockerd --host "$DOCKER_HOST" --data-root "$dir/data" --exec-root "$runtime/exec" --pidfile "$runtime/pid" \
		--bridge none --iptables=false --ip6tables=false >"$dir/dockerd.log" 2>&1 &
	engine_pid=$! engine_runtime=$runtime
	until docker version >/dev/null 2>&1; do
		tries=$((tries + 1))
		if [ "$tries" -gt 150 ] || ! kill -0 "$engine_pid" 2>/dev/null; then
			echo "dockerd does not start:" >&2
			tail -15 "$dir/dockerd.log" >&2
			return 1
		fi
		sleep 0.2
	done
}

stop_engine() {
	[ "$engine" = own ] || return 0
	kill "$engine_pid" 2>/dev/null || true
	wait "$engine_pid" 2>/dev/null || true
	# It leaves the mounts of containers' networks behind.
	awk -v d="$engine_runtime/" 'index($2, d) == 1 {print $2}' /proc/mounts | xargs -r umount || true
	rm -rf "$engine_runtime"
	engine=stopped
}
