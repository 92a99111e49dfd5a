package site

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

func TestConfigureTheBench(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, wire.BenchDir, name) }
	for _, dir := range []string{"sites", "apps/erpnext", "apps/frappe", "apps/crm"} {
		require.NoError(t, os.MkdirAll(at(dir), 0o755))
	}
	password := filepath.Join(root, "password")
	require.NoError(t, os.WriteFile(password, []byte("PASSWORD27\n"), 0o600))
	require.NoError(t, os.WriteFile(at("sites/common_site_config.json"), []byte(`{"kept": [1], "db_host": "old"}`), 0o640))
	args := []string{"--root", root, "--db", "mariadb:3306", "--redis-cache", "redis-cache:6379", "--redis-queue", "redis-queue:6380", "--redis-password-file", password}
	for range 2 {
		require.Zero(t, ConfigureMain(args))
		text, err := os.ReadFile(at("sites/common_site_config.json"))
		require.NoError(t, err)
		require.JSONEq(t, `{"extra_config":"prego_bench.configure","kept":[1],"db_host":"mariadb","db_port":3306,"redis_cache":"redis://default:PASSWORD27@redis-cache:6379",
			"redis_queue":"redis://default:PASSWORD27@redis-queue:6380","redis_socketio":"redis://default:PASSWORD27@redis-queue:6380","socketio_port":9000}`, string(text))
		text, err = os.ReadFile(at("sites/apps.txt"))
		require.NoError(t, err)
		require.Equal(t, "frappe\ncrm\nerpnext\n", string(text))
	}
	require.Zero(t, ConfigureMain(args[:len(args)-2]), "without a password")
	text, err := os.ReadFile(at("sites/common_site_config.json"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"redis://redis-cache:6379"`)
	for _, bad := range [][]string{
		{"--root", root},
		{"--root", root, "--db", "mariadb", "--redis-cache", "a:1", "--redis-queue", "b:1"},
		{"--root", root, "--db", "mariadb:0", "--redis-cache", "a:1", "--redis-queue", "b:1"},
		append(args[:len(args):len(args)], "more"),
		append(args[:len(args)-1:len(args)-1], filepath.Join(root, "absent")),
		{"--root", root, "--nothing"},
	} {
		require.NotZero(t, ConfigureMain(bad), "%q", bad)
	}
	require.NoError(t, os.RemoveAll(at("apps/frappe")))
	require.Equal(t, 1, ConfigureMain(args))
}
