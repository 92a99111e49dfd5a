package dns_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/dns"
)

// nameServer is a real one on an address of loopback.
type nameServer struct {
	asked   atomic.Int64
	records []string
	rcode   int
}

func (n *nameServer) serve(t *testing.T, addr string) string {
	t.Helper()
	var pc net.PacketConn
	var ln net.Listener
	for try := 0; ; try++ { // a port that is free for one may be taken for the other
		var err error
		pc, err = net.ListenPacket("udp", addr)
		require.NoError(t, err)
		if ln, err = net.Listen("tcp", pc.LocalAddr().String()); err == nil {
			break
		}
		require.Less(t, try, 10, err)
		_ = pc.Close()
	}
	for _, s := range []*mdns.Server{{PacketConn: pc, Handler: n}, {Listener: ln, Handler: n}} {
		up := make(chan struct{})
		s.NotifyStartedFunc = func() { close(up) }
		go func() { _ = s.ActivateAndServe() }()
		<-up
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return pc.LocalAddr().String()
}

func (n *nameServer) ServeDNS(w mdns.ResponseWriter, q *mdns.Msg) {
	n.asked.Add(1)
	out := new(mdns.Msg).SetRcode(q, n.rcode)
	out.Authoritative = !q.RecursionDesired
	for _, r := range n.records {
		rr, err := mdns.NewRR(r)
		if err != nil {
			panic(err)
		}
		if strings.EqualFold(rr.Header().Name, q.Question[0].Name) && (rr.Header().Rrtype == q.Question[0].Qtype || rr.Header().Rrtype == mdns.TypeCNAME) {
			out.Answer = append(out.Answer, rr)
		}
	}
	if w.LocalAddr().Network() == "udp" {
		out.Truncate(512)
	}
	_ = w.WriteMsg(out)
}

func resolver(t *testing.T, cfg dns.Config) *dns.Resolver {
	t.Helper()
	cfg.Timeout = 300 * time.Millisecond
	r, err := dns.New(cfg)
	require.NoError(t, err)
	return r
}

// TestTextsAreAskedOfTheZonesOwnServers: a resolver's cache may be stale; the zone's server is current.
func TestTextsAreAskedOfTheZonesOwnServers(t *testing.T) {
	t.Parallel()
	own := &nameServer{records: []string{`_prego-challenge.www.example.com. 60 IN TXT "new"`}}
	at := own.serve(t, "127.0.0.1:0")
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	caching := &nameServer{records: []string{
		`example.com. 60 IN NS ns1.example.com.`, `ns1.example.com. 60 IN A 127.0.0.1`, `_prego-challenge.www.example.com. 60 IN TXT "old"`,
	}}
	cfg := dns.Config{Resolvers: []string{caching.serve(t, "127.0.0.1:0")}, Authoritative: true, Local: true, Port: port}
	texts, err := resolver(t, cfg).TXT(t.Context(), "_prego-challenge.www.example.com")
	require.NoError(t, err)
	require.Equal(t, []string{"new"}, texts)
	require.NotZero(t, own.asked.Load())
	cfg.Authoritative = false
	texts, err = resolver(t, cfg).TXT(t.Context(), "_prego-challenge.www.example.com")
	require.NoError(t, err)
	require.Equal(t, []string{"old"}, texts)
	// A zone can't have this installation's own networks asked.
	cfg.Authoritative, cfg.Local = true, false
	before := own.asked.Load()
	texts, err = resolver(t, cfg).TXT(t.Context(), "_prego-challenge.www.example.com")
	require.NoError(t, err)
	require.Equal(t, []string{"old"}, texts)
	require.Equal(t, before, own.asked.Load())
}

func TestLongAnswersComeOverTCP(t *testing.T) {
	t.Parallel()
	n := &nameServer{}
	for range 10 {
		n.records = append(n.records, `big.example.com. 60 IN TXT "`+strings.Repeat("x", 200)+`"`)
	}
	r := resolver(t, dns.Config{Resolvers: []string{n.serve(t, "127.0.0.1:0")}})
	texts, err := r.TXT(t.Context(), "big.example.com")
	require.NoError(t, err)
	require.Len(t, texts, 10)
}

// TestNothingIsNotAFailure: that there is no such name is known; that a server fails or is
// silent is not.
func TestNothingIsNotAFailure(t *testing.T) {
	t.Parallel()
	for rcode, fails := range map[int]bool{mdns.RcodeSuccess: false, mdns.RcodeNameError: false, mdns.RcodeServerFailure: true, mdns.RcodeRefused: true} {
		n := &nameServer{rcode: rcode}
		texts, err := resolver(t, dns.Config{Resolvers: []string{n.serve(t, "127.0.0.1:0")}}).TXT(t.Context(), "www.example.com")
		require.Empty(t, texts)
		require.Equal(t, fails, err != nil, mdns.RcodeToString[rcode])
	}
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	_, err = resolver(t, dns.Config{Resolvers: []string{silent.LocalAddr().String()}}).TXT(t.Context(), "www.example.com")
	require.Error(t, err)
	// The next resolver is asked.
	n := &nameServer{records: []string{`www.example.com. 60 IN A 192.0.2.1`}}
	out, err := resolver(t, dns.Config{Resolvers: []string{silent.LocalAddr().String(), n.serve(t, "127.0.0.1:0")}}).Addresses(t.Context(), "www.example.com")
	require.NoError(t, err)
	require.Equal(t, []string{"192.0.2.1"}, out)
	_, err = dns.New(dns.Config{Resolvers: []string{"nowhere"}})
	require.Error(t, err)
}

func TestAliasesOfTextsAreFollowed(t *testing.T) {
	t.Parallel()
	n := &nameServer{records: []string{
		`a.example.com. 60 IN CNAME b.example.com.`, `b.example.com. 60 IN TXT "here"`, `l1.example.com. 60 IN CNAME l2.example.com.`, `l2.example.com. 60 IN CNAME l1.example.com.`,
	}}
	r := resolver(t, dns.Config{Resolvers: []string{n.serve(t, "127.0.0.1:0")}})
	texts, err := r.TXT(t.Context(), "a.example.com")
	require.NoError(t, err)
	require.Equal(t, []string{"here"}, texts)
	_, err = r.TXT(t.Context(), "l1.example.com")
	require.ErrorContains(t, err, "too many aliases")
}

// TestHowServersAreAskedCanBeGiven: for callers without connections.
func TestHowServersAreAskedCanBeGiven(t *testing.T) {
	t.Parallel()
	var asked []string
	r, err := dns.New(dns.Config{Resolvers: []string{"192.0.2.1:53"}, Exchange: func(_ context.Context, server string, q *mdns.Msg) (*mdns.Msg, error) {
		asked = append(asked, server)
		m := new(mdns.Msg).SetReply(q)
		m.Answer = []mdns.RR{&mdns.TXT{Hdr: mdns.RR_Header{Name: q.Question[0].Name, Rrtype: mdns.TypeTXT, Class: mdns.ClassINET}, Txt: []string{"a"}}}
		return m, nil
	}})
	require.NoError(t, err)
	texts, err := r.TXT(t.Context(), "www.example.com")
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, texts)
	require.Equal(t, []string{"192.0.2.1:53"}, asked)
}
