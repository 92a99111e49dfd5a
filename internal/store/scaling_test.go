package store

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

// TestAServerThatIsAskedForSaysWhatItIsFor lets the step die right after the row is
// there, as it can at any moment: repeated, it still says so.
func TestAServerThatIsAskedForSaysWhatItIsFor(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	f := prego.FleetServer{
		ServerID: "n-t-1-g1", Role: prego.RoleNode, Region: prego.RegionEU, Provider: prego.ProviderHetzner, DedicatedFor: "t-1", PlanTierLock: prego.PlanBusiness,
	}
	// Whatever is written after the row is lost with the process.
	exec(t, s, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the process is gone'; END $$`)
	exec(t, s, `CREATE TRIGGER die BEFORE UPDATE ON servers FOR EACH ROW EXECUTE FUNCTION die()`)
	_, _ = s.RequestFleetServer(ctx, f, "tenant/t-1")
	exec(t, s, `DROP TRIGGER die ON servers`)
	_, err := s.RequestFleetServer(ctx, f, "tenant/t-1")
	require.NoError(t, err)
	own, err := s.OwnServers(ctx, "t-1")
	require.NoError(t, err)
	require.Equal(t, []string{"n-t-1-g1"}, own)
	require.Equal(t, 1, count(t, s, `servers WHERE plan_tier_lock = 'business'`))
	// Asked again when it is somebody else's, it stays so.
	exec(t, s, `UPDATE servers SET dedicated_for_tenant_id = 't-2'`)
	_, err = s.RequestFleetServer(ctx, f, "tenant/t-1")
	require.NoError(t, err)
	require.Equal(t, 1, count(t, s, `servers WHERE dedicated_for_tenant_id = 't-2'`))
}
