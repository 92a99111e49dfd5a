package hetzner_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/hetzner"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// zoned is an adapter of a simulated project with a zone, as strict as the provider's
// specification (lab/sim's tests hold it against that).
type zoned struct {
	*testing.T
	*hetzner.Provider
	sim    *sim.Sim
	client *hcloud.Client
}

const testZone = "example.com"

func newZoned(t *testing.T) *zoned {
	t.Helper()
	s, err := sim.New(sim.Config{Listen: "127.0.0.1:0", StateDir: t.TempDir(), Token: apiToken, RatePerHour: 1_000_000})
	require.NoError(t, err)
	require.NoError(t, s.Start())
	t.Cleanup(func() {
		for _, f := range s.Faults() {
			require.NotZero(t, f.Hits, "a fault of kind %s never happened", f.Kind)
		}
		s.Close()
	})
	p, err := hetzner.New(hetzner.Config{
		Endpoint: s.URL(), Token: apiToken, Environment: "test", Timeout: 5 * time.Second, Poll: 2 * time.Millisecond,
		Simulated: true, Budget: &ledger{}, MayDelete: mayDelete,
	})
	require.NoError(t, err)
	c := hcloud.NewClient(hcloud.WithEndpoint(s.URL()), hcloud.WithToken(apiToken))
	made, _, err := c.Zone.Create(t.Context(), hcloud.ZoneCreateOpts{Name: testZone, Mode: hcloud.ZoneModePrimary})
	require.NoError(t, err)
	require.NoError(t, c.Action.WaitFor(t.Context(), made.Action))
	return &zoned{T: t, Provider: p, sim: s, client: c}
}

func (z *zoned) inject(f sim.Fault) {
	z.Helper()
	_, err := z.sim.Inject(f)
	require.NoError(z, err)
}

// resolve asks the zone's name server.
func (z *zoned) resolve(name string, typ uint16) []string {
	z.Helper()
	r, _, err := new(dns.Client).ExchangeContext(z.Context(), new(dns.Msg).SetQuestion(dns.Fqdn(name), typ), z.sim.DNS())
	require.NoError(z, err)
	var out []string
	for _, rr := range r.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			out = append(out, rr.A.String())
		case *dns.TXT:
			out = append(out, strings.Join(rr.Txt, ""))
		case *dns.CNAME:
			out = append(out, rr.Target)
		}
	}
	return out
}

func addresses(values ...string) server.RecordSet {
	return server.RecordSet{Zone: testZone, Name: "e1.edges", Type: server.RecordA, TTL: 60, Values: values}
}

func TestRecordSetsAreMadeChangedAndDeleted(t *testing.T) {
	t.Parallel()
	z := newZoned(t)
	require.NoError(t, z.EnsureRecordSet(t.Context(), addresses("192.0.2.2", "192.0.2.1"), server.RecordNew))
	require.Equal(t, []string{"192.0.2.1", "192.0.2.2"}, z.resolve("e1.edges.example.com", dns.TypeA))
	require.NoError(t, z.EnsureRecordSet(t.Context(), addresses("192.0.2.3"), server.RecordKnown))
	require.Equal(t, []string{"192.0.2.3"}, z.resolve("e1.edges.example.com", dns.TypeA))
	text := server.RecordSet{Zone: testZone, Name: "_acme-challenge.sites", Type: server.RecordTXT, TTL: 60, Values: []string{"b", "a", "b"}}
	alias := server.RecordSet{Zone: testZone, Name: "*.sites", Type: server.RecordCNAME, TTL: 300, Values: []string{"e1.edges.example.com"}}
	require.NoError(t, z.EnsureRecordSet(t.Context(), text, server.RecordNew))
	require.NoError(t, z.EnsureRecordSet(t.Context(), alias, server.RecordKnown))
	require.Equal(t, []string{"a", "b"}, z.resolve("_acme-challenge.sites.example.com", dns.TypeTXT))
	require.Equal(t, []string{"e1.edges.example.com.", "192.0.2.3"}, z.resolve("acme.sites.example.com", dns.TypeA))
	alias.TTL = 60
	require.NoError(t, z.EnsureRecordSet(t.Context(), alias, server.RecordKnown))

	all, _, err := z.ListRecordSets(t.Context(), testZone)
	require.NoError(t, err)
	text.Values = []string{"a", "b"}
	require.Equal(t, []server.RecordSet{alias, text, addresses("192.0.2.3")}, all, "ours, without SOA and NS")
	require.NoError(t, z.DeleteRecordSet(t.Context(), testZone, "e1.edges", server.RecordA))
	require.NoError(t, z.DeleteRecordSet(t.Context(), testZone, "e1.edges", server.RecordA), "it is gone")
	require.Empty(t, z.resolve("e1.edges.example.com", dns.TypeA))
}

func TestRecordsOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	z := newZoned(t)
	for _, labels := range []map[string]string{nil, {"managed-by": "prego", "prego-environment": "another"}} {
		made, _, err := z.client.Zone.CreateRRSet(t.Context(), &hcloud.Zone{Name: testZone}, hcloud.ZoneRRSetCreateOpts{
			Name: "e1.edges", Type: hcloud.ZoneRRSetTypeA, Records: []hcloud.ZoneRRSetRecord{{Value: "198.51.100.1"}}, Labels: labels,
		})
		require.NoError(t, err)
		require.NoError(t, z.client.Action.WaitFor(t.Context(), made.Action))
		for _, known := range []server.RecordWrite{server.RecordNew, server.RecordKnown, server.RecordUnsure} {
			requireRecord(t, server.InfraForeign, z.EnsureRecordSet(t.Context(), addresses("192.0.2.1"), known))
		}
		requireRecord(t, server.InfraForeign, z.DeleteRecordSet(t.Context(), testZone, "e1.edges", server.RecordA))
		all, _, err := z.ListRecordSets(t.Context(), testZone)
		require.NoError(t, err)
		require.Empty(t, all)
		require.Equal(t, []string{"198.51.100.1"}, z.resolve("e1.edges.example.com", dns.TypeA))
		made.RRSet.Zone = &hcloud.Zone{Name: testZone}
		_, _, err = z.client.Zone.DeleteRRSet(t.Context(), made.RRSet)
		require.NoError(t, err)
	}
}

func requireRecord(t *testing.T, class server.InfraClass, err error) {
	t.Helper()
	var ie *server.InfraError
	require.ErrorAs(t, err, &ie)
	require.Equal(t, class, ie.Class, "%v", err)
}

// TestRecordsOfUnknownOutcome: an answer that was lost makes neither two record sets nor none.
func TestRecordsOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	const sets = "/v1/zones/" + testZone + "/rrsets"
	for name, f := range map[string]sim.Fault{
		"the answer is lost":        {Method: http.MethodPost, Path: sets, Action: "commit_then_reset"},
		"a gateway times out after": {Method: http.MethodPost, Path: sets, Action: "commit_then_respond", Status: 504, Code: "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			z := newZoned(t)
			f.Kind, f.Times = "http", 1
			z.inject(f)
			require.NoError(t, z.EnsureRecordSet(t.Context(), addresses("192.0.2.1"), server.RecordNew))
			require.Equal(t, []string{"192.0.2.1"}, z.resolve("e1.edges.example.com", dns.TypeA))
		})
	}
	t.Run("it never arrived", func(t *testing.T) {
		t.Parallel()
		z := newZoned(t)
		z.inject(sim.Fault{Kind: "http", Method: http.MethodPost, Path: sets, Action: "reset", Times: 1})
		requireRecord(t, server.InfraAmbiguous, z.EnsureRecordSet(t.Context(), addresses("192.0.2.1"), server.RecordNew))
		require.NoError(t, z.EnsureRecordSet(t.Context(), addresses("192.0.2.1"), server.RecordKnown))
	})
	t.Run("the publication fails", func(t *testing.T) {
		t.Parallel()
		z := newZoned(t)
		z.inject(sim.Fault{Kind: "publish", Record: "e1.*", Times: 1})
		requireRecord(t, server.InfraRetry, z.EnsureRecordSet(t.Context(), addresses("192.0.2.1"), server.RecordNew))
		require.NoError(t, z.EnsureRecordSet(t.Context(), addresses("192.0.2.1"), server.RecordKnown))
		require.Empty(t, z.resolve("e1.edges.example.com", dns.TypeA), "the API has it, the name servers do not")
		require.NoError(t, z.EnsureRecordSet(t.Context(), addresses("192.0.2.1"), server.RecordUnsure))
		require.Equal(t, []string{"192.0.2.1"}, z.resolve("e1.edges.example.com", dns.TypeA))
	})
	t.Run("the rate limit is reached", func(t *testing.T) {
		t.Parallel()
		z := newZoned(t)
		z.inject(sim.Fault{Kind: "http", Method: http.MethodPost, Path: sets, Action: "respond", Status: 429, Code: "rate_limit_exceeded", Times: 1})
		requireRecord(t, server.InfraThrottled, z.EnsureRecordSet(t.Context(), addresses("192.0.2.1"), server.RecordNew))
	})
}

func TestZoneThatIsNotThere(t *testing.T) {
	t.Parallel()
	z := newZoned(t)
	r := addresses("192.0.2.1")
	r.Zone = "elsewhere.com"
	for _, err := range []error{z.EnsureRecordSet(t.Context(), r, server.RecordNew), z.EnsureRecordSet(t.Context(), r, server.RecordKnown), func() error {
		_, _, err := z.ListRecordSets(t.Context(), r.Zone)
		return err
	}()} {
		var ie *server.InfraError
		require.True(t, errors.As(err, &ie))
		require.Equal(t, "zone_not_found", ie.Code)
	}
	requireRecord(t, server.InfraPermanent, z.EnsureRecordSet(t.Context(), addresses("not an address"), server.RecordNew))
}
