package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// tenantTransitions are all that a tenant's state may go through.
var tenantTransitions = map[tenant.State][]tenant.State{
	tenant.Trial:        {tenant.Provisioning, tenant.Terminated},
	tenant.Provisioning: {tenant.Active, tenant.Failed, tenant.Suspended, tenant.GracePeriod}, // the last two: restored as it was lost
	tenant.Active:       {tenant.Suspended, tenant.GracePeriod, tenant.Failed},                // failed: its server is lost
	tenant.Suspended:    {tenant.Active, tenant.GracePeriod, tenant.Failed},
	tenant.GracePeriod:  {tenant.Active, tenant.Terminated, tenant.Failed},
	tenant.Failed:       {tenant.Provisioning, tenant.Terminated},
	tenant.Terminated:   {tenant.DataPurged},
}

func (c *cell) ask(id, verb string) {
	c.t.Helper()
	c.post("/v1/tenants/"+id+"/"+verb, map[string]string{"reason": "because of " + verb}, http.StatusAccepted, nil)
}

// expire lets the timer of a tenant's state run out.
func (c *cell) expire(id string) {
	c.t.Helper()
	tag, err := c.pool.Exec(context.Background(), `UPDATE tenants SET deadline_at = now() WHERE tenant_id = $1 AND deadline_at IS NOT NULL`, id)
	require.NoError(c.t, err)
	require.EqualValues(c.t, 1, tag.RowsAffected(), "a timer is set")
}

// TestLifecycle walks every edge that there is, with its effects on the host, and
// tries every action that has none from each state.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	app := c.sharedFleet(2)
	refused := func(id string, state tenant.State) {
		for _, a := range []tenant.Action{tenant.ActionSuspend, tenant.ActionResume, tenant.ActionCancel, tenant.ActionReactivate, tenant.ActionTerminate, tenant.ActionRetry} {
			if _, err := a.Apply(state); err == nil {
				continue
			}
			status, body := c.request(http.MethodPost, "/v1/tenants/"+id+"/"+string(a), nil)
			require.Equal(t, http.StatusConflict, status, "%s of a tenant that is %s: %s", a, state, body)
			require.Contains(t, string(body), `"invalid_transition"`)
		}
	}
	id := c.tenant("alpha", prego.PlanTrial, nil)
	step := func(what string, to tenant.State, maintenance string) {
		if what == "expire" {
			c.expire(id)
		} else {
			c.ask(id, what)
		}
		tn := c.settledTenant(id, to)
		if maintenance != "" {
			require.Equal(t, maintenance, c.maintenance(app, "alpha.sites.test"), "after %s", what)
		}
		last := tn.Timeline[len(tn.Timeline)-1]
		require.Equal(t, "effects_in_place", last.Step)
		refused(id, to)
	}
	c.settledTenant(id, tenant.Active)
	refused(id, tenant.Active)
	step("suspend", tenant.Suspended, "on")
	step("resume", tenant.Active, "off")
	step("suspend", tenant.Suspended, "on")
	step("cancel", tenant.GracePeriod, "on")
	step("reactivate", tenant.Active, "off")
	step("expire", tenant.GracePeriod, "") // the trial is over
	step("reactivate", tenant.Active, "off")
	step("cancel", tenant.GracePeriod, "")
	step("expire", tenant.Terminated, "on") // the grace period is
	c.lastBackup(c.getTenant(id), app, "CREATE TABLE")
	require.Contains(t, c.hostSites(prego.ServerID(app)), "alpha.sites.test", "the data is kept for the retention window")
	status, body := c.request(http.MethodPost, "/v1/tenants", map[string]any{"slug": "alpha", "org_id": "acme", "region": "eu", "plan": "starter"})
	require.Equal(t, http.StatusConflict, status, "%s", body)
	step("expire", tenant.DataPurged, "") // the retention is
	require.NotContains(t, c.hostSites(prego.ServerID(app)), "alpha.sites.test")
	require.Zero(t, c.number(`SELECT COALESCE(sum(tenant_count), 0) FROM servers`))
	require.Equal(t, 1, c.number(`SELECT count(*) FROM tenant_lifecycle_events WHERE tenant_id = $1 AND step = 'final_backup'`, id))
	for _, e := range c.getTenant(id).Timeline {
		if e.Step == "state_changed" && e.FromState != e.ToState {
			require.Contains(t, tenantTransitions[tenant.State(e.FromState)], tenant.State(e.ToState), e.FromState)
			require.NotEmpty(t, e.Actor)
		}
	}
	id = c.tenant("alpha", prego.PlanStarter, nil) // the slug is free again
	c.settledTenant(id, tenant.Active)
	c.counted()
	c.settled()
}

