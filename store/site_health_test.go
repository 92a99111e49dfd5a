package store

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/edge"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// probes plays edges that report.
type probes struct {
	*testing.T
	s    *Store
	sent map[string]int // changes by edge and watch
}

// probedStore has two tenants in the network of two edges, and one in another network. All are active for 100 days.
func probedStore(t *testing.T) probes {
	t.Helper()
	p := probes{t, New(pgtest.Pool(t)), map[string]int{}}
	p.exec(`INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'paid', 'test');
		INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
		SELECT v.role || '-' || v.n, '', v.role, CASE v.n WHEN 3 THEN 'us' ELSE 'eu' END, 'hetzner', '{}', 'provisioning', v.role || v.n, 'test'
		FROM (VALUES ('node', 1), ('node', 2), ('node', 3), ('edge', 1), ('edge', 2)) v (role, n);
		UPDATE servers SET status = 'active';
		INSERT INTO edges (server_id, network) SELECT server_id, 'eu' FROM servers WHERE role = 'edge';
		INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state,
			converged_state, created_by, site, active_at)
		SELECT 't-' || i, 'shop-' || i, 'acme', CASE i WHEN 3 THEN 'us' ELSE 'eu' END,
			'starter', 1, 1, 'shared', '', 'active', 'active', 'test',
			'shop-' || i || '.example.com', now() - interval '100 days' FROM generate_series(1, 3) i;
		INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name,
			database_name, infra_provider, algorithm)
		SELECT 't-' || i, s.server_id, d.shard_id, r.pool_id, '', '', 'hetzner', 'test'
		FROM generate_series(1, 3) i JOIN servers s ON s.server_id = 'node-' || i JOIN db_shards d USING (server_id) JOIN redis_pools r USING (server_id)`)
	return p
}

func (p probes) exec(sql string, args ...any) {
	p.Helper()
	_, err := p.s.pool.Exec(context.Background(), sql, args...)
	require.NoError(p, err)
}

// saw is a change so many seconds ago.
func saw(tenantID string, state wire.EdgeProbeState, ago int64) wire.EdgeProbe {
	c := wire.EdgeProbe{Tenant: tenantID, State: state, AgeMS: ago * 1000}
	if state == wire.EdgeProbeDown {
		c.Cause = wire.EdgeProbeRefused
	}
	return c
}

// report is one of a watch that began since seconds ago, and covers all but the last until seconds.
func (p probes) report(edgeID prego.ServerID, watch string, since, until int64, changes ...wire.EdgeProbe) {
	p.Helper()
	require.True(p, p.known(edgeID, wire.EdgeProbes{
		Watch: watch, SinceMS: since * 1000, UntilMS: until * 1000, After: p.sent[string(edgeID)+watch], Changes: changes,
	}))
	p.sent[string(edgeID)+watch] += len(changes)
}

func (p probes) known(edgeID prego.ServerID, r wire.EdgeProbes) bool {
	p.Helper()
	known, _, err := p.s.EdgeProbed(context.Background(), edge.Probed{ServerID: edgeID, EdgeProbes: r})
	require.NoError(p, err)
	return known
}

// counted checks the seconds of all months together.
func (p probes) counted(up, down float64, when string) {
	p.Helper()
	months, err := p.s.Uptime(context.Background(), "t-1")
	require.NoError(p, err)
	var sum tenant.Uptime
	for _, m := range months {
		sum.UpSeconds, sum.DownSeconds = sum.UpSeconds+m.UpSeconds, sum.DownSeconds+m.DownSeconds
	}
	require.InDelta(p, up, sum.UpSeconds, 5, "up, %s", when)
	require.InDelta(p, down, sum.DownSeconds, 5, "down, %s", when)
}

func (p probes) health(tenantID prego.TenantID) *tenant.SiteHealth {
	p.Helper()
	h, err := p.s.SiteHealth(context.Background(), tenantID)
	require.NoError(p, err)
	return h
}

