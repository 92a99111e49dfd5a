package site

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// row puts a row into a site, or reads how many there are.
func (b *testBench) put(database, text string) {
	b.exec("INSERT INTO `" + database + "`.tabToDo (name, description) VALUES ('" + text + "', '" + text + "')")
}

func (b *testBench) rows(database string) int {
	return b.ask("SELECT COUNT(*) FROM `" + database + "`.tabToDo")
}

func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	site, db := "a-b.example.com", b.database("a")
	b.good("new-site", site, "--db-name", db)
	b.put(db, "one")
	b.keep(site, "open sesame")
	require.NoError(t, os.WriteFile(b.path("sites/"+site+"/public/files/kept.txt"), []byte("as it was"), 0o600))
	var taken struct {
		Name  string
		Files []file
		Bytes int64
	}
	printed := b.good("--site", site, "backup", "snap-1", "--with-files")
	require.NoError(t, json.Unmarshal([]byte(printed), &taken))
	require.Equal(t, "snap-1", taken.Name)
	require.Len(t, taken.Files, 4)
	var sum int64
	for i, part := range []string{partDatabase, partFiles, partPrivate, partConfig} {
		f := taken.Files[i]
		require.Equal(t, site+"/"+wire.SnapshotsDir+"/snap-1/snap-1-"+part, f.Path)
		info, err := os.Stat(b.path("sites/" + f.Path))
		require.NoError(t, err)
		require.Equal(t, info.Size(), f.Bytes)
		sum += f.Bytes
	}
	require.Equal(t, sum, taken.Bytes)
	b.put(db, "two")
	require.Equal(t, printed, b.good("--site", site, "backup", "snap-1", "--with-files"), "the same one")
	require.Equal(t, printed, b.good("--site", site, "backup", "snap-1"))
	require.Contains(t, b.bad("--site", "x.example.com", "backup", "snap-1"), "does not exist")

	b.good("--site", site, "backup", "db-only")
	require.Contains(t, b.bad("--site", site, "restore", "db-only", "--with-files"), "has no files")
	require.Contains(t, b.bad("--site", site, "restore", "no-such"), "has no backup no-such")
	require.Equal(t, 2, b.rows(db))

	// Restored, with the previous scheduler setting, after any interruption, and in spite of open transactions.
	held := b.sitting(site, db)
	require.NoError(t, os.WriteFile(b.path("sites/"+site+"/public/files/later.txt"), []byte("after the backup"), 0o600))
	require.NoError(t, os.WriteFile(b.path("sites/"+site+"/public/files/kept.txt"), []byte("changed"), 0o600))
	b.good("--site", site, "enable-scheduler")
	killed := 0
	for n := 0; ; n++ {
		d := b.verb(n, nil, "--site", site, "restore", "snap-1", "--with-files")
		if d.status == 0 {
			require.NotContains(t, d.stderr, rootPassword)
			break
		}
		require.Equal(t, killedAt, d.status, d.stderr)
		killed++
	}
	require.GreaterOrEqual(t, killed, 4)
	b.keep(site, "changed") // half a site could not take it
	halves := 0
	for n := range 6 {
		r := b.start(-1, nil, "--site", site, "restore", "snap-1", "--with-files")
		time.Sleep(time.Duration(100+n*70) * time.Millisecond)
		_ = r.cmd.Process.Kill()
		if d := b.finish(r); d.status == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
		if b.ask("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ?", db) < 12 {
			halves++
		}
	}
	t.Logf("%d half restored", halves)
	b.good("--site", site, "restore", "snap-1", "--with-files")
	require.Equal(t, 1, b.rows(db))
	require.Equal(t, "open sesame", b.kept(site))
	text, err := os.ReadFile(b.path("sites/" + site + "/public/files/kept.txt"))
	require.NoError(t, err)
	require.Equal(t, "as it was", string(text))
	require.NoFileExists(t, b.path("sites/"+site+"/public/files/later.txt"))
	require.NoDirExists(t, b.path("sites/"+site+"/"+asideDir))
	require.ErrorIs(t, held(), mysql.ErrInvalidConn, "its session was ended")
	require.Equal(t, 1, b.ask("SELECT COUNT(*) FROM `"+db+"`.tabSingles WHERE doctype = 'System Settings' AND field = 'enable_scheduler' AND value = '1'"), "the scheduler is on, as it was")
	_, users := b.left(db)
	require.Equal(t, 1, users, "the user for where root came from is gone")
	entries, err := os.ReadDir(b.path("sites/" + site))
	require.NoError(t, err)
	for _, e := range entries {
		require.NotContains(t, e.Name(), "snap-1", "no copy of a tar is left")
	}
	require.Equal(t, printed, b.good("--site", site, "backup", "snap-1", "--with-files"), "the backup is as it was")

	// Frappe's own keeping house leaves ours alone.
	old := time.Now().Add(-72 * time.Hour)
	for _, f := range taken.Files {
		require.NoError(t, os.Chtimes(b.path("sites/"+f.Path), old, old))
	}
	b.good("--site", site, "backup", "snap-2")
	require.Equal(t, printed, b.good("--site", site, "backup", "snap-1", "--with-files"))

	require.JSONEq(t, `{"name":"snap-1","deleted":true}`, b.good("--site", site, "delete-backup", "snap-1"))
	require.JSONEq(t, `{"name":"snap-1","deleted":false}`, b.good("--site", site, "delete-backup", "snap-1"))
	require.JSONEq(t, `{"name":"snap-1","deleted":false}`, b.good("--site", "gone.example.com", "delete-backup", "snap-1"))
	require.NoDirExists(t, b.path("sites/"+site+"/"+wire.SnapshotsDir+"/snap-1"))
	require.DirExists(t, b.path("sites/"+site+"/"+wire.SnapshotsDir+"/snap-2"))
}

