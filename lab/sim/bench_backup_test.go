package sim

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStandInBacksUp(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	b.newSite(site, db)
	folder := "sites/" + site + "/private/backups/"
	names := func() (out []string) {
		t.Helper()
		entries, err := os.ReadDir(b.path(folder))
		require.NoError(t, err)
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	got := b.run(0, "--site "+site+" backup --with-files").stdout
	require.Regexp(t, `^Backup Summary for a.example.com at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}
Config  : \./a.example.com/private/backups/\d{8}_\d{6}-a_example_com-site_config_backup.json +[0-9.]+B
Database: \./a.example.com/private/backups/\d{8}_\d{6}-a_example_com-database.sql.gz +[0-9.]+KiB
Public  : \./a.example.com/private/backups/\d{8}_\d{6}-a_example_com-files.tar +[0-9.]+KiB
Private : \./a.example.com/private/backups/\d{8}_\d{6}-a_example_com-private-files.tar +[0-9.]+KiB
Backup for Site a.example.com has been successfully completed with files
$`, got)
	require.Len(t, names(), 4)
	for _, name := range names() {
		require.NoError(t, os.Remove(b.path(folder+name)))
	}

	chosen := "./" + site + "/private/kept/"
	line := "--site " + site + " backup --with-files --backup-path-db " + chosen + "x-database.sql.gz --backup-path-files " + chosen + "x-files.tar" +
		" --backup-path-private-files " + chosen + "x-private-files.tar --backup-path-conf " + chosen + "x-site_config_backup.json"
	b.run(0, line)
	require.Empty(t, names())
	require.Equal(t, b.read("sites/"+site+"/site_config.json"), b.read("sites/"+chosen+"x-site_config_backup.json"))
	out, err := exec.CommandContext(t.Context(), "zcat", b.path("sites/"+chosen+"x-database.sql.gz")).Output()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(out), "-- begin frappe metadata\n-- [frappe]\n-- version = 15."), string(out[:min(len(out), 200)]))
	require.Contains(t, string(out), "CREATE TABLE `tabToDo`")
	out, err = exec.CommandContext(t.Context(), "tar", "-tf", b.path("sites/"+chosen+"x-files.tar")).Output()
	require.NoError(t, err)
	require.Equal(t, "./a.example.com/public/files/\n", string(out))

	require.Contains(t, b.run(1, "--site "+site+" backup --backup-path-db bare.sql.gz").stdout, "Backup failed for Site a.example.com.")

	// Files older than a day go; a directory is taken for such a file, and makes it fail.
	b.write(folder+"mine-database.sql.gz", "x")
	b.run(0, "--site "+site+" backup")
	require.Contains(t, names(), "mine-database.sql.gz")
	b.run(0, "--site "+site+" set-config -p keep_backups_for_hours -- -1")
	b.run(0, "--site "+site+" backup")
	require.NotContains(t, names(), "mine-database.sql.gz")
	require.NoError(t, os.Mkdir(b.path(folder+"directory"), 0o755))
	require.Contains(t, b.run(1, "--site "+site+" backup --verbose").stdout, "IsADirectoryError")
}

