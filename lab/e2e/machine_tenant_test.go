//go:build machines

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/acmetest"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// siteStack is the declared stack, except for nodes, which run stand-ins.
func siteStack(t *testing.T) string {
	t.Helper()
	var light, whole server.Stack
	for into, file := range map[*server.Stack]string{&light: lightStack(t), &whole: declaredStack(t)} {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, into))
	}
	whole[prego.RoleNode] = light[prego.RoleNode]
	return writeStack(t, whole)
}

// TestMachineServesATenant takes a tenant through its life on real systems: its site is created by the declared stack,
// with its database on a shard and its cache in a pool, serves its page to the public by name, is backed up and
// restored, outlives reboots, and finally leaves nothing. On the way, all parties try to reach what they may not.
func TestMachineServesATenant(t *testing.T) {
	t.Parallel()
	require.DirExists(t, machineImages(), "make images builds what the stack pulls")
	const domain = "sites.machines.test"
	dns := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	authority := acmetest.Start(t, acmetest.Options{DNS: dns})
	vars := groupVars(sharedVars())
	vars["PREGO_STACK_FILE"], vars["PREGO_SITE_TIMEOUT"], vars["PREGO_CONTAINER_TIMEOUT"], vars["PREGO_MOVE_GRACE"] = siteStack(t), "3m", "5m", "1s"
	maps.Copy(vars, map[string]string{
		"PREGO_SITE_DOMAIN": domain, "PREGO_DNS_ZONE": "machines.test", "PREGO_AGENT_PORT": "443",
		"PREGO_ACME_DIRECTORY": authority.Directory, "PREGO_ACME_CA_FILE": authority.CAFile,
	})
	s := &openSite{authority: authority}
	c := machineCell(t, options{vars: vars, sim: func(cfg *sim.Config) { cfg.DNS, cfg.Zones = dns, []string{"machines.test"} }, late: func(cloud *sim.Sim) map[string]string {
		s.store = s3test.StartAt(t, cloud.Network().Gateway)
		return storageVars(s.store)
	}})
	s.cell = c
	c.machines(4)
	c.org("acme", "")
	c.org("rival", "")
	c.exec(`UPDATE orgs SET tier = 'paid'`)
	for role, m := range map[prego.Role]**machine{prego.RoleApp: &s.app, prego.RoleDBShard: &s.shard, prego.RoleRedisPool: &s.pool, prego.RoleEdge: &s.edge, prego.RoleNode: &s.node} {
		spec := server.Spec{}
		if role == prego.RoleRedisPool {
			spec.Image = "debian-12"
		}
		*m = c.machine(string(role), role, spec)
	}
	all := []*machine{s.edge, s.app, s.shard, s.pool, s.node}
	for _, m := range all {
		m.awaitActive()
	}
	s.pool.bootedAs("debian-12")
	app := s.app
	c.policies(1, 2)
	c.awaitSites(c.id("app"), 2)
	c.policies(0, 0)

	id := c.tenant("alpha-one", prego.PlanStarter, nil)
	s.other = c.settledTenant(c.tenant("rival-one", prego.PlanStarter, func(m map[string]any) { m["org_id"] = "rival" }), tenant.Active)
	tn := c.settledTenant(id, tenant.Active)
	s.own = tn
	s.app2 = c.machine("app2", prego.RoleApp, server.Spec{}) // while others are looked at
	all = append(all, s.app2)
	site, database := deref(tn.Site), tn.Allocation.DatabaseName
	require.Equal(t, "alpha-one."+domain, site)
	s.from = c.outside()
	s.visitor = c.public(s.from, authority.Trust())
	for _, step := range []struct {
		name string
		test func(*openSite)
	}{
		{"its site opens", (*openSite).opens},
		{"who reaches what", (*openSite).matrix},
		{"what orgs run", (*openSite).workloads},
		{"it moves, and servers are patched", (*openSite).moves},
		{"without a control plane", (*openSite).alone},
	} {
		t.Run(step.name, func(t *testing.T) { step.test(s.in(t)) })
	}
	page := func() string {
		return app.run("curl --silent --show-error --fail --header 'Host: " + site + "' http://127.0.0.1:8080/")
	}
	mariadb := s.inMariaDB
	add := func(name string) {
		mariadb("INSERT INTO " + database + ".tabToDo (name) VALUES ('" + name + "')")
	}
	require.Contains(t, page(), site)
	require.Contains(t, page(), "rows: 0")

	add("one")
	require.Contains(t, page(), "rows: 1")
	of := "/v1/tenants/" + id
	var saved api.Snapshot
	c.post(of+"/snapshots", nil, http.StatusAccepted, &saved)
	eventually(t, func() bool {
		c.send(http.MethodGet, of+"/snapshots/"+saved.SnapshotId, nil, http.StatusOK, &saved)
		require.NotEqual(t, api.JobStatus("failed"), saved.Status, deref(saved.Message))
		return saved.Status == "succeeded"
	}, patience, 200*time.Millisecond)
	add("two")
	require.Contains(t, page(), "rows: 2")
	var j api.RestoreJob
	c.post(of+"/restores", map[string]any{"snapshot_id": saved.SnapshotId}, http.StatusAccepted, &j)
	eventually(t, func() bool {
		c.send(http.MethodGet, of+"/restores/"+j.JobId, nil, http.StatusOK, &j)
		require.NotEqual(t, api.JobStatus("failed"), j.Status, deref(j.Message))
		return j.Status == "succeeded"
	}, patience, 200*time.Millisecond)
	require.Contains(t, page(), "rows: 1", "as it was")

	// A reboot of the host brings the site back by itself; its containers keep no shutdown
	// waiting (prego-docker-stop.service).
	app.run("touch /run/before")
	app.power("reboot")
	eventually(t, func() bool {
		_, err := app.try("! test -e /run/before && curl --silent --fail --header 'Host: " + site + "' http://127.0.0.1:8080/ | grep 'rows: 1'")
		return err == nil
	}, 3*time.Minute, time.Second, "the page comes back")
	require.NotContains(t, app.console(), "Waiting for process")
	app.awaitHeartbeat()

	ids := []string{id, s.other.TenantId}
	for _, id := range ids {
		c.ask(id, "cancel")
	}
	for _, state := range []tenant.State{tenant.GracePeriod, tenant.Terminated} {
		for _, id := range ids {
			c.settledTenant(id, state)
			c.expire(id)
		}
	}
	for _, id := range ids {
		c.settledTenant(id, tenant.DataPurged)
	}
	require.Empty(t, app.run(`find / -xdev -path /proc -prune -o -name '*alpha-one*' -print; find /var/lib/docker/volumes -name '*alpha-one*'`))
	require.Empty(t, mariadb("SHOW DATABASES LIKE '"+database+"'"))
	require.Equal(t, "0", mariadb("SELECT COUNT(*) FROM mysql.user WHERE User = '"+database+"'"))
	defer s.forgotten()()
	for _, m := range all {
		m.gone()
	}
	require.Empty(t, c.sim.Ledger(true), "nothing is billed")
}
