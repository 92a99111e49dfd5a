package activities_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/dns"
	"github.com/prego/prego/internal/hetzner"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// freely is a request budget without an end, which counts.
type freely struct{ sent atomic.Int64 }

func (f *freely) Acquire(context.Context, string) error    { f.sent.Add(1); return nil }
func (*freely) Observe(context.Context, int, int) error    { return nil }
func (*freely) Block(context.Context, time.Duration) error { return nil }

// zoneWorld is all that names need, for real: Postgres, the provider's API, and its name
// server.
type zoneWorld struct {
	*testing.T
	*activities.Names
	pool   *pgxpool.Pool
	store  *store.Store
	sim    *sim.Sim
	client *hcloud.Client
	budget *freely
	asks   *dns.Resolver
}

const (
	zoneName = "prego.internal"
	sites    = "sites.prego.internal"
)

func newZoneWorld(t *testing.T) *zoneWorld {
	t.Helper()
	s, err := sim.New(sim.Config{Listen: "127.0.0.1:0", StateDir: t.TempDir(), Token: "secret", RatePerHour: 10_000_000, Zones: []string{zoneName, "customer.org"}})
	require.NoError(t, err)
	require.NoError(t, s.Start())
	t.Cleanup(func() {
		for _, f := range s.Faults() {
			require.NotZero(t, f.Hits, "a fault of kind %s never happened", f.Kind)
		}
		s.Close()
	})
	w := &zoneWorld{T: t, pool: pgtest.Pool(t), sim: s, budget: &freely{}, client: hcloud.NewClient(hcloud.WithEndpoint(s.URL()), hcloud.WithToken("secret"))}
	w.store = store.New(w.pool)
	provider, err := hetzner.New(hetzner.Config{
		Endpoint: s.URL(), Token: "secret", Environment: "test", Timeout: 5 * time.Second, Poll: 2 * time.Millisecond,
		Simulated: true, Budget: w.budget, MayDelete: w.store.MayDelete,
	})
	require.NoError(t, err)
	w.asks, err = dns.New(dns.Config{Resolvers: []string{s.DNS()}})
	require.NoError(t, err)
	w.Names = &activities.Names{
		Store: w.store, DNS: provider, Resolver: w.asks, Zone: zoneName, SiteDomain: sites, Log: zap.NewNop(),
		Rules: org.DomainRules{Retry: time.Millisecond, RetryMax: time.Millisecond, Recheck: time.Millisecond, Grace: 300 * time.Millisecond},
	}
	w.exec(`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range) VALUES ('hetzner-eu-central-1', 'hetzner', 'eu-central', 1, '10.64.0.0/16'), ('hetzner-us-east-1', 'hetzner', 'us-east', 1, '10.65.0.0/16')`)
	return w
}

func (w *zoneWorld) exec(sql string, args ...any) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), sql, args...)
	require.NoError(w, err)
}

