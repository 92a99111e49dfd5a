package activities_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// toBuild is a placed tenant, with a pool site or without, and the steps that build it.
func toBuild(t *testing.T, pooled bool, apps ...string) (*placing, *steps, tenant.Ref) {
	t.Helper()
	p := newPlacing(t, 1)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	if pooled {
		p.Exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state) VALUES ('ps-1', 'app-0', 'db-0', 'pool-1.sites.test', 'pool_1', 'available')`)
	}
	s := p.steps(p.Placer(nil))
	s.Settings.StepTimeout, s.Settings.AppTimeout = time.Minute, time.Minute
	tn := p.Tenant(prego.PlanStarter, nil)
	p.Exec(`UPDATE tenants SET admin_email = 'ann@example.com', admin_name = 'Ann', apps = $1`, append([]string{}, apps...))
	ref := tenant.Ref{TenantID: tn.TenantID, Generation: 1}
	value, err := s.env.ExecuteActivity(s.BeginTenant, ref)
	require.NoError(t, err)
	var begun activities.TenantBegun
	require.NoError(t, value.Get(&begun))
	require.True(t, begun.Place.Placed)
	require.False(t, begun.Plan.Resumed)
	return p, s, ref
}

// TestATenantIsBuiltOnce: a repeated build succeeds wherever the answer was lost.
func TestATenantIsBuiltOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pooled bool
		apps   []string
		verbs  []string
		steps  []string
	}{
		"pool site": {
			true, nil,
			[]string{"promote-site", "configure", "add-user", "enable-scheduler", "answers"},
			[]string{"site_promoted", "user_added", "state_changed"},
		},
		"pool site and apps": {
			true,
			[]string{"erpnext", "hrms"},
			[]string{"promote-site", "configure", "install-app", "install-app", "add-user", "enable-scheduler", "answers"},
			[]string{"site_promoted", "apps_installed", "user_added", "state_changed"},
		},
		"new site": {
			false, nil,
			[]string{"new-site", "configure", "add-user", "enable-scheduler", "answers"},
			[]string{"site_created", "user_added", "state_changed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s, ref := toBuild(t, c.pooled, c.apps...)
			_, err := s.env.ExecuteActivity(s.BuildTenant, ref)
			require.NoError(t, err)
			var verbs []string
			for _, ran := range s.hosts.ran {
				verbs = append(verbs, verb(ran[1:]))
			}
			require.Equal(t, c.verbs, verbs)
			check := func() {
				require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenants WHERE state = 'active' AND site <> '' AND converged_state = 'active'`))
				for _, step := range c.steps {
					require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = $1 AND (step <> 'state_changed' OR to_state = 'active')`, step), step)
				}
				if c.pooled {
					require.Equal(t, 1, p.Number(`SELECT count(*) FROM site_pool JOIN tenants USING (tenant_id) WHERE site_pool.state = 'assigned' AND site_name = site`))
				}
			}
			check()
			s.hosts.ran = nil
			_, err = s.env.ExecuteActivity(s.BuildTenant, ref) // the answer was lost
			require.NoError(t, err)
			require.Empty(t, s.hosts.ran)
			check()
			// All was done on the host, and nothing was recorded.
			p.Exec(`UPDATE tenants SET state = 'provisioning', site = ''`)
			p.Exec(`UPDATE site_pool SET state = 'reserved', reserved_until = now() + interval '1 hour' WHERE tenant_id IS NOT NULL`)
			_, err = s.env.ExecuteActivity(s.BuildTenant, ref)
			require.NoError(t, err)
			check()
			// The row has moved on.
			p.Exec(`UPDATE tenants SET generation = 2`)
			_, err = s.env.ExecuteActivity(s.BuildTenant, ref)
			var ended *temporal.ApplicationError
			require.ErrorAs(t, err, &ended)
			require.Equal(t, activities.ErrTypeSuperseded, ended.Type())
		})
	}
}

// TestAFailedBuildSaysWhere: the run decides by the part that failed.
func TestAFailedBuildSaysWhere(t *testing.T) {
	t.Parallel()
	for failing, c := range map[string]struct {
		apps []string
		want activities.BuildStep
	}{
		"promote-site":     {nil, activities.StepSite},
		"configure":        {[]string{"erpnext"}, activities.StepSite},
		"install-app":      {[]string{"erpnext"}, activities.StepApps},
		"add-user":         {nil, activities.StepOpen},
		"enable-scheduler": {[]string{"erpnext"}, activities.StepOpen},
	} {
		t.Run(failing, func(t *testing.T) {
			t.Parallel()
			p, s, ref := toBuild(t, true, c.apps...)
			s.hosts.fails = failing
			_, err := s.env.ExecuteActivity(s.BuildTenant, ref)
			var ended *temporal.ApplicationError
			require.ErrorAs(t, err, &ended)
			require.Equal(t, activities.ErrTypeCommand, ended.Type())
			require.True(t, ended.NonRetryable())
			var step activities.BuildStep
			require.NoError(t, ended.Details(&step))
			require.Equal(t, c.want, step)
			require.Zero(t, p.Number(`SELECT count(*) FROM tenants WHERE state = 'active'`))
		})
	}
}

// TestATenantWhoseServerIsLostTakesAnotherPlace: it has no site yet that could be lost, and no command is
// sent to a server that is gone.
func TestATenantWhoseServerIsLostTakesAnotherPlace(t *testing.T) {
	t.Parallel()
	for role, lost := range map[prego.Role]prego.ServerID{prego.RoleApp: "app-0", prego.RoleDBShard: "db-0", prego.RoleRedisPool: "redis-0"} {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			p, s, ref := toBuild(t, false)
			p.Exec(`UPDATE tenant_allocations SET on_shard = true, on_pool = true`)
			_, err := p.Store.LoseServer(impact.By(t.Context(), "test"), lost, "its disk died", "alice")
			require.NoError(t, err)
			require.NoError(t, p.Store.Terminate(t.Context(), lost))
			_, err = s.env.ExecuteActivity(s.BuildTenant, ref)
			var ended *temporal.ApplicationError
			require.ErrorAs(t, err, &ended)
			require.True(t, ended.NonRetryable())
			require.Equal(t, activities.ErrTypeCommand, ended.Type())
			require.Contains(t, ended.Message(), string("server "+lost+" is gone"))
			var step activities.BuildStep
			require.NoError(t, ended.Details(&step))
			require.Equal(t, activities.StepSite, step, "the run tries another site")
			require.Empty(t, s.hosts.ran)

			_, err = s.env.ExecuteActivity(s.DropSite, activities.DropInput{TenantID: ref.TenantID})
			require.NoError(t, err)
			for _, ran := range s.hosts.ran {
				require.NotEqual(t, string(lost), ran[0])
			}
			require.NoError(t, p.Store.FreePlace(t.Context(), ref.TenantID, "failed_site", "", tenant.SiteDropped, nil))
			p.Server("another-1", role, "")
			value, err := s.env.ExecuteActivity(s.PlaceTenant, ref)
			require.NoError(t, err)
			var again activities.PlaceResult
			require.NoError(t, value.Get(&again))
			require.True(t, again.Placed)
			_, err = s.env.ExecuteActivity(s.BuildTenant, ref)
			require.NoError(t, err)
			require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenants JOIN tenant_allocations USING (tenant_id) WHERE state = 'active' AND released_at IS NULL`))
		})
	}
}

