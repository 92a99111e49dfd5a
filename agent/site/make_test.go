package site

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/deep"
)

// whole asks the site's database as the site itself would.
func (b *testBench) whole(site, database string) {
	b.t.Helper()
	require.Equal(b.t, database, b.read("sites/" + site + "/site_config.json")["db_name"])
	require.JSONEq(b.t, `["frappe"]`, b.good("--site", site, "list-apps"), "its own user gets in")
	require.Equal(b.t, 1, b.ask("SELECT COUNT(*) FROM `"+database+"`.tabUser WHERE name = 'Administrator'"))
	_, users := b.left(database)
	require.Equal(b.t, 1, users, "from anywhere, and nowhere else")
}

func TestASiteIsMadeOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	db := b.database("a")
	require.JSONEq(t, `{"site":"a.example.com","db_name":"`+db+`","made":true}`, b.good("new-site", "a.example.com", "--db-name", db))
	b.whole("a.example.com", db)
	require.Equal(t, 1, b.ask("SELECT COUNT(*) FROM mysql.user WHERE User = ? AND Host = '%'", db), "the login scope")
	b.exec("CREATE TABLE `" + db + "`.mine (x INT)")

	require.JSONEq(t, `{"site":"a.example.com","db_name":"`+db+`","made":false}`, b.good("new-site", "a.example.com", "--db-name", db))
	require.Equal(t, 1, b.ask("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ? AND table_name = 'mine'", db), "it is the same one")
	require.Contains(t, b.bad("new-site", "a.example.com", "--db-name", b.database("b")), "already exists with another database")
	require.Contains(t, b.bad("new-site", "b.example.com", "--db-name", db), "has tables: it is of another site")
	require.JSONEq(t, `["a.example.com"]`, b.good("list-sites"))

	// Nothing that is secret was an argument of bench's, or is kept.
	log, err := os.ReadFile(b.path("logs/bench.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "new-site a.example.com")
	require.NoError(t, filepath.WalkDir(b.root, func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			require.NotContains(t, string(text), rootPassword, name)
		}
		return err
	}))
}

func TestWhatIsNotOursIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, os.MkdirAll(b.path("sites/theirs.example.com"), 0o755))
	b.write("sites/theirs.example.com/site_config.json", map[string]any{"db_name": "_theirs", "db_password": "x"})
	db := b.database("a")
	require.Contains(t, b.bad("new-site", "theirs.example.com", "--db-name", db), "not made by this program")
	require.Contains(t, b.bad("promote-site", "theirs.example.com", "a.example.com"), "not made by this program")
	require.Contains(t, b.bad("erase-site", "theirs.example.com", "--db-name", db), `has database "_theirs"`)
	require.DirExists(t, b.path("sites/theirs.example.com"))
	for _, name := range []string{"mysql", "_theirs", "tenant_", "information_schema", db + "`"} {
		require.Equal(t, 2, b.verb(-1, nil, "erase-site", "theirs.example.com", "--db-name", name).status, name)
		require.Equal(t, 2, b.verb(-1, nil, "new-site", "x.example.com", "--db-name", name).status, name)
	}
}

// TestAKilledNewSiteIsMadeAgain ends the verb at each of its steps, and while bench makes the site's directory or
// its database.
func TestAKilledNewSiteIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	killed, begun := 0, 0
	for n := 0; ; n++ {
		site, db := "k"+string(rune('a'+n))+".example.com", b.database("k"+string(rune('a'+n)))
		if b.verb(n, nil, "new-site", site, "--db-name", db).status != killedAt {
			break
		}
		killed++
		if _, err := os.Stat(b.path("sites/" + site)); err == nil {
			require.Contains(t, b.bad("--site", site, "usage"), "is not finished")
			begun++
		}
		b.good("new-site", site, "--db-name", db)
		b.whole(site, db)
	}
	require.GreaterOrEqual(t, killed, 6)
	require.GreaterOrEqual(t, begun, 2)

	halves := 0
	for n, begun := range []string{"", "site_config.json", "", "site_config.json"} {
		site, db := "b"+string(rune('a'+n))+".example.com", b.database("b"+string(rune('a'+n)))
		r := b.start(-1, nil, "new-site", site, "--db-name", db)
		require.Eventually(t, func() bool {
			_, err := os.Stat(b.path("sites/" + site + "/" + begun))
			return err == nil
		}, time.Minute, time.Millisecond)
		_ = r.cmd.Process.Kill()
		d := b.finish(r)
		time.Sleep(100 * time.Millisecond) // what bench started goes with its streams
		if _, err := os.Stat(b.path("sites/" + site + "/site_config.json")); err == nil && d.status != 0 {
			halves++
		}
		b.good("new-site", site, "--db-name", db)
		b.whole(site, db)
	}
	t.Logf("%d steps, %d half-made sites", killed, halves)
	require.Positive(t, halves, "bench was killed when it had begun")
}

