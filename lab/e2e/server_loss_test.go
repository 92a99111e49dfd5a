package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// todo puts a row into a tenant's site.
func (c *cell) todo(app, database, name, text string) {
	c.t.Helper()
	_, err := c.hostDB(app, database).ExecContext(c.t.Context(), "REPLACE INTO `"+database+"`.tabToDo (name, description) VALUES (?, ?)", name, text)
	require.NoError(c.t, err)
}

// todos are the rows of a tenant's site, in the order of their names.
func (c *cell) todos(app, database string) []string {
	c.t.Helper()
	rows, err := c.hostDB(app, database).QueryContext(c.t.Context(), "SELECT description FROM `"+database+"`.tabToDo ORDER BY name")
	require.NoError(c.t, err)
	defer func() { require.NoError(c.t, rows.Close()) }()
	var out []string
	for rows.Next() {
		var text string
		require.NoError(c.t, rows.Scan(&text))
		out = append(out, text)
	}
	require.NoError(c.t, rows.Err())
	return out
}

func (c *cell) backedUp(id string) api.Backup {
	c.t.Helper()
	of := "/v1/tenants/" + id
	return c.backupState(of, c.backup(of), tenant.BackupStored)
}

// backAgain waits until a tenant whose server was lost is in a state again.
func (c *cell) backAgain(id string, state tenant.State) api.Tenant {
	c.t.Helper()
	return c.awaitTenant(id, "back", func(tn api.Tenant) bool {
		require.NotEqual(c.t, "failed_restore", deref(tn.StatusReason), deref(tn.StatusMessage))
		return tn.State == state && tn.ConvergedState == string(state) && tn.Loss != nil && tn.Loss.RestoredAt != nil
	})
}