// sitting is a session of the site that is in a transaction, as web servers leave them; alive fails once it has ended.
func (b *testBench) sitting(site, database string) (alive func() error) {
	b.t.Helper()
	config := b.read("sites/" + site + "/site_config.json")
	common := b.read("sites/common_site_config.json")
	db, err := databaseOf{Host: "127.0.0.1", Port: fmt.Sprint(int(common["db_port"].(float64)))}.open(database, config["db_password"].(string), database)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = db.Close() })
	tx, err := db.Begin()
	require.NoError(b.t, err)
	var n int
	require.NoError(b.t, tx.QueryRow("SELECT COUNT(*) FROM tabUser").Scan(&n))
	return func() error { return tx.QueryRow("SELECT 1").Scan(&n) }
}

// TestARestoreIsNotHeldUp has a session that returns into a transaction as soon as it is ended, as a web server does.
func TestARestoreIsNotHeldUp(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	site, db := "a.example.com", b.database("a")
	b.good("new-site", site, "--db-name", db)
	b.good("--site", site, "backup", "one")
	config, common := b.read("sites/"+site+"/site_config.json"), b.read("sites/common_site_config.json")
	var ended atomic.Int32
	stop := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			at, err := databaseOf{Host: "127.0.0.1", Port: fmt.Sprint(int(common["db_port"].(float64)))}.open(db, config["db_password"].(string), db)
			if err != nil {
				continue // the database is gone for a moment
			}
			if tx, err := at.Begin(); err == nil {
				var n int
				for tx.QueryRow("SELECT COUNT(*) FROM tabUser").Scan(&n) == nil {
					select {
					case <-stop:
						_ = at.Close()
						return
					case <-time.After(20 * time.Millisecond):
					}
				}
				ended.Add(1)
			}
			_ = at.Close()
		}
	})
	began := time.Now()
	b.good("--site", site, "restore", "one")
	close(stop)
	work.Wait()
	require.Less(t, time.Since(began), 40*time.Second)
	require.Positive(t, ended.Load())
}

func TestARestoreThatFailsLeavesTheFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	site := "a.example.com"
	b.good("new-site", site, "--db-name", b.database("a"))
	b.good("--site", site, "backup", "one", "--with-files")
	require.NoError(t, os.WriteFile(b.path("sites/"+site+"/public/files/mine.txt"), []byte("x"), 0o600))
	dump := b.path("sites/" + site + "/" + wire.SnapshotsDir + "/one/one-" + partDatabase)
	require.NoError(t, os.WriteFile(dump, []byte("not a dump"), 0o600))
	b.bad("--site", site, "restore", "one", "--with-files")
	require.FileExists(t, b.path("sites/"+site+"/public/files/mine.txt"))
	b.good("--site", site, "usage")
}

func TestAKilledBackupIsNoBackup(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	site, db := "a.example.com", b.database("a")
	b.good("new-site", site, "--db-name", db)
	killed := 0
	for n := 0; ; n++ {
		d := b.verb(n, nil, "--site", site, "backup", "one", "--with-files")
		if d.status == 0 {
			break
		}
		require.Equal(t, killedAt, d.status, d.stderr)
		require.Contains(t, b.bad("--site", site, "restore", "one"), "has no backup")
		killed++
	}
	require.Equal(t, 3, killed)
	for n := 0; ; n++ {
		if d := b.verb(n, nil, "--site", site, "delete-backup", "one"); d.status == 0 {
			break
		}
		require.Less(t, n, 5)
	}
	entries, err := os.ReadDir(b.path("sites/" + site + "/" + wire.SnapshotsDir))
	require.NoError(t, err)
	require.Empty(t, entries)

	// A backup that bench can't make leaves nothing.
	b.exec("RENAME TABLE `" + db + "`.tabFile TO `" + db + "`.tabFile2")
	b.exec("ALTER USER " + db + " IDENTIFIED BY 'another'")
	b.bad("--site", site, "backup", "two")
	entries, err = os.ReadDir(b.path("sites/" + site + "/" + wire.SnapshotsDir))
	require.NoError(t, err)
	require.Empty(t, entries)
}