func TestAHalfMadeSiteUnderAnotherDatabase(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	one, two := b.database("one"), b.database("two")
	require.Equal(t, killedAt, b.verb(5, nil, "new-site", "a.example.com", "--db-name", one).status)
	b.good("new-site", "a.example.com", "--db-name", two)
	b.whole("a.example.com", two)
	databases, users := b.left(one)
	require.Zero(t, databases+users)
}

func TestNewSiteNeedsItsDatabaseServer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := b.verb(-1, map[string]string{policy.SecretRootPassword: ""}, "new-site", "a.example.com", "--db-name", b.database("a"))
	require.Contains(t, d.stderr, errNoRoot.Error())
	d = b.verb(-1, map[string]string{policy.SecretRootPassword: "wrong-password"}, "new-site", "a.example.com", "--db-name", b.database("a"))
	require.Equal(t, 1, d.status)
	require.Contains(t, d.stderr, "Access denied")
	require.NotContains(t, d.stderr, "wrong-password")
	require.NoDirExists(t, b.path("sites/a.example.com"))
}

func TestPromote(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	db := b.database("a")
	b.good("new-site", "pool.example.com", "--db-name", db)
	require.NoError(t, os.WriteFile(b.path("sites/pool.example.com/"+wire.SiteOwnerFile), []byte("t-1\n"), 0o600))
	for n := 0; ; n++ {
		d := b.verb(n, nil, "promote-site", "pool.example.com", "one.example.com")
		if d.status == 0 {
			break
		}
		require.Equal(t, killedAt, d.status, d.stderr)
		require.Less(t, n, 20)
	}
	require.NoDirExists(t, b.path("sites/pool.example.com"))
	require.FileExists(t, b.path("sites/one.example.com/"+wire.SiteOwnerFile), "its owner moves with it")
	b.whole("one.example.com", db)
	require.Equal(t, "https://one.example.com", b.read("sites/one.example.com/site_config.json")["host_name"])
	require.JSONEq(t, `{"site":"one.example.com","promoted_from":"pool.example.com"}`, b.good("promote-site", "pool.example.com", "one.example.com"))

	require.Contains(t, b.bad("promote-site", "other.example.com", "one.example.com"), "was not promoted from other.example.com")
	require.Contains(t, b.bad("promote-site", "other.example.com", "another.example.com"), "does not exist")
	b.good("new-site", "pool.example.com", "--db-name", b.database("b"))
	require.Contains(t, b.bad("promote-site", "pool.example.com", "one.example.com"), "already exists")
	require.Equal(t, killedAt, b.verb(4, nil, "new-site", "half.example.com", "--db-name", b.database("c")).status)
	require.Contains(t, b.bad("promote-site", "half.example.com", "two.example.com"), "is not finished")
}

