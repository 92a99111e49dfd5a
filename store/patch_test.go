package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
)

func patchesOf(pending int, reboot bool) server.Patches {
	p := server.Patches{Pending: pending, CheckedAt: time.Now().UTC().Truncate(time.Millisecond)}
	for i := range pending {
		p.Packages = append(p.Packages, server.PackageUpdate{Name: fmt.Sprintf("libp%d", i), From: "1", To: "2"})
	}
	if reboot {
		p.RebootSince, p.RebootFor = p.CheckedAt, "kernel 6.1"
	}
	return p
}

// TestAServerIsPatched: nothing moves before its host has reported what it lacks; then it is
// emptied, patched, and rebooted only if it needs that. A patch that fails leaves it closed.
func TestAServerIsPatched(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, _ := maintenanceSetup(t)
	exec(t, b.Store, `UPDATE servers SET agent_boot_id = 'one', docker_state = 'running'`)
	begin := func() {
		t.Helper()
		require.Equal(t, server.MaintenanceWaiting, b.request("node-1", server.MaintenancePatch, nil).Status)
		require.Equal(t, server.ActCheck, b.step("node-1").Act)
		require.Equal(t, server.ActCheck, b.step("node-1").Act, "repeated until the host reports")
	}
	closed := func() (reason string, is bool) {
		t.Helper()
		srv, err := b.GetServer(ctx, "node-1")
		require.NoError(t, err)
		return srv.CordonReason, srv.CordonedAt != nil
	}
	end := func(status server.MaintenanceStatus, reason, message string) {
		t.Helper()
		require.Equal(t, status, b.step("node-1").Status)
		d, err := b.LastMaintenance(ctx, "node-1")
		require.NoError(t, err)
		require.Equal(t, reason, d.Reason)
		require.Contains(t, d.Message, message)
	}
	begin()
	require.NoError(t, b.PatchChecked(ctx, "node-1", "", "E: no mirror"))
	end(server.MaintenanceFailed, server.MaintenancePatchRefused, "no mirror")
	_, is := closed()
	require.False(t, is, "nothing was begun")

	begin()
	require.NoError(t, b.PatchChecked(ctx, "node-1", "", ""))
	end(server.MaintenanceDone, "", "nothing to install")

	begin()
	require.NoError(t, b.PatchChecked(ctx, "node-1", patchesOf(2, false).ToDo(), ""))
	require.Equal(t, server.ActPatch, b.step("node-1").Act)
	ok, err := b.PatchBegins(ctx, "node-1")
	require.NoError(t, err)
	require.True(t, ok)
	_, err = b.CancelMaintenance(ctx, "node-1")
	code(t, err, prego.CodeInvalidTransition)
	require.NoError(t, b.ServerPatched(ctx, "node-1", server.Patched{Installed: 2, Packages: patchesOf(2, false).Packages, Now: patchesOf(0, false)}))
	require.NoError(t, b.PatchRefused(ctx, "node-1", "late"))
	end(server.MaintenanceDone, "", "2 packages installed, libp0 2 among them; no reboot was needed")
	_, is = closed()
	require.False(t, is)
	ok, err = b.PatchBegins(ctx, "node-1")
	require.NoError(t, err)
	require.False(t, ok, "it has ended")

	begin()
	require.NoError(t, b.PatchChecked(ctx, "node-1", patchesOf(0, true).ToDo(), ""))
	require.Equal(t, server.ActPatch, b.step("node-1").Act)
	_, err = b.PatchBegins(ctx, "node-1")
	require.NoError(t, err)
	require.NoError(t, b.ServerPatched(ctx, "node-1", server.Patched{Now: patchesOf(0, true)}))
	require.NoError(t, b.ServerPatched(ctx, "node-1", server.Patched{Installed: 9}), "the first result stays")
	require.Equal(t, server.ActReboot, b.step("node-1").Act)
	require.NoError(t, b.MaintenanceActed(ctx, "node-1"))
	exec(t, b.Store, `UPDATE servers SET agent_boot_id = 'two', docker_state = 'stopped'`)
	require.Empty(t, b.step("node-1").Act)
	exec(t, b.Store, `UPDATE servers SET docker_state = 'running'`)
	end(server.MaintenanceDone, "", "nothing needed installing; rebooted (kernel 6.1), and away for")

	begin()
	require.NoError(t, b.PatchChecked(ctx, "node-1", patchesOf(1, false).ToDo(), ""))
	require.Equal(t, server.ActPatch, b.step("node-1").Act)
	require.NoError(t, b.PatchRefused(ctx, "node-1", "dpkg returned an error code"))
	end(server.MaintenanceFailed, server.MaintenancePatchFailed, "error code")
	reason, is := closed()
	require.True(t, is)
	require.Equal(t, "patch_failed: dpkg returned an error code", reason)
	_, err = b.UncordonServer(ctx, "node-1", "alice")
	require.NoError(t, err)

	begin()
	require.NoError(t, b.PatchChecked(ctx, "node-1", patchesOf(1, false).ToDo(), ""))
	b.step("node-1")
	_, err = b.PatchBegins(ctx, "node-1")
	require.NoError(t, err)
	exec(t, b.Store, `UPDATE server_maintenances SET patching_at = now() - interval '46 minutes' WHERE finished_at IS NULL`)
	end(server.MaintenanceFailed, server.MaintenancePatchFailed, "did not report an end within 45m0s")
	require.Contains(t, b.steps("node-1"), string(server.StepPatched))
}

