package rooted

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

func roleHost(t testing.TB, role string) *host.Host {
	t.Helper()
	return &host.Host{Root: t.TempDir(), Config: wire.HostConfig{ServerID: agenttest.Server, Role: role}}
}

// listing is what there is below a host's root, with modes and contents.
func listing(t testing.TB, h *host.Host) map[string]string {
	t.Helper()
	out := make(map[string]string)
	require.NoError(t, filepath.WalkDir(h.Root, func(p string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		text := info.Mode().String() + " " + info.ModTime().String()
		if d.IsDir() {
			text = info.Mode().String()
		} else if filepath.Base(p) != "prego-agent" {
			b, err := os.ReadFile(p)
			require.NoError(t, err)
			text += " " + string(b)
		}
		out[strings.TrimPrefix(p, h.Root)] = text
		return nil
	}))
	return out
}

func TestPrepareMakesWhatARoleNeeds(t *testing.T) {
	t.Parallel()
	modes := map[string]string{
		wire.SecretsDir: "drwx------", wire.MountsDir: "drwx------", wire.SocketsDir: "drwx--x---", filepath.Dir(wire.ServicesPath): "drwxr-x---",
		wire.SecretsDir + "/mariadb-root": "-rw-------", wire.SecretsDir + "/mariadb-exec": "-rw-------",
		wire.SecretsDir + "/redis-app": "-rw-------", wire.SecretsDir + "/redis-exec": "-rw-------",
		wire.ServicesPath:                 "-rw-r-----",
		wire.MariaDBMount + "/init.sql":   "-rw-r--r--",
		wire.RedisMount + "/users.acl":    "-rw-r--r--",
		wire.ProgramsDir + "/prego-agent": "-rwxr-xr-x",
		filepath.Dir(wire.MariaDBSocket):  "drwxrwxrwx", filepath.Dir(wire.RedisSocket): "drwxrwxrwx",
	}
	for role, lacks := range map[string]string{"app": "nothing", "node": "nothing", "db-shard": "redis", "redis-pool": "mysqld mariadb"} {
		h := roleHost(t, role)
		require.NoError(t, Prepare(h, ""))
		made := listing(t, h)
		for name, mode := range modes {
			missing := strings.Contains(name, "prego-agent") && name != wire.ServicesPath && name != filepath.Dir(wire.ServicesPath) && lacks != "nothing"
			for l := range strings.FieldsSeq(lacks) {
				missing = missing || strings.Contains(name, l)
			}
			if missing {
				require.NotContains(t, made, name, role)
			} else {
				require.True(t, strings.HasPrefix(made[name], mode+" ") || made[name] == mode, "%s: %s is %s", role, name, made[name])
			}
		}
		s, err := h.Services()
		require.NoError(t, err)
		require.Equal(t, lacks == "nothing", s.Bench.Socket == wire.BenchSocket)
		require.Equal(t, lacks != "redis", s.Redis.Socket == wire.RedisSocket)
		require.Equal(t, !strings.Contains(lacks, "mariadb"), s.MariaDB.Socket == wire.MariaDBSocket)

		require.NoError(t, Prepare(h, ""))
		require.Equal(t, made, listing(t, h), "again changes nothing")

		other := roleHost(t, role)
		require.NoError(t, Prepare(other, ""))
		for name := range made {
			if info, err := os.Stat(h.Path(name)); err == nil && info.Mode().IsRegular() && filepath.Base(name) != "prego-agent" {
				require.NotEqual(t, made[name], listing(t, other)[name], "%s: another host has others", name)
			}
		}
	}
	require.ErrorContains(t, Prepare(roleHost(t, ""), ""), "no role")
	require.ErrorContains(t, Prepare(roleHost(t, "app"), "no-such-group"), "no-such-group")
}

// TestPrepareWritesUnits for the service manager, and the additions to Docker's.
func TestPrepareWritesUnits(t *testing.T) {
	t.Parallel()
	h := roleHost(t, "redis-pool")
	require.NoError(t, Prepare(h, ""))
	require.NoDirExists(t, h.Path(unitsDir), "without a service manager")
	require.NoError(t, os.MkdirAll(h.Path(unitsDir), 0o755))
	require.NoError(t, Prepare(h, ""))
	for _, name := range []string{"prego-agent-peers.service", "docker.service.d/private-address.conf"} {
		b, err := os.ReadFile(h.Path(unitsDir + "/" + name))
		require.NoError(t, err)
		require.Contains(t, string(b), "[Service]")
	}
}

