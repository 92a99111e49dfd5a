package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

var maintenanceLimits = server.MaintenanceLimits{Servers: 1, Instances: 10}

type maintenanceBundle struct {
	*Store
	t *testing.T
}

// maintenanceSetup is two servers of a fleet, the first with instances of groups.
func maintenanceSetup(t *testing.T, replicas ...int) (b maintenanceBundle, groups []string) {
	t.Helper()
	b = maintenanceBundle{groupBundle(t), t}
	for n, replicas := range replicas {
		id, err := b.testGroup(t, n+1, []string{"acme", "other"}[n%2], replicas, specOf(16))
		require.NoError(t, err)
		groups = append(groups, id)
	}
	for range 3 {
		b.round("node-1", groups)
	}
	b.another("node-2")
	return b, groups
}

func (b maintenanceBundle) another(id string) {
	exec(b.t, b.Store, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, fleet_id, location)
		VALUES ($1, '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'nodes', 'fsn1')`, id)
}

// round carries out one plan of each group; new instances come to a server, "" for none.
func (b maintenanceBundle) round(to prego.ServerID, groups []string) {
	b.t.Helper()
	ctx := context.Background()
	for _, id := range groups {
		p, err := b.PlanGroup(ctx, prego.GroupID(id), time.Second)
		require.NoError(b.t, err)
		for _, i := range p.Boot {
			_, err := b.InstanceRunning(ctx, i)
			require.NoError(b.t, err)
		}
		for _, i := range p.Stop {
			_, err := b.InstanceStopped(ctx, i)
			require.NoError(b.t, err)
		}
		for to != "" {
			got, err := b.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(id), ServerID: to}, time.Second)
			require.NoError(b.t, err)
			if got.Outcome != workload.Allocated {
				break
			}
		}
	}
}

func (b maintenanceBundle) request(id prego.ServerID, kind server.MaintenanceKind, change func(*server.MaintenanceRequest)) server.Maintenance {
	b.t.Helper()
	r := server.MaintenanceRequest{Reason: "patches"}
	if change != nil {
		change(&r)
	}
	d, err := b.RequestMaintenance(impact.By(context.Background(), "test"), id, kind, r, "alice")
	require.NoError(b.t, err)
	return d
}

func (b maintenanceBundle) step(id prego.ServerID) server.MaintenanceStep {
	b.t.Helper()
	st, err := b.StepMaintenance(context.Background(), id, maintenanceLimits)
	require.NoError(b.t, err)
	return st
}

func (b maintenanceBundle) on(id prego.ServerID) int {
	return count(b.t, b.Store, `instances WHERE state <> 'stopped' AND server_id = '`+string(id)+`'`)
}

func (b maintenanceBundle) healthy() int {
	return count(b.t, b.Store, `instances WHERE state = 'running'`)
}

func (b maintenanceBundle) steps(id prego.ServerID) (out []string) {
	events, err := b.ServerEvents(context.Background(), id)
	require.NoError(b.t, err)
	for _, e := range events {
		out = append(out, string(e.Step))
	}
	return out
}

func TestADrainMovesInstancesOneByOne(t *testing.T) {
	t.Parallel()
	b, groups := maintenanceSetup(t, 2, 1)
	require.Equal(t, 3, b.on("node-1"))
	d := b.request("node-1", server.MaintenanceDrain, nil)
	require.Equal(t, []any{1, server.MaintenanceWaiting, 3, true}, []any{d.Number, d.Status, d.Total, d.WasOpen})
	require.Equal(t, d, b.request("node-1", server.MaintenanceDrain, nil), "the same request again is the same maintenance")
	_, err := b.RequestMaintenance(impact.By(context.Background(), "test"), "node-1", server.MaintenanceReboot, server.MaintenanceRequest{}, "alice")
	code(t, err, prego.CodeInvalidTransition)

	_, err = b.UncordonServer(context.Background(), "node-1", "alice")
	code(t, err, prego.CodeInvalidTransition)
	use, emptied, err := b.ServerUse(context.Background(), "node-1")
	require.NoError(t, err)
	require.Equal(t, server.MaintenanceDrain, emptied)
	require.Equal(t, 3, use.Instances)
	_, emptied, err = b.ServerUse(context.Background(), "node-2")
	require.NoError(t, err)
	require.Empty(t, emptied)

	st := b.step("node-1")
	require.Equal(t, server.MaintenanceMoving, st.Status)
	require.Len(t, st.Groups, 2)
	require.Empty(t, b.step("node-1").Groups, "who died before has nothing else to do")
	list, err := b.RemainingInstances(context.Background(), "node-1")
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.True(t, list[0].Leaving && !list[0].StopsFirst)
	require.NotEmpty(t, list[0].GroupName)
	for range 20 {
		b.round("node-2", groups)
		require.GreaterOrEqual(t, b.healthy(), 3, "a replacement is healthy before the old one stops")
		if st = b.step("node-1"); st.Status.Ended() {
			break
		}
	}
	require.Equal(t, server.MaintenanceDone, st.Status)
	require.Equal(t, []int{0, 3}, []int{b.on("node-1"), b.on("node-2")})
	last, err := b.LastMaintenance(context.Background(), "node-1")
	require.NoError(t, err)
	require.Equal(t, []any{3, 0, "3 of 3 instances moved"}, []any{last.Total, last.Left, last.Message})
	srv, err := b.GetServer(context.Background(), "node-1")
	require.NoError(t, err)
	require.Equal(t, "alice", srv.CordonedBy, "it stays closed")
	require.Equal(t, server.MaintenanceDone, b.step("node-1").Status)
	steps := b.steps("node-1")
	require.Equal(t, []string{"cordoned", "maintenance_requested", "maintenance_started"}, steps[:3])
	require.Equal(t, "drained", steps[len(steps)-1])
	op, err := b.Operation(context.Background(), server.MaintenanceWorkflowID("node-1"))
	require.NoError(t, err)
	require.Equal(t, ops.OperationSucceeded, op.Status)
}