// TestABuiltSiteWaitsForAnEdge: a repeated step runs nothing on the host again, and no tenant is active before an edge
// has found its site up. After half a minute the row has why none has.
func TestABuiltSiteWaitsForAnEdge(t *testing.T) {
	t.Parallel()
	for name, pooled := range map[string]bool{"pool site": true, "new site": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s, ref := toBuild(t, pooled)
			p.Server("edge-0", prego.RoleEdge, "")
			p.Exec(`INSERT INTO edges (server_id, network, watched_from, watched_until)
				SELECT 'edge-0', COALESCE(network_id, region), now(), now() FROM servers WHERE server_id = 'app-0'`)
			build := func() (open bool) {
				t.Helper()
				v, err := s.env.ExecuteActivity(s.BuildTenant, ref)
				require.NoError(t, err)
				require.NoError(t, v.Get(&open))
				return open
			}
			look := func() (now activities.OpenResult) {
				t.Helper()
				v, err := s.env.ExecuteActivity(s.OpenTenant, ref)
				require.NoError(t, err)
				require.NoError(t, v.Get(&now))
				return now
			}
			require.False(t, build())
			require.Equal(t, "enable-scheduler", verb(s.hosts.ran[len(s.hosts.ran)-1][1:]), "the edge asks whether it answers")
			s.hosts.ran = nil
			require.False(t, build(), "the answer was lost")
			require.Zero(t, look())
			require.Empty(t, s.hosts.ran)
			state := func() string {
				return p.Text(`SELECT concat(state, ' ', status_reason, ' ',
					(SELECT count(*) FROM site_pool WHERE state = 'reserved')) FROM tenants`)
			}
			require.Equal(t, "provisioning  0", state())
			p.Exec(`UPDATE tenants SET opening_since = now() - interval '30 seconds'`)
			require.Zero(t, look())
			require.Equal(t, "provisioning awaiting_edge 0", state())
			p.Exec(`UPDATE edges SET asked_at = 'epoch'`)
			require.Equal(t, activities.OpenResult{Alone: true}, look())
			p.Exec(`UPDATE edges SET asked_at = now()`)
			p.Exec(`INSERT INTO site_health (tenant_id, server_id, up, cause, since, seen_from)
				SELECT tenant_id, 'edge-0', true, '', now(), now() FROM tenants`)
			for range 2 {
				require.Equal(t, activities.OpenResult{Open: true}, look())
			}
			require.Equal(t, "active  0", state())
			require.True(t, build())
			require.Empty(t, s.hosts.ran)
		})
	}
}

// TestASiteWithoutALiveEdgeIsAskedOnItsHost: until it answers, and also when its edges die while it waits for them.
func TestASiteWithoutALiveEdgeIsAskedOnItsHost(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"none": false, "edges die": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s, ref := toBuild(t, true)
			if waits {
				p.Server("edge-0", prego.RoleEdge, "")
				p.Exec(`INSERT INTO edges (server_id, network) SELECT 'edge-0', COALESCE(network_id, region) FROM servers
					WHERE server_id = 'app-0'`)
				_, err := s.env.ExecuteActivity(s.BuildTenant, ref)
				require.NoError(t, err)
				p.Exec(`UPDATE servers SET status = 'failed' WHERE server_id = 'edge-0'`)
			}
			s.hosts.refusals = map[string]int{"answers": 2}
			v, err := s.env.ExecuteActivity(s.BuildTenant, ref)
			require.NoError(t, err)
			var open bool
			require.NoError(t, v.Get(&open))
			require.True(t, open)
			asked := map[string]bool{}
			for _, c := range s.hosts.all {
				if verb(c.Args) == "answers" {
					asked[c.AuditID] = true
				}
			}
			require.Len(t, asked, 3, "each time again")
		})
	}
}
