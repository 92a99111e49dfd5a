package world

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/prego/prego/server"
)

// Where the play's names are.
const (
	Zone       = "prego.example" // at the simulated provider
	SiteDomain = "sites." + Zone
	// Resolver is the control plane's resolver.
	Resolver = "192.0.2.1:53"
	// customerZone has tenants' own names. It is also at the provider, with records that are not ours.
	customerZone = "customers.example"
	// nameServer is where all name servers of the provider are.
	nameServer = "192.0.2.53"
	// cachedFor is the time that a resolver may cache an answer: the TTL of sites' records.
	cachedFor = 5 * time.Minute
)

// names are the DNS of a play: the provider's zones, and a resolver with possibly old answers.
type names struct {
	w   *World
	on  bool       // the play has edges and names
	rng *rand.Rand // which of several addresses is met

	mu     sync.Mutex
	cache  map[string]cached // of the resolver
	claims map[string]string // what must come of the names of tenants, by slug
}

type cached struct {
	m  *dns.Msg
	at time.Time
}

func newNames(w *World, on bool) *names {
	return &names{
		w: w, on: on, rng: rand.New(rand.NewPCG(w.Seed, 7)), cache: map[string]cached{}, claims: map[string]string{},
	}
}

// Named is whether the play has names: a zone, edges and certificates.
func (l *Life) Named() bool { return l.w.names.on }

// Resolve is how a process asks name servers.
func (l *Life) Resolve(ctx context.Context, at string, q *dns.Msg) (*dns.Msg, error) {
	n, what := l.w.names, "dns "+dns.TypeToString[q.Question[0].Qtype]+" "+q.Question[0].Name
	if err := l.step(ctx, what+" at "+at); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	f, where := l.w.Faults, l.actor(ctx)+" "+what
	switch {
	case f.hit("resolver_refused", where):
		return nil, errors.New("i/o timeout")
	case f.hit("resolver_fails", where):
		return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure), nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	old, ok := n.cache[what]
	if ok && at == Resolver && time.Since(old.at) < cachedFor && f.hit("resolver_stale", where) {
		m := old.m.Copy()
		m.Id = q.Id
		return m, nil
	}
	m := n.answer(q)
	if at == Resolver {
		m.Authoritative = false
		n.cache[what] = cached{m: m.Copy(), at: time.Now()}
	}
	return m, nil
}

// answer is the current answer, from the published records.
func (n *names) answer(q *dns.Msg) *dns.Msg {
	name := q.Question[0].Name
	if !strings.Contains(name, ".ns.hetzner.") {
		return n.w.cloud.Answer(q)
	}
	m := new(dns.Msg).SetReply(q)
	if q.Question[0].Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
			A:   net.ParseIP(nameServer),
		}}
	}
	return m
}

// texts are the texts of a name.
func (n *names) texts(name string) (out []string) {
	for _, rr := range n.answer(new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeTXT)).Answer {
		if t, ok := rr.(*dns.TXT); ok {
			out = append(out, strings.Join(t.Txt, ""))
		}
	}
	return out
}

// addresses are the addresses of a name.
func (n *names) addresses(name string) (out []string) {
	for _, rr := range n.answer(new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)).Answer {
		if a, ok := rr.(*dns.A); ok {
			out = append(out, a.A.String())
		}
	}
	return out
}

// browse is a name's answer on port 80, at one address.
func (n *names) browse(name, path string) (status int, body string, err error) {
	all := n.addresses(name)
	if len(all) == 0 {
		return 0, "", &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	n.mu.Lock()
	addr := all[n.rng.IntN(len(all))]
	n.mu.Unlock()
	n.w.hosts.mu.Lock()
	h := n.w.hosts.by[addr]
	n.w.hosts.mu.Unlock()
	if h == nil {
		return 0, "", errors.New("connection refused")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.up || h.edge == nil {
		return 0, "", errors.New("connection refused")
	}
	token, challenge := strings.CutPrefix(path, "/.well-known/acme-challenge/")
	for _, c := range h.edge.document.Challenges {
		if challenge && c.Host == name && c.Token == token {
			return http.StatusOK, c.KeyAuthorization, nil
		}
	}
	return http.StatusNotFound, "", nil
}

// record is a record that the owner of a name creates.
type record struct{ Type, Name, Value string }

// publish makes or deletes records of customers, as they do at their provider by hand.
func (n *names) publish(verb string, records ...record) {
	for _, r := range records {
		value := r.Value
		switch r.Type {
		case "TXT":
			value = `"` + value + `"`
		default: // an alias
			r.Type, value = "CNAME", value+"."
		}
		body, err := json.Marshal(map[string]any{"ttl": 60, "records": []map[string]string{{"value": value}}})
		if err != nil {
			panic("world: " + err.Error())
		}
		name := strings.TrimSuffix(r.Name, "."+customerZone)
		req := httptest.NewRequestWithContext(context.Background(), http.MethodPost,
			"/v1/zones/"+customerZone+"/rrsets/"+name+"/"+r.Type+"/actions/"+verb+"_records", bytes.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+ProviderToken)
		req.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		n.w.provider.ServeHTTP(rec, req)
		// it is there, or gone, already
		if rec.Code != http.StatusCreated && rec.Code != http.StatusNotFound &&
			rec.Code != http.StatusUnprocessableEntity {
			n.w.violationf("the world: %s of %v answered %d: %s", verb, r, rec.Code, rec.Body)
		}
	}
}

// What must come of a name, as the statuses of domains; or it is given up.
const (
	nameVerified = "verified"
	nameGone     = "gone"
)

// claim notes what must come of a tenant's own name.
func (n *names) claim(slug, comes string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.claims[slug] = comes
}

// zone are our record sets at the provider: their values, by name and type.
func (n *names) zone() map[string][]string {
	out := map[string][]string{}
	for _, set := range n.w.cloud.RecordSets(Zone, server.LabelManagedBy) {
		var values []string
		for _, r := range set.Records {
			values = append(values, r.Value)
		}
		out[set.Name+" "+set.Type] = values
	}
	return out
}