// TestPatchesComeOneByOne: a server is closed when its turn comes, not before; one that broke keeps the
// others of its fleet waiting until an operator has acted; a window tries each once.
func TestPatchesComeOneByOne(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, _ := maintenanceSetup(t)
	b.another("node-3")
	exec(t, b.Store, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, location) SELECT 'alone-' || n, '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'fsn1' FROM generate_series(1, 2) n`)
	opened := time.Now().Add(-time.Minute)
	next := func(want ...prego.ServerID) {
		t.Helper()
		b.nextPatches(server.OpenPatchWindows{Since: &opened}, want...)
	}
	next()
	for _, id := range []prego.ServerID{"node-1", "node-2", "node-3", "alone-2"} {
		require.NoError(t, b.TellPatches(ctx, id, patchesOf(1, false)))
	}
	exec(t, b.Store, `UPDATE servers SET patches_since = now() - interval '1 day' WHERE server_id = 'node-2'; UPDATE servers SET agent_status = 'connected'`)
	next("alone-2", "node-2")
	for _, id := range []prego.ServerID{"node-2", "node-1", "node-3"} {
		b.request(id, server.MaintenancePatch, nil)
	}
	next("alone-2")
	require.Zero(t, count(t, b.Store, `servers WHERE cordoned_at IS NOT NULL`), "their tenants need places")
	require.NoError(t, b.PatchChecked(ctx, "node-2", "1 security updates", ""))
	require.Equal(t, server.ActPatch, b.step("node-2").Act)
	require.Equal(t, 1, count(t, b.Store, `servers WHERE cordoned_at IS NOT NULL`))
	require.Contains(t, b.step("node-1").Message, "1 other servers of its fleet")
	require.NoError(t, b.PatchRefused(ctx, "node-2", "dpkg broke"))
	require.Equal(t, server.MaintenanceFailed, b.step("node-2").Status)
	for _, id := range []prego.ServerID{"node-1", "node-3"} {
		st := b.step(id)
		require.Equal(t, server.MaintenanceWaiting, st.Status)
		require.Empty(t, st.Act)
		require.Contains(t, st.Message, "the patch of server node-2 of its fleet failed, and that is still cordoned: dpkg broke")
	}
	require.Equal(t, 1, count(t, b.Store, `servers WHERE cordoned_at IS NOT NULL`))
	_, err := b.CancelMaintenance(ctx, "node-3")
	require.NoError(t, err)
	b.step("node-3")
	_, err = b.CancelMaintenance(ctx, "node-1")
	require.NoError(t, err)
	b.step("node-1")
	exec(t, b.Store, `UPDATE server_maintenances SET created_at = now() - interval '1 hour' WHERE server_id <> 'node-2'`)
	next("alone-2")
	_, err = b.UncordonServer(ctx, "node-2", "alice")
	require.NoError(t, err)
	require.Equal(t, server.MaintenanceWaiting, b.request("node-1", server.MaintenancePatch, nil).Status)
	require.Equal(t, server.ActCheck, b.step("node-1").Act, "an operator has acted")
	opened = time.Now().Add(time.Minute)
	exec(t, b.Store, `UPDATE server_maintenances SET status = 'done', finished_at = now() WHERE finished_at IS NULL`)
	next("alone-2", "node-2")
}

