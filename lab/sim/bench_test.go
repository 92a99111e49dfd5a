package sim

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// contributing/frappe.md names the place in Frappe's source for each behaviour tested here. The judge is Frappe itself: with
// PREGO_TEST_FRAPPE, the directory of a bench with Frappe, the same commands are given to it instead (contributing/frappe.md).
var realBench = os.Getenv("PREGO_TEST_FRAPPE")

// bench is a bench with the strict stand-in on a host of a separate cloud.
type bench struct {
	t    *testing.T
	host *processHost
}

const (
	site = "a.example.com"
	db   = "_a"
)

func benchSim(t *testing.T, p Profile) *Sim {
	t.Helper()
	s, err := New(Config{Listen: "127.0.0.1:0", StateDir: t.TempDir(), Token: "secret", Profile: p})
	require.NoError(t, err)
	return s
}

func newBench(t *testing.T, p Profile) *bench {
	t.Helper()
	b := &bench{t: t, host: &processHost{sim: benchSim(t, p), name: "prego-app-1"}}
	b.host.dir = filepath.Join(b.host.sim.cfg.StateDir, "hosts", "1")
	t.Cleanup(func() {
		if s := b.host.sim.services; s != nil {
			s.close()
		}
	})
	b.install()
	b.install() // as at the next boot
	return b
}

func (b *bench) install() {
	b.t.Helper()
	require.NoError(b.t, b.host.installSimulation())
	require.NoError(b.t, b.host.installStrictBench())
	if realBench == "" {
		return
	}
	for _, part := range []string{"apps", "env"} {
		require.NoError(b.t, os.RemoveAll(b.path(part)))
		require.NoError(b.t, os.Symlink(filepath.Join(realBench, part), b.path(part)))
	}
}

// path is a path in the bench's directory.
func (b *bench) path(name string) string { return filepath.Join(b.host.root(), wire.BenchDir, name) }

func (b *bench) read(name string) string {
	b.t.Helper()
	out, err := os.ReadFile(b.path(name))
	require.NoError(b.t, err)
	return string(out)
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	require.NoError(b.t, os.MkdirAll(filepath.Dir(b.path(name)), 0o755))
	require.NoError(b.t, os.WriteFile(b.path(name), []byte(text), 0o600))
}

func (b *bench) conf(of string) map[string]any {
	b.t.Helper()
	var out map[string]any
	require.NoError(b.t, json.Unmarshal([]byte(b.read("sites/"+of+"/site_config.json")), &out))
	return out
}

// result is what a command came to.
type result struct {
	status         int
	stdout, stderr string
}

// command has no terminal, as a command in a container has none.
func (b *bench) command(stdin string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), filepath.Join(b.host.root(), wire.BenchBinary), args...)
	cmd.Dir = b.path("")
	if realBench != "" { // what bench comes to
		cmd = exec.CommandContext(context.Background(), b.path("env/bin/python"), append([]string{"-m", "frappe.utils.bench_helper", "frappe"}, args...)...)
		cmd.Dir = b.path("sites")
	}
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8", "FRAPPE_BENCH_ROOT=" + b.path("")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// input runs a command line with something on standard input.
func (b *bench) input(stdin, line string) result {
	b.t.Helper()
	for {
		cmd := b.command(stdin, strings.Fields(line)...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if errors.Is(err, syscall.ETXTBSY) { // another test forks while the program is written
			continue
		}
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			b.t.Errorf("bench %s: %v", line, err)
		}
		return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}
}

// run runs a command line that is to end with a status.
func (b *bench) run(status int, line string) result {
	b.t.Helper()
	out := b.input("", line)
	require.Equal(b.t, status, out.status, "bench %s\n%s\n%s", line, out.stdout, out.stderr)
	return out
}

// root is what gives a command MariaDB's root password on its command line.
func (b *bench) root() string { return " --db-root-password " + b.host.sim.services.rootPassword }