func TestMaintenancesAreBounded(t *testing.T) {
	t.Parallel()
	b, groups := maintenanceSetup(t, 4, 2)
	b.another("node-3")
	require.NoError(t, b.exec(context.Background(), "move", `UPDATE instances SET server_id = 'node-2' WHERE number = 1`))
	b.request("node-1", server.MaintenanceDrain, nil)
	b.request("node-2", server.MaintenanceDrain, nil)
	limits := server.MaintenanceLimits{Servers: 1, Instances: 2}
	step := func(id prego.ServerID) server.MaintenanceStep {
		st, err := b.StepMaintenance(context.Background(), id, limits)
		require.NoError(t, err)
		return st
	}
	n, err := b.OpenMaintenances(context.Background())
	require.NoError(t, err)
	require.Equal(t, []server.MaintenanceCount{{Kind: server.MaintenanceDrain, Status: server.MaintenanceWaiting, N: 2}}, n)
	exec(t, b.Store, `UPDATE server_maintenances SET reason = CASE server_id WHEN 'node-1' THEN 'no_capacity_memory' ELSE 'fleet_budget' END`)
	n, err = b.OpenMaintenances(context.Background())
	require.NoError(t, err)
	require.Equal(t, 1, n[0].Stuck, "waiting for a turn is not being stuck")
	exec(t, b.Store, `UPDATE server_maintenances SET reason = '', created_at = CASE server_id WHEN 'node-2' THEN now() - interval '7 hours' ELSE created_at END`)
	n, err = b.OpenMaintenances(context.Background())
	require.NoError(t, err)
	require.Equal(t, 1, n[0].Stuck)
	exec(t, b.Store, `UPDATE server_maintenances SET created_at = now() WHERE server_id = 'node-2'`)
	leaving := func(org string) int {
		return count(t, b.Store, `instances WHERE leaving AND state IN ('running', 'booting') AND org_id = '`+org+`'`)
	}
	require.Equal(t, server.MaintenanceMoving, step("node-1").Status)
	require.Equal(t, []int{2, 1}, []int{leaving("acme"), leaving("other")})
	d, err := b.LastMaintenance(context.Background(), "node-1")
	require.NoError(t, err)
	require.Equal(t, server.MaintenanceOrgBudget, d.Reason)
	st := step("node-2")
	require.Equal(t, server.MaintenanceWaiting, st.Status)
	require.Contains(t, st.Message, "1 other servers of its fleet")
	limits.Servers = 2
	require.Equal(t, server.MaintenanceMoving, step("node-2").Status)
	require.Equal(t, []int{2, 2}, []int{leaving("acme"), leaving("other")}, "of all maintenances")
	for range 60 {
		b.round("node-3", groups)
		require.LessOrEqual(t, leaving("acme"), 2)
		one, two := step("node-1"), step("node-2")
		if one.Status.Ended() && two.Status.Ended() {
			require.Equal(t, 6, b.on("node-3"))
			return
		}
	}
	t.Fatal("they don't end")
}