// TestAFailedSiteIsReplaced breaks one pool site: the tenant gets another,
// and of the broken one nothing is left.
func TestAFailedSiteIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	app := c.sharedFleet(3)
	c.inject(sim.Fault{Kind: "bench", Verb: "clear-cache", Action: "fail_after", Message: "disk full", Times: 1})
	id := c.tenant("alpha", prego.PlanStarter, nil)
	tn := c.settledTenant(id, tenant.Active)
	require.Contains(t, tenantSteps(tn), "reservation_released")
	require.Equal(t, 2, c.number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1`, id))
	c.awaitSites(app, 3)
	require.Len(t, c.hostSites(prego.ServerID(app)), 4, "three of the pool and the tenant's")
	c.counted()
}

// TestAFailedTenantLeavesNothing fails at every step permanently, and then retries.
func TestAFailedTenantLeavesNothing(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	app := c.sharedFleet(3)
	for active, tc := range []struct {
		slug   string
		fault  sim.Fault
		reason prego.Reason
	}{
		{"site", sim.Fault{Kind: "bench", Verb: "clear-cache", Action: "fail", Message: "no", Times: 2}, prego.ReasonFailedSite},
		{"apps", sim.Fault{Kind: "bench", Verb: "install-app", Action: "fail_after", Message: "no", Times: 1}, prego.ReasonFailedApps},
	} {
		c.awaitSites(app, 3)
		c.inject(tc.fault)
		id := c.tenant(tc.slug, prego.PlanStarter, func(m map[string]any) { m["apps"] = []string{"erpnext"} })
		tn := c.awaitTenant(id, "failed", func(tn api.Tenant) bool { return tn.State == "failed" || tn.State == "active" })
		require.Equal(t, "failed", string(tn.State))
		require.Equal(t, string(tc.reason), deref(tn.StatusReason))
		require.Nil(t, tn.Allocation)
		require.NotContains(t, c.hostSites(prego.ServerID(app)), tc.slug+".sites.test")
		require.Equal(t, active, c.number(`SELECT COALESCE(sum(tenant_count), 0) FROM servers`))
		c.awaitSites(app, 3)
		require.Len(t, c.hostSites(prego.ServerID(app)), 3+active)
		c.counted()

		c.ask(id, "retry") // the fault is fixed
		tn = c.settledTenant(id, tenant.Active)
		require.Equal(t, 2, tn.Generation)
		c.counted()
	}
}

// TestRefillGivesUp builds sites on a host where no build succeeds: each is failed
// with its reason, and the host is not tried for ever.
func TestRefillGivesUp(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars(), set: func(cfg *config.Config) { cfg.Tenants.FailureMemory = 10 * time.Minute }})
	c.inject(sim.Fault{Kind: "bench", Verb: "new-site", Action: "fail", Message: "no space left on device"})
	c.sharedFleet(0)
	app := c.id("app")
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM site_pool WHERE app_server_id = $1 AND state = 'failed' AND reason LIKE '%no space left%'`, app) >= 2
	}, patience, 50*time.Millisecond)
	failed := c.number(`SELECT count(*) FROM site_pool`)
	time.Sleep(4 * time.Second) // some sweeps long
	require.Equal(t, failed, c.number(`SELECT count(*) FROM site_pool`), "not tried again and again")
	require.LessOrEqual(t, failed, 4)
	eventually(t, func() bool { return c.number(`SELECT count(*) FROM site_pool WHERE dropped_at IS NULL`) == 0 }, patience, 50*time.Millisecond)
	require.Empty(t, c.hostSites(prego.ServerID(app)))
}

// TestTheFleetGrowsAheadOfNeed passes the threshold of capacity used: a server is added before any tenant waits.
func TestTheFleetGrowsAheadOfNeed(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: tenantVars(map[string]string{"PREGO_SHARED_PLACEMENT_LEGACY": "1", "PLACEMENT_MAX_TENANTS_PER_NODE": "2"})})
	c.org("acme", "")
	c.sharedFleet(2)
	for _, slug := range []string{"alpha", "beta"} {
		c.settledTenant(c.tenant(slug, prego.PlanStarter, nil), tenant.Active)
	}
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM scaling_events WHERE role = 'app' AND trigger = 'threshold' AND made = 1`) == 1
	}, patience, 50*time.Millisecond)
	require.Zero(t, c.number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = 'awaiting_capacity'`))
	time.Sleep(3 * time.Second) // some sweeps long
	require.Equal(t, 2, c.number(`SELECT count(*) FROM servers WHERE role = 'app'`), "one is enough")
}