func (w *zoneWorld) edge(id, network, region, host string) {
	w.Helper()
	w.exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, host, ipv6, network_id, agent_status)
		VALUES ($1, '', 'edge', $3, 'hetzner', '{}', 'active', 'w', 't', $4, '2001:db8:' || right(md5($1), 4) || '::/64', $2, 'connected')`, id, network, region, host)
}

func (w *zoneWorld) keep() activities.NamesResult {
	w.Helper()
	r, err := w.KeepNames(w.Context())
	require.NoError(w, err)
	return r
}

func (w *zoneWorld) at(name string) []string {
	w.Helper()
	out, err := w.asks.Addresses(w.Context(), name)
	require.NoError(w, err)
	out = slices.DeleteFunc(out, func(a string) bool { return strings.Contains(a, ":") })
	slices.Sort(out)
	return out
}

func (w *zoneWorld) inject(f sim.Fault) {
	w.Helper()
	_, err := w.sim.Inject(f)
	require.NoError(w, err)
}

const (
	euEdges = "hetzner-eu-central-1.edges." + sites
	usEdges = "hetzner-us-east-1.edges." + sites
)

// TestEdgesComeAndGo: sites lead to the edges of their network, and each change of these is one
// record set.
func TestEdgesComeAndGo(t *testing.T) {
	t.Parallel()
	w := newZoneWorld(t)
	require.Zero(t, w.keep().Wanted, "without edges there are no records")
	w.edge("e1", "hetzner-eu-central-1", "eu", "192.0.2.1")
	w.edge("e2", "hetzner-us-east-1", "us", "192.0.2.2")
	w.keep()
	require.Equal(t, []string{"192.0.2.1"}, w.at("acme."+sites), "home")
	require.Equal(t, []string{"192.0.2.2"}, w.at("us.edges."+sites))
	w.tenantAt("far", "hetzner-us-east-1")
	w.tenantAt("near", "hetzner-eu-central-1")
	w.keep()
	require.Equal(t, []string{"192.0.2.2"}, w.at("far."+sites))
	require.Equal(t, []string{"192.0.2.1"}, w.at("near."+sites))

	before := w.budget.sent.Load()
	w.edge("e3", "hetzner-eu-central-1", "eu", "192.0.2.3")
	w.keep()
	require.Equal(t, []string{"192.0.2.1", "192.0.2.3"}, w.at("near."+sites))
	require.LessOrEqual(t, w.budget.sent.Load()-before, int64(20), "four record sets, however many sites")
	w.exec(`UPDATE servers SET agent_status = 'disconnected' WHERE server_id = 'e1'`)
	w.keep()
	require.Equal(t, []string{"192.0.2.3"}, w.at("near."+sites), "an edge that is not heard leaves")
	w.exec(`UPDATE servers SET agent_status = 'disconnected' WHERE role = 'edge'`)
	w.keep()
	require.Equal(t, []string{"192.0.2.1", "192.0.2.3"}, w.at("near."+sites), "when none is heard it is not the edges")
	require.Zero(t, w.keep().Wanted, "nothing changed")

	w.exec(`UPDATE tenant_allocations SET released_at = now() WHERE tenant_id = 't-far'`)
	w.keep()
	require.Equal(t, []string{"192.0.2.1", "192.0.2.3"}, w.at("far."+sites), "it is as any other name")
}

// tenantAt is a tenant that got a site of the pool, whose name that was before, on a server in a network.
func (w *zoneWorld) tenantAt(slug, network string) {
	w.Helper()
	w.exec(`INSERT INTO orgs (org_id, created_by) VALUES ('acme', 't') ON CONFLICT DO NOTHING`)
	w.exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, host, network_id, agent_status, tenant_count)
		SELECT k || $1, '', r, 'eu', 'hetzner', '{}', 'active', 'w', 't', '198.51.100.1', $1, 'connected', CASE r WHEN 'app' THEN 1 ELSE 0 END
		FROM (VALUES ('app-', 'app'), ('shard-', 'db-shard'), ('pool-', 'redis-pool')) v (k, r) ON CONFLICT DO NOTHING`, network)
	w.exec(`INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity, current_tenant_count, plan_tier_lock) VALUES ('s-' || $1, 'shard-' || $1, 'eu', 100000, 0, NULL) ON CONFLICT DO NOTHING`, network)
	w.exec(`INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity) VALUES ('p-' || $1, 'pool-' || $1, 'eu', 100000) ON CONFLICT DO NOTHING`, network)
	w.exec(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
		VALUES ('t-' || $1, $1, 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'active', 't')`, slug)
	w.exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
		VALUES ('t-' || $1, 'app-' || $2, 's-' || $2, 'p-' || $2, 'pool-' || $1 || '.`+sites+`', $1, 'hetzner', 'best_fit')`, slug, network)
}

