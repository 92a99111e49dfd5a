package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/tenant"
)

// The benchmarks of this file print how long a tenant, its backup, its restore, a volume and a process group of the org
// globex take beside what another org, acme, does. The bare limit is the same alone; each is the median of five.

// BenchmarkBesideWaitingTenants has 10,000 tenants of the other org wait for capacity.
func BenchmarkBesideWaitingTenants(b *testing.B) {
	c := newNeighbours(b, 3)
	alone := c.took()
	c.sim.SetStock("*", "*", false)
	c.manyWait(prego.PlanEnterprise)
	c.record(b, "waiting", alone, c.took())
}

// BenchmarkBesideBackups has 40 backups of the other org wait for their turn, all the time.
func BenchmarkBesideBackups(b *testing.B) {
	const others = 40
	c := newNeighbours(b, others+3)
	var ids []string
	for n := range others {
		id := c.tenant(fmt.Sprintf("other-%d", n), prego.PlanStarter, nil)
		c.settledTenant(id, tenant.Active)
		ids = append(ids, "/v1/tenants/"+id)
	}
	c.awaitSites(c.id("app"), 3)
	alone := c.took()
	beside := c.tookAfter(func() {
		for _, of := range ids {
			if status, body := c.request(http.MethodPost, of+"/backups", nil); status != http.StatusConflict {
				require.Equal(b, http.StatusAccepted, status, "%s", body) // otherwise, one is under way
			}
		}
	})
	require.NotZero(b, c.number(`SELECT count(*) FROM backups WHERE org_id = 'acme' AND state = 'stored'`))
	require.NotZero(b, c.number(`SELECT count(*) FROM backups WHERE org_id = 'acme' AND state IN ('queued', 'making', 'uploading')`))
	c.record(b, "backups", alone, beside)
}

// BenchmarkBesideDomains has 500 domains of the other org, whose records are due to be looked for in each round.
func BenchmarkBesideDomains(b *testing.B) {
	const others = 500
	c := newNeighbours(b, 3)
	alone := c.took()
	var d api.Domain
	c.post("/v1/domains", map[string]any{"org_id": "acme", "name": "a.customer.org"}, http.StatusCreated, &d)
	c.exec(`INSERT INTO domains (domain_id, org_id, name, token, sought_until, created_by)
		SELECT 'dom-' || lpad(n::text, 12, '0'), org_id, 'n' || n || '.customer.org', token, sought_until, created_by
		FROM domains, generate_series(1, $1) n WHERE domain_id = $2`, others-1, d.DomainId)
	beside := c.tookAfter(func() { c.exec(`UPDATE domains SET next_check = now()`) })
	require.Equal(b, others, c.number(`SELECT count(*) FROM domains WHERE failures > 1`), "all are looked for")
	c.record(b, "domains", alone, beside)
}

// neighbours is a cell with capacity for globex, and servers with sites for tenants.
type neighbours struct {
	*cell
	env   prego.EnvID
	round int
}

func newNeighbours(b *testing.B, sites int) *neighbours {
	b.Helper()
	vars := backupVars(s3test.Start(b), groupVars(nil))
	maps.Copy(vars, map[string]string{
		"PREGO_PACE": "1", "PREGO_LOG_LEVEL": "info", "PLACEMENT_MAX_TENANTS_PER_NODE": "1000",
	})
	c := newCell(b, options{
		vars: vars, processes: true,
		sim: func(cfg *sim.Config) { cfg.Zones = []string{"customer.org"} },
	})
	c.org("acme", "")
	c.exec(`UPDATE capacity_defaults SET tenant_capacity = 10000`)
	n := &neighbours{cell: c, env: c.workloads("globex", "enterprise")}
	c.policies(sites, sites)
	c.sharedFleet(sites)
	c.policies(3, 3)
	c.nodes("web", 1, 1024*mb)
	return n
}

// took is how long each thing takes.
func (c *neighbours) took() map[string]time.Duration { return c.tookAfter(func() {}) }

// tookAfter is took with something that happens before each round.
func (c *neighbours) tookAfter(before func()) map[string]time.Duration {
	c.t.Helper()
	all := map[string][]time.Duration{}
	timed := func(what string, do func()) {
		began := time.Now()
		do()
		all[what] = append(all[what], time.Since(began))
	}
	for range 5 {
		c.round++
		name := fmt.Sprintf("beside-%d", c.round)
		c.awaitSites(c.id("app"), 1)
		before()
		var id string
		timed("tenant", func() {
			id = c.tenant(name, prego.PlanStarter, func(m map[string]any) { m["org_id"] = "globex" })
			c.settledTenant(id, tenant.Active)
		})
		of := "/v1/tenants/" + id
		var made api.Backup
		timed("backup", func() { made = c.backupState(of, c.backup(of), tenant.BackupStored) })
		timed("restore", func() { c.restoreOf(of, map[string]any{"backup_id": made.BackupId}, "succeeded") })
		timed("volume", func() { c.awaitVolume(c.volume("globex", name, 10), "ready") })
		timed("group", func() { c.settledGroup(c.group(c.env, name, 1, spec("shop:1", 64)).GroupId) })
	}
	medians := map[string]time.Duration{}
	for what, d := range all {
		slices.Sort(d)
		medians[what] = d[2]
	}
	return medians
}

func (*neighbours) record(b *testing.B, what string, alone, beside map[string]time.Duration) {
	b.Helper()
	for thing, took := range beside {
		b.Logf("%s beside %s: %s, alone %s: %.2f ×", thing, what, took, alone[thing], float64(took)/float64(alone[thing]))
		benchjson.Record(b, "beside_"+what+"_"+thing+"_seconds", took.Seconds(), "s", alone[thing].Seconds())
	}
}