func TestATenantsServerIsNotEmptied(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, _ := maintenanceSetup(t, 1)
	_, err := b.RequestMaintenance(impact.By(ctx, "test"), "nope", server.MaintenanceDrain, server.MaintenanceRequest{}, "alice")
	code(t, err, prego.CodeServerNotFound)
	_, err = b.LastMaintenance(ctx, "node-1")
	code(t, err, prego.CodeMaintenanceNotFound)
	exec(t, b.Store, `SET session_replication_role = replica;
		INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm, dedicated)
		VALUES ('t-2', 'other', 'shard', 'node-1', 's', 'd', 'hetzner', 'best_fit', false), ('t-1', 'node-1', 'other', 'other', 's1', 'd1', 'hetzner', 'best_fit', false), ('t-3', 'other', 'other', 'other', 's2', 'd2', 'hetzner', 'best_fit', false);
		INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity) VALUES ('shard', 'node-1', 'eu', false, 9)`)
	for _, kind := range []server.MaintenanceKind{server.MaintenanceDrain, server.MaintenanceReboot, server.MaintenanceReplace} {
		_, err = b.RequestMaintenance(impact.By(ctx, "test"), "node-1", kind, server.MaintenanceRequest{}, "alice")
		code(t, err, prego.CodeTenantsCannotMove)
		require.ErrorContains(t, err, "1 tenants have their databases on server node-1, which is in no private network, and cannot be moved: t-1; ")
	}
	srv, err := b.GetServer(ctx, "node-1")
	require.NoError(t, err)
	require.Nil(t, srv.CordonedAt, "a refusal changes nothing")
	d := b.request("node-1", server.MaintenanceDrain, func(r *server.MaintenanceRequest) { r.KeepTenants = true })
	require.True(t, d.KeepTenants)
	exec(t, b.Store, `UPDATE servers SET status = 'failed' WHERE server_id = 'node-2'`)
	_, err = b.RequestMaintenance(impact.By(ctx, "test"), "node-2", server.MaintenanceDrain, server.MaintenanceRequest{}, "alice")
	code(t, err, prego.CodeInvalidTransition)
}

// TestCancelledMaintenanceLeavesNothingHalfMoved: moved instances stay, the rest as well, and no
// group has more instances than it wants.
func TestCancelledMaintenanceLeavesNothingHalfMoved(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		closed bool
		end    func(b maintenanceBundle)
		status server.MaintenanceStatus
		reason string
		opened bool
	}{
		"cancelled": {false, func(b maintenanceBundle) {
			for range 2 {
				_, err := b.CancelMaintenance(context.Background(), "node-1")
				require.NoError(b.t, err)
			}
		}, server.MaintenanceCancelled, "", true},
		"cancelled, closed before": {true, func(b maintenanceBundle) {
			_, err := b.CancelMaintenance(context.Background(), "node-1")
			require.NoError(b.t, err)
		}, server.MaintenanceCancelled, "", false},
		"no time left": {false, func(b maintenanceBundle) { exec(b.t, b.Store, `UPDATE server_maintenances SET deadline_at = now()`) }, server.MaintenanceFailed, server.MaintenanceTimeout, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, groups := maintenanceSetup(t, 4)
			if tc.closed {
				_, err := b.CordonServer(context.Background(), "node-1", "bob", "noise")
				require.NoError(t, err)
			}
			b.request("node-1", server.MaintenanceDrain, func(r *server.MaintenanceRequest) { r.TimeoutSeconds = 3600 })
			for range 3 { // the first is moved, the next is being moved
				b.step("node-1")
				b.round("node-2", groups)
			}
			require.NotZero(t, b.on("node-2"))
			require.NotZero(t, b.on("node-1"))
			tc.end(b)
			st := b.step("node-1")
			require.Equal(t, tc.status, st.Status)
			require.Equal(t, tc.opened, st.Opened)
			require.Zero(t, count(t, b.Store, `instances WHERE leaving AND state IN ('booting', 'running')`))
			for range 6 {
				b.round("node-2", groups)
				require.GreaterOrEqual(t, b.healthy(), 3)
			}
			require.Equal(t, 4, b.healthy())
			require.Equal(t, 4, b.on("node-1")+b.on("node-2"))
			require.NotZero(t, b.on("node-1"), "the rest stays")
			d, err := b.LastMaintenance(context.Background(), "node-1")
			require.NoError(t, err)
			require.Equal(t, tc.reason, d.Reason)
			srv, err := b.GetServer(context.Background(), "node-1")
			require.NoError(t, err)
			require.Equal(t, !tc.opened, srv.CordonedAt != nil)
			_, err = b.CancelMaintenance(context.Background(), "node-1")
			if tc.status == server.MaintenanceCancelled {
				require.NoError(t, err)
			} else {
				code(t, err, prego.CodeInvalidTransition)
			}
		})
	}
}

func TestMaintenanceReportsUnplaceableInstances(t *testing.T) {
	t.Parallel()
	b, groups := maintenanceSetup(t, 1)
	b.request("node-1", server.MaintenanceDrain, nil)
	b.step("node-1")
	b.round("", groups)
	require.NoError(t, b.NoPlace(context.Background(), prego.GroupID(groups[0]), "cell_mismatch", "no server fits: of 2 servers constraint 2", nil, time.Now(), time.Minute))
	for range 2 {
		st := b.step("node-1")
		require.Contains(t, st.Message, "no place for an instance of "+groups[0]+": no server fits")
	}
	d, err := b.LastMaintenance(context.Background(), "node-1")
	require.NoError(t, err)
	require.Equal(t, "cell_mismatch", d.Reason)
	list, err := b.RemainingInstances(context.Background(), "node-1")
	require.NoError(t, err)
	require.Equal(t, "cell_mismatch", list[0].Reason)
	require.Equal(t, 1, b.healthy())
	waits := 0
	for _, s := range b.steps("node-1") {
		if s == "maintenance_waits" {
			waits++
		}
	}
	require.Equal(t, 1, waits, "it is reported once")
}

