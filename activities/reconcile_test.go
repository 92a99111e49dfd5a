package activities_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/worker"
)

// serverRuns is a workflow engine: the runs requested of it, and those under way.
type serverRuns struct {
	activities.Runs
	asked []string
	busy  map[string]bool
	fails map[string]error
}

func (*serverRuns) StopProvisioning(context.Context, prego.ServerID, func()) error { return nil }

func (r *serverRuns) EnsureProvision(_ context.Context, id prego.ServerID, generation int) (bool, error) {
	r.asked = append(r.asked, string("provision "+id))
	return !r.busy[string(id)] && generation == 1, r.fails[string(id)]
}

func (r *serverRuns) EnsureDecommission(_ context.Context, id prego.ServerID) (bool, error) {
	r.asked = append(r.asked, string("decommission "+id))
	return !r.busy[string(id)], r.fails[string(id)]
}

// GetServer finds one server by itself.
func (c *cloud) GetServer(_ context.Context, id prego.ServerID) (server.Handle, error) {
	if err := c.fails[string("GetServer/"+id)]; err != nil {
		return server.Handle{}, err
	}
	return server.Handle{ProviderServerID: string(id)}, nil
}

// reconciling are the steps of a fleet over a cloud and a real database.
type reconciling struct {
	*placing
	fleet *activities.Reconciler
	cloud *cloud
	runs  *serverRuns
	env   *testsuite.TestActivityEnvironment
}

func newReconciling(t *testing.T) *reconciling {
	t.Helper()
	r := &reconciling{placing: newPlacing(t, 4), cloud: &cloud{fails: map[string]error{}}, runs: &serverRuns{busy: map[string]bool{}}}
	r.fleet = &activities.Reconciler{
		Store: r.Store, Infra: map[prego.InfraProviderID]activities.Infra{prego.ProviderHetzner: r.cloud}, Runs: r.runs, Grace: time.Hour,
		Rules: activities.OrphanRules{MinAge: time.Hour, MaxPerRun: 5, BreakerPct: 10, BreakerMin: 2}, Metrics: activities.NewMetrics(prometheus.NewRegistry()), Log: zap.NewNop(),
	}
	var suite testsuite.WorkflowTestSuite
	r.env = suite.NewTestActivityEnvironment()
	r.env.RegisterActivity(r.fleet)
	return r
}

func (r *reconciling) reconcile() activities.ReconcileResult {
	r.T.Helper()
	v, err := r.env.ExecuteActivity(r.fleet.Reconcile)
	require.NoError(r.T, err)
	var out activities.ReconcileResult
	require.NoError(r.T, v.Get(&out))
	require.Equal(r.T, 1, r.Number(`SELECT count(*) FROM reconcile_runs WHERE run_id = $1 AND finished_at IS NOT NULL AND findings ->> 'orphans' = $2::int::text`, out.RunID, out.Orphans))
	out.RunID = 0
	return out
}

