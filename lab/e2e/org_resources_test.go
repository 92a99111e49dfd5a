package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// workload makes an env of an org with one process group, as their rows.
func (c *cell) workload(org string, tier prego.Tier, name string) (env, group string) {
	c.t.Helper()
	env = c.environment(org, string(tier), name)
	var g api.ProcessGroup
	c.post("/v1/envs/"+env+"/groups", map[string]any{"name": "web", "replicas": 0, "spec": spec("shop:1", 64)}, http.StatusCreated, &g)
	return env, g.GroupId
}

func (c *cell) exec(sql string, args ...any) {
	c.t.Helper()
	_, err := c.pool.Exec(context.Background(), sql, args...)
	require.NoError(c.t, err)
}

// beyond expects a refusal by quota.
func (c *cell) beyond(method, path string, body any, dimension string, limit, usage, delta float64) {
	c.t.Helper()
	var p api.Problem
	c.send(method, path, body, http.StatusConflict, &p)
	require.Equal(c.t, []any{"quota_exceeded", dimension, limit, usage, delta}, []any{p.Code, deref(p.Dimension), *p.Limit, *p.CurrentUsage, *p.RequestedDelta})
}

func (c *cell) volume(org, name string, gb int64) string {
	c.t.Helper()
	var v api.Volume
	c.post("/v1/volumes", map[string]any{"org_id": org, "region": "eu", "name": name, "size_bytes": gb * 1e9}, http.StatusAccepted, &v)
	require.Equal(c.t, "fsn1", v.Location)
	return v.VolumeId
}

func (c *cell) awaitVolume(id string, status api.ResourceStatus) api.Volume {
	c.t.Helper()
	var v api.Volume
	eventually(c.t, func() bool {
		c.send(http.MethodGet, "/v1/volumes/"+id, nil, http.StatusOK, &v)
		return v.Status == status
	}, patience, 50*time.Millisecond, "volume %s is %s", id, status)
	return v
}

func (c *cell) awaitIPv4(env, what string, ok func(api.IPv4) bool) api.IPv4 {
	c.t.Helper()
	var v api.IPv4
	eventually(c.t, func() bool {
		v = api.IPv4{}
		c.send(http.MethodGet, "/v1/envs/"+env+"/ipv4", nil, http.StatusOK, &v)
		return ok(v)
	}, patience, 50*time.Millisecond, "the address of %s is %s", env, what)
	return v
}

func ready(v api.IPv4) bool { return v.Status == "ready" }

func (c *cell) awaitGone(path string) {
	c.t.Helper()
	eventually(c.t, func() bool {
		status, _ := c.request(http.MethodGet, path, nil)
		return status == http.StatusNotFound
	}, patience, 50*time.Millisecond, "%s is gone", path)
}

func TestCreateVolumeBeyondMaxTotalVolumeBytesIsRejected(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	_, group := c.workload("acme", prego.TierFree, "shop")
	first := c.volume("acme", "first", 40)
	c.beyond(http.MethodPost, "/v1/volumes", map[string]any{"org_id": "acme", "region": "eu", "name": "second", "size_bytes": 20_000_000_000},
		"max_total_volume_bytes", 50e9, 40e9, 20e9)
	c.awaitVolume(first, "ready")
	keepHistory(t, c, "volume-made", workload.VolumeWorkflowID(prego.VolumeID(first)))
	require.Len(t, c.billed("volume"), 1)
	require.Equal(t, workload.ResourceName(c.env, first), c.billed("volume")[0].Name)

	// An attached one is not deleted; a deleted one no longer counts.
	var at api.VolumeAttachment
	c.post("/v1/volumes/"+first+"/attachments", map[string]any{"group_id": group, "mount_path": "/data"}, http.StatusCreated, &at)
	var p api.Problem
	c.send(http.MethodDelete, "/v1/volumes/"+first, nil, http.StatusConflict, &p)
	require.Equal(t, "volume_attached", p.Code)
	c.send(http.MethodDelete, "/v1/volumes/"+first+"/attachments/"+at.AttachmentId, nil, http.StatusNoContent, nil)
	c.send(http.MethodDelete, "/v1/volumes/"+first, nil, http.StatusAccepted, nil)
	// It may hold data: for a day it is kept, counts, and can be had back.
	kept := c.awaitVolume(first, "releasing")
	require.WithinDuration(t, time.Now().Add(24*time.Hour), *kept.KeptUntil, time.Minute)
	c.beyond(http.MethodPost, "/v1/volumes", map[string]any{
		"org_id": "acme", "region": "eu", "name": "second", "size_bytes": 20_000_000_000,
	}, "max_total_volume_bytes", 50e9, 40e9, 20e9)
	c.send(http.MethodPost, "/v1/volumes/"+first+"/undelete", nil, http.StatusAccepted, nil)
	require.Nil(t, c.awaitVolume(first, "ready").KeptUntil)
	require.Len(t, c.billed("volume"), 1)
	c.send(http.MethodDelete, "/v1/volumes/"+first, nil, http.StatusAccepted, nil)
	c.keptEnough(first)
	c.awaitGone("/v1/volumes/" + first)
	require.Empty(t, c.sim.Ledger(true), "nothing is billed")
	keepHistory(t, c, "volume-released", workload.VolumeWorkflowID(prego.VolumeID(first)))
	second := c.volume("acme", "second", 20)
	c.awaitVolume(second, "ready")
	require.Equal(t, 1, c.number(`SELECT count(*) FROM org_events WHERE type = 'volume.undelete' AND actor = 'alice' AND subject = $1`, first))
	c.settled()
}