func TestStandInRestores(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	b.newSite(site, db)
	files := "sites/" + site + "/private/files/"
	b.write(files+"letter", "dear")
	b.query("INSERT INTO _a.tabToDo (name, description) VALUES ('one', 'first')")
	kept := "./" + site + "/private/kept/x-"
	b.run(0, "--site "+site+" backup --with-files --backup-path-db "+kept+"database.sql.gz --backup-path-files "+kept+"files.tar"+
		" --backup-path-private-files "+kept+"private-files.tar --backup-path-conf "+kept+"conf.json")
	auth := b.query("SELECT password FROM _a.__Auth")

	b.query("DELETE FROM _a.tabToDo")
	b.run(0, "--site "+site+" set-admin-password changed")
	b.run(0, "--site "+site+" set-config plan large")
	b.run(0, "--site "+site+" enable-scheduler")
	b.write(files+"letter", "changed")
	b.write(files+"new", "new")
	restore := "--site " + site + " restore " + kept + "database.sql.gz"
	got := b.input(b.host.sim.services.rootPassword+"\n", restore+" --with-public-files "+kept+"files.tar --with-private-files "+kept+"private-files.tar --admin-password other")
	require.Equal(t, 0, got.status, got.stderr)
	require.Contains(t, got.stderr, "MySQL root password: ")
	require.Contains(t, got.stdout, "App frappe already installed\n*** Scheduler is enabled ***\nSite a.example.com has been restored with files\n")
	require.Equal(t, []string{"one first"}, b.query("SELECT name, description FROM _a.tabToDo"))
	require.Equal(t, auth, b.query("SELECT password FROM _a.__Auth"), "the Administrator has the password of the backup, regardless of the option")
	require.Equal(t, "large", b.conf(site)["plan"], "the configuration stays")
	require.Equal(t, "dear", b.read(files+"letter"))
	require.Equal(t, "new", b.read(files+"new"), "files that came later stay")
	require.Equal(t, []string{"_a@%", "_a@localhost"}, b.users(db), "a second user: there is no login scope")
	require.Equal(t, "Scheduler is enabled for site a.example.com\n", b.run(0, "--site "+site+" scheduler status").stdout, "as it was before")

	// A backup of another name, after the site was promoted.
	require.NoError(t, os.Rename(b.path("sites/"+site), b.path("sites/new.example.com")))
	b.write("sites/new.example.com/private/files/letter", "changed")
	promoted := strings.ReplaceAll(kept, site, "new.example.com")
	b.run(0, "--site new.example.com restore "+promoted+"database.sql.gz --with-private-files "+promoted+"private-files.tar"+b.root())
	require.Equal(t, "dear", b.read("sites/new.example.com/private/files/letter"))
	require.NoDirExists(t, b.path("sites/"+site))

	// A file that is not a backup.
	on := func(says, path string) {
		t.Helper()
		got := b.run(1, "--site new.example.com restore "+path+b.root())
		require.Contains(t, got.stdout+got.stderr, says, path)
	}
	b.write("sites/empty.sql", "")
	b.write("sites/other.sql", "CREATE TABLE x (a INT);\n")
	b.write("sites/text.sql.gz", "text")
	b.write("sites/partial.sql", "-- Partial Backup of Frappe Site\n")
	b.write("sites/newer.sql", "-- begin frappe metadata\n-- [frappe]\n-- version = 99.0.0\n-- end frappe metadata\n-- __Auth\n")
	on("File none.sql.gz not found. Trying to check in alternative directories.\nFile none.sql.gz not found.\n", "none.sql.gz")
	on("empty.sql is an empty file!", "empty.sql")
	on("InvalidDatabaseFile", "empty.sql")
	on("Table `__Auth` not found in file.", "other.sql")
	on("BadGzipFile", "text.sql.gz")
	on("Partial Backup file detected.", "partial.sql")
	on("Aborted!", "newer.sql")
	require.Contains(t, b.run(1, "--site new.example.com restore "+promoted+"database.sql.gz --db-root-password wrong").stdout, "Access denied for user 'root'@'localhost'")
	require.Equal(t, []string{"one"}, b.query("SELECT name FROM _a.tabToDo"), "nothing of this changed the database")
	on("Invalid path none.tar", promoted+"database.sql.gz --with-public-files none.tar")

	// A truncated dump leaves no site.
	b.write("sites/broken.sql", "-- __Auth\nnonsense;\n")
	on("ERROR 1064", "broken.sql")
	require.Empty(t, b.query("SELECT table_name FROM information_schema.tables WHERE table_schema = '_a'"))
	b.write("sites/other.sql", "-- __Auth\nCREATE TABLE x (a INT);\n")
	on("Table 'tabDefaultValue' missing in the restored site.", "other.sql")
	b.run(0, "--site new.example.com restore "+promoted+"database.sql.gz"+b.root())
	require.Equal(t, []string{"one"}, b.query("SELECT name FROM _a.tabToDo"))
}

func TestStandInDropsASite(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	archived := func() []string {
		t.Helper()
		found, err := filepath.Glob(b.path("archived/sites/*"))
		require.NoError(t, err)
		for i := range found {
			found[i] = filepath.Base(found[i])
		}
		return found
	}
	b.newSite(site, db)
	b.query("CREATE USER '_a'@'10.9.8.7'")
	require.Contains(t, b.run(1, "drop-site "+site).stderr, "MySQL root password: \nAborted!\n")
	require.Contains(t, b.run(1, "drop-site "+site+" --no-backup --db-root-password wrong").stderr, "Access denied")
	require.DirExists(t, b.path("sites/"+site))
	got := b.input(b.host.sim.services.rootPassword+"\n", "drop-site "+site)
	require.Equal(t, 0, got.status, got.stderr)
	require.Contains(t, got.stdout, "Taking backup of a.example.com\nset -o pipefail; /usr/bin/mariadb-dump --user=_a ", "the backup is verbose")
	require.Contains(t, got.stdout, " --password=********** ")
	require.Contains(t, got.stdout, "\nBackup Summary for a.example.com at ")
	require.Contains(t, got.stdout, "Dropping site database and user\nMoving site to archive under "+b.path("archived/sites")+"\n")
	require.NoDirExists(t, b.path("sites/"+site))
	backups, err := os.ReadDir(b.path("archived/sites/" + site + "/private/backups"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(backups), 4, "the data stays")
	require.Empty(t, b.databases())
	require.Equal(t, []string{"_a@10.9.8.7"}, b.users(db), "only % and root's own host are dropped")
	require.Contains(t, b.run(1, "drop-site "+site+b.root()).stderr, "a.example.com does not exist")

	b.newSite(site, "_b")
	b.run(0, "drop-site "+site+" --no-backup"+b.root())
	require.Equal(t, []string{site, site + "1"}, archived())

	// Without its database only force, or no backup, drops a site.
	b.newSite(site, "_c")
	b.query("DROP DATABASE _c")
	require.Contains(t, b.run(1, "drop-site "+site+b.root()).stdout, "Error: The operation has stopped because backup of a.example.com's database failed.\nReason: ")
	b.run(0, "drop-site "+site+" --force --archived-sites-path "+b.path("elsewhere")+b.root())
	require.DirExists(t, b.path("elsewhere/"+site))
}

func TestStandInDropWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	b := newBench(t, Profile{})
	b.newSite(site, db)
	tx, err := b.connect().BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "SELECT COUNT(*) FROM _a.tabToDo")
	require.NoError(t, err)
	ended := make(chan result, 1)
	go func() { ended <- b.input("", "drop-site "+site+" --no-backup"+b.root()) }()
	require.Eventually(t, func() bool {
		return len(b.query("SELECT id FROM information_schema.processlist WHERE state = 'Waiting for table metadata lock'")) == 1
	}, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, tx.Rollback())
	require.Equal(t, 0, (<-ended).status)
}
