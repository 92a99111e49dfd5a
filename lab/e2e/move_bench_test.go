package e2e

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// BenchmarkMoveOf1GB prints for how long a site with 1 GB of files can't be written to when it
// moves, while rows are written all the time and 20 files are added to it during the copy.
func BenchmarkMoveOf1GB(b *testing.B) {
	s := s3test.Start(b)
	c := newCell(b, options{vars: backupVars(s, map[string]string{"PREGO_MOVE_GRACE": "1s", "PREGO_SITE_TIMEOUT": "5m", "PREGO_LOG_LEVEL": "warn"})})
	c.org("acme", "")
	app := c.sharedFleet(0)
	const site = "alpha.sites.test"
	id := c.tenant("alpha", prego.PlanStarter, nil)
	database := c.settledTenant(id, tenant.Active).Allocation.DatabaseName
	c.create("app2", prego.RoleApp, server.Spec{})
	c.awaitStatus("app2", server.Active)
	file := func(name string, bytes int) {
		b.Helper()
		noise := make([]byte, bytes)
		_, _ = rand.Read(noise)
		require.NoError(b, os.WriteFile(filepath.Join(c.rootOf(app), wire.BenchDir, "sites", site, "private/files", name), noise, 0o644))
	}
	const large, small = 12, 2000
	for i := range large {
		file(fmt.Sprintf("large-%d", i), 64<<20)
	}
	for i := range small { // 219 MB
		file(fmt.Sprintf("small-%d", i), 110_000)
	}
	of := "/v1/tenants/" + id
	for b.Loop() {
		w := c.typist(app, id, site)
		w.more(5)
		began := time.Now()
		var m api.Move
		c.post(of+"/moves", nil, http.StatusAccepted, &m)
		for i := range 20 {
			file(fmt.Sprintf("later-%d", i), 1<<20)
			time.Sleep(20 * time.Millisecond)
		}
		eventually(b, func() bool {
			c.send(http.MethodGet, of+"/moves/"+m.MoveId, nil, http.StatusOK, &m)
			return m.State.Ended()
		}, 10*time.Minute, 100*time.Millisecond)
		require.Equal(b, tenant.MoveDone, m.State, deref(m.Message))
		rows, _ := w.ends(c, app, database)
		b.Logf("%d MB were copied in %s while the site served, %d kB while it was read-only: %d ms; %d rows, none lost", m.CopiedBytes>>20, m.FrozenAt.Sub(*m.StartedAt).Round(time.Millisecond), m.DeltaBytes>>10, *m.DowntimeMs, rows)
		b.Logf("%s from the request to the old server being cleared", time.Since(began).Round(time.Second))
		require.Less(b, *m.DowntimeMs, int64(10_000))
		benchjson.Record(b, "move_1gb_readonly_ms", float64(*m.DowntimeMs), "ms", 0)
		app = deref(m.ToServerId)
	}
}

// logged writes to the large table of a database without a pause, as its user: numbered rows, and changes and deletions
// of existing ones. Confirmed writes must be there later.
type logged struct {
	db      *sql.DB
	stop    context.CancelFunc
	work    sync.WaitGroup
	rows    int           // inserted, which were confirmed
	denied  int           // after them
	longest time.Duration // between two that were confirmed
}

func (l *logged) write(ctx context.Context) {
	last := time.Now()
	for n := 1; ctx.Err() == nil; {
		_, err := l.db.ExecContext(ctx, "INSERT INTO tabLog (name, creation, modified, status, data) VALUES (?, NOW(6), NOW(6), 'written', REPEAT('w', 900))", fmt.Sprintf("written-%07d", n))
		if err != nil {
			l.denied++
			time.Sleep(5 * time.Millisecond)
			continue
		}
		l.rows, l.longest, last = n, max(l.longest, time.Since(last)), time.Now()
		n++
		_, _ = l.db.ExecContext(ctx, "UPDATE tabLog SET status = 'changed', modified = NOW(6) WHERE name = ?", fmt.Sprintf("LOG-%08d", n*7))
		_, _ = l.db.ExecContext(ctx, "DELETE FROM tabLog WHERE name = ?", fmt.Sprintf("LOG-%08d", n*7+1))
		time.Sleep(2 * time.Millisecond)
	}
}