// TestAnOrphanIsDestroyedWhenItIsSeenAgain. If it had an owner meanwhile, the next sighting is its
// first.
func TestAnOrphanIsDestroyedWhenItIsSeenAgain(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	r.machine("srv-1", server.Active, 1, "1")
	r.cloud.has(server.ResourceServer, "1", "srv-1", "srv-1", 1)
	r.cloud.has(server.ResourceServer, "8", "srv-1", "srv-1", 2) // its token was never used
	r.cloud.has(server.ResourceVolume, "9", "v", "", 0)
	r.cloud.fails["server/8"] = &server.InfraError{Class: server.InfraRetry, Code: "locked"}
	require.Equal(t, activities.ReconcileResult{Owned: 3, Orphans: 2}, r.reconcile())
	require.Empty(t, r.cloud.deleted())
	r.line(server.ResourceVolume, "v", "9", "srv-1", 1)
	require.Equal(t, activities.ReconcileResult{Owned: 3, Orphans: 1}, r.reconcile(), "the provider refused")
	r.Exec(`DELETE FROM resources`)
	require.Equal(t, activities.ReconcileResult{Owned: 3, Orphans: 2}, r.reconcile())
	require.Empty(t, r.cloud.deleted())
	require.Equal(t, activities.ReconcileResult{Owned: 3, Orphans: 2, Destroyed: 1}, r.reconcile(), "a refused deletion does not block others")
	require.Equal(t, []string{"volume/9"}, r.cloud.deleted())
	require.Zero(t, r.Number(`SELECT count(*) FROM server_events WHERE step = 'reconciled'`))
	delete(r.cloud.fails, "server/8")
	require.Equal(t, activities.ReconcileResult{Owned: 2, Orphans: 1, Destroyed: 1}, r.reconcile())
	require.Equal(t, []string{"server/8"}, r.cloud.deleted())
	require.Equal(t, 1, r.Number(`SELECT count(*) FROM server_events WHERE step = 'reconciled' AND server_id = 'srv-1'`))
	require.Equal(t, 2, r.Number(`SELECT count(*) FROM orphan_sightings WHERE destroyed_at IS NOT NULL`))
	require.InDelta(t, 1, counted(t, r.fleet.Metrics.Orphans.WithLabelValues("server")), 0)
	require.Equal(t, activities.ReconcileResult{Owned: 1}, r.reconcile())
}

// TestAProtectedOrphanStays: it was in use when a row last knew it, and the database may be an older one. What is in use
// is protected, also if its protection was missed or lifted.
func TestAProtectedOrphanStays(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	r.machine("srv-1", server.Active, 1, "1")
	r.machine("srv-2", server.Provisioning, 1, "2")
	r.cloud.has(server.ResourceServer, "1", "srv-1", "srv-1", 1)
	r.line(server.ResourceServer, "srv-1", "1", "srv-1", 1)
	r.cloud.has(server.ResourceServer, "2", "srv-2", "srv-2", 1)
	r.cloud.has(server.ResourceServer, "8", "srv-8", "srv-8", 1)
	r.cloud.has(server.ResourceVolume, "9", "v", "", 0)
	for _, kind := range []server.ResourceKind{server.ResourceServer, server.ResourceVolume} {
		for _, id := range []string{"8", "9"} {
			require.NoError(t, r.cloud.Protect(t.Context(), kind, id, true))
		}
	}
	for range 3 {
		require.Equal(t, activities.ReconcileResult{Owned: 4, Orphans: 2}, r.reconcile())
	}
	require.Empty(t, r.cloud.deleted())
	require.Equal(t, 2, r.Number(`SELECT count(*) FROM orphan_sightings WHERE protected AND sightings = 3`))
	var protected []string
	for _, o := range r.cloud.things {
		if o.Protected {
			protected = append(protected, o.ProviderID)
		}
	}
	require.Equal(t, []string{"1", "8", "9"}, protected, "2 is not in use yet")

	require.NoError(t, r.cloud.Protect(t.Context(), server.ResourceVolume, "9", false))
	require.Equal(t, activities.ReconcileResult{Owned: 4, Orphans: 2, Destroyed: 1}, r.reconcile())
	require.Equal(t, []string{"volume/9"}, r.cloud.deleted())
}

// TestADatabaseThatKnowsNoServerDestroysNone: the breaker holds until it does.
func TestADatabaseThatKnowsNoServerDestroysNone(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	r.cloud.has(server.ResourceServer, "1", "srv-1", "srv-1", 1)
	require.Equal(t, activities.ReconcileResult{Owned: 1, Orphans: 1}, r.reconcile())
	for range 2 {
		require.Equal(t, activities.ReconcileResult{Owned: 1, Orphans: 1, BreakerHit: true}, r.reconcile())
		require.InDelta(t, 1, counted(t, r.fleet.Metrics.Breaker), 0)
	}
	require.Empty(t, r.cloud.deleted())
	r.machine("srv-1", server.Active, 1, "1")
	require.Equal(t, activities.ReconcileResult{Owned: 1}, r.reconcile())
	require.InDelta(t, 0, counted(t, r.fleet.Metrics.Breaker), 0)
}

