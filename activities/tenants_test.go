package activities_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// noRuns is a workflow engine that remembers the servers to take down.
type noRuns struct {
	activities.Runs
	mu      sync.Mutex
	down    []string
	resumed []string // tenants that have their place
	// provisioned are the tenants whose lost runs were started.
	provisioned []string
}

func (r *noRuns) EnsureTenantProvision(_ context.Context, id prego.TenantID, _ int) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.provisioned = append(r.provisioned, string(id))
	return true, nil
}

func (*noRuns) EnsureTenantChange(context.Context, prego.TenantID) (bool, error) { return true, nil }

func (r *noRuns) ResumeTenant(_ context.Context, t tenant.Tenant) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resumed = append(r.resumed, string(t.TenantID))
	return nil
}

func (*noRuns) EnsureScaleOut(context.Context, prego.Region, prego.Role, string) error { return nil }

func (*noRuns) EnsureScaleFleet(context.Context, prego.FleetID) error { return nil }

func (*noRuns) EnsureRefill(context.Context, prego.ServerID) error { return nil }

func (*noRuns) StartTenantSweep(context.Context) error { return nil }

func (*noRuns) StartMeasureSites(context.Context) error { return nil }

func (*noRuns) EnsureWarmPool(context.Context, prego.Region, prego.Plan) error { return nil }

func (r *noRuns) EnsureDecommission(_ context.Context, id prego.ServerID) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = append(r.down, string(id))
	return true, nil
}

// hosts remembers the commands run on them.
type hosts struct {
	mu  sync.Mutex
	ran [][]string // server, then the command
	all []server.BenchCommand
	// says returns a command's output by its verb, or nil for nothing.
	says map[string]string
	// fails is the verb that no host can do.
	fails string
	// hangs is the server that does not answer, and givenUp when the caller gives up on it.
	hangs   prego.ServerID
	givenUp time.Time
	// refusals is how often a verb fails first.
	refusals map[string]int
}

// verb is what a command asks for.
func verb(args []string) string {
	if args[0] == "--site" {
		return args[2]
	}
	return args[0]
}

// asked are the verbs that hosts were asked for since the last time.
func (h *hosts) asked() (verbs []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.ran {
		v := verb(c[1:])
		if v == "configure" || v == "set-maintenance-mode" {
			v += " " + c[len(c)-1]
		}
		verbs = append(verbs, v)
	}
	h.ran = nil
	return verbs
}

func (h *hosts) Bench(ctx context.Context, c server.BenchCommand) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.ServerID == h.hangs { // until the caller gives up
		h.givenUp, _ = ctx.Deadline()
		return "", context.DeadlineExceeded
	}
	h.ran, h.all = append(h.ran, append([]string{string(c.ServerID)}, c.Args...)), append(h.all, c)
	refused := h.refusals[verb(c.Args)] > 0
	if refused {
		h.refusals[verb(c.Args)]--
	}
	if refused || h.fails != "" && verb(c.Args) == h.fails {
		return "", &server.CommandError{Kind: "bench", ExitCode: 1, Stderr: "no", Permanent: true, Code: server.CommandFailed}
	}
	return h.says[verb(c.Args)], nil
}

