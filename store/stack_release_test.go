package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

const (
	benchesHere = `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by)
		VALUES ($1, '', $2, 'eu', 'hetzner', '{}', $3, 'connected', 'w', 'test')`
	soaked = `UPDATE stack_release_servers SET finished_at = finished_at - interval '2 minutes' WHERE status = 'done'`
)

var releaseLimits = server.StackReleaseLimits{Sites: 10, OrgSites: 3}

func releaseSetup(t *testing.T, servers int) *Store {
	t.Helper()
	s := tenantStore(t)
	for i := range servers {
		exec(t, s, benchesHere, fmt.Sprintf("app-%d", i), "app", "active")
	}
	exec(t, s, benchesHere, "db-1", "db-shard", "active")
	exec(t, s, benchesHere, "app-old", "app", "draining")
	return s
}

// TestAReleaseGoesByRings: rings come after each other and soak, a server that goes back stops it, it is tried again,
// a late server gets it, and new servers run it once it is done.
func TestAReleaseGoesByRings(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := releaseSetup(t, 2)
	in := server.CreateStackReleaseRequest{Name: "r1", Image: "i:1", Rings: []server.ReleaseRing{{Name: "early", Percent: 5, SoakSeconds: 60}, {Name: "rest"}}}
	_, err := s.CreateStackRelease(ctx, in, "ann")
	require.NoError(t, err)
	_, err = s.CreateStackRelease(ctx, in, "ann")
	require.NoError(t, err, "again")
	in.Image = "i:2"
	_, err = s.CreateStackRelease(ctx, in, "ann")
	require.Equal(t, prego.CodeStackReleaseExists, prego.CodeOf(err))
	_, err = s.PauseStackRelease(ctx, "r1", "ann")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err))
	_, err = s.StartStackRelease(ctx, "none", "ann")
	require.Equal(t, prego.CodeStackReleaseNotFound, prego.CodeOf(err))

	_, err = s.StartStackRelease(ctx, "r1", "ann")
	require.NoError(t, err)
	exec(t, s, `UPDATE stack_release_servers SET ring = 0 WHERE server_id = 'app-0'`)
	step := func() server.StackReleaseStep {
		t.Helper()
		st, err := s.StepStackRelease(ctx, "r1", releaseLimits)
		require.NoError(t, err)
		return st
	}
	closed := func(id string) bool {
		t.Helper()
		v, err := value[bool](ctx, s.pool, `SELECT closing AND cordoned_at IS NOT NULL FROM servers WHERE server_id = $1`, id)
		require.NoError(t, err)
		return v
	}
	require.Equal(t, []prego.ServerID{"app-0"}, step().Updating)
	require.Equal(t, []prego.ServerID{"app-0"}, step().Updating, "repeated")
	require.True(t, closed("app-0"))
	require.False(t, closed("app-1"))
	run, err := s.BeginBenchUpdate(ctx, "r1", "app-0")
	require.NoError(t, err)
	require.Empty(t, run.Waits)
	require.NoError(t, s.SetBenchImage(ctx, "r1", "app-0", "i:1"))

	// It goes back, the release stops, and is tried again.
	require.NoError(t, s.UndoBench(ctx, "r1", "app-0", 1, server.ReasonMigrateFailed, "a patch failed"))
	require.NoError(t, s.UndoBench(ctx, "r1", "app-0", 1, server.ReasonWrongVersion, "later"))
	require.NoError(t, s.SetBenchImage(ctx, "r1", "app-0", ""))
	require.NoError(t, s.EndBench(ctx, "r1", "app-0", 1, server.BenchRolledBack, "", ""))
	require.False(t, closed("app-0"))
	require.Equal(t, server.ReleaseStopped, step().Status)
	r, err := s.GetStackRelease(ctx, "r1")
	require.NoError(t, err)
	require.Equal(t, server.ReasonMigrateFailed, r.Reason, "the first reason")
	require.Contains(t, r.Message, "a patch failed")
	_, err = s.ResumeStackRelease(ctx, "r1", "ann")
	require.NoError(t, err)
	require.Equal(t, []prego.ServerID{"app-0"}, step().Updating)
	require.NoError(t, s.SetBenchImage(ctx, "r1", "app-0", "i:1"))
	// The end of the first try is repeated: its worker died when the row was written.
	require.NoError(t, s.UndoBench(ctx, "r1", "app-0", 1, server.ReasonMigrateFailed, "a patch failed"))
	require.NoError(t, s.EndBench(ctx, "r1", "app-0", 1, server.BenchRolledBack, "", ""))
	run, err = s.BenchRecord(ctx, "r1", "app-0")
	require.NoError(t, err)
	require.Equal(t, []any{server.BenchUpdating, false, 2}, []any{run.Status, run.Undoing, run.Try})
	require.NoError(t, s.EndBench(ctx, "r1", "app-0", 2, server.BenchDone, "", ""))

	// The next ring waits for a minute; who joined meanwhile is in it.
	exec(t, s, benchesHere, "app-late", "node", "active")
	require.Empty(t, step().Updating)
	require.Contains(t, step().Message, "soaks until")
	exec(t, s, soaked)
	exec(t, s, `UPDATE servers SET agent_status = 'disconnected' WHERE server_id = 'app-1'`)
	st := step()
	require.Equal(t, []prego.ServerID{"app-late"}, st.Updating)
	require.Contains(t, st.Message, "not ready: app-1")
	exec(t, s, `UPDATE servers SET status = 'draining' WHERE server_id = 'app-1'`)
	// Its way back fails: it stays closed, and a cancel is refused.
	require.NoError(t, s.EndBench(ctx, "r1", "app-late", 1, server.BenchBroken, server.ReasonRollbackFailed, "no answer"))
	require.True(t, closed("app-late"))
	require.Equal(t, server.ReleaseStopped, step().Status)
	_, err = s.CancelStackRelease(ctx, "r1", "ann")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err))
	_, err = s.ResumeStackRelease(ctx, "r1", "ann")
	require.NoError(t, err)
	require.Equal(t, []prego.ServerID{"app-late"}, step().Updating)
	run, err = s.BeginBenchUpdate(ctx, "r1", "app-late")
	require.NoError(t, err)
	require.True(t, run.Undoing)
	require.NoError(t, s.EndBench(ctx, "r1", "app-late", 1, server.BenchDone, "", ""))
	require.Equal(t, server.ReleaseDone, step().Status)

	exec(t, s, benchesHere, "app-new", "app", "provisioning")
	_, bench, err := s.ContainerPlace(ctx, "app-new")
	require.NoError(t, err)
	require.Equal(t, "i:1", bench)
	_, bench, err = s.ContainerPlace(ctx, "db-1")
	require.NoError(t, err)
	require.Empty(t, bench)

	in.Name = "r2"
	_, err = s.CreateStackRelease(ctx, in, "ann")
	require.NoError(t, err)
	in.Name = "r3"
	_, err = s.CreateStackRelease(ctx, in, "ann")
	require.NoError(t, err)
	_, err = s.StartStackRelease(ctx, "r2", "ann")
	require.NoError(t, err)
	_, err = s.StartStackRelease(ctx, "r3", "ann")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err), "one at a time")
	quiet, err := s.QuietStackReleases(ctx, -time.Second)
	require.NoError(t, err)
	require.Equal(t, []server.StackReleaseName{"r2"}, quiet)
	_, err = s.CancelStackRelease(ctx, "r2", "ann")
	require.NoError(t, err)
	_, err = s.StartStackRelease(ctx, "r3", "ann")
	require.NoError(t, err)
}