func TestARebootEndsWithTheNextBoot(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, groups := maintenanceSetup(t, 1)
	exec(t, b.Store, `UPDATE servers SET agent_boot_id = 'first'`)
	b.request("node-1", server.MaintenanceReboot, nil)
	var st server.MaintenanceStep
	for range 10 {
		if st = b.step("node-1"); st.Act != "" {
			break
		}
		b.round("node-2", groups)
	}
	require.Zero(t, b.on("node-1"), "it is empty first")
	require.Equal(t, server.ActReboot, st.Act)
	require.Equal(t, server.ActReboot, b.step("node-1").Act, "until the provider was asked")
	require.NoError(t, b.MaintenanceActed(ctx, "node-1"))
	require.Empty(t, b.step("node-1").Act)
	_, err := b.CancelMaintenance(ctx, "node-1")
	code(t, err, prego.CodeInvalidTransition)
	exec(t, b.Store, `UPDATE server_maintenances SET acted_at = now() - interval '3 minutes'`)
	require.Equal(t, server.ActReset, b.step("node-1").Act, "it does not listen")
	require.NoError(t, b.MaintenanceActed(ctx, "node-1"))
	require.Empty(t, b.step("node-1").Act, "it has two minutes again")
	exec(t, b.Store, `UPDATE server_maintenances SET reset_at = now() - interval '3 minutes'`)
	require.Equal(t, server.ActReset, b.step("node-1").Act)
	require.NoError(t, b.MaintenanceActed(ctx, "node-1"))
	require.True(t, asks[bool](t, b.Store, `SELECT acted_at < now() - interval '2 minutes' FROM server_maintenances`),
		"resets don't prolong its time")
	exec(t, b.Store, `UPDATE servers SET agent_boot_id = 'second', agent_status = 'disconnected' WHERE server_id = 'node-1'`)
	require.Equal(t, server.MaintenanceFinishing, b.step("node-1").Status)
	exec(t, b.Store, `UPDATE servers SET agent_status = 'connected' WHERE server_id = 'node-1'`)
	st = b.step("node-1")
	require.Equal(t, server.MaintenanceDone, st.Status)
	require.True(t, st.Opened)
	require.Equal(t, "rebooted", b.steps("node-1")[len(b.steps("node-1"))-2])

	b.request("node-1", server.MaintenanceReboot, nil)
	b.step("node-1")
	exec(t, b.Store, `UPDATE server_maintenances SET acted_at = now() - interval '16 minutes', started_at = now() - interval '1 hour' WHERE number = 2`)
	require.Equal(t, server.MaintenanceFailed, b.step("node-1").Status)
	d, err := b.LastMaintenance(ctx, "node-1")
	require.NoError(t, err)
	require.Equal(t, []any{2, server.MaintenanceRebootTimeout}, []any{d.Number, d.Reason})
}

// TestAFailedServerThatIsSilentCanBeReset: only so, and only with its tenants.
func TestAFailedServerThatIsSilentCanBeReset(t *testing.T) {
	t.Parallel()
	ctx := impact.By(context.Background(), "test")
	b, _ := maintenanceSetup(t, 2)
	exec(t, b.Store, `UPDATE servers SET agent_boot_id = 'first', status = 'failed', status_reason = 'failed_container',
		agent_status = 'disconnected' WHERE server_id = 'node-1'`)
	ask := func(kind server.MaintenanceKind, keep bool) error {
		_, err := b.RequestMaintenance(ctx, "node-1", kind, server.MaintenanceRequest{KeepTenants: keep}, "test")
		return err
	}
	code(t, ask(server.MaintenanceReboot, true), prego.CodeInvalidTransition)
	exec(t, b.Store, `UPDATE servers SET status_reason = 'heartbeat_lost' WHERE server_id = 'node-1'`)
	code(t, ask(server.MaintenanceReboot, false), prego.CodeInvalidTransition)
	code(t, ask(server.MaintenanceDrain, true), prego.CodeInvalidTransition)
	require.NoError(t, ask(server.MaintenanceReboot, true))
	b.step("node-1")
	require.Equal(t, server.ActReboot, b.step("node-1").Act)
	require.NoError(t, b.MaintenanceActed(ctx, "node-1"))
	exec(t, b.Store, `UPDATE servers SET agent_boot_id = 'second', agent_status = 'connected', status = 'active'
		WHERE server_id = 'node-1'`)
	require.Equal(t, server.MaintenanceDone, b.step("node-1").Status)
}