// TestAServerIsMissingWhenTheProviderSaysSo of it by itself: that a list leaves it out
// is no proof, nor is an error.
func TestAServerIsMissingWhenTheProviderSaysSo(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	for _, id := range []string{"1", "2", "3"} {
		r.machine("srv-"+id, server.Active, 1, id)
		r.line(server.ResourceServer, "srv-"+id, id, prego.ServerID("srv-"+id), 1)
	}
	r.cloud.fails["GetServer/2"] = &server.InfraError{Class: server.InfraRetry, Code: "unavailable"}
	r.cloud.fails["GetServer/3"] = context.DeadlineExceeded
	require.Equal(t, activities.ReconcileResult{}, r.reconcile())
	require.Equal(t, 3, r.Number(`SELECT count(*) FROM servers WHERE status = 'active'`))
	r.cloud.fails["GetServer/2"] = &server.InfraError{Class: server.InfraNotFound, Code: "not_found"}
	r.fleet.Store = store.New(pgtest.Tapped(t, r.Pool, func(sql string, _ []any) error {
		if strings.Contains(sql, "provider_server_id = NULL, host = ''") {
			r.Exec(`UPDATE servers SET provider_server_id = '4' WHERE server_id = 'srv-2'`)
		}
		return nil
	}))
	require.Equal(t, activities.ReconcileResult{}, r.reconcile(), "the row has moved on")
	r.Exec(`UPDATE servers SET provider_server_id = '2' WHERE server_id = 'srv-2'`)
	r.fleet.Store = r.Store
	require.Equal(t, activities.ReconcileResult{Missing: 1}, r.reconcile())
	require.Equal(t, 1, r.Number(`SELECT count(*) FROM servers WHERE server_id = 'srv-2' AND status = 'failed' AND status_reason = 'server_missing'`))
	require.Equal(t, 2, r.Number(`SELECT count(*) FROM servers WHERE status = 'active'`))
	require.Empty(t, r.open("srv-2"))
	require.Equal(t, activities.ReconcileResult{}, r.reconcile())
}

// TestARowInMotionGetsTheRunThatItLost and is signalled; a row with a run is left alone.
func TestARowInMotionGetsTheRunThatItLost(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	r.machine("srv-busy", server.Decommissioning, 1, "")
	r.machine("srv-down", server.Decommissioning, 1, "")
	r.machine("srv-up", server.Provisioning, 4, "")
	require.Equal(t, activities.ReconcileResult{}, r.reconcile(), "they have just moved")
	require.Empty(t, r.runs.asked)
	r.Exec(`UPDATE servers SET updated_at = now() - interval '31 seconds'`)
	r.runs.busy["srv-busy"] = true
	require.Equal(t, activities.ReconcileResult{Restarted: 2}, r.reconcile())
	require.Equal(t, []string{"decommission srv-busy", "decommission srv-down", "provision srv-up"}, r.runs.asked)
	require.Equal(t, 2, r.Number(`SELECT count(*) FROM server_events WHERE step = 'workflow_restarted' AND (server_id, attempt) IN (('srv-down', 1), ('srv-up', 4))`))
	require.Zero(t, r.Number(`SELECT count(*) FROM server_events WHERE server_id = 'srv-busy'`))
	r.runs.fails = map[string]error{"srv-down": errors.New("the engine is away")}
	r.runs.asked = nil
	r.Exec(`UPDATE servers SET updated_at = now() - interval '31 seconds'`)
	_, err := r.env.ExecuteActivity(r.fleet.Reconcile)
	require.ErrorContains(t, err, "the engine is away")
	require.ErrorContains(t, err, "srv-down")
	require.Contains(t, r.runs.asked, "provision srv-up", "one run that can't be started keeps no other from its start")
}

