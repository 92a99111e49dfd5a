package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/migrations"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// archivedDatabase is a separate cluster that archives its log.
type archivedDatabase struct {
	t             testing.TB
	pg            *devstack.Postgres
	dir           string
	base, archive string
	restores      int
}

func newArchivedDatabase(t testing.TB) *archivedDatabase {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "prego-archived-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := &archivedDatabase{t: t, dir: dir, base: filepath.Join(dir, "base"), archive: filepath.Join(dir, "archive")}
	require.NoError(t, os.Chmod(dir, 0o777)) // Postgres has a separate user
	require.NoError(t, os.Mkdir(a.archive, 0o755))
	require.NoError(t, os.Chmod(a.archive, 0o777))
	a.pg, err = devstack.StartPostgres(t.Context(), devstack.PostgresConfig{Dir: filepath.Join(dir, "data"), Settings: devstack.Archiving(a.archive)})
	require.NoError(t, err)
	t.Cleanup(func() { a.pg.Kill() })
	require.NoError(t, a.pg.EnsureDatabase(t.Context(), "prego"))
	require.NoError(t, migrations.Up(t.Context(), a.pg.URL("prego")))
	return a
}

// moment is the database's clock, which points in time refer to.
func (a *archivedDatabase) moment() (at string) {
	a.t.Helper()
	require.NoError(a.t, a.pg.Value(a.t.Context(), &at, "SELECT clock_timestamp()::text"))
	return at
}

// disaster kills the cluster and deletes its disk, except a log on another one.
func (a *archivedDatabase) disaster(keepLog bool) (log string) {
	a.t.Helper()
	a.pg.Kill()
	if keepLog {
		log = filepath.Join(a.dir, fmt.Sprintf("log-%d", a.restores))
		require.NoError(a.t, os.Rename(filepath.Join(a.pg.Dir, "pg_wal"), log))
	}
	require.NoError(a.t, os.RemoveAll(a.pg.Dir))
	return log
}

// restore brings the cluster back where it was, and returns how long that took.
func (a *archivedDatabase) restore(log, moment string) time.Duration {
	a.t.Helper()
	a.restores++
	began := time.Now()
	var err error
	a.pg, err = devstack.RestorePostgres(a.t.Context(), devstack.PostgresConfig{Dir: a.pg.Dir, Port: a.pg.Port, Settings: devstack.Archiving(a.archive)},
		devstack.Recovery{Base: a.base, Archive: a.archive, Log: log, Moment: moment})
	require.NoError(a.t, err)
	return time.Since(began)
}

// restoreCheck runs the command with a worker's settings, and returns its lines.
func (c *cell) restoreCheck() (lines []string, status int) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(bins, "prego"), "restore", "check")
	cmd.Env, cmd.Dir = c.environmentOf("worker"), c.dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(c.t, err)
	}
	c.t.Logf("prego restore check, status %d:\n%s", cmd.ProcessState.ExitCode(), out)
	require.NotEmpty(c.t, out, "%s", &errs)
	return strings.Split(strings.TrimSpace(string(out)), "\n"), cmd.ProcessState.ExitCode()
}

// says finds the only line about something.
func says(t testing.TB, lines []string, what string) string {
	t.Helper()
	var out []string
	for _, l := range lines {
		if strings.Contains(l, what+"  ") {
			out = append(out, l)
		}
	}
	require.Len(t, out, 1, "lines about %s in\n%s", what, strings.Join(lines, "\n"))
	return out[0]
}

// stopAllOfIt stops the control plane as the restore demands.
func (c *cell) stopAllOfIt() {
	c.t.Helper()
	c.stop(processNames...)
	c.pool.Reset()
}

func (c *cell) startAllOfIt() {
	c.t.Helper()
	c.start(processNames...)
}

// billedServer is the machine that the provider bills for a server, 0 for none.
func (c *cell) billedServer(id string) (provider int64) {
	c.t.Helper()
	for _, e := range c.billed("server") {
		if e.Name == "prego-"+c.env+"-"+c.id(id) {
			provider = e.ID
		}
	}
	return provider
}

