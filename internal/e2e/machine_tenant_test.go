//go:build machines

package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// siteStack is the declared stack on app servers, where sites are, and stand-ins elsewhere.
func siteStack(t *testing.T) string {
	t.Helper()
	var light, whole server.Stack
	for into, file := range map[*server.Stack]string{&light: lightStack(t), &whole: declaredStack(t)} {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, into))
	}
	light[prego.RoleApp] = whole[prego.RoleApp]
	return writeStack(t, light)
}

// TestMachineServesATenant takes a tenant through its life on real systems: its site is
// made by the declared stack, serves its page, is saved and brought back, outlives a
// reboot, and at last nothing of it is left.
func TestMachineServesATenant(t *testing.T) {
	t.Parallel()
	require.DirExists(t, machineImages(), "make images builds what the stack pulls")
	vars := sharedVars()
	vars["PREGO_STACK_FILE"], vars["PREGO_SITE_TIMEOUT"], vars["PREGO_COMMAND_TIMEOUT"] = siteStack(t), "3m", "2m"
	vars["PREGO_SITE_STEP_TIMEOUT"], vars["PREGO_CONTAINER_TIMEOUT"] = "3m", "5m"
	c := machineCell(t, options{vars: vars})
	c.org("acme", "")
	c.exec(`UPDATE orgs SET tier = 'paid'`)
	var all []*machine
	for _, r := range []prego.Role{prego.RoleApp, prego.RoleDBShard, prego.RoleRedisPool} {
		all = append(all, c.machine(string(r), r, server.Spec{}))
	}
	for _, m := range all {
		m.awaitActive()
	}
	app := all[0]
	c.awaitSites(c.id("app"), 1)

	id := c.tenant("alpha-one", prego.PlanStarter, nil)
	tn := c.settledTenant(id, tenant.Active)
	site, database := deref(tn.Site), tn.Allocation.DatabaseName
	require.Equal(t, "alpha-one.sites.test", site)
	page := func() string {
		return app.run("curl --silent --show-error --fail --header 'Host: " + site + "' http://127.0.0.1:8080/")
	}
	// Debian 13 has Docker's client in a package of its own, which hosts don't get.
	mariadb := func(sql string) string {
		return app.run(`pid=$(grep --no-messages --files-with-matches --line-regexp mariadbd /proc/[0-9]*/comm | cut -d / -f 3)
			MYSQL_PWD="$(cat /etc/prego-secrets/mariadb-root)" nsenter --target "$pid" --mount mariadb --user=root --skip-column-names --execute "` + sql + `"`)
	}
	add := func(name string) {
		mariadb("INSERT INTO " + database + ".tabToDo (name) VALUES ('" + name + "')")
	}
	require.Contains(t, page(), site)
	require.Contains(t, page(), "rows: 0")

	add("one")
	require.Contains(t, page(), "rows: 1")
	of := "/v1/tenants/" + id
	var s api.Snapshot
	c.post(of+"/snapshots", nil, http.StatusAccepted, &s)
	require.Eventually(t, func() bool {
		c.send(http.MethodGet, of+"/snapshots/"+s.SnapshotId, nil, http.StatusOK, &s)
		require.NotEqual(t, api.JobStatus("failed"), s.Status, deref(s.Message))
		return s.Status == "succeeded"
	}, patience, 200*time.Millisecond)
	add("two")
	require.Contains(t, page(), "rows: 2")
	var j api.RestoreJob
	c.post(of+"/restores", map[string]any{"snapshot_id": s.SnapshotId}, http.StatusAccepted, &j)
	require.Eventually(t, func() bool {
		c.send(http.MethodGet, of+"/restores/"+j.JobId, nil, http.StatusOK, &j)
		require.NotEqual(t, api.JobStatus("failed"), j.Status, deref(j.Message))
		return j.Status == "succeeded"
	}, patience, 200*time.Millisecond)
	require.Contains(t, page(), "rows: 1", "as it was")

	// A reboot of the host brings the site back by itself; its containers keep no shutdown
	// waiting (prego-docker-stop.service).
	app.run("touch /run/before")
	app.power("reboot")
	require.Eventually(t, func() bool {
		_, err := app.try("! test -e /run/before && curl --silent --fail --header 'Host: " + site + "' http://127.0.0.1:8080/ | grep 'rows: 1'")
		return err == nil
	}, 3*time.Minute, time.Second, "the page comes back")
	require.NotContains(t, app.console(), "Waiting for process")
	app.awaitHeartbeat()

	c.ask(id, "cancel")
	for _, state := range []tenant.State{tenant.GracePeriod, tenant.Terminated} {
		c.settledTenant(id, state)
		c.expire(id)
	}
	c.settledTenant(id, tenant.DataPurged)
	require.Empty(t, app.run(`find / -xdev -path /proc -prune -o -name '*alpha-one*' -print; find /var/lib/docker/volumes -name '*alpha-one*'`))
	require.Empty(t, mariadb("SHOW DATABASES LIKE '"+database+"'"))
	require.Equal(t, "0", mariadb("SELECT COUNT(*) FROM mysql.user WHERE User = '"+database+"'"))
	for _, m := range all {
		m.gone()
	}
	require.Empty(t, c.sim.Ledger(true), "nothing is billed")
}