func (b *bench) newSite(name, database string) {
	b.t.Helper()
	b.run(0, "new-site "+name+" --db-name "+database+" --admin-password first --mariadb-user-host-login-scope=%"+b.root())
}

// query returns the rows of a statement of root's, their columns joined by a space.
func (b *bench) query(text string) []string {
	b.t.Helper()
	rows, err := b.connect().QueryContext(b.t.Context(), text)
	require.NoError(b.t, err)
	defer func() { require.NoError(b.t, rows.Close()) }()
	columns, err := rows.Columns()
	require.NoError(b.t, err)
	out := []string{}
	for rows.Next() {
		values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		require.NoError(b.t, rows.Scan(into...))
		words := make([]string, len(columns))
		for i, v := range values {
			words[i] = v.String
		}
		out = append(out, strings.Join(words, " "))
	}
	require.NoError(b.t, rows.Err())
	return out
}

func (b *bench) connect() *sql.DB {
	b.t.Helper()
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = "root", b.host.sim.services.rootPassword, "unix", b.host.sim.services.mariadb.socket
	cfg.Logger = log.New(io.Discard, "", 0)
	conn, err := mysql.NewConnector(cfg)
	require.NoError(b.t, err)
	out := sql.OpenDB(conn)
	b.t.Cleanup(func() { _ = out.Close() }) // the server may be gone
	return out
}

func (b *bench) users(name string) []string {
	b.t.Helper()
	return b.query("SELECT CONCAT(User, '@', Host) FROM mysql.user WHERE User = '" + name + "' ORDER BY 1")
}

func (b *bench) databases() []string {
	b.t.Helper()
	return b.query("SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE '\\_%' ORDER BY 1")
}

func TestStandInRefusesWhatFrappeRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	for _, tc := range []struct {
		line           string
		status         int
		stdout, stderr string
	}{
		{"frobnicate", 2, "", "Error: No such command 'frobnicate'."},
		{"--site x.example.com rename-site y.example.com", 2, "", "Error: No such command 'rename-site'."},
		{"list-sites", 2, "", "Error: No such command 'list-sites'."},
		{"--frob list-apps", 2, "", "Error: No such option: --frob"},
		{"new-site --frob x.example.com", 2, "", "Usage: bench  new-site [OPTIONS] SITE"},
		{"new-site", 2, "", "Error: Missing argument 'SITE'."},
		{"new-site x.example.com y.example.com", 2, "", "unexpected extra argument"},
		{"new-site x.example.com --db-port many", 2, "", "Invalid value for '--db-port'"},
		{"new-site x.example.com --db-type oracle", 2, "", "Invalid value for '--db-type'"},
		{"new-site erpnext --db-name _x", 1, "Your bench has an app called erpnext", ""},
		{"--site x.example.com list-apps -f xml", 2, "", "'xml' is not one of 'text', 'json'"},
		{"--site x.example.com set-maintenance-mode maybe", 2, "", "'maybe' is not one of 'on', 'off'"},
		{"--site x.example.com list-apps", 1, "Site x.example.com does not exist!\n", ""},
		{"--site x.example.com set-config k v", 1, "Site x.example.com does not exist!\n", ""},
		{"--site x.example.com migrate", 1, "Migrating x.example.com\n\nSite x.example.com does not exist!\n", ""},
		{"--site x.example.com install-app erpnext", 1, "Site x.example.com does not exist!\n", ""},
		{"--site x.example.com enable-scheduler", 1, "Site x.example.com does not exist!\n", ""},
		{"--site x.example.com set-admin-password pw", 1, "Site x.example.com does not exist!\n", ""},
		{"--site x.example.com set-maintenance-mode on", 1, "Site x.example.com does not exist!\n", ""},
		{"--site x.example.com add-system-manager a@example.com", 1, "Site x.example.com does not exist!\n", ""},
		{"--site x.example.com clear-cache", 1, "Site x.example.com does not exist!\n", ""},
		{"--site x.example.com restore none.sql.gz", 1, "Site x.example.com does not exist!\n", ""},
		{"--site x.example.com backup", 1, "Backup failed for Site x.example.com. Database or site_config.json may be corrupted\n", ""},
		{"drop-site x.example.com --db-root-password x", 1, "", "x.example.com does not exist"},
		{"list-apps", 0, "", ""},
		{"list-apps --format json", 0, "{}\n", ""},
		{"migrate", 1, "Please specify --site sitename\n", ""},
		{"backup", 1, "Please specify --site sitename\n", ""},
		{"set-maintenance-mode on", 1, "Please specify --site sitename\n", ""},
		{"install-app erpnext", 1, "Please specify --site sitename\n", ""},
		{"use x.example.com", 0, "Site x.example.com does not exist\n", ""},
	} {
		got := b.run(tc.status, tc.line)
		require.Contains(t, got.stdout, tc.stdout, tc.line)
		require.Contains(t, got.stderr, tc.stderr, tc.line)
		if tc.stderr == "" {
			require.Empty(t, got.stderr, tc.line)
		}
	}
	require.NoDirExists(t, b.path("sites/x.example.com"))
	require.Nil(t, b.host.sim.services.mariadb.process.Load(), "nothing of this takes a database")
}

