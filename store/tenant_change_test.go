package store

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/tenant"
)

// TestAStateThatComesBackIsPutIntoEffectAgain suspends a tenant and resumes it while
// the suspension is still being put into effect: its site may already be offline.
func TestAStateThatComesBackIsPutIntoEffectAgain(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, actions := range map[string][2]tenant.Action{
		"resume":     {tenant.ActionSuspend, tenant.ActionResume},
		"reactivate": {tenant.ActionCancel, tenant.ActionReactivate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tenantStore(t)
			_, _, err := s.CreateTenant(ctx, tenantRequest(t, "one", prego.PlanStarter), "t-1", tenant.ModeShared, "", "someone")
			require.NoError(t, err)
			ref := tenant.Ref{TenantID: "t-1", Generation: 1}
			_, err = s.ActivateTenant(ctx, ref, 0)
			require.NoError(t, err)
			away, err := s.ChangeTenant(impact.By(ctx, "test"), "t-1", actions[0], lasting, "someone", "")
			require.NoError(t, err)
			require.NotEqual(t, away.State, away.ConvergedState)
			back, err := s.ChangeTenant(impact.By(ctx, "test"), "t-1", actions[1], lasting, "someone", "")
			require.NoError(t, err)
			require.Equal(t, tenant.Active, back.State)
			require.NotEqual(t, back.State, back.ConvergedState, "a run has to look after its site")
			require.NoError(t, s.TenantConverged(ctx, "t-1", away.State)) // comes late, without a change to confirm
			require.NoError(t, s.TenantConverged(ctx, "t-1", tenant.Active))
			now, err := s.GetTenant(ctx, "t-1")
			require.NoError(t, err)
			require.Equal(t, tenant.Active, now.ConvergedState)
		})
	}
}

// TestTerminatingAgainAcceptsTheHeldPurge: the data of a tenant that only a timer has ended is kept, until a caller
// accepts its end as what needs attention proposes. Nothing else changes, and it is accepted once.
func TestTerminatingAgainAcceptsTheHeldPurge(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), tenantStore(t)
	_, _, err := s.CreateTenant(ctx, tenantRequest(t, "shop", prego.PlanStarter), "t-1", tenant.ModeShared, "", "test")
	require.NoError(t, err)
	exec(t, s, `UPDATE tenants SET state = 'terminated', converged_state = 'terminated', site = 'shop.example.com',
		status_reason = 'grace_over', deadline_at = now() - interval '2 hours' WHERE tenant_id = 't-1'`)
	held := func() (items []attention.Item) {
		if _, err := s.ExpireTenant(ctx, "t-1", lasting); err != nil {
			require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(err))
		}
		found, _, err := s.Attention(ctx, attentionLimits)
		require.NoError(t, err)
		for _, i := range attention.List(found) {
			if i.Reason == "timer_held" {
				items = append(items, i)
			}
		}
		return items
	}
	items := held()
	require.Len(t, items, 1)
	require.Contains(t, items[0].Message, "its data is kept")
	require.Contains(t, items[0].Todo, "`prego tenant terminate t-1`")
	was, err := s.GetTenant(ctx, "t-1")
	require.NoError(t, err)
	require.Equal(t, tenant.Terminated, was.State)

	again := func(ctx context.Context) error {
		_, err := s.ChangeTenant(ctx, "t-1", tenant.ActionTerminate, lasting, "ann", "")
		return err
	}
	require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(again(ctx)))
	require.Equal(t, map[string]impact.Class{"t-1": impact.Destroys}, classes(trying(t, s, again)))
	require.NoError(t, again(impact.By(ctx, "ann accepts it")))
	now, err := s.GetTenant(ctx, "t-1")
	require.NoError(t, err)
	require.Equal(t, []any{was.State, was.StatusReason, was.Deadline, ""},
		[]any{now.State, now.StatusReason, now.Deadline, now.StatusMessage})
	converged, err := value[string](ctx, s.pool, `SELECT converged_state FROM tenants WHERE tenant_id = 't-1'`)
	require.NoError(t, err)
	require.Equal(t, "terminated", converged, "no second final backup is made")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(again(impact.By(ctx, "again"))), "it is accepted")
	require.Empty(t, held())
	now, err = s.GetTenant(ctx, "t-1")
	require.NoError(t, err)
	require.Equal(t, tenant.DataPurged, now.State)
}

