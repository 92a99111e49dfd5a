package agentgw_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/tenant"
)

// edgeHost is an enrolled edge.
type edgeHost struct {
	*bundle
	id     string
	client *http.Client
	token  string
}

func (b *bundle) edge(id string) *edgeHost {
	b.t.Helper()
	b.server(prego.ServerID(id))
	b.exec(`UPDATE servers SET role = 'edge' WHERE server_id = $1`, id)
	key := newKey(b.t)
	status, p, identity := b.handshake(id, key, nil)
	require.Equal(b.t, 200, status, p)
	b.exec(`UPDATE servers SET status = 'active', agent_status = 'connected' WHERE server_id = $1`, id)
	return &edgeHost{bundle: b, id: id, client: b.client(certificate(b.t, identity.Certificates.AgentClient, key)), token: identity.Token}
}

// poll asks for the document that follows a version.
func (e *edgeHost) poll(version int64) (int, wire.EdgeDocument) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, e.url+wire.PathEdge+fmt.Sprintf("?version=%d", version), http.NoBody)
	if err != nil {
		return 0, wire.EdgeDocument{Hosts: []wire.EdgeHost{{Name: err.Error()}}}
	}
	req.Header.Set("Authorization", "Bearer "+e.token)
	resp, err := e.client.Do(req)
	if err != nil {
		return 0, wire.EdgeDocument{Hosts: []wire.EdgeHost{{Name: err.Error()}}}
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	var d wire.EdgeDocument
	_ = json.Unmarshal(body, &d)
	return resp.StatusCode, d
}

func (e *edgeHost) send(path string, in any) int {
	body, err := json.Marshal(in)
	require.NoError(e.t, err)
	status, _, _ := e.post(e.client, path, e.token, "application/json", body)
	return status
}

// site makes an active tenant with a site on an app server of the same name.
func (b *bundle) site(tenant, address string) {
	for _, q := range []string{
		`INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'paid', 'test') ON CONFLICT DO NOTHING`,
		`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, host)
		 VALUES ('node-` + tenant + `', '\x00', 'node', 'eu', 'hetzner', '{}', 'provisioning', 'w-` + tenant + `', 'test', '` + address + `')`,
		`UPDATE servers SET status = 'active' WHERE server_id = 'node-` + tenant + `'`,
		`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by, site)
		 VALUES ('` + tenant + `', '` + tenant + `', 'acme', 'eu', 'starter', 1, 1, 'shared', '\x00', 'active', 'test', '` + tenant + `.example.com')`,
		`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
		 SELECT '` + tenant + `', s.server_id, d.shard_id, r.pool_id, '', '', 'hetzner', 'test' FROM servers s JOIN db_shards d USING (server_id) JOIN redis_pools r USING (server_id)
		 WHERE s.server_id = 'node-` + tenant + `'`,
	} {
		b.exec(q)
	}
}

