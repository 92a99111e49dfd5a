#!/bin/sh
# Sets up one of three hosts (docs/production-three-hosts.md): etcd, Patroni, HAProxy and Temporal's unit. Run it first
# on prego-1, where it creates the missing passwords, and on the others with a copy of its /etc/prego. It can be
# repeated; what it writes is replaced.
set -eu
umask 077
fail() { echo "host.sh: $*" >&2; exit 1; }
here=$(dirname "$(readlink -f "$0")")
secrets=/etc/prego/secrets
name=$(hostname)
[ "$(id -u)" = 0 ] || fail "only root may do this"
case $name in
prego-1 | prego-2 | prego-3) ;;
*) fail "this host is named $name: name it prego-1, prego-2 or prego-3 (hostnamectl hostname prego-1)" ;;
esac
for host in prego-1 prego-2 prego-3; do
	found=$(getent ahostsv4 $host | awk 'NR == 1 { print $1 }')
	case $found in
	"" | 127.*) fail "$host is ${found:-unknown}: /etc/hosts must have the private addresses of all three hosts" ;;
	esac
	[ $host != "$name" ] || address=$found
done

for file in postgres_password replication_password patroni_password prego_db_password temporal_db_password; do
	[ ! -s $secrets/$file ] || continue
	[ "$name" = prego-1 ] || fail "there is no $secrets/$file: copy /etc/prego from prego-1"
	od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >$secrets/$file.new
	mv $secrets/$file.new $secrets/$file
	echo "created $secrets/$file"
done
# prego's processes find the primary by themselves (docs/production.md, "Failover of Postgres").
[ -s $secrets/database_url ] || cat >$secrets/database_url <<-URL
	postgres://prego:$(cat $secrets/prego_db_password)@prego-1:5432,prego-2:5432,prego-3:5432/prego?sslmode=disable
URL
grep -q '^PREGO_RELAY_URL=' /etc/prego/prego.env || cat "$here/prego.env" >>/etc/prego/prego.env
prego-secrets

# Its own directory, because Debian's package has started an etcd with another one.
cat >/etc/default/etcd <<-ETCD
	ETCD_DATA_DIR=/var/lib/etcd/prego
	ETCD_LISTEN_PEER_URLS=http://$address:2380
	ETCD_LISTEN_CLIENT_URLS=http://$address:2379,http://127.0.0.1:2379
	ETCD_INITIAL_ADVERTISE_PEER_URLS=http://$name:2380
	ETCD_ADVERTISE_CLIENT_URLS=http://$name:2379
	ETCD_INITIAL_CLUSTER=prego-1=http://prego-1:2380,prego-2=http://prego-2:2380,prego-3=http://prego-3:2380
	ETCD_INITIAL_CLUSTER_TOKEN=prego
	# Without it, etcd keeps each renewal of Patroni's lease until its disk quota is used up.
	ETCD_AUTO_COMPACTION_RETENTION=1h
ETCD
chmod 644 /etc/default/etcd
printf 'BIND_ON_IP=%s\nTEMPORAL_BROADCAST_ADDRESS=%s\n' "$address" "$address" >/etc/default/temporal
install -m 644 "$here/haproxy.cfg" /etc/haproxy/haproxy.cfg
install -m 644 "$here/temporal.service" /etc/systemd/system/temporal.service
sed -e "s/@NAME@/$name/" -e "s/@ADDRESS@/$address/" \
	-e "s/@PATRONI_PASSWORD@/$(cat $secrets/patroni_password)/" \
	-e "s/@POSTGRES_PASSWORD@/$(cat $secrets/postgres_password)/" \
	-e "s/@REPLICATION_PASSWORD@/$(cat $secrets/replication_password)/" "$here/patroni.yml" >/etc/patroni/config.yml.new
chown root:postgres /etc/patroni/config.yml.new
chmod 640 /etc/patroni/config.yml.new
mv /etc/patroni/config.yml.new /etc/patroni/config.yml

# Debian's units give up after a few failures in a row, for example while a host starts before the others.
for unit in etcd patroni; do
	install -D -m 644 "$here/restart.conf" /etc/systemd/system/$unit.service.d/prego.conf
done

systemctl daemon-reload
systemctl enable etcd patroni haproxy
# etcd reports that it is ready once two hosts have it: don't wait.
systemctl restart --no-block etcd patroni haproxy
echo "$name ($address) runs etcd, Patroni and HAProxy. Continue with the next host"