const (
	up   = wire.EdgeProbeUp
	down = wire.EdgeProbeDown
	gone = wire.EdgeProbeGone
)

func TestUptimeIsCountedFromChanges(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	p.counted(0, 0, "before any report")
	p.report("edge-1", "a", 3600, 0, saw("t-1", up, 3600))
	p.counted(3600, 0, "it was up")
	changes := []wire.EdgeProbe{saw("t-1", down, 1800), saw("t-1", up, 1200)}
	p.report("edge-1", "a", 3600, 0, changes...)
	p.counted(3000, 600, "it was down for ten minutes")
	again := wire.EdgeProbes{Watch: "a", SinceMS: 3600_000, After: 1, Changes: append(changes, saw("t-2", up, 1000))}
	require.True(t, p.known("edge-1", again))
	p.counted(3000, 600, "a report that is sent again counts once")
	require.True(t, p.health("t-1").Up)
	require.InDelta(t, 1200, time.Since(p.health("t-1").Since).Seconds(), 60)
	require.NotNil(t, p.health("t-2"), "what is new in it counts")
	p.sent["edge-1a"]++
	p.report("edge-1", "a", 3600, 0, saw("t-1", gone, 300))
	p.counted(2700, 600, "it is under maintenance")
	require.Nil(t, p.health("t-1"))
}

// TestListedTenantsShowWhetherTheirSitesAnswer: down at one edge is down, and without an edge it is unknown.
func TestListedTenantsShowWhetherTheirSitesAnswer(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	p.report("edge-1", "a", 3600, 0, saw("t-1", up, 3600), saw("t-2", up, 3600))
	p.report("edge-2", "a", 3600, 0, saw("t-1", up, 3600), saw("t-2", down, 60))
	page, _, err := Tenants.In(p.s)(p.Context(), prego.ListQuery{Sort: "slug", Limit: 10})
	require.NoError(p, err)
	require.Len(p, page, 3)
	require.True(p, *page[0].SiteUp)
	require.False(p, *page[1].SiteUp)
	require.Nil(p, page[2].SiteUp)
	require.EqualValues(p, 1<<30, page[0].MemoryBytes)
}

func TestUptimeNeedsOneEdge(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	p.report("edge-1", "a", 3600, 0, saw("t-1", up, 3600))
	p.report("edge-2", "b", 3600, 0, saw("t-1", up, 3600), saw("t-1", down, 2000))
	p.counted(3600, 0, "edge-1 reached it")
	p.report("edge-1", "a", 3600, 0, saw("t-1", down, 1000))
	p.counted(2600, 1000, "no edge reached it")
	p.report("edge-2", "b", 3600, 0, saw("t-1", up, 400))
	p.counted(3000, 600, "edge-2 reached it again")
}

// TestRestoredDatabaseLearnsFromEdges: the reports since its backup are missing, so edges report the health of all sites
// again. What they still know of the time since then is counted.
func TestRestoredDatabaseLearnsFromEdges(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	p.report("edge-1", "a", 7200, 3600, saw("t-1", up, 7200), saw("t-2", down, 7200)) // then the backup was made
	later := wire.EdgeProbes{Watch: "a", SinceMS: 7200_000, After: 4, Changes: []wire.EdgeProbe{saw("t-2", up, 10)}}
	require.False(t, p.known("edge-1", later))
	require.Nil(t, p.health("t-2"), "nothing of the report is recorded")
	require.False(t, p.known("edge-2", later), "nor of a watch whose beginning is unknown")
	p.report("edge-1", "b", 7200, 0, saw("t-1", down, 1800), saw("t-2", up, 10))
	p.counted(3600, 1800, "it was up until the backup at least, and then down")
	require.InDelta(t, 1800, time.Since(p.health("t-1").Since).Seconds(), 60)
	require.True(t, p.health("t-2").Up)
}

