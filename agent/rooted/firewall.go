package rooted

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// ruleset is the host's firewall under a peers document, for nft to apply in one transaction: the whole table, so
// that nothing of an earlier document is left. It starts as the ruleset of the first boot, and also admits the
// document's peers.
//
// A port or peer that is none is left out: it costs only itself. leftOut names them, with the reasons.
//
// The ports of this host's agent and of Docker are always open to the control plane, with any document: it may have
// been made for others.
func ruleset(h *host.Host, doc wire.PeersDocument) (rules string, leftOut []string, err error) {
	own := []int{h.Config.AgentPort}
	if h.Config.DockerPort != 0 {
		own = append(own, h.Config.DockerPort)
	}
	out := leaver{&leftOut}
	control := out.prefixes(doc.Control.CIDRs)
	if len(control.v4)+len(control.v6) == 0 {
		return "", nil, errors.New("it would shut out the control plane: it names no addresses of it")
	}
	controlPorts := portSet(append(out.ports(doc.Control.Ports), own...))
	var input, forward strings.Builder
	control.each(func(family, sources string) {
		fmt.Fprintf(&input, "\t\t%s saddr %s tcp dport %s accept\n", family, sources, controlPorts)
	})
	for _, a := range doc.Access {
		out.access(a, doc.Address, own, &input, &forward)
	}
	var b strings.Builder
	b.WriteString("table inet prego\ndelete table inet prego\ntable inet prego {\n")
	b.WriteString("\tchain input {\n\t\ttype filter hook input priority filter; policy drop;\n")
	b.WriteString("\t\tiifname \"lo\" accept\n\t\tct state invalid drop\n\t\tmeta l4proto { icmp, icmpv6 } accept\n")
	b.WriteString(input.String())
	// A peer that loses its access also loses open connections: only answers pass without a rule.
	b.WriteString("\t\tct direction original meta l4proto tcp drop\n\t\tct state established,related accept\n")
	b.WriteString("\t}\n\tchain forward {\n\t\ttype filter hook forward priority filter - 10; policy accept;\n")
	b.WriteString("\t\tip daddr 169.254.0.0/16 drop\n")
	b.WriteString(forward.String())
	b.WriteString("\t\tct status dnat ct direction original drop\n\t\tct state established,related accept\n")
	b.WriteString("\t\tiifname { \"docker0\", \"br-*\" } accept\n\t\tdrop\n")
	b.WriteString("\t}\n\tchain output {\n\t\ttype filter hook output priority filter; policy accept;\n")
	b.WriteString("\t\tip daddr 169.254.169.254 meta skuid != 0 drop\n\t}\n}\n")
	return b.String(), leftOut, nil
}

// leaver leaves parts of a document out.
type leaver struct{ reasons *[]string }

func (l leaver) outf(format string, args ...any) {
	*l.reasons = append(*l.reasons, fmt.Sprintf(format, args...))
}

// access admits peers to a port of the host, directly or published for a container, which is forwarded.
func (l leaver) access(a wire.PeersAccess, address string, own []int, input, forward *strings.Builder) {
	if len(a.Ports) == 0 || len(a.From) == 0 {
		l.outf("ports %v for %v: that is no access", a.Ports, a.From)
	}
	ports := l.ports(a.Ports)
	if slices.Contains(a.From, wire.PeersEveryone) {
		ports = slices.DeleteFunc(ports, func(p int) bool {
			if mine := slices.Contains(own, p); mine {
				l.outf("port %d: it would be open to everyone", p)
				return true
			}
			return false
		})
		if len(a.From) != 1 {
			l.outf("ports %v: they would be open to everyone and to others", a.Ports)
			return
		}
		if len(ports) == 0 {
			return
		}
		fmt.Fprintf(input, "\t\ttcp dport %s accept\n", portSet(ports))
		fmt.Fprintf(forward, "\t\tct status dnat ct direction original meta l4proto tcp ct original proto-dst %s accept\n",
			portSet(ports))
		return
	}
	to, err := netip.ParseAddr(address)
	if err != nil || to.Zone() != "" { // a zone may be any text, which would be part of the ruleset
		l.outf("ports %v: %q, at which they would be open, is no address", a.Ports, address)
		return
	}
	var hosts []string
	for _, text := range a.From {
		from, err := netip.ParseAddr(text)
		if err != nil || from.Zone() != "" || from.Is4() != to.Is4() {
			l.outf("peer %q at ports %v: it is no address of the private network", text, a.Ports)
			continue
		}
		hosts = append(hosts, from.String())
	}
	if len(hosts) == 0 || len(ports) == 0 {
		return
	}
	family := "ip"
	if !to.Is4() {
		family = "ip6"
	}
	set, peers := portSet(ports), "{ "+strings.Join(hosts, ", ")+" }"
	fmt.Fprintf(input, "\t\t%s daddr %s %s saddr %s tcp dport %s accept\n", family, to, family, peers, set)
	fmt.Fprintf(forward, "\t\tct status dnat ct direction original ct original %s daddr %s meta l4proto tcp "+
		"ct original proto-dst %s %s saddr %s accept\n", family, to, set, family, peers)
}

// sources are networks by family.
type sources struct{ v4, v6 []string }

func (s sources) each(f func(family, set string)) {
	if len(s.v4) > 0 {
		f("ip", "{ "+strings.Join(s.v4, ", ")+" }")
	}
	if len(s.v6) > 0 {
		f("ip6", "{ "+strings.Join(s.v6, ", ")+" }")
	}
}

func (l leaver) prefixes(cidrs []string) (out sources) {
	for _, text := range cidrs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			l.outf("the control plane's address %q: it is no CIDR", text)
			continue
		}
		if p = p.Masked(); p.Addr().Is4() {
			out.v4 = append(out.v4, p.String())
		} else {
			out.v6 = append(out.v6, p.String())
		}
	}
	slices.Sort(out.v4)
	slices.Sort(out.v6)
	out.v4, out.v6 = slices.Compact(out.v4), slices.Compact(out.v6)
	return out
}

// ports are those of a list that are ports.
func (l leaver) ports(all []int) (out []int) {
	for _, p := range all {
		if p < 1 || p > 65535 {
			l.outf("port %d: there is no such port", p)
			continue
		}
		out = append(out, p)
	}
	return out
}

// portSet is a set of nft.
func portSet(ports []int) string {
	ports = slices.Clone(ports)
	slices.Sort(ports)
	texts := make([]string, 0, len(ports))
	for _, p := range slices.Compact(ports) {
		texts = append(texts, fmt.Sprint(p))
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}
