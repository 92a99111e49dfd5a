package site

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

func TestConfigure(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	site := "a.example.com"
	b.good("new-site", site, "--db-name", b.database("a"))
	name := "sites/" + site + "/site_config.json"
	before := b.read(name)
	require.NoError(t, os.Chmod(b.path(name), 0o640))
	b.goodWith(map[string]string{wire.SecretMailPassword: "mail pass"}, "--site", site, "configure", `{"host_name":"https://x","mail_port":587,"use_tls":true}`)
	after := b.read(name)
	require.Equal(t, []any{"https://x", 587.0, true, "mail pass"}, []any{after["host_name"], after["mail_port"], after["use_tls"], after["mail_password"]})
	require.Equal(t, []any{before["db_name"], before["db_password"]}, []any{after["db_name"], after["db_password"]})
	info, err := os.Stat(b.path(name))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	b.good("--site", site, "configure", `{"mail_password":null,"mail_port":null,"mail_server":null}`)
	after = b.read(name)
	require.NotContains(t, after, "mail_password")
	require.NotContains(t, after, "mail_port")
	require.Equal(t, 1, b.verb(-1, nil, "--site", site, "configure", `{"db_name":"pool_x"}`).status)
	require.Contains(t, b.bad("--site", site, "set-config", "db_name", "pool_x"), "the host's own")
	require.Contains(t, b.bad("--site", "x.example.com", "configure", `{"host_name":"x"}`), "does not exist")

	// As bench writes words.
	for word, want := range map[string]any{"1": 1.0, "0": 0.0, "true": true, "false": false, "None": nil, "7": "7", "": "", "a b": "a b"} {
		b.good("--site", site, "set-config", "mine", word)
		require.Equal(t, want, b.read(name)["mine"], word)
	}
	b.good("--site", site, "set-maintenance-mode", "on")
	require.Equal(t, 1.0, b.read(name)["maintenance_mode"])
	b.good("--site", site, "set-maintenance-mode", "off")
	require.Equal(t, 0.0, b.read(name)["maintenance_mode"])

	// A kill leaves the old or the new content, and concurrent verbs lose nothing.
	for n := range 3 {
		b.verb(n, nil, "--site", site, "configure", `{"host_name":"https://y"}`)
		require.Contains(t, []any{"https://x", "https://y"}, b.read(name)["host_name"])
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if i%4 == 0 { // Frappe's own way of writing it
				cmd := exec.Command(filepath.Join(b.root, wire.BenchBinary), "--site", site, "set-config", "k"+string(rune('0'+i)), "x")
				cmd.Dir = b.path("")
				_ = cmd.Run()
				return
			}
			b.verb(-1, nil, "--site", site, "set-config", "k"+string(rune('0'+i)), "x")
		})
	}
	wg.Wait()
	after = b.read(name)
	for i := range 8 {
		require.Equal(t, "x", after["k"+string(rune('0'+i))])
	}
}

func TestPeople(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	site, db := "a.example.com", b.database("a")
	b.good("new-site", site, "--db-name", db)
	hash := func(user string) (h string) {
		_ = b.db.QueryRow("SELECT password FROM `"+db+"`.__Auth WHERE doctype = 'User' AND name = ?", user).Scan(&h)
		return h
	}
	first := hash("Administrator")
	require.NotEmpty(t, first)
	secret := map[string]string{wire.SecretAdminPassword: "s3cret 'quoted' ü"}
	b.goodWith(secret, "--site", site, "set-admin-password")
	require.NotEqual(t, first, hash("Administrator"))
	require.Contains(t, b.bad("--site", site, "set-admin-password"), "there is no password")

	require.JSONEq(t, `{"site":"a.example.com","user":"kim@example.com","added":true}`,
		b.goodWith(map[string]string{wire.SecretUserPassword: "her own Pass"}, "--site", site, "add-user", "Kim@Example.com", "Kim van Dyk"))
	require.Equal(t, 1, b.ask("SELECT COUNT(*) FROM `"+db+"`.tabUser WHERE name = 'kim@example.com' AND first_name = 'Kim' AND last_name = 'van Dyk' AND user_type = 'System User'"))
	require.Equal(t, 1, b.ask("SELECT COUNT(*) FROM `"+db+"`.`tabHas Role` WHERE parent = 'kim@example.com' AND role = 'System Manager'"))
	pass := hash("kim@example.com")
	require.NotEmpty(t, pass)
	require.JSONEq(t, `{"site":"a.example.com","user":"kim@example.com","added":false}`, b.good("--site", site, "add-user", "kim@example.com", "Kim"))
	require.JSONEq(t, `{"site":"a.example.com","user":"o'brien@example.com","added":true}`, b.good("--site", site, "add-user", "o'brien@example.com", "Ann O'Brien"))
	require.Equal(t, pass, hash("kim@example.com"), "without a password it stays")
	require.JSONEq(t, `{"database_bytes":0,"files_bytes":0,"backups_bytes":0,"users":2}`, masksBytes(b.good("--site", site, "usage")))

	require.NoError(t, filepath.WalkDir(b.root, func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			for _, s := range []string{"s3cret", "her own Pass"} {
				require.NotContains(t, string(text), s, name)
			}
		}
		return err
	}))
}

func masksBytes(line string) string {
	var out []string
	for part := range strings.SplitSeq(line, ",") {
		if key, _, ok := strings.Cut(part, "_bytes\":"); ok {
			part = key + "_bytes\":0"
		}
		out = append(out, part)
	}
	return strings.Join(out, ",")
}