// TestARebootHelpsAHostThatCannotBeEmptied: nothing is stopped on a host that is silent or without dockerd. A drain waits
// for its instances, and a reboot for tenants that are to leave.
func TestARebootHelpsAHostThatCannotBeEmptied(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]string{"silent": `agent_status = 'degraded'`, "without dockerd": `docker_state = 'stopped'`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _ := maintenanceSetup(t, 2)
			exec(t, b.Store, `UPDATE servers SET agent_boot_id = 'first', `+broken+` WHERE server_id = 'node-1'`)
			b.request("node-1", server.MaintenanceDrain, nil)
			require.Equal(t, server.MaintenanceMoving, b.step("node-1").Status)
			require.Equal(t, server.MaintenanceMoving, b.step("node-1").Status)
			_, err := b.CancelMaintenance(context.Background(), "node-1")
			require.NoError(t, err)
			b.step("node-1")
			b.request("node-1", server.MaintenanceReboot, nil)
			require.Equal(t, server.ActReboot, b.step("node-1").Act)
			require.Equal(t, 2, b.on("node-1"))
			require.NoError(t, b.MaintenanceActed(context.Background(), "node-1"))
			exec(t, b.Store, `UPDATE servers SET agent_boot_id = 'second', agent_status = 'connected', docker_state = 'running' WHERE server_id = 'node-1'`)
			require.Equal(t, server.MaintenanceDone, b.step("node-1").Status)
			require.Zero(t, count(t, b.Store, `instances WHERE leaving`), "they stay")
		})
	}
}

// TestAResizeEndsWithItsTypeAndBoot: both are required; and a refused resize opens the server again.
func TestAResizeEndsWithItsTypeAndBoot(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, _ := maintenanceSetup(t, 0)
	exec(t, b.Store, `UPDATE servers SET agent_boot_id = 'first', server_type = 'cx33', spec = '{"server_type": "cx33"}'`)
	ask := func(serverType string) error {
		_, err := b.RequestMaintenance(impact.By(ctx, "test"), "node-1", server.MaintenanceResize, server.MaintenanceRequest{ServerType: serverType}, "alice")
		return err
	}
	code(t, ask("cx33"), prego.CodeInvalidTransition)
	require.NoError(t, ask("cx43"))
	require.NoError(t, ask("cx43"), "the same again")
	code(t, ask("cx53"), prego.CodeInvalidTransition)
	act := func() server.MaintenanceAct {
		t.Helper()
		var st server.MaintenanceStep
		for range 5 {
			if st = b.step("node-1"); st.Act != "" {
				break
			}
		}
		return st.Act
	}
	require.Equal(t, server.ActResize, act())
	require.NoError(t, b.MaintenanceActed(ctx, "node-1"))
	require.Empty(t, act())
	exec(t, b.Store, `UPDATE server_maintenances SET acted_at = now() - interval '3 minutes'`)
	require.Equal(t, server.ActResize, act(), "the previous worker is lost")
	require.NoError(t, b.MaintenanceActed(ctx, "node-1"))
	exec(t, b.Store, `UPDATE servers SET agent_boot_id = 'second' WHERE server_id = 'node-1'`)
	require.Equal(t, server.MaintenanceFinishing, b.step("node-1").Status, "it booted, and is what it was")
	for range 2 {
		require.NoError(t, b.ServerResized(ctx, "node-1", "cx43"))
	}
	st := b.step("node-1")
	require.Equal(t, server.MaintenanceDone, st.Status)
	require.True(t, st.Opened)
	require.Contains(t, st.Message, "away for 3m")
	srv, err := b.GetServer(ctx, "node-1")
	require.NoError(t, err)
	require.Equal(t, []string{"cx43", "cx43"}, []string{srv.ServerType, srv.Spec.ServerType}, "rebuilt, it keeps the type")

	require.NoError(t, ask("cx23"))
	require.Equal(t, server.ActResize, act())
	require.NoError(t, b.MaintenanceActed(ctx, "node-1"))
	require.NoError(t, b.ResizeRefused(ctx, "node-1", "disks don't shrink"))
	st = b.step("node-1")
	require.Equal(t, server.MaintenanceFailed, st.Status)
	require.True(t, st.Opened)
	d, err := b.LastMaintenance(ctx, "node-1")
	require.NoError(t, err)
	require.Equal(t, []string{server.MaintenanceResizeRefused, "disks don't shrink"}, []string{d.Reason, d.Message})
}

