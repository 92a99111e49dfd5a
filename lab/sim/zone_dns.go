package sim

import (
	"fmt"
	"net"
	"path"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// zoneDNS answers for the zones over DNS, as the provider's name servers do, and follows
// aliases from one zone to another, as a resolver does: the simulator is the whole DNS.
type zoneDNS struct {
	servers []*dns.Server
	addr    string
}

// serveZones listens on UDP and TCP.
func (s *Sim) serveZones() error {
	addr := s.cfg.DNS
	var pc net.PacketConn
	var ln net.Listener
	var err error
	// A free port of one protocol may be taken of the other.
	for range 10 {
		if pc, err = net.ListenPacket("udp", addr); err != nil { //nolint:noctx // ends with Close
			return fmt.Errorf("sim: DNS: %w", err)
		}
		if ln, err = net.Listen("tcp", pc.LocalAddr().String()); err == nil { //nolint:noctx // ends with Close
			break
		}
		_ = pc.Close()
	}
	if err != nil {
		return fmt.Errorf("sim: DNS: %w", err)
	}
	handler := dns.HandlerFunc(s.answerZones)
	d := &zoneDNS{
		addr:    pc.LocalAddr().String(),
		servers: []*dns.Server{{PacketConn: pc, Handler: handler}, {Listener: ln, Handler: handler}},
	}
	s.dns = d
	for _, srv := range d.servers {
		started := make(chan struct{})
		srv.NotifyStartedFunc = func() { close(started) }
		s.work.Add(1)
		go func() {
			defer s.work.Done()
			if err := srv.ActivateAndServe(); err != nil {
				s.log.Warn("DNS: " + err.Error())
			}
		}()
		<-started
	}
	return nil
}

func (d *zoneDNS) close() {
	for _, srv := range d.servers {
		_ = srv.Shutdown()
	}
}

// DNS is where the zones are served, host:port.
func (s *Sim) DNS() string { return s.dns.addr }

// answerZones answers one question. Faults of kind "dns" happen to questions.
func (s *Sim) answerZones(w dns.ResponseWriter, q *dns.Msg) {
	if q.Response || len(q.Question) != 1 {
		return
	}
	s.mu.Lock()
	f := s.dnsFault(strings.TrimSuffix(q.Question[0].Name, "."))
	out := s.zoneAnswer(q)
	s.mu.Unlock()
	if f != nil && f.Action == "drop" {
		return
	}
	if f != nil && f.Action == "fail" {
		out = new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	}
	if d := faultDelay(f); d > 0 {
		if !s.pause(d) {
			return
		}
	}
	if w.LocalAddr().Network() == "udp" {
		size := dns.MinMsgSize
		if o := q.IsEdns0(); o != nil {
			size = int(o.UDPSize())
		}
		out.Truncate(size)
	}
	_ = w.WriteMsg(out)
}

// dnsFault is the fault that happens to a question now; nil for none.
func (s *Sim) dnsFault(name string) *Fault {
	for _, f := range s.faults {
		if ok, _ := path.Match(f.Path, name); f.Kind == "dns" && f.Server == "" && (f.Path == "" || ok) && f.fires() {
			c := *f
			return &c
		}
	}
	return nil
}

// zoneReply is the packed answer to a machine's question; nil when there is none.
func (s *Sim) zoneReply(question []byte) []byte {
	q := new(dns.Msg)
	if q.Unpack(question) != nil || len(q.Question) != 1 {
		return nil
	}
	out := s.zoneAnswer(q)
	out.Truncate(dns.MinMsgSize)
	b, err := out.Pack()
	if err != nil {
		return nil
	}
	return b
}

// Answer is the answer of the zones' name servers, and of a resolver, to a question.
func (s *Sim) Answer(q *dns.Msg) *dns.Msg {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.zoneAnswer(q)
}

// maxChain bounds a chain of aliases.
const maxChain = 8

// zoneAnswer looks a question up in the published records. Call it with the lock held.
func (s *Sim) zoneAnswer(q *dns.Msg) *dns.Msg {
	out := new(dns.Msg)
	out.SetReply(q)
	out.RecursionAvailable = true
	name := strings.ToLower(q.Question[0].Name)
	for range maxChain {
		z := s.zoneAbove(name)
		if z == nil {
			// Nobody here knows the name: for a resolver it does not exist.
			out.Rcode = dns.RcodeNameError
			return out
		}
		out.Authoritative = true
		sets, exists := z.lookup(name)
		if !exists {
			out.Rcode = dns.RcodeNameError
			out.Ns = z.records("SOA", z.Name+".")
			return out
		}
		typ := dns.TypeToString[q.Question[0].Qtype]
		if rrs := z.rrs(sets, typ, name); len(rrs) > 0 {
			out.Answer = append(out.Answer, rrs...)
			return out
		}
		aliases := z.rrs(sets, "CNAME", name)
		if len(aliases) == 0 {
			out.Ns = z.records("SOA", z.Name+".")
			return out
		}
		out.Answer = append(out.Answer, aliases...)
		name = strings.ToLower(aliases[0].(*dns.CNAME).Target) //nolint:forcetypeassert // it was parsed as one
	}
	out.Rcode = dns.RcodeServerFailure
	return out
}

// zoneAbove is the zone that a name is in.
func (s *Sim) zoneAbove(name string) *zone {
	var best *zone
	for _, z := range s.st.Zones {
		if dns.IsSubDomain(z.Name+".", name) && (best == nil || len(z.Name) > len(best.Name)) {
			best = z
		}
	}
	return best
}

// lookup finds the name that answers: itself, or the wildcard at the closest name above it
// that exists (RFC 4592 §3.3.1). A name without records exists when one below it has some.
func (z *zone) lookup(name string) (owner string, exists bool) {
	rel := strings.TrimSuffix(strings.TrimSuffix(name, z.Name+"."), ".")
	if rel == "" {
		return "@", true
	}
	names := z.names()
	if names[rel] {
		return rel, true
	}
	for {
		_, above, found := strings.Cut(rel, ".")
		if !found {
			above = ""
		}
		wild := "*"
		if above != "" {
			wild = "*." + above
		}
		if names[wild] {
			return wild, true
		}
		if above == "" || names[above] {
			return "", false
		}
		rel = above
	}
}

// names are all names of a zone that exist, those without records included.
func (z *zone) names() map[string]bool {
	if z.existing != nil && z.existingAt == z.Serial {
		return z.existing
	}
	out := make(map[string]bool, len(z.Published))
	for _, set := range z.Published {
		for n := set.Name; n != "" && n != "@" && !out[n]; {
			out[n] = true
			_, n, _ = strings.Cut(n, ".")
		}
	}
	z.existing, z.existingAt = out, z.Serial
	return out
}

// rrs are the published records of an owner, under the name that was asked for.
func (z *zone) rrs(owner, typ, name string) []dns.RR {
	set, ok := z.Published[setKey(owner, typ)]
	if !ok {
		return nil
	}
	ttl := z.TTL
	if set.TTL != nil {
		ttl = *set.TTL
	}
	var out []dns.RR
	for _, r := range set.Records {
		rr, err := dns.NewRR(fmt.Sprintf("%s %d IN %s %s", name, ttl, typ, r.Value))
		if err != nil {
			continue
		}
		if soa, ok := rr.(*dns.SOA); ok {
			soa.Serial += z.Serial
		}
		out = append(out, rr)
	}
	return slices.Clip(out)
}

func (z *zone) records(typ, name string) []dns.RR { return z.rrs("@", typ, name) }