// TestPrepareKeepsSecretsInTheirPlaces: secrets in clear are only where they are read.
func TestPrepareKeepsSecretsInTheirPlaces(t *testing.T) {
	t.Parallel()
	h := roleHost(t, "app")
	require.NoError(t, Prepare(h, ""))
	made := listing(t, h)
	for name, places := range map[string][]string{
		"mariadb-root": {wire.MariaDBMount + "/root-password"}, // the application has it nowhere
		"mariadb-exec": {wire.ServicesPath},
		"redis-app":    {wire.BenchMount + "/redis-password"},
		"redis-exec":   {wire.ServicesPath},
	} {
		b, err := os.ReadFile(h.Path(wire.SecretsDir + "/" + name))
		require.NoError(t, err)
		places = append(places, wire.SecretsDir+"/"+name)
		for file, content := range made {
			if strings.Contains(content, strings.TrimSpace(string(b))) {
				require.Contains(t, places, file, name)
			}
		}
	}
}

func TestPrepareMendsWhatItCan(t *testing.T) {
	t.Parallel()
	h := roleHost(t, "app")
	require.NoError(t, Prepare(h, ""))
	read := func(name string) string {
		b, err := os.ReadFile(h.Path(name))
		require.NoError(t, err)
		return string(b)
	}
	files := []string{wire.ServicesPath, wire.MariaDBMount + "/init.sql", wire.MariaDBMount + "/root-password", wire.RedisMount + "/users.acl", wire.BenchMount + "/redis-password"}
	for _, name := range files {
		want := read(name)
		require.NoError(t, os.Remove(h.Path(name)))
		require.NoError(t, Prepare(h, ""))
		require.Equal(t, want, read(name), "missing files are created again, unchanged")
		require.NoError(t, os.WriteFile(h.Path(name), []byte("rubbish"), 0o666))
		require.NoError(t, os.Chmod(h.Path(name), 0o666))
		require.NoError(t, Prepare(h, ""))
		require.Equal(t, want, read(name), "and so are damaged ones")
		info, err := os.Stat(h.Path(name))
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o022, "%s: only its owner may write it", name)
		require.NoError(t, os.Chmod(h.Path(name), 0o666))
		require.NoError(t, Prepare(h, ""))
		info, err = os.Stat(h.Path(name))
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o022, "%s: nor when only that was wrong", name)
	}
	require.NoError(t, os.RemoveAll(h.Path(wire.SocketsDir)), "as at a boot")
	require.NoError(t, Prepare(h, ""))
	require.DirExists(t, h.Path(filepath.Dir(wire.RedisSocket)))

	for _, rubbish := range []string{"", "short", "two\nlines", strings.Repeat("A", 30) + "'", "\x00"} {
		name := wire.SecretsDir + "/mariadb-exec"
		require.NoError(t, os.WriteFile(h.Path(name), []byte(rubbish), 0o600))
		err := Prepare(h, "")
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, "remove it")
		require.Equal(t, rubbish, read(name), "a secret is never replaced")
	}
	before := read(wire.ServicesPath)
	require.NoError(t, os.Remove(h.Path(wire.SecretsDir+"/mariadb-exec")))
	require.NoError(t, Prepare(h, ""))
	require.NotEqual(t, before, read(wire.ServicesPath), "another was made, and everything follows it")

	require.NoError(t, os.RemoveAll(h.Path(wire.RedisMount)))
	require.NoError(t, os.Symlink(h.Root, h.Path(wire.RedisMount)))
	require.ErrorContains(t, Prepare(h, ""), "is no directory")
	require.NoError(t, os.Remove(h.Path(wire.RedisMount)))
	require.NoError(t, os.WriteFile(h.Path(wire.RedisMount), nil, 0o600))
	require.ErrorContains(t, Prepare(h, ""), "is no directory")
}

// TestPrepareIsTheProgramsToo runs it as the unit does.
func TestPrepareIsTheProgramsToo(t *testing.T) {
	t.Parallel()
	name, err := agenttest.Binary()
	require.NoError(t, err)
	h := roleHost(t, "app")
	b, err := json.Marshal(wire.HostConfig{
		ServerID: agenttest.Server, Environment: agenttest.Environment, Role: "app", GatewayURL: "https://gw", GatewayServerName: agenttest.GatewayName, AgentPort: 1, DockerPort: 1,
	})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(h.Path(wire.HostConfigPath)), 0o755))
	require.NoError(t, os.WriteFile(h.Path(wire.HostConfigPath), b, 0o600))
	out, err := exec.Command(name, "prepare", "--root", h.Root).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, out)
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	got, err := os.ReadFile(h.Path(wire.ProgramsDir + "/prego-agent"))
	require.NoError(t, err)
	require.Equal(t, want, got)
	out, err = exec.Command(name, "prepare", "--root", h.Root, "--group", "no-such-group").CombinedOutput()
	require.EqualError(t, err, "exit status 1")
	require.Contains(t, string(out), "no-such-group")
}
