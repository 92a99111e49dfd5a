package site

import (
	"context"
	"database/sql"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// TestADatabaseMovesToANode: from a shard to the node's own MariaDB. After a kill at any step a repeated call
// succeeds, and neither a stranger's database nor an unexpected site is touched.
func TestADatabaseMovesToANode(t *testing.T) {
	t.Parallel()
	b, node := newBench(t), newBench(t)
	o := startOthers(t, b)
	require.NoError(t, addresses{cache: "127.0.0.1:1", queue: "127.0.0.1:1", socketio: 9000}.configure(b.root, "", nil))
	b.queues()
	node.queues()
	const site, first, second = "a.example.com", "the-password-on-the-shard", "the-password-on-the-node"
	name := b.database("a")
	o.grant(t, name, first)
	b.goodWith(map[string]string{policy.SecretRootUser: "", policy.SecretRootPassword: "", wire.SecretDatabasePassword: first}, "new-site", site, "--db-name", name, "--db-host", o.address)
	at := "`" + name + "`"
	_, err := o.root.Exec("USE " + at)
	require.NoError(t, err)
	_, err = o.root.Exec("CREATE TABLE " + at + ".numbers (id INT PRIMARY KEY, s TEXT)")
	require.NoError(t, err)
	_, err = o.root.Exec("INSERT INTO " + at + ".numbers SELECT seq, CONCAT('row ', seq) FROM seq_1_to_1000")
	require.NoError(t, err)

	own := map[string]string{wire.SecretDatabasePassword: second}
	make := func(steps int) done { return node.verb(steps, own, "--site", site, "make-data") }
	require.Contains(t, make(-1).stderr, "is not expected here")
	node.good("expect-site", site, "--db-name", name)
	require.Contains(t, node.bad("--site", site, "make-data"), "there is no password")
	killed := 0
	for n := 0; ; n++ {
		if d := make(n); d.status == 0 {
			break
		} else {
			require.Equal(t, killedAt, d.status, d.stderr)
		}
		killed++
	}
	require.GreaterOrEqual(t, killed, 4)
	require.Zero(t, make(-1).status, "it is there already")
	databases, users := node.left(name)
	require.Equal(t, []int{1, 1}, []int{databases, users})

	key := identity(t)
	ship := func(n string, args ...string) {
		t.Helper()
		var p wire.PackedData
		unmarshal(t, b.good(append([]string{"--site", site, "pack-data", n, key.Recipient().String()}, args...)...), &p)
		carry(t, b, site, n, node, site, n, p.Bytes, same)
		secrets := maps.Clone(own)
		maps.Copy(secrets, opens(key))
		d := node.verb(-1, secrets, "--site", site, "load-data", n, wire.Ungrouped(p.SHA256), wire.Ungrouped(p.PlainSHA256), "here")
		require.Zero(t, d.status, d.stderr)
	}
	packed(t, b, node, site, "mov-1-1", key)
	require.Zero(t, unpack(node, -1, site, packed(t, b, node, site, "mov-1-1", key), key, unpackAll).status)
	ship("mov-1-d1")
	_, err = o.root.Exec("UPDATE " + at + ".numbers SET s = 'changed' WHERE id = 7")
	require.NoError(t, err)
	b.good("--site", site, "hold-site")
	_, err = o.root.Exec("REVOKE INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX ON " + onDatabase(name) + " FROM `" + name + "`@`127.0.0.1`")
	require.NoError(t, err)
	p := packed(t, b, node, site, "mov-1-2", key, "mov-1-1")
	require.Zero(t, unpack(node, -1, site, p, key, unpackAll).status)
	ship("mov-1-d2", "mov-1-d1", "last")
	for range 2 {
		d := node.verb(-1, own, "--site", site, "settle-site", "here")
		require.Zero(t, d.status, d.stderr)
	}
	config := node.read("sites/" + site + "/" + siteConfig)
	require.Equal(t, second, config["db_password"])
	for _, key := range []string{"db_host", "db_ssl_ca", "db_ssl_key", "redis_cache"} {
		require.NotContains(t, config, key, "of where it was")
	}
	require.Contains(t, node.good("--site", site, "list-apps"), "frappe")
	require.Equal(t, 1, node.ask("SELECT COUNT(*) FROM "+at+".numbers WHERE id = 7 AND s = 'changed'"))
	require.Equal(t, 1000, node.ask("SELECT COUNT(*) FROM "+at+".numbers"))
	node.good("--site", site, "free-site")
	require.Contains(t, make(-1).stderr, "is not expected here", "it is in use")
	b.good("leave-site", site, "--db-name", name)

	// A cancelled move leaves nothing.
	other := node.database("b")
	node.good("expect-site", "b.example.com", "--db-name", other)
	require.Zero(t, node.verb(-1, own, "--site", "b.example.com", "make-data").status)
	for range 2 {
		node.good("erase-site", "b.example.com", "--db-name", other)
	}
	databases, users = node.left(other)
	require.Equal(t, []int{0, 0}, []int{databases, users})
	// Nor is a database taken that is a site's.
	node.good("expect-site", "c.example.com", "--db-name", name)
	require.Contains(t, node.verb(-1, own, "--site", "c.example.com", "make-data").stderr, name)
}

// TestANodesDatabaseIsFrozen: there are no writes any more, not even by earlier sessions. After the thaw all may
// write as before, and a call that was killed at any step is repeated.
func TestANodesDatabaseIsFrozen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const site = "a.example.com"
	name := b.database("a")
	b.good("new-site", site, "--db-name", name)
	at := "`" + name + "`"
	b.exec("CREATE TABLE " + at + ".numbers (id INT PRIMARY KEY)")
	b.exec("INSERT INTO " + at + ".numbers VALUES (1)")
	config := b.read("sites/" + site + "/" + siteConfig)
	open := func() *sql.Conn {
		db, err := databaseOf{Host: "127.0.0.1", Port: mariadbPort}.open(name, config["db_password"].(string), name)
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		return conn
	}
	grants := "SELECT CONCAT_WS(' ', Host, Db, Select_priv, Insert_priv, Update_priv, Delete_priv, Create_priv, Drop_priv, Grant_priv, References_priv, Index_priv, Alter_priv, Create_tmp_table_priv, Lock_tables_priv, Create_view_priv, Show_view_priv, Create_routine_priv, Alter_routine_priv, Execute_priv, Event_priv, Trigger_priv) FROM mysql.db WHERE User = '" + name + "' ORDER BY 1"
	before := content(t, b.db, grants)
	require.NotEmpty(t, before)
	ctx := context.Background()
	writes := func(conn *sql.Conn, id int) error {
		_, err := conn.ExecContext(ctx, "INSERT INTO numbers VALUES (?)", id)
		return err
	}
	old := open()
	require.NoError(t, writes(old, 2))
	_, err := old.ExecContext(ctx, "START TRANSACTION")
	require.NoError(t, err)
	require.NoError(t, writes(old, 3))

	killed := 0
	for n := 0; ; n++ {
		d := b.verb(n, nil, "--site", site, "freeze-data")
		if d.status == 0 {
			break
		}
		require.Equal(t, killedAt, d.status, d.stderr)
		killed++
		if n%2 == 0 {
			require.Zero(t, b.verb(-1, nil, "--site", site, "thaw-data").status)
			require.Equal(t, before, content(t, b.db, grants))
		}
	}
	require.GreaterOrEqual(t, killed, 1)
	b.good("--site", site, "freeze-data")
	require.Error(t, old.PingContext(ctx), "its session is ended")
	require.Zero(t, b.ask("SELECT COUNT(*) FROM information_schema.processlist WHERE user = ?", name))
	young := open()
	for _, q := range []string{"INSERT INTO numbers VALUES (4)", "DELETE FROM numbers", "UPDATE numbers SET id = 9", "TRUNCATE numbers", "DROP TABLE numbers", "CREATE TABLE more (a INT)", "ALTER TABLE numbers ADD b INT"} {
		_, err := young.ExecContext(ctx, q)
		require.ErrorContains(t, err, "denied", q)
	}
	require.Equal(t, 2, b.ask("SELECT COUNT(*) FROM "+at+".numbers"), "uncommitted rows are gone")
	var n int
	require.NoError(t, young.QueryRowContext(ctx, "SELECT COUNT(*) FROM numbers").Scan(&n))
	require.Equal(t, 2, n, "it is read all the time")
	for range 2 {
		b.good("--site", site, "thaw-data")
	}
	require.Equal(t, before, content(t, b.db, grants))
	require.NoError(t, writes(open(), 4))
	require.Contains(t, b.bad("--site", "missing.example.com", "freeze-data"), "has no database here")
}