// TestAddressIsReleasedAfterItLeftTheDNS: a record with an address that has been reassigned would
// send our callers to a stranger.
func TestAddressIsReleasedAfterItLeftTheDNS(t *testing.T) {
	t.Parallel()
	w := newZoneWorld(t)
	w.edge("e1", "hetzner-eu-central-1", "eu", "192.0.2.1")
	w.edge("e2", "hetzner-eu-central-1", "eu", "192.0.2.2")
	w.keep()
	w.exec(`UPDATE servers SET status = 'draining' WHERE server_id = 'e1'`)
	w.inject(sim.Fault{Kind: "publish", Record: "hetzner-eu-central-1.*", Times: 1})
	require.Error(t, w.LeaveDNS(t.Context(), "e1"), "the record did not change")
	require.Contains(t, w.at(euEdges), "192.0.2.1")
	err := w.LeaveDNS(t.Context(), "e1")
	require.ErrorContains(t, err, "resolvers may still have the address")
	require.Equal(t, []string{"192.0.2.2"}, w.at(euEdges))
	require.Equal(t, []string{"192.0.2.2"}, w.at("eu.edges."+sites))
	require.ErrorContains(t, w.LeaveDNS(t.Context(), "e1"), "resolvers may still have the address")
	w.exec(`UPDATE dns_departures SET until = now()`) // the records' time to live has passed
	require.NoError(t, w.LeaveDNS(t.Context(), "e1"))
	require.ErrorContains(t, w.LeaveDNS(t.Context(), "nobody"), "no server")
	w.exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, host) VALUES ('app', '', 'app', 'eu', 'hetzner', '{}', 'draining', 'w', 't', '192.0.2.9')`)
	require.NoError(t, w.LeaveDNS(t.Context(), "app"), "no record names it")
}

// TestCrashAroundARecord: after a crash between the row and the provider, the next run makes the
// record set once.
func TestCrashAroundARecord(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"record/taken", "record/sent"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newZoneWorld(t)
			w.edge("e1", "hetzner-eu-central-1", "eu", "192.0.2.1")
			var died atomic.Bool
			w.Hook = func(at string) {
				if at == point && died.CompareAndSwap(false, true) {
					panic("killed")
				}
			}
			key := server.RecordSet{Zone: zoneName, Name: "_acme-challenge.sites", Type: server.RecordTXT}
			require.PanicsWithValue(t, "killed", func() { _ = w.AddTXT(t.Context(), key.FQDN(), "one") })
			w.exec(`UPDATE dns_records SET taken_until = now()`) // its lease ends
			w.keep()
			texts, err := w.asks.TXT(t.Context(), key.FQDN())
			require.NoError(t, err)
			require.Equal(t, []string{"one"}, texts)
			row, err := w.store.GetRecord(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, server.ResourceCreated, row.State)
		})
	}
}

func TestChallengesShareAName(t *testing.T) {
	t.Parallel()
	w := newZoneWorld(t)
	name := "_acme-challenge." + sites
	require.NoError(t, w.AddTXT(t.Context(), name, "one"))
	require.NoError(t, w.AddTXT(t.Context(), name, "two"))
	require.NoError(t, w.AddTXT(t.Context(), name, "two"))
	there, err := w.TXTVisible(t.Context(), name, "one")
	require.NoError(t, err)
	require.True(t, there)
	require.NoError(t, w.RemoveTXT(t.Context(), name, "one"))
	texts, err := w.asks.TXT(t.Context(), name)
	require.NoError(t, err)
	require.Equal(t, []string{"two"}, texts)
	w.inject(sim.Fault{Kind: "http", Method: http.MethodDelete, Action: "respond", Status: 423, Code: "locked", Times: 1})
	require.Error(t, w.RemoveTXT(t.Context(), name, "two"), "the record set is still there")
	row, err := w.store.GetRecord(t.Context(), server.RecordSet{Zone: zoneName, Name: "_acme-challenge.sites", Type: server.RecordTXT})
	require.NoError(t, err)
	require.NotNil(t, row, "and so is its row")
	require.NotEqual(t, server.ResourceReleased, row.State)
	w.exec(`UPDATE dns_records SET taken_until = now()`)
	require.NoError(t, w.RemoveTXT(t.Context(), name, "two"))
	require.NoError(t, w.RemoveTXT(t.Context(), name, "two"))
	texts, err = w.asks.TXT(t.Context(), name)
	require.NoError(t, err)
	require.Empty(t, texts)
	require.ErrorContains(t, w.AddTXT(t.Context(), "_acme-challenge.example.com", "x"), "not in this installation's zone")
	require.NoError(t, w.AddTXT(t.Context(), name, "three"), "after it was released")
}

// TestZoneIsComparedWithTheRows: manual changes and deletions are reverted, our records without a
// row are deleted, foreign records stay.
func TestZoneIsComparedWithTheRows(t *testing.T) {
	t.Parallel()
	w := newZoneWorld(t)
	w.edge("e1", "hetzner-eu-central-1", "eu", "192.0.2.1")
	w.keep()
	zone := &hcloud.Zone{Name: zoneName}
	made := func(name, value string, labels map[string]string) {
		r, _, err := w.client.Zone.CreateRRSet(t.Context(), zone, hcloud.ZoneRRSetCreateOpts{Name: name, Type: "A", Labels: labels, Records: []hcloud.ZoneRRSetRecord{{Value: value}}})
		require.NoError(t, err)
		require.NoError(t, w.client.Action.WaitFor(t.Context(), r.Action))
	}
	ours := map[string]string{server.LabelManagedBy: server.ManagedByPrego, server.LabelEnvironment: "test"}
	made("orphan.sites", "203.0.113.9", ours)
	made("www", "203.0.113.1", nil)
	_, _, err := w.client.Zone.SetRRSetRecords(t.Context(), &hcloud.ZoneRRSet{Zone: zone, Name: strings.TrimSuffix(euEdges, "."+zoneName), Type: "A"}, hcloud.ZoneRRSetSetRecordsOpts{Records: []hcloud.ZoneRRSetRecord{{Value: "203.0.113.66"}}})
	require.NoError(t, err)
	_, _, err = w.client.Zone.DeleteRRSet(t.Context(), &hcloud.ZoneRRSet{Zone: zone, Name: "*.sites", Type: "CNAME"})
	require.NoError(t, err)
	c, err := w.CompareRecords(t.Context())
	require.NoError(t, err)
	require.Equal(t, activities.RecordsCompared{Owned: 5, Drifted: 2, Orphans: 1}, c)
	w.keep()
	require.Equal(t, []string{"192.0.2.1"}, w.at("acme."+sites))
	require.Empty(t, w.at("orphan.edges."+sites))
	require.Equal(t, []string{"203.0.113.1"}, w.at("www."+zoneName))
	c, err = w.CompareRecords(t.Context())
	require.NoError(t, err)
	require.Zero(t, c.Drifted+c.Orphans)
	for i := range 20 {
		made(fmt.Sprintf("o%d.sites", i), "203.0.113.9", ours)
	}
	c, err = w.CompareRecords(t.Context())
	require.NoError(t, err)
	require.True(t, c.BreakerHit, "another database, or a restored one")
	var owned, orphans int
	var since *time.Time
	compared := func() {
		require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT owned, orphans, breaker_since FROM dns_comparisons WHERE zone = $1`, zoneName).Scan(&owned, &orphans, &since))
	}
	compared()
	require.Equal(t, []int{25, 20}, []int{owned, orphans})
	require.NotNil(t, since)
	first := *since
	_, err = w.CompareRecords(t.Context())
	require.NoError(t, err)
	compared()
	require.Equal(t, first, *since, "since it was first found")
	for i := range 20 {
		r, _, err := w.client.Zone.DeleteRRSet(t.Context(), &hcloud.ZoneRRSet{Zone: zone, Name: fmt.Sprintf("o%d.sites", i), Type: "A"})
		require.NoError(t, err)
		require.NoError(t, w.client.Action.WaitFor(t.Context(), r.Action))
	}
	_, err = w.CompareRecords(t.Context())
	require.NoError(t, err)
	compared()
	require.Nil(t, since, "the breaker is closed")
	require.Zero(t, w.keep().Applied)
}

