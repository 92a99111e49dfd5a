package e2e

import (
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	needs "github.com/prego/prego/ops/attention"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// sitesDown lists the sites that do not answer, as prego status does.
func (c *cell) sitesDown() []api.Attention {
	c.t.Helper()
	var all api.AttentionList
	c.send(http.MethodGet, "/v1/attention", nil, http.StatusOK, &all)
	return slices.DeleteFunc(all.Items, func(i api.Attention) bool { return i.Kind != needs.SiteDown })
}

// TestASiteThatDoesNotAnswer: its edge finds it down while its server and the rows of its tenant are well. The line
// names the tenant, the cause and since when, which neither another cause nor a restart of the edge's agent changes.
func TestASiteThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	p := newPublic(t, sharedVars())
	p.org("acme", "")
	for id, role := range map[string]prego.Role{
		"edge": prego.RoleEdge, "app": prego.RoleApp, "db": prego.RoleDBShard, "redis": prego.RoleRedisPool,
	} {
		p.create(id, role, server.Spec{})
	}
	for _, id := range []string{"edge", "app", "db", "redis"} {
		p.awaitStatus(id, server.Active)
	}
	id := p.tenant("alpha", prego.PlanStarter, nil)
	p.settledTenant(id, tenant.Active)
	other := p.tenant("beta", prego.PlanStarter, nil)
	p.settledTenant(other, tenant.Active)
	isUp := func(tn api.Tenant) bool { return tn.SiteHealth != nil && tn.SiteHealth.Up }
	require.Equal(t, []string{p.id("edge")}, p.awaitTenant(id, "found up", isUp).SiteHealth.Edges)
	p.awaitTenant(other, "found up", isUp)
	require.Empty(t, p.sitesDown())

	// Its files are gone from its server: Frappe knows no such site.
	site, app := "alpha.sites."+ourZone, p.id("app")
	dir := p.siteDir(app)
	require.NoError(t, os.Rename(dir, dir+".away"))
	went := time.Now()
	down := await(t, "its site is down", p.sitesDown, func(a []api.Attention) bool { return len(a) > 0 })
	require.Len(t, down, 1, "and no other")
	require.Equal(t, "alpha", down[0].Subject.Name)
	require.Equal(t, "the site of alpha on "+app+" does not answer: its server does not have it", down[0].Message)
	since := down[0].Since
	require.WithinRange(t, since, went.Add(-time.Second), time.Now())
	shown, errs, code := p.cli(p.operator, "tenant", "show", id)
	require.Zero(t, code, errs)
	require.Regexp(t, `answers +no: missing, since `+since.UTC().Format("2006-01-02 15:04 UTC"), shown)
	status, errs, code := p.cli(p.operator, "status", "--kind", "site_down")
	require.Zero(t, code, errs)
	require.Contains(t, status, "alpha")

	require.NoError(t, p.sim.HostAction(p.hostOf(p.id("edge")), "kill-agent"))
	require.NoError(t, os.Rename(dir+".away", dir))
	p.setSiteConfig(app, site, "maintenance_mode", 1)
	down = await(t, "it is down for another reason", p.sitesDown, func(a []api.Attention) bool {
		require.Len(t, a, 1, "it stays down")
		return a[0].Message == "the site of alpha on "+app+" does not answer: it is in maintenance mode"
	})
	require.Equal(t, since, down[0].Since)

	p.setSiteConfig(app, site, "maintenance_mode", 0)
	tn := p.awaitTenant(id, "up again", isUp)
	require.Empty(t, p.sitesDown())
	steps := slices.DeleteFunc(tenantSteps(tn), func(s string) bool { return s != "site_down" && s != "site_up" })
	require.Equal(t, []string{"site_down", "site_up"}, steps)
	month := (*tn.Uptime)[0]
	require.Positive(t, month.UpSeconds)
	require.InDelta(t, time.Since(since).Seconds(), month.DownSeconds+month.UnobservedSeconds, 60)
	require.Positive(t, month.DownSeconds)
	require.Less(t, *month.UptimePct, 100.0)
	require.InDelta(t, 100, *(*p.getTenant(other).Uptime)[0].UptimePct, 0)
}