// TestUnwatchedTimeIsNotCounted: neither between two watches of an edge nor after its last report.
func TestUnwatchedTimeIsNotCounted(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	p.report("edge-1", "a", 7200, 3600, saw("t-1", up, 7200))
	p.counted(3630, 0, "the last report was an hour ago") // with the 30 s until its next
	p.report("edge-1", "b", 1000, 100)
	p.counted(3600, 0, "the edge has started, and has not probed yet")
	p.report("edge-1", "b", 1000, 100, saw("t-1", down, 900))
	p.counted(3600, 830, "it was down until the last report")
	p.report("edge-1", "c", 100, 0, saw("t-1", up, 90))
	p.counted(3690, 800, "nothing is counted twice")
	p.exec(`UPDATE servers SET status = 'terminated' WHERE server_id = 'edge-1'`)
	require.Nil(t, p.health("t-1"), "its edge is gone")
	p.report("edge-2", "d", 1, 0)
	p.counted(3690, 800, "with the edge's rows nothing is lost")
	left, err := value[int](t.Context(), p.s.pool, `SELECT count(*) FROM site_health`)
	require.NoError(t, err)
	require.Zero(t, left)
}

func TestUptimeIsSplitByMonths(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	const day = 24 * 3600
	p.report("edge-1", "a", 70*day, 0, saw("t-1", up, 70*day))
	p.counted(70*day, 0, "70 days")
	months, err := p.s.Uptime(t.Context(), "t-1")
	require.NoError(t, err)
	now := time.Now().UTC()
	this := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	last := this.AddDate(0, -1, 0)
	require.Equal(t, []string{this.Format("2006-01"), last.Format("2006-01")}, []string{months[0].Month, months[1].Month})
	require.InDelta(t, now.Sub(this).Seconds(), months[0].UpSeconds, 5)
	require.InDelta(t, this.Sub(last).Seconds(), months[1].UpSeconds, 5)
	require.InDelta(t, 0, months[1].UnobservedSeconds, 5)
	first := months[len(months)-1]
	require.Greater(t, first.UnobservedSeconds, 3600.0, "it was active, and no edge was there")
}

// TestDownSinceNeverRestarts: not with the edge, nor with another cause.
func TestDownSinceNeverRestarts(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	require.Nil(t, p.health("t-1"))
	p.report("edge-1", "a", 7200, 0, saw("t-1", up, 7200), saw("t-2", up, 7200), saw("t-3", down, 100))
	require.Nil(t, p.health("t-3"), "it is in another network")
	require.True(t, p.health("t-1").Up)
	p.report("edge-1", "a", 7200, 0, saw("t-1", down, 600))
	began := p.health("t-1")
	require.False(t, began.Up)
	require.Equal(t, "refused", began.Cause)
	require.InDelta(t, 600, time.Since(began.Since).Seconds(), 60)
	p.report("edge-1", "b", 60, 0)
	require.Equal(t, began, p.health("t-1"), "the edge has started again")
	require.Nil(t, p.health("t-2"), "whether this one still answers is unknown")
	again := saw("t-1", down, 30)
	again.Cause = wire.EdgeProbeMissing
	p.report("edge-1", "b", 60, 0, again, saw("t-2", up, 40))
	h := p.health("t-1")
	require.Equal(t, began.Since, h.Since)
	require.Equal(t, "missing", h.Cause)
	p.report("edge-2", "c", 100, 0, saw("t-1", up, 100))
	h = p.health("t-1")
	require.Equal(t, tenant.SiteHealth{
		Since: began.Since, Cause: "missing", Edges: []prego.ServerID{"edge-1", "edge-2"}, DownAt: []prego.ServerID{"edge-1"},
	}, *h)
	p.report("edge-1", "b", 60, 0, saw("t-1", up, 1))
	require.True(t, p.health("t-1").Up)
	p.report("edge-1", "d", 900, 0)
	p.report("edge-2", "e", 900, 0)
	require.Nil(t, p.health("t-1"))
}