// TestOthersRecordsShadowNoSite: whoever adds a record at or below a site's name takes it from the wildcard. The site
// gets its own record; where others have its address or alias, it is reported.
func TestOthersRecordsShadowNoSite(t *testing.T) {
	t.Parallel()
	w := newZoneWorld(t)
	w.edge("e1", "hetzner-eu-central-1", "eu", "192.0.2.1")
	for _, slug := range []string{"alpha", "beta", "news", "deep", "shop", "alias"} {
		w.tenantAt(slug, "hetzner-eu-central-1")
	}
	w.exec(`UPDATE tenants SET site = slug || '.` + sites + `'`)
	w.keep()
	others := func(name string, typ hcloud.ZoneRRSetType, value string) {
		t.Helper()
		r, _, err := w.client.Zone.CreateRRSet(t.Context(), &hcloud.Zone{Name: zoneName}, hcloud.ZoneRRSetCreateOpts{
			Name: name, Type: typ, Records: []hcloud.ZoneRRSetRecord{{Value: value}},
		})
		require.NoError(t, err)
		require.NoError(t, w.client.Action.WaitFor(t.Context(), r.Action))
	}
	others("s1._domainkey.alpha.sites", "TXT", `"v=DKIM1"`)
	others("news.sites", "TXT", `"a text"`)
	others("a.b.deep.sites", "A", "203.0.113.7")
	others("shop.sites", "A", "203.0.113.7")
	others("alias.sites", "CNAME", "elsewhere.example.")
	others("www", "A", "203.0.113.7")
	require.Empty(t, w.at("alpha."+sites))
	compare := func() {
		t.Helper()
		_, err := w.CompareRecords(t.Context())
		require.NoError(t, err)
		for range 4 {
			w.exec(`UPDATE dns_records SET next_try = now()`)
			w.keep()
		}
	}
	compare()
	for _, slug := range []string{"alpha", "beta", "news", "deep"} {
		require.Equal(t, []string{"192.0.2.1"}, w.at(slug+"."+sites), slug)
	}
	require.Equal(t, []string{"203.0.113.7"}, w.at("shop."+sites), "others' records are left alone")
	var failing, affected []string
	found, _, err := w.store.Attention(t.Context(), attention.Limits{})
	require.NoError(t, err)
	for _, f := range found {
		if f.Kind == attention.DNSRecordFailing {
			failing = append(failing, f.Name)
			for _, c := range f.Affected.Tenants {
				affected = append(affected, c.Name)
			}
		}
	}
	require.Contains(t, failing, "shop."+sites)
	require.Contains(t, failing, "alias."+sites)
	require.Subset(t, affected, []string{"shop", "alias"})
	require.NotContains(t, failing, "news."+sites)

	for _, set := range []hcloud.ZoneRRSet{
		{Name: "s1._domainkey.alpha.sites", Type: "TXT"}, {Name: "shop.sites", Type: "A"}, {Name: "alias.sites", Type: "CNAME"},
	} {
		set.Zone = &hcloud.Zone{Name: zoneName}
		r, _, err := w.client.Zone.DeleteRRSet(t.Context(), &set)
		require.NoError(t, err)
		require.NoError(t, w.client.Action.WaitFor(t.Context(), r.Action))
	}
	compare()
	for _, slug := range []string{"alpha", "beta", "news", "deep", "shop", "alias"} {
		require.Equal(t, []string{"192.0.2.1"}, w.at(slug+"."+sites), slug)
	}
	var own int
	require.NoError(t, w.pool.QueryRow(t.Context(),
		`SELECT count(*) FROM dns_records WHERE owner = 'site' AND state <> 'released'`).Scan(&own))
	require.Equal(t, 4, own, "A and AAAA of the two that are still shadowed")
}