// keptEnough ends the time for which a deleted volume is kept, and has its run see that.
func (c *cell) keptEnough(volume string) {
	c.t.Helper()
	c.exec(`UPDATE volumes SET kept_until = now() WHERE volume_id = $1 AND kept_until IS NOT NULL`, volume)
	c.send(http.MethodDelete, "/v1/volumes/"+volume, nil, http.StatusAccepted, nil)
}

func TestEnableIPv4BeyondMaxIPv4AllocationsIsRejected(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	one, group := c.workload("acme", prego.TierFree, "one")
	two, _ := c.workload("acme", prego.TierFree, "two")
	c.beyond(http.MethodPost, "/v1/envs/"+one+"/ipv4", nil, "max_ipv4_allocations", 0, 0, 1)
	require.Zero(t, c.everBilled("floating_ip"))
	route := map[string]any{"group_id": group, "listener": "env_v4", "listen_port": 5432, "protocol": "tcp", "target_port": 5432}
	var p api.Problem
	c.send(http.MethodPost, "/v1/envs/"+one+"/routes", route, http.StatusConflict, &p)
	require.Equal(t, "ipv4_required", p.Code)

	c.limit("acme", "max_ipv4_allocations", 1)
	c.post("/v1/envs/"+one+"/ipv4", nil, http.StatusAccepted, nil)
	c.post("/v1/envs/"+one+"/ipv4", nil, http.StatusAccepted, nil) // the same again
	c.beyond(http.MethodPost, "/v1/envs/"+two+"/ipv4", nil, "max_ipv4_allocations", 1, 1, 1)
	v := c.awaitIPv4(one, "ready", ready)
	require.NotEmpty(t, deref(v.Address))
	require.Len(t, c.billed("floating_ip"), 1)

	var r api.Route
	c.post("/v1/envs/"+one+"/routes", route, http.StatusCreated, &r)
	c.send(http.MethodDelete, "/v1/envs/"+one+"/ipv4", nil, http.StatusConflict, &p)
	require.Equal(t, "ipv4_in_use", p.Code)
	status, doc := c.request(http.MethodGet, "/internal/routes/traefik", nil)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, string(doc), r.RouteId)
	c.send(http.MethodDelete, "/v1/envs/"+one+"/routes/"+r.RouteId, nil, http.StatusNoContent, nil)
	c.send(http.MethodDelete, "/v1/envs/"+one+"/ipv4", nil, http.StatusAccepted, nil)
	c.awaitGone("/v1/envs/" + one + "/ipv4")
	require.Empty(t, c.sim.Ledger(true))
	c.settled()
}

// TestNoMoreAddressesIsNotTheOrgsFault: the provider has one address; the second env
// waits for it, and gets it.
func TestNoMoreAddressesIsNotTheOrgsFault(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{sim: func(cfg *sim.Config) { cfg.Limits.FloatingIPs = 1 }})
	one, _ := c.workload("acme", prego.TierPaid, "one")
	two, _ := c.workload("acme", prego.TierPaid, "two")
	c.post("/v1/envs/"+one+"/ipv4", nil, http.StatusAccepted, nil)
	c.awaitIPv4(one, "ready", ready)
	c.post("/v1/envs/"+two+"/ipv4", nil, http.StatusAccepted, nil)
	v := c.awaitIPv4(two, "waiting", func(v api.IPv4) bool { return deref(v.Reason) != "" })
	require.Equal(t, []any{"pending", "ipam_exhausted"}, []any{string(v.Status), deref(v.Reason)})
	require.Contains(t, deref(v.Message), "floating IP limit exceeded")
	c.send(http.MethodDelete, "/v1/envs/"+one+"/ipv4", nil, http.StatusAccepted, nil)
	v = c.awaitIPv4(two, "ready", ready)
	require.Empty(t, deref(v.Reason))
	keepHistory(t, c, "address-waited", v.WorkflowId)
	c.awaitGone("/v1/envs/" + one + "/ipv4")
	require.Equal(t, 2, c.everBilled("floating_ip"))
	c.settled()
}

