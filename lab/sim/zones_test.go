package sim_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/lab/sim/judge"
)

// named is a cloud with the calls that tests of zones make.
type named struct {
	*testing.T
	sim *sim.Sim
	*hcloud.Client
}

func newNamed(t *testing.T, rt http.RoundTripper) *named {
	t.Helper()
	s := newSim(t, nil)
	return &named{T: t, sim: s, Client: client(s, rt)}
}

func (n *named) zone(name string) *hcloud.Zone {
	n.Helper()
	made, _, err := n.Zone.Create(n.Context(), hcloud.ZoneCreateOpts{Name: name, Mode: hcloud.ZoneModePrimary})
	require.NoError(n, err)
	n.done(made.Action)
	return made.Zone
}

func (n *named) done(actions ...*hcloud.Action) {
	n.Helper()
	require.NoError(n, n.Action.WaitFor(n.Context(), actions...))
}

func records(values ...string) []hcloud.ZoneRRSetRecord {
	out := make([]hcloud.ZoneRRSetRecord, 0, len(values))
	for _, v := range values {
		out = append(out, hcloud.ZoneRRSetRecord{Value: v})
	}
	return out
}

func (n *named) add(z *hcloud.Zone, name string, typ hcloud.ZoneRRSetType, values ...string) *hcloud.ZoneRRSet {
	n.Helper()
	made, _, err := n.Zone.CreateRRSet(n.Context(), z, hcloud.ZoneRRSetCreateOpts{Name: name, Type: typ, TTL: new(60), Records: records(values...)})
	require.NoError(n, err)
	n.done(made.Action)
	made.RRSet.Zone = z
	return made.RRSet
}

// ask asks the simulator's name server like a resolver; it returns the rcode and the records' values.
func (n *named) ask(network, name string, typ uint16) (rcode string, said []string) {
	n.Helper()
	c := dns.Client{Net: network, Timeout: 5 * time.Second}
	r, _, err := c.ExchangeContext(n.Context(), new(dns.Msg).SetQuestion(dns.Fqdn(name), typ), n.sim.DNS())
	require.NoError(n, err)
	for _, rr := range r.Answer {
		_, text, _ := strings.Cut(rr.String(), "IN\t")
		said = append(said, strings.ReplaceAll(text, "\t", " "))
	}
	return dns.RcodeToString[r.Rcode], said
}

func TestZonesConformToTheProvidersSpecification(t *testing.T) {
	t.Parallel()
	judges := map[string]*openapi3.T{"our contract": judge.Contract(t)}
	if whole := judge.Specification(t); whole != nil {
		judges["the whole specification"] = whole
	}
	for name, doc := range judges {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rt := judge.New(t, doc)
			ours := rt.Beyond
			rt.Beyond = func(r *http.Request) bool {
				// What only its own tools do is in no contract of ours.
				return ours(r) || (doc.Paths.Find("/zones") == nil && !strings.Contains(r.URL.Path, "/rrsets"))
			}
			n := newNamed(t, rt)
			z := n.zone("example.com")
			set := n.add(z, "www", hcloud.ZoneRRSetTypeA, "192.0.2.1")
			n.add(z, "*.sites", hcloud.ZoneRRSetTypeCNAME, "www.example.com.")
			n.add(z, "@", hcloud.ZoneRRSetTypeTXT, `"v=spf1 -all"`)
			for _, act := range []func() (*hcloud.Action, error){
				func() (*hcloud.Action, error) {
					a, _, err := n.Zone.SetRRSetRecords(t.Context(), set, hcloud.ZoneRRSetSetRecordsOpts{Records: records("192.0.2.1", "192.0.2.2")})
					return a, err
				},
				func() (*hcloud.Action, error) {
					a, _, err := n.Zone.ChangeRRSetTTL(t.Context(), set, hcloud.ZoneRRSetChangeTTLOpts{TTL: new(120)})
					return a, err
				},
			} {
				a, err := act()
				require.NoError(t, err)
				n.done(a)
			}
			got, _, err := n.Zone.GetRRSetByNameAndType(t.Context(), z, "www", hcloud.ZoneRRSetTypeA)
			require.NoError(t, err)
			require.Equal(t, 120, *got.TTL)
			require.Len(t, got.Records, 2)
			all, err := n.Zone.AllRRSets(t.Context(), z)
			require.NoError(t, err)
			require.Len(t, all, 5, "three of ours, SOA and NS")
			read, _, err := n.Zone.GetByName(t.Context(), "example.com")
			require.NoError(t, err)
			require.Equal(t, hcloud.ZoneStatusOk, read.Status)
			require.Equal(t, 8, read.RecordCount)
			deleted, _, err := n.Zone.DeleteRRSet(t.Context(), set)
			require.NoError(t, err)
			n.done(deleted.Action)
			_, _, err = n.Zone.DeleteRRSet(t.Context(), set)
			require.True(t, hcloud.IsError(err, hcloud.ErrorCodeNotFound), "%v", err)
			_, _, err = n.Zone.CreateRRSet(t.Context(), z, hcloud.ZoneRRSetCreateOpts{Name: "*.sites", Type: hcloud.ZoneRRSetTypeCNAME, Records: records("a.example.com.")})
			require.True(t, hcloud.IsError(err, hcloud.ErrorCodeUniquenessError), "%v", err)
			gone, _, err := n.Zone.Delete(t.Context(), z)
			require.NoError(t, err)
			n.done(gone.Action)
			require.NotZero(t, rt.Checked())
		})
	}
}

