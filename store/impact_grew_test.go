package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
)

// siteOn puts a tenant with a site on a server, with its database and cache.
func (b maintenanceBundle) siteOn(id, on string) {
	b.t.Helper()
	exec(b.t, b.Store, `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash,
		state, converged_state, site, created_by)
		VALUES ($1, $1, 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'active', 'active', $1 || '.example.com', 'test')`, id)
	exec(b.t, b.Store, `SET session_replication_role = replica;
		INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider,
			algorithm, dedicated, on_shard)
		VALUES ('`+id+`', '`+on+`', '`+on+`', '`+on+`', '`+id+`', '`+id+`', 'hetzner', 'best_fit', false, true);
		SET session_replication_role = DEFAULT`)
}

// accept makes a request with the impact that a dry run of it shows.
func (b maintenanceBundle) accept(request func(context.Context) error) impact.Impact {
	b.t.Helper()
	i := trying(b.t, b.Store, request)
	accepted := impact.Change{Operation: "test", Bound: impact.Destroys, At: time.Now(), Accepted: i.Digest}
	require.NoError(b.t, request(impact.With(b.t.Context(), &accepted)))
	return i
}

func (b maintenanceBundle) asks(
	id prego.ServerID, kind server.MaintenanceKind, r server.MaintenanceRequest,
) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := b.RequestMaintenance(ctx, id, kind, r, "ann")
		return err
	}
}

// held returns what attention reports of servers whose maintenance is stuck.
func (b maintenanceBundle) held() (out []attention.Item) {
	b.t.Helper()
	items, _, err := b.AttentionItems(b.t.Context(), attention.Limits{})
	require.NoError(b.t, err)
	for _, i := range items {
		if i.Kind == attention.MaintenanceStuck {
			out = append(out, i)
		}
	}
	return out
}

func (b maintenanceBundle) reason(id prego.ServerID) (reason string) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(),
		`SELECT reason FROM server_maintenances WHERE server_id = $1 ORDER BY number DESC LIMIT 1`, id).Scan(&reason))
	return reason
}

// TestAPatchThatWouldInterruptMoreWaits: of one site it was accepted, and three more come before its turn.
func TestAPatchThatWouldInterruptMoreWaits(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(b maintenanceBundle, request func(context.Context) error){
		"accepted": func(b maintenanceBundle, request func(context.Context) error) {
			i := b.accept(request)
			require.Len(t, i.Affected, 4)
			require.Empty(t, b.held())
			require.Equal(t, server.ActPatch, b.step("node-1").Act)
			require.Equal(t, 1, count(t, b.Store, `server_events WHERE message = 'patch accepted by ann: it interrupts 4 tenants (t-1, t-2, t-3, t-4)'`))
		},
		"cancelled": func(b maintenanceBundle, _ func(context.Context) error) {
			_, err := b.CancelMaintenance(t.Context(), "node-1")
			require.NoError(t, err)
			st := b.step("node-1")
			require.Equal(t, server.MaintenanceCancelled, st.Status)
			require.True(t, st.Opened)
			require.Empty(t, b.held())
		},
		"smaller": func(b maintenanceBundle, _ func(context.Context) error) {
			exec(t, b.Store, `UPDATE tenant_allocations SET released_at = now() WHERE tenant_id <> 't-1'`)
			require.Equal(t, server.ActPatch, b.step("node-1").Act)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _ := maintenanceSetup(t)
			b.siteOn("t-1", "node-1")
			request := b.asks("node-1", server.MaintenancePatch, server.MaintenanceRequest{KeepTenants: true})
			require.Len(t, b.accept(request).Affected, 1)
			require.NoError(t, request(t.Context()), "repeating it asks nothing")
			require.Equal(t, server.ActCheck, b.step("node-1").Act)
			for n := 2; n <= 4; n++ {
				b.siteOn(fmt.Sprint("t-", n), "node-1")
			}
			require.NoError(t, b.PatchChecked(t.Context(), "node-1", "1 security updates", ""))
			for range 3 {
				st := b.step("node-1")
				require.Empty(t, st.Act)
				require.Equal(t, server.MaintenanceWaiting, st.Status)
				require.Equal(t, "it now also interrupts 3 tenants (t-2, t-3, t-4); it was accepted that it interrupts tenant t-1", st.Message)
			}
			require.Equal(t, server.MaintenanceImpactGrew, b.reason("node-1"))
			held := b.held()
			require.Len(t, held, 1)
			require.Equal(t, []any{server.MaintenanceImpactGrew, attention.Warning}, []any{held[0].Reason, held[0].Severity})
			require.Contains(t, held[0].Message, "it now also interrupts 3 tenants")
			require.Contains(t, held[0].Todo, "Repeat the request")
			require.Equal(t, 1, count(t, b.Store, `server_events WHERE step = 'maintenance_waits'`))
			require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(request(t.Context())))
			then(b, request)
		})
	}
}