func TestAReplacementIsMadeBeforeAndTheOldOneDeletedAfter(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, groups := maintenanceSetup(t, 1)
	exec(t, b.Store, `ALTER TABLE servers DISABLE TRIGGER USER; UPDATE servers SET tags = '{gpu}', server_type = 'cx43', location = 'fsn1', status = 'active', fleet_profile = 3 WHERE server_id = 'node-1'; ALTER TABLE servers ENABLE TRIGGER USER`)
	b.request("node-1", server.MaintenanceReplace, nil)
	require.Equal(t, server.ActMake, b.step("node-1").Act)
	for range 2 {
		made, err := b.MakeReplacement(ctx, "node-1")
		require.NoError(t, err)
		require.Equal(t, []any{prego.ServerID("node-1-r1"), prego.RoleApp, []string{"gpu"}, "fsn1"}, []any{made.ServerID, made.Role, made.Spec.Tags, made.Spec.Location})
	}
	require.Equal(t, 1, count(t, b.Store, `servers WHERE server_id = 'node-1-r1' AND fleet_id = 'nodes' AND fleet_profile = 3 AND tags = '{gpu}'`))
	st := b.step("node-1")
	require.Equal(t, []any{server.MaintenanceMaking, server.MaintenanceAct("")}, []any{st.Status, st.Act})
	exec(t, b.Store, `UPDATE servers SET status = 'active', agent_status = 'connected' WHERE server_id = 'node-1-r1'`)
	for range 10 {
		if st = b.step("node-1"); st.Act != "" {
			break
		}
		b.round("node-1-r1", groups)
	}
	require.Equal(t, server.ActDelete, st.Act)
	require.Equal(t, []int{0, 1}, []int{b.on("node-1"), b.on("node-1-r1")})
	_, err := b.RequestDecommission(ctx, "node-1", "its replacement")
	require.NoError(t, err)
	require.Equal(t, server.ActDelete, b.step("node-1").Act)
	exec(t, b.Store, `UPDATE servers SET status = 'terminated' WHERE server_id = 'node-1'`)
	require.Equal(t, server.MaintenanceDone, b.step("node-1").Status)

	// A server that cannot be created leaves the old one as it is.
	b.request("node-2", server.MaintenanceReplace, nil)
	_, err = b.MakeReplacement(ctx, "node-2")
	require.NoError(t, err)
	exec(t, b.Store, `UPDATE servers SET status = 'failed', status_message = 'no' WHERE server_id = 'node-2-r1'`)
	st = b.step("node-2")
	require.Equal(t, server.MaintenanceFailed, st.Status)
	require.Equal(t, "node-2-r1 is failed: no", st.Message)
	made, err := b.MakeReplacement(ctx, "node-2")
	require.NoError(t, err)
	require.Nil(t, made, "no maintenance waits for it any more")
}

func TestMaintenanceEndsWithItsServer(t *testing.T) {
	t.Parallel()
	b, _ := maintenanceSetup(t, 1)
	b.request("node-1", server.MaintenanceDrain, nil)
	b.step("node-1")
	_, err := b.DeleteServer(impact.By(context.Background(), "test"), "node-1", "bob")
	require.NoError(t, err)
	require.Equal(t, server.MaintenanceCancelled, b.step("node-1").Status)
	d, err := b.LastMaintenance(context.Background(), "node-1")
	require.NoError(t, err)
	require.Equal(t, server.MaintenanceServerGone, d.Reason)
}

func TestMaintenanceWithoutItsRunIsFound(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, _ := maintenanceSetup(t, 1)
	b.request("node-1", server.MaintenanceDrain, nil)
	ids, err := b.QuietMaintenances(ctx, time.Minute)
	require.NoError(t, err)
	require.Empty(t, ids, "its run is about to begin")
	exec(t, b.Store, `UPDATE server_maintenances SET updated_at = now() - interval '2 minutes'`)
	ids, err = b.QuietMaintenances(ctx, time.Minute)
	require.NoError(t, err)
	require.Equal(t, []prego.ServerID{"node-1"}, ids)
}

// TestAnEdgeThatIsEmptiedLeavesTheDNS before anything else may happen to it.
func TestAnEdgeThatIsEmptiedLeavesTheDNS(t *testing.T) {
	t.Parallel()
	b, _ := maintenanceSetup(t)
	exec(t, b.Store, `UPDATE servers SET role = 'edge', host = '203.0.113.7'`)
	facts, err := b.RecordFacts(context.Background(), "prego.test", "sites.prego.test")
	require.NoError(t, err)
	require.False(t, facts.Edges[0].Silent)
	b.request("node-1", server.MaintenanceReboot, nil)
	facts, err = b.RecordFacts(context.Background(), "prego.test", "sites.prego.test")
	require.NoError(t, err)
	require.True(t, facts.Edges[0].Silent && !facts.Edges[1].Silent, "%+v", facts.Edges)
	require.Equal(t, server.ActLeaveDNS, b.step("node-1").Act)
	require.NoError(t, b.MaintenanceLeftDNS(context.Background(), "node-1"))
	require.Equal(t, server.ActReboot, b.step("node-1").Act)
}

