package e2e

import (
	"context"
	"encoding/json"
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
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

const mb = 1 << 20

func groupVars(more map[string]string) map[string]string {
	vars := fleetVars(map[string]string{"PREGO_GROUP_RETRY": "2s"})
	maps.Copy(vars, more)
	return vars
}

// workloads makes an org of a tier with an app and an environment in eu.
func (c *cell) workloads(org, tier string) (envID prego.EnvID) {
	c.t.Helper()
	return prego.EnvID(c.environment(org, tier, "shop"))
}

// environment makes an app of an org, and an environment of it in eu.
func (c *cell) environment(org, tier, name string) string {
	c.t.Helper()
	c.send(http.MethodPut, "/v1/orgs/"+org, map[string]any{"tier": tier}, http.StatusOK, nil)
	var app api.App
	c.post("/v1/apps", map[string]any{"org_id": org, "name": name}, http.StatusCreated, &app)
	var env api.Env
	c.post("/v1/apps/"+app.AppId+"/envs", map[string]any{"name": "live", "region": "eu"}, http.StatusCreated, &env)
	return env.EnvId
}

// limit overrides a limit of an org.
func (c *cell) limit(org, dimension string, limit float64) {
	c.t.Helper()
	c.send(http.MethodPut, "/v1/orgs/"+org+"/quotas/"+dimension, map[string]any{"limit": limit, "reason": "a test"}, http.StatusOK, nil)
}

// nodes creates a fleet of n servers in eu that offer memory to instances.
func (c *cell) nodes(fleet string, n int, memory int64) {
	c.t.Helper()
	// Servers are named after their fleet, and the cells share Temporal.
	fleet = c.id(fleet)
	c.fleet(fleet, prego.RoleApp, nil, map[string]any{"region": "eu", "spec": map[string]any{"server_type": "cx53"}, "workload_memory_bytes": memory, "workload_cpus": 8})
	c.awaitAction(fleet, c.act(fleet, "CLUSTER_SCALE_OUT", map[string]any{"count": n}).Seq, "succeeded")
	// An agent that heartbeats is connected.
	eventually(c.t, func() bool {
		return c.number(`SELECT count(*) FROM servers WHERE fleet_id = $1 AND status = 'active' AND agent_status = 'connected'`, fleet) == n
	}, patience, 50*time.Millisecond)
}

func spec(image string, memory int) map[string]any {
	return map[string]any{"image": image, "memory_limit_bytes": memory * mb, "cpu_request": 0.25, "ports": []int{8080}}
}

func (c *cell) group(env prego.EnvID, name string, replicas int, spec map[string]any) (g api.ProcessGroup) {
	c.t.Helper()
	c.post(string("/v1/envs/"+env+"/groups"), map[string]any{"name": name, "spec": spec, "replicas": replicas}, http.StatusCreated, &g)
	return g
}

func (c *cell) getGroup(id string) (g api.ProcessGroup) {
	c.t.Helper()
	c.send(http.MethodGet, "/v1/groups/"+id, nil, http.StatusOK, &g)
	return g
}

func (c *cell) scale(id string, replicas, status int) (p api.Problem) {
	c.t.Helper()
	code, body := c.request(http.MethodPost, "/v1/groups/"+id+"/scale", map[string]any{"replicas": replicas})
	require.Equal(c.t, status, code, "%s", body)
	if status >= 400 {
		require.NoError(c.t, json.Unmarshal(body, &p))
	}
	return p
}

func (c *cell) deploy(id string, spec map[string]any) {
	c.t.Helper()
	c.post("/v1/groups/"+id+"/deploys", map[string]any{"spec": spec}, http.StatusAccepted, nil)
}

func (c *cell) awaitGroup(id, what string, ok func(api.ProcessGroup) bool) api.ProcessGroup {
	c.t.Helper()
	return await(c.t, fmt.Sprintf("group %s never was %s", id, what), func() api.ProcessGroup { return c.getGroup(id) }, ok)
}

// settledGroup waits until a group has what it should.
func (c *cell) settledGroup(id string) api.ProcessGroup {
	c.t.Helper()
	return c.awaitGroup(id, "settled", func(g api.ProcessGroup) bool {
		return g.Converged && g.Instances["running"] == g.Replicas && len(g.Instances) <= 1
	})
}

func (c *cell) unschedulable(id, reason string) api.ProcessGroup {
	c.t.Helper()
	return c.awaitGroup(id, "short of "+reason, func(g api.ProcessGroup) bool { return g.Status == "unschedulable" && deref(g.StatusReason) == reason })
}

func (c *cell) instances(group string) []api.Instance {
	c.t.Helper()
	var page api.InstancePage
	c.send(http.MethodGet, "/v1/groups/"+group+"/instances?limit=200", nil, http.StatusOK, &page)
	return page.Instances
}

// hosted are the containers of instances on all hosts, as the hosts know them.
func (c *cell) hosted() map[string]string {
	c.t.Helper()
	out := map[string]string{}
	rows, err := c.pool.Query(context.Background(), `SELECT server_id FROM servers WHERE status = 'active'`)
	require.NoError(c.t, err)
	var ids []string
	for rows.Next() {
		var id string
		require.NoError(c.t, rows.Scan(&id))
		ids = append(ids, id)
	}
	require.NoError(c.t, rows.Err())
	for _, id := range ids {
		list, err := c.engineAt(prego.ServerID(id)).List(c.t.Context())
		require.NoError(c.t, err)
		for _, i := range list {
			if i.Instance != "" {
				require.NotContains(c.t, out, i.Instance, "one instance, one container")
				out[i.Instance] = id
			}
		}
	}
	return out
}

// rowsAndHostsAgree compares the instances that count with the containers that there
// are.
func (c *cell) rowsAndHostsAgree() {
	c.t.Helper()
	want := map[string]string{}
	rows, err := c.pool.Query(context.Background(), `SELECT instance_id, server_id FROM instances WHERE state <> 'stopped'`)
	require.NoError(c.t, err)
	for rows.Next() {
		var id, server string
		require.NoError(c.t, rows.Scan(&id, &server))
		want[id] = server
	}
	require.NoError(c.t, rows.Err())
	require.Equal(c.t, want, c.hosted())
}

// watchUsage checks all the time that an org uses no more than a limit, and that no
// server is filled beyond what it offers, until it is stopped.
func (c *cell) watchUsage(org, dimension string, limit func() float64) (stop func() float64) {
	quit, ended := make(chan struct{}), make(chan struct{})
	most := 0.0
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case <-time.After(20 * time.Millisecond):
			}
			var usage float64
			var over int
			err := c.pool.QueryRow(context.Background(), `SELECT usage, (SELECT count(*) FROM servers s JOIN fleets f USING (fleet_id) WHERE f.workload_memory_bytes < (
				SELECT COALESCE(sum(memory_limit_bytes + 33554432), 0) FROM instances i WHERE i.server_id = s.server_id AND i.state <> 'stopped') AND f.workload_memory_bytes > 0)
				FROM org_usage_view WHERE org_id = $1 AND dimension = $2`, org, dimension).Scan(&usage, &over)
			if err != nil || usage > limit() || over > 0 {
				c.t.Errorf("usage of %s is %v of %v, %d servers are overfull (%v)", dimension, usage, limit(), over, err)
				return
			}
			most = max(most, usage)
		}
	}()
	return func() float64 { close(quit); <-ended; return most }
}