func TestAReleaseKeepsItsBudget(t *testing.T) {
	t.Parallel()
	p := &releaseStep{limits: releaseLimits}
	of := func(orgs ...prego.OrgID) releaseServer { return releaseServer{Orgs: orgs} }
	require.True(t, p.fits(of("a", "b"), 8, nil))
	require.False(t, p.fits(of("a", "b"), 9, nil), "of all")
	require.True(t, p.fits(of("a", "a"), 1, map[prego.OrgID]int{"a": 1}))
	require.False(t, p.fits(of("a", "a"), 2, map[prego.OrgID]int{"a": 2}), "of one org")
	require.True(t, p.fits(of("a", "a", "a", "a"), 2, map[prego.OrgID]int{"b": 2}), "an org whose sites are all on one server")
}

// TestSitesAreClosedForARelease: servers begin within the budget of their tenants' org, once no other work is
// changing a site; then edges are notified, and no other work changes the sites until they are open again.
func TestSitesAreClosedForARelease(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 9), context.Background()
	exec(t, s, `UPDATE servers SET agent_status = 'connected'`)
	exec(t, s, `UPDATE tenants SET converged_state = 'active'`)
	in := server.CreateStackReleaseRequest{Name: "r1", Image: "i:1", Rings: []server.ReleaseRing{{Name: "rest"}}}
	_, err := s.CreateStackRelease(ctx, in, "ann")
	require.NoError(t, err)
	_, err = s.StartStackRelease(impact.By(ctx, "test"), "r1", "ann")
	require.NoError(t, err)
	st, err := s.StepStackRelease(ctx, "r1", releaseLimits)
	require.NoError(t, err)
	require.Equal(t, []prego.ServerID{"n-0"}, st.Updating, "of the org only 3 sites concurrently")

	exec(t, s, `UPDATE tenants SET converged_state = 'suspended' WHERE tenant_id = 't-3'`)
	run, err := s.BeginBenchUpdate(ctx, "r1", "n-0")
	require.NoError(t, err)
	require.Equal(t, "tenant t-3 is becoming active", run.Waits)
	exec(t, s, `UPDATE tenants SET state = 'provisioning' WHERE tenant_id = 't-3'`)
	run, err = s.BeginBenchUpdate(ctx, "r1", "n-0")
	require.NoError(t, err)
	require.Equal(t, "tenant t-3 is being provisioned", run.Waits)
	exec(t, s, `UPDATE tenants SET opening_since = now() WHERE tenant_id = 't-3'`)
	run, err = s.BeginBenchUpdate(ctx, "r1", "n-0")
	require.NoError(t, err)
	require.Empty(t, run.Waits, "a site that waits for an edge is updated with the others")
	require.Len(t, run.Sites, 3)
	again, err := s.BeginBenchUpdate(ctx, "r1", "n-0")
	require.NoError(t, err)
	require.Equal(t, run.Sites, again.Sites)

	closed := func(want bool) {
		t.Helper()
		before, err := s.EdgeChanges(ctx, "")
		require.NoError(t, err)
		for _, site := range before.Sites {
			require.Equal(t, want && site.ServerID == "n-0", site.Maintenance, site.Name)
		}
		r, err := s.TenantRecord(ctx, "t-3")
		require.NoError(t, err)
		require.Equal(t, want, r.Updating)
	}
	closed(false)
	start, err := s.EdgeChanges(ctx, "")
	require.NoError(t, err)
	require.NoError(t, s.CloseBenchSites(ctx, "r1", "n-0"))
	closed(true)
	told, err := s.EdgeChanges(ctx, start.Since)
	require.NoError(t, err)
	require.Contains(t, told.TenantIDs, prego.TenantID("t-3"), "edges are notified")
	require.NoError(t, s.OpenBenchSites(ctx, "r1", "n-0"))
	closed(false)
}