// TestTimelineHasWhenASiteWasDown: once each time, however many edges find it so, and not what prego stops itself.
func TestTimelineHasWhenASiteWasDown(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	steps := func() (out []string) {
		t.Helper()
		events, err := p.s.TenantEvents(t.Context(), "t-1")
		require.NoError(t, err)
		for _, e := range events {
			out = append(out, strings.TrimSpace(string(e.Step)+" "+e.Reason)+": "+e.Message)
		}
		return out
	}
	p.report("edge-1", "a", 3600, 0, saw("t-1", up, 3600))
	p.report("edge-2", "b", 3600, 0, saw("t-1", up, 3600))
	require.Empty(t, steps())
	p.report("edge-1", "a", 3600, 0, saw("t-1", down, 600))
	p.report("edge-2", "b", 3600, 0, saw("t-1", down, 590))
	other := saw("t-1", down, 500)
	other.Cause = wire.EdgeProbeMissing
	p.report("edge-1", "a", 3600, 0, other)
	p.report("edge-1", "c", 100, 0, saw("t-1", down, 90))
	p.report("edge-1", "c", 100, 0, saw("t-1", up, 60))
	require.Equal(t, []string{"site_down refused: found by edge edge-1"}, steps())
	p.report("edge-2", "b", 3600, 0, saw("t-1", up, 50))
	require.Len(t, steps(), 2)
	require.Regexp(t, "^site_up: down for 00:0[89]:", steps()[1])
	again := wire.EdgeProbes{Watch: "b", SinceMS: 3600_000, After: 1, Changes: []wire.EdgeProbe{
		saw("t-1", down, 590), saw("t-1", up, 50),
	}}
	require.True(t, p.known("edge-2", again))
	require.Len(t, steps(), 2, "a report that is sent again")
	p.report("edge-1", "c", 100, 0, saw("t-1", down, 40), saw("t-1", up, 30), saw("t-1", down, 20), saw("t-1", up, 10))
	require.Len(t, steps(), 2, "so soon again")
	p.exec(`UPDATE events SET at = at - interval '10 minutes'`)
	p.exec(`UPDATE tenants SET state = 'suspended' WHERE tenant_id = 't-1'`)
	p.report("edge-1", "c", 100, 0, saw("t-1", down, 9))
	require.Len(t, steps(), 2, "it is suspended")
	p.report("edge-1", "c", 100, 0, saw("t-1", up, 8))
	p.exec(`UPDATE tenants SET state = 'active' WHERE tenant_id = 't-1'`)
	p.report("edge-1", "c", 100, 0, saw("t-1", down, 7), saw("t-1", gone, 6), saw("t-1", up, 5))
	require.Equal(t, []string{"site_down refused: found by edge edge-1", "site_up: "}, steps()[2:], "after its maintenance")
}

