#!/bin/sh
# Runs once, at the first boot: firewall, Docker, agent. Each milestone is
# reported, so that a boot that fails before there is an agent can be seen.
. "${PREGO_ROOT:-}/usr/local/lib/prego/lib.sh"

STEP=cloud_init_started
report cloud_init_started

STEP=lock_down
passwd --lock root
systemctl disable --now ssh.service ssh.socket || true
systemctl mask ssh.service ssh.socket

STEP=packages
export DEBIAN_FRONTEND=noninteractive
insist apt-get --quiet --assume-yes update
insist apt-get --quiet --assume-yes --no-install-recommends install nftables ca-certificates

STEP=firewall
systemctl daemon-reload
systemctl enable --now prego-firewall.service
report firewall_ready

STEP=volume
if [ "$VOLUME" = 1 ]; then
	for device in /dev/disk/by-id/scsi-0HC_Volume_*; do
		[ -e "$device" ] || continue
		mkdir -p /srv/data
		echo "$device /srv/data ext4 discard,nofail,defaults 0 0" >>/etc/fstab
		mount /srv/data
		break
	done
fi

STEP=docker
insist apt-get --quiet --assume-yes --no-install-recommends install docker.io
systemctl enable --now docker.service
report docker_installed

STEP=agent
id prego-agent >/dev/null 2>&1 || useradd --system --home-dir /var/lib/prego-agent --shell /usr/sbin/nologin prego-agent
# Whoever runs commands is another, and owns what bench works on.
id prego-exec >/dev/null 2>&1 || useradd --system --create-home --home-dir /home/frappe --shell /usr/sbin/nologin prego-exec
fetch_agent() {
	call "$PATH_AGENT_BINARY?sha256=$AGENT_SHA256" --output "$ROOT/usr/local/bin/prego-agent.new" || return 1
	echo "$AGENT_SHA256  $ROOT/usr/local/bin/prego-agent.new" | sha256sum --check --status
}
mkdir -p "$ROOT/usr/local/bin"
insist fetch_agent
chmod 0755 "$ROOT/usr/local/bin/prego-agent.new"
mv "$ROOT/usr/local/bin/prego-agent.new" "$ROOT/usr/local/bin/prego-agent"
systemctl enable --now prego-agent-prepare.service
report agent_installed

STEP=start
systemctl enable prego-docker-certs.service
systemctl enable --now prego-docker-certs.path
report agent_started
systemctl enable --now prego-agent-exec.socket prego-agent-bench.socket
systemctl enable --now --no-block prego-agent-exec.service prego-agent-bootstrap.service prego-agent.service