func TestAppsAndUsage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	site, db := "a.example.com", b.database("a")
	b.good("new-site", site, "--db-name", db)
	for n := 0; ; n++ {
		if b.verb(n, nil, "--site", site, "install-app", "erpnext").status == 0 {
			break
		}
		require.Less(t, n, 8)
	}
	require.JSONEq(t, `["frappe","erpnext"]`, b.good("--site", site, "list-apps"))
	b.good("--site", site, "install-app", "erpnext")
	require.Contains(t, b.bad("--site", site, "install-app", "no_such"), "No module named 'no_such'")
	b.good("--site", site, "enable-scheduler")
	b.good("--site", site, "disable-scheduler")

	use := func() (u used) {
		t.Helper()
		unmarshal(t, b.good("--site", site, "usage"), &u)
		return u
	}
	before := use()
	require.Positive(t, before.Database)
	require.NoError(t, os.WriteFile(b.path("sites/"+site+"/private/files/big"), make([]byte, 1<<20), 0o600))
	require.NoError(t, os.Link(b.path("sites/"+site+"/private/files/big"), b.path("sites/"+site+"/public/files/same")))
	require.NoError(t, os.Symlink("/", b.path("sites/"+site+"/public/files/all")))
	require.NoError(t, os.WriteFile(b.path("sites/"+site+"/private/backups/theirs"), make([]byte, 2<<20), 0o600))
	require.NoError(t, os.MkdirAll(b.path("sites/"+site+"/"+wire.SnapshotsDir+"/x"), 0o755))
	require.NoError(t, os.WriteFile(b.path("sites/"+site+"/"+wire.SnapshotsDir+"/x/ours"), make([]byte, 3<<20), 0o600))
	b.exec("CREATE TABLE `" + db + "`.large (x LONGTEXT) ENGINE=Aria")
	b.exec("INSERT INTO `" + db + "`.large VALUES (REPEAT('x', 4000000))")
	after := use()
	require.InDelta(t, 1<<20, after.Files-before.Files, 1<<14)
	require.InDelta(t, 5<<20, after.Backups-before.Backups, 1<<14)
	require.InDelta(t, 4000000, after.Database-before.Database, 1<<17)
}

func TestNoOtherVerbs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, wire.BenchDir, "sites"), 0o755))
	for _, args := range [][]string{
		nil,
		{"console"},
		{"--site", "a.example.com"},
		{"--site", "a.example.com", "console"},
		{"--site", "../x.y", "usage"},
		{"--site", "a.example.com", "usage", "x"},
		{"--site", "a.example.com", "backup", "../x"},
		{"--site", "a.example.com", "backup", "x", "--force"},
		{"--site", "a.example.com", "install-app", "--force"},
		{"--site", "a.example.com", "set-maintenance-mode", "maybe"},
		{"new-site", "a.example.com"},
		{"promote-site", "a.example.com", "../x.y"},
		{"list-sites", "x"},
	} {
		var out, errs strings.Builder
		require.Equal(t, 2, Run(root, args, strings.NewReader("\n"), &out, &errs), "%q", args)
		require.Contains(t, errs.String(), "there is no verb")
	}
	var out, errs strings.Builder
	require.Zero(t, Run(root, []string{"list-sites"}, strings.NewReader(""), &out, &errs), errs.String())
	require.Equal(t, "[]\n", out.String())
	require.Equal(t, 2, Run(root, []string{"list-sites"}, strings.NewReader("{\"a\":\"secret-text\"\n"), &out, &errs))
	require.NotContains(t, errs.String(), "secret-text")
}

// TestEveryVerbOfTheTableIsHere and no other.
func TestEveryVerbOfTheTableIsHere(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, kind := range []wire.CommandKind{wire.KindBench, policy.KindSpool} {
		for _, r := range policy.Rules[kind] {
			require.NotNil(t, verbs[r.Name()].run, r.Line)
			known[r.Name()] = true
		}
	}
	require.Len(t, verbs, len(known))
}

func TestSecretsAreMaskedInWhatBenchPrints(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	m := &masked{to: &out}
	m.hide("s3cret")
	for _, part := range []string{"a s3c", "ret b\nmariadb --user=x --password=Abc123 db\n", "CREATE USER 'a'@'%' IDENTIFIED BY 'p w'\n", `{"db_password": "zzz", "x": 1}` + "\n", "redis://default:QQ@redis-cache:6379/0\n", "the end s3cret"} {
		_, _ = m.Write([]byte(part))
	}
	m.end()
	require.Equal(t, "a ******** b\nmariadb --user=x --password=******** db\nCREATE USER 'a'@'%' IDENTIFIED BY ********\n{\"db_password\": ********, \"x\": 1}\nredis://default:********@redis-cache:6379/0\nthe end ********\n", out.String())
}

// TestAServerThatStartsIsWaitedFor has the database server take no connection at first, like a new container.
func TestAServerThatStartsIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := net.JoinHostPort("127.0.0.1", strconv.Itoa(mariadb(t)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	var refused atomic.Int64
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if refused.Add(1) <= 3 {
				_ = conn.Close()
				continue
			}
			go func() {
				defer func() { _ = conn.Close() }()
				behind, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer func() { _ = behind.Close() }()
				go func() { _, _ = io.Copy(behind, conn) }()
				_, _ = io.Copy(conn, behind)
			}()
		}
	}()
	at := databaseOf{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}
	db, err := at.open("root", rootPassword, "")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.Greater(t, refused.Load(), int64(3))

	began := time.Now()
	_, err = at.open("root", "another", "")
	require.ErrorContains(t, err, "Access denied")
	require.Less(t, time.Since(began), restartTime, "a refusal comes without a wait")
}
