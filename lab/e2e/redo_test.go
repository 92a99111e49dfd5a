package e2e

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// restoreApply runs the command with a worker's settings.
func (c *cell) restoreApply(args ...string) string {
	c.t.Helper()
	args = append([]string{"restore", "apply"}, args...)
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(bins, "prego"), args...)
	cmd.Env, cmd.Dir = c.environmentOf("worker"), c.dir
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "%s", out)
	c.t.Logf("prego restore apply:\n%s", out)
	return string(out)
}

// TestARestoredControlPlaneGoesOn: its database is restored to a moment before tenants were made, moved, suspended and
// purged, a name was given again, and servers came and went. Visitors notice nothing, nothing is changed until the
// database is completed, and then all is as it was.
func TestARestoredControlPlaneGoesOn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := newArchivedDatabase(t)
	vars := backupVars(s3test.Start(t), map[string]string{
		"PREGO_PACE": "0.01", "PREGO_MOVE_GRACE": "1s", "PREGO_ORPHAN_AGE": "1s",
	})
	p := newPublicOn(t, vars, db.pg.URL("prego"))
	p.org("acme", "")
	roles := map[string]prego.Role{
		"edge": prego.RoleEdge, "app": prego.RoleApp, "db": prego.RoleDBShard, "redis": prego.RoleRedisPool,
		"gone": prego.RoleApp,
	}
	for name, role := range roles {
		p.create(name, role, server.Spec{})
	}
	for name := range roles {
		p.awaitStatus(name, server.Active)
	}
	p.send(http.MethodPost, "/v1/servers/"+p.id("gone")+"/cordon", nil, http.StatusOK, nil)
	ids := map[string]string{}
	made := func(slug string) {
		ids[slug] = p.tenant(slug, prego.PlanStarter, nil)
		p.settledTenant(ids[slug], tenant.Active)
	}
	for _, slug := range []string{"alpha", "beta", "kappa"} {
		made(slug)
	}
	require.NoError(t, db.pg.BaseBackup(ctx, db.base))
	moment := db.moment()

	// What the restored database will not know.
	p.create("app2", prego.RoleApp, server.Spec{})
	p.awaitStatus("app2", server.Active)
	var m api.Move
	p.post("/v1/tenants/"+ids["alpha"]+"/moves", map[string]any{"to_server_id": p.id("app2")}, http.StatusAccepted, &m)
	p.moved("/v1/tenants/"+ids["alpha"], m, tenant.MoveDone)
	p.ask(ids["kappa"], "suspend")
	p.settledTenant(ids["kappa"], tenant.Suspended)
	p.ask(ids["beta"], "cancel")
	for _, state := range []tenant.State{tenant.GracePeriod, tenant.Terminated} {
		p.settledTenant(ids["beta"], state)
		p.expire(ids["beta"])
	}
	purged := ids["beta"]
	p.settledTenant(purged, tenant.DataPurged)
	made("beta") // the name is given again
	made("gamma")
	status, body := p.request(http.MethodDelete, "/v1/servers/"+p.id("gone"), nil)
	require.Equal(t, http.StatusAccepted, status, "%s", body)
	p.awaitStatus("gone", server.Terminated)
	p.limit("acme", "max_volumes", 9)
	accepted := func() bool {
		_, _, status := p.cli(p.viewer, "whoami")
		return status == 0
	}
	require.True(t, accepted())
	bobs := p.text(`SELECT credential_id FROM credentials c JOIN principals p USING (principal_id) WHERE p.name = 'bob'`)
	p.send(http.MethodDelete, "/v1/tokens/"+bobs, nil, http.StatusNoContent, nil)
	require.False(t, accepted())

	visitor := p.visitor()
	page := func(slug string) string { return "https://" + slug + ".sites." + ourZone }
	title := func(slug string) string { return "<h1>" + slug + ".sites." + ourZone + "</h1>" }
	serving := []string{"alpha", "beta", "gamma"}
	for _, slug := range serving {
		p.opens(visitor, page(slug), title(slug))
	}
	placed := func() string {
		return p.text(`SELECT string_agg(concat_ws(' ', t.tenant_id, t.slug, t.state, a.app_server_id, a.db_shard_id, t.site),
				E'\n' ORDER BY t.tenant_id)
			FROM tenants t LEFT JOIN tenant_allocations a ON a.tenant_id = t.tenant_id AND a.released_at IS NULL`)
	}
	before, machines := placed(), len(p.billed("server"))
	eventually(t, func() bool {
		return p.number(`SELECT (SELECT count(*) FROM redo_due)
			+ (SELECT count(*) FROM redo WHERE unsaved IS NOT NULL)`) == 0
	}, patience, 50*time.Millisecond)
	require.NoError(t, db.pg.Archived(ctx))
	db.disaster(false)
	p.stopAllOfIt()
	t.Logf("restored in %.1f s", db.restore("", moment).Seconds())
	require.NotEqual(t, before, placed())

	// Nothing is changed, and what is read says why.
	p.start("api")
	p.startUnready("agentgw")
	p.startUnready("worker")
	eventually(t, func() bool {
		return p.number(`SELECT count(*) FROM redo WHERE recovering_since IS NOT NULL`) == 1
	}, patience, 50*time.Millisecond)
	eventually(t, func() bool {
		status, body = p.request(http.MethodPost, "/v1/servers/"+p.id("app")+"/cordon", nil)
		return status == http.StatusServiceUnavailable && strings.Contains(string(body), "prego restore apply")
	}, patience, 50*time.Millisecond)
	require.Equal(t, tenant.Active, p.getTenant(ids["kappa"]).State, "as it was then")
	for _, slug := range serving {
		p.shows(visitor, page(slug), title(slug), "while nothing is changed")
	}
	lines, status := p.restoreCheck()
	require.Equal(t, 1, status)
	said := strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
	for _, want := range []string{
		"tenants gamma is added: state active", "tenants kappa state active → suspended",
		"tenants beta state active → data_purged",
		"app_server_id " + p.id("app") + " → " + p.id("app2"), "servers " + p.id("app2") + " is added: status active",
		"servers " + p.id("gone") + " status active → terminated",
	} {
		require.Contains(t, said, want)
	}

	require.True(t, accepted(), "as docs/restore-control-plane.md has it")
	p.restoreApply("--yes")
	require.False(t, accepted(), "a revocation outlives the database")
	for _, slug := range serving {
		p.shows(visitor, page(slug), title(slug), "after the database was completed")
	}
	require.Equal(t, before, placed())
	eventually(t, func() bool { // all continue by themselves
		status, body = p.request(http.MethodPost, "/internal/reconcile", nil)
		return status == http.StatusAccepted
	}, patience, 50*time.Millisecond, "%s", later(func() string { return string(body) }))
	p.reconcile()
	p.reconcile()
	r := p.findings()
	require.Zero(t, r.Missing+r.Orphans+r.Destroyed, "%+v", r)
	require.Equal(t, before, placed())
	require.Len(t, p.billed("server"), machines)
	p.counted()
	for _, slug := range serving {
		p.shows(visitor, page(slug), title(slug), "while the control plane works")
	}
	answer, _, err := visit(visitor, page("kappa"))
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, answer, "suspended")

	// A control plane that still works with the former database reaches no host.
	list := func() (said string, status int) {
		out, errs, status := p.cli(p.operator, "exec", p.id("app"), "bench", "--", "list-sites")
		return out + errs, status
	}
	said, status = list()
	require.Zero(t, status, said)
	current := p.number(`SELECT epoch FROM redo`)
	p.exec(`UPDATE redo SET epoch = 0`)
	eventually(t, func() bool {
		said, status = list()
		return status != 0 && strings.Contains(said, "was replaced by a restored one")
	}, patience, 50*time.Millisecond, "%s", later(func() string { return said }))
	p.exec(fmt.Sprintf(`UPDATE redo SET epoch = %d`, current))

	// What comes afterwards works, on what was adopted, too.
	p.ask(ids["kappa"], "resume")
	p.settledTenant(ids["kappa"], tenant.Active)
	made("delta")
	b := p.backup("/v1/tenants/" + ids["alpha"])
	p.backupState("/v1/tenants/"+ids["alpha"], b, tenant.BackupStored)
	p.opens(visitor, page("delta"), title("delta"))
}