func TestStandInIsFoundFromBelow(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	cmd := b.command("", "list-apps", "--format", "json")
	cmd.Dir = b.path("sites")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "{}\n", string(out))

	cmd = b.command("", "list-apps")
	cmd.Dir = t.TempDir()
	out, err = cmd.CombinedOutput()
	require.EqualError(t, err, "exit status 1")
	require.Equal(t, "WARN: You should not run this command as root\n", string(out))
	require.Contains(t, b.read("logs/bench.log"), "bench list-apps --format json\n", "command lines are logged as they are")
	require.Equal(t, "5.31.1\n", b.run(0, "--version").stdout)
}

func TestStandInMakesASite(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	password := b.host.sim.services.rootPassword
	got := b.input(password+"\nadmin\nanother\nadmin\nadmin\n", "new-site "+site+" --db-name "+db+" --mariadb-user-host-login-scope=%")
	require.Equal(t, 0, got.status, got.stderr)
	require.Contains(t, got.stdout, "\nInstalling frappe...\n")
	require.Contains(t, got.stdout, "*** Scheduler is disabled ***\n")
	require.Contains(t, got.stdout, "\nPasswords do not match\n")
	require.NotContains(t, got.stdout+got.stderr, password)
	for _, prompt := range []string{"Warning: Password input may be echoed.", "MySQL root password: ", "Set Administrator password: ", "Re-enter Administrator password: "} {
		require.Contains(t, got.stderr, prompt)
	}
	for _, dir := range []string{"public/files", "private/files", "private/backups", "locks", "logs"} {
		require.DirExists(t, b.path("sites/"+site+"/"+dir))
	}
	require.FileExists(t, b.path("sites/"+site+"/.test_log"))
	conf := b.conf(site)
	require.Len(t, conf["db_password"], 16)
	delete(conf, "db_password")
	require.Equal(t, map[string]any{"db_name": db, "db_type": "mariadb"}, conf)
	require.Equal(t, []string{"_a@%"}, b.users(db))
	require.Equal(t, []string{"utf8mb4_unicode_ci"}, b.query("SELECT default_collation_name FROM information_schema.schemata WHERE schema_name = '_a'"))
	require.Equal(t, []string{"Administrator $pbkdf2-sha256$29000$ 0"}, b.query("SELECT name, LEFT(password, 21), encrypted FROM _a.__Auth"))
	require.Equal(t, "\nfrappe\n\n", b.run(0, "--site "+site+" list-apps").stdout)

	// Once more, by the same name, and with the same database.
	require.Equal(t, "Site a.example.com already exists\n", b.run(1, "new-site "+site+" --db-name "+db+b.root()).stdout)
	require.Contains(t, b.run(1, "new-site b.example.com --db-name "+db+b.root()).stderr, "Exception: Database _a already exists")
	require.FileExists(t, b.path("sites/b.example.com/site_config.json"), "it is left behind")
	b.run(0, "new-site c.example.com --admin-password x --install-app erpnext"+b.root())
	name := b.conf("c.example.com")["db_name"].(string)
	require.Regexp(t, "^_[0-9a-f]{16}$", name)
	require.Equal(t, []string{name + "@localhost"}, b.users(name), "the host that root came from")
	require.Equal(t, "[\"frappe\", \"erpnext\"]\n", b.run(0, "--site c.example.com execute frappe.get_installed_apps").stdout)
	got = b.run(1, "new-site d.example.com --db-name _d --admin-password x --install-app nosuch"+b.root())
	require.Contains(t, got.stdout, "Could not find app \"nosuch\"")
	require.Contains(t, got.stderr, "ModuleNotFoundError: No module named 'nosuch'")
	require.Equal(t, "[\"frappe\"]\n", b.run(0, "--site d.example.com execute frappe.get_installed_apps").stdout, "the site stays")
	b.run(0, "use c.example.com")
	require.Equal(t, "[\"frappe\", \"erpnext\"]\n", b.run(0, "execute frappe.get_installed_apps").stdout)
}

