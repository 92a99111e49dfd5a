//go:build soak

package e2e

import "github.com/prego/prego/lab/soak"

// Series that grow by design, and by how much per unit of work. Everything else must be flat.

// ofLogs are the processes' logs, which another program rotates.
var ofLogs = map[string]soak.Limit{
	"api":     {Slope: 64 << 10, Per: "tenant", Least: 1 << 20},
	"worker":  {Slope: 8 << 10, Per: "tenant", Least: 1 << 20},
	"agentgw": {Slope: 8 << 10, Per: "tenant", Least: 1 << 20},
}

// ofDatabase is what the tables below take, with their indexes.
var ofDatabase = soak.Limit{Slope: 100 << 10, Per: "tenant", Least: 4 << 20}

// ofTemporal are the histories of ended runs, which it keeps for its namespace's retention: a day here.
var ofTemporal = soak.Limit{Slope: 512 << 10, Per: "tenant", Least: 4 << 20}

// ofResults are the results that a host keeps to recognize a repeated command, at most the number in
// agent/exec/results.go.
var ofResults = soak.Limit{Slope: 16, Per: "tenant", Least: 20}

// kept are the tables whose rows stay forever (docs/operations.md, what is kept).
var kept = map[string]soak.Limit{
	"tenants": per("tenant", 1.3), "tenant_allocations": per("tenant", 1.3), "allocation_snapshots": per("tenant", 1.3),
	// The timelines of tenants and servers; a server has some 25 lines, too.
	"events": per("tenant", 50),
	// Pruned by age, later than a soak ends.
	"decision_inputs": per("tenant", 4),
	// Of tenants that a look for turns met, also when they are purged.
	"backup_schedules": per("tenant", 1.3),
	// The last backup of each tenant, and requested ones, a quarter as many; resources are these, and the servers'.
	"backups": per("tenant", 1.6), "resources": per("tenant", 2.2),
	"servers": per("server", 1.3), "redis_pools": per("server", 1.3), "server_bootstrap_tokens": per("server", 1.3),
	"tenant_moves": per("move", 1.3), "rollouts": per("deploy", 1.3),
	"reconcile_runs": {Slope: 80, Least: 10}, // one a minute
}

func per(work string, n float64) soak.Limit { return soak.Limit{Slope: n, Per: work, Least: 3} }

func ofRows(table string) soak.Limit {
	if l, ok := kept[table]; ok {
		return l
	}
	return soak.Limit{Slope: 30, Least: 10}
}