// TestScaleUpBeyondMaxInstancesIsRejected is compliance test 1.
func TestScaleUpBeyondMaxInstancesIsRejected(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(nil)})
	env := c.workloads("acme", "free") // five instances
	g := c.group(env, "web", 2, spec("web:1", 64))
	p := c.scale(g.GroupId, 10, http.StatusConflict)
	require.Equal(t, "quota_exceeded", p.Code)
	require.Equal(t, []any{"max_instances", 5.0, 2.0, 8.0}, []any{*p.Dimension, *p.Limit, *p.CurrentUsage, *p.RequestedDelta})
	require.Equal(t, 2, c.getGroup(g.GroupId).Replicas, "a refused request has changed nothing")
	// Promises count: nothing is allocated here, since there is no server.
	c.scale(g.GroupId, 5, http.StatusAccepted)
	code, body := c.request(http.MethodPost, string("/v1/envs/"+env+"/groups"), map[string]any{"name": "more", "spec": spec("web:1", 64)})
	require.Equal(t, http.StatusConflict, code, "%s", body)
	c.scale(g.GroupId, 4, http.StatusAccepted)
	c.group(env, "more", 1, spec("web:1", 64))
	p = c.scale(g.GroupId, 4000, http.StatusConflict)
	require.Equal(t, 5.0, *p.CurrentUsage)
	// The other dimensions of the same change, each by itself.
	c.limit("acme", "max_instances", 100)
	p = c.scale(g.GroupId, 100, http.StatusConflict)
	require.Equal(t, "max_instances", *p.Dimension)
	c.limit("acme", "max_instances", 1000)
	p = c.scale(g.GroupId, 100, http.StatusConflict)
	require.Equal(t, "max_total_memory_bytes", *p.Dimension)
	require.Equal(t, float64(96*96*mb), *p.RequestedDelta)
	c.limit("acme", "max_total_memory_bytes", 1<<40)
	p = c.scale(g.GroupId, 100, http.StatusConflict)
	require.Equal(t, "max_total_cpu_request", *p.Dimension)
	require.Equal(t, 2, c.number(`SELECT count(*) FROM org_events WHERE type = 'group.create'`))
	require.Equal(t, 2, c.number(`SELECT count(*) FROM org_events WHERE type = 'group.scale'`))
}