func TestZonesFollowTheSpecification(t *testing.T) {
	t.Parallel()
	n := newNamed(t, need.HTTP.Transport)
	for _, name := range []string{"sub.example.com", "co.uk", "Example.com", "example.com."} {
		_, _, err := n.Zone.Create(t.Context(), hcloud.ZoneCreateOpts{Name: name, Mode: hcloud.ZoneModePrimary})
		require.True(t, hcloud.IsError(err, hcloud.ErrorCodeInvalidInput), "%s: %v", name, err)
	}
	z := n.zone("example.com")
	_, _, err := n.Zone.Create(t.Context(), hcloud.ZoneCreateOpts{Name: "example.com", Mode: hcloud.ZoneModePrimary})
	require.True(t, hcloud.IsError(err, hcloud.ErrorCodeUniquenessError), "%v", err)
	n.add(z, "alias", hcloud.ZoneRRSetTypeCNAME, "www.example.com.")
	many := make([]string, 51)
	for i := range many {
		many[i] = fmt.Sprintf("192.0.2.%d", i)
	}
	for why, o := range map[string]hcloud.ZoneRRSetCreateOpts{
		"ends with the zone":       {Name: "www.example.com", Type: "A", Records: records("192.0.2.1")},
		"capitals":                 {Name: "WWW", Type: "A", Records: records("192.0.2.1")},
		"no type":                  {Name: "www", Type: "SPF", Records: records("192.0.2.1")},
		"ttl":                      {Name: "www", Type: "A", TTL: new(59), Records: records("192.0.2.1")},
		"none":                     {Name: "www", Type: "A", Records: []hcloud.ZoneRRSetRecord{}},
		"too many":                 {Name: "www", Type: "A", Records: records(many...)},
		"doubles":                  {Name: "www", Type: "A", Records: records("192.0.2.1", "192.0.2.1")},
		"no address":               {Name: "www", Type: "A", Records: records("2001:db8::1")},
		"unquoted text":            {Name: "www", Type: "TXT", Records: records("hello")},
		"beside an alias":          {Name: "alias", Type: "A", Records: records("192.0.2.1")},
		"an alias of two":          {Name: "www", Type: "CNAME", Records: records("a.example.com.", "b.example.com.")},
		"an alias at the apex":     {Name: "@", Type: "CNAME", Records: records("a.example.com.")},
		"a line of a zone file":    {Name: "www", Type: "A", Records: records("192.0.2.1\nevil 60 IN A 192.0.2.2")},
		"a wildcard in the middle": {Name: "a.*.b", Type: "A", Records: records("192.0.2.1")},
	} {
		_, _, err := n.Zone.CreateRRSet(t.Context(), z, o)
		require.True(t, hcloud.IsError(err, hcloud.ErrorCodeInvalidInput), "%s: %v", why, err)
	}
}

// TestZonesAreServed: published records are answered over UDP and TCP, by the rules of wildcards and aliases.
func TestZonesAreServed(t *testing.T) {
	t.Parallel()
	n := newNamed(t, need.HTTP.Transport)
	z := n.zone("example.com")
	n.add(z, "e1.edges", "A", "192.0.2.1", "192.0.2.2")
	n.add(z, "e2.edges", "A", "192.0.2.3")
	n.add(z, "*.sites", "CNAME", "e1.edges.example.com.")
	n.add(z, "acme.sites", "CNAME", "e2.edges.example.com.")
	n.add(z, "_acme-challenge.deep.sites", "TXT", `"one"`)
	other := n.zone("customer.org")
	n.add(other, "www", "CNAME", "acme.sites.example.com.")
	for _, network := range []string{"udp", "tcp"} {
		_, said := n.ask(network, "WWW.customer.org", dns.TypeA)
		require.Equal(t, []string{"CNAME acme.sites.example.com.", "CNAME e2.edges.example.com.", "A 192.0.2.3"}, said, network)
	}
	_, said := n.ask("udp", "any.sites.example.com", dns.TypeA)
	require.Equal(t, []string{"CNAME e1.edges.example.com.", "A 192.0.2.1", "A 192.0.2.2"}, said)
	rcode, said := n.ask("udp", "deep.sites.example.com", dns.TypeA)
	require.Equal(t, "NOERROR", rcode, "the name exists, since one below it does: no wildcard")
	require.Empty(t, said)
	rcode, _ = n.ask("udp", "nothing.example.com", dns.TypeA)
	require.Equal(t, "NXDOMAIN", rcode)
	rcode, _ = n.ask("udp", "elsewhere.net", dns.TypeA)
	require.Equal(t, "NXDOMAIN", rcode)
	_, said = n.ask("udp", "example.com", dns.TypeNS)
	require.Len(t, said, 3)
}