// TestTheControlPlaneIsRestored follows docs/restore-control-plane.md: a base backup, an archived log, two
// disasters, and two restores. After the first, to the end of the log, nothing differs. The second is to a moment
// before servers and tenants were created, changed and deleted.
func TestTheControlPlaneIsRestored(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := newArchivedDatabase(t)
	vars := sharedVars()
	vars["PREGO_ORPHAN_AGE"] = "1s"
	c := newCell(t, options{processes: true, url: db.pg.URL("prego"), vars: vars})
	require.NoError(t, db.pg.BaseBackup(ctx, db.base))

	c.org("acme", "")
	c.limit("acme", "max_volumes", 5)
	app := c.sharedFleet(1)
	alpha, beta, kappa := c.tenant("alpha", prego.PlanStarter, nil), c.tenant("beta", prego.PlanStarter, nil), c.tenant("kappa", prego.PlanStarter, nil)
	c.todo(app, c.settledTenant(alpha, tenant.Active).Allocation.DatabaseName, "one", "kept")
	c.settledTenant(beta, tenant.Active)
	c.settledTenant(kappa, tenant.Active)
	c.awaitSites(app, 1)
	c.create("gone", prego.RoleNode, server.Spec{}) // after the tenants, which could be placed on it
	c.awaitStatus("gone", server.Active)

	// To the end of the log, whose last segments are on another disk.
	acknowledged := 0
	for n := range 40 {
		c.send(http.MethodPut, fmt.Sprintf("/v1/orgs/org-%d", n), map[string]string{"tier": "enterprise"}, http.StatusOK, nil)
		acknowledged++
	}
	log := db.disaster(true)
	c.stopAllOfIt()
	took := db.restore(log, "")
	lines, status := c.restoreCheck()
	require.Equal(t, []any{0, []string{"0 differences, 0 of which destroy something (!)"}}, []any{status, lines})
	c.startAllOfIt()
	kept := c.number(`SELECT count(*) FROM orgs WHERE org_id LIKE 'org-%'`)
	t.Logf("restore to the end of the log: %.1f s, %d acknowledged writes, %d lost", took.Seconds(), acknowledged, acknowledged-kept)
	require.Equal(t, acknowledged, kept)
	c.reconcile()
	r := c.findings()
	require.Zero(t, r.Restarted+r.Missing+r.Orphans+r.Destroyed+r.Settled, "%+v", r)
	c.counted()
	c.settled()

	// To a moment at which a server boots whose agent can't reach the gateway.
	c.stop("agentgw")
	c.create("booting", prego.RoleNode, server.Spec{})
	c.await("booting", "created", func(s api.Server) bool { return deref(s.Provider.ProviderServerId) != "" })
	moment := db.moment()
	c.start("agentgw")
	c.awaitStatus("booting", server.Active)
	first := c.billedServer("booting")
	status, body := c.request(http.MethodDelete, "/v1/servers/"+c.id("gone"), nil)
	require.Equal(t, http.StatusAccepted, status, "%s", body)
	c.awaitStatus("gone", server.Terminated)
	c.limit("acme", "max_volumes", 9)
	c.post("/v1/servers/"+c.id("booting")+"/cordon", nil, http.StatusOK, nil) // gamma comes to the server that stays
	gamma := c.tenant("gamma", prego.PlanStarter, nil)
	of := c.settledTenant(gamma, tenant.Active).Allocation
	c.todo(of.AppServerId, of.DatabaseName, "one", "nobody's")
	c.create("late", prego.RoleNode, server.Spec{})
	c.awaitStatus("late", server.Active)
	c.ask(kappa, "suspend")
	c.ask(beta, "cancel")
	c.settledTenant(kappa, tenant.Suspended)
	for _, state := range []tenant.State{tenant.GracePeriod, tenant.Terminated} {
		c.settledTenant(beta, state)
		c.expire(beta)
	}
	c.settledTenant(beta, tenant.DataPurged)
	c.kill("worker")
	c.create("never", prego.RoleNode, server.Spec{})
	lost := c.number(`SELECT count(*) FROM server_events WHERE at > $1::timestamptz`, moment)
	require.NoError(t, db.pg.Archived(ctx))
	db.disaster(false)
	c.stopAllOfIt()
	took = db.restore("", moment)
	t.Logf("restore to a moment: %.1f s, %d events of servers lost", took.Seconds(), lost)

	lines, status = c.restoreCheck()
	require.Zero(t, status, "nothing is destroyed")
	for what, then := range map[string]string{
		"server prego-" + c.env + "-" + c.id("late"): "is kept: it is protected from deletion",
		"server " + c.id("booting"):                  "keeps its machine, which is protected from deletion",
		"run server-provision/" + c.id("never"):      "ends when it reads the row",
		"site beta.sites.test":                       "tenant " + beta + " is active in the database, but server " + app + " does not have its site",
		"site gamma.sites.test":                      "is on server " + of.AppServerId + ", but belongs to no tenant in the database",
	} {
		require.Contains(t, says(t, lines, what), then)
	}
	require.Contains(t, says(t, lines, "server "+c.id("gone")), "fails with server_missing") // and nothing is requested of it
	c.vars["PREGO_ORPHAN_MAX_PER_RUN"] = "0"
	lines, _ = c.restoreCheck()
	require.Contains(t, says(t, lines, "server prego-"+c.env+"-"+c.id("late")), "kept while PREGO_ORPHAN_MAX_PER_RUN is 0")

	c.startAllOfIt()
	c.reconcile()
	c.reconcile()
	require.Zero(t, c.findings().Destroyed)
	// The row of a server that boots gets a run only after it was idle for a while. The run begins another attempt, and
	// holds: the previous attempt's machine has no owner then.
	sighted := strings.Split(c.text(`SELECT string_agg(concat_ws(' ', kind, name), ',') FROM orphan_sightings`), ",")
	unowned := "server prego-" + c.env + "-"
	require.Contains(t, sighted, unowned+c.id("late"))
	require.Subset(t, []string{unowned + c.id("late"), unowned + c.id("booting")}, sighted)
	require.NotZero(t, c.billedServer("late"), "kept")
	c.awaitFailed("gone", prego.ReasonServerMissing)
	require.Equal(t, tenant.Active, c.getTenant(beta).State, "without a visible effect")
	status, _ = c.request(http.MethodGet, "/v1/tenants/"+gamma, nil)
	require.Equal(t, http.StatusNotFound, status)
	require.Equal(t, 5, c.number(`SELECT limit_value::int FROM org_quotas WHERE org_id = 'acme' AND dimension = 'max_volumes'`))
	web := c.serve(app)
	answers := func(slug string) int {
		status, _, _ := web.ask(slug+".sites.test", "/", "")
		return status
	}
	require.Equal(t, []int{http.StatusOK, http.StatusOK, http.StatusServiceUnavailable}, []int{answers("alpha"), answers("gamma"), answers("kappa")})

	// The name of a lost tenant is not given out, with its data or without.
	again := c.tenant("gamma", prego.PlanStarter, nil)
	failed := c.failedTenant(again, prego.ReasonFailedSite)
	require.Contains(t, deref(failed.StatusMessage), "site_not_owned")
	// The rows of pool sites that were promoted since are cleared away, and their databases stay.
	eventually(t, func() bool {
		return c.number(`SELECT count(*) FROM site_pool WHERE state = 'failed' AND dropped_at IS NOT NULL`) > 0 && c.number(`SELECT count(*) FROM site_pool WHERE state = 'failed' AND dropped_at IS NULL`) == 0
	}, patience, 100*time.Millisecond)
	require.Equal(t, http.StatusOK, answers("gamma"))
	require.Equal(t, http.StatusOK, answers("alpha"))
	c.settledTenant(c.tenant("delta", prego.PlanStarter, nil), tenant.Active)

	// The document's instructions for tenants changed since.
	c.ask(kappa, "suspend")
	c.settledTenant(kappa, tenant.Suspended)
	c.ask(kappa, "resume")
	c.settledTenant(kappa, tenant.Active)
	require.Equal(t, http.StatusOK, answers("kappa"))

	// What was in use stays, until the operator who looked at it lifts its protection.
	c.reconcile()
	require.Equal(t, first, c.billedServer("booting"))
	c.unprotect(strconv.FormatInt(first, 10))
	began := time.Now()
	for c.get("booting").Status != "active" || c.billedServer("booting") == first {
		require.Less(t, time.Since(began), patience)
		c.reconcile()
	}
	c.counted()

	// Without the setting, resources without an owner go.
	c.stop("worker")
	delete(c.vars, "PREGO_ORPHAN_MAX_PER_RUN")
	c.start("worker")
	c.reconcile()
	c.reconcile()
	late := c.billedServer("late")
	require.NotZero(t, late, "protected")
	c.unprotect(strconv.FormatInt(late, 10))
	c.reconcile()
	require.Zero(t, c.billedServer("late"))
	require.Len(t, c.billed("server"), 4, "app, db, redis and booting")

	// What the missing server had beside itself, its addresses, is looked for when its row is deleted.
	status, _ = c.request(http.MethodDelete, "/v1/servers/"+c.id("gone"), nil)
	require.Equal(t, http.StatusAccepted, status)
	c.awaitStatus("gone", server.Terminated)
	c.settled()
}