func TestErase(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	db, other := b.database("a"), b.database("b")
	b.good("new-site", "other.example.com", "--db-name", other)
	make1 := func() {
		b.good("new-site", "a.example.com", "--db-name", db)
		b.good("--site", "a.example.com", "backup", "one", "--with-files")
		b.exec("CREATE USER '" + db + "'@'10.1.2.3' IDENTIFIED BY 'x'")
		for _, dir := range []string{"a.example.com", "a.example.com1", "a.example.com2", "a.example.comx"} {
			require.NoError(t, os.MkdirAll(b.path("archived/sites/"+dir), 0o755))
			b.write("archived/sites/"+dir+"/site_config.json", map[string]any{"db_name": map[bool]string{true: db, false: "_else"}[!strings.HasSuffix(dir, "2")]})
		}
	}
	gone := func() {
		databases, users := b.left(db)
		require.Zero(t, databases+users)
		require.NoError(t, filepath.WalkDir(b.path("sites"), func(name string, _ os.DirEntry, err error) error {
			require.NotContains(t, name, "a.example.com")
			return err
		}))
		require.NoDirExists(t, b.path("archived/sites/a.example.com"))
		require.NoDirExists(t, b.path("archived/sites/a.example.com1"))
		require.DirExists(t, b.path("archived/sites/a.example.com2"), "of another site")
		require.DirExists(t, b.path("archived/sites/a.example.comx"))
		b.whole("other.example.com", other)
	}
	make1()
	held := b.sitting("a.example.com", db)
	require.NoError(t, held())
	require.JSONEq(t, `{"site":"a.example.com","directory":true,"backups":4,"archives":2,"database":true,"users":2,"redis_keys":0}`, b.good("erase-site", "a.example.com", "--db-name", db))
	gone()
	require.ErrorIs(t, held(), mysql.ErrInvalidConn, "who sat in a transaction holds nothing up")
	require.JSONEq(t, `{"site":"a.example.com","directory":false,"backups":0,"archives":0,"database":false,"users":0,"redis_keys":0}`, b.good("erase-site", "a.example.com", "--db-name", db), "absent is success")

	const steps = 7 // of erasing; the last case is killed at none
	for _, n := range append(deep.Some(t, 3, numbers(steps)), steps) {
		make1()
		d := b.verb(n, nil, "erase-site", "a.example.com", "--db-name", db)
		if n == steps {
			require.Zero(t, d.status, "there are more steps: %s", d.stderr)
			break
		}
		require.Equal(t, killedAt, d.status, d.stderr)
		b.good("erase-site", "a.example.com", "--db-name", db)
		gone()
	}

	// A missing part is no reason to leave the rest.
	lost := map[string]func(){
		"the database":      func() { b.exec("DROP DATABASE " + db) },
		"the users":         func() { b.exec("DROP USER " + db) },
		"the directory":     func() { require.NoError(t, os.RemoveAll(b.path("sites/a.example.com"))) },
		"the configuration": func() { require.NoError(t, os.Remove(b.path("sites/a.example.com/site_config.json"))) },
		"the archive":       func() { require.NoError(t, os.RemoveAll(b.path("archived"))) },
	}
	for _, name := range deep.Some(t, 2, slices.Sorted(maps.Keys(lost))) {
		make1()
		lost[name]()
		b.good("erase-site", "a.example.com", "--db-name", db)
		require.NoError(t, os.MkdirAll(b.path("archived/sites/a.example.com2"), 0o755))
		require.NoError(t, os.MkdirAll(b.path("archived/sites/a.example.comx"), 0o755))
		gone()
	}

	// Half-made, at each step of its making.
	for _, n := range deep.Some(t, 3, numbers(7)) {
		require.Equal(t, killedAt, b.verb(n, nil, "new-site", "a.example.com", "--db-name", db).status)
		b.good("erase-site", "a.example.com", "--db-name", db)
		gone()
	}

	require.Contains(t, b.bad("erase-site", "other.example.com", "--db-name", db), `has database "`+other+`"`)
	require.Contains(t, b.bad("erase-site", "a.example.com", "--db-name", other), "is site other.example.com's")
	b.whole("other.example.com", other)
	b.write("sites/common_site_config.json", map[string]any{"db_host": "127.0.0.1", "db_port": 1})
	require.Contains(t, b.bad("erase-site", "other.example.com", "--db-name", other), "the database server")
	require.DirExists(t, b.path("sites/other.example.com"), "it is for the next call")
	d := b.verb(-1, map[string]string{policy.SecretRootPassword: ""}, "erase-site", "other.example.com", "--db-name", other)
	require.Zero(t, d.status, d.stderr)
	require.Contains(t, d.stdout, `"database_unreached":true`)
	require.NoDirExists(t, b.path("sites/other.example.com"))
}

func TestAPromotedSiteIsErasedUnderItsName(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	db := b.database("a")
	b.good("new-site", "pool.example.com", "--db-name", db)
	b.good("promote-site", "pool.example.com", "one.example.com")
	require.Contains(t, b.good("erase-site", "pool.example.com", "--db-name", db), `"kept_for":"one.example.com"`)
	b.whole("one.example.com", db)
	require.Contains(t, b.good("erase-site", "one.example.com", "--db-name", db), `"database":true`)
	databases, users := b.left(db)
	require.Zero(t, databases+users)
}

// numbers are those from 0 on.
func numbers(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