// TestOrgResourcesAreCreatedOnce kills the worker before and after each effect.
func TestOrgResourcesAreCreatedOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "crash")
	c := newCell(t, options{vars: map[string]string{"PREGO_TEST_CRASH": file}})
	env, _ := c.workload("acme", prego.TierPaid, "shop")
	made := map[string]int{}
	for i, point := range []string{"org_resource/intended", "org_resource/called", "org_resource/recorded", "org_release/start", "org_release/deleted"} {
		require.NoError(t, os.WriteFile(file, []byte(point), 0o600))
		kind, path := "volume", "/v1/envs/"+env+"/ipv4"
		make := func() { path = "/v1/volumes/" + c.volume("acme", fmt.Sprintf("data-%d", i), 10) }
		if i%2 == 0 {
			kind = "floating_ip"
			make = func() { c.post(path, nil, http.StatusAccepted, nil) }
		}
		survives := func() {
			<-c.procs["worker"].Done()
			require.NoError(t, os.Remove(file+".hit"), point)
			delete(c.procs, "worker")
			c.start("worker")
		}
		make()
		made[kind]++
		if i < 3 {
			survives()
		}
		eventually(t, func() bool {
			var v struct {
				Status string `json:"status"`
			}
			_, b := c.request(http.MethodGet, path, nil)
			return json.Unmarshal(b, &v) == nil && v.Status == "ready"
		}, patience, 50*time.Millisecond, point)
		require.Len(t, c.billed(kind), 1, point)
		c.send(http.MethodDelete, path, nil, http.StatusAccepted, nil)
		if i >= 3 {
			survives()
		}
		c.awaitGone(path)
		require.Equal(t, made[kind], c.everBilled(kind), "%s: exactly one was ever made", point)
		require.Empty(t, c.sim.Ledger(true), "%s: nothing is billed", point)
		c.settled()
	}
}