// TestWhatWasNeverBegunIsStartedSoon, without a look at the provider: a server and a volume whose start was
// lost with an API. What a run has begun is left to reconciliation.
func TestWhatWasNeverBegunIsStartedSoon(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	volumes := &volumeRuns{}
	r.fleet.Org = &activities.OrgResources{Store: r.Store, Runs: volumes}
	look := func(found bool) {
		t.Helper()
		result, err := worker.LookAtRuns(t.Context(), r.fleet)
		require.NoError(t, err)
		require.Equal(t, found, result.Found)
	}
	r.machine("srv-new", server.Provisioning, 1, "")
	r.machine("srv-begun", server.Provisioning, 1, "")
	r.machine("srv-old", server.Active, 1, "gone-with-its-run")
	r.machine("srv-down", server.Decommissioning, 1, "")
	r.Exec(`INSERT INTO resources (provider, kind, name, server_id, attempt, state) VALUES ('hetzner', 'server', 'begun', 'srv-begun', 1, 'intended')`)
	look(false) // they have just been accepted
	require.Empty(t, r.runs.asked)
	r.Exec(`UPDATE servers SET updated_at = now() - interval '6 seconds'`)
	look(true)
	require.ElementsMatch(t, []string{"decommission srv-down", "provision srv-new"}, r.runs.asked)
	require.Equal(t, 2, r.Number(`SELECT count(*) FROM server_events WHERE step = 'workflow_restarted'`))
	r.runs.busy["srv-new"], r.runs.busy["srv-down"] = true, true
	look(false) // they have runs now
	r.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by, updated_at)
		VALUES ('vol-lost', 'o1', 'eu', 'fsn1', 'lost', 10000000000, 'hetzner', 'name', 'pending', 'a', now() - interval '6 seconds')`)
	look(true)
	require.Equal(t, []string{"vol-lost"}, volumes.asked)
	r.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status,
		created_by, updated_at)
		VALUES ('vol-more', 'o1', 'eu', 'fsn1', 'more', 10000000000, 'hetzner', 'more', 'pending', 'a',
		now() - interval '6 seconds')`)
	volumes.asked, volumes.err = nil, errors.New("the engine is away")
	_, err := worker.LookAtRuns(t.Context(), r.fleet)
	require.ErrorContains(t, err, "the engine is away")
	require.ElementsMatch(t, []string{"vol-lost", "vol-more"}, volumes.asked)
}