// TestAWaitingTenantIsCancelledByItsRow: it has no run. What has a place, a server or a site is left to its run.
func TestAWaitingTenantIsCancelledByItsRow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ has, want string }{
		"nothing":  {"", "failed cancelled"},
		"a place":  {`SELECT 1`, "provisioning "},
		"a server": {`UPDATE servers SET dedicated_for_tenant_id = 't-0' WHERE server_id = 'n-1'`, "provisioning "},
		"no longer": {`UPDATE servers SET dedicated_for_tenant_id = 't-0', status = 'terminated' WHERE server_id
			= 'n-1'`, "failed cancelled"},
		"no more wait": {`UPDATE tenants SET waiting_since = NULL WHERE tenant_id = 't-0'`, "provisioning "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := backupTenants(t, 2)
			counted(t, s)
			if name != "a place" {
				require.NoError(t, s.FreePlace(t.Context(), "t-0", "test", "", tenant.SiteDropped, nil))
			}
			exec(t, s, `UPDATE tenants SET state = 'provisioning', site = '', waiting_since = now() WHERE tenant_id
				= 't-0'`)
			if c.has != "" {
				exec(t, s, c.has)
			}
			ctx := impact.By(t.Context(), "test")
			got, err := s.ChangeTenant(ctx, "t-0", tenant.ActionCancel, tenant.LifecyclePeriods{}, "ann", "")
			require.NoError(t, err)
			require.Equal(t, c.want, string(got.State)+" "+string(got.StatusReason))
			ended := c.want != "provisioning "
			require.Equal(t, ended, count(t, s, `tenants WHERE tenant_id = 't-0' AND waiting_since IS NULL AND
				state = 'failed'`) == 1)
			require.Equal(t, 1, count(t, s, `org_events WHERE type = 'tenant.cancel' AND subject = 't-0' AND actor
				= 'ann'`))
			require.Equal(t, ended, count(t, s, `tenant_lifecycle_events WHERE tenant_id = 't-0' AND to_state =
				'failed' AND reason = 'cancelled'`) == 1)
		})
	}
}

// TestAnOrgsQueueIsCancelledInOneRequest: tenants that have nothing end with it, and those with a server are left to
// their runs. Places, other orgs' tenants and tenants that wait for a place for a site that they had are not touched.
func TestAnOrgsQueueIsCancelledInOneRequest(t *testing.T) {
	t.Parallel()
	s := backupTenants(t, 6)
	counted(t, s)
	for i := range 5 {
		require.NoError(t, s.FreePlace(t.Context(), prego.TenantID(fmt.Sprintf("t-%d", i)), "test", "",
			tenant.SiteDropped, nil))
	}
	exec(t, s, `UPDATE tenants SET state = 'provisioning', site = '', waiting_since = now(), waiting_roles = '{app}'`)
	exec(t, s, `UPDATE servers SET dedicated_for_tenant_id = 't-1' WHERE server_id = 'n-1'`)
	exec(t, s, `UPDATE tenants SET waiting_since = NULL WHERE tenant_id = 't-2'`)
	exec(t, s, `UPDATE tenants SET active_at = now() WHERE tenant_id = 't-3'`)
	_, err := s.PutOrg(t.Context(), "other", tenant.PutOrgRequest{Tier: prego.TierEnterprise}, "test")
	require.NoError(t, err)
	exec(t, s, `UPDATE tenants SET org_id = 'other' WHERE tenant_id = 't-4'`)
	const of = prego.OrgID("acme")
	ctx := impact.By(t.Context(), "test")
	got, err := s.CancelQueue(ctx, of, "ann", "the test is over")
	require.NoError(t, err)
	require.Equal(t, tenant.CancelledQueue{OrgID: of, Cancelled: 1, Ending: 2}, got)
	require.Equal(t, 1, count(t, s, `tenants WHERE state = 'failed' AND tenant_id = 't-0' AND
		status_reason = 'cancelled' AND status_message = 'the provisioning was cancelled: the test is over' AND waiting_since IS NULL
		AND waiting_roles = '{}' AND converged_state = 'failed'`))
	require.Equal(t, 2, count(t, s, `tenants WHERE state = 'provisioning' AND cancel_requested_at IS NOT NULL AND
		tenant_id IN ('t-1', 't-5')`))
	require.Equal(t, 3, count(t, s, `tenants WHERE state = 'provisioning' AND cancel_requested_at IS NULL`))
	require.Equal(t, 3, count(t, s, `org_events WHERE type = 'tenant.cancel' AND actor = 'ann' AND reason =
		'the test is over'`))
	require.Equal(t, 1, count(t, s, `tenant_lifecycle_events WHERE tenant_id = 't-0' AND from_state = 'provisioning'
		AND to_state = 'failed' AND reason = 'cancelled' AND actor = 'ann'`))
	require.Equal(t, 2, count(t, s, `tenant_lifecycle_events WHERE from_state = 'provisioning' AND
		to_state = 'provisioning' AND message = 'cancel requested' AND actor = 'ann'`))

	got, err = s.CancelQueue(ctx, of, "ann", "")
	require.NoError(t, err)
	require.Equal(t, tenant.CancelledQueue{OrgID: of}, got, "once")
	_, err = s.CancelQueue(ctx, "ghost", "ann", "")
	require.Equal(t, prego.CodeNotFound, prego.CodeOf(err))
}