// TestTenantsOfALostServerComeBack: a host is destroyed without warning. Its tenants are back elsewhere, from the
// storage, and state their losses; a suspended one is suspended again, one without a backup reports that, and a
// terminated one has its loss on record.
func TestTenantsOfALostServerComeBack(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	c := newCell(t, options{vars: backupVars(s, nil)})
	c.org("acme", "")
	app := c.sharedFleet(0)
	ids := map[string]string{}
	for _, slug := range []string{"alpha", "beta", "gamma", "delta"} {
		ids[slug] = c.tenant(slug, prego.PlanStarter, nil)
		tn := c.settledTenant(ids[slug], tenant.Active)
		require.Equal(t, app, tn.Allocation.AppServerId)
		c.todo(app, tn.Allocation.DatabaseName, "one", "before the backup of "+slug)
		c.noise(app, slug+".sites.test", "noise", 1<<20)
	}
	first := c.get("app")
	for _, slug := range []string{"alpha", "beta"} {
		b := c.backedUp(ids[slug])
		c.todo(app, c.settledTenant(ids[slug], tenant.Active).Allocation.DatabaseName, "two", "after it")
		_, err := c.pool.Exec(t.Context(), `UPDATE backups SET taken_at = taken_at - interval '90 minutes' WHERE backup_id = $1`, b.BackupId)
		require.NoError(t, err)
	}
	c.keepPassword(app, "alpha.sites.test", "open sesame")
	alpha := c.backedUp(ids["alpha"])
	c.ask(ids["beta"], "suspend")
	c.settledTenant(ids["beta"], tenant.Suspended)
	ended := c.settledTenant(ids["delta"], tenant.Active).Allocation.DatabaseName
	c.ask(ids["delta"], "cancel")
	c.settledTenant(ids["delta"], tenant.GracePeriod)
	c.ask(ids["delta"], "terminate")
	c.settledTenant(ids["delta"], tenant.Terminated)

	c.create("app2", prego.RoleApp, server.Spec{})
	c.awaitStatus("app2", server.Active)
	died := time.Now()
	c.deleteAtProvider(deref(first.Provider.ProviderServerId))
	c.reconcile()
	c.awaitStatus("app", server.Failed)

	back := c.backAgain(ids["alpha"], tenant.Active)
	took := time.Since(died)
	beta := c.backAgain(ids["beta"], tenant.Suspended)
	for slug, tn := range map[string]api.Tenant{"alpha": back, "beta": beta} {
		require.Equal(t, c.id("app2"), tn.Allocation.AppServerId)
		require.Equal(t, []any{ids[slug], slug + ".sites.test"}, []any{tn.TenantId, deref(tn.Site)})
		require.NotNil(t, tn.Loss.RestoredAt)
		require.Contains(t, tenantSteps(tn), "restored")
		require.FileExists(t, filepath.Join(c.rootOf(c.id("app2")), wire.BenchDir, "sites", slug+".sites.test", "private/files/noise"))
	}
	t.Logf("tenant back after %s, %d minutes lost; the other: %d minutes", took.Round(100*time.Millisecond), *back.Loss.LostMinutes, *beta.Loss.LostMinutes)
	require.LessOrEqual(t, *back.Loss.LostMinutes, 1)
	require.GreaterOrEqual(t, *beta.Loss.LostMinutes, 90)
	require.Equal(t, alpha.BackupId, deref(back.Loss.BackupId))
	require.True(t, back.LastRestorable.Verified)
	require.Equal(t, []string{"before the backup of alpha", "after it"}, c.todos(c.id("app2"), back.Allocation.DatabaseName), "the newest backup")
	require.Equal(t, []string{"before the backup of beta"}, c.todos(c.id("app2"), beta.Allocation.DatabaseName))
	require.Equal(t, "open sesame", c.keptPassword(c.id("app2"), "alpha.sites.test"))
	require.Empty(t, c.siteConfig(c.id("app2"), "alpha.sites.test", "mute_emails"))
	require.Equal(t, "off", c.maintenance(c.id("app2"), "alpha.sites.test"))
	require.Equal(t, "on", c.maintenance(c.id("app2"), "beta.sites.test"))

	gamma := c.failedTenant(ids["gamma"], prego.ReasonServerLost)
	require.Contains(t, deref(gamma.StatusMessage), "there is no backup")
	require.Nil(t, gamma.Allocation)
	status, body := c.request(http.MethodPost, "/v1/tenants/"+ids["gamma"]+"/retry", nil)
	require.Equal(t, http.StatusNotFound, status, "%s", body)
	require.Contains(t, string(body), "backup_not_found")
	require.Equal(t, 4, c.number(`SELECT count(*) FROM org_events WHERE type = 'tenant.server_lost' AND org_id = 'acme'`))
	c.counted()

	// A terminated one stays so, with its last backup, and what survived stays until it is purged.
	delta := c.settledTenant(ids["delta"], tenant.Terminated)
	require.Equal(t, "server_lost", deref(delta.StatusReason))
	require.Contains(t, deref(delta.StatusMessage), "nothing is lost")
	require.Equal(t, tenant.Terminated, delta.Loss.State)
	require.Nil(t, delta.Allocation)
	require.NotEmpty(t, c.todos(c.id("app2"), ended))

	// The site keeps serving: the next backup is of the new place.
	again := c.backedUp(ids["alpha"])
	require.Equal(t, c.id("app2"), again.ServerId)
	c.ask(ids["beta"], "resume")
	c.settledTenant(ids["beta"], tenant.Active)
	require.Equal(t, "off", c.maintenance(c.id("app2"), "beta.sites.test"))

	// Terminated and purged like any other, with what the lost place left on its shard.
	c.ask(ids["gamma"], "terminate")
	for _, slug := range []string{"gamma", "delta"} {
		c.settledTenant(ids[slug], tenant.Terminated)
		c.expire(ids[slug])
		c.settledTenant(ids[slug], tenant.DataPurged)
	}
	require.Zero(t, c.number(`SELECT count(*) FROM tenant_losses WHERE cleared_at IS NULL`))
}