// TestTheLedgerIsSettled: lines of ended servers once no create can land any more, and of missing
// shared resources. Resources that the provider still has are deleted first.
func TestTheLedgerIsSettled(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	r.machine("srv-gone", server.Terminated, 1, "")
	r.machine("srv-kept", server.Failed, 1, "7") // kept for debugging
	r.machine("srv-live", server.Active, 1, "8")
	r.machine("srv-lost", server.Failed, 1, "")
	r.cloud.has(server.ResourceServer, "7", "srv-kept", "srv-kept", 1)
	r.cloud.has(server.ResourceServer, "8", "srv-live", "srv-live", 1)
	r.line(server.ResourceServer, "srv-kept", "7", "srv-kept", 1)
	r.line(server.ResourceServer, "srv-live", "8", "srv-live", 1)
	r.line(server.ResourceVolume, "unknown", "", "srv-lost", 1) // and it landed
	r.cloud.has(server.ResourceVolume, "21", "unknown", "srv-lost", 1)
	r.line(server.ResourceVolume, "absent", "", "srv-gone", 1) // it didn't
	r.line(server.ResourceVolume, "unknown-kept", "", "srv-kept", 1)
	r.cloud.has(server.ResourceVolume, "22", "unknown-kept", "srv-kept", 1)
	r.line(server.ResourceVolume, "unknown-live", "", "srv-live", 1)
	r.line(server.ResourcePrimaryIP, "half", "31", "srv-gone", 1)
	r.cloud.has(server.ResourcePrimaryIP, "31", "half", "srv-gone", 1)
	r.line(server.ResourcePrimaryIP, "done", "32", "srv-gone", 1)
	r.line(server.ResourcePrimaryIP, "stuck", "33", "srv-gone", 1)
	r.cloud.has(server.ResourcePrimaryIP, "33", "stuck", "srv-gone", 1)
	r.line(server.ResourceVolume, "made", "34", "srv-lost", 1)
	r.cloud.has(server.ResourceVolume, "34", "made", "srv-lost", 1)
	r.line(server.ResourceFirewall, "fw", "41", "", 0)
	r.line(server.ResourcePlacementGroup, "pg", "42", "", 0)
	r.line(server.ResourcePlacementGroup, "pg-absent", "", "", 0) // its answer was lost, and it was never retried
	r.line(server.ResourcePlacementGroup, "pg-there", "", "", 0)
	r.cloud.has(server.ResourcePlacementGroup, "43", "pg-there", "", 0)
	r.Exec(`UPDATE resources SET state = 'releasing' WHERE name IN ('half', 'done', 'stuck')`)
	r.cloud.has(server.ResourceFirewall, "41", "fw", "", 0)
	locked := &server.InfraError{Class: server.InfraRetry, Code: "locked"}
	r.cloud.fails["primary_ip/33"], r.cloud.fails["volume/21"] = locked, locked
	names := func() (left []string) {
		all, err := r.Store.AllLiveResources(t.Context(), prego.ProviderHetzner)
		require.NoError(t, err)
		for _, l := range all {
			left = append(left, l.Name)
		}
		return left
	}
	out := r.reconcile()
	require.Equal(t, 1, out.Settled, "the group; the rest may still land")
	require.NotContains(t, names(), "pg")
	require.Equal(t, 1, r.cloud.firewalls, "its rules are put back")
	require.Empty(t, r.cloud.deleted())
	r.Exec(`UPDATE resources SET intended_at = now() - interval '61 minutes'`)
	r.fleet.Rules.MaxPerRun = 0 // no orphan's is this
	out = r.reconcile()
	require.Equal(t, []string{"primary_ip/31"}, r.cloud.deleted())
	require.Equal(t, 4, out.Settled)
	require.Contains(t, names(), "unknown", "it is not gone yet")
	delete(r.cloud.fails, "volume/21")
	out = r.reconcile()
	require.Equal(t, []string{"volume/21"}, r.cloud.deleted())
	require.Equal(t, 1, out.Settled)
	require.Equal(t, []string{"srv-kept", "srv-live", "unknown-kept", "unknown-live", "stuck", "made", "fw", "pg-there"}, names())
	delete(r.cloud.fails, "primary_ip/33")
	r.cloud.fails["EnsureFirewall"] = errors.New("no rules")
	_, err := r.env.ExecuteActivity(r.fleet.Reconcile)
	require.ErrorContains(t, err, "no rules")
	require.Equal(t, []string{"primary_ip/33"}, r.cloud.deleted())
}

