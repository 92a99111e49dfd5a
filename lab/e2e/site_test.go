package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/tenant"
)

// rootOf is the root directory of a server's simulated host.
func (c *cell) rootOf(server string) string {
	c.t.Helper()
	for _, h := range c.sim.Hosts() {
		if h.Name == "prego-"+c.env+"-"+server {
			return h.Root
		}
	}
	c.t.Fatalf("no host of server %s", server)
	return ""
}

func (c *cell) readJSON(file string) (out map[string]any) {
	c.t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(c.t, err)
	require.NoError(c.t, json.Unmarshal(b, &out))
	return out
}

// siteConfig is a key of a site's own configuration, "" when it is not there.
func (c *cell) siteConfig(server, site, key string) string {
	c.t.Helper()
	v, ok := c.readJSON(filepath.Join(c.rootOf(server), wire.BenchDir, "sites", site, "site_config.json"))[key]
	if !ok {
		return ""
	}
	return fmt.Sprint(v)
}

// keepPassword stores a password of a document in a site, as Frappe does: encrypted with the site's key, which exists
// from the first of them on.
func (c *cell) keepPassword(server, site, password string) {
	c.t.Helper()
	c.execute(server, site, "frappe.utils.password.set_encrypted_password", "['User','Guest','"+password+"','api_secret']")
}

// keptPassword decrypts that password where the site is now.
func (c *cell) keptPassword(server, site string) (password string) {
	c.t.Helper()
	out := c.execute(server, site, "frappe.utils.password.get_decrypted_password", "['User','Guest','api_secret']")
	require.NoError(c.t, json.Unmarshal(out, &password), "%s", out)
	return password
}

func (c *cell) execute(server, site, function, args string) []byte {
	c.t.Helper()
	root := c.rootOf(server)
	bench := filepath.Join(root, wire.BenchBinary)
	cmd := exec.CommandContext(c.t.Context(), bench, "--site", site, "execute", function, "--args", args)
	cmd.Dir = filepath.Join(root, wire.BenchDir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(c.t, err, "%s", &errs)
	return out
}

// maintenance is whether a site is in maintenance, according to its configuration.
func (c *cell) maintenance(server, site string) string {
	c.t.Helper()
	if v := c.siteConfig(server, site, "maintenance_mode"); v == "1" || v == "true" {
		return "on"
	}
	return "off"
}

// databaseServer is the server of a site's database: the app server itself, or a shard.
func (c *cell) databaseServer(app, database string) (server string) {
	c.t.Helper()
	c.query(&server, `SELECT COALESCE((SELECT d.server_id FROM tenant_allocations a JOIN db_shards d ON d.shard_id = a.db_shard_id
		WHERE a.database_name = $2 AND a.on_shard LIMIT 1),
		(SELECT d.server_id FROM site_pool p JOIN db_shards d ON d.shard_id = p.db_shard_id WHERE p.database_name = $2 AND p.on_shard LIMIT 1), $1)`, app, database)
	return server
}

// hostDB is the MariaDB that a database of an app server's sites is in, as its root.
func (c *cell) hostDB(app, database string) *sql.DB {
	c.t.Helper()
	server := c.databaseServer(app, database)
	root := c.rootOf(server)
	if server != app {
		password, err := os.ReadFile(filepath.Join(root, wire.SecretsDir, "mariadb-root"))
		require.NoError(c.t, err)
		return c.openDB("root", strings.TrimSpace(string(password)), filepath.Join(root, "run/prego/mysqld/mysqld.sock"))
	}
	var services wire.Services
	b, err := os.ReadFile(filepath.Join(root, wire.ServicesPath))
	require.NoError(c.t, err)
	require.NoError(c.t, json.Unmarshal(b, &services))
	return c.openDB(services.Bench.User, services.Bench.Password, fmt.Sprint(c.readJSON(filepath.Join(root, wire.BenchDir, "sites/common_site_config.json"))["db_socket"]))
}

func (c *cell) openDB(user, password, socket string) *sql.DB {
	c.t.Helper()
	cfg := mysql.NewConfig()
	// Paths of sockets are short (unix(7)), a test's directories are not.
	dir, err := os.Open(filepath.Dir(socket))
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = dir.Close() })
	cfg.Net, cfg.User, cfg.Passwd = "unix", user, password
	cfg.Addr = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(socket))
	connector, err := mysql.NewConnector(cfg)
	require.NoError(c.t, err)
	db := sql.OpenDB(connector)
	c.t.Cleanup(func() { _ = db.Close() })
	return db
}