// TestSiteDownNamesTenants: one site is a warning, most sites of a region are critical, and what prego stops itself
// is neither. It ends when a probe is answered, or when no edge can say so any more.
func TestSiteDownNamesTenants(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	items := func() (out []string) {
		t.Helper()
		found, _, err := p.s.Attention(t.Context(), attention.Limits{})
		require.NoError(t, err)
		for _, i := range attention.List(found) {
			if i.Kind == attention.SiteDown {
				out = append(out, string(i.Severity)+" "+i.Subject.Name+": "+i.Message)
			}
		}
		return out
	}
	p.exec(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash,
			state, converged_state, created_by, site, active_at)
		SELECT 't-' || i, 'shop-' || i, 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'active', 'active', 'test', 'shop-' || i || '.example.com', now()
		FROM generate_series(4, 9) i;
		INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name,
			database_name, infra_provider, algorithm)
		SELECT 't-' || i, 'node-1', a.db_shard_id, a.redis_pool_id, '', '', 'hetzner', 'test'
		FROM generate_series(4, 9) i, tenant_allocations a WHERE a.tenant_id = 't-1'`)
	all := []string{"t-1", "t-2", "t-4", "t-5", "t-6", "t-7", "t-8", "t-9"}
	for _, e := range []prego.ServerID{"edge-1", "edge-2"} {
		var first []wire.EdgeProbe
		for _, id := range all {
			first = append(first, saw(id, up, 3600))
		}
		p.report(e, "a", 3600, 0, first...)
	}
	require.Empty(t, items())
	p.report("edge-1", "a", 3600, 0, saw("t-1", down, 600))
	require.Equal(t, []string{
		"warning shop-1: the site of shop-1 on node-1 does not answer: connections are refused, at edge edge-1 and not at 1 more",
	}, items())
	p.report("edge-2", "a", 3600, 0, saw("t-1", down, 500))
	one := []string{"warning shop-1: the site of shop-1 on node-1 does not answer: connections are refused, at all 2 edges"}
	require.Equal(t, one, items())
	for intended, over := range map[string]string{
		`UPDATE tenants SET state = 'suspended' WHERE tenant_id = 't-1'`:    `UPDATE tenants SET state = 'active' WHERE tenant_id = 't-1'`,
		`UPDATE servers SET status = 'draining' WHERE server_id = 'node-1'`: `UPDATE servers SET status = 'active' WHERE server_id = 'node-1'`,
		`INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, requested_by, site, database_name, from_server_id, to_server_id, state)
			SELECT 'm', 'acme', 't-1', allocation_id, 'test', 's', 'd', 'node-1', 'node-2', 'frozen' FROM tenant_allocations WHERE tenant_id = 't-1'`: `DELETE FROM tenant_moves`,
		`INSERT INTO server_maintenances (server_id, number, kind, requested_by, was_open, status) VALUES ('node-1', 1, 'reboot', 'test', true, 'finishing')`: `DELETE FROM server_maintenances`,
	} {
		p.exec(intended)
		require.Empty(t, items(), intended)
		p.exec(over)
		require.Equal(t, one, items(), over)
	}
	for _, id := range all[1:] {
		p.report("edge-1", "a", 3600, 0, saw(id, down, 300))
	}
	require.Equal(t, []string{
		"critical eu: 8 of 8 sites do not answer at some edges: shop-1, shop-2, shop-4, shop-5, shop-6 and 3 more (refused 8; on node-1 7, node-2 1)",
	}, items())
	for _, id := range all {
		p.report("edge-1", "a", 3600, 0, saw(id, up, 0))
		p.report("edge-2", "a", 3600, 0, saw(id, up, 0))
	}
	require.Empty(t, items())
	p.report("edge-1", "a", 3600, 0, saw("t-1", down, 100), saw("t-2", down, 100))
	require.Len(t, items(), 2)
	p.exec(`UPDATE edges SET watched_until = now() - interval '2 minutes' WHERE server_id = 'edge-1'`)
	require.Empty(t, items(), "its edge does not report")
}

// TestAServerWhoseSitesAnswerIsNotLost: one edge that finds a site up is enough, as long as it reports.
func TestAServerWhoseSitesAnswerIsNotLost(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	lose := func(id prego.ServerID) error {
		_, err := p.s.LoseServer(impact.By(t.Context(), "test"), id, "", "ann")
		return err
	}
	p.exec(`UPDATE servers SET tenant_count = 1; UPDATE db_shards SET current_tenant_count = 1; UPDATE redis_pools SET current_tenants = 1`)
	p.report("edge-1", "a", 600, 0, saw("t-1", wire.EdgeProbeUp, 300), saw("t-2", wire.EdgeProbeDown, 300))
	p.report("edge-2", "b", 600, 0, saw("t-1", wire.EdgeProbeDown, 300))
	err := lose("node-1")
	code(t, err, prego.CodeSiteAnswers)
	require.ErrorContains(t, err, "the sites of 1 tenants there answer (shop-1)")
	require.NoError(t, lose("node-2"), "its site is down")
	require.NoError(t, lose("node-3"), "no edge probes its site")
	p.exec(`UPDATE edges SET watched_until = now() - interval '2 minutes'`)
	require.NoError(t, lose("node-1"), "no edge has reported for a while")
}