// TestARebootThatWouldInterruptMoreWaits while its server is emptied, and again once that was accepted.
func TestARebootThatWouldInterruptMoreWaits(t *testing.T) {
	t.Parallel()
	b, groups := maintenanceSetup(t, 1)
	request := b.asks("node-1", server.MaintenanceReboot, server.MaintenanceRequest{KeepTenants: true})
	b.accept(request)
	require.Equal(t, server.MaintenanceMoving, b.step("node-1").Status)
	b.siteOn("t-1", "node-1") // an operator moved it there
	for range 3 {
		b.round("node-2", groups)
	}
	require.Zero(t, b.on("node-1"))
	require.Empty(t, b.step("node-1").Act)
	require.Equal(t, server.MaintenanceImpactGrew, b.reason("node-1"))
	b.accept(request)
	b.siteOn("t-2", "node-1")
	require.Empty(t, b.step("node-1").Act)
	b.accept(request)
	require.Equal(t, server.ActReboot, b.step("node-1").Act)
	b.siteOn("t-3", "node-1")
	require.Equal(t, server.ActReboot, b.step("node-1").Act, "a host that may be switched off already is not left so")
}

// TestInstancesAreCountedByGroup: another instance of the group in place of an accepted one is no more; one that moved
// without an interruption, and can't any longer, is.
func TestInstancesAreCountedByGroup(t *testing.T) {
	t.Parallel()
	b, groups := maintenanceSetup(t, 1, 2)
	exec(t, b.Store, `UPDATE process_groups SET no_surge = true`)
	exec(t, b.Store, `UPDATE instances SET server_id = 'node-2' WHERE instance_id =
		(SELECT max(instance_id) FROM instances WHERE group_id = $1)`, groups[1])
	b.accept(b.asks("node-1", server.MaintenanceDrain, server.MaintenanceRequest{}))
	exec(t, b.Store, `UPDATE instances SET instance_id = 'ins-new' WHERE group_id = $1`, groups[0])
	exec(t, b.Store, `UPDATE instances SET state = 'booting' WHERE server_id = 'node-2'`)
	require.Contains(t, b.step("node-1").Message, "it now also interrupts instance g2; it was accepted that it interrupts instance g1")
	require.Zero(t, count(t, b.Store, `instances WHERE leaving`))
	exec(t, b.Store, `UPDATE instances SET state = 'running' WHERE server_id = 'node-2'`)
	require.Equal(t, server.MaintenanceMoving, b.step("node-1").Status)
	require.Equal(t, 2, count(t, b.Store, `instances WHERE leaving`))
}

// TestNoCallerAcceptedAWindowsPatch: what the control plane does by itself is not held.
func TestNoCallerAcceptedAWindowsPatch(t *testing.T) {
	t.Parallel()
	b, _ := maintenanceSetup(t)
	b.siteOn("t-1", "node-1")
	b.request("node-1", server.MaintenancePatch, func(r *server.MaintenanceRequest) { r.KeepTenants = true })
	require.NoError(t, b.PatchChecked(t.Context(), "node-1", "1 security updates", ""))
	require.Equal(t, server.ActPatch, b.step("node-1").Act)
}

// TestAFleetsRemovalThatWouldInterruptMoreWaits: its caller accepted what it would remove then.
func TestAFleetsRemovalThatWouldInterruptMoreWaits(t *testing.T) {
	t.Parallel()
	b, groups := maintenanceSetup(t, 1)
	exec(t, b.Store, `UPDATE servers SET created_at = now() - interval '1 hour' WHERE server_id = 'node-1'`)
	b.accept(func(ctx context.Context) error {
		_, err := b.RequestFleetAction(ctx, server.FleetActionRequest{
			FleetID: "nodes", Action: server.ClusterScaleIn, Inputs: []byte(`{"count":2}`), By: "ann",
		}, scale.Plan)
		return err
	})
	_, err := b.BeginFleetAction(t.Context(), "nodes", scale.Plan)
	require.NoError(t, err)
	exec(t, b.Store, `UPDATE process_groups SET no_surge = true WHERE group_id = $1`, groups[0])
	exec(t, b.Store, `UPDATE servers SET cordoned_at = now(), closing = true WHERE server_id = 'node-1'`)
	_, begun, err := b.EmptyFleetMember(t.Context(), "node-1", "nodes action 1", time.Minute, true)
	require.NoError(t, err)
	require.True(t, begun)
	require.Contains(t, b.step("node-1").Message, "it now also interrupts instance g1; it was accepted that it affects nothing")
	b.accept(b.asks("node-1", server.MaintenanceDrain, server.MaintenanceRequest{}))
	require.Equal(t, server.MaintenanceMoving, b.step("node-1").Status)
	require.Equal(t, 1, count(t, b.Store, `instances WHERE leaving`))
}