func TestEdgesFollowTheirDocument(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.site("one", "10.0.0.1")
	e := b.edge("edge-1")
	status, first := e.poll(0)
	require.Equal(t, 200, status)
	require.Len(t, first.Hosts, 1)
	require.Equal(t, wire.EdgeHost{
		Name: "one.example.com", Tenant: "one", Site: "one.example.com", TLS: true, State: wire.EdgeServing, Upstreams: []wire.EdgeUpstream{{Address: "10.0.0.1:8080"}},
	}, first.Hosts[0])
	require.Equal(t, 200, e.send(wire.PathEdgeApplied, wire.EdgeApplied{Version: first.Version}))

	// Whoever has the document waits for the next.
	type answer struct {
		status int
		wire.EdgeDocument
	}
	next := make(chan answer, 1)
	go func() { status, d := e.poll(first.Version); next <- answer{status, d} }()
	select {
	case a := <-next:
		t.Fatalf("answered without a change: %d %v", a.status, a.EdgeDocument)
	case <-time.After(300 * time.Millisecond):
	}
	b.exec(`UPDATE tenants SET state = 'suspended' WHERE tenant_id = 'one'`)
	var second answer
	select {
	case second = <-next:
	case <-time.After(10 * time.Second):
		t.Fatal("the change did not arrive")
	}
	require.Equal(t, 200, second.status)
	require.Equal(t, wire.EdgeMaintenance, second.Hosts[0].State)
	require.Greater(t, second.Version, first.Version)

	// Waiting for edges ends when they have reported that they serve the change.
	edges := &activities.Edges{Store: b.store, Within: 10 * time.Second, Log: zap.NewNop()}
	waited := make(chan activities.AwaitEdgesResult, 1)
	go func() {
		r, err := edges.AwaitEdges(context.Background(), activities.AwaitEdgesInput{ServerIDs: []prego.ServerID{"node-one"}})
		if err != nil {
			r.Behind = []string{err.Error()}
		}
		waited <- r
	}()
	select {
	case r := <-waited:
		t.Fatalf("the wait ended early: %v", r)
	case <-time.After(500 * time.Millisecond):
	}
	require.Equal(t, 200, e.send(wire.PathEdgeApplied, wire.EdgeApplied{Version: second.Version}))
	select {
	case r := <-waited:
		require.Equal(t, activities.AwaitEdgesResult{Edges: true, Behind: nil}, activities.AwaitEdgesResult{Edges: r.Edges, Behind: append([]string(nil), r.Behind...)})
	case <-time.After(10 * time.Second):
		t.Fatal("the acknowledgement was not seen")
	}

	// There is no wait without an edge, nor for an edge that refuses or is away.
	b.exec(`UPDATE edges SET version = 0, refused_version = $1`, second.Version)
	r, err := edges.AwaitEdges(context.Background(), activities.AwaitEdgesInput{ServerIDs: []prego.ServerID{"node-one"}})
	require.NoError(t, err)
	require.Empty(t, r.Behind)
	b.exec(`UPDATE edges SET asked_at = now() - interval '1 minute'`)
	r, err = edges.AwaitEdges(context.Background(), activities.AwaitEdgesInput{ServerIDs: []prego.ServerID{"node-one"}})
	require.NoError(t, err)
	require.False(t, r.Edges)
}

// TestALaterDocumentOfAnEdgeStays: the control plane's database was restored to a moment before that document. The next
// change of a row is published above it.
func TestALaterDocumentOfAnEdgeStays(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.site("one", "10.0.0.1")
	e := b.edge("edge-1")
	status, first := e.poll(0)
	require.Equal(t, 200, status)
	later := first.Version + 40
	next := make(chan wire.EdgeDocument, 1)
	go func() { _, d := e.poll(later); next <- d }()
	select {
	case d := <-next:
		t.Fatalf("version %d was given to an edge with %d", d.Version, later)
	case <-time.After(300 * time.Millisecond):
	}
	b.exec(`UPDATE tenants SET state = 'suspended' WHERE tenant_id = 'one'`)
	select {
	case d := <-next:
		require.Equal(t, later+1, d.Version)
		require.Equal(t, wire.EdgeMaintenance, d.Hosts[0].State)
	case <-time.After(10 * time.Second):
		t.Fatal("the change did not arrive")
	}
}