// TestScaleUpWithinQuotaAllocates is compliance test 2, with what follows: instances
// are spread, limited, listed, read, and taken down again.
func TestScaleUpWithinQuotaAllocates(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(nil)})
	env := c.workloads("acme", "paid")
	c.nodes("n", 2, 4096*mb)
	g := c.group(env, "web", 1, spec("web:1", 64))
	c.settledGroup(g.GroupId)
	c.scale(g.GroupId, 4, http.StatusAccepted)
	got := c.settledGroup(g.GroupId)
	require.Equal(t, "running", got.Status)
	require.Equal(t, 1, got.StableRelease)
	perServer := map[string]int{}
	for _, i := range c.instances(g.GroupId) {
		perServer[i.ServerId]++
		require.True(t, i.Healthy)
		require.Equal(t, 8080, i.Ports[0].ContainerPort)
	}
	require.Len(t, perServer, 2)
	for id, n := range perServer {
		require.Equal(t, 2, n, "they are spread: %s", id)
	}
	c.rowsAndHostsAgree()
	first := c.instances(g.GroupId)[0]
	stats, err := c.engineAt(prego.ServerID(first.ServerId)).Stats(t.Context(), first.InstanceId)
	require.NoError(t, err)
	require.EqualValues(t, 64*mb, stats.MemoryLimit)
	status, logs := c.request(http.MethodGet, "/v1/instances/"+first.InstanceId+"/logs?tail=5", nil)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, string(logs), "is running")
	c.reconcile()
	require.Empty(t, c.findings().Drift, "instances have no place in the declared stack, and are no drift of it")

	// A container that ended is replaced.
	require.NoError(t, c.engineAt(prego.ServerID(first.ServerId)).Stop(t.Context(), first.InstanceId))
	c.awaitGroup(g.GroupId, "healed", func(p api.ProcessGroup) bool {
		return p.Converged && p.Instances["running"] == 4 && !slices.ContainsFunc(c.instances(g.GroupId), func(i api.Instance) bool { return i.InstanceId == first.InstanceId })
	})
	c.scale(g.GroupId, 1, http.StatusAccepted)
	c.settledGroup(g.GroupId)
	c.rowsAndHostsAgree()
	keepHistory(t, c, "group-scaled", workload.GroupWorkflowID(prego.GroupID(g.GroupId)))
	c.send(http.MethodDelete, "/v1/groups/"+g.GroupId, nil, http.StatusNoContent, nil)
	c.send(http.MethodGet, "/v1/groups/"+g.GroupId, nil, http.StatusNotFound, nil)
	eventually(t, func() bool { return c.number(`SELECT count(*) FROM instances WHERE state <> 'stopped'`) == 0 }, patience, 50*time.Millisecond)
	require.Empty(t, c.hosted())
	keepHistory(t, c, "sweep-groups", c.runOf("SweepGroups"))
}

// TestDeployIsRolling replaces instances one by one, and takes a bad release back.
func TestDeployIsRolling(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(nil)})
	env := c.workloads("acme", "free")
	c.nodes("n", 2, 4096*mb)
	g := c.group(env, "web", 2, spec("web:1", 64))
	c.settledGroup(g.GroupId)
	stop := c.watchUsage("acme", "max_instances", func() float64 { return 3 })
	c.deploy(g.GroupId, spec("web:2", 64))
	got := c.awaitGroup(g.GroupId, "deployed", func(p api.ProcessGroup) bool { return p.DeployStatus == "succeeded" && p.Converged })
	require.Equal(t, []int{2, 2}, []int{got.Release, got.StableRelease})
	for _, i := range c.instances(g.GroupId) {
		require.Equal(t, "web:2", i.Image)
	}
	require.Equal(t, 3.0, stop(), "one more than replicas, while it lasted")
	keepHistory(t, c, "group-deployed", workload.GroupWorkflowID(prego.GroupID(g.GroupId)))

	// The same release again is none; another constraint is refused.
	c.deploy(g.GroupId, spec("web:2", 64))
	require.Equal(t, 2, c.getGroup(g.GroupId).Release)
	other := spec("web:3", 64)
	other["constraint"] = map[string]any{"require": []string{"gpu"}}
	status, body := c.request(http.MethodPost, "/v1/groups/"+g.GroupId+"/deploys", map[string]any{"spec": other})
	require.Equal(t, http.StatusConflict, status, "%s", body)
	require.Contains(t, string(body), "constraint_immutable")

	for action, image := range map[string]string{"die": "bad:1", "unhealthy": "bad:2"} {
		c.inject(sim.Fault{Kind: "container", Image: image, Action: action})
		bad := spec(image, 64)
		bad["health"], bad["start_timeout_seconds"] = map[string]any{"command": []string{"/check"}}, 2
		before := c.getGroup(g.GroupId)
		c.deploy(g.GroupId, bad)
		got = c.awaitGroup(g.GroupId, "rolled back", func(p api.ProcessGroup) bool { return p.DeployStatus == "rolled_back" && p.Converged })
		require.Equal(t, "web:2", got.Spec.Image)
		require.Equal(t, before.Release, got.Release, "the stable release is wanted again")
		require.Contains(t, deref(got.DeployMessage), "did not become healthy")
		require.Contains(t, deref(got.DeployMessage), "injected fault: "+action, "with its last lines")
		require.Equal(t, 2, got.Instances["running"])
	}
	c.rowsAndHostsAgree()
	keepHistory(t, c, "group-rolled-back", workload.GroupWorkflowID(prego.GroupID(g.GroupId)))
	// The next release has a separate number.
	c.deploy(g.GroupId, spec("web:5", 64))
	got = c.awaitGroup(g.GroupId, "deployed", func(p api.ProcessGroup) bool { return p.DeployStatus == "succeeded" && p.Converged })
	require.Equal(t, 5, got.Release)
}