// inMariaDB asks the MariaDB of a database for a number or a text.
func inMariaDB[T any](c *cell, app, database, query string, args ...any) (v T) {
	c.t.Helper()
	require.NoError(c.t, c.hostDB(app, database).QueryRowContext(context.Background(), query, args...).Scan(&v), query)
	return v
}

// scheduler is whether a site's own jobs run.
func (c *cell) scheduler(server, database string) bool {
	c.t.Helper()
	return inMariaDB[string](c, server, database, "SELECT COALESCE(MAX(value), '0') FROM `"+database+"`.tabSingles WHERE doctype = 'System Settings' AND field = 'enable_scheduler'") == "1"
}

// web is the web server of a host's sites.
type web struct {
	c    *cell
	addr string
}

var program = regexp.MustCompile(`sys\.path\[:0\] = \["([^"]+)"`)

const serveSites = `
import sys
sys.path[:0] = [sys.argv[1], "/usr/lib/python3/dist-packages"]
from wsgiref.simple_server import make_server
from frappe.app import application
server = make_server("127.0.0.1", 0, application)
print(server.server_port, flush=True)
server.serve_forever()
`

// serve serves a host's sites, as gunicorn does on a real one.
func (c *cell) serve(server string) *web {
	c.t.Helper()
	root := c.rootOf(server)
	script, err := os.ReadFile(filepath.Join(root, wire.BenchBinary))
	require.NoError(c.t, err)
	found := program.FindSubmatch(script)
	require.NotNil(c.t, found, "%s", script)
	cmd := exec.CommandContext(c.t.Context(), "/usr/bin/python3", "-IS", "-c", serveSites, string(found[1]))
	cmd.Dir = filepath.Join(root, wire.BenchDir, "sites")
	out, err := cmd.StdoutPipe()
	require.NoError(c.t, err)
	p, err := child.Start(cmd, syscall.SIGKILL)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = p.Wait() }) // the context has ended it
	port, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(c.t, err)
	return &web{c, "http://127.0.0.1:" + strings.TrimSpace(port)}
}

// ask asks a site; fields make it a POST, session is its cookie.
func (w *web) ask(site, path, session string, fields ...string) (status int, body, cookie string) {
	w.c.t.Helper()
	method, in := http.MethodGet, io.Reader(nil)
	if len(fields) > 0 {
		method, in = http.MethodPost, strings.NewReader(strings.Join(fields, "&"))
	}
	req, err := http.NewRequestWithContext(w.c.t.Context(), method, w.addr+path, in)
	require.NoError(w.c.t, err)
	req.Host = site
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if session != "" {
		req.Header.Set("Cookie", session)
	}
	resp, err := need.HTTP.Do(req)
	require.NoError(w.c.t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(w.c.t, err)
	if resp.StatusCode == http.StatusInternalServerError {
		w.c.t.Logf("%s %s%s: %s", method, site, path, b)
	}
	cookie, _, _ = strings.Cut(resp.Header.Get("Set-Cookie"), ";")
	return resp.StatusCode, string(b), cookie
}

// login logs a user in.
func (w *web) login(site, user, password string) (status int, session string) {
	w.c.t.Helper()
	status, _, session = w.ask(site, "/api/method/login", "", "usr="+url.QueryEscape(user), "pwd="+url.QueryEscape(password))
	return status, session
}

// enter writes a row into a site's database, by its page.
func (w *web) enter(site, session, text string) (status int, body string) {
	w.c.t.Helper()
	status, body, _ = w.ask(site, "/api/resource/ToDo", session, "description="+url.QueryEscape(text))
	return status, body
}

func (w *web) rows(site string) string {
	w.c.t.Helper()
	status, body, _ := w.ask(site, "/", "")
	require.Equal(w.c.t, http.StatusOK, status, body)
	_, after, ok := strings.Cut(body, "<p>rows: ")
	require.True(w.c.t, ok, body)
	n, _, _ := strings.Cut(after, "<")
	return n
}

// named are the files and directories below a directory with a text in their name.
func named(t testing.TB, root, text string) (out []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.Contains(d.Name(), text) {
			out = append(out, path)
		}
		return nil
	}))
	return out
}