// TestAServerIsDeclaredLost: a hanging server, on an operator's word, without automatic restores; then its tenant by
// one command, while every participant is killed at each step. It has the rows of its backup, once, is in one place,
// and accepts writes.
func TestAServerIsDeclaredLost(t *testing.T) {
	t.Parallel()
	all := rounds(t, 3, []string{
		"site/start", "site/made", "stored-restore/start", "stored-restore/downloaded", "stored-restore/opened", "stored-restore/adopted", "stored-restore/restored",
		"site/restored", "losses/cleared", "site/configured", "site/opened", "tenant_activate/start", "tenant_activate/done",
	}, everybody)
	m, vars, url := newMortals(t, all)
	m.s3 = s3test.Start(t)
	vars["PREGO_RESTORE_LOST"] = "none"
	m.cell = newCell(t, options{url: url, vars: backupVars(m.s3, vars)})
	m.org("acme", "")
	app := m.sharedFleet(0)
	id := m.tenant("alpha", prego.PlanStarter, nil)
	m.settledTenant(id, tenant.Active)
	for i, round := range all {
		name := fmt.Sprintf("app%d", i+2)
		w := m.typist(app, id, "alpha.sites.test")
		w.more(5)
		before := w.mark()
		m.backedUp(id)
		after := w.mark()
		w.more(3)
		m.create(name, prego.RoleApp, server.Spec{})
		m.awaitStatus(name, server.Active)
		asked := w.mark()
		confirmed := filepath.Join(m.rootOf(app), wire.ConfirmedPath)
		require.NotZero(t, m.agentPID(app))
		m.post("/v1/servers/"+app+"/lost", map[string]string{"reason": "hangs"}, http.StatusAccepted, nil)
		m.failedTenant(id, prego.ReasonServerLost)
		// Its disk has the newest data: it is kept, without power, until the tenant is restored.
		lost := app
		billed := func() int64 { return m.billedServer(strings.TrimSuffix(lost, "-"+m.env)) }
		machine := billed()
		require.NotZero(t, machine)
		eventually(t, func() bool { return m.agentPID(lost) == 0 }, patience, 50*time.Millisecond)
		// Its power comes back, whoever did that: with its first heartbeat it learns that it runs no jobs. The
		// permission of its former boot, which a real host has forgotten, is withdrawn, as it may have been already.
		require.NoError(t, os.WriteFile(confirmed, nil, 0o644))
		eventually(t, func() bool {
			if m.agentPID(lost) == 0 {
				m.provider(http.MethodPost, fmt.Sprintf("/servers/%d/actions/poweron", machine), nil)
			}
			_, err := os.Stat(confirmed)
			return os.IsNotExist(err)
		}, patience, 200*time.Millisecond)
		require.Equal(t, machine, billed())
		var job api.RestoreJob
		m.play(round, func() {
			m.post("/v1/tenants/"+id+"/restores", map[string]any{"elsewhere": true}, http.StatusAccepted, &job)
		})
		require.Equal(t, tenant.ProvisionWorkflowID(prego.TenantID(id)), job.WorkflowId)
		tn := m.settledTenant(id, tenant.Active)
		database := tn.Allocation.DatabaseName
		app = m.id(name)
		require.Equal(t, app, tn.Allocation.AppServerId)
		m.send(http.MethodGet, "/v1/tenants/"+id+"/restores/"+job.JobId, nil, http.StatusOK, &job)
		require.Equal(t, api.JobStatus("succeeded"), job.Status)
		eventually(t, func() bool {
			return m.number(`SELECT count(*) FROM servers WHERE server_id = $1 AND status = 'terminated'`, lost) == 1
		}, patience, 50*time.Millisecond)
		w.rewound(m.cell, app, database, before, after, asked, w.mark())
		require.Equal(t, "off", m.maintenance(app, "alpha.sites.test"))
		again := m.typist(app, id, "alpha.sites.test")
		again.more(3)
		again.ends(m.cell, app, database)
		require.NoError(t, again.forget(m.cell, app, database))
		require.Equal(t, i+1, m.number(`SELECT count(*) FROM tenant_losses`))
		m.nothingLeft()
		m.counted()
	}
	m.settled()
}