// nextPatches checks which servers are patched next in some windows.
func (b maintenanceBundle) nextPatches(open server.OpenPatchWindows, want ...prego.ServerID) (waves []prego.PatchWaveID) {
	b.t.Helper()
	next, err := b.ServersToPatch(context.Background(), open)
	require.NoError(b.t, err)
	var got []prego.ServerID
	for _, s := range next {
		got, waves = append(got, s.ServerID), append(waves, s.Wave())
	}
	require.Equal(b.t, want, got)
	return waves
}

// TestAFleetHasAWindow: its own instead of the environment's, and each of its servers is tried there
// once, although the environment's opened at another time; or none.
func TestAFleetHasAWindow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, _ := maintenanceSetup(t)
	exec(t, b.Store, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, location) VALUES ('alone', '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'fsn1')`)
	for _, id := range []prego.ServerID{"node-1", "node-2", "alone"} {
		require.NoError(t, b.TellPatches(ctx, id, patchesOf(1, false)))
	}
	exec(t, b.Store, `UPDATE servers SET agent_status = 'connected'`)
	environment, own := time.Date(2026, 11, 24, 1, 0, 0, 0, time.UTC), time.Date(2026, 11, 24, 2, 30, 0, 0, time.UTC)
	both := server.OpenPatchWindows{Since: &environment, Fleets: map[prego.FleetID]time.Time{"nodes": own}}
	windows := func() []server.FleetWindow {
		t.Helper()
		all, err := b.FleetWindows(ctx)
		require.NoError(t, err)
		return all
	}
	require.Empty(t, windows())
	b.nextPatches(server.OpenPatchWindows{})
	b.nextPatches(both, "alone", "node-1")
	b.nextPatches(server.OpenPatchWindows{Since: &environment}, "alone", "node-1")

	set := func(schedule string, seconds int) {
		t.Helper()
		f, err := b.UpdateFleet(ctx, "nodes", server.UpdateFleetRequest{PatchWindow: &server.FleetPatchWindow{Schedule: schedule, Seconds: seconds}})
		require.NoError(t, err)
		require.Equal(t, schedule, f.PatchWindow.Schedule)
	}
	set("30 2 * * *", 3600)
	require.Equal(t, []server.FleetWindow{{FleetID: "nodes", Window: server.FleetPatchWindow{Schedule: "30 2 * * *", Seconds: 3600}}}, windows())
	b.nextPatches(server.OpenPatchWindows{Since: &environment}, "alone")
	b.nextPatches(server.OpenPatchWindows{Fleets: both.Fleets}, "node-1")
	require.Equal(t, []prego.PatchWaveID{"no-fleet-app-eu-20261124-0100", "nodes-20261124-0230"}, b.nextPatches(both, "alone", "node-1"))

	// What the environment's window saw before its own opened does not count.
	exec(t, b.Store, `INSERT INTO server_maintenances (server_id, number, kind, status, reason, requested_by, was_open, total, left_now, created_at, finished_at) SELECT id, 1, 'patch', 'failed', 'patch_failed', 'w', true, 0, 0, $1, $1 FROM unnest(ARRAY['alone', 'node-1']) id`, environment.Add(time.Hour))
	b.nextPatches(both, "node-1")
	exec(t, b.Store, `UPDATE server_maintenances SET created_at = $1`, own.Add(time.Minute))
	b.nextPatches(both)
	exec(t, b.Store, `UPDATE server_maintenances SET status = 'done', reason = ''`)
	b.nextPatches(both, "node-2")

	set(server.PatchNever, 0)
	b.nextPatches(server.OpenPatchWindows{Since: &environment})
	set("", 0)
	require.Empty(t, windows())
	_, err := b.UpdateFleet(ctx, "nodes", server.UpdateFleetRequest{PatchWindow: &server.FleetPatchWindow{Schedule: "sometimes"}})
	code(t, err, prego.CodeInvalidField)
}