// TestAStartUnderWayIsGivenUp scales down while an instance does not become healthy,
// and deletes a group in the same state.
func TestAStartUnderWayIsGivenUp(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(nil)})
	env := c.workloads("acme", "paid")
	c.nodes("n", 1, 4096*mb)
	c.inject(sim.Fault{Kind: "container", Image: "slow:1", Action: "unhealthy"})
	slow := spec("slow:1", 64)
	slow["health"], slow["start_timeout_seconds"] = map[string]any{"command": []string{"/check"}}, 600
	for _, end := range []func(id string){
		func(id string) { c.scale(id, 0, http.StatusAccepted); c.settledGroup(id) },
		func(id string) { c.send(http.MethodDelete, "/v1/groups/"+id, nil, http.StatusNoContent, nil) },
	} {
		g := c.group(env, fmt.Sprintf("slow%d", c.number(`SELECT count(*) FROM process_groups`)), 2, slow)
		eventually(t, func() bool { return len(c.hosted()) == 2 }, patience, 50*time.Millisecond)
		end(g.GroupId)
		eventually(t, func() bool {
			return c.number(`SELECT count(*) FROM instances WHERE state <> 'stopped'`) == 0 && len(c.hosted()) == 0
		}, 30*time.Second, 50*time.Millisecond)
		c.awaitRunEnd(workload.GroupWorkflowID(prego.GroupID(g.GroupId)))
	}
	time.Sleep(3 * time.Second) // sweeps
	require.Empty(t, c.hosted(), "nothing comes back")
}

// TestDeployWithoutRoomForTheSurgeDrainsFirst is compliance test 3.
func TestDeployWithoutRoomForTheSurgeDrainsFirst(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(nil)})
	env := c.workloads("acme", "paid")
	c.limit("acme", "max_instances", 3)
	c.nodes("n", 2, 4096*mb)
	g := c.group(env, "web", 3, spec("web:1", 64))
	c.settledGroup(g.GroupId)
	for _, image := range []string{"web:2", "web:3"} { // consistently
		stop := c.watchUsage("acme", "max_instances", func() float64 { return 3 })
		c.deploy(g.GroupId, spec(image, 64))
		now := c.getGroup(g.GroupId)
		require.Contains(t, deref(now.DeployMessage), "max_instances has no room for one instance more: an instance is drained before the next one starts")
		got := c.awaitGroup(g.GroupId, "deployed", func(p api.ProcessGroup) bool { return p.DeployStatus == "succeeded" && p.Converged })
		require.Contains(t, deref(got.DeployMessage), "drained")
		require.Equal(t, 3, got.Instances["running"])
		stop()
	}
	require.Equal(t, 2, c.number(`SELECT count(*) FROM org_events WHERE type = 'group.deploy' AND payload ->> 'strategy' = 'draining_first'`))
	// Of a group of one nothing would be left: refused, with the numbers.
	c.scale(g.GroupId, 1, http.StatusAccepted)
	c.settledGroup(g.GroupId)
	c.limit("acme", "max_instances", 1)
	status, body := c.request(http.MethodPost, "/v1/groups/"+g.GroupId+"/deploys", map[string]any{"spec": spec("web:4", 64)})
	require.Equal(t, http.StatusConflict, status, "%s", body)
	require.Contains(t, string(body), "quota_exceeded")
}

