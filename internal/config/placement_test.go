package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

// TestThePlacementPolicyIsWhatWasConfigured: every setting gets where it belongs.
func TestThePlacementPolicyIsWhatWasConfigured(t *testing.T) {
	t.Parallel()
	base := Placement{Algorithm: "best_fit", MemoryPctMax: 70, MaxTenantsPerNode: 20, CPUPctMax: 85, WorkerSlotsPctMax: 90, DBDiskPctMax: 80, RedisMemoryPctMax: 90, EmptyPool: "on_demand"}
	p, err := base.Policy()
	require.NoError(t, err)
	require.Equal(t, placement.DefaultPolicy(), p, "the defaults are the policy's")

	p, err = Placement{
		Shared: "YES", Algorithm: "first_fit", MemoryPctMax: 50, MaxTenantsPerNode: 7, CPUPctMax: 1, WorkerSlotsPctMax: 2, DBDiskPctMax: 3, RedisMemoryPctMax: 0,
		EmptyPool: "hold", SameShard: true, Weights: `{"app_load":0.11,"redis_load":0,"app_cpu":0.12,"app_worker_slots":0.13,"db_disk":0.14,"redis_memory":0.15,"affinity":0.16}`,
	}.Policy()
	require.NoError(t, err)
	require.Equal(t, placement.Policy{
		Mode: prego.ModeShared, Algorithm: placement.FirstFit, MemoryPctMax: 50, MaxTenantsPerNode: 7,
		MeasuredLimits: prego.MeasuredLimits{CPUPctMax: 1, WorkerSlotsPctMax: 2, DBDiskPctMax: 3, RedisMemoryPctMax: 0},
		Weights: placement.Weights{
			AppLoad: 0.11, AppCount: 0.2, DBLoad: 0.2, RedisLoad: 0, Affinity: 0.16, AppCPU: 0.12, AppWorkerSlots: 0.13, DBDisk: 0.14, RedisMemory: 0.15,
		},
		EmptyPool: placement.Hold, SameShard: true, MaxRejected: 20,
	}, p)
}

func TestPlacementSettingsThatCantBeMeant(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Placement){
		"shared":            func(p *Placement) { p.Shared = "maybe" },
		"algorithm":         func(p *Placement) { p.Algorithm = "manual" },
		"memory":            func(p *Placement) { p.MemoryPctMax = 0 },
		"tenants":           func(p *Placement) { p.MaxTenantsPerNode = 0 },
		"CPU":               func(p *Placement) { p.CPUPctMax = 101 },
		"slots":             func(p *Placement) { p.WorkerSlotsPctMax = -1 },
		"disk":              func(p *Placement) { p.DBDiskPctMax = 100.1 },
		"Redis":             func(p *Placement) { p.RedisMemoryPctMax = -0.1 },
		"empty pool":        func(p *Placement) { p.EmptyPool = "wait" },
		"weights":           func(p *Placement) { p.Weights = `{"app_load":1.1}` },
		"a negative weight": func(p *Placement) { p.Weights = `{"db_disk":-1}` },
		"an unknown weight": func(p *Placement) { p.Weights = `{"memory":0.5}` },
		"no JSON":           func(p *Placement) { p.Weights = `app_load=1` },
	} {
		p := Placement{Algorithm: "best_fit", MemoryPctMax: 70, MaxTenantsPerNode: 20, EmptyPool: "on_demand"}
		_, err := p.Policy()
		require.NoError(t, err)
		change(&p)
		_, err = p.Policy()
		require.Error(t, err, name)
		require.Contains(t, err.Error(), map[bool]string{true: "PREGO_SHARED", false: "PLACEMENT_"}[name == "shared"])
	}
}
