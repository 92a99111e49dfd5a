package e2e

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// writers insert numbered rows into a site over HTTP, and read its page, without a pause.
type writers struct {
	t    testing.TB
	stop context.CancelFunc
	all  sync.WaitGroup

	tried atomic.Int64
	reads atomic.Int64
	mu    sync.Mutex
	seen
}

// seen is what writers have met so far.
type seen struct {
	accepted []string      // descriptions whose insertion was confirmed
	refused  string        // why the last row that was not accepted was not
	failed   []string      // reads that were not answered
	gap      time.Duration // the longest between two answered reads
	pause    time.Duration // the longest between two accepted rows
}

func (w *writers) soFar() seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.seen
	s.accepted, s.failed = slices.Clone(s.accepted), slices.Clone(s.failed)
	return s
}

// write begins to write to a site as its administrator.
func (p *public) write(base, cookie string) *writers {
	ctx, stop := context.WithCancel(p.t.Context())
	w := &writers{t: p.t, stop: stop}
	p.t.Cleanup(func() { stop(); w.all.Wait() })
	w.all.Go(func() {
		client, last := p.visitor(), time.Now()
		for n := 1; ctx.Err() == nil; n++ {
			row := fmt.Sprintf("row-%06d", n)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/api/resource/ToDo", strings.NewReader(url.Values{"description": {row}}.Encode()))
			if err != nil {
				return
			}
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			req.Header.Set("Cookie", cookie)
			w.tried.Add(1)
			resp, err := client.Do(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			if err != nil || resp.StatusCode != http.StatusOK {
				w.mu.Lock()
				if w.refused = fmt.Sprint(err); err == nil {
					w.refused = resp.Status
				}
				w.mu.Unlock()
			}
			if err == nil && resp.StatusCode == http.StatusOK {
				w.mu.Lock()
				w.accepted, w.pause = append(w.accepted, row), max(w.pause, time.Since(last))
				last = time.Now()
				w.mu.Unlock()
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	w.all.Go(func() {
		client, last := p.visitor(), time.Now()
		for ctx.Err() == nil {
			status, body, err := visit(client, base+"/api/method/ping")
			if errors.Is(err, syscall.ECONNRESET) {
				// Caddy's next configuration closes the listener on which this connection still waited. Hosts hand such
				// connections on (net.ipv4.tcp_migrate_req, agent-edge.conf); this machine does not.
				status, body, err = visit(client, base+"/api/method/ping")
			}
			if ctx.Err() != nil {
				return
			}
			w.mu.Lock()
			if w.reads.Add(1); err != nil || status != http.StatusOK {
				w.failed = append(w.failed, fmt.Sprintf("%d %v %.200s", status, err, body))
			} else {
				w.gap = max(w.gap, time.Since(last))
				last = time.Now()
			}
			w.mu.Unlock()
			time.Sleep(10 * time.Millisecond)
		}
	})
	return w
}

// settled waits until a read that begins now is answered, and counts the failed ones until then: a read that met a
// host's death may wait for its time limit.
func (w *writers) settled() (failed int) {
	w.t.Helper()
	at := w.reads.Load()
	eventually(w.t, func() bool { return w.reads.Load() >= at+2 }, patience, 20*time.Millisecond)
	return len(w.soFar().failed)
}

func (w *writers) number() int { return len(w.soFar().accepted) }

// more waits until some more rows were accepted.
func (w *writers) more(n int) {
	w.t.Helper()
	want := w.number() + n
	eventually(w.t, func() bool { return w.number() >= want }, patience, 20*time.Millisecond, "refused: %s", later(func() string {
		s := w.soFar()
		return fmt.Sprint(s.refused, s.failed[max(0, len(s.failed)-2):])
	}))
}

// moved waits until a move has ended.
func (c *cell) moved(of string, m api.Move, want tenant.MoveState) api.Move {
	c.t.Helper()
	eventually(c.t, func() bool {
		c.send(http.MethodGet, of+"/moves/"+m.MoveId, nil, http.StatusOK, &m)
		return m.State.Ended()
	}, 3*patience, 50*time.Millisecond, "move %s must be %s", m.MoveId, want)
	require.Equal(c.t, want, m.State, "%s %s", deref(m.Reason), deref(m.Message))
	return m
}

// movable is a cell whose tenant alpha can move between two app servers.
func movable(t *testing.T, s *s3test.Server, crash string) (p *public, id string) {
	t.Helper()
	return movableOn(t, s, crash, "")
}

// movableOn is a cell with a separate database.
func movableOn(t *testing.T, s *s3test.Server, crash, url string) (p *public, id string) {
	t.Helper()
	vars := backupVars(s, map[string]string{
		"PREGO_PACE": "0.01", "PREGO_MOVE_GRACE": "1s", "PREGO_TEST_CRASH": crash,
	})
	p = newPublicOn(t, vars, url)
	p.org("acme", "")
	roles := map[string]prego.Role{"edge": prego.RoleEdge, "app": prego.RoleApp, "db": prego.RoleDBShard, "redis": prego.RoleRedisPool}
	for name, role := range roles {
		p.create(name, role, server.Spec{})
	}
	for name := range roles {
		p.awaitStatus(name, server.Active)
	}
	id = p.tenant("alpha", prego.PlanStarter, nil)
	p.settledTenant(id, tenant.Active)
	p.create("app2", prego.RoleApp, server.Spec{})
	p.awaitStatus("app2", server.Active)
	return p, id
}

const movedSite = "alpha.sites." + ourZone

func (p *public) siteDir(serverID string) string {
	return filepath.Join(p.rootOf(serverID), wire.BenchDir, "sites", movedSite)
}

// onlyAt checks that a tenant's site is on one server, and nothing of it on the other, and that
// nothing of its moves is left anywhere.
func (p *public) onlyAt(s *s3test.Server, there, elsewhere string) {
	p.t.Helper()
	require.FileExists(p.t, p.siteDir(there)+"/site_config.json")
	require.NoDirExists(p.t, p.siteDir(elsewhere))
	require.Equal(p.t, "off", p.maintenance(there, movedSite))
	left, err := filepath.Glob(p.siteDir(there) + "/" + wire.SnapshotsDir + "/.*")
	require.NoError(p.t, err)
	require.Empty(p.t, left)
	require.Equal(p.t, 1, p.number(`SELECT count(*) FROM tenant_allocations WHERE released_at IS NULL AND app_server_id = $1`, there))
	require.Equal(p.t, 1, p.number(`SELECT tenant_count FROM servers WHERE server_id = $1`, there))
	require.Equal(p.t, 0, p.number(`SELECT tenant_count FROM servers WHERE server_id = $1`, elsewhere))
	require.Zero(p.t, p.number(`SELECT count(*) FROM tenant_moves WHERE finished_at IS NULL`))
	objects, err := filepath.Glob(s.File(p.env + "/moves/*/*"))
	require.NoError(p.t, err)
	require.Empty(p.t, objects)
}

// rows checks that accepted writes are in the database, once, and returns the number of rows.
func (p *public) rows(w *writers, database string) int {
	p.t.Helper()
	w.mu.Lock()
	accepted := slices.Clone(w.accepted) // more are accepted while they are looked for
	w.mu.Unlock()
	found := p.todos(database)
	counts := map[string]int{}
	for _, d := range found {
		counts[d]++
	}
	for _, row := range accepted {
		require.Equal(p.t, 1, counts[row], row)
	}
	for row, n := range counts {
		require.Equal(p.t, 1, n, row)
	}
	require.LessOrEqual(p.t, len(found), int(w.tried.Load()))
	return len(found)
}

func (p *public) todos(database string) (out []string) {
	p.t.Helper()
	rows, err := p.hostDB(p.id("app"), database).QueryContext(p.t.Context(), "SELECT description FROM `"+database+"`.tabToDo WHERE description LIKE 'row-%'")
	require.NoError(p.t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var d string
		require.NoError(p.t, rows.Scan(&d))
		out = append(out, d)
	}
	require.NoError(p.t, rows.Err())
	return out
}

// TestATenantMoves: from one app server to another and back, while rows are written and pages read over HTTP, with
// files, and with all participants killed at every step.
func TestATenantMoves(t *testing.T) {
	t.Parallel()
	kills := rounds(t, 3, []string{"move/prepare", "move/copy", "move/packed", "move/uploaded", "move/carried", "move/copied", "move/frozen", "move/held", "move/settled", "move/kept", "move/switched", "move/freed", "move/clear", "move/cleared"}, everybody)
	undone := rounds(t, 1, []string{"move/undo", "move/undone-hold", "move/undone"}, everybody)
	mortal, vars, url := newMortals(t, slices.Concat(kills, undone))
	crash := vars["PREGO_TEST_CRASH"]
	s := s3test.Start(t)
	p, id := movableOn(t, s, crash, url)
	mortal.cell, mortal.s3 = p.cell, s
	of, base := "/v1/tenants/"+id, "https://"+movedSite
	alpha := p.settledTenant(id, tenant.Active)
	database := alpha.Allocation.DatabaseName
	visitor := p.visitor()
	p.opens(visitor, base, "<h1>"+movedSite+"</h1>")
	cookie := p.login(visitor, base, id)
	noise := p.noise(p.id("app"), movedSite, "noise", 17<<20)
	require.NoError(t, os.Symlink("noise", p.siteDir(p.id("app"))+"/private/files/link"))
	p.keepPassword(p.id("app"), movedSite, "open sesame")
	w := p.write(base, cookie)
	w.more(5)

	move := func() (m api.Move) {
		t.Helper()
		p.post(of+"/moves", nil, http.StatusAccepted, &m)
		return m
	}
	p.background(p.id("app"), "sent-once")
	m := p.moved(of, move(), tenant.MoveDone)
	require.Equal(t, []string{p.id("app"), p.id("app2")}, []string{m.FromServerId, deref(m.ToServerId)})
	w.more(5)
	// The job that was queued before runs, where the site is now and once.
	require.Zero(t, p.ran(p.id("app"), database, "sent-once"))
	require.Equal(t, 1, p.ran(p.id("app2"), database, "sent-once"))
	for _, app := range []string{"app", "app2"} {
		require.Equal(t, 1, p.ran(p.id(app), database, "sent-once"))
	}
	p.onlyAt(s, p.id("app2"), p.id("app"))
	require.Equal(t, "open sesame", p.keptPassword(p.id("app2"), movedSite))
	b, err := os.ReadFile(p.siteDir(p.id("app2")) + "/private/files/link")
	require.NoError(t, err)
	require.Equal(t, noise, b)
	so := w.soFar()
	t.Logf("%d requests, %d failed, longest gap %d ms; %d rows, written again after %d ms by the row, at most %d ms between two; %d bytes before, %d while read-only",
		w.reads.Load(), len(so.failed), so.gap.Milliseconds(), len(so.accepted), *m.DowntimeMs, so.pause.Milliseconds(), m.CopiedBytes, m.DeltaBytes)
	require.Empty(t, so.failed)
	require.Less(t, so.pause, 10*time.Second)
	require.Greater(t, m.CopiedBytes, int64(11<<20))
	require.Less(t, m.DeltaBytes, int64(1<<20))
	p.rows(w, database)
	keepHistory(t, p.cell, "tenant-moved", m.WorkflowId)

	// Undone: a move cancelled after its copy, with deaths during the undo, and a move to a server that refuses access.
	for _, round := range undone {
		require.NoError(t, os.WriteFile(crash, []byte("move/copied"), 0o600))
		m = move()
		p.dies(crash, "move/copied")
		require.DirExists(t, p.siteDir(p.id("app")))
		p.post(of+"/moves", map[string]any{"to_server_id": p.id("app")}, http.StatusConflict, nil)
		p.send(http.MethodDelete, of+"/moves/"+m.MoveId, nil, http.StatusAccepted, nil)
		mortal.play(round, func() { p.start("worker") })
		m = p.moved(of, m, tenant.MoveCancelled)
		p.onlyAt(s, p.id("app2"), p.id("app"))
	}
	keepHistory(t, p.cell, "tenant-move-cancelled", m.WorkflowId)
	p.send(http.MethodDelete, of+"/moves/"+m.MoveId, nil, http.StatusAccepted, nil)
	p.send(http.MethodPost, "/v1/servers/"+p.id("app")+"/cordon", nil, http.StatusOK, nil)
	p.post(of+"/moves", map[string]any{"to_server_id": p.id("app")}, http.StatusAccepted, &m)
	m = p.moved(of, m, tenant.MoveFailed)
	require.Equal(t, string(prego.CodeInvariantViolation), deref(m.Reason))
	p.send(http.MethodPost, "/v1/servers/"+p.id("app")+"/uncordon", nil, http.StatusOK, nil)
	p.onlyAt(s, p.id("app2"), p.id("app"))
	w.more(2)

	// After any death, it continues from the row.
	at, away := "app2", "app"
	for _, round := range kills {
		var m api.Move
		mortal.play(round, func() { m = move() })
		p.moved(of, m, tenant.MoveDone)
		at, away = away, at
		w.more(2)
		p.onlyAt(s, p.id(at), p.id(away))
		p.rows(w, database)
	}

	// The storage is away for a while, and all others continue.
	m = move()
	eventually(t, func() bool {
		p.send(http.MethodGet, of+"/moves/"+m.MoveId, nil, http.StatusOK, &m)
		return m.State != tenant.MoveQueued
	}, patience, 10*time.Millisecond)
	s.Kill()
	w.more(20)
	s.Boot()
	p.moved(of, m, tenant.MoveDone)
	at, away = away, at
	p.onlyAt(s, p.id(at), p.id(away))
	p.rows(w, database)

	// What empties its server takes it along.
	p.post("/v1/servers/"+p.id(at)+"/drain", nil, http.StatusAccepted, nil)
	d := p.drained(p.id(at))
	require.Equal(t, []int{1, 0}, []int{d.TenantsTotal, d.TenantsLeft})
	p.onlyAt(s, p.id(away), p.id(at))
	w.more(2)
	w.stop()
	w.all.Wait()
	t.Logf("%v: %d rows at the end; %d requests during the kills, %d failed: %v", kills, p.rows(w, database), w.reads.Load(), len(w.failed), w.failed)
	t.Logf("while moves were undone: %v", undone)
	require.Equal(t, 3+len(kills), p.number(`SELECT count(*) FROM tenant_lifecycle_events WHERE tenant_id = $1 AND step = 'move_cleared'`, id))
}

// dataMoved checks that a tenant's database and cache are on one shard and in one pool, and that
// nothing of them is on the others.
func (p *public) dataMoved(id, database string, shard, otherShard, pool, otherPool string) {
	p.t.Helper()
	require.Equal(p.t, 1, p.number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1 AND released_at IS NULL AND db_shard_id = $2 AND redis_pool_id = $3`, id, p.id(shard), p.id(pool)))
	for server, want := range map[string]int{shard: 1, otherShard: 0} {
		db := p.shardDB(p.id(server))
		var databases, users, triggers int
		require.NoError(p.t, db.QueryRow("SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", database).Scan(&databases))
		require.NoError(p.t, db.QueryRow("SELECT COUNT(*) FROM mysql.user WHERE User = ?", database).Scan(&users))
		require.NoError(p.t, db.QueryRow("SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = ?", database).Scan(&triggers))
		require.Equal(p.t, []int{want, want, 0}, []int{databases, users, triggers}, "what shard %s has", server)
		require.Equal(p.t, want, p.number(`SELECT current_tenant_count FROM db_shards WHERE shard_id = $1`, p.id(server)), server)
	}
	p.cacheMoved(database, pool, otherPool)
}

// cacheMoved checks that a tenant's cache is in one pool, and that nothing of it is in the other.
func (p *public) cacheMoved(database, pool, otherPool string) {
	p.t.Helper()
	for server, want := range map[string]int{pool: 1, otherPool: 0} {
		acl, err := os.ReadFile(filepath.Join(p.rootOf(p.id(server)), wire.RedisUsersDir, "users.acl"))
		require.NoError(p.t, err)
		require.Equal(p.t, want, strings.Count(string(acl), "user "+database+" "), "users of pool %s", server)
		require.Equal(p.t, want, p.number(`SELECT current_tenants FROM redis_pools WHERE pool_id = $1`, p.id(server)), server)
	}
}

// shardDB is a shard's MariaDB, as its root.
func (p *public) shardDB(server string) *sql.DB {
	p.t.Helper()
	root := p.rootOf(server)
	password, err := os.ReadFile(filepath.Join(root, wire.SecretsDir, "mariadb-root"))
	require.NoError(p.t, err)
	return p.openDB("root", strings.TrimSpace(string(password)), filepath.Join(root, "run/prego/mysqld/mysqld.sock"))
}

// TestATenantsDataMoves: to another DB shard while rows are written over HTTP, and not to another one when the move is
// cancelled during the freeze, when even the password gives no right to write.
func TestATenantsDataMoves(t *testing.T) {
	t.Parallel()
	kills := rounds(t, 2, []string{"move/prepare", "move/data-packed", "move/data-carried", "move/data", "move/copied", "move/data-frozen", "move/caught-up", "move/settled", "move/kept", "move/switched", "move/freed", "move/data-erased", "move/cleared"}, append([]string{"mariadb"}, everybody...))
	undone := rounds(t, 1, []string{"move/undo", "move/undone-hold", "move/undone"}, append([]string{"mariadb"}, everybody...))
	mortal, vars, url := newMortals(t, slices.Concat(kills, undone))
	crash := vars["PREGO_TEST_CRASH"]
	s := s3test.Start(t)
	p, id := movableOn(t, s, crash, url)
	mortal.cell, mortal.s3 = p.cell, s
	p.create("db2", prego.RoleDBShard, server.Spec{})
	p.create("redis2", prego.RoleRedisPool, server.Spec{})
	p.awaitStatus("db2", server.Active)
	p.awaitStatus("redis2", server.Active)
	of, base := "/v1/tenants/"+id, "https://"+movedSite
	database := p.settledTenant(id, tenant.Active).Allocation.DatabaseName
	visitor := p.visitor()
	p.opens(visitor, base, "<h1>"+movedSite+"</h1>")
	cookie := p.login(visitor, base, id)
	p.keepPassword(p.id("app"), movedSite, "open sesame")
	w := p.write(base, cookie)
	w.more(5)

	move := func(body map[string]any) (m api.Move) {
		t.Helper()
		p.post(of+"/moves", body, http.StatusAccepted, &m)
		return m
	}
	p.post(of+"/moves", map[string]any{"to_shard_id": p.id("db")}, http.StatusUnprocessableEntity, nil)
	m := p.moved(of, move(map[string]any{"to_shard_id": "any"}), tenant.MoveDone)
	require.Equal(t, []string{p.id("app"), p.id("app"), p.id("db"), p.id("db2")}, []string{m.FromServerId, deref(m.ToServerId), deref(m.FromShardId), deref(m.ToShardId)})
	w.more(5)
	p.dataMoved(id, database, "db2", "db", "redis", "redis2")
	p.rows(w, database)
	require.Equal(t, "open sesame", p.keptPassword(p.id("app"), movedSite))
	so := w.soFar()
	t.Logf("%d rows, written again after %d ms by the row, at most %d ms between two; %d bytes before, %d while read-only; %d reads, %d failed", len(so.accepted), *m.DowntimeMs, so.pause.Milliseconds(), m.CopiedBytes, m.DeltaBytes, w.reads.Load(), len(so.failed))
	require.Empty(t, so.failed)
	require.Less(t, so.pause, 10*time.Second)
	keepHistory(t, p.cell, "tenant-data-moved", m.WorkflowId)

	// Undone during the freeze, with deaths: it accepts writes again at its old place, and nothing is left elsewhere.
	mortal.mariadb = func() {
		p.killShard(p.id("db"))
		p.killShard(p.id("db2"))
	}
	config := p.readJSON(p.siteDir(p.id("app")) + "/site_config.json")
	for _, round := range undone {
		require.NoError(t, os.WriteFile(crash, []byte("move/data-frozen"), 0o600))
		m = move(map[string]any{"to_shard_id": p.id("db"), "to_pool_id": p.id("redis2")})
		p.dies(crash, "move/data-frozen")
		// An old job, or a console, writes to the database before its last copy.
		straggler := p.straggler(p.id("app"), database, fmt.Sprint(config["db_password"]))
		for _, q := range []string{"INSERT INTO tabToDo (name, description) VALUES ('late', 'row-late')", "DELETE FROM tabToDo", "DROP TABLE tabToDo", "TRUNCATE tabToDo"} {
			_, err := straggler.ExecContext(t.Context(), q)
			require.ErrorContains(t, err, "denied", q)
		}
		p.send(http.MethodDelete, of+"/moves/"+m.MoveId, nil, http.StatusAccepted, nil)
		mortal.play(round, func() { p.start("worker") })
		p.moved(of, m, tenant.MoveCancelled)
		w.more(2)
		p.dataMoved(id, database, "db2", "db", "redis", "redis2")
		p.onlyAt(s, p.id("app"), p.id("app2"))
		p.rows(w, database)
	}

	// After any death, it continues from the row: all three parts, there and back.
	at, away := []string{"app", "db2", "redis"}, []string{"app2", "db", "redis2"}
	for _, round := range kills {
		var m api.Move
		mortal.play(round, func() {
			m = move(map[string]any{"to_server_id": "any", "to_shard_id": "any", "to_pool_id": "any"})
		})
		p.moved(of, m, tenant.MoveDone)
		at, away = away, at
		w.more(2)
		p.onlyAt(s, p.id(at[0]), p.id(away[0]))
		p.dataMoved(id, database, at[1], away[1], at[2], away[2])
		p.rows(w, database)
	}

	// What empties a shard's server takes its databases along.
	p.post("/v1/servers/"+p.id(at[1])+"/drain", nil, http.StatusAccepted, nil)
	d := p.drained(p.id(at[1]))
	require.Equal(t, []int{1, 0}, []int{d.TenantsTotal, d.TenantsLeft})
	p.dataMoved(id, database, away[1], at[1], at[2], away[2])
	w.more(2)

	// The whole control plane ends while the site is held. Its hosts let it be written to again by themselves.
	p.stop("worker")
	p.vars["PREGO_MOVE_FREEZE_TIMEOUT"] = "2s" // and 6 s at this pace
	require.NoError(t, os.WriteFile(crash, []byte("move/data-frozen"), 0o600))
	p.start("worker")
	p.send(http.MethodPost, "/v1/servers/"+p.id(at[1])+"/uncordon", nil, http.StatusOK, nil)
	m = move(map[string]any{"to_server_id": "any", "to_shard_id": p.id(at[1])})
	p.dies(crash, "move/data-frozen")
	p.stop("api", "agentgw")
	w.more(2)
	p.start("api", "agentgw", "worker")
	p.moved(of, m, tenant.MoveFailed)
	p.dataMoved(id, database, away[1], at[1], at[2], away[2])
	p.rows(w, database)
	w.more(2)
	w.stop()
	w.all.Wait()
	t.Logf("%v, and while one was undone %v: %d rows at the end; %d reads during the kills, %d failed", kills, undone, p.rows(w, database), w.reads.Load(), len(w.failed))
}

// killShard kills a shard's MariaDB, which restarts at the next connection. Its committed data is in the kernel's
// hands.
func (p *public) killShard(server string) {
	p.t.Helper()
	db := p.shardDB(server)
	var file, dir string
	if db.QueryRow("SELECT @@pid_file, @@datadir").Scan(&file, &dir) != nil {
		return
	}
	_, err := db.Exec("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
	require.NoError(p.t, err)
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	text, err := os.ReadFile(file)
	require.NoError(p.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(p.t, err)
	require.NoError(p.t, syscall.Kill(pid, syscall.SIGKILL))
}

// straggler is a session of a site's user with its database, as a job's from before a move.
func (p *public) straggler(app, database, password string) *sql.Conn {
	p.t.Helper()
	conn, err := p.asTenant(app, database, password).Conn(p.t.Context())
	require.NoError(p.t, err)
	return conn
}

// asTenant is a site's database where it is now, as its user, by the way and with the certificate of its
// app server.
func (c *cell) asTenant(app, database, password string) *sql.DB {
	c.t.Helper()
	tlsDir := filepath.Join(c.rootOf(app), wire.BenchMount, wire.TLSDir)
	pair, err := tls.LoadX509KeyPair(tlsDir+"/cert.pem", tlsDir+"/key.pem")
	require.NoError(c.t, err)
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd, cfg.DBName = "tcp", "", database, password, database
	c.query(&cfg.Addr, `SELECT host(s.private_address) || ':3306' FROM servers s JOIN tenant_allocations a ON a.db_shard_id = s.server_id WHERE a.released_at IS NULL AND a.database_name = $1`, database)
	cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}
	connector, err := mysql.NewConnector(cfg)
	require.NoError(c.t, err)
	db := sql.OpenDB(connector)
	c.t.Cleanup(func() { _ = db.Close() })
	return db
}

// background has a site's own code queue a job, as a request does.
func (p *public) background(app, method string) {
	p.t.Helper()
	code := "import sys\nsys.dont_write_bytecode = True\nsys.path.insert(0, " + strconv.Quote(filepath.Join(repo, "lab/sim/bench")) + ")\n" +
		"import json\nfrom frappe import jobs\nfrom frappe.utils import redis_wrapper\n" +
		"jobs.queue(redis_wrapper.Redis(json.load(open('common_site_config.json'))['redis_queue']), " + strconv.Quote(movedSite) + ", " + strconv.Quote(method) + ")"
	cmd := exec.CommandContext(p.t.Context(), "/usr/bin/python3", "-c", code)
	cmd.Dir = filepath.Join(p.rootOf(app), wire.BenchDir, "sites")
	out, err := cmd.CombinedOutput()
	require.NoError(p.t, err, string(out))
}

// ran has a worker of an app server run its queued jobs, and returns how often a job has run anywhere.
func (p *public) ran(app, database, method string) int {
	p.t.Helper()
	root := p.rootOf(app)
	cmd := exec.CommandContext(p.t.Context(), filepath.Join(root, wire.BenchBinary), "worker", "--queue", "default", "--burst")
	cmd.Dir = filepath.Join(root, wire.BenchDir)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8", "FRAPPE_BENCH_ROOT=" + cmd.Dir}
	out, err := cmd.CombinedOutput()
	require.NoError(p.t, err, string(out))
	return inMariaDB[int](p.cell, app, database, "SELECT COUNT(*) FROM `"+database+"`.`tabScheduled Job Log` WHERE scheduled_job_type = ?", method)
}