// TestServersWithTenantsAreKept refuses to take down what tenants live on, unless what is lost is accepted.
func TestServersWithTenantsAreKept(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	app := c.sharedFleet(2)
	id := c.tenant("alpha", prego.PlanStarter, nil)
	c.settledTenant(id, tenant.Active)
	for _, server := range []string{c.id("db"), c.id("redis"), app} {
		status, body := c.requestOnce(http.MethodDelete, "/v1/servers/"+server, nil)
		require.Equal(t, http.StatusConflict, status, "%s", body)
		require.Contains(t, string(body), `"impact_not_accepted"`)
		require.Contains(t, string(body), id)
	}
	_, errs, status := c.cli(c.operator, "server", "delete", app, "--yes")
	require.Equal(t, 1, status, "that accepts what is interrupted only: %s", errs)
	_, errs, status = c.cli(c.operator, "server", "delete", app, "--accept", "destroys")
	require.Zero(t, status, errs)
	c.awaitStatus("app", server.Terminated)
	require.Zero(t, c.number(`SELECT count(*) FROM site_pool WHERE state = 'available'`))
	// It is lost with its server, and its remains can be terminated.
	c.failedTenant(id, prego.ReasonServerLost)
	c.ask(id, "terminate")
	c.settledTenant(id, tenant.Terminated)
	c.expire(id)
	c.settledTenant(id, tenant.DataPurged)
	c.counted()
	c.settled()
}

// benchHit reports that a fault of bench has happened.
func (c *cell) benchHit() bool {
	for _, f := range c.sim.Faults() {
		if f.Kind == "bench" && f.Hits > 0 {
			return true
		}
	}
	return false
}

// TestCancelAtEveryStep cancels a provisioning wherever it can stand. Nothing is
// left: no reservation, no site, no server.
func TestCancelAtEveryStep(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		vars     map[string]string
		before   func(c *cell)
		apps     []string
		standing func(c *cell, tn api.Tenant) bool
	}{
		"waiting for capacity": {
			vars:   sharedVars(),
			before: func(c *cell) { c.inject(sim.Fault{Kind: "slow_boot", DelayMS: 60_000}) },
			standing: func(c *cell, tn api.Tenant) bool {
				return deref(tn.StatusReason) == "awaiting_capacity" && len(c.billed("server")) > 0
			},
		},
		"building its server": {
			vars:   tenantVars(nil),
			before: func(c *cell) { c.inject(sim.Fault{Kind: "slow_boot", DelayMS: 60_000}) },
			standing: func(c *cell, tn api.Tenant) bool {
				return deref(tn.StatusReason) == "building_server" && len(c.billed("server")) == 1
			},
		},
		"promoting its site": {
			vars: sharedVars(),
			before: func(c *cell) {
				c.sharedFleet(3)
				c.inject(sim.Fault{Kind: "bench", Verb: "clear-cache", Action: "hang", DelayMS: 3000, Times: 1})
			},
			standing: func(c *cell, _ api.Tenant) bool { return c.benchHit() },
		},
		"making its site": {
			vars: sharedVars(),
			before: func(c *cell) {
				c.policies(0, 0)
				c.sharedFleet(0)
				c.inject(sim.Fault{Kind: "bench", Verb: "new-site", Action: "hang", DelayMS: 3000, Times: 1})
			},
			standing: func(c *cell, _ api.Tenant) bool { return c.benchHit() },
		},
		"installing apps": {
			vars: sharedVars(), apps: []string{"erpnext"},
			before: func(c *cell) {
				c.sharedFleet(3)
				c.inject(sim.Fault{Kind: "bench", Verb: "install-app", Action: "hang", DelayMS: 3000, Times: 1})
			},
			standing: func(c *cell, _ api.Tenant) bool { return c.benchHit() },
		},
	}
	for _, name := range deep.Some(t, 1, slices.Sorted(maps.Keys(cases))) {
		tc := cases[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCell(t, options{vars: tc.vars})
			c.org("acme", "")
			tc.before(c)
			id := c.tenant("alpha", prego.PlanStarter, func(m map[string]any) {
				if tc.apps != nil {
					m["apps"] = tc.apps
				}
			})
			c.awaitTenant(id, "at its point of cancellation", func(tn api.Tenant) bool { return tc.standing(c, tn) })
			c.ask(id, "cancel")
			tn := c.awaitTenant(id, "failed", func(tn api.Tenant) bool { return tn.State == "failed" })
			require.Equal(t, "cancelled", deref(tn.StatusReason), deref(tn.StatusMessage))
			require.Nil(t, tn.Allocation)
			require.Zero(t, c.number(`SELECT COALESCE(sum(tenant_count), 0) FROM servers`))
			require.Zero(t, c.number(`SELECT count(*) FROM site_pool WHERE tenant_id IS NOT NULL`))
			c.counted()
			require.Never(t, func() bool { // unfinished work on the host also brings nothing back
				for _, h := range c.sim.Hosts() {
					sites, err := sim.HostSites(h.Root)
					for _, s := range sites {
						if err == nil && s == "alpha.sites.test" {
							return true
						}
					}
				}
				return false
			}, 4*time.Second, 200*time.Millisecond)
			eventually(t, func() bool {
				return c.number(`SELECT count(*) FROM servers WHERE dedicated_for_tenant_id = $1 AND status <> 'terminated'`, id) == 0
			}, patience, 50*time.Millisecond, "its own server is gone")
		})
	}
}