// TestAReconciliationThatStumblesSaysSo, and what cannot be read is no reason to destroy
// anything.
func TestAReconciliationThatStumblesSaysSo(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	r.machine("srv-1", server.Active, 1, "1")
	r.machine("srv-lost", server.Decommissioning, 1, "")
	r.machine("srv-gone", server.Active, 1, "2")
	r.machine("srv-end", server.Terminated, 1, "")
	r.cloud.has(server.ResourceServer, "1", "srv-1", "srv-1", 1)
	r.cloud.has(server.ResourceVolume, "9", "v", "srv-1", 1)
	r.cloud.fails["GetServer/2"] = &server.InfraError{Class: server.InfraNotFound, Code: "not_found"}
	const destroyed, released, ended = "SET destroyed_at = now()", "SET state = 'released', released_at = now() WHERE resource_id", "UPDATE reconcile_runs"
	for _, at := range []string{
		"INTO reconcile_runs", "now() - updated_at AS idle", "FROM resources WHERE provider = $1 AND state", "ListOwned", "SELECT 'server', s.server_id", "provider_server_id = NULL, host = ''",
		"INTO orphan_sightings", "DELETE FROM orphan_sightings", destroyed, released, ended,
	} {
		r.Exec(`DELETE FROM orphan_sightings`)
		r.Exec(`INSERT INTO orphan_sightings (provider, kind, provider_id, name, sightings) VALUES ('hetzner', 'volume', '9', 'v', 5)`)
		r.Exec(`UPDATE servers SET updated_at = now() - interval '1 hour'`)
		r.line(server.ResourcePlacementGroup, "pg", "42", "", 0)
		r.fleet.Store = r.stumbling(at)
		r.cloud.fails["ListOwned"] = nil
		if at == "ListOwned" {
			r.cloud.fails[at] = errStore
		}
		_, err := r.env.ExecuteActivity(r.fleet.Reconcile)
		require.ErrorContains(t, err, errStore.Error(), at)
		switch at {
		case destroyed, released, ended:
			require.Equal(t, []string{"volume/9"}, r.cloud.deleted(), at)
			r.cloud.has(server.ResourceVolume, "9", "v", "srv-1", 1)
		default:
			require.Empty(t, r.cloud.deleted(), at)
		}
	}
}

// volumeRuns is a workflow engine that starts the runs of volumes.
type volumeRuns struct {
	activities.Runs
	asked []string
	err   error
}

func (r *volumeRuns) EnsureVolume(_ context.Context, id prego.VolumeID) (bool, error) {
	r.asked = append(r.asked, string(id))
	return id == "vol-lost", r.err
}