// TestPublicationCanFail: then the API has what the name servers have not.
func TestPublicationCanFail(t *testing.T) {
	t.Parallel()
	n := newNamed(t, need.HTTP.Transport)
	z := n.zone("example.com")
	_, err := n.sim.Inject(sim.Fault{Kind: "publish", Record: "www.*", Times: 1})
	require.NoError(t, err)
	made, _, err := n.Zone.CreateRRSet(t.Context(), z, hcloud.ZoneRRSetCreateOpts{Name: "www", Type: "A", Records: records("192.0.2.1")})
	require.NoError(t, err)
	require.ErrorContains(t, n.Action.WaitFor(t.Context(), made.Action), "action_failed")
	got, _, err := n.Zone.GetRRSetByNameAndType(t.Context(), z, "www", "A")
	require.NoError(t, err)
	require.NotNil(t, got)
	rcode, _ := n.ask("udp", "www.example.com", dns.TypeA)
	require.Equal(t, "NXDOMAIN", rcode)
	_, err = n.sim.Inject(sim.Fault{Kind: "dns", Action: "fail", Path: "www.example.com", Times: 1})
	require.NoError(t, err)
	rcode, _ = n.ask("udp", "www.example.com", dns.TypeA)
	require.Equal(t, "SERVFAIL", rcode)
	for _, f := range n.sim.Faults() {
		require.NotZero(t, f.Hits, f.Kind)
	}
}

func TestZonesOutliveTheProcess(t *testing.T) {
	t.Parallel()
	cfg := sim.Config{Listen: "127.0.0.1:0", StateDir: t.TempDir(), Token: "secret"}
	start := func() *named {
		s, err := sim.New(cfg)
		require.NoError(t, err)
		require.NoError(t, s.Start())
		return &named{T: t, sim: s, Client: client(s, need.HTTP.Transport)}
	}
	n := start()
	n.add(n.zone("example.com"), "www", "A", "192.0.2.1")
	n.sim.Close()
	n = start()
	defer n.sim.Close()
	_, said := n.ask("udp", "www.example.com", dns.TypeA)
	require.Equal(t, []string{"A 192.0.2.1"}, said)
	all, err := n.Zone.AllRRSets(context.Background(), &hcloud.Zone{Name: "example.com"})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(all, func(s *hcloud.ZoneRRSet) bool { return s.ID == "www/A" }))
}

// TestRecordsAreEditedOneByOne: records are added, commented and removed singly, and a zone
// is written to a file and read from it. Each answer is judged.
func TestRecordsAreEditedOneByOne(t *testing.T) {
	t.Parallel()
	doc := judge.Specification(t)
	if doc == nil {
		return // it reports this, or fails
	}
	n := newNamed(t, judge.New(t, doc))
	z := n.zone("example.com")
	www := &hcloud.ZoneRRSet{Zone: z, Name: "www", Type: hcloud.ZoneRRSetTypeA}
	values := func() []hcloud.ZoneRRSetRecord {
		set, _, err := n.Zone.GetRRSetByNameAndType(t.Context(), z, "www", hcloud.ZoneRRSetTypeA)
		require.NoError(t, err)
		if set == nil {
			return nil
		}
		return set.Records
	}
	one, two := hcloud.ZoneRRSetRecord{Value: "192.0.2.1"}, hcloud.ZoneRRSetRecord{Value: "192.0.2.2", Comment: "spare"}
	act := func(a *hcloud.Action, _ *hcloud.Response, err error) {
		t.Helper()
		require.NoError(t, err)
		n.done(a)
	}
	act(n.Zone.AddRRSetRecords(t.Context(), www, hcloud.ZoneRRSetAddRecordsOpts{Records: []hcloud.ZoneRRSetRecord{one}}))
	act(n.Zone.AddRRSetRecords(t.Context(), www, hcloud.ZoneRRSetAddRecordsOpts{Records: []hcloud.ZoneRRSetRecord{two}}))
	require.Equal(t, []hcloud.ZoneRRSetRecord{one, two}, values())
	one.Comment = "first"
	act(n.Zone.UpdateRRSetRecords(t.Context(), www, hcloud.ZoneRRSetUpdateRecordsOpts{Records: []hcloud.ZoneRRSetRecord{one}}))
	require.Equal(t, []hcloud.ZoneRRSetRecord{one, two}, values())
	written, _, err := n.Zone.ExportZonefile(t.Context(), z)
	require.NoError(t, err)
	act(n.Zone.RemoveRRSetRecords(t.Context(), www, hcloud.ZoneRRSetRemoveRecordsOpts{Records: []hcloud.ZoneRRSetRecord{one, two}}))
	require.Nil(t, values(), "a set goes with its last record")
	act(n.Zone.ImportZonefile(t.Context(), z, hcloud.ZoneImportZonefileOpts(written)))
	require.Len(t, values(), 2, written.Zonefile)
	_, _, err = n.Zone.ImportZonefile(t.Context(), z, hcloud.ZoneImportZonefileOpts{Zonefile: "$INCLUDE /etc/passwd\n"})
	require.True(t, hcloud.IsError(err, hcloud.ErrorCodeInvalidInput), "%v", err)
}