// unzipped is a gzipped file's content.
func unzipped(t testing.TB, file string) string {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	b, err := io.ReadAll(z)
	require.NoError(t, err)
	return string(b)
}

func (c *cell) snapshot(of string) api.Snapshot {
	c.t.Helper()
	var s api.Snapshot
	c.post(of+"/snapshots", nil, http.StatusAccepted, &s)
	eventually(c.t, func() bool {
		c.send(http.MethodGet, of+"/snapshots/"+s.SnapshotId, nil, http.StatusOK, &s)
		return s.Status == "succeeded" || s.Status == "failed"
	}, patience, 50*time.Millisecond)
	require.Equal(c.t, "succeeded", string(s.Status), deref(s.Message))
	return s
}

// TestASiteFromItsFirstPageToNothing lives a tenant's life on a slug with hyphens: it is
// judged by its page, its database, its host's disk.
func TestASiteFromItsFirstPageToNothing(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars(), set: func(cfg *config.Config) {
		cfg.Tenants.StorageEvery, cfg.Tenants.StorageSweep = time.Second, time.Second
	}})
	c.org("acme", "")
	app := c.sharedFleet(2)
	const slug, site = "acme-kr-2", "acme-kr-2.sites.test"
	id := c.tenant(slug, prego.PlanStarter, func(m map[string]any) {
		m["apps"], m["admin_email"], m["admin_name"] = []string{"erpnext"}, "ann@example.com", "Ann Lee"
	})
	tn := c.settledTenant(id, tenant.Active)
	of, database := "/v1/tenants/"+id, tn.Allocation.DatabaseName
	require.Contains(t, tenantSteps(tn), "user_added")
	var seconds float64
	c.query(&seconds, `SELECT EXTRACT(EPOCH FROM max(e.at) - min(d.at))::float8 FROM tenant_lifecycle_events e, tenant_lifecycle_events d
		WHERE e.tenant_id = $1 AND d.tenant_id = $1 AND e.step = 'site_promoted' AND d.step = 'placed'`, id)
	t.Logf("promoted and configured %.2f s after it was placed", seconds)
	require.True(t, c.scheduler(app, database), "an active site's jobs run")
	var pool string
	c.query(&pool, `SELECT database_name FROM site_pool WHERE state = 'available' LIMIT 1`)
	require.False(t, c.scheduler(app, pool), "a pool site's don't")
	require.Equal(t, id, c.siteConfig(app, site, "prego_tenant_id"))
	require.Equal(t, "https://"+site, c.siteConfig(app, site, "host_name"))

	// Somebody logs in and works.
	w := c.serve(app)
	var shown api.AdminPassword
	c.post(of+"/admin-password", nil, http.StatusOK, &shown)
	status, _ := w.login(site, "Administrator", "admin")
	require.Equal(t, http.StatusUnauthorized, status)
	status, session := w.login(site, shown.User, shown.Password)
	require.Equal(t, http.StatusOK, status)
	enter := func(text string, want int) {
		t.Helper()
		status, body := w.enter(site, session, text)
		require.Equal(t, want, status, body)
	}
	enter("the first row", http.StatusOK)
	enter("the second row", http.StatusOK)
	require.Equal(t, "2", w.rows(site))
	out, errs, code := c.cli(c.operator, "tenant", "user", "add", id, "bob@example.com", "--name", "Bob", "--output", "json")
	require.Zero(t, code, errs)
	var bob api.TenantUser
	require.NoError(t, json.Unmarshal([]byte(out), &bob))
	status, _ = w.login(site, "bob@example.com", deref(bob.Password))
	require.Equal(t, http.StatusOK, status)
	c.send(http.MethodPut, of+"/mail", map[string]any{"server": "smtp.example.com", "port": 587, "tls": true, "login": "erp", "password": "swordfish-4711", "sender": "erp@example.com"}, http.StatusOK, nil)
	require.Equal(t, []string{"smtp.example.com", "swordfish-4711"}, []string{c.siteConfig(app, site, "mail_server"), c.siteConfig(app, site, "mail_password")})

	// A snapshot, a change, and back.
	s := c.snapshot(of)
	sites := filepath.Join(c.rootOf(app), wire.BenchDir, "sites")
	var bytes int64
	for _, f := range s.Files {
		info, err := os.Stat(filepath.Join(sites, f))
		require.NoError(t, err)
		bytes += info.Size()
	}
	require.Positive(t, bytes)
	require.Equal(t, bytes, *s.Bytes)
	dump := unzipped(t, filepath.Join(sites, s.Files[0]))
	require.Contains(t, dump, "the second row")
	enter("the third row", http.StatusOK)
	require.Equal(t, "3", w.rows(site))
	var j api.RestoreJob
	c.post(of+"/restores", map[string]any{"snapshot_id": s.SnapshotId}, http.StatusAccepted, &j)
	eventually(t, func() bool {
		c.send(http.MethodGet, of+"/restores/"+j.JobId, nil, http.StatusOK, &j)
		return j.Status == "succeeded" || j.Status == "failed"
	}, patience, 50*time.Millisecond)
	require.Equal(t, "succeeded", string(j.Status), deref(j.Message))
	require.Equal(t, "2", w.rows(site), "the site serves what the snapshot has")
	require.True(t, c.scheduler(app, database))
	require.Empty(t, named(t, sites, j.JobId), "the copy from before the restore is gone")
	c.send(http.MethodDelete, of+"/snapshots/"+s.SnapshotId, nil, http.StatusNoContent, nil)
	c.exec(`UPDATE snapshots SET kept_until = now() WHERE kept_until IS NOT NULL`)
	eventually(t, func() bool { return len(named(t, sites, s.SnapshotId)) == 0 }, patience, 50*time.Millisecond, "a deleted snapshot's files go")

	// Above its storage quota it can be read, until there is more.
	status, session = w.login(site, shown.User, shown.Password)
	require.Equal(t, http.StatusOK, status)
	c.exec(`UPDATE tenants SET storage_quota_gb = 0 WHERE tenant_id = $1`, id)
	readOnly := func(want bool) {
		t.Helper()
		c.awaitTenant(id, "read-only", func(tn api.Tenant) bool { return tn.Storage != nil && tn.Storage.ReadOnly == want })
		eventually(t, func() bool { return c.maintenance(app, site) == map[bool]string{true: "on", false: "off"}[want] }, patience, 50*time.Millisecond)
	}
	readOnly(true)
	require.Equal(t, "2", w.rows(site), "it can be read")
	status, body := w.enter(site, session, "one too many")
	require.NotEqual(t, http.StatusOK, status)
	require.Contains(t, body, "InReadOnlyMode")
	c.send(http.MethodPut, of+"/storage-quota", map[string]any{"gb": 5}, http.StatusOK, nil)
	readOnly(false)
	enter("there is room again", http.StatusOK)
	out, _, _ = c.cli(c.viewer, "tenant", "show", id)
	require.Regexp(t, `storage +0\.\d\d of 5\.00 GB`, out)
	eventually(t, func() bool { return c.siteConfig(app, site, "prego_storage_quota_gb") == "5" }, patience, 50*time.Millisecond)

	// No secret that was shown, or given, is kept.
	c.nowhere(prego.TenantID(id), map[string]string{"Administrator's password": shown.Password, "Bob's password": deref(bob.Password), "mail password": "swordfish-4711"})

	// Suspended it is offline, and does nothing.
	c.ask(id, "suspend")
	c.settledTenant(id, tenant.Suspended)
	status, _, _ = w.ask(site, "/", "")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.False(t, c.scheduler(app, database))
	c.ask(id, "resume")
	c.settledTenant(id, tenant.Active)
	require.Equal(t, "3", w.rows(site))
	require.True(t, c.scheduler(app, database))

	// Terminated it is kept, with a last backup of all that it had.
	c.ask(id, "cancel")
	c.settledTenant(id, tenant.GracePeriod)
	c.expire(id)
	tn = c.settledTenant(id, tenant.Terminated)
	c.lastBackup(tn, app, "there is room again")
	require.Equal(t, 1, inMariaDB[int](c, app, database, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", database))

	// Purged there is nothing, in MariaDB and on the disk.
	c.expire(id)
	c.settledTenant(id, tenant.DataPurged)
	require.Zero(t, inMariaDB[int](c, app, database, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", database))
	require.Zero(t, inMariaDB[int](c, app, database, "SELECT COUNT(*) FROM mysql.user WHERE User = ?", database))
	require.Zero(t, inMariaDB[int](c, app, database, "SELECT COUNT(*) FROM mysql.db WHERE Db = ?", database))
	require.Empty(t, named(t, c.rootOf(app), slug))
	require.Empty(t, named(t, c.rootOf(app), strings.ReplaceAll(slug, "-", "_")))
	require.Empty(t, named(t, c.rootOf(app), "final-"+id))
	status, _, _ = w.ask(site, "/", "")
	require.Equal(t, http.StatusNotFound, status)
	c.counted()
	c.settled()
}

var backedUp = regexp.MustCompile(`([^ ]+-database\.sql\.gz) \((\d+) bytes\)`)

// lastBackup checks that a terminated tenant's last backup has its timeline's path and size, and holds a text of the
// site.
func (c *cell) lastBackup(tn api.Tenant, app, holds string) {
	c.t.Helper()
	for _, e := range tn.Timeline {
		if e.Step != "final_backup" {
			continue
		}
		m := backedUp.FindStringSubmatch(deref(e.Message))
		require.NotNil(c.t, m, deref(e.Message))
		require.Contains(c.t, deref(e.Message), "on "+app)
		file := filepath.Join(c.rootOf(app), wire.BenchDir, "sites", m[1])
		info, err := os.Stat(file)
		require.NoError(c.t, err)
		require.Equal(c.t, m[2], fmt.Sprint(info.Size()))
		require.Contains(c.t, unzipped(c.t, file), holds)
		return
	}
	c.t.Fatalf("tenant %s has no last backup: %v", tn.TenantId, tenantSteps(tn))
}

// everyRun are the runs of this cell, the last ones when there are very many.
func (c *cell) everyRun() (out []*commonpb.WorkflowExecution) {
	c.t.Helper()
	eventually(c.t, func() bool { // visibility comes a moment later
		r, err := temporalClient.ListWorkflow(context.Background(), &workflowservice.ListWorkflowExecutionsRequest{
			PageSize: 1000, Query: "TaskQueue = '" + c.vars["TEMPORAL_TASK_QUEUE"] + "'",
		})
		if err != nil {
			return false
		}
		out = nil
		restored := false
		for _, e := range r.GetExecutions() {
			out = append(out, e.GetExecution())
			restored = restored || strings.HasPrefix(e.GetExecution().GetWorkflowId(), "restore/")
		}
		return restored
	}, patience, 100*time.Millisecond)
	return out
}

// nowhere looks for secrets in the database, in the processes' logs, and in the history of
// every run that there was.
func (c *cell) nowhere(tenantID prego.TenantID, secrets map[string]string) {
	c.t.Helper()
	dump, err := exec.Command(pgDump(c.t), "--inserts", c.url).Output()
	require.NoError(c.t, err)
	require.Contains(c.t, string(dump), "set-admin-password", "the search covers the audit")
	places := map[string]string{"database": string(dump)}
	for _, name := range []string{"worker", "api", "agentgw"} {
		b, err := os.ReadFile(c.logFile(name))
		require.NoError(c.t, err)
		places[name+" log"] = string(b)
	}
	for _, run := range c.everyRun() {
		h, err := protojson.Marshal(historyOf(c.t, run.GetWorkflowId(), run.GetRunId()))
		require.NoError(c.t, err)
		places[run.GetWorkflowId()+"/"+run.GetRunId()] = string(h) + decodePayloads(string(h))
		places["histories"] += run.GetWorkflowId() + "\n"
	}
	for _, id := range []string{tenant.ProvisionWorkflowID(tenantID), "restore/", "snapshot/"} {
		require.Contains(c.t, places["histories"], id, "the search covers histories")
	}
	for what, secret := range secrets {
		require.NotEmpty(c.t, secret, what)
		for place, text := range places {
			require.False(c.t, strings.Contains(text, secret), "%s in %s", what, place)
		}
	}
}