// TestLostServerReleasesItsTenants loses a server in the middle of a release that has its sites offline: its tenants are
// served again once they are restored elsewhere, their sites can be changed and backed up, and the release does not wait
// for the server.
func TestLostServerReleasesItsTenants(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 9), context.Background()
	counted(t, s)
	exec(t, s, `UPDATE servers SET agent_status = 'connected'`)
	exec(t, s, `UPDATE tenants SET converged_state = 'active'`)
	_, err := s.CreateStackRelease(ctx, server.CreateStackReleaseRequest{Name: "r1", Image: "i:1", Rings: []server.ReleaseRing{{Name: "early", Percent: 5}, {Name: "rest"}}}, "ann")
	require.NoError(t, err)
	_, err = s.StartStackRelease(impact.By(ctx, "test"), "r1", "ann")
	require.NoError(t, err)
	exec(t, s, `UPDATE stack_release_servers SET ring = CASE server_id WHEN 'n-0' THEN 0 ELSE 1 END`)
	step := func() server.StackReleaseStep {
		t.Helper()
		st, err := s.StepStackRelease(ctx, "r1", releaseLimits)
		require.NoError(t, err)
		return st
	}
	require.Equal(t, []prego.ServerID{"n-0"}, step().Updating)
	_, err = s.BeginBenchUpdate(ctx, "r1", "n-0")
	require.NoError(t, err)
	storedBackup(t, s, "bak-stored", "t-0", time.Hour)
	_, err = s.RequestBackup(ctx, asked(0, tenant.BackupManual))
	require.NoError(t, err)
	exec(t, s, `UPDATE backups SET state = 'making', started_at = now() WHERE backup_id = 'bak-0'`)
	_, err = s.CreateSnapshot(ctx, "t-0", "snp-0", "ann")
	require.NoError(t, err)
	exec(t, s, `UPDATE snapshots SET status = 'running'`)
	require.NoError(t, s.CloseBenchSites(ctx, "r1", "n-0"))
	held := func() (maintenance, updating bool) {
		t.Helper()
		all, err := s.EdgeChanges(ctx, "")
		require.NoError(t, err)
		for _, site := range all.Sites {
			maintenance = maintenance || site.TenantID == "t-0" && site.Maintenance
		}
		run, err := s.TenantRecord(ctx, "t-0")
		require.NoError(t, err)
		return maintenance, run.Updating
	}
	maintenance, updating := held()
	require.True(t, maintenance && updating, "while its place is there")

	_, err = s.LoseServer(impact.By(ctx, "test"), "n-0", "its disk died", "ann")
	require.NoError(t, err)
	restored, _, err := s.RestoreElsewhere(ctx, "t-0", "", "rst-0", "ann")
	require.NoError(t, err)
	exec(t, s, `INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
		VALUES ('t-0', 'n-1', 'n-1', 'n-1', 't-0', 't-0', 'hetzner', 'best_fit')`)
	_, err = s.ActivateTenant(ctx, tenant.Ref{TenantID: "t-0", Generation: restored.Generation}, 0, tenant.Event{TenantID: "t-0", Step: tenant.StepRestored, Message: "t-0.example.com"})
	require.NoError(t, err)
	exec(t, s, `UPDATE tenants SET site = 't-0.example.com', converged_state = 'active' WHERE tenant_id = 't-0'`)
	maintenance, updating = held()
	require.False(t, maintenance, "edges serve it")
	require.False(t, updating, "its site can be changed")
	failed, err := s.GetBackup(ctx, tenant.BackupOwner{TenantID: "t-0"}, "bak-0")
	require.NoError(t, err)
	require.Equal(t, []string{"failed", "server n-0 is gone"}, []string{string(failed.State), failed.Message})
	snapshot, err := s.GetSnapshot(ctx, "t-0", "snp-0")
	require.NoError(t, err)
	require.Equal(t, tenant.JobFailed, snapshot.Status)
	again := asked(0, tenant.BackupManual)
	again.ID = "bak-again"
	_, err = s.RequestBackup(ctx, again)
	require.NoError(t, err, "the backup on the lost server is not in the way")

	// The release neither waits for the server nor takes its ring for done.
	st := step()
	require.Equal(t, server.ReleaseStopped, st.Status, "the only server of the ring proved nothing")
	require.Empty(t, st.Updating)
	r, err := s.GetStackRelease(ctx, "r1")
	require.NoError(t, err)
	require.Equal(t, server.ReasonRingUnproven, r.Reason)
	require.Contains(t, r.Message, "ring early ended without a server that has the release (n-0: the server is lost)")
	servers, err := s.StackReleaseServers(ctx, "r1")
	require.NoError(t, err)
	require.Equal(t, server.BenchSkipped, servers[0].Status)

	// Another server takes its place in the ring before the next ring begins.
	_, err = s.ResumeStackRelease(impact.By(ctx, "test"), "r1", "ann")
	require.NoError(t, err)
	require.Equal(t, []prego.ServerID{"n-1"}, step().Updating)
	require.NoError(t, s.EndBench(ctx, "r1", "n-1", 1, server.BenchDone, "", ""))
	require.Equal(t, []prego.ServerID{"n-2"}, step().Updating)
	// The last ring loses its only server: resumed, the release ends with what the ring before has shown.
	_, err = s.LoseServer(impact.By(ctx, "test"), "n-2", "its disk also died", "ann")
	require.NoError(t, err)
	require.Equal(t, server.ReleaseStopped, step().Status)
	_, err = s.ResumeStackRelease(impact.By(ctx, "test"), "r1", "ann")
	require.NoError(t, err)
	require.Equal(t, server.ReleaseDone, step().Status)
}

