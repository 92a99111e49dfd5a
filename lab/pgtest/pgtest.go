// Package pgtest gives each test its own migrated database on a real Postgres: a
// template is created once per test binary and cloned per test.
package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/migrations"
)

// cluster is the test binary's Postgres, started on first use.
var cluster struct {
	once     sync.Once
	err      error
	pg       *devstack.Postgres
	dir      string
	url      string // of the maintenance database
	template string
	next     atomic.Int64
	clone    sync.Mutex // clones of one template are made one at a time
}

// Main runs a package's tests and then stops the cluster, if they started one. Call it
// from TestMain.
func Main(m *testing.M) {
	code := m.Run()
	Stop()
	os.Exit(code)
}

// Stop stops the cluster, if it was started. For packages with their own TestMain.
func Stop() {
	if cluster.pg != nil {
		cluster.pg.Stop(10 * time.Second)
		_ = os.RemoveAll(cluster.dir)
	}
}

// URL is the connection string of a new database with the current schema. It is
// dropped when the test ends, unless the test failed.
func URL(t testing.TB) string {
	t.Helper()
	cluster.once.Do(start)
	if cluster.err != nil {
		t.Fatalf("pgtest: %v", cluster.err)
	}
	name := fmt.Sprintf("test_%d_%d", os.Getpid(), cluster.next.Add(1))
	if err := admin(func(ctx context.Context, c *pgx.Conn) error {
		cluster.clone.Lock()
		defer cluster.clone.Unlock()
		_, err := c.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+cluster.template+" STRATEGY FILE_COPY")
		return err
	}); err != nil {
		t.Fatalf("pgtest: clone: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("pgtest: database %s is kept until the test binary ends", name)
			return
		}
		if err := admin(func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
			return err
		}); err != nil {
			t.Logf("pgtest: drop %s: %v", name, err)
		}
	})
	return database(name)
}

// Pool returns a pool on a new database, closed when the test ends.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), URL(t))
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func start() { cluster.err = tryStart() }

func tryStart() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cluster.url = os.Getenv("PREGO_TEST_DATABASE_URL")
	if cluster.url == "" {
		dir, err := devstack.Scratch("prego-pgtest-")
		if err != nil {
			return err
		}
		cluster.dir = dir
		if cluster.pg, err = devstack.StartPostgres(ctx,
			devstack.PostgresConfig{Dir: filepath.Join(dir, "pg"), Volatile: true}); err != nil {
			return err
		}
		cluster.url = cluster.pg.URL("postgres")
	}
	cluster.template = "prego_template_" + migrations.Hash()
	return ensureTemplate(ctx, cluster.url, cluster.template)
}

// templateLock keeps test binaries that share a cluster from creating the template concurrently; its number means
// nothing.
const templateLock = 7_734_601

// ensureTemplate makes the migrated database that tests' databases are clones of, unless another
// process has made it, or is about to. It gets its name only once it is complete.
func ensureTemplate(ctx context.Context, cluster, name string) error {
	c, err := pgx.Connect(ctx, cluster)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }() // which gives up the lock
	if _, err := c.Exec(ctx, "SELECT pg_advisory_lock($1)", templateLock); err != nil {
		return err
	}
	var there bool
	if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)",
		name).Scan(&there); err != nil || there {
		return err
	}
	making := name + "_making"
	// possibly left unfinished
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + making + " WITH (FORCE)", "CREATE DATABASE " + making} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if bug := os.Getenv("PREGO_TEST_PLANTED"); bug != "" { // what tools/planted-elsewhere.sh planted in SQL asks this
		if err := plant(ctx, in(cluster, making), bug); err != nil {
			return err
		}
	}
	if err := migrations.Up(ctx, in(cluster, making)); err != nil {
		return err
	}
	if file := os.Getenv("PREGO_TEST_SQL"); file != "" { // a function that tools/mutate has changed
		sql, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := execute(ctx, in(cluster, making), string(sql)); err != nil {
			return err
		}
	}
	_, err = c.Exec(ctx, "ALTER DATABASE "+making+" RENAME TO "+name)
	return err
}

func plant(ctx context.Context, url, bug string) error {
	return execute(ctx, url,
		"CREATE FUNCTION planted(bug text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT bug = '"+bug+"' $$")
}

func execute(ctx context.Context, url, sql string) error {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	_, err = c.Exec(ctx, sql)
	return err
}

func admin(f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, cluster.url)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	return f(ctx, c)
}

func database(name string) string { return in(cluster.url, name) }

// in is the connection string of another database of the same cluster.
func in(cluster, name string) string {
	u, err := url.Parse(cluster)
	if err != nil {
		panic("pgtest: " + err.Error())
	}
	u.Path = "/" + name
	return u.String()
}