// TestTenThousandTenants: a tenant in the wildcard's network costs no request, any other about one.
func TestTenThousandTenants(t *testing.T) {
	t.Parallel()
	w := newZoneWorld(t)
	w.edge("e1", "hetzner-eu-central-1", "eu", "192.0.2.1")
	w.edge("e2", "hetzner-us-east-1", "us", "192.0.2.2")
	w.tenantAt("first", "hetzner-eu-central-1")
	w.tenantAt("second", "hetzner-us-east-1")
	w.keep()
	many := func(prefix, network string, n int) {
		w.exec(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
			SELECT 't-' || $1 || i, $1 || i, 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'active', 't' FROM generate_series(1, $2::integer) i`, prefix, n)
		w.exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
			SELECT 't-' || $1 || i, 'app-' || $2, 's-' || $2, 'p-' || $2, $1 || i || '.`+sites+`', $1 || i, 'hetzner', 'best_fit' FROM generate_series(1, $3::integer) i`, prefix, network, n)
	}
	before := w.budget.sent.Load()
	many("near-", "hetzner-eu-central-1", 9_500)
	require.Zero(t, w.keep().Wanted)
	require.Equal(t, before, w.budget.sent.Load(), "no request for those at home")
	many("far-", "hetzner-us-east-1", 500)
	for w.keep().Applied > 0 {
	}
	sent := w.budget.sent.Load() - before
	t.Logf("10,000 tenants, 500 of them away from home: %d requests", sent)
	require.Less(t, sent, int64(1_500))
	require.Equal(t, []string{"192.0.2.2"}, w.at("far-500."+sites))
	require.Equal(t, []string{"192.0.2.1"}, w.at("near-9500."+sites))
}

