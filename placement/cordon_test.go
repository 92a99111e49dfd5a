package placement_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// TestACordonedServerIsRejectedAsSuch: the reason is its own, so that an operator sees that
// one uncordon would help.
func TestACordonedServerIsRejectedAsSuch(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		data     func(*placement.Data)
		server   string
		rejected []placement.Rejection
	}{
		"the server": {func(d *placement.Data) { d.Servers[1].Cordoned = true }, "app-1", []placement.Rejection{{ID: "app-2", Reason: "cordoned"}}},
		"a failed one": {
			func(d *placement.Data) { d.Servers[1].Cordoned, d.Servers[1].Status = true, "failed" }, "app-1",
			[]placement.Rejection{{ID: "app-2", Reason: "not_active"}},
		},
		"the shard's": {func(d *placement.Data) { d.Shards[0].Cordoned = true }, "", []placement.Rejection{{ID: "db-1", Reason: "cordoned"}}},
		"the pool's":  {func(d *placement.Data) { d.Pools[0].Cordoned = true }, "", []placement.Rejection{{ID: "redis-1", Reason: "cordoned"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := fleet()
			d.Sites = nil
			tc.data(&d)
			p := shared()
			p.EmptyPool = placement.OnDemand
			got := placement.NewSnapshot(p, d).Decide(request(nil))
			require.Equal(t, tc.server, string(got.AppServerID))
			if tc.server == "" {
				require.Equal(t, placement.AwaitingCapacity, got.Outcome)
			}
			require.Subset(t, got.Rejected, tc.rejected, "%+v", got)
			require.Equal(t, 1, got.RejectedCounts[tc.rejected[0].Reason])
		})
	}
}

func TestNobodyIsForcedOntoACordonedServer(t *testing.T) {
	t.Parallel()
	d := fleet()
	d.Servers[1].Cordoned = true
	f := placement.NewSnapshot(shared(), d)
	got := f.Decide(request(func(r *placement.Request) {
		r.Override = &placement.Override{AppServerID: "app-2", Reason: "it must be"}
	}))
	require.Equal(t, prego.CodeInvariantViolation, got.Code)
	require.Contains(t, got.SelectionReason, "is cordoned")
	for _, shut := range []func(*placement.Data){
		func(d *placement.Data) { d.Servers[0].Cordoned = true },
		func(d *placement.Data) { d.Shards[0].Cordoned = true },
		func(d *placement.Data) { d.Pools[0].Cordoned = true },
	} {
		d := fleet()
		shut(&d)
		err := placement.NewSnapshot(shared(), d).CheckInvariants(request(nil), placement.Decision{KeptPlace: placement.KeptPlace{AppServerID: "app-1", DBShardID: "db-1", RedisPoolID: "redis-1"}, Mode: tenant.ModeShared})
		require.ErrorContains(t, err, "cordoned")
	}
}

// TestATenantLeavesItsCordonedServerBehind: its server was made for it and closed before it
// came; it may have another one.
func TestATenantLeavesItsCordonedServerBehind(t *testing.T) {
	t.Parallel()
	d := fleet()
	d.Servers = []placement.Server{ownNode("n-t-g1", "active"), ownNode("n-t-g2", "active")}
	d.Servers[1].Cordoned = true
	require.Equal(t, "n-t-g1", string(placement.NewSnapshot(placement.DefaultPolicy(), d).Decide(request(nil)).AppServerID))
}