// TestAnEdgeKeepsTheNewestDocument: without a change it waits as long as a request may, and gets none.
func TestAnEdgeKeepsTheNewestDocument(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.site("one", "10.0.0.1")
	e := b.edge("edge-1")
	_, first := e.poll(0)
	ids := []byte(`{"ids":["none"]}`)
	status, _, body := e.post(e.client, wire.PathEdgeCertificates, e.token, "application/json", ids)
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"certificates":[]}`, string(body))
	status, _ = e.poll(first.Version)
	require.Equal(t, http.StatusNotModified, status)
}

// TestAKeyThatCannotBeOpenedIsReported: the edge learns why it does not get a key, and an operator from what the edge
// leaves out, by name. Other certificates are sent.
func TestAKeyThatCannotBeOpenedIsReported(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.site("one", "10.0.0.1")
	b.site("two", "10.0.0.2")
	for _, name := range []string{"one", "two"} {
		b.exec(`INSERT INTO certificates (certificate_id, names, challenge, created_by, status, sealed_key, key_id,
			digest, chain_pem, not_after) VALUES ('crt-' || $1, ARRAY[$1 || '.example.com'], 'http-01', 'test',
			'active', '', $1, 'd', 'chain', now() + interval '60 days')`, name)
	}
	b.openKey = func(c tenant.ServedCertificate) ([]byte, error) {
		if c.KeyID == "one" {
			return nil, errors.New("no key one in seal/" + strings.Repeat("x", 1000))
		}
		return []byte("key of " + c.KeyID), nil
	}
	e := b.edge("edge-1")
	_, d := e.poll(0)
	require.Len(t, d.Certificates, 2)
	ids := []byte(`{"ids":["crt-one","crt-two"]}`)
	status, _, body := e.post(e.client, wire.PathEdgeCertificates, e.token, "application/json", ids)
	require.Equal(t, http.StatusOK, status)
	var got wire.EdgeCertificates
	require.NoError(t, json.Unmarshal(body, &got))
	require.Len(t, got.Certificates, 2)
	one, two := got.Certificates[0], got.Certificates[1]
	require.Contains(t, one.Refused, "no gateway can open its key: no key one in seal/")
	require.LessOrEqual(t, len(one.Refused), wire.MaxEdgePartReason)
	require.Equal(t, d.Certificates[0], one.EdgeCertificateRef)
	require.Empty(t, one.Key+one.Chain)
	require.Equal(t, "key of two", two.Key)
	require.Empty(t, two.Refused)

	left := wire.EdgeLeftOut{Kind: wire.EdgeCertificatePart, Name: one.ID, Reason: one.Refused}
	applied := wire.EdgeApplied{Version: d.Version, LeftOut: []wire.EdgeLeftOut{left}}
	require.Equal(t, 200, e.send(wire.PathEdgeApplied, applied))
	all, _, err := b.store.Attention(context.Background(), attention.Limits{})
	require.NoError(t, err)
	list := slices.DeleteFunc(attention.List(all), func(i attention.Item) bool {
		return i.Kind != attention.EdgeRejectedName
	})
	require.Len(t, list, 1)
	require.Equal(t, "one.example.com", list[0].Subject.Name)
	require.Contains(t, list[0].Message, "no gateway can open its key: no key one in seal/")
}

// TestTheOtherEdgesWaitForTheFirst: it has a document, and it closes no sites that answer.
func TestTheOtherEdgesWaitForTheFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.site("one", "10.0.0.1")
	e1, e2 := b.edge("edge-1"), b.edge("edge-2")
	type answer struct {
		status int
		wire.EdgeDocument
	}
	polls := func(e *edgeHost, version int64) chan answer {
		next := make(chan answer, 1)
		go func() { status, d := e.poll(version); next <- answer{status, d} }()
		return next
	}
	gets := func(next chan answer) wire.EdgeDocument {
		t.Helper()
		select {
		case a := <-next:
			require.Equal(t, 200, a.status)
			return a.EdgeDocument
		case <-time.After(10 * time.Second):
			t.Fatal("it did not get the document")
			return wire.EdgeDocument{}
		}
	}
	waits := func(next chan answer) {
		t.Helper()
		select {
		case a := <-next:
			t.Fatalf("it got version %d", a.Version)
		case <-time.After(500 * time.Millisecond):
		}
	}
	applies := func(e *edgeHost, version int64, closed ...string) {
		t.Helper()
		require.Equal(t, 200, e.send(wire.PathEdgeApplied, wire.EdgeApplied{Version: version, Closed: closed}))
	}
	both := func(version int64) (d wire.EdgeDocument, other chan answer) {
		t.Helper()
		first, other := polls(e1, version), polls(e2, version)
		b.exec(`UPDATE tenants SET state = CASE state WHEN 'active' THEN 'suspended' ELSE 'active' END`)
		d = gets(first)
		waits(other)
		return d, other
	}
	one := gets(polls(e1, 0))
	applies(e1, one.Version)
	require.Equal(t, one, gets(polls(e2, 0)))
	applies(e2, one.Version)

	two, other := both(one.Version)
	applies(e1, two.Version)
	require.Equal(t, two, gets(other))
	applies(e2, two.Version)

	// Changes follow each other faster than edges take them.
	between, other := both(two.Version)
	b.exec(`UPDATE tenants SET state = CASE state WHEN 'active' THEN 'suspended' ELSE 'active' END`)
	require.Eventually(t, func() bool {
		var newest int64
		err := b.pool.QueryRow(t.Context(), `SELECT version FROM edge_documents`).Scan(&newest)
		return err == nil && newest > between.Version
	}, 10*time.Second, 10*time.Millisecond)
	applies(e1, between.Version)
	require.Equal(t, between, gets(other))
	applies(e2, between.Version)
	newest := gets(polls(e1, between.Version))
	applies(e1, newest.Version)
	require.Equal(t, newest, gets(polls(e2, between.Version)))
	applies(e2, newest.Version)

	three, other := both(newest.Version)
	applies(e1, three.Version, "unknown to the database")
	waits(other)
	next := polls(e1, three.Version)
	b.exec(`UPDATE tenants SET state = 'suspended'`)
	four := gets(next)
	waits(other)
	applies(e1, four.Version)
	require.Equal(t, four, gets(other))
}

// TestEdgeReportsWhatItLeavesOut: a name that an edge's servers refuse needs attention, with whose it is and why. The document
// counts as served: nothing else waits for it.
func TestEdgeReportsWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.site("one", "10.0.0.1")
	e := b.edge("edge-1")
	_, d := e.poll(0)
	found := func() (out []attention.Item) {
		t.Helper()
		all, _, err := b.store.Attention(context.Background(), attention.Limits{})
		require.NoError(t, err)
		for _, i := range attention.List(all) {
			if i.Kind == attention.EdgeRejectedName {
				out = append(out, i)
			}
		}
		return out
	}
	report := func(out ...wire.EdgeLeftOut) int {
		return e.send(wire.PathEdgeApplied, wire.EdgeApplied{Version: d.Version, LeftOut: out})
	}
	bad := wire.EdgeLeftOut{Kind: wire.EdgeHostPart, Name: "one.example.com", Tenant: "one", Reason: "idna: invalid\x00 label"}
	require.Equal(t, 200, report(bad))
	first := found()
	require.Len(t, first, 1)
	require.Equal(t, attention.Warning, first[0].Severity)
	require.Equal(t, "one", first[0].Subject.ID)
	require.Equal(t, "host one.example.com is not served for tenant one of org acme: idna: invalid label", first[0].Message)
	r, err := (&activities.Edges{Store: b.store, Within: 10 * time.Second, Log: zap.NewNop()}).AwaitEdges(context.Background(), activities.AwaitEdgesInput{ServerIDs: []prego.ServerID{"node-one"}})
	require.NoError(t, err)
	require.True(t, r.Edges)
	require.Empty(t, r.Behind)
	require.Equal(t, 200, report(bad))
	require.Equal(t, first, found())

	unknown, long := bad, bad
	unknown.Kind, long.Reason = "site", strings.Repeat("x", wire.MaxEdgePartReason+1)
	require.Equal(t, 422, report(unknown))
	require.Equal(t, 422, report(long))
	require.Equal(t, 422, report(make([]wire.EdgeLeftOut, wire.MaxEdgeLeftOut+1)...))
	require.Equal(t, 200, report())
	require.Empty(t, found())
}

func TestEdgesHaveAScopeOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.server("app-1")
	key := newKey(t)
	_, _, identity := b.handshake("app-1", key, nil)
	c := b.client(certificate(t, identity.Certificates.AgentClient, key))
	for _, path := range []string{wire.PathEdgeCertificates, wire.PathEdgeApplied, wire.PathEdgeUsage} {
		status, p, _ := b.post(c, path, identity.Token, "application/json", []byte(`{}`))
		require.Equal(t, 403, status, path)
		require.Equal(t, string(prego.CodeScopeMissing), p.Code)
	}
	app := edgeHost{bundle: b, id: "app-1", client: c, token: identity.Token}
	status, _ := app.poll(0)
	require.Equal(t, 403, status)
}

// TestNetworksAreApart: an edge sees only the sites of its network.
func TestNetworksAreApart(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.site("one", "10.0.0.1")
	b.site("two", "10.0.0.2")
	b.exec(`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ('n2', 'hetzner', 'eu-central', 2, '10.9.0.0/24')`)
	b.exec(`UPDATE servers SET network_id = 'n2', private_address = '10.9.0.7' WHERE server_id = 'node-two'`)
	e1, e2 := b.edge("edge-1"), b.edge("edge-2")
	b.exec(`UPDATE servers SET network_id = 'n2', private_address = '10.9.0.2' WHERE server_id = 'edge-2'`)
	_, d1 := e1.poll(0)
	_, d2 := e2.poll(0)
	require.Len(t, d1.Hosts, 1)
	require.Equal(t, "one.example.com", d1.Hosts[0].Name)
	require.Len(t, d2.Hosts, 1)
	require.Equal(t, "two.example.com", d2.Hosts[0].Name)
	require.Equal(t, "10.9.0.7:8080", d2.Hosts[0].Upstreams[0].Address)
}

func TestUsageIsCountedForOwnersOnly(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.site("one", "10.0.0.1")
	e := b.edge("edge-1")
	_, d := e.poll(0)
	require.Len(t, d.Hosts, 1)
	counts := wire.EdgeCounts{Tenant: "one", Statuses: [5]int64{0, 7, 0, 0, 1}, BytesIn: 10, BytesOut: 20, Seconds: 1.5, Durations: [6]int64{7, 0, 1}}
	stranger := counts
	stranger.Tenant = "another"
	require.Equal(t, 204, e.send(wire.PathEdgeUsage, wire.EdgeUsage{Counts: []wire.EdgeCounts{counts, stranger}}))
	require.Equal(t, map[string]float64{"|2xx|": 7, "|5xx|": 1, "|2xx|one": 7, "|5xx|one": 1}, b.counters("prego_edge_requests_total"))
	counts.Seconds = 0
	require.Equal(t, 204, e.send(wire.PathEdgeUsage, wire.EdgeUsage{Counts: []wire.EdgeCounts{counts}}))
	counts.Seconds = -0.1
	require.Equal(t, 422, e.send(wire.PathEdgeUsage, wire.EdgeUsage{Counts: []wire.EdgeCounts{counts}}))
	counts.Seconds, counts.Statuses[0] = 0, -1
	require.Equal(t, 422, e.send(wire.PathEdgeUsage, wire.EdgeUsage{Counts: []wire.EdgeCounts{counts}}))
}

// counters are a metric's values by its labels' values, in the order of the labels.
func (b *bundle) counters(name string) map[string]float64 {
	families, err := b.reg.Gather()
	require.NoError(b.t, err)
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out[strings.Join(labels, "|")] = m.GetCounter().GetValue()
		}
	}
	return out
}

// TestEdgesReportProbes: an edge reports whether the sites of its network answer, and nothing else of a report counts.
func TestEdgesReportProbes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.site("one", "10.0.0.1")
	e := b.edge("edge-1")
	report := wire.EdgeProbes{Watch: "w", SinceMS: 60_000, Changes: []wire.EdgeProbe{
		{Tenant: "one", State: wire.EdgeProbeDown, Cause: wire.EdgeProbeMissing, AgeMS: 5000}, {Tenant: "no such", State: wire.EdgeProbeUp},
	}}
	require.Equal(t, 503, e.send(wire.PathEdgeProbes, report), "it must request its document first")
	status, _ := e.poll(0)
	require.Equal(t, 200, status)
	require.Equal(t, 200, e.send(wire.PathEdgeProbes, report))
	h, err := b.store.SiteHealth(t.Context(), "one")
	require.NoError(t, err)
	require.Equal(t, "missing", h.Cause)
	require.False(t, h.Up)
	for _, bad := range []wire.EdgeProbes{
		{SinceMS: 1},
		{Watch: "w", SinceMS: -1},
		{Watch: "w", UntilMS: -1},
		{Watch: "w", After: -1},
		{Watch: strings.Repeat("w", 301)},
		{Watch: "w", Changes: make([]wire.EdgeProbe, wire.MaxEdgeProbes+1)},
		{Watch: "w", Changes: []wire.EdgeProbe{{Tenant: "one", State: "well"}}},
		{Watch: "w", Changes: []wire.EdgeProbe{{Tenant: "one", State: wire.EdgeProbeDown}}},
		{Watch: "w", Changes: []wire.EdgeProbe{{Tenant: "one", State: wire.EdgeProbeUp, Cause: wire.EdgeProbeError}}},
		{Watch: "w", Changes: []wire.EdgeProbe{{Tenant: "one", State: wire.EdgeProbeUp, AgeMS: -1}}},
	} {
		require.Equal(t, 422, e.send(wire.PathEdgeProbes, bad))
	}
	up := []wire.EdgeProbe{{Tenant: "one", State: wire.EdgeProbeUp, AgeMS: 1 << 60}}
	lost := wire.EdgeProbes{Watch: "w", SinceMS: 1, After: 3, Changes: up}
	raw, err := json.Marshal(lost)
	require.NoError(t, err)
	status, _, body := e.post(e.client, wire.PathEdgeProbes, e.token, "application/json", raw)
	require.Equal(t, 200, status)
	require.JSONEq(t, `{"restate": true}`, string(body), "the third change is not known")
	require.Equal(t, 200, e.send(wire.PathEdgeProbes, wire.EdgeProbes{Watch: "w", SinceMS: 1, After: 2, Changes: up}))
	h, err = b.store.SiteHealth(t.Context(), "one")
	require.NoError(t, err)
	require.True(t, h.Up)
	require.WithinDuration(t, time.Now(), h.Since, time.Minute)
}

// TestTheRunThatWaitsForASiteIsSignalled: by each report that the site is up, and for no other tenant.
func TestTheRunThatWaitsForASiteIsSignalled(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.site("one", "10.0.0.1")
	b.site("two", "10.0.0.2")
	_, err := b.pool.Exec(t.Context(), `UPDATE tenants SET state = 'provisioning',
		opening_since = now() - interval '1 minute' WHERE tenant_id = 'one'`)
	require.NoError(t, err)
	e := b.edge("edge-1")
	status, d := e.poll(0)
	require.Equal(t, 200, status)
	require.Len(t, d.Hosts, 2, "the site that is being opened is served")
	changes := func(state wire.EdgeProbeState, cause wire.EdgeProbeCause) []wire.EdgeProbe {
		return []wire.EdgeProbe{{Tenant: "one", State: state, Cause: cause}, {Tenant: "two", State: state, Cause: cause}}
	}
	down := wire.EdgeProbes{Watch: "w", SinceMS: 60_000, Changes: changes(wire.EdgeProbeDown, wire.EdgeProbeError)}
	require.Equal(t, 200, e.send(wire.PathEdgeProbes, down))
	up := wire.EdgeProbes{Watch: "w", SinceMS: 60_000, After: 2, Changes: changes(wire.EdgeProbeUp, "")}
	require.Equal(t, 200, e.send(wire.PathEdgeProbes, up))
	require.Equal(t, 200, e.send(wire.PathEdgeProbes, up), "its answer was lost")
	signalled := func() []string {
		return slices.DeleteFunc(b.signals.all(), func(s string) bool { return !strings.HasPrefix(s, "tenant ") })
	}
	require.Eventually(t, func() bool { return len(signalled()) == 2 }, 10*time.Second, time.Millisecond)
	require.Equal(t, []string{"tenant one", "tenant one"}, signalled())
}