func TestStandInLeavesAHalfMadeSite(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{BenchNewSite: 5 * time.Minute})
	got := b.run(1, "new-site "+site+" --db-name "+db)
	require.True(t, strings.HasSuffix(got.stderr, "MySQL root password: \nAborted!\n"), got.stderr)
	require.Equal(t, db, b.conf(site)["db_name"])
	require.Equal(t, "Site a.example.com already exists\n", b.run(1, "new-site "+site+" --db-name "+db).stdout)

	got = b.run(1, "new-site b.example.com --db-name _b --db-root-password wrong")
	require.Contains(t, got.stderr, "(1045, \"Access denied for user 'root'@'localhost'")
	require.FileExists(t, b.path("sites/b.example.com/site_config.json"))

	// Killed after the database was made.
	cmd := b.command("", append([]string{"new-site", "c.example.com", "--db-name", "_c", "--admin-password", "x"}, strings.Fields(b.root())...)...)
	require.Eventually(t, func() bool { return !errors.Is(cmd.Start(), syscall.ETXTBSY) }, 5*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool { return len(b.users("_c")) == 1 }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
	_ = cmd.Wait()
	b.run(1, "--site c.example.com list-apps")
	require.Equal(t, "Site c.example.com already exists\n", b.run(1, "new-site c.example.com --db-name _c"+b.root()).stdout)

	b.host.sim.cfg.Profile.BenchNewSite = 0
	b.install()
	before := b.conf("c.example.com")
	b.run(0, "new-site c.example.com --db-name _other --admin-password x --force"+b.root())
	require.Equal(t, before, b.conf("c.example.com"), "force keeps the configuration, regardless of the options")
	require.Equal(t, []string{"_c"}, b.databases())
	b.run(0, "drop-site b.example.com --no-backup"+b.root())
	require.NoDirExists(t, b.path("sites/b.example.com"), "dropping takes no database of the site's")
}