// TestFleetEmptiesRemovedServers: instances are in the way, and tenants are waited for.
func TestFleetEmptiesRemovedServers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, groups := maintenanceSetup(t, 2)
	storage := false
	begun := func() bool {
		left, begun, err := b.EmptyFleetMember(ctx, "node-1", "nodes action 1", time.Minute, storage)
		require.NoError(t, err)
		if begun {
			require.Greater(t, left, 50*time.Second)
		}
		return begun
	}
	require.False(t, begun(), "it is open")
	exec(t, b.Store, `INSERT INTO db_shards (shard_id, server_id, region, on_node, tenant_capacity, current_tenant_count) VALUES ('node-1', 'node-1', 'eu', true, 10, 1)`)
	exec(t, b.Store, `UPDATE servers SET tenant_count = 1 WHERE server_id = 'node-1'; UPDATE servers SET cordoned_at = now(), closing = true WHERE server_id = 'node-1'`)
	require.False(t, begun(), "a tenant's database is there")
	exec(t, b.Store, `UPDATE db_shards SET current_tenant_count = 0 WHERE server_id = 'node-1'`)
	why := func(what string) {
		t.Helper()
		text, err := b.WhyOccupied(ctx, "node-1", "nodes action 1", storage)
		require.NoError(t, err)
		require.Contains(t, text, what)
	}
	require.False(t, begun(), "a tenant lives there, and has no way to another server")
	why("1 tenants live on it, and without object storage (PREGO_BACKUP_ENDPOINT) they cannot be moved")
	storage = true
	exec(t, b.Store, `SET session_replication_role = replica;
		INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm, dedicated)
		VALUES ('t-1', 'node-1', 'node-1', 'node-1', 's1', 'd1', 'hetzner', 'best_fit', false)`)
	require.False(t, begun(), "a tenant's database is there")
	why("1 tenants have their databases or caches on it")
	exec(t, b.Store, `SET session_replication_role = replica; UPDATE tenant_allocations SET db_shard_id = 'other', redis_pool_id = 'other', on_shard = true`)
	exec(t, b.Store, `INSERT INTO stack_releases (name, image, rings, created_by) VALUES ('r', 'i', '[]', 'ann'); INSERT INTO stack_release_servers (release, server_id, ring, status) VALUES ('r', 'node-1', 0, 'updating')`)
	require.False(t, begun(), "a release is being tried there")
	exec(t, b.Store, `UPDATE stack_release_servers SET status = 'done'`)
	require.True(t, begun(), "it moves")
	d, err := b.LastMaintenance(ctx, "node-1")
	require.NoError(t, err)
	require.Equal(t, []any{1, false}, []any{d.TenantsLeft, d.KeepTenants})
	exec(t, b.Store, `DELETE FROM server_maintenances; SET session_replication_role = replica; DELETE FROM tenant_allocations`)
	storage = false
	exec(t, b.Store, `UPDATE servers SET tenant_count = 0 WHERE server_id = 'node-1'`)
	require.True(t, begun())
	require.False(t, begun(), "it is under way")
	_, err = b.DecommissionMember(ctx, "node-1", "nodes action 1")
	code(t, err, prego.CodeServerHasTenants)

	// The fleet keeps it after all.
	b.step("node-1")
	ended, err := b.KeepFleetMember(ctx, "node-1")
	require.NoError(t, err)
	require.True(t, ended)
	st := b.step("node-1")
	require.Equal(t, server.MaintenanceCancelled, st.Status)
	require.False(t, st.Opened, "that is the fleet's to do")
	require.True(t, begun())
	exec(t, b.Store, `UPDATE server_maintenances SET deadline_at = now() WHERE finished_at IS NULL`)
	require.Equal(t, server.MaintenanceFailed, b.step("node-1").Status)
	require.False(t, begun(), "it had its time")
	why("it was not emptied: maintenance_timeout: ")
	exec(t, b.Store, `UPDATE server_maintenances SET status = 'cancelled' WHERE status = 'failed'`)
	require.True(t, begun())
	for range 20 {
		b.step("node-1")
		b.round("node-2", groups)
		if b.on("node-1") == 0 {
			break
		}
	}
	srv, err := b.DecommissionMember(ctx, "node-1", "nodes action 1")
	require.NoError(t, err)
	require.Equal(t, server.Decommissioning, srv.Status)
	require.Equal(t, server.MaintenanceDone, b.step("node-1").Status)
	require.Equal(t, 2, b.on("node-2"))
}