// shardSocket is how programs reach the MariaDB of a shard: paths of sockets are short.
func (c *cell) shardSocket(shard string) (dir *os.File, password string) {
	c.t.Helper()
	root := c.rootOf(shard)
	secret, err := os.ReadFile(filepath.Join(root, wire.SecretsDir, "mariadb-root"))
	require.NoError(c.t, err)
	dir, err = os.Open(filepath.Join(root, "run/prego/mysqld"))
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = dir.Close() })
	return dir, strings.TrimSpace(string(secret))
}

// mariadb prepares a client's program for a shard.
func (c *cell) mariadb(shard, program string, args ...string) *exec.Cmd {
	c.t.Helper()
	dir, password := c.shardSocket(shard)
	cmd := exec.CommandContext(c.t.Context(), program, append([]string{"--no-defaults", "--user=root", "--socket=/proc/self/fd/3/mysqld.sock"}, args...)...)
	cmd.ExtraFiles, cmd.Env, cmd.Stderr = []*os.File{dir}, append(os.Environ(), "MYSQL_PWD="+password), os.Stderr
	return cmd
}

// piped is the time that mariadb-dump and mariadb take to copy an idle database.
func (c *cell) piped(from, to, database string) time.Duration {
	c.t.Helper()
	const copied = "piped"
	began := time.Now()
	load := c.mariadb(to, "mariadb", "-e", "CREATE DATABASE "+copied)
	require.NoError(c.t, load.Run())
	dump := c.mariadb(from, "mariadb-dump", "--single-transaction", "--quick", database)
	load = c.mariadb(to, "mariadb", copied)
	var err error
	load.Stdin, err = dump.StdoutPipe()
	require.NoError(c.t, err)
	require.NoError(c.t, load.Start())
	require.NoError(c.t, dump.Start())
	require.NoError(c.t, errors.Join(load.Wait(), dump.Wait()))
	took := time.Since(began)
	require.NoError(c.t, c.mariadb(to, "mariadb", "-e", "DROP DATABASE "+copied).Run())
	return took
}