func TestStandInConfigures(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	b.write("sites/"+site+"/site_config.json", `{"db_name": "_a", "db_password": "x"}`)
	for _, line := range []string{"n 1", "t true", "f false", "text a=b", "gone x", "gone None", "-p list [1,2]", "host_name https://a.example.com"} {
		got := b.run(0, "--site "+site+" set-config "+line)
		require.Empty(t, got.stdout+got.stderr)
	}
	require.Contains(t, b.run(1, "--site "+site+" set-config -p k foo'bar").stderr, "SyntaxError")
	require.Equal(t, map[string]any{
		"db_name": "_a", "db_password": "x", "n": 1.0, "t": true, "f": false, "text": "a=b", "list": []any{1.0, 2.0}, "host_name": "https://a.example.com",
	}, b.conf(site))
	require.Contains(t, b.read("sites/"+site+"/site_config.json"), "{\n \"db_name\": \"_a\",\n \"db_password\"")
	b.run(0, "--site "+site+" set-maintenance-mode on")
	require.InDelta(t, 1, b.conf(site)["maintenance_mode"], 0)
	b.run(0, "--site "+site+" set-maintenance-mode off")
	require.InDelta(t, 0, b.conf(site)["maintenance_mode"], 0)
	b.run(0, "set-config -gp socketio_port 9000")
	require.Contains(t, b.read("sites/common_site_config.json"), "\"socketio_port\": 9000")
	b.install()
	require.Contains(t, b.read("sites/common_site_config.json"), "\"socketio_port\": 9000", "a boot keeps it")

	b.write("sites/"+site+"/site_config.json", "{bad")
	got := b.run(1, "--site "+site+" list-apps")
	require.Contains(t, got.stdout, "a.example.com/site_config.json is invalid\n")
	require.Contains(t, got.stderr, "AssertionError: site must be fully initialized, db_name missing")
}