// TestCapacityIsDistinguishedFromQuota gives each reason its own name.
func TestCapacityIsDistinguishedFromQuota(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(nil)})
	env := c.workloads("acme", "enterprise")
	none := c.group(env, "none", 1, spec("web:1", 64))
	c.unschedulable(none.GroupId, "no_nodes_active")
	c.nodes("n", 1, 1000*mb)
	c.settledGroup(none.GroupId) // a server came to life

	picky := spec("web:1", 64)
	picky["constraint"] = map[string]any{"require": []string{"GPU"}}
	cell := c.group(env, "cell", 1, picky)
	g := c.unschedulable(cell.GroupId, "cell_mismatch")
	require.Contains(t, deref(g.StatusMessage), "constraint 1")
	large := c.group(env, "large", 1, spec("web:1", 2000))
	g = c.unschedulable(large.GroupId, "no_capacity_memory")
	require.Contains(t, deref(g.StatusMessage), "it needs 2 GiB, and at most 904 MiB are free")
	require.Contains(t, string(*g.Decision), `"rejected_counts":{"memory":1}`)

	data := c.group(env, "data", 0, func() map[string]any { s := spec("web:1", 64); s["volumes"] = []string{"/data"}; return s }())
	c.scale(data.GroupId, 1, http.StatusAccepted)
	c.unschedulable(data.GroupId, "volume_not_attached")
	attach := func(name, location string) (volume, attachment string) {
		var v api.Volume
		c.post("/v1/volumes", map[string]any{"org_id": "acme", "name": name, "region": "eu", "location": location, "size_bytes": 10_000_000_000}, http.StatusAccepted, &v)
		var at api.VolumeAttachment
		c.post("/v1/volumes/"+v.VolumeId+"/attachments", map[string]any{"group_id": data.GroupId, "mount_path": "/data"}, http.StatusCreated, &at)
		return v.VolumeId, at.AttachmentId
	}
	var here string
	c.query(&here, `SELECT location FROM servers WHERE fleet_id IS NOT NULL LIMIT 1`)
	elsewhere := map[bool]string{true: "nbg1", false: "fsn1"}[here == "fsn1"]
	far, end := attach("far", elsewhere)
	c.unschedulable(data.GroupId, "volume_locality_no_node")
	status, body := c.request(http.MethodPost, "/v1/groups/"+data.GroupId+"/scale", map[string]any{"replicas": 2})
	require.Equal(t, http.StatusUnprocessableEntity, status, "a volume has one writer: %s", body)
	c.send(http.MethodDelete, "/v1/volumes/"+far+"/attachments/"+end, nil, http.StatusNoContent, nil)
	attach("near", here)
	c.settledGroup(data.GroupId)
	// One writer: the old one is gone before the new one comes.
	stop := c.watchUsage("acme", "max_instances", func() float64 { return 2 })
	next := spec("web:2", 64)
	next["volumes"] = []string{"/data"}
	c.deploy(data.GroupId, next)
	require.Equal(t, "stopping_first", c.getGroup(data.GroupId).DeployStatus)
	c.awaitGroup(data.GroupId, "deployed", func(p api.ProcessGroup) bool { return p.DeployStatus == "succeeded" && p.Converged })
	stop()

	// The quota is another matter.
	c.limit("acme", "max_instances", 4)
	p := c.scale(none.GroupId, 4, http.StatusConflict)
	require.Equal(t, "quota_exceeded", p.Code)
}

// watchInstances counts a group's instances all the time, until it is stopped: the most
// there were and the fewest that were healthy.
func (c *cell) watchInstances(group string) (stop func() (most, fewest int)) {
	return (&mortals{cell: c}).watchInstances(group)
}

// watchInstances looks away while Postgres is.
func (m *mortals) watchInstances(group string) (stop func() (most, fewest int)) {
	c := m.cell
	quit, ended := make(chan struct{}), make(chan struct{})
	most, fewest := 0, 1<<30
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case <-time.After(10 * time.Millisecond):
			}
			var all, healthy int
			if err := c.pool.QueryRow(context.Background(), `SELECT count(*), count(*) FILTER (WHERE state = 'running' AND healthy) FROM instances WHERE group_id = $1 AND state <> 'stopped'`, group).Scan(&all, &healthy); err != nil {
				if m.mayBeAway() {
					continue
				}
				c.t.Errorf("count instances: %v", err)
				return
			}
			most, fewest = max(most, all), min(fewest, healthy)
		}
	}()
	return func() (int, int) { close(quit); <-ended; return most, fewest }
}

// outcomes are a group's rollouts, the newest first, as "release kind outcome".
func (c *cell) outcomes(group string) (out []string) {
	c.t.Helper()
	var page api.RolloutPage
	c.send(http.MethodGet, "/v1/groups/"+group+"/rollouts", nil, http.StatusOK, &page)
	for _, r := range page.Rollouts {
		out = append(out, fmt.Sprint(r.Release, " ", r.Kind, " ", r.Outcome))
	}
	return out
}

func (c *cell) instanceIDs(group string) (ids []string) {
	c.t.Helper()
	for _, i := range c.instances(group) {
		ids = append(ids, i.InstanceId)
	}
	slices.Sort(ids)
	return ids
}

