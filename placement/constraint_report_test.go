package placement_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
)

// tagged is a fleet of three app servers. The first two are blue.
func tagged() placement.Data {
	d := fleet()
	d.Servers = append(d.Servers, placement.Server{ServerID: "app-3", Role: prego.RoleApp, Region: "eu", InfraProvider: "hetzner", Status: "active"})
	d.Servers[0].Tags, d.Servers[1].Tags, d.Servers[2].Tags = []string{"blue"}, []string{"blue", "old"}, []string{"old"}
	return d
}

// TestPlacementErrors: cell_mismatch when no server satisfies the constraint, and
// insufficient_resources only when one does (placement-pools, "Auctioneer").
func TestPlacementErrors(t *testing.T) {
	t.Parallel()
	full := func(d *placement.Data) {
		for i := range d.Servers {
			d.Servers[i].MemoryPct = 95
		}
	}
	for name, tc := range map[string]struct {
		data        func(*placement.Data)
		request     func(*placement.Request)
		outcome     placement.Outcome
		code        prego.Code
		satisfying  int
		unsatisfied map[string]int
	}{
		"two satisfy, and have room": {nil, func(r *placement.Request) { r.Constraint.Require = []string{"blue"} }, placement.Placed, "", 2, map[string]int{"lacks blue": 1}},
		"two satisfy, and are full":  {full, func(r *placement.Request) { r.Constraint.Require = []string{"blue"} }, placement.AwaitingCapacity, prego.CodeInsufficientResources, 2, map[string]int{"lacks blue": 1}},
		"none satisfies, and all are full": {
			full, func(r *placement.Request) { r.Constraint.Require = []string{"blue", "alfalfa"} }, placement.AwaitingCapacity, prego.CodeCellMismatch, 0,
			map[string]int{"lacks blue": 1, "lacks alfalfa": 2},
		},
		"those that satisfy are of another region, failed or cordoned": {
			func(d *placement.Data) {
				d.Servers[0].Region, d.Servers[1].Status = "us", "failed"
				d.Servers[2].Tags, d.Servers[2].Cordoned = []string{"blue"}, true
			}, func(r *placement.Request) { r.Constraint.Require = []string{"blue"} }, placement.AwaitingCapacity, prego.CodeCellMismatch, 0,
			map[string]int{"in another region": 1, "not active": 1, "cordoned": 1},
		},
		"one is provisioning, and one is full": {
			func(d *placement.Data) { d.Servers[0].Status, d.Servers[1].MemoryPct = "provisioning", 95 },
			func(r *placement.Request) { r.Constraint.Require = []string{"blue"} }, placement.AwaitingCapacity, prego.CodeInsufficientResources, 1,
			map[string]int{"lacks blue": 1, "not active": 1},
		},
		"a contradiction": {
			nil, func(r *placement.Request) {
				r.Constraint = prego.Constraint{Require: []string{"blue"}, Disallow: []string{"blue"}}
			}, placement.AwaitingCapacity, prego.CodeCellMismatch, 0,
			map[string]int{"lacks blue": 1, "has blue": 2},
		},
		"a contradiction, alone on its server": {nil, func(r *placement.Request) {
			r.Mode, r.Constraint = tenant.ModeOneTenantOneServer, prego.Constraint{Require: []string{"blue"}, Disallow: []string{"blue"}}
		}, placement.AwaitingCapacity, prego.CodeCellMismatch, 0, map[string]int{"lacks blue": 1, "has blue": 2}},
		"a contradiction, always a new server": {nil, func(r *placement.Request) {
			r.Algorithm, r.Constraint = placement.NewServer, prego.Constraint{Require: []string{"blue"}, Disallow: []string{"blue"}}
		}, placement.AwaitingCapacity, prego.CodeCellMismatch, 0, map[string]int{"lacks blue": 1, "has blue": 2}},
		"none satisfies, and one is made for it": {nil, func(r *placement.Request) {
			r.Mode, r.Constraint.Require = tenant.ModeOneTenantOneServer, []string{"alfalfa"}
		}, placement.NeedsServer, "", 0, map[string]int{"lacks alfalfa": 3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := tagged()
			if tc.data != nil {
				tc.data(&data)
			}
			d := placement.NewSnapshot(shared(), data).Decide(request(func(r *placement.Request) { r.Pools = []string{"p"}; tc.request(r) }))
			require.Equal(t, tc.outcome, d.Outcome)
			require.Equal(t, tc.code, d.Code)
			require.NotNil(t, d.Constraint)
			require.Equal(t, 3, d.Constraint.LookedAt)
			require.Equal(t, tc.satisfying, d.Constraint.Satisfying)
			require.Equal(t, tc.unsatisfied, d.Constraint.Unsatisfied)
			require.Equal(t, []string{"p"}, d.Explanation().Constraint.PlacementPools)
			if tc.code != "" {
				require.Contains(t, d.SelectionReason, d.Constraint.String(), "the reason for waiting has the counts")
			}
		})
	}
	d := placement.NewSnapshot(shared(), tagged()).Decide(request(nil))
	require.Nil(t, d.Constraint)
}

