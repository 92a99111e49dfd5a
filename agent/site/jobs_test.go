package site

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/resp"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/need"
)

// queues gives a bench a Redis for its jobs.
func (b *testBench) queues() func(args ...string) any {
	b.t.Helper()
	dir, err := os.MkdirTemp("", "prego-jobs-") // paths of sockets are short
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "redis")
	redis, err := child.Start(exec.Command(need.Program(b.t, "redis-server"), "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir), syscall.SIGKILL)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { redis.Stop(syscall.SIGKILL, 5*time.Second) })
	common := b.read("sites/" + commonConfig)
	common["redis_queue"] = "unix://" + socket
	b.write("sites/"+commonConfig, common)
	var conn net.Conn
	require.Eventually(b.t, func() bool {
		conn, err = net.Dial("unix", socket)
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	b.t.Cleanup(func() { _ = conn.Close() })
	r := resp.New(conn)
	return func(args ...string) any {
		b.t.Helper()
		v, err := r.Do(args...)
		require.NoError(b.t, err, args)
		return v
	}
}

// queue is the name of a queue of this bench.
func (b *testBench) queue(kind string) string {
	dir, err := filepath.EvalSymlinks(filepath.Join(b.root, wire.BenchDir))
	require.NoError(b.t, err)
	return rqQueue + strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-") + ":" + kind
}

// frappe runs code in the stand-in, and returns what it printed.
func (b *testBench) frappe(code string) string {
	b.t.Helper()
	lib, err := filepath.Abs("../../lab/sim/bench")
	require.NoError(b.t, err)
	cmd := exec.CommandContext(b.t.Context(), need.Program(b.t, "/usr/bin/python3"), "-c", "import sys\nsys.dont_write_bytecode = True\nsys.path.insert(0, "+fmt.Sprintf("%q", lib)+")\n"+code)
	cmd.Dir = b.path("sites")
	out, err := cmd.CombinedOutput()
	require.NoError(b.t, err, string(out))
	return strings.TrimSpace(string(out))
}

// keep stores a password of a document in a site, as Frappe does.
func (b *testBench) keep(site, password string) {
	b.t.Helper()
	b.password(site, "set_encrypted", password)
}

// kept reads that password.
func (b *testBench) kept(site string) string {
	b.t.Helper()
	return b.password(site, "get_decrypted")
}

func (b *testBench) password(site, function string, args ...string) string {
	b.t.Helper()
	quoted := ""
	for _, a := range append([]string{"User", "Guest"}, append(args, "api_secret")...) {
		quoted += fmt.Sprintf(", %q", a)
	}
	return b.frappe(fmt.Sprintf("from frappe import passwords, site\ns = site.Site(%q)\nprint(passwords.%s(s%s) or '')", site, function, quoted))
}

func list(v any) (out []string) {
	all, _ := v.([]any)
	for _, item := range all {
		out = append(out, fmt.Sprint(item))
	}
	return out
}

// TestJobsMoveWithTheirSite: jobs that have not begun when a site is held begin at its new place, in order and once,
// after kills at any step; another site's jobs stay. If the site stays after all, so do they.
func TestJobsMoveWithTheirSite(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"each bench has its Redis": false, "they share one": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			jobsMove(t, shared)
		})
	}
}