func TestStandInInstallsApps(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	b.newSite(site, db)
	on := func(status int, line string) string {
		t.Helper()
		return b.run(status, "--site "+site+" "+line).stdout
	}
	require.Equal(t, "{\n \"a.example.com\": []\n}\n", on(0, "list-apps -f json"), "a new site's list is empty") //nolint:testifylint // the layout is also Frappe's
	require.Contains(t, on(0, "install-app erpnext"), "\nInstalling erpnext...\n")
	require.Equal(t, "App erpnext already installed\n", on(0, "install-app erpnext"))
	require.Equal(t, "\nfrappe\nerpnext\n\n", on(0, "list-apps"))
	require.Contains(t, on(0, "migrate"), "Queued rebuilding of search index for a.example.com\n")
	require.JSONEq(t, `{"a.example.com": ["frappe", "erpnext"]}`, on(0, "list-apps -f json"))
	on(0, "install-app hrms")
	require.JSONEq(t, `{"a.example.com": ["frappe", "erpnext"]}`, on(0, "list-apps -f json"), "only a migration updates it")
	require.NotContains(t, on(0, "list-apps"), "hrms")
	require.Equal(t, "[\"frappe\", \"erpnext\", \"hrms\"]\n", on(0, "execute frappe.get_installed_apps"))

	require.Contains(t, on(1, "install-app nosuch crm"), "An error occurred while installing nosuch: No module named 'nosuch'\n")
	require.Contains(t, on(0, "execute frappe.get_installed_apps"), "crm", "others are installed all the same")
	require.NoError(t, os.MkdirAll(b.path("apps/unlisted"), 0o755))
	require.Contains(t, on(1, "install-app unlisted"), "An error occurred while installing unlisted: App unlisted not in apps.txt\n")

	lock, err := os.OpenFile(b.path("sites/"+site+"/locks/install_app.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	require.Contains(t, b.run(1, "--site "+site+" install-app erpnext").stderr, "lock: install_app. Lock may be held by another process.")
	require.NoError(t, lock.Close())

	require.Equal(t, "Enabled for a.example.com\n", on(0, "enable-scheduler"))
	require.Equal(t, "Scheduler is enabled for site a.example.com\n", on(0, "scheduler status"))
	on(0, "scheduler pause")
	require.Equal(t, true, b.conf(site)["pause_scheduler"])
	require.Equal(t, "Scheduler is disabled for site a.example.com\n", on(0, "scheduler status"))
	require.Equal(t, "Disabled for a.example.com\n", on(0, "disable-scheduler"))

	b.run(0, "set-config -g redis_cache redis://127.0.0.1:1")
	require.Contains(t, on(1, "migrate"), "Service redis_cache is not running.\n")
	on(0, "clear-cache")
}

func TestStandInKeepsUsers(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	b.newSite(site, db)
	hash := func() string {
		t.Helper()
		return strings.Join(b.query("SELECT password FROM _a.__Auth WHERE name = 'Administrator'"), "")
	}
	was := hash()
	got := b.run(0, "--site "+site+" set-admin-password second")
	require.Empty(t, got.stdout+got.stderr)
	now := hash()
	require.NotEqual(t, was, now)
	got = b.input("\nthird\n", "--site "+site+" set-admin-password")
	require.Equal(t, 0, got.status)
	require.Equal(t, 2, strings.Count(got.stderr, "Administrator's password for a.example.com: "), "an empty one is asked for again")
	require.NotEqual(t, now, hash())
	require.Contains(t, b.run(1, "--site "+site+" set-admin-password").stderr, "\nAborted!\n")
	require.Equal(t, "User x@example.com does not exist\n", b.run(1, "--site "+site+" set-password x@example.com pw").stdout)

	b.run(0, "--site "+site+" add-system-manager joe@example.com --first-name Joe --last-name Doe --password pw1")
	require.Contains(t, b.run(1, "--site "+site+" add-system-manager joe@example.com").stderr, "DuplicateEntryError: ('User', 'joe@example.com'")
	require.Contains(t, b.run(1, "--site "+site+" add-system-manager joe").stderr, "InvalidEmailAddressError: joe is not a valid Email Address")
	require.Equal(t, []string{"joe@example.com Joe Doe System User 1"}, b.query("SELECT name, first_name, last_name, user_type, enabled FROM _a.tabUser WHERE name LIKE 'joe%'"))
	require.Equal(t, []string{"1"}, b.query("SELECT COUNT(*) FROM _a.`tabHas Role` WHERE parent = 'joe@example.com' AND role = 'System Manager'"))
}

// TestStandInKeepsPasswordsOfDocuments: they are encrypted with the site's key, which is created for the first of them.
func TestStandInKeepsPasswordsOfDocuments(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	b.newSite(site, db)
	of := func(status int, function, args string) result {
		t.Helper()
		return b.run(status, "--site "+site+" execute frappe.utils.password."+function+" --args "+args)
	}
	require.NotContains(t, b.conf(site), "encryption_key")
	require.Contains(t, of(1, "get_decrypted_password", "['User','Guest','api_secret']").stderr, "AuthenticationError: Password not found for User Guest api_secret")
	require.Empty(t, of(0, "set_encrypted_password", "['User','Guest','open-sesame','api_secret']").stdout)
	first := b.conf(site)["encryption_key"]
	require.Len(t, first, 44)
	require.Equal(t, "\"open-sesame\"\n", of(0, "get_decrypted_password", "['User','Guest','api_secret']").stdout)
	require.Equal(t, []string{"1 gAAAA"}, b.query("SELECT encrypted, LEFT(password, 5) FROM _a.__Auth WHERE fieldname = 'api_secret'"))
	of(0, "set_encrypted_password", "['User','Guest','another','api_secret']")
	require.Equal(t, first, b.conf(site)["encryption_key"])

	b.run(0, "--site "+site+" set-config encryption_key "+strings.Repeat("A", 43)+"=")
	require.Contains(t, of(1, "get_decrypted_password", "['User','Guest','api_secret']").stderr, "ValidationError: Failed to decrypt key User.Guest.api_secret")
	b.run(0, "--site "+site+" set-config encryption_key short")
	require.Contains(t, of(1, "set_encrypted_password", "['User','Guest','x','api_secret']").stderr, "Encryption key is in invalid format!")
	b.run(0, "--site "+site+" set-config encryption_key None")
	require.Contains(t, of(1, "get_decrypted_password", "['User','Guest','api_secret']").stderr, "ValidationError: Failed to decrypt key")
	require.NotEqual(t, first, b.conf(site)["encryption_key"], "a lost key is replaced, and opens nothing")
}