// TestReleaseOfLostServersIsNotDone: with no server left that has it, a release does not become what new servers run. A
// lost server whose way back failed keeps no release from being cancelled; a silent server does.
func TestReleaseOfLostServersIsNotDone(t *testing.T) {
	t.Parallel()
	s, ctx := releaseSetup(t, 1), context.Background()
	_, err := s.CreateStackRelease(ctx, server.CreateStackReleaseRequest{Name: "r1", Image: "i:1", Rings: []server.ReleaseRing{{Name: "rest"}}}, "ann")
	require.NoError(t, err)
	_, err = s.StartStackRelease(ctx, "r1", "ann")
	require.NoError(t, err)
	step := func() server.ReleaseStatus {
		t.Helper()
		st, err := s.StepStackRelease(ctx, "r1", releaseLimits)
		require.NoError(t, err)
		return st.Status
	}
	require.Equal(t, server.ReleaseRolling, step())
	require.NoError(t, s.EndBench(ctx, "r1", "app-0", 1, server.BenchBroken, server.ReasonRollbackFailed, "no answer"))
	exec(t, s, `UPDATE servers SET status = 'failed', status_reason = 'heartbeat_lost' WHERE server_id = 'app-0'`)
	require.Equal(t, server.ReleaseStopped, step())
	_, err = s.CancelStackRelease(ctx, "r1", "ann")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err), "it may come back with its sites in maintenance")
	_, err = s.ResumeStackRelease(impact.By(ctx, "test"), "r1", "ann")
	require.NoError(t, err)
	run, err := s.BeginBenchUpdate(ctx, "r1", "app-0")
	require.NoError(t, err)
	require.True(t, run.Undoing && !run.Gone, "its way back is tried again")

	_, err = s.LoseServer(impact.By(ctx, "test"), "app-0", "its disk died", "ann")
	require.NoError(t, err)
	for range 2 {
		require.Equal(t, server.ReleaseStopped, step())
		_, err = s.ResumeStackRelease(impact.By(ctx, "test"), "r1", "ann")
		require.NoError(t, err)
	}
	r, err := s.GetStackRelease(ctx, "r1")
	require.NoError(t, err)
	require.False(t, r.Current)
	exec(t, s, `UPDATE stack_release_servers SET status = 'broken'`)
	r, err = s.CancelStackRelease(ctx, "r1", "ann")
	require.NoError(t, err, "nothing is left to bring back")
	require.Equal(t, server.ReleaseCancelled, r.Status)
}