// TestAWaveIsKept: the outcome of each server, and when, is there after it ended.
func TestAWaveIsKept(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b, _ := maintenanceSetup(t)
	_, err := b.GetPatchWave(ctx, "openssl")
	code(t, err, prego.CodePatchWaveNotFound)
	for _, id := range []prego.ServerID{"node-1", "node-2"} {
		d, err := b.RequestMaintenance(impact.By(ctx, "test"), id, server.MaintenancePatch, server.MaintenanceRequest{Reason: "CVE-1", Wave: "openssl"}, "alice")
		require.NoError(t, err)
		require.Equal(t, prego.PatchWaveID("openssl"), d.Wave)
	}
	wave := func() server.PatchWave {
		t.Helper()
		w, err := b.GetPatchWave(ctx, "openssl")
		require.NoError(t, err)
		page, _, err := PatchWaves.In(b.Store)(ctx, prego.ListQuery{Limit: 10})
		require.NoError(t, err)
		require.Equal(t, []server.PatchWave{w}, page)
		return w
	}
	w := wave()
	require.Equal(t, []any{"alice", "CVE-1", []prego.FleetID{"nodes"}, 2, 0, 0}, []any{w.RequestedBy, w.Why, w.Fleets, w.Servers, w.Done, w.Failed})
	require.Nil(t, w.FinishedAt)

	require.Equal(t, server.ActCheck, b.step("node-1").Act)
	require.NoError(t, b.PatchChecked(ctx, "node-1", "2 security updates", ""))
	require.Equal(t, server.ActPatch, b.step("node-1").Act)
	require.NoError(t, b.ServerPatched(ctx, "node-1", server.Patched{Installed: 2, Packages: []server.PackageUpdate{{Name: "openssl", To: "3"}}}))
	require.Equal(t, server.MaintenanceDone, b.step("node-1").Status)
	require.Nil(t, wave().FinishedAt, "one waits")
	b.step("node-2")
	require.NoError(t, b.PatchChecked(ctx, "node-2", "", "the mirror is down"))
	require.Equal(t, server.MaintenanceFailed, b.step("node-2").Status)

	w = wave()
	require.Equal(t, []int{2, 1, 1, 0, 2}, []int{w.Servers, w.Done, w.Failed, w.Cancelled, w.Installed})
	members, err := b.PatchWaveServers(ctx, "openssl")
	require.NoError(t, err)
	require.Len(t, members, 2)
	require.Equal(t, []any{prego.ServerID("node-1"), server.MaintenanceDone, 2}, []any{members[0].ServerID, members[0].Status, members[0].Patched.Installed})
	require.NotNil(t, members[0].StartedAt)
	require.Equal(t, []any{prego.ServerID("node-2"), server.MaintenanceFailed, server.MaintenancePatchRefused, "the mirror is down"}, []any{members[1].ServerID, members[1].Status, members[1].Reason, members[1].Message})
	require.Equal(t, members[1].FinishedAt, w.FinishedAt, "the last of them")
	// What happens there afterwards is not of the wave.
	_, err = b.CordonServer(ctx, "node-1", "bob", "later")
	require.NoError(t, err)
	steps, err := b.PatchWaveSteps(ctx, "openssl")
	require.NoError(t, err)
	var told []string
	for _, s := range slices.Backward(steps) {
		told = append(told, string(s.ServerID)+" "+string(s.Step))
	}
	require.Equal(t, []string{
		"node-1 maintenance_requested", "node-2 maintenance_requested", "node-1 cordoned", "node-1 maintenance_started", "node-1 drained", "node-1 patched", "node-1 uncordoned", "node-2 maintenance_failed",
	}, told)
	_, err = b.RequestMaintenance(impact.By(ctx, "test"), "node-2", server.MaintenancePatch, server.MaintenanceRequest{}, "alice")
	require.NoError(t, err)
	require.Equal(t, 2, wave().Servers, "a separate patch")
}