func jobsMove(t *testing.T, shared bool) {
	from, to := newBench(t), newBench(t)
	const site, other = "a.example.com", "b.example.com"
	db := from.database("a")
	from.good("new-site", site, "--db-name", db)
	from.good("new-site", other, "--db-name", from.database("b"))
	here := from.queues()
	there := here
	if shared {
		common := to.read("sites/" + commonConfig)
		common["redis_queue"] = from.read("sites/" + commonConfig)["redis_queue"]
		to.write("sites/"+commonConfig, common)
	} else {
		there = to.queues()
	}
	enqueue := func(site, method, kind string) string {
		t.Helper()
		return from.frappe(fmt.Sprintf("import json\nfrom frappe import jobs\nfrom frappe.utils import redis_wrapper\nconf = json.load(open('common_site_config.json'))\nprint(jobs.queue(redis_wrapper.Redis(conf['redis_queue']), %q, %q, %q))", site, method, kind))
	}
	queued := func(of *testBench, redis func(...string) any, kind string) []string {
		return list(redis("LRANGE", of.queue(kind), "0", "-1"))
	}
	first, second := enqueue(site, "first", "default"), enqueue(site, "second", "default")
	stays := enqueue(other, "stays", "default")
	long := enqueue(site, "long", "long")
	killed := func(b *testBench, args ...string) {
		t.Helper()
		n := 0
		for ; ; n++ {
			d := b.verb(n, nil, args...)
			if d.status == 0 {
				break
			}
			require.Equal(t, killedAt, d.status, d.stderr)
		}
		require.Greater(t, n, 2, args)
	}

	// It is held, and stays; and again.
	from.good("--site", site, "hold-site")
	from.good("--site", site, "free-site")
	require.Equal(t, []string{stays, first, second}, queued(from, here, "default"))
	killed(from, "--site", site, "hold-site")
	require.Equal(t, []string{stays}, queued(from, here, "default"), "a site that is held begins no jobs")
	require.Empty(t, queued(from, here, "long"))
	require.EqualValues(t, 1, here("EXISTS", rqJob+first), "a query finds it queued")
	killed(from, "--site", site, "free-site")
	require.Equal(t, []string{stays, first, second}, queued(from, here, "default"))
	require.Equal(t, []string{long}, queued(from, here, "long"))
	for range 2 {
		from.good("--site", site, "free-site")
	}
	require.Len(t, queued(from, here, "default"), 3, "each once")

	// It is held, and moves.
	to.good("expect-site", site, "--db-name", db)
	key := identity(t)
	p := packed(t, from, to, site, "mov-1-1", key)
	require.Zero(t, unpack(to, -1, site, p, key, unpackAll).status)
	from.good("--site", site, "hold-site")
	late := enqueue(site, "late", "short") // by a request that was under way
	fields := list(here("HGETALL", rqJob+first))
	p = packed(t, from, to, site, "mov-1-2", key, "mov-1-1")
	require.Zero(t, unpack(to, -1, site, p, key, unpackAll).status)
	require.Empty(t, queued(to, there, "default"), "it is no site yet")
	settled(t, to, from, site, db)
	killed(to, "--site", site, "free-site")
	require.Equal(t, []string{first, second}, queued(to, there, "default"))
	require.Equal(t, []string{long}, queued(to, there, "long"))
	require.Equal(t, []string{late}, queued(to, there, "short"))
	moved := list(there("HGETALL", rqJob+first))
	origin := slices.Index(fields, "origin")
	at := slices.Index(moved, "origin")
	require.Equal(t, strings.TrimPrefix(to.queue("default"), rqQueue), moved[at+1])
	for i := 0; i < len(fields); i += 2 {
		if i != origin {
			at := slices.Index(moved, fields[i])
			require.Equal(t, fields[i+1], moved[at+1], fields[i])
		}
	}

	// A job that arrives at the old place is brought after, twice after a kill, and is one job. A job that has run
	// meanwhile does not run again.
	require.Equal(t, first, fmt.Sprint(there("LPOP", to.queue("default"))))
	there("DEL", rqJob+first)
	last := enqueue(site, "last", "default")
	for range 2 {
		p = packed(t, from, to, site, "mov-1-3", key, "mov-1-2")
		require.Zero(t, unpack(to, -1, site, p, key, unpackMissing).status)
		require.Equal(t, []string{second, last}, queued(to, there, "default"))
	}
	files, err := filepath.Glob(to.path("sites/" + site + "/" + jobsPrefix + "*"))
	require.NoError(t, err)
	require.Empty(t, files)

	// A worker there runs them.
	require.Equal(t, "second", to.frappe(fmt.Sprintf("import json\nfrom frappe import jobs\nfrom frappe.utils import redis_wrapper\nconf = json.load(open('common_site_config.json'))\nprint(jobs.taken(redis_wrapper.Redis(conf['redis_queue']), %q)['method'])", second)))
	from.good("leave-site", site, "--db-name", db)
	require.Equal(t, []string{stays}, queued(from, here, "default"))
	if !shared {
		require.Empty(t, list(here("KEYS", "*"+site+"*")), "nothing of it is left")
	}
	for _, id := range []string{second, last, long, late} {
		require.EqualValues(t, 1, there("EXISTS", rqJob+id))
	}
}

// settled makes what arrived a site that is held, as settle-site does once it has reached the
// database.
func settled(t *testing.T, to, from *testBench, site, db string) {
	t.Helper()
	config := from.read("sites/" + site + "/" + siteConfig)
	to.write("sites/"+site+"/"+siteConfig, config)
	to.write("sites/"+site+"/"+stateFile, map[string]any{"db_name": db, "made": true, "arriving": true, "held": map[string]any{maintenanceKey: nil, readsKey: nil}})
}
