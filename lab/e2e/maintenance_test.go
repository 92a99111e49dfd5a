package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// drain asks for maintenance.
func (c *cell) drain(serverID, verb string) (d api.Maintenance) {
	c.t.Helper()
	c.post("/v1/servers/"+serverID+"/"+verb, map[string]any{"reason": "a test"}, http.StatusAccepted, &d)
	return d
}

func (c *cell) awaitMaintenance(serverID, what string, ok func(api.Maintenance) bool) api.Maintenance {
	c.t.Helper()
	return await(c.t, fmt.Sprintf("the maintenance of %s never was %s", serverID, what), func() (d api.Maintenance) {
		c.send(http.MethodGet, "/v1/servers/"+serverID+"/maintenance", nil, http.StatusOK, &d)
		return d
	}, ok)
}

func (c *cell) drained(serverID string) api.Maintenance {
	c.t.Helper()
	return c.awaitMaintenance(serverID, "done", func(d api.Maintenance) bool {
		require.NotContains(c.t, []api.MaintenanceStatus{"failed", "cancelled"}, d.Status, "%s", deref(d.Message))
		return d.Status == "done"
	})
}

// busiest is the server that runs the most instances.
func (c *cell) busiest() (id string) {
	c.t.Helper()
	c.query(&id, `SELECT server_id FROM instances WHERE state <> 'stopped' GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1`)
	return id
}

func (c *cell) killedAt(file, point string) {
	c.t.Helper()
	select {
	case <-c.procs["worker"].Done():
	case <-time.After(patience):
		c.t.Fatalf("%s was never reached", point)
	}
	require.NoError(c.t, os.Remove(file+".hit"))
	delete(c.procs, "worker")
	c.start("worker")
}

// hostsAndRows are the processes that can die while instances move.
var hostsAndRows = []string{"worker", "agent", "agentgw", "postgres"}

// TestRecordMaintenanceHistories empties servers with instances of two groups, whose health is observed all the time, while
// every process is killed on the way: no group is ever below its budget. The runs are recorded with -record.
func TestRecordMaintenanceHistories(t *testing.T) {
	t.Parallel()
	all := rounds(t, 3, []string{"maintenance/step", "maintenance/stepped", "instance/boot", "instance/booted", "instance/running", "instance/stop", "instance/removed", "instance/stopped"},
		hostsAndRows)
	reboots := rounds(t, 1, []string{"maintenance/reboot", "maintenance/rebooted"}, hostsAndRows)
	replaced := rounds(t, 1, []string{"maintenance/replacement", "maintenance/deleting"}, hostsAndRows)[:1]
	m, vars, own := newMortals(t, slices.Concat(all, reboots, replaced))
	c := newCell(t, options{url: own, vars: groupVars(vars)})
	m.cell = c
	env := c.workloads("acme", "paid")
	c.nodes("n", 3, 1024*mb)
	always := map[string]any{"max_surge": 1, "max_unavailable": 0}
	var web, jobs api.ProcessGroup
	c.post(string("/v1/envs/"+env+"/groups"), map[string]any{"name": "web", "spec": spec("web:1", 128), "replicas": 4, "rollout_policy": always}, http.StatusCreated, &web)
	c.post(string("/v1/envs/"+env+"/groups"), map[string]any{"name": "jobs", "spec": spec("jobs:1", 128), "replicas": 2, "rollout_policy": always}, http.StatusCreated, &jobs)
	c.settledGroup(web.GroupId)
	c.settledGroup(jobs.GroupId)
	webSeen, jobsSeen := m.watchInstances(web.GroupId), m.watchInstances(jobs.GroupId)

	// A maintenance during which every process is killed.
	for _, round := range all {
		first := c.busiest()
		m.play(round, func() { c.drain(first, "drain") })
		d := c.drained(first)
		require.Positive(t, d.Total)
		require.Zero(t, d.Left)
		require.Zero(t, c.number(`SELECT count(*) FROM instances WHERE server_id = $1 AND state <> 'stopped'`, first))
		require.Equal(t, 1, c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND cordoned_at IS NOT NULL`, first), "it stays cordoned")
		c.settledGroup(web.GroupId)
		c.settledGroup(jobs.GroupId)
		c.rowsAndHostsAgree()
		c.send(http.MethodPost, "/v1/servers/"+first+"/uncordon", nil, http.StatusOK, nil)
	}

	// A reboot ends with the host's next boot, and no death makes it two.
	var second string
	for _, round := range reboots {
		second = c.busiest()
		var before, after string
		c.query(&before, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, second)
		m.play(round, func() { c.drain(second, "reboot") })
		c.drained(second)
		c.query(&after, `SELECT agent_boot_id FROM servers WHERE server_id = $1`, second)
		require.NotEqual(t, before, after)
		require.Equal(t, 1, c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND cordoned_at IS NULL AND status = 'active'`, second))
	}
	keepHistory(t, c, "maintenance-reboot", server.MaintenanceWorkflowID(prego.ServerID(second)))
	c.settledGroup(web.GroupId)

	// A replacement is of the same fleet, and the old server is gone.
	third := c.busiest()
	m.play(replaced[0], func() { c.drain(third, "replace") })
	d := c.drained(third)
	require.Equal(t, 1, c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND status = 'terminated'`, third))
	require.Equal(t, 1, c.number(`SELECT count(*) FROM servers n JOIN servers o ON o.fleet_id = n.fleet_id AND o.role = n.role WHERE n.server_id = $1 AND n.status = 'active' AND o.server_id = $2`, deref(d.ReplacementId), third))
	keepHistory(t, c, "maintenance-replace", server.MaintenanceWorkflowID(prego.ServerID(third)))
	c.settledGroup(web.GroupId)
	c.settledGroup(jobs.GroupId)
	_, fewest := webSeen()
	require.GreaterOrEqual(t, fewest, 4, "web was never below its budget")
	most, fewest := jobsSeen()
	require.GreaterOrEqual(t, fewest, 2, "jobs was never below its budget")
	require.LessOrEqual(t, most, 3, "one more concurrently")
	c.rowsAndHostsAgree()

	// Without room, a maintenance reports this and waits; cancelled, it leaves all as it was.
	_, err := c.pool.Exec(context.Background(), `UPDATE fleets SET workload_memory_bytes = 1`)
	require.NoError(t, err)
	fourth := c.busiest()
	ids := append(c.instanceIDs(web.GroupId), c.instanceIDs(jobs.GroupId)...)
	c.drain(fourth, "drain")
	d = c.awaitMaintenance(fourth, "short of room", func(d api.Maintenance) bool { return deref(d.Reason) == "no_capacity_memory" })
	require.Contains(t, deref(d.Message), "no place for an instance")
	c.send(http.MethodDelete, "/v1/servers/"+fourth+"/maintenance", nil, http.StatusAccepted, nil)
	c.awaitMaintenance(fourth, "cancelled", func(d api.Maintenance) bool { return d.Status == "cancelled" })
	keepHistory(t, c, "maintenance-cancelled", server.MaintenanceWorkflowID(prego.ServerID(fourth)))
	require.Equal(t, 1, c.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND cordoned_at IS NULL`, fourth))
	c.settledGroup(web.GroupId)
	c.settledGroup(jobs.GroupId)
	require.ElementsMatch(t, ids, append(c.instanceIDs(web.GroupId), c.instanceIDs(jobs.GroupId)...), "nothing has moved")

	// With room again, it completes, and notifies once.
	_, err = c.pool.Exec(context.Background(), `UPDATE fleets SET workload_memory_bytes = $1`, 1024*mb)
	require.NoError(t, err)
	c.drain(fourth, "drain")
	c.drained(fourth)
	keepHistory(t, c, "maintenance-drain", server.MaintenanceWorkflowID(prego.ServerID(fourth)))
	c.rowsAndHostsAgree()

	// A fleet empties servers that it removes: the oldest, which runs instances now.
	c.send(http.MethodPost, "/v1/servers/"+fourth+"/uncordon", nil, http.StatusOK, nil)
	c.scale(web.GroupId, 6, http.StatusAccepted)
	c.settledGroup(web.GroupId)
	webSeen = c.watchInstances(web.GroupId)
	fleet := c.id("n")
	c.awaitAction(fleet, c.act(fleet, "CLUSTER_SCALE_IN", map[string]any{"count": 1}).Seq, "succeeded")
	require.Equal(t, 2, c.number(`SELECT count(*) FROM servers WHERE fleet_id = $1 AND status = 'active'`, fleet))
	c.settledGroup(web.GroupId)
	c.settledGroup(jobs.GroupId)
	_, fewest = webSeen()
	require.GreaterOrEqual(t, fewest, 6, "web was never below its budget")
	require.Equal(t, 1, c.number(`SELECT count(*) FROM server_maintenances WHERE by_fleet AND status = 'done' AND total > 0`))
	c.rowsAndHostsAgree()
}