// TestReconcileKnowsOrgResources: none of it is an orphan, resources that the provider lost are reported, and a row
// without a run gets one.
func TestReconcileKnowsOrgResources(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: map[string]string{"PREGO_ORPHAN_AGE": "1ms"}, set: func(cfg *config.Config) { cfg.Worker.AmbiguousGrace = 100 * time.Millisecond }})
	env, _ := c.workload("acme", prego.TierPaid, "shop")
	kept, lost := c.volume("acme", "kept", 10), c.volume("acme", "lost", 10)
	c.post("/v1/envs/"+env+"/ipv4", nil, http.StatusAccepted, nil)
	c.awaitVolume(kept, "ready")
	c.awaitVolume(lost, "ready")
	c.awaitIPv4(env, "ready", ready)
	var id string
	c.query(&id, `SELECT provider_id FROM volumes WHERE volume_id = $1`, lost)
	c.provider(http.MethodDelete, "/volumes/"+id, nil)
	// The row was written, and the writer died before the run was started.
	orphaned := "vol-orphaned-" + c.env
	c.exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by, updated_at)
		VALUES ($1, 'acme', 'eu', 'fsn1', 'orphaned', 10000000000, 'hetzner', $2, 'pending', 'alice', now() - interval '1 hour')`, orphaned, workload.ResourceName(c.env, orphaned))
	for range 3 {
		c.reconcile()
	}
	v := c.awaitVolume(lost, "failed")
	require.Equal(t, "missing_at_provider", deref(v.Reason))
	c.awaitVolume(orphaned, "ready")
	c.awaitVolume(kept, "ready")
	require.Len(t, c.billed("volume"), 2)
	require.Len(t, c.billed("floating_ip"), 1)
	c.send(http.MethodDelete, "/v1/volumes/"+lost, nil, http.StatusAccepted, nil)
	c.awaitGone("/v1/volumes/" + lost)
	c.settled()
}

// TestASnapshotIsRestored takes a tenant's site there and back; a failed restore leaves the site as it was, and reports
// this. Sessions count for the tenant's org.
func TestASnapshotIsRestored(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	c.exec(`UPDATE orgs SET tier = 'paid'`)
	app := c.sharedFleet(1)
	id := c.tenant("alpha", prego.PlanStarter, nil)
	tn := c.settledTenant(id, tenant.Active)
	database := tn.Allocation.DatabaseName
	holds := func(want string) {
		t.Helper()
		require.Equal(t, want, inMariaDB[string](c, app, database, "SELECT description FROM `"+database+"`.tabToDo"))
		require.Equal(t, "off", c.maintenance(app, "alpha.sites.test"), "the site serves")
	}
	write := func(text string) {
		t.Helper()
		db := c.hostDB(app, database)
		_, err := db.ExecContext(t.Context(), "DELETE FROM `"+database+"`.tabToDo")
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "INSERT INTO `"+database+"`.tabToDo (name, description) VALUES ('one', ?)", text)
		require.NoError(t, err)
	}
	of := "/v1/tenants/" + id
	write("first")
	c.keepPassword(app, "alpha.sites.test", "open sesame")
	s := c.snapshot(of)
	require.GreaterOrEqual(t, len(s.Files), 3)
	keepHistory(t, c, "snapshot", s.WorkflowId)

	restore := func(want api.JobStatus) api.RestoreJob {
		t.Helper()
		var j api.RestoreJob
		c.post(of+"/restores", map[string]any{"snapshot_id": s.SnapshotId}, http.StatusAccepted, &j)
		eventually(t, func() bool {
			c.send(http.MethodGet, of+"/restores/"+j.JobId, nil, http.StatusOK, &j)
			return j.Status == "succeeded" || j.Status == "failed"
		}, patience, 50*time.Millisecond)
		require.Equal(t, want, j.Status, deref(j.Message))
		return j
	}
	write("second")
	c.keepPassword(app, "alpha.sites.test", "second")
	keepHistory(t, c, "restore-forgets", restore("succeeded").WorkflowId)
	holds("first")
	require.Equal(t, "open sesame", c.keptPassword(app, "alpha.sites.test"))

	write("third")
	c.inject(sim.Fault{Kind: "bench", Verb: "restore", Action: "fail_after", Message: "the disk is full", Times: 1})
	j := restore("failed")
	require.Contains(t, deref(j.Message), "the disk is full")
	require.Contains(t, deref(j.Message), "The site is as it was")
	holds("third")
	require.Equal(t, "open sesame", c.keptPassword(app, "alpha.sites.test"))
	keepHistory(t, c, "restore-failed", j.WorkflowId)
	require.Equal(t, 2, c.number(`SELECT count(*) FROM org_events WHERE type = 'restore.create'`))

	c.limit("acme", "max_restore_jobs", 0)
	c.beyond(http.MethodPost, of+"/restores", map[string]any{"snapshot_id": s.SnapshotId}, "max_restore_jobs", 0, 0, 1)
	c.limit("acme", "max_snapshots_per_volume", 0)
	c.beyond(http.MethodPost, of+"/snapshots", nil, "max_snapshots_per_volume", 0, 0, 1)

	c.send(http.MethodDelete, of+"/snapshots/"+s.SnapshotId, nil, http.StatusNoContent, nil)
	c.exec(`UPDATE snapshots SET kept_until = now() WHERE kept_until IS NOT NULL`)
	c.awaitRunEnd(tenant.SnapshotEraseWorkflowID(prego.SnapshotID(s.SnapshotId)))
	keepHistory(t, c, "snapshot-erased", tenant.SnapshotEraseWorkflowID(prego.SnapshotID(s.SnapshotId)))

	// Sessions.
	c.limit("acme", "max_exec_sessions_per_hour", 1)
	run := map[string]any{"kind": "bench", "args": []string{"list-sites"}, "tenant_id": id}
	c.post("/v1/servers/"+app+"/exec", run, http.StatusOK, nil)
	c.beyond(http.MethodPost, "/v1/servers/"+app+"/exec", run, "max_exec_sessions_per_hour", 1, 1, 1)
	_, errs, status := c.cli(c.operator, "exec", "--tenant", id, app, "bench", "--", "list-sites")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "quota_exceeded")
	delete(run, "tenant_id")
	c.post("/v1/servers/"+app+"/exec", run, http.StatusOK, nil)
	require.Equal(t, 1, c.number(`SELECT count(*) FROM org_sessions WHERE closed_at IS NOT NULL`))
	require.Zero(t, c.number(`SELECT count(*) FROM org_sessions WHERE closed_at IS NULL`))
}
