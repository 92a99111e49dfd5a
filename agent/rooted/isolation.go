package rooted

import (
	"github.com/prego/prego/agent/wire"
)

// isolation is what containers of orgs' process groups must not reach, in a separate table: a drop in any table is
// final, even if Docker and the host's firewall accept.
//
// They are on bridges by environment, whose names begin with wire.EnvBridge. They may open connections to public
// addresses, and use DNS anywhere. They reach no container of any bridge, not even at a published port of this host,
// because that is rewritten to its address earlier; nothing of the host itself; no private network, where a
// connection would come from the host's address and be admitted as the host; and no metadata.
const isolation = `table inet prego_instances
delete table inet prego_instances
table inet prego_instances {
	chain forward {
		type filter hook forward priority filter - 20; policy accept;
		iifname != "` + wire.EnvBridge + `*" accept
		ct state established,related accept
		oifname { "br-*", "docker0" } drop
		ip daddr 169.254.0.0/16 drop
		meta l4proto { tcp, udp } th dport 53 accept
		ip daddr { 10.0.0.0/8, 100.64.0.0/10, 172.16.0.0/12, 192.168.0.0/16, 198.18.0.0/15 } drop
		ip6 daddr { fc00::/7, fe80::/10 } drop
	}
	chain input {
		type filter hook input priority filter - 20; policy accept;
		iifname != "` + wire.EnvBridge + `*" accept
		ct state established,related accept
		drop
	}
}
`
