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
// The ports of this host's agent and of Docker are always open to the control plane, with any document: it may have
// been made for others.
func ruleset(h *host.Host, doc wire.PeersDocument) (string, error) {
	own := []int{h.Config.AgentPort}
	if h.Config.DockerPort != 0 {
		own = append(own, h.Config.DockerPort)
	}
	control, err := prefixes(doc.Control.CIDRs)
	if err != nil {
		return "", err
	}
	if len(control.v4)+len(control.v6) == 0 {
		return "", errors.New("it would shut out the control plane: it names no addresses of it")
	}
	controlPorts, err := portSet(append(slices.Clone(doc.Control.Ports), own...))
	if err != nil {
		return "", err
	}
	var input, forward strings.Builder
	control.each(func(family, sources string) {
		fmt.Fprintf(&input, "\t\t%s saddr %s tcp dport %s accept\n", family, sources, controlPorts)
	})
	for _, a := range doc.Access {
		if err := access(a, doc.Address, own, &input, &forward); err != nil {
			return "", err
		}
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
	return b.String(), nil
}

// access admits peers to a port of the host, directly or published for a container, which is forwarded.
func access(a wire.PeersAccess, address string, own []int, input, forward *strings.Builder) error {
	ports, err := portSet(a.Ports)
	if err != nil {
		return err
	}
	if slices.Contains(a.From, wire.PeersEveryone) {
		if len(a.From) != 1 || slices.ContainsFunc(a.Ports, func(p int) bool { return slices.Contains(own, p) }) {
			return fmt.Errorf("it opens ports %v to everyone", a.Ports)
		}
		fmt.Fprintf(input, "\t\ttcp dport %s accept\n", ports)
		fmt.Fprintf(forward, "\t\tct status dnat ct direction original meta l4proto tcp ct original proto-dst %s accept\n", ports)
		return nil
	}
	to, err := netip.ParseAddr(address)
	if err != nil || to.Zone() != "" { // a zone may be any text, which would be part of the ruleset
		return fmt.Errorf("it lets peers in at %q, which is no address", address)
	}
	var hosts []string
	for _, text := range a.From {
		from, err := netip.ParseAddr(text)
		if err != nil || from.Zone() != "" || from.Is4() != to.Is4() {
			return fmt.Errorf("it lets in %q, which is no address of the private network", text)
		}
		hosts = append(hosts, from.String())
	}
	if len(hosts) == 0 {
		return errors.New("it opens ports without peers")
	}
	family := "ip"
	if !to.Is4() {
		family = "ip6"
	}
	from := "{ " + strings.Join(hosts, ", ") + " }"
	fmt.Fprintf(input, "\t\t%s daddr %s %s saddr %s tcp dport %s accept\n", family, to, family, from, ports)
	fmt.Fprintf(forward, "\t\tct status dnat ct direction original ct original %s daddr %s meta l4proto tcp ct original proto-dst %s %s saddr %s accept\n", family, to, ports, family, from)
	return nil
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

func prefixes(cidrs []string) (sources, error) {
	var out sources
	for _, text := range cidrs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return out, fmt.Errorf("%q is not a CIDR", text)
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
	return out, nil
}

// portSet is a set of nft.
func portSet(ports []int) (string, error) {
	ports = slices.Clone(ports)
	slices.Sort(ports)
	texts := make([]string, 0, len(ports))
	for _, p := range slices.Compact(ports) {
		if p < 1 || p > 65535 {
			return "", fmt.Errorf("%d is no port", p)
		}
		texts = append(texts, fmt.Sprint(p))
	}
	if len(texts) == 0 {
		return "", errors.New("it names no ports")
	}
	return "{ " + strings.Join(texts, ", ") + " }", nil
}
