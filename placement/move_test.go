package placement_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
)

// TestWhereATenantMoves: to another app server in its shard's network, the one with the most
// room, past every filter; an operator's wish skips load, and nothing else.
func TestWhereATenantMoves(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		data func(*placement.Data)
		move func(*placement.Move)
		want string
		code prego.Code
	}{
		"the one with more room":        {nil, nil, "app-2", ""},
		"not where it is":               {func(d *placement.Data) { d.Servers = d.Servers[:2] }, nil, "app-2", ""},
		"nowhere else":                  {func(d *placement.Data) { d.Servers = d.Servers[:1] }, nil, "", prego.CodeInsufficientResources},
		"not to a cordoned one":         {func(d *placement.Data) { d.Servers[1].Cordoned = true }, nil, "app-3", ""},
		"not to a failed one":           {func(d *placement.Data) { d.Servers[1].Status = server.Failed }, nil, "app-3", ""},
		"not to a full one":             {func(d *placement.Data) { d.Servers[1].MemoryPct = 99 }, nil, "app-3", ""},
		"not to another's":              {func(d *placement.Data) { d.Servers[1].DedicatedFor = "t-other" }, nil, "app-3", ""},
		"not to another network":        {func(d *placement.Data) { d.Servers[1].NetworkID = "n-2" }, nil, "app-3", ""},
		"not to a node":                 {func(d *placement.Data) { d.Servers[1].Role = prego.RoleNode }, nil, "app-3", ""},
		"with its tags":                 {func(d *placement.Data) { d.Servers[2].Tags = []string{"gpu"} }, func(m *placement.Move) { m.Constraint.Require = []string{"gpu"} }, "app-3", ""},
		"as asked for":                  {nil, func(m *placement.Move) { m.To = "app-3" }, "app-3", ""},
		"as asked for, though full":     {func(d *placement.Data) { d.Servers[2].MemoryPct = 99 }, func(m *placement.Move) { m.To = "app-3" }, "app-3", ""},
		"not as asked for: cordoned":    {func(d *placement.Data) { d.Servers[2].Cordoned = true }, func(m *placement.Move) { m.To = "app-3" }, "", prego.CodeInvariantViolation},
		"not as asked for: where it is": {nil, func(m *placement.Move) { m.To = "app-1" }, "", prego.CodeInvariantViolation},
		"nobody knows it":               {nil, func(m *placement.Move) { m.To = "app-9" }, "", prego.CodeServerUnknown},
		"nobody knows its shard":        {nil, func(m *placement.Move) { m.ShardID = "db-9" }, "", prego.CodeShardUnknown},
		"an enterprise tenant, alone":   {nil, func(m *placement.Move) { m.Plan = prego.PlanEnterprise }, "app-3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := fleet()
			for len(d.Servers) < 3 {
				d.Servers = append(d.Servers, d.Servers[0])
			}
			d.Servers = d.Servers[:3]
			for i := range d.Servers {
				s := &d.Servers[i]
				s.ServerID, s.Role, s.NetworkID, s.TenantCount, s.MemoryPct, s.Tags = prego.ServerID([]string{"app-1", "app-2", "app-3"}[i]), prego.RoleApp, "n-1", []int{1, 1, 0}[i], []float64{10, 20, 60}[i], nil
			}
			d.Shards[0].NetworkID = "n-1"
			if tc.data != nil {
				tc.data(&d)
			}
			m := placement.Move{Request: request(nil), From: "app-1", ShardID: d.Shards[0].ShardID}
			if tc.move != nil {
				tc.move(&m)
			}
			f := placement.NewSnapshot(shared(), d)
			got := f.DecideMove(m)
			require.Equal(t, tc.want, string(got.AppServerID), "%+v", got)
			require.Equal(t, tc.code, got.Code)
			require.Equal(t, tc.want != "", got.PlacesTenant())
			require.Equal(t, m.Plan == prego.PlanEnterprise, got.Dedicates)
		})
	}
}
