package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
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
	p.awaitTenant(id, "up again", isUp)
	require.Empty(t, p.sitesDown())
	tn := p.awaitTenant(id, "up", isUp) // its timeline was read before its health
	steps := slices.DeleteFunc(tenantSteps(tn), func(s string) bool { return s != "site_down" && s != "site_up" })
	require.Equal(t, []string{"site_down", "site_up"}, steps)
	month := (*tn.Uptime)[0]
	require.Positive(t, month.UpSeconds)
	require.InDelta(t, time.Since(since).Seconds(), month.DownSeconds+month.UnobservedSeconds, 60)
	require.Positive(t, month.DownSeconds)
	require.Less(t, *month.UptimePct, 100.0)
	require.InDelta(t, 100, *(*p.getTenant(other).Uptime)[0].UptimePct, 0)
}

// TestATenantIsActiveWhenItsSiteIsOpen: its caller can hand out the link. A site that no edge opens keeps its tenant
// waiting, with the cause, and no other one. Dead edges delay no tenant, and are reported.
func TestATenantIsActiveWhenItsSiteIsOpen(t *testing.T) {
	t.Parallel()
	crash := filepath.Join(t.TempDir(), "crash")
	vars := sharedVars()
	vars["PREGO_TEST_CRASH"] = crash
	p := newPublic(t, vars)
	p.org("acme", "")
	p.create("edge", prego.RoleEdge, server.Spec{})
	p.awaitStatus("edge", server.Active)
	edge := p.id("edge")
	bad := p.tenant("bad", prego.PlanStarter, nil) // waits for servers
	p.exec(`UPDATE tenants SET slug = 'xn--e1afmkfd-385f3' WHERE tenant_id = $1`, bad)
	address := func(slug string) (url, page string) {
		site := slug + ".sites." + ourZone
		return "https://" + site, "<h1>" + site + "</h1>"
	}
	p.settledTenant(p.tenant("alpha", prego.PlanStarter, nil), tenant.Active)
	url, page := address("alpha")
	p.opens(p.visitor(), url, page) // there is a certificate
	for i := range 5 {
		slug := fmt.Sprint("beta-", i)
		id := p.tenant(slug, prego.PlanStarter, nil)
		active := func() bool { return p.getTenant(id).State == tenant.Active }
		eventually(t, active, patience, 2*time.Millisecond)
		url, page := address(slug)
		p.shows(p.visitor(), url, page, "the moment that it is active")
		if i == 0 {
			keepHistory(t, p.cell, "tenant-awaited-edge", tenant.ProvisionWorkflowID(prego.TenantID(id)))
		}
	}
	for i, point := range []string{"tenant_open/waits", "tenant_activate/done"} {
		require.NoError(t, os.WriteFile(crash, []byte(point), 0o600))
		slug := fmt.Sprint("killed-", i)
		id := p.tenant(slug, prego.PlanStarter, nil)
		p.dies(crash, point)
		p.start("worker")
		p.settledTenant(id, tenant.Active)
		url, page := address(slug)
		p.shows(p.visitor(), url, page, point)
		require.Equal(t, 1, p.number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1`, id), point)
	}

	waits := func(tn api.Tenant) bool { return deref(tn.StatusReason) == string(prego.ReasonAwaitingEdge) }
	tn := p.awaitTenant(bad, "waiting for its edge", waits)
	require.Equal(t, tenant.Provisioning, tn.State)
	require.Contains(t, deref(tn.StatusMessage), "edge "+edge+" refuses its name: ")
	down := p.sitesDown()
	require.Len(t, down, 1)
	require.Equal(t, "the site of xn--e1afmkfd-385f3 is built and not open: "+deref(tn.StatusMessage), down[0].Message)
	p.send(http.MethodPost, "/v1/tenants/"+bad+"/cancel", nil, http.StatusAccepted, nil)
	p.settledTenant(bad, tenant.Failed)
	keepHistory(t, p.cell, "tenant-refused-by-edge", tenant.ProvisionWorkflowID(prego.TenantID(bad)))
	require.Empty(t, p.sitesDown())

	require.NoError(t, p.sim.HostAction(p.hostOf(edge), "stop-agent"))
	p.exec(`UPDATE edges SET asked_at = now() - interval '41 seconds'`)
	late := p.settledTenant(p.tenant("gamma", prego.PlanStarter, nil), tenant.Active)
	require.NotContains(t, tenantSteps(late), "awaiting_edge")
	require.Contains(t, p.sitesDown()[0].Message, "no edge of network ")
	require.NoError(t, p.sim.HostAction(p.hostOf(edge), "resume-agent"))
	url, page = address("gamma")
	p.opens(p.visitor(), url, page)
	await(t, "its edge is alive again", p.sitesDown, func(a []api.Attention) bool { return len(a) == 0 })
}

// TestABadDocumentReachesOneEdge: rows that lead to the wrong server, as a database restored from yesterday has them,
// close sites at one edge of two. An operator sees which, and the rows' repair opens them again.
func TestABadDocumentReachesOneEdge(t *testing.T) {
	t.Parallel()
	p := newPublic(t, sharedVars())
	p.org("acme", "")
	servers := map[string]prego.Role{
		"edge-a": prego.RoleEdge, "edge-b": prego.RoleEdge,
		"app": prego.RoleApp, "db": prego.RoleDBShard, "redis": prego.RoleRedisPool,
	}
	for id, role := range servers {
		p.create(id, role, server.Spec{})
	}
	for id := range servers {
		p.awaitStatus(id, server.Active)
	}
	edges := []string{p.id("edge-a"), p.id("edge-b")}
	var open []string
	for _, slug := range []string{"alpha", "beta", "gamma"} {
		id := p.tenant(slug, prego.PlanStarter, nil)
		p.settledTenant(id, tenant.Active)
		p.awaitTenant(id, "found up at both", func(tn api.Tenant) bool {
			return tn.SiteHealth != nil && tn.SiteHealth.Up && len(tn.SiteHealth.Edges) == 2
		})
		open = append(open, id)
	}
	p.create("wrong", prego.RoleApp, server.Spec{})
	p.awaitStatus("wrong", server.Active)
	both := func() (versions []int64) {
		for _, id := range edges {
			versions = append(versions, int64(p.number(`SELECT version FROM edges WHERE server_id = $1`, id)))
		}
		return versions
	}
	await(t, "both edges have the same document", both, func(v []int64) bool {
		return v[0] == v[1] && v[0] == int64(p.number(`SELECT version FROM edge_documents`))
	})
	address := p.text(`SELECT host(private_address) FROM servers WHERE server_id = $1`, p.id("app"))
	leads := func(edge string) (n int) {
		var d struct {
			Hosts []wire.EdgeHost `json:"hosts"`
		}
		b, err := os.ReadFile(filepath.Join(p.rootOf(edge), wire.EdgeDir, "document.json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, &d))
		for _, h := range d.Hosts {
			if slices.Contains(h.Upstreams, wire.EdgeUpstream{Address: address + ":8080"}) {
				n++
			}
		}
		return n
	}
	require.Equal(t, []int{3, 3}, []int{leads(edges[0]), leads(edges[1])})

	place := func(to string) {
		p.exec(`UPDATE tenant_allocations SET app_server_id = $2 WHERE tenant_id = ANY ($1)`, open, p.id(to))
	}
	place("wrong")
	behind := func() []api.Attention {
		var all api.AttentionList
		p.send(http.MethodGet, "/v1/attention", nil, http.StatusOK, &all)
		return slices.DeleteFunc(all.Items, func(i api.Attention) bool { return i.Kind != needs.EdgeBehind })
	}
	held := await(t, "the document is held", behind, func(a []api.Attention) bool { return len(a) > 0 })
	require.Len(t, held, 1)
	require.Equal(t, needs.Critical, held[0].Severity)
	require.Equal(t, edges[0], held[0].Subject.Id)
	require.Regexp(t, `^it alone has document \d+, which closes 3 of 3 sites that answer: alpha, beta, gamma\. `+
		`The other edges keep document \d+$`, held[0].Message)
	status, errs, code := p.cli(p.operator, "status", "--kind", "edge_behind")
	require.Zero(t, code, errs)
	require.Contains(t, status, "alpha, beta, gamma")
	require.Equal(t, []int{0, 3}, []int{leads(edges[0]), leads(edges[1])}, "the other edge serves its sites")

	place("app")
	await(t, "both edges lead to the sites", func() []int { return []int{leads(edges[0]), leads(edges[1])} },
		func(n []int) bool { return n[0] == 3 && n[1] == 3 })
	await(t, "nothing is held", behind, func(a []api.Attention) bool { return len(a) == 0 })
}