// TestASiteIsCopied: into a separate tenant, from a backup, while the other serves. No mail leaves the copy before it
// is unmuted.
func TestASiteIsCopied(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	c := newCell(t, options{vars: backupVars(s, nil)})
	c.org("acme", "")
	app := c.sharedFleet(0)
	id := c.tenant("alpha", prego.PlanStarter, nil)
	of := c.settledTenant(id, tenant.Active).Allocation.DatabaseName
	c.todo(app, of, "one", "in the backup")
	status, body := c.request(http.MethodPost, "/v1/tenants/"+id+"/clones", map[string]string{"slug": "copy"})
	require.Equal(t, http.StatusNotFound, status, "%s", body)
	c.keepPassword(app, "alpha.sites.test", "open sesame")
	b := c.backedUp(id)
	c.todo(app, of, "two", "later")
	c.keepPassword(app, "alpha.sites.test", "later")
	var a api.TenantAccepted
	c.post("/v1/tenants/"+id+"/clones", map[string]string{"slug": "copy"}, http.StatusAccepted, &a)
	tn := c.settledTenant(a.TenantId, tenant.Active)
	require.Equal(t, []any{"acme", "copy.sites.test", true}, []any{tn.OrgId, deref(tn.Site), *tn.Muted})
	require.Nil(t, tn.RestoreFrom)
	require.Nil(t, tn.Loss)
	require.Equal(t, []string{"in the backup"}, c.todos(app, tn.Allocation.DatabaseName))
	require.Equal(t, []string{"in the backup", "later"}, c.todos(app, of))
	require.Equal(t, "open sesame", c.keptPassword(app, "copy.sites.test"))
	require.Equal(t, "later", c.keptPassword(app, "alpha.sites.test"))
	for _, key := range []string{"mute_emails", "pause_scheduler"} {
		require.Equal(t, "1", c.siteConfig(app, "copy.sites.test", key))
		require.Empty(t, c.siteConfig(app, "alpha.sites.test", key))
	}
	require.Equal(t, a.TenantId, c.siteConfig(app, "copy.sites.test", "prego_tenant_id"))
	c.ask(a.TenantId, "suspend")
	c.settledTenant(a.TenantId, tenant.Suspended)
	c.ask(a.TenantId, "resume")
	c.settledTenant(a.TenantId, tenant.Active)
	require.Equal(t, "1", c.siteConfig(app, "copy.sites.test", "mute_emails"), "until it is unmuted")
	c.post("/v1/tenants/"+a.TenantId+"/unmute", nil, http.StatusOK, nil)
	require.Nil(t, c.settledTenant(a.TenantId, tenant.Active).Muted)
	for _, key := range []string{"mute_emails", "pause_scheduler"} {
		require.Empty(t, c.siteConfig(app, "copy.sites.test", key))
	}

	// A faulty backup makes no tenant: it fails, reports this, and leaves nothing.
	change(t, s, b)
	c.post("/v1/tenants/"+id+"/clones", map[string]string{"slug": "bad"}, http.StatusAccepted, &a)
	bad := c.failedTenant(a.TenantId, prego.ReasonFailedRestore)
	require.Contains(t, deref(bad.StatusMessage), "digest_mismatch")
	require.Nil(t, bad.Allocation)
	require.NoDirExists(t, filepath.Join(c.rootOf(app), wire.BenchDir, "sites/bad.sites.test"))
	var seen api.Backup
	c.send(http.MethodGet, "/v1/tenants/"+id+"/backups/"+b.BackupId, nil, http.StatusOK, &seen)
	require.Contains(t, deref(seen.VerifyMessage), "digest_mismatch")
	c.counted()
}

// change makes a bit of a backup's object another.
func change(t *testing.T, s *s3test.Server, b api.Backup) {
	t.Helper()
	name := s.File(deref(b.Object))
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	content[len(content)/2] ^= 1
	require.NoError(t, os.WriteFile(name, content, 0o600))
}

// TestTenantsComeBackFromTheBucket: the database is lost with everything that it knew. What is left are the keys and the
// bucket: an imported backup, of a control plane that this one knows nothing of, is restored on a new host, and what
// the site had encrypted can be read there.
func TestTenantsComeBackFromTheBucket(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: backupVars(s3test.Start(t), nil)})
	c.org("acme", "")
	app := c.sharedFleet(0)
	id := c.tenant("alpha", prego.PlanStarter, nil)
	c.todo(app, c.settledTenant(id, tenant.Active).Allocation.DatabaseName, "one", "in the backup")
	c.keepPassword(app, "alpha.sites.test", "open sesame")
	c.backedUp(id)

	c.stopAllOfIt()
	c.pool.Close()
	c.vars["DATABASE_URL"] = pgtest.URL(t)
	pool, err := pgxpool.New(t.Context(), c.vars["DATABASE_URL"])
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	c.pool = pool
	cmd := exec.CommandContext(t.Context(), filepath.Join(bins, "prego"), "import-backups", "--apply")
	cmd.Env, cmd.Dir = c.environmentOf("worker"), c.dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, c.restoreApply("--as-is", "--yes"), "revoked tokens and grants are accepted again")
	c.startAllOfIt()
	c.operator = c.issue("alice", "operator") // no backup has access
	roles := map[string]prego.Role{"app2": prego.RoleApp, "db2": prego.RoleDBShard, "redis2": prego.RoleRedisPool}
	for name, role := range roles {
		c.create(name, role, server.Spec{})
	}
	for name := range roles {
		c.awaitStatus(name, server.Active)
	}
	c.post("/v1/tenants/"+id+"/restores", map[string]any{"elsewhere": true}, http.StatusAccepted, nil)
	tn := c.settledTenant(id, tenant.Active)
	require.Equal(t, c.id("app2"), tn.Allocation.AppServerId)
	require.Equal(t, []string{"in the backup"}, c.todos(c.id("app2"), tn.Allocation.DatabaseName))
	require.Equal(t, "open sesame", c.keptPassword(c.id("app2"), "alpha.sites.test"))
}