// TestRolloutsInWaves replaces six instances two at a time, lets a bad release go back by
// itself while the good one serves, restarts it, and goes back to an earlier one.
func TestRolloutsInWaves(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(nil)})
	env := c.workloads("acme", "enterprise")
	c.nodes("n", 2, 4096*mb)
	var g api.ProcessGroup
	c.post(string("/v1/envs/"+env+"/groups"), map[string]any{
		"name": "web", "spec": spec("web:1", 64), "replicas": 6, "rollout_policy": map[string]any{"max_surge": 2, "max_failures": 1},
	}, http.StatusCreated, &g)
	c.settledGroup(g.GroupId)
	done := func(status string, release int) api.ProcessGroup {
		return c.awaitGroup(g.GroupId, status, func(p api.ProcessGroup) bool {
			return p.Converged && p.DeployStatus == status && p.Release == release && p.Instances["running"] == 6
		})
	}
	stop := c.watchInstances(g.GroupId)
	c.deploy(g.GroupId, spec("web:2", 64))
	done("succeeded", 2)
	most, fewest := stop()
	require.Equal(t, []int{8, 6}, []int{most, fewest}, "two more, and none less")

	c.inject(sim.Fault{Kind: "container", Image: "bad:1", Action: "die"})
	before := c.instanceIDs(g.GroupId)
	stop = c.watchInstances(g.GroupId)
	c.deploy(g.GroupId, spec("bad:1", 64))
	got := done("rolled_back", 2)
	most, fewest = stop()
	require.LessOrEqual(t, most, 8)
	require.Equal(t, 6, fewest, "the good release serves throughout")
	require.Equal(t, before, c.instanceIDs(g.GroupId), "with the same instances")
	require.Equal(t, "instance_failed", deref(got.DeployReason))
	require.Contains(t, deref(got.DeployMessage), "2 instances failed, and 1 may")

	c.post("/v1/groups/"+g.GroupId+"/restart", nil, http.StatusAccepted, nil)
	done("succeeded", 4)
	for _, id := range c.instanceIDs(g.GroupId) {
		require.NotContains(t, before, id)
	}
	c.post("/v1/groups/"+g.GroupId+"/rollback", map[string]any{"release": 1}, http.StatusAccepted, nil)
	got = done("succeeded", 1)
	require.Equal(t, "web:1", got.Spec.Image)
	require.Equal(t, []string{
		"1 rollback succeeded", "4 restart succeeded", "2 rollback succeeded", "3 deploy rolled_back", "2 deploy succeeded", "1 create succeeded",
	}, c.outcomes(g.GroupId))
	c.rowsAndHostsAgree()
	keepHistory(t, c, "group-rollouts", workload.GroupWorkflowID(prego.GroupID(g.GroupId)))
}

// TestOrgsAreServedInTurn fills a server and lets two orgs wait: freed room is shared out in turn, regardless of
// demand.
func TestOrgsAreServedInTurn(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(nil)})
	big, small := c.workloads("big", "enterprise"), c.workloads("small", "enterprise")
	// Both wait before there is any server.
	a := c.group(big, "many", 20, spec("web:1", 64))
	c.unschedulable(a.GroupId, "no_nodes_active")
	b := c.group(small, "few", 2, spec("web:1", 64))
	c.unschedulable(b.GroupId, "no_nodes_active")
	c.nodes("n", 1, 4*96*mb) // four places
	c.settledGroup(b.GroupId)
	g := c.unschedulable(a.GroupId, "no_capacity_memory")
	eventually(t, func() bool { return c.getGroup(a.GroupId).Instances["running"] == 2 }, patience, 50*time.Millisecond)
	require.Equal(t, 20, g.Replicas)
	// No instance is moved for another org.
	require.Equal(t, 2, c.number(`SELECT count(*) FROM instances WHERE org_id = 'small' AND state = 'running'`))
	c.scale(b.GroupId, 0, http.StatusAccepted)
	eventually(t, func() bool { return c.getGroup(a.GroupId).Instances["running"] == 4 }, patience, 50*time.Millisecond, "free room is handed out")
}

