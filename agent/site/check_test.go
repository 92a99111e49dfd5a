package site

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// TestASiteIsMadeOfABackupElsewhere: with its own settings of site_config.json, and checked against the backup.
func TestASiteIsMadeOfABackupElsewhere(t *testing.T) {
	t.Parallel()
	b, other := newBench(t), newBench(t)
	const site, there, name = "a.example.com", "b.example.com", "bak-1"
	db, otherDB := b.database("a"), other.database("b")
	b.good("new-site", site, "--db-name", db)
	hard := "it's; (a) \"row\" `with` VALUES (1),(2) \\' and\n-- lines /* of */ all kinds #"
	for _, text := range []string{"one", "two"} {
		b.put(db, text)
	}
	_, err := b.db.Exec("INSERT INTO `"+db+"`.tabToDo (name, description) VALUES ('three', ?)", hard)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(b.path("sites/"+site+"/private/files/kept.txt"), []byte("as it was"), 0o600))
	config := func(b *testBench, site string, set map[string]any) map[string]any {
		t.Helper()
		var c map[string]any
		text, err := os.ReadFile(b.path("sites/" + site + "/site_config.json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &c))
		maps.Copy(c, set)
		b.write("sites/"+site+"/site_config.json", c)
		return c
	}
	config(b, site, map[string]any{
		"mail_server": "mail.example.com", "max_file_size": 5, "own": "setting",
		"prego_tenant_id": "t-1", "host_name": "https://a", "maintenance_mode": 1, "mute_emails": 1, "server_script_enabled": 1,
	})
	b.keep(site, "open sesame")
	key := config(b, site, nil)["encryption_key"]
	b.good("--site", site, "backup", name, "--with-files")

	other.good("new-site", there, "--db-name", otherDB)
	other.keep(there, "another's")
	was := config(other, there, map[string]any{"prego_tenant_id": "t-2"})
	to := other.path("sites/" + there + "/" + wire.SnapshotsDir)
	require.NoError(t, os.MkdirAll(to, 0o750))
	require.NoError(t, os.CopyFS(to+"/"+name, os.DirFS(b.path("sites/"+site+"/"+wire.SnapshotsDir+"/"+name))))
	require.Contains(t, other.bad("--site", there, "adopt-config", "no-such"), "has no backup no-such")
	printed := other.good("--site", there, "adopt-config", name)
	require.NotContains(t, printed, key)
	require.Contains(t, printed, `"keys":["encryption_key","mail_server","max_file_size","own"]`)
	now := config(other, there, nil)
	require.Equal(t, key, now["encryption_key"])
	require.Equal(t, was["db_name"], now["db_name"])
	require.Equal(t, was["db_password"], now["db_password"])
	require.Equal(t, "t-2", now["prego_tenant_id"])
	for _, key := range []string{"host_name", "maintenance_mode", "mute_emails", "server_script_enabled"} {
		require.Equal(t, was[key], now[key], key)
	}

	require.Contains(t, other.bad("--site", there, "check-restored", name), "site: restore_incomplete: ", "it was not restored yet")
	other.good("--site", there, "restore", name, "--with-files")
	require.Equal(t, "open sesame", other.kept(there))
	var found wire.CheckedSite
	unmarshal(t, other.good("--site", there, "check-restored", name), &found)
	require.EqualValues(t, 1, found.Files)
	require.Contains(t, found.Apps, "frappe")
	dump, err := os.Open(to + "/" + name + "/" + name + "-" + partDatabase)
	require.NoError(t, err)
	defer func() { require.NoError(t, dump.Close()) }()
	rows, err := dumpedRows(dump)
	require.NoError(t, err)
	require.EqualValues(t, 3, rows["tabToDo"])
	require.EqualValues(t, len(rows), found.Tables)
	for table, n := range rows { // rows written by MariaDB's own program are read right
		require.EqualValues(t, b.ask("SELECT COUNT(*) FROM `"+db+"`.`"+table+"`"), n, table)
	}

	require.NoError(t, os.WriteFile(other.path("sites/"+there+"/private/files/kept.txt"), []byte("shorter"), 0o600))
	require.Contains(t, other.bad("--site", there, "check-restored", name), "file private/files/kept.txt is not as in the backup")
	require.NoError(t, os.WriteFile(other.path("sites/"+there+"/private/files/kept.txt"), []byte("as it was"), 0o600))
	other.exec("DELETE FROM `" + otherDB + "`.tabToDo WHERE name = 'two'")
	require.Contains(t, other.bad("--site", there, "check-restored", name), "site: restore_incomplete: 1 of")
	other.put(otherDB, "two")
	other.put(otherDB, "later")
	other.good("--site", there, "check-restored", name)
}

func TestRowsOfADump(t *testing.T) {
	t.Parallel()
	count := func(text string) (map[string]int64, error) {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write([]byte(text))
		require.NoError(t, err)
		require.NoError(t, z.Close())
		return dumpedRows(&b)
	}
	const whole = "/*M!999999\\- enable the sandbox mode */ \n-- MariaDB dump; (not a row)\n/*!40101 SET NAMES utf8mb4 */;\n" +
		"CREATE TABLE `tabA` (\n `name` varchar(140) DEFAULT 'x;y',\n KEY `k` (`name`)\n) ENGINE=InnoDB;\nLOCK TABLES `tabA` WRITE;\n" +
		"INSERT INTO `tabA` VALUES ('it''s',1),('a\\'(b),(c',2),\n(NULL,_binary 'x)'),('-- no comment',0);\nINSERT INTO `tabA` (`name`,`n`) VALUES ('q',now());\nUNLOCK TABLES;\n" +
		"CREATE TABLE `tabB` (`n` int);\n# the end\nSET @x = 'VALUES (1)';\n"
	rows, err := count(whole)
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"tabA": 5, "tabB": 0}, rows)
	for _, cut := range []string{"(c',2)", "KEY `k` (`na", "sandbox"} {
		_, err := count(whole[:strings.Index(whole, cut)+len(cut)])
		require.Error(t, err, cut)
	}
}