// TestOverridesAndConstraints: a server that the constraint forbids is refused, unless the override ignores the
// constraint explicitly.
func TestOverridesAndConstraints(t *testing.T) {
	t.Parallel()
	ask := func(change func(*placement.Override)) placement.Decision {
		o := &placement.Override{AppServerID: "app-3", Reason: "r"}
		change(o)
		return placement.NewSnapshot(shared(), tagged()).Decide(request(func(r *placement.Request) { r.Constraint.Require, r.Override = []string{"blue"}, o }))
	}
	d := ask(func(*placement.Override) {})
	require.Equal(t, placement.Refused, d.Outcome)
	require.Equal(t, prego.CodeCellMismatch, d.Code)
	require.Contains(t, d.SelectionReason, "ignore_constraint")
	d = ask(func(o *placement.Override) { o.AppServerID = "app-1" })
	require.Equal(t, "app-1", string(d.AppServerID))
	d = ask(func(o *placement.Override) { o.AppServerID, o.DBShardID = "", "db-1" })
	require.Equal(t, "app-2", string(d.AppServerID), "a forced shard leaves the server to the constraint")
	d = ask(func(o *placement.Override) { o.IgnoreConstraint = true })
	require.True(t, d.PlacesTenant())
	require.Equal(t, "app-3", string(d.AppServerID))
	require.True(t, d.Constraint.Ignored, "the decision records it")
	require.Equal(t, []string{"blue"}, d.Constraint.Require)
}

// TestEligibility: no tenant gets a server that does not satisfy the constraint, and the error distinguishes whether
// any does.
func TestEligibility(t *testing.T) {
	t.Parallel()
	tag := rapid.SampledFrom([]string{"a", "b", "c"})
	tags := func(t *rapid.T, name string) []string {
		return rapid.SliceOfNDistinct(tag, 0, 3, rapid.ID).Draw(t, name)
	}
	rapid.Check(t, func(t *rapid.T) {
		data := genFleet(t)
		for i := range data.Servers {
			data.Servers[i].Tags = tags(t, "tags")
			data.Servers[i].Cordoned = rapid.IntRange(0, 4).Draw(t, "cordoned") == 4
		}
		f := placement.NewSnapshot(shared(), data)
		for i := range rapid.IntRange(1, 6).Draw(t, "tenants") {
			r := genRequest(t, i)
			r.Constraint = prego.Constraint{Require: tags(t, "require"), Disallow: tags(t, "disallow")}
			satisfying := 0
			for _, s := range data.Servers {
				if r.Constraint.SatisfiedBy(s.Tags) && s.Region == r.Region && s.Status == "active" && !s.Cordoned {
					satisfying++
				}
			}
			d := f.Decide(r)
			if d.PlacesTenant() {
				s, ok := f.Server(d.AppServerID)
				require.True(t, ok)
				require.True(t, r.Constraint.SatisfiedBy(s.Tags))
			}
			if r.Override == nil {
				require.Equal(t, d.Code == prego.CodeCellMismatch, !d.PlacesTenant() && d.Outcome == placement.AwaitingCapacity && satisfying == 0 && !r.Constraint.Empty())
			}
			if d.Constraint != nil {
				n := 0
				for _, count := range d.Constraint.Unsatisfied {
					n += count
				}
				require.Equal(t, satisfying, d.Constraint.Satisfying)
				require.Equal(t, len(data.Servers), n+satisfying, "every server is accounted for")
			}
			f.Apply(r, d)
		}
	})
}