// TestMissingUpdatesAreKept: with since when, counted, and found.
func TestMissingUpdatesAreKept(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	for i := range 3 {
		exec(t, s, benchesHere, fmt.Sprintf("s-%d", i), "app", "active")
	}
	code(t, s.TellPatches(ctx, "none", patchesOf(1, false)), prego.CodeServerNotFound)
	require.NoError(t, s.TellPatches(ctx, "s-0", patchesOf(1, false)))
	exec(t, s, `UPDATE servers SET patches_since = now() - interval '15 days' WHERE server_id = 's-0'`)
	require.NoError(t, s.TellPatches(ctx, "s-0", patchesOf(0, true)), "it is still not done with")
	require.NoError(t, s.TellPatches(ctx, "s-1", patchesOf(0, false)))
	counts, err := s.PatchCounts(ctx)
	require.NoError(t, err)
	got := map[server.PatchState][2]int{}
	for _, c := range counts {
		got[c.State] = [2]int{got[c.State][0] + c.N, got[c.State][1] + c.Late}
	}
	require.Equal(t, [2]int{1, 1}, got[server.PatchReboot])
	require.Equal(t, [2]int{1, 0}, got[server.PatchCurrent])
	require.Zero(t, got[server.PatchPending])
	page, _, err := s.ListServers(ctx, prego.ListQuery{Limit: 10, Sort: "server_id", Filters: map[string][]string{"patch_state": {"reboot", "pending"}}})
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Equal(t, prego.ServerID("s-0"), page[0].ServerID)
	require.NoError(t, s.TellPatches(ctx, "s-0", patchesOf(0, false)))
	srv, err := s.GetServer(ctx, "s-0")
	require.NoError(t, err)
	require.Nil(t, srv.PatchesSince)
	require.Equal(t, patchesOf(0, false).State(), srv.PatchState)
}

// TestMaintenanceAndAReleaseExclude each other: the second one is refused, or waits.
func TestMaintenanceAndAReleaseExclude(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for round := range deep.Times(6) {
		t.Run(strconv.Itoa(round), func(t *testing.T) { // its database goes before the next is made
			s := tenantStore(t)
			exec(t, s, benchesHere, "app-0", "app", "active")
			exec(t, s, `UPDATE servers SET agent_version = 'v1', agent_status = 'connected'`)
			in, said := signedAgent(t, "v2", 7, server.ReleaseRing{Name: "all"})
			_, err := s.CreateAgentRelease(ctx, in, said, "ann")
			require.NoError(t, err)
			_, err = s.SteerAgentRelease(ctx, "v2", server.ReleaseRolling, "ann")
			require.NoError(t, err)
			_, err = s.CreateStackRelease(ctx, server.CreateStackReleaseRequest{Name: "r1", Image: "i:1", Rings: []server.ReleaseRing{{Name: "all"}}}, "ann")
			require.NoError(t, err)
			_, err = s.StartStackRelease(ctx, "r1", "ann")
			require.NoError(t, err)
			var refused error
			var race sync.WaitGroup
			start := make(chan struct{})
			for _, f := range []func() error{
				func() error {
					_, refused = s.RequestMaintenance(impact.By(ctx, "test"), "app-0", server.MaintenancePatch, server.MaintenanceRequest{}, "ann")
					return nil
				},
				func() error {
					_, err := s.StepAgentRelease(ctx, server.AgentReleaseLimits{Servers: 1, Within: time.Minute})
					return err
				},
				func() error {
					_, err := s.StepStackRelease(ctx, "r1", server.StackReleaseLimits{Sites: 9, OrgSites: 9})
					return err
				},
			} {
				race.Go(func() {
					<-start
					if err := f(); err != nil {
						t.Error(err)
					}
				})
			}
			close(start)
			race.Wait()
			maintenances := count(t, s, `server_maintenances WHERE finished_at IS NULL`)
			updates := count(t, s, `stack_release_servers WHERE status = 'updating'`) + count(t, s, `agent_release_servers WHERE status = 'offered'`)
			if refused != nil {
				code(t, refused, prego.CodeServerUpdating)
			}
			require.Equal(t, refused == nil, maintenances == 1)
			require.True(t, maintenances == 0 || updates == 0, "%d maintenances beside %d updates", maintenances, updates)
			require.Positive(t, maintenances+updates)
			if maintenances == 0 {
				return
			}
			for range 2 { // and it waits for as long as the maintenance takes
				_, err = s.StepAgentRelease(ctx, server.AgentReleaseLimits{Servers: 1, Within: time.Minute})
				require.NoError(t, err)
				st, err := s.StepStackRelease(ctx, "r1", server.StackReleaseLimits{Sites: 9, OrgSites: 9})
				require.NoError(t, err)
				require.Contains(t, st.Message, "not ready: app-0")
			}
			require.Zero(t, count(t, s, `agent_release_servers WHERE status = 'offered'`))
			exec(t, s, `UPDATE server_maintenances SET status = 'done', finished_at = now()`)
			_, err = s.StepAgentRelease(ctx, server.AgentReleaseLimits{Servers: 1, Within: time.Minute})
			require.NoError(t, err)
			require.Equal(t, 1, count(t, s, `agent_release_servers WHERE status = 'offered'`), "its turn comes")
		})
	}
}