func (h *hosts) BenchAll(ctx context.Context, cs []server.BenchCommand) (done int, err error) {
	for _, c := range cs {
		if _, err := h.Bench(ctx, c); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

// steps are the steps of tenants over a fleet on a real database.
type steps struct {
	*activities.Tenants
	env   *testsuite.TestActivityEnvironment
	runs  *noRuns
	hosts *hosts
}

func (p *placing) steps(placer *placer.Placer) *steps {
	s := &steps{runs: &noRuns{}, hosts: &hosts{}}
	s.Tenants = &activities.Tenants{
		Passwords: passwords{}, AwaitPeers: s.hosts.AwaitPeers,
		Store: p.Store, Placer: placer, Bench: s.hosts, Runs: s.runs, Log: zap.NewNop(), Metrics: activities.NewTenantMetrics(prometheus.NewRegistry()),
		Settings: activities.TenantSettings{SiteDomain: "sites.test", CommandTimeout: time.Second, SiteTimeout: time.Second},
	}
	var suite testsuite.WorkflowTestSuite
	s.env = suite.NewTestActivityEnvironment()
	s.env.RegisterActivity(s.Tenants)
	return s
}

// TestADatabaseOutlivesTheTenantsServer: a tenant with a dedicated app server has its database on a
// shard elsewhere, which stays when the app server goes.
func TestADatabaseOutlivesTheTenantsServer(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	placer := p.Placer(nil)
	s := p.steps(placer)
	tn := p.Tenant(prego.PlanEnterprise, nil)
	d, err := placer.Place(t.Context(), tenant.Record{Tenant: tn}, nil, "test")
	require.NoError(t, err)
	require.True(t, d.PlacesTenant())
	p.Exec(`UPDATE tenants SET site = 's1.sites.test', state = 'data_purged'`)
	own, err := p.Store.OwnServers(t.Context(), tn.TenantID)
	require.NoError(t, err)
	require.Equal(t, []string{"app-0"}, own)
	_, err = s.env.ExecuteActivity(s.DropSite, activities.DropInput{TenantID: tn.TenantID})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(s.hosts.ran, func(c []string) bool { return slices.Contains(c, "erase-site") && slices.Contains(c, "s1.sites.test") }), "%v", s.hosts.ran)
}

// TestAResumedRunSeesToTheServerOfTheLostOne: the new run also takes down a requested server that
// is not in use yet.
func TestAResumedRunSeesToTheServerOfTheLostOne(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	s := p.steps(p.Placer(nil))
	tn := p.Tenant(prego.PlanStarter, func(r *tenant.CreateRequest) { r.Policy = tenant.ModeOneTenantOneServer })
	ref := tenant.Ref{TenantID: tn.TenantID, Generation: 1}
	begun, err := s.BeginTenant(t.Context(), ref)
	require.NoError(t, err)
	require.False(t, begun.Plan.Resumed)
	_, err = s.RequestOwnServer(t.Context(), activities.OwnServerInput{Tenant: ref, Try: 1})
	require.NoError(t, err)
	begun, err = s.BeginTenant(t.Context(), ref)
	require.NoError(t, err)
	require.True(t, begun.Plan.Resumed)
}

// TestAServerThatIsNotNeededIsTakenDownByWhoeverComesNext: an operator placed the
// tenant elsewhere, and the run that built the server was lost.
func TestAServerThatIsNotNeededIsTakenDownByWhoeverComesNext(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	placer := p.Placer(nil)
	s := p.steps(placer)
	tn := p.Tenant(prego.PlanStarter, func(r *tenant.CreateRequest) { r.Policy = tenant.ModeOneTenantOneServer })
	ref := tenant.Ref{TenantID: tn.TenantID, Generation: 1}
	_, err := s.RequestOwnServer(t.Context(), activities.OwnServerInput{Tenant: ref, Try: 1})
	require.NoError(t, err)
	_, err = placer.Override(t.Context(), tenant.PlacementOverride{TenantID: tn.TenantID, ForceAppServerID: "app-0", Reason: "r"}, "alice")
	require.NoError(t, err)
	res, err := s.PlaceTenant(t.Context(), ref)
	require.NoError(t, err)
	require.True(t, res.Placed)
	require.Equal(t, []string{string("n-" + tn.TenantID + "-g1")}, s.runs.down)
}

// TestOneTenantHoldsUpNoQueue: what goes wrong with the first is no reason to leave
// the others waiting.
func TestOneTenantHoldsUpNoQueue(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 6)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	var ids []string
	for range 3 {
		tn := p.Tenant(prego.PlanStarter, nil)
		require.NoError(t, p.Store.AwaitTenant(t.Context(), tenant.Ref{TenantID: tn.TenantID, Generation: 1}, prego.ReasonAwaitingCapacity, "", nil, "", true))
		ids = append(ids, string(tn.TenantID))
	}
	placer := p.Placer(nil)
	placer.Store = store.New(pgtest.Tapped(t, p.Pool, func(sql string, args []any) error {
		if strings.Contains(sql, "FROM reserve_placements(") && slices.Contains(args[0].([]string), ids[0]) {
			return errors.New("this one cannot be reserved for")
		}
		return nil
	}))
	s := p.steps(placer)
	_, err := s.env.ExecuteActivity(s.ServeQueue, prego.Region("eu"))
	require.ErrorContains(t, err, ": this one cannot be reserved for", "and it is reported")
	require.Equal(t, 2, p.Number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = ANY ($1)`, ids[1:]))
	require.Equal(t, 2, p.Number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = 'placed' AND actor = 'placement_engine' AND to_state = 'provisioning' AND reason LIKE 'best_fit: app-0 %'`))
}

