package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/placement"
	"github.com/prego/prego/tenant"
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
		Mode: tenant.ModeShared, Algorithm: placement.FirstFit, MemoryPctMax: 50, MaxTenantsPerNode: 7,
		MeasuredLimits: tenant.MeasuredLimits{CPUPctMax: 1, WorkerSlotsPctMax: 2, DBDiskPctMax: 3, RedisMemoryPctMax: 0},
		Weights: placement.Weights{
			AppLoad: 0.11, AppCount: 0.2, DBLoad: 0.2, RedisLoad: 0, Affinity: 0.16, AppCPU: 0.12, AppWorkerSlots: 0.13, DBDisk: 0.14, RedisMemory: 0.15,
		},
		EmptyPool: placement.Hold, SameShard: true, MaxRejected: 20,
	}, p)
}

func TestPlacementSettingsThatCantBeMeant(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Placement){
		"PREGO_SHARED_PLACEMENT_LEGACY must be 1, true, yes or unset": func(p *Placement) { p.Shared = "maybe" },
		"PLACEMENT_…): invalid_field: policy.algorithm must be":       func(p *Placement) { p.Algorithm = "manual" },
		"policy.memory_pct_max must be above 0 and at most 100":       func(p *Placement) { p.MemoryPctMax = 0 },
		"policy.max_tenants_per_node must be 1 to 100000":             func(p *Placement) { p.MaxTenantsPerNode = 0 },
		"policy.cpu_pct_max must be 0 to 100":                         func(p *Placement) { p.CPUPctMax = 101 },
		"policy.worker_slots_pct_max must be 0 to 100":                func(p *Placement) { p.WorkerSlotsPctMax = -1 },
		"policy.db_disk_pct_max must be 0 to 100":                     func(p *Placement) { p.DBDiskPctMax = 100.1 },
		"policy.redis_memory_pct_max must be 0 to 100":                func(p *Placement) { p.RedisMemoryPctMax = -0.1 },
		"policy.empty_pool must be on_demand or hold":                 func(p *Placement) { p.EmptyPool = "wait" },
		"policy.weights.app_load must be 0 to 1":                      func(p *Placement) { p.Weights = `{"app_load":1.1}` },
		"policy.weights.db_disk must be 0 to 1":                       func(p *Placement) { p.Weights = `{"db_disk":-1}` },
		`PLACEMENT_WEIGHTS: json: unknown field "memory"`:             func(p *Placement) { p.Weights = `{"memory":0.5}` },
		"PLACEMENT_WEIGHTS: invalid character":                        func(p *Placement) { p.Weights = `app_load=1` },
	} {
		p := Placement{Algorithm: "best_fit", MemoryPctMax: 70, MaxTenantsPerNode: 20, EmptyPool: "on_demand"}
		_, err := p.Policy()
		require.NoError(t, err)
		change(&p)
		_, err = p.Policy()
		require.ErrorContains(t, err, want)
	}
}