// TestReplacementsNeedNoQuota: an org above a lowered limit keeps what it has through drains, deploys and moves, and
// gets nothing more.
func TestReplacementsNeedNoQuota(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, groups := maintenanceSetup(t, 4)
	single, err := b.testGroup(t, 2, "acme", 1, specOf(16))
	require.NoError(t, err)
	groups = append(groups, single)
	for range 3 {
		b.round("node-1", groups)
	}
	require.Equal(t, []int{5, 5}, []int{b.on("node-1"), b.healthy()})
	for d, n := range map[quota.Dimension]float64{
		quota.MaxInstances: 2, quota.MaxTotalMemoryBytes: 1 << 20, quota.MaxTotalCPURequest: 0.01,
	} {
		_, err := b.SetQuota(ctx, "acme", d, n, "test", "less")
		require.NoError(t, err)
	}

	b.request("node-1", server.MaintenanceDrain, nil)
	for range 30 {
		st := b.step("node-1")
		require.GreaterOrEqual(t, b.healthy(), 5, "a replacement is healthy before the old one stops")
		if st.Status.Ended() {
			break
		}
		b.round("node-2", groups)
	}
	require.Equal(t, []int{0, 5}, []int{b.on("node-1"), b.on("node-2")})

	next := specOf(16)
	next.Image = "web:2"
	_, err = b.DeployGroup(ctx, prego.GroupID(single), next, nil, "test")
	code(t, err, prego.CodeQuotaExceeded)
	g, err := b.DeployGroup(ctx, prego.GroupID(groups[0]), next, nil, "test")
	require.NoError(t, err)
	require.Equal(t, workload.DeployDrainingFirst, g.DeployStatus)
	for range 12 {
		b.round("node-2", groups)
		require.GreaterOrEqual(t, b.healthy(), 4)
	}
	require.Equal(t, 4, count(t, b.Store, `instances WHERE state = 'running' AND release = 2`))

	// Its server is lost, and one of the others crashes.
	exec(t, b.Store, `UPDATE instances SET state = 'failed', retry_at = now()
		WHERE instance_id = (SELECT min(instance_id) FROM instances WHERE state = 'running')`)
	b.another("node-3")
	exec(t, b.Store, `UPDATE servers SET status = 'failed' WHERE server_id = 'node-2'`)
	for range 6 {
		b.round("node-3", groups)
	}
	require.Equal(t, []int{5, 5}, []int{b.on("node-3"), b.healthy()})

	_, err = b.ScaleGroup(ctx, prego.GroupID(groups[0]), 5, "test")
	code(t, err, prego.CodeQuotaExceeded)
	_, err = b.ScaleGroup(impact.By(ctx, "test"), prego.GroupID(groups[0]), 3, "test")
	require.NoError(t, err)
	for range 4 {
		b.round("node-3", groups)
	}
	_, err = b.ScaleGroup(ctx, prego.GroupID(groups[0]), 4, "test")
	code(t, err, prego.CodeQuotaExceeded)
	require.Equal(t, 4, b.healthy())
}

// TestAcceptedGrowthIsNoReplacement: what a group never had needs its quota when it is allocated, also while others
// of its instances are replaced.
func TestAcceptedGrowthIsNoReplacement(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, groups := maintenanceSetup(t, 2)
	limit := func(d quota.Dimension, n float64) {
		_, err := b.SetQuota(ctx, "acme", d, n, "test", "test")
		require.NoError(t, err)
	}
	_, err := b.ScaleGroup(ctx, prego.GroupID(groups[0]), 4, "test")
	require.NoError(t, err)
	limit(quota.MaxInstances, 2)
	b.request("node-1", server.MaintenanceDrain, nil)
	for range 12 {
		b.step("node-1")
		b.round("node-2", groups)
	}
	require.Equal(t, []int{0, 2}, []int{b.on("node-1"), b.healthy()})
	limit(quota.MaxInstances, 3)
	for range 4 {
		b.round("node-2", groups)
	}
	require.Equal(t, 3, b.healthy())

	// A larger release, when the limit has room for one of its instances only.
	_, err = b.ScaleGroup(impact.By(ctx, "test"), prego.GroupID(groups[0]), 2, "test")
	require.NoError(t, err)
	for range 4 {
		b.round("node-2", groups)
	}
	limit(quota.MaxTotalMemoryBytes, 130<<20)
	g, err := b.DeployGroup(ctx, prego.GroupID(groups[0]), specOf(32), nil, "test")
	require.NoError(t, err)
	require.Equal(t, workload.DeployDrainingFirst, g.DeployStatus)
	limit(quota.MaxTotalMemoryBytes, 115<<20)
	for range 12 {
		b.round("node-2", groups)
		usage, _ := b.usage(t, "acme")
		require.LessOrEqual(t, usage[quota.MaxTotalMemoryBytes], float64(115<<20))
	}
	require.Equal(t, 1, count(t, b.Store, `instances WHERE state = 'running' AND release = 2`))
}

// TestAnInstanceHasMovedOnceItIsReplaced: one that only stopped has not.
func TestAnInstanceHasMovedOnceItIsReplaced(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, groups := maintenanceSetup(t, 2)
	exec(t, b.Store, `UPDATE process_groups SET no_surge = true, deploy_status = 'draining_first'`)
	b.request("node-1", server.MaintenanceDrain, nil)
	for range 3 {
		b.step("node-1")
		b.round("", groups)
	}
	b.step("node-1")
	require.Equal(t, 1, b.on("node-1"))
	last, err := b.LastMaintenance(ctx, "node-1")
	require.NoError(t, err)
	require.Contains(t, last.Message, "0 of 2 instances moved")
	b.round("node-2", groups)
	b.step("node-1")
	last, err = b.LastMaintenance(ctx, "node-1")
	require.NoError(t, err)
	require.Contains(t, last.Message, "1 of 2 instances moved")
}