// TestWaitingTenantsCostOneLook: while equal tenants of an org are short of the same, a pass over the queue looks for a
// place for the first of them only. With room they are served in order, and each gets its run. What has waited for too
// long, and has nothing, ends.
func TestWaitingTenantsCostOneLook(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 6)
	var ids []string
	for range 20 {
		tn := p.Tenant(prego.PlanStarter, nil)
		ref := tenant.Ref{TenantID: tn.TenantID, Generation: 1}
		require.NoError(t, p.Store.AwaitTenant(t.Context(), ref, prego.ReasonAwaitingCapacity, "", nil, "", true))
		ids = append(ids, string(tn.TenantID))
	}
	var mu sync.Mutex
	looked := 0
	s := p.steps(p.Placer(nil))
	s.Settings.CapacityWait = time.Hour
	s.Store = store.New(pgtest.Tapped(t, p.Pool, func(sql string, _ []any) error {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(sql, "AS own_server_id") {
			looked++
		}
		return nil
	}))
	pass := func() int {
		looked = 0
		_, err := s.env.ExecuteActivity(s.ServeQueue, prego.Region("eu"))
		require.NoError(t, err)
		return looked
	}
	require.Equal(t, 20, pass(), "each learns what it is short of")
	require.Equal(t, 1, pass())
	require.Equal(t, 20, p.Number(`SELECT count(*) FROM tenants WHERE waiting_roles <> '{}' AND status_message <> ''`))

	p.Exec(`UPDATE tenants SET waiting_since = now() - interval '61 minutes' WHERE tenant_id = $1`, ids[0])
	_, err := s.env.ExecuteActivity(s.SweepTenantWork)
	require.NoError(t, err)
	require.Equal(t, "failed_capacity: no place within 1h0m0s", p.Text(`SELECT status_reason || ': ' ||
		status_message FROM tenants WHERE state = 'failed'`))
	require.Equal(t, 19, p.Number(`SELECT count(*) FROM tenants WHERE waiting_since IS NOT NULL`))

	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	_, err = s.env.ExecuteActivity(s.SweepTenantWork) // which needs no more than the rows, as after a restore of them
	require.NoError(t, err)
	require.Equal(t, ids[1:], s.runs.resumed)
	require.Zero(t, pass())
}

// TestAPassResumesOnlyPlacedTenants: a pass over the queue starts no run of a tenant that was cancelled since the queue
// was read. What can be placed by a server of its own leaves the queue for its run, which builds the server.
func TestAPassResumesOnlyPlacedTenants(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 6)
	wait := func(change func(*tenant.CreateRequest)) string {
		tn := p.Tenant(prego.PlanBusiness, change)
		ref := tenant.Ref{TenantID: tn.TenantID, Generation: 1}
		require.NoError(t, p.Store.AwaitTenant(t.Context(), ref, prego.ReasonCellMismatch, "", nil, "", true))
		return string(tn.TenantID)
	}
	cancelled := wait(nil)
	owns := wait(func(r *tenant.CreateRequest) { r.Policy = tenant.ModeOneTenantOneServer })
	s := p.steps(p.Placer(nil))
	s.Store = store.New(pgtest.Tapped(t, p.Pool, func(sql string, args []any) error {
		if strings.Contains(sql, "AS own_server_id") && args[0] == prego.TenantID(cancelled) {
			ref := tenant.Ref{TenantID: prego.TenantID(cancelled), Generation: 1}
			ended, err := p.Store.FailQueued(t.Context(), ref, prego.ReasonCancelled, "")
			require.True(t, ended)
			return err
		}
		return nil
	}))
	_, err := s.env.ExecuteActivity(s.ServeQueue, prego.Region("eu"))
	require.NoError(t, err)
	require.Equal(t, []string{owns}, s.runs.resumed)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenants WHERE tenant_id = $1 AND waiting_since IS NULL AND
		status_reason = 'building_server'`, owns))
}

// TestAPlacedTenantWithoutARunIsFound: a worker that dies between the place of a waiting tenant and the start of its
// run leaves a place that the sweep starts the run for.
func TestAPlacedTenantWithoutARunIsFound(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 6)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	tn := p.Tenant(prego.PlanStarter, nil)
	ref := tenant.Ref{TenantID: tn.TenantID, Generation: 1}
	require.NoError(t, p.Store.AwaitTenant(t.Context(), ref, prego.ReasonAwaitingCapacity, "", nil, "", true))
	s := p.steps(p.Placer(nil))
	s.Hook = func(point string) {
		if point == "queue/placed" {
			panic("the worker dies")
		}
	}
	_, err := s.env.ExecuteActivity(s.ServeQueue, prego.Region("eu"))
	require.ErrorContains(t, err, "the worker dies")
	require.Empty(t, s.runs.resumed)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenant_allocations WHERE released_at IS NULL`))
	p.Exec(`UPDATE tenants SET updated_at = now() - interval '1 hour'`)
	s.Hook = nil
	_, err = s.env.ExecuteActivity(s.SweepTenantWork)
	require.NoError(t, err)
	require.Equal(t, []string{string(tn.TenantID)}, s.runs.provisioned)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenant_allocations WHERE released_at IS NULL`))
}

// TestAnAttemptThatIsOvertakenFindsTheTenantPlaced: where the database is slow, a step is tried again before its first
// attempt has ended, and the tenant has then taken the last place itself.
func TestAnAttemptThatIsOvertakenFindsTheTenantPlaced(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]string{
		"no place":     `UPDATE servers SET updated_at = now()`,
		"not possible": `UPDATE infra_providers SET enabled = false`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlacing(t, 4)
			p.Server("app-0", prego.RoleApp, "")
			p.Server("db-0", prego.RoleDBShard, "")
			p.Server("redis-0", prego.RoleRedisPool, "")
			p.Exec(`UPDATE servers SET tenant_count = 19 WHERE server_id = 'app-0'`)
			tn := p.Tenant(prego.PlanStarter, nil)
			first, second, once := p.Placer(nil), p.Placer(nil), sync.Once{}
			second.Store = store.New(pgtest.Tapped(t, p.Pool, func(sql string, _ []any) (err error) {
				if strings.Contains(sql, "FROM changes WHERE xid") { // the tenant has been read
					once.Do(func() {
						var d placement.Decision
						d, err = first.Place(context.Background(), tenant.Record{Tenant: tn}, nil, "engine")
						assert.Equal(t, "app-0", string(d.AppServerID))
						p.Exec(then)
					})
				}
				return err
			}))
			res, err := p.steps(second).PlaceTenant(t.Context(), tenant.Ref{TenantID: tn.TenantID, Generation: 1})
			require.NoError(t, err)
			require.Equal(t, activities.PlaceResult{Placed: true, Outcome: placement.Placed}, res)
			require.Equal(t, 1, p.Number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1`, tn.TenantID))
		})
	}
}