// TestADrainTakesAVolumeAlong: its one writer stops first, and starts where the volume is then.
func TestADrainTakesAVolumeAlong(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: groupVars(nil)})
	env := c.workloads("acme", "paid")
	var v api.Volume
	c.post("/v1/volumes", map[string]any{"org_id": "acme", "name": "data", "region": "eu", "size_bytes": 10_000_000_000}, http.StatusAccepted, &v)
	eventually(t, func() bool { return len(c.billed("volume")) == 1 }, patience, 50*time.Millisecond)
	var location string
	c.query(&location, `SELECT location FROM volumes WHERE volume_id = $1`, v.VolumeId)
	fleet := c.id("n") // where the volume can follow
	c.fleet(fleet, prego.RoleApp, nil, map[string]any{
		"region": "eu", "spec": map[string]any{"server_type": "cx53", "location": location}, "workload_memory_bytes": 4096 * mb, "workload_cpus": 8,
	})
	c.awaitAction(fleet, c.act(fleet, "CLUSTER_SCALE_OUT", map[string]any{"count": 2}).Seq, "succeeded")
	g := c.group(env, "db", 1, spec("db:1", 64))
	c.settledGroup(g.GroupId)
	var at api.VolumeAttachment
	c.post("/v1/volumes/"+v.VolumeId+"/attachments", map[string]any{"group_id": g.GroupId, "mount_path": "/data"}, http.StatusCreated, &at)
	c.awaitGroup(g.GroupId, "started with its volume", func(p api.ProcessGroup) bool { return p.DeployStatus == "succeeded" && p.Converged })
	seen := c.watchInstances(g.GroupId)
	from := c.busiest()
	d := c.drain(from, "drain")
	require.Len(t, d.Instances, 1)
	require.True(t, d.Instances[0].StopsFirst, "and it is shown")
	c.drained(from)
	c.settledGroup(g.GroupId)
	most, _ := seen()
	require.Equal(t, 1, most, "never two writers")
	var on string
	c.query(&on, `SELECT server_id FROM volume_attachments WHERE attachment_id = $1`, at.AttachmentId)
	require.NotEqual(t, from, on)
	require.Equal(t, on, c.instances(g.GroupId)[0].ServerId)
	c.rowsAndHostsAgree()
}