// TestNameOfACustomer: the TXT record comes late, the name is the org's, the record goes,
// and after the grace period the name is lost.
// TestANameThatFailsCostsItself: the database rejects what was seen of one name, and what was sent of one record. The
// others have their turn.
func TestANameThatFailsCostsItself(t *testing.T) {
	t.Parallel()
	w := newZoneWorld(t)
	for i := range 4 {
		network := fmt.Sprintf("n-%d", i)
		w.exec(`INSERT INTO networks (network_id, infra_provider, zone, ordinal, ip_range)
			VALUES ($1, 'hetzner', $1, 1, '10.66.0.0/16')`, network)
		w.edge(fmt.Sprintf("e%d", i), network, "eu", fmt.Sprintf("192.0.2.%d", i+1))
		name := fmt.Sprintf("www.customer-%d.org", i)
		w.tenantAt(fmt.Sprintf("t%d", i), network)
		_, err := w.store.ClaimDomain(t.Context(), org.Domain{
			DomainID: prego.DomainID(fmt.Sprintf("dom-%d", i)), TenantID: prego.TenantID(fmt.Sprintf("t-t%d", i)),
			Name: name, Token: org.NewDomainToken(),
		}, "a")
		require.NoError(t, err)
	}
	w.exec(`CREATE FUNCTION poisoned() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'poisoned' USING ERRCODE = 'check_violation'; END $$`)
	w.exec(`CREATE TRIGGER poisoned BEFORE UPDATE ON domains FOR EACH ROW
		WHEN (NEW.domain_id = 'dom-1' AND NEW.checked_at IS DISTINCT FROM OLD.checked_at) EXECUTE FUNCTION poisoned()`)
	w.exec(`CREATE TRIGGER poisoned BEFORE UPDATE ON dns_records FOR EACH ROW
		WHEN (NEW.name LIKE 'n-2.%' AND NEW.state = 'created') EXECUTE FUNCTION poisoned()`)
	_, err := w.KeepNames(t.Context())
	require.ErrorContains(t, err, "poisoned")
	number := func(sql string) (n int) {
		require.NoError(t, w.pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	require.Equal(t, 3, number(`SELECT count(*) FROM domains WHERE checked_at IS NOT NULL`))
	require.Zero(t, number(`SELECT count(*) FROM dns_records WHERE state = 'intended' AND name NOT LIKE 'n-2.%'`))
	require.Positive(t, number(`SELECT count(*) FROM dns_records WHERE state = 'intended' AND name LIKE 'n-2.%'`))
}

func TestNameOfACustomer(t *testing.T) {
	t.Parallel()
	w := newZoneWorld(t)
	w.edge("e1", "hetzner-eu-central-1", "eu", "192.0.2.1")
	w.exec(`UPDATE servers SET ipv6 = ''`)
	w.tenantAt("acme", "hetzner-eu-central-1")
	w.keep()
	d, err := w.store.ClaimDomain(t.Context(), org.Domain{DomainID: "dom-1", TenantID: "t-acme", Name: "www.customer.org", Token: org.NewDomainToken()}, "a")
	require.NoError(t, err)
	status := func(want org.DomainStatus) org.Domain {
		t.Helper()
		var got org.Domain
		require.Eventually(t, func() bool {
			w.keep()
			got, err = w.store.GetDomain(t.Context(), string(d.DomainID))
			require.NoError(t, err)
			return got.CheckedAt != nil && got.Status == want
		}, 20*time.Second, 5*time.Millisecond)
		return got
	}
	require.Equal(t, org.ReasonTXTMissing, status(org.DomainPending).Reason)
	customer := &hcloud.Zone{Name: "customer.org"}
	add := func(name string, typ hcloud.ZoneRRSetType, value string) {
		r, _, err := w.client.Zone.CreateRRSet(t.Context(), customer, hcloud.ZoneRRSetCreateOpts{Name: name, Type: typ, Records: []hcloud.ZoneRRSetRecord{{Value: value}}})
		require.NoError(t, err)
		require.NoError(t, w.client.Action.WaitFor(t.Context(), r.Action))
	}
	records := d.Records(sites)
	add("_prego-challenge.www", "TXT", `"`+records[0].Value+`"`)
	nowhere := status(org.DomainVerified)
	require.False(t, nowhere.Points, "it proves ownership, and leads nowhere yet")
	require.Equal(t, org.ReasonPointsElsewhere, nowhere.Reason)
	require.Equal(t, "it has no A or AAAA record", nowhere.Message)
	add("www", "A", "192.0.2.1")
	add("www", "AAAA", "::1")
	require.Eventually(t, func() bool {
		d := status(org.DomainVerified)
		return !d.Points && d.Message == "AAAA ::1 is not an edge" && d.ElsewhereSince.Equal(*nowhere.ElsewhereSince)
	}, 10*time.Second, 5*time.Millisecond, "the forgotten record is named")
	for _, typ := range []hcloud.ZoneRRSetType{"A", "AAAA"} {
		_, _, err = w.client.Zone.DeleteRRSet(t.Context(), &hcloud.ZoneRRSet{Zone: customer, Name: "www", Type: typ})
		require.NoError(t, err)
	}
	add("www", "CNAME", records[1].Value+".")
	require.Eventually(t, func() bool { return status(org.DomainVerified).Points }, 10*time.Second, 5*time.Millisecond)
	require.Empty(t, status(org.DomainVerified).Reason)
	require.Nil(t, status(org.DomainVerified).ElsewhereSince)
	w.inject(sim.Fault{Kind: "dns", Action: "fail", Path: "_prego-challenge.www.customer.org", Times: 2})
	require.Nil(t, status(org.DomainVerified).MissingSince, "a name server that fails takes nothing away")
	_, _, err = w.client.Zone.DeleteRRSet(t.Context(), &hcloud.ZoneRRSet{Zone: customer, Name: "_prego-challenge.www", Type: "TXT"})
	require.NoError(t, err)
	require.NotNil(t, status(org.DomainLost).MissingSince)
	w.exec(`UPDATE tenants SET state = 'data_purged'`)
	w.keep()
	_, err = w.store.GetDomain(t.Context(), string(d.DomainID))
	require.Equal(t, prego.CodeDomainNotFound, prego.CodeOf(err))
}