// TestAnAttemptThatIsOvertakenFindsTheMovePlaced: a move has taken the last place itself, and does not fail for that.
func TestAnAttemptThatIsOvertakenFindsTheMovePlaced(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	for _, id := range []prego.ServerID{"app-0", "app-1"} {
		p.Server(id, prego.RoleApp, "")
	}
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	p.inNetwork()
	p.Exec(`UPDATE servers SET tenant_count = 19 WHERE server_id = 'app-1'`)
	tn := p.Tenant(prego.PlanStarter, nil)
	placer := p.Placer(nil)
	d, err := placer.Place(t.Context(), tenant.Record{Tenant: tn}, nil, "engine")
	require.NoError(t, err)
	require.Equal(t, "app-0", string(d.AppServerID))
	p.Exec(`UPDATE tenants SET state = 'active', converged_state = 'active', active_at = now(), site = 's1.sites.test'`)
	_, err = p.Store.RequestMove(t.Context(), tenant.MoveAsked{ID: "mov-1", TenantID: tn.TenantID, By: "ann"})
	require.NoError(t, err)

	steps := func(with *store.Store) *activities.Moves {
		own := p.Placer(nil)
		own.Store = with
		tenants := p.steps(own).Tenants
		return &activities.Moves{
			Store: p.Store, Tenants: tenants, Log: zap.NewNop(),
			Backups: &activities.Backups{Store: p.Store, Tenants: tenants, Objects: noObjects{}},
		}
	}
	once := sync.Once{}
	second := steps(store.New(pgtest.Tapped(t, p.Pool, func(sql string, _ []any) (err error) {
		if strings.Contains(sql, "FROM changes WHERE xid") { // the move has been read
			once.Do(func() { err = steps(p.Store).PlaceMove(context.Background(), "mov-1") })
		}
		return err
	})))
	require.NoError(t, second.PlaceMove(t.Context(), "mov-1"))
	require.Equal(t, 1,
		p.Number(`SELECT count(*) FROM tenant_moves WHERE state = 'copying' AND to_server_id = 'app-1'`))
	require.Equal(t, 20, p.Number(`SELECT tenant_count FROM servers WHERE server_id = 'app-1'`))
}

// noObjects is a storage that is not used.
type noObjects struct{ activities.ObjectStorage }

// TestAnOverrideThatComesTooLateIsRefused: the tenant lives where the engine put it, and no answer
// claims otherwise.
func TestAnOverrideThatComesTooLateIsRefused(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("app-1", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	tn := p.Tenant(prego.PlanStarter, nil)
	engine, placer, once := p.Placer(nil), p.Placer(nil), sync.Once{}
	placer.Store = store.New(pgtest.Tapped(t, p.Pool, func(sql string, _ []any) (err error) {
		if strings.Contains(sql, "FROM reserve_placements(") { // the tenant has been read
			once.Do(func() {
				var d placement.Decision
				d, err = engine.Place(context.Background(), tenant.Record{Tenant: tn}, nil, "engine")
				assert.Equal(t, "app-0", string(d.AppServerID))
			})
		}
		return err
	}))
	_, err := placer.Override(t.Context(), tenant.PlacementOverride{TenantID: tn.TenantID, ForceAppServerID: "app-1", Reason: "r"}, "alice")
	require.Equal(t, prego.CodeTenantPlaced, prego.CodeOf(err), "%v", err)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM placement_overrides WHERE NOT accepted`))
}