// TestACancelledReleaseIsUntouchedUntilASiteCloses: a server that nothing was changed on is let go of without a way back.
func TestACancelledReleaseIsUntouchedUntilASiteCloses(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := releaseSetup(t, 1)
	exec(t, s, `UPDATE servers SET bench_image = 'i:0' WHERE server_id = 'app-0'`)
	_, err := s.CreateStackRelease(ctx, server.CreateStackReleaseRequest{Name: "r1", Image: "i:1", Rings: []server.ReleaseRing{{Name: "rest"}}}, "ann")
	require.NoError(t, err)
	_, err = s.StartStackRelease(ctx, "r1", "ann")
	require.NoError(t, err)
	_, err = s.StepStackRelease(ctx, "r1", releaseLimits)
	require.NoError(t, err)
	is := func() []bool {
		t.Helper()
		v, err := s.BeginBenchUpdate(ctx, "r1", "app-0")
		require.NoError(t, err)
		require.Equal(t, server.BenchUpdating, v.Status)
		return []bool{v.Cancelled, v.Untouched}
	}
	require.Equal(t, []bool{false, true}, is())
	_, err = s.CancelStackRelease(ctx, "r1", "ann")
	require.NoError(t, err)
	require.Equal(t, []bool{true, true}, is())
	exec(t, s, `INSERT INTO stack_release_sites (release, server_id, site, tenant_id, offline_at) VALUES ('r1', 'app-0', 's', 't-1', now())`)
	require.Equal(t, []bool{true, false}, is(), "edges show the page for maintenance")
	exec(t, s, `DELETE FROM stack_release_sites`)
	require.NoError(t, s.SetBenchImage(ctx, "r1", "app-0", "i:1"))
	require.Equal(t, []bool{true, false}, is(), "the bench has the release's image")
	require.NoError(t, s.SetBenchImage(ctx, "r1", "app-0", "i:0"))
	require.Equal(t, []bool{true, true}, is())
	require.NoError(t, s.UndoBench(ctx, "r1", "app-0", 1, server.ReasonMigrateFailed, ""))
	require.Equal(t, []bool{true, false}, is())
}