// BenchmarkMoveOfA1GBDatabase prints for how long a site with a database of 1 GB can't be written to
// when that moves to another shard, while rows are inserted, changed and deleted all the time, and how
// long the copy takes beside mariadb-dump piped into mariadb in the same run.
func BenchmarkMoveOfA1GBDatabase(b *testing.B) {
	s := s3test.Start(b)
	c := newCell(b, options{vars: backupVars(s, map[string]string{
		"PREGO_MOVE_GRACE": "1s", "PREGO_SITE_TIMEOUT": "10m", "PREGO_LOG_LEVEL": "info",
	})})
	c.org("acme", "")
	app := c.sharedFleet(0)
	const site = "alpha.sites.test"
	id := c.tenant("alpha", prego.PlanStarter, nil)
	database := c.settledTenant(id, tenant.Active).Allocation.DatabaseName
	c.create("db2", prego.RoleDBShard, server.Spec{})
	c.awaitStatus("db2", server.Active)
	from, to := c.id("db"), c.id("db2")
	root := c.hostDB(app, database)
	q := func(query string) {
		b.Helper()
		_, err := root.Exec(query)
		require.NoError(b, err, "%.200s", query)
	}
	// Most rows in one table, as of a log, many in some, and a hundred small tables.
	table := func(name, text string) {
		q("CREATE TABLE `" + database + "`." + name + " (name VARCHAR(140) PRIMARY KEY, creation DATETIME(6), modified DATETIME(6), owner VARCHAR(140), idx INT NOT NULL DEFAULT 0, status VARCHAR(140), amount DECIMAL(21,9), data " + text + ", KEY modified (modified))")
	}
	fill := func(name string, rows, from int, data string) {
		q(fmt.Sprintf("INSERT INTO `%s`.%s SELECT CONCAT('LOG-', LPAD(seq, 8, '0')), NOW(6) - INTERVAL seq SECOND, NOW(6) - INTERVAL seq SECOND, 'Administrator', seq, 'Open', seq / 7, %s FROM `%s`.seq_%d_to_%d", database, name, data, database, from, from+rows-1))
	}
	hex := func(n int) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = fmt.Sprintf("SHA2(seq * 8 + %d, 512)", i) // no two rows have the same
		}
		return "CONCAT(" + strings.Join(parts, ", ") + ")"
	}
	began := time.Now()
	table("tabLog", "LONGTEXT")
	const chunk = 40_000
	for i := range 19 {
		fill("tabLog", chunk, 1+i*chunk, hex(8))
	}
	for i := range 3 {
		table(fmt.Sprintf("tabEntry%d", i), "TEXT")
		fill(fmt.Sprintf("tabEntry%d", i), 250_000, 1, "NULL")
	}
	for i := range 100 {
		table(fmt.Sprintf("tabSmall%d", i), "TEXT")
		fill(fmt.Sprintf("tabSmall%d", i), 50, 1, hex(2))
	}
	var bytes, rows int64
	measure := "SELECT SUM(data_length + index_length), SUM(table_rows) FROM information_schema.tables WHERE table_schema = ?"
	for _, name := range []string{"tabLog", "tabEntry0", "tabEntry1", "tabEntry2"} {
		q("ANALYZE TABLE `" + database + "`." + name)
	}
	require.NoError(b, root.QueryRow(measure, database).Scan(&bytes, &rows))
	b.Logf("a database of %d MB and about %d rows, made in %s", bytes>>20, rows, time.Since(began).Round(time.Second))
	bare := c.piped(from, to, database)
	b.Logf("mariadb-dump | mariadb: %s", bare.Round(time.Millisecond))

	of := "/v1/tenants/" + id
	for b.Loop() {
		w := c.typist(app, id, site)
		// As the tenant, whose right to write is revoked; afterwards it is on another shard.
		config := c.readJSON(filepath.Join(c.rootOf(app), wire.BenchDir, "sites", site, "site_config.json"))
		ctx, stop := context.WithCancel(context.Background())
		l := &logged{db: c.asTenant(app, database, fmt.Sprint(config["db_password"])), stop: stop}
		l.work.Go(func() { l.write(ctx) })
		w.more(5)
		var m api.Move
		c.post(of+"/moves", map[string]any{"to_shard_id": to}, http.StatusAccepted, &m)
		eventually(b, func() bool {
			c.send(http.MethodGet, of+"/moves/"+m.MoveId, nil, http.StatusOK, &m)
			return m.State.Ended()
		}, 15*time.Minute, 100*time.Millisecond)
		l.stop()
		l.work.Wait()
		require.Equal(b, tenant.MoveDone, m.State, deref(m.Message))
		typed, _ := w.ends(c, app, database)
		there := inMariaDB[int](c, app, database, "SELECT COUNT(*) FROM `"+database+"`.tabLog WHERE name LIKE 'written-%'")
		require.GreaterOrEqual(b, there, l.rows)
		require.Zero(b, inMariaDB[int](c, app, database, fmt.Sprintf("SELECT %d - COUNT(*) FROM `%s`.tabLog WHERE name BETWEEN 'written-0000001' AND 'written-%07d'", l.rows, database, l.rows)), "rows that were confirmed")
		require.Positive(b, l.denied)
		took := m.FrozenAt.Sub(*m.StartedAt)
		b.Logf("%d MB of archives were made in %s while the site served, %d kB while it was read-only: %d ms; %d rows typed, %d logged meanwhile, none lost", m.CopiedBytes>>20, took.Round(time.Millisecond), m.DeltaBytes>>10, *m.DowntimeMs, typed, l.rows)
		require.Less(b, *m.DowntimeMs, int64(10_000))
		benchjson.Record(b, "move_1gb_database_copy_ms", float64(took.Milliseconds()), "ms", float64(bare.Milliseconds()))
		benchjson.Record(b, "move_1gb_database_readonly_ms", float64(*m.DowntimeMs), "ms", 0)
		from, to = to, from
	}
}