// TestWorkerDiesBetweenAnyTwoSteps kills the worker right before and after each
// effect on a tenant's way: another one finishes, and everything happened once.
func TestWorkerDiesBetweenAnyTwoSteps(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		points []string // of one tenant each, one after the other
		fleet  bool     // servers and sites are there before
		vars   map[string]string
		plain  bool // without apps: all of its site is one group of commands
	}{
		"placing":           {[]string{"place/decided", "place/recorded", "site/start"}, true, sharedVars(), false},
		"configuring":       {[]string{"site/made", "site/configured", "apps/installed"}, true, sharedVars(), false},
		"activating":        {[]string{"site/opened", "tenant_activate/start", "tenant_activate/done"}, true, sharedVars(), false},
		"without apps":      {[]string{"commands/promote-site", "commands/configure", "site/opened", "tenant_activate/done"}, true, sharedVars(), true},
		"building a site":   {[]string{"build/made"}, false, sharedVars(), false},
		"building a server": {[]string{"own_server/requested"}, false, tenantVars(nil), false},
		"scaling out":       {[]string{"scale_out/requested"}, false, sharedVars(), false},
		"serving the queue": {[]string{"queue/placed"}, false, sharedVars(), false},
	}
	for _, name := range deep.Some(t, 1, slices.Sorted(maps.Keys(cases))) {
		tc := cases[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crash := filepath.Join(t.TempDir(), "crash")
			vars := map[string]string{"PREGO_TEST_CRASH": crash}
			maps.Copy(vars, tc.vars)
			c := newCell(t, options{vars: vars})
			c.org("acme", "")
			if tc.fleet {
				c.sharedFleet(3)
			}
			for i, point := range tc.points {
				if tc.fleet {
					c.awaitSites(c.id("app"), 1)
				}
				require.NoError(t, os.WriteFile(crash, []byte(point), 0o600))
				if point == "build/made" {
					for id, role := range map[string]prego.Role{"app": prego.RoleApp, "db": prego.RoleDBShard, "redis": prego.RoleRedisPool} {
						c.create(id, role, server.Spec{})
					}
				}
				installed, apps := `["frappe", "erpnext"]`, []string{"erpnext"}
				if tc.plain {
					installed, apps = `["frappe"]`, nil
				}
				id := c.tenant(fmt.Sprintf("alpha%d", i), prego.PlanStarter, func(m map[string]any) {
					if apps != nil {
						m["apps"] = apps
					}
				})
				eventually(t, func() bool { return os.Remove(crash+".hit") == nil }, patience, 20*time.Millisecond, "%s is reached", point)
				c.kill("worker")
				c.start("worker")
				tn := c.settledTenant(id, tenant.Active)
				require.Equal(t, 1, c.number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1`, id), point)
				has := inMariaDB[string](c, tn.Allocation.AppServerId, tn.Allocation.DatabaseName, "SELECT defvalue FROM `"+tn.Allocation.DatabaseName+"`.tabDefaultValue WHERE parent = '__global' AND defkey = 'installed_apps'")
				require.JSONEq(t, installed, has, "%s: installed once", point)
				require.True(t, c.scheduler(tn.Allocation.AppServerId, tn.Allocation.DatabaseName), point)
				if !tc.fleet && point != "build/made" {
					require.LessOrEqual(t, c.everBilled("server"), 3)
				}
				c.counted()
				c.settled()
			}
		})
	}
}