// TestAServerFailsAndItsInstancesAreReplaced moves them elsewhere. When the server
// comes back nothing is there twice.
func TestAServerFailsAndItsInstancesAreReplaced(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(map[string]string{"PREGO_DEGRADED_AFTER": "3s", "PREGO_FAILED_AFTER": "5s"})})
	env := c.workloads("acme", "paid")
	c.nodes("n", 2, 4096*mb)
	g := c.group(env, "web", 2, spec("web:1", 64))
	c.settledGroup(g.GroupId)
	lost := c.instances(g.GroupId)[0].ServerId
	hosts := c.sim.Hosts()
	host := hosts[slices.IndexFunc(hosts, func(h sim.HostInfo) bool { return h.Name == server.Name(c.env, prego.ServerID(lost)) })]
	require.NoError(t, c.sim.HostAction(host.ID, "stop-agent"))
	t.Cleanup(func() { _ = c.sim.HostAction(host.ID, "resume-agent") })
	c.awaitGroup(g.GroupId, "moved", func(p api.ProcessGroup) bool {
		return p.Converged && p.Instances["running"] == 2 && !slices.ContainsFunc(c.instances(g.GroupId), func(i api.Instance) bool { return i.ServerId == lost })
	})
	require.Equal(t, 1, c.number(`SELECT count(*) FROM instances WHERE state = 'stopped' AND message = 'its server failed or is gone'`))
	require.NoError(t, c.sim.HostAction(host.ID, "resume-agent"))
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND status = 'active'`, lost) == 1
	}, patience, 50*time.Millisecond)
	c.rowsAndHostsAgree()
}

// TestWorkerKilledWithInstances kills the worker at each step of an instance's life:
// no container is lost, and none is there twice.
func TestWorkerKilledWithInstances(t *testing.T) {
	t.Parallel()
	cases := map[string][]string{
		"placing":  {"group/planned", "group/allocate", "group/allocated"},
		"starting": {"instance/boot", "instance/booted", "instance/running"},
		"stopping": {"instance/stop", "instance/removed", "instance/stopped"},
	}
	for _, name := range deep.Some(t, 1, slices.Sorted(maps.Keys(cases))) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killedWithInstances(t, cases[name], name == "stopping")
		})
	}
}

func killedWithInstances(t *testing.T, points []string, stopping bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "crash")
	c := newCell(t, options{vars: groupVars(map[string]string{"PREGO_TEST_CRASH": file})})
	env := c.workloads("acme", "paid")
	c.nodes("n", 1, 8192*mb)
	for i, point := range points {
		g := c.group(env, fmt.Sprintf("g%d", i), 0, spec("web:1", 64))
		c.settledGroup(g.GroupId)
		replicas := 2
		if stopping {
			replicas = 1
			c.scale(g.GroupId, 3, http.StatusAccepted)
			c.settledGroup(g.GroupId)
		}
		require.NoError(t, os.WriteFile(file, []byte(point), 0o600))
		c.scale(g.GroupId, replicas, http.StatusAccepted)
		select {
		case <-c.procs["worker"].Done():
		case <-time.After(patience):
			t.Fatalf("%s was never reached", point)
		}
		require.FileExists(t, file+".hit")
		require.NoError(t, os.Remove(file+".hit"))
		delete(c.procs, "worker")
		c.start("worker")
		c.settledGroup(g.GroupId)
		c.rowsAndHostsAgree()
	}
}

// TestAVolumeIsWhereItsInstanceIs: it comes to the server before the container starts, stays with one writer through a
// release, and goes when it is no longer needed. It is backed up, restored and copied while processes die, and is not
// destroyed before its last backup is off the host.
func TestAVolumeIsWhereItsInstanceIs(t *testing.T) {
	t.Parallel()
	store := s3test.Start(t)
	crash := filepath.Join(t.TempDir(), "crash")
	c := newCell(t, options{vars: backupVars(store, groupVars(map[string]string{"PREGO_TEST_CRASH": crash, "PREGO_DRILL_EVERY": "1h"}))})
	env := c.workloads("acme", "paid")
	c.nodes("n", 2, 4096*mb)
	var v api.Volume
	c.post("/v1/volumes", map[string]any{"org_id": "acme", "name": "data", "region": "eu", "size_bytes": 10_000_000_000}, http.StatusAccepted, &v)
	eventually(t, func() bool { return len(c.billed("volume")) == 1 }, patience, 50*time.Millisecond)
	plain := spec("db:1", 64)
	g := c.group(env, "db", 1, plain)
	c.settledGroup(g.GroupId)
	var at api.VolumeAttachment
	c.post("/v1/volumes/"+v.VolumeId+"/attachments", map[string]any{"group_id": g.GroupId, "mount_path": "/data"}, http.StatusCreated, &at)
	got := c.awaitGroup(g.GroupId, "started with its volume", func(p api.ProcessGroup) bool { return p.DeployStatus == "succeeded" && p.Converged })
	require.Equal(t, 2, got.Release, "what ran without it is replaced")
	on := func() (server string) {
		c.query(&server, `SELECT COALESCE(server_id, '') FROM volume_attachments WHERE attachment_id = $1`, at.AttachmentId)
		return server
	}
	require.Equal(t, c.instances(g.GroupId)[0].ServerId, on())
	status, body := c.request(http.MethodPost, "/v1/groups/"+g.GroupId+"/scale", map[string]any{"replicas": 2})
	require.Equal(t, http.StatusUnprocessableEntity, status, "%s", body)
	c.deploy(g.GroupId, spec("db:2", 64))
	c.awaitGroup(g.GroupId, "deployed", func(p api.ProcessGroup) bool { return p.DeployStatus == "succeeded" && p.Converged && p.Release == 3 })
	require.Equal(t, c.instances(g.GroupId)[0].ServerId, on())

	// Backed up while it runs, restored and copied once it doesn't.
	b := &volumeBackups{c: c, store: store, of: "/v1/volumes/" + v.VolumeId, crash: crash}
	b.write(t, v.VolumeId, "first")
	first := b.drilledWhoeverDies(t)
	require.Equal(t, on(), first.ServerId)
	b.write(t, v.VolumeId, "second")
	var p api.Problem
	c.send(http.MethodPost, b.of+"/restores", map[string]any{"backup_id": first.BackupId}, http.StatusConflict, &p)
	require.Equal(t, "volume_in_use", p.Code)
	c.post("/v1/groups/"+g.GroupId+"/scale", map[string]any{"replicas": 0}, http.StatusAccepted, nil)
	eventually(t, func() bool { return c.number(`SELECT count(*) FROM instances WHERE state <> 'stopped'`) == 0 }, patience, 50*time.Millisecond)
	c.exec(`UPDATE backups SET verified_at = NULL`)
	points := []string{"volume-lend/intended", "volume-lend/attached", "stored-restore/downloaded", "stored-restore/opened", "volume-lend/detached"}
	for _, point := range deep.Some(t, 2, points) {
		b.restore(t, first.BackupId, workload.RestoreSucceeded, point)
		require.Equal(t, "first", b.read(t, v.VolumeId))
		b.write(t, v.VolumeId, "second")
	}
	c.send(http.MethodGet, b.of+"/backups/"+first.BackupId, nil, http.StatusOK, &first)
	require.True(t, first.Verified)

	// A faulty backup is reported, and the volume stays as it is.
	b.flip(t, deref(first.Object))
	require.Equal(t, tenant.ReasonDigest, b.restore(t, first.BackupId, workload.RestoreFailed, ""))
	require.Equal(t, "second", b.read(t, v.VolumeId))
	b.drilledInVain(t)
	b.flip(t, deref(first.Object))
	var copied api.Volume
	c.post(b.of+"/clones", map[string]any{"name": "copy", "backup_id": first.BackupId}, http.StatusAccepted, &copied)
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM volume_restores WHERE volume_id = $1 AND status = 'succeeded'`, copied.VolumeId) == 1
	}, patience, 50*time.Millisecond)
	require.Equal(t, "first", b.read(t, copied.VolumeId))
	c.send(http.MethodDelete, "/v1/volumes/"+copied.VolumeId+"?no_final_backup_reason=a+copy", nil, http.StatusAccepted, nil)

	// It is not destroyed while the storage has no last backup of it.
	c.send(http.MethodDelete, b.of+"/attachments/"+at.AttachmentId, nil, http.StatusNoContent, nil)
	store.Kill()
	eventually(t, func() bool {
		status, _ := c.request(http.MethodDelete, b.of, nil)
		return status == http.StatusAccepted
	}, patience, 100*time.Millisecond)
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM backups WHERE kind = 'final' AND state IN ('uploading', 'failed')`) > 0
	}, patience, 20*time.Millisecond)
	require.NotEmpty(t, c.billed("volume"))
	store.Boot()
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM backups WHERE kind = 'final' AND state = 'stored'`) == 1
	}, patience, 50*time.Millisecond)
	require.Len(t, c.billed("volume"), 2, "both are kept for a day")
	c.keptEnough(v.VolumeId)
	c.keptEnough(copied.VolumeId)
	eventually(t, func() bool { return len(c.billed("volume")) == 0 }, patience, 50*time.Millisecond)
	require.Equal(t, 1, c.number(`SELECT count(*) FROM backups WHERE volume_id = $1 AND kind = 'final' AND state = 'stored' AND expires_at > now() + interval '1 day'`, v.VolumeId))
	eventually(t, func() bool { // the others are deleted, and that is proven
		return c.number(`SELECT count(*) FROM backups WHERE volume_id = $1 AND state <> 'deleted'`, v.VolumeId) == 1
	}, patience, 50*time.Millisecond)
	require.Equal(t, 1, c.number(`SELECT count(*) FROM resources WHERE kind = 'backup' AND state <> 'released'`))
	// Deleted files come back from it.
	c.post(b.of+"/clones", map[string]any{"name": "back"}, http.StatusAccepted, &copied)
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM volume_restores WHERE volume_id = $1 AND status = 'succeeded'`, copied.VolumeId) == 1
	}, patience, 50*time.Millisecond)
	require.Equal(t, "second", b.read(t, copied.VolumeId))
	c.send(http.MethodDelete, "/v1/volumes/"+copied.VolumeId+"?no_final_backup_reason=a+copy", nil, http.StatusAccepted, nil)
	c.keptEnough(copied.VolumeId)
	eventually(t, func() bool { return len(c.billed("volume")) == 0 }, patience, 50*time.Millisecond)
	require.Zero(t, c.number(`SELECT count(*) FROM volumes WHERE lent_to IS NOT NULL`))
	c.rowsAndHostsAgree()
	c.settled()
}
