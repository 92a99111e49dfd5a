package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
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