// TestWhatAnOrgOwnsIsNoOrphan: its name alone protects it from the request on. A resource lost at
// the provider fails, and a lost run is started.
func TestWhatAnOrgOwnsIsNoOrphan(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	runs := &volumeRuns{}
	r.fleet.Org = &activities.OrgResources{Store: r.Store, Runs: runs}
	r.machine("srv-1", server.Active, 1, "")
	volume := func(id, providerID, status string) {
		r.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, provider_id, status, created_by)
			VALUES ($1, 'o1', 'eu', 'fsn1', $1, 10000000000, 'hetzner', 'name-' || $1, NULLIF($2, ''), $3, 'a')`, id, providerID, status)
	}
	volume("vol-new", "", "pending")
	r.cloud.has(server.ResourceVolume, "1", "name-vol-new", "", 0)
	r.cloud.has(server.ResourcePrimaryIP, "1", "name-vol-new", "", 0) // of its name, and no volume
	for _, want := range []int{0, 1} {
		require.Equal(t, activities.ReconcileResult{Owned: 2, Orphans: 1, Destroyed: want}, r.reconcile())
	}
	require.Equal(t, []string{"primary_ip/1"}, r.cloud.deleted())
	require.Empty(t, runs.asked)

	volume("vol-gone", "7", "ready")
	r.line(server.ResourceVolume, "name-vol-gone", "7", "", 0)
	volume("vol-lost", "", "pending")
	r.Exec(`ALTER TABLE volumes DISABLE TRIGGER volumes_note_change`)
	r.Exec(`UPDATE volumes SET updated_at = now() - interval '31 seconds' WHERE status = 'pending'`)
	r.Exec(`ALTER TABLE volumes ENABLE TRIGGER volumes_note_change`)
	require.Equal(t, activities.ReconcileResult{Owned: 1, Settled: 1, Restarted: 1}, r.reconcile(), "the other has its run")
	require.ElementsMatch(t, []string{"vol-new", "vol-lost"}, runs.asked)
	require.Equal(t, 1, r.Number(`SELECT count(*) FROM volumes WHERE volume_id = 'vol-gone' AND status = 'failed' AND reason = 'missing_at_provider'`))
	runs.err = errors.New("the engine is away")
	_, err := r.env.ExecuteActivity(r.fleet.Reconcile)
	require.ErrorContains(t, err, "the engine is away")
}

// TestContainersOfActiveServersAreLookedAt, and of no others.
func TestContainersOfActiveServersAreLookedAt(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	r.machine("srv-1", server.Active, 1, "")
	r.machine("srv-2", server.Failed, 1, "")
	r.machine("srv-3", server.Terminated, 1, "")
	r.fleet.DriftHosts = 10
	r.fleet.Check = func(_ context.Context, id prego.ServerID) (activities.ContainerReport, error) {
		return activities.ContainerReport{ServerID: id}, nil
	}
	require.Equal(t, activities.ReconcileResult{ContainersChecked: 1}, r.reconcile())
}

// TestReconcilingComparesQuotaCounters, repairs them, and returns how many orgs were wrong.
func TestReconcilingComparesQuotaCounters(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	r.Exec(`INSERT INTO orgs (org_id, created_by) VALUES ('drifted', 'test')`)
	r.Exec(`INSERT INTO org_counters (org_id, dimension, used) VALUES ('drifted', 'max_apps', 7)`)
	r.reconcile()
	require.InDelta(t, 1, counted(t, r.fleet.Metrics.Usage), 0)
	require.Equal(t, 0, r.Number(`SELECT count(*) FROM org_counters WHERE org_id = 'drifted'`))
	r.reconcile()
	require.InDelta(t, 0, counted(t, r.fleet.Metrics.Usage), 0)
}

// TestReconcilingPrunesTheFeed of entries that all followers have read.
func TestReconcilingPrunesTheFeed(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	r.machine("srv-1", server.Active, 1, "")
	require.Positive(t, r.Number(`SELECT count(*) FROM changes`))
	require.Eventually(t, func() bool { // an older transaction of another test keeps later entries
		r.Exec(`UPDATE changes_pruned SET marked_at = now() - interval '11 minutes'`)
		r.reconcile()
		return r.Number(`SELECT count(*) FROM changes`) == 0
	}, 20*time.Second, 50*time.Millisecond)
}

// TestASweepIsCounted, and a sweep that marks no agent, since too many are silent, is visible.
func TestASweepIsCounted(t *testing.T) {
	t.Parallel()
	r := newReconciling(t)
	r.fleet.Sweep = server.SweepParams{DegradedAfter: time.Minute, FailedAfter: 5 * time.Minute, FreezePct: 50, FreezeMin: 5}
	for i := range 9 {
		r.machine(fmt.Sprintf("srv-%d", i), server.Active, 1, "")
	}
	silent := func(minutes, from, to int) {
		r.Exec(`UPDATE servers SET agent_status = 'connected', agent_last_heartbeat_at = now() - make_interval(mins => $1) WHERE right(server_id, 1)::int BETWEEN $2 AND $3`, minutes, from, to)
	}
	m := r.fleet.Metrics
	silent(2, 0, 8)
	got, err := r.fleet.SweepSilent(t.Context())
	require.NoError(t, err)
	require.Equal(t, server.SweepResult{Fleet: 9, Silent: 9, Frozen: true}, got)
	require.InDelta(t, 1, counted(t, m.Frozen), 0)
	r.fleet.Store = r.stumbling("WITH fleet AS")
	_, err = r.fleet.SweepSilent(t.Context())
	require.ErrorIs(t, err, errStore)
	require.InDelta(t, 1, counted(t, m.Frozen), 0, "no sweep ran")
	r.fleet.Store = r.Store
	silent(0, 0, 8)
	silent(2, 0, 1)
	silent(6, 2, 2)
	got, err = r.fleet.SweepSilent(t.Context())
	require.NoError(t, err)
	require.Equal(t, server.SweepResult{Fleet: 9, Silent: 3, Degraded: 2, Failed: 1}, got)
	require.InDelta(t, 0, counted(t, m.Frozen), 0)
	require.InDelta(t, 2, counted(t, m.Silent.WithLabelValues("degraded")), 0)
	require.InDelta(t, 1, counted(t, m.Silent.WithLabelValues("disconnected")), 0)
}
