package config

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

func TestTheBuiltInStack(t *testing.T) {
	t.Parallel()
	s, err := Worker{}.Stack()
	require.NoError(t, err)
	vars := map[string]string{"server_id": "app-1", "bench_image": "b:1", "role": "app", "private_address": "127.0.0.1"}
	const derived = "derived-secret"
	names := func(role prego.Role) (out []string) {
		specs, err := s.For(role, vars, func(string) string { return derived })
		require.NoError(t, err)
		for _, c := range specs {
			require.Positive(t, c.MemoryMB, c.Name)
			require.Positive(t, c.CPUs, c.Name)
			require.True(t, c.Health != nil || c.Probe != nil || c.Once, c.Name)
			for _, v := range c.Env {
				require.NotContains(t, v, derived, "the host makes its secrets itself")
			}
			out = append(out, c.Name)
		}
		return out
	}
	require.Contains(t, names(prego.RoleApp), wire.BenchContainer)
	site := []string{"mariadb", "redis-cache", "redis-queue", "configurator", "backend", "websocket", "queue-short", "queue-long", "scheduler", "frontend"}
	require.Equal(t, site, names(prego.RoleApp))
	require.Equal(t, site, names(prego.RoleNode))
	require.Equal(t, []string{"mariadb"}, names(prego.RoleDBShard))
	require.Equal(t, []string{"redis"}, names(prego.RoleRedisPool))
}

// TestEdgesRunTheCaddyThatIsTested: the declared stack, the Makefile, and the wheel that it is taken from have one version.
func TestEdgesRunTheCaddyThatIsTested(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^CADDY_VERSION +:= v(.+)$`).FindSubmatch(makefile)
	require.Len(t, version, 2)
	wheels, err := os.ReadFile("../../tools/wheels.txt")
	require.NoError(t, err)
	require.Contains(t, string(wheels), "\ncaddy-bin=="+string(version[1])+" ")
	s, err := Worker{}.Stack()
	require.NoError(t, err)
	specs, err := s.For(prego.RoleEdge, map[string]string{"server_id": "edge-1"}, func(string) string { return "" })
	require.NoError(t, err)
	require.Equal(t, "caddy:"+string(version[1]), specs[0].Image)
}

// TestMariaDBIsAsFrappeNeedsIt: defaults of MariaDB 11.8 that operators of Frappe override. With snapshot isolation,
// SELECT … FOR UPDATE of a naming series fails with 1020, which Frappe 15 does not repeat; 16 MiB are too small for
// some sites' files and versions; 151 connections are those of a dozen app servers; and one site's query must not fill
// the disk of all. Press has the same values (press, roles/mariadb). A test of lab/sim holds them on a real 11.8.
func TestMariaDBIsAsFrappeNeedsIt(t *testing.T) {
	t.Parallel()
	s, err := Worker{}.Stack()
	require.NoError(t, err)
	servers := 0
	for role, containers := range s {
		for _, c := range containers {
			if c.Name != "mariadb" {
				continue
			}
			servers++
			require.Subset(t, c.Command, []string{
				"--character-set-server=utf8mb4", "--collation-server=utf8mb4_unicode_ci", "--skip-character-set-client-handshake",
				"--innodb-snapshot-isolation=OFF", "--max-allowed-packet=512M",
				"--max-connections=500", "--tmp-disk-table-size=5G",
			}, "%s", role)
		}
	}
	require.Equal(t, 3, servers)
}

// TestSitesAreReachedByEdges: at the private address. Only edges and the host itself get
// there, so that they may say where a request comes from and how large it is.
func TestSitesAreReachedByEdges(t *testing.T) {
	t.Parallel()
	s, err := Worker{}.Stack()
	require.NoError(t, err)
	for _, role := range []prego.Role{prego.RoleApp, prego.RoleNode} {
		for address, want := range map[string][]string{"10.64.0.2": {"10.64.0.2:8080:8080", "127.0.0.1:8080:8080"}, "127.0.0.1": {"127.0.0.1:8080:8080"}} {
			specs, err := s.For(role, map[string]string{"server_id": "app-1", "bench_image": "b:1", "role": string(role), "private_address": address}, func(string) string { return "" })
			require.NoError(t, err)
			frontend := specs[len(specs)-1]
			require.Equal(t, "frontend", frontend.Name)
			require.Equal(t, want, frontend.Ports)
			require.Equal(t, []string{"0.0.0.0/0", "0"}, []string{frontend.Env["UPSTREAM_REAL_IP_ADDRESS"], frontend.Env["CLIENT_MAX_BODY_SIZE"]})
		}
	}
}

// TestDataIsServedOverTLSInTheNetwork: a shard and a pool in a private network take
// connections over TLS, at their address there; without one nobody but their host reaches them.
func TestDataIsServedOverTLSInTheNetwork(t *testing.T) {
	t.Parallel()
	s, err := Worker{}.Stack()
	require.NoError(t, err)
	of := func(role prego.Role, private, address string) server.ContainerSpec {
		specs, err := s.For(role, map[string]string{"private": private, "private_address": address}, func(string) string { return "" })
		require.NoError(t, err)
		return specs[0]
	}
	const option = "--require-secure-transport=ON"
	shard := of(prego.RoleDBShard, "10.64.0.2", "10.64.0.2")
	require.Equal(t, []string{"10.64.0.2:3306:3306"}, shard.Ports)
	require.Subset(t, shard.Command, []string{option, "--ssl-cert=/etc/prego/tls/cert.pem"})
	shard = of(prego.RoleDBShard, "", "127.0.0.1")
	require.Equal(t, []string{"127.0.0.1:3306:3306"}, shard.Ports)
	require.NotContains(t, shard.Command, option)
	pool := of(prego.RoleRedisPool, "10.64.0.3", "10.64.0.3")
	require.Equal(t, []string{"10.64.0.3:6379:6379"}, pool.Ports)
	require.Subset(t, pool.Command, []string{"--tls-auth-clients", "yes", "/etc/prego/users/users.acl", "0"})
	pool = of(prego.RoleRedisPool, "", "127.0.0.1")
	require.NotContains(t, pool.Command, "--tls-port")
	require.Contains(t, pool.Command, "/etc/prego/users.acl")
}

// TestTheBuiltInStackFits adds up the limits of each role's containers: what they may
// take together leaves room for the host itself on the smallest type that the role is
// built on.
func TestTheBuiltInStackFits(t *testing.T) {
	t.Parallel()
	s, err := Worker{}.Stack()
	require.NoError(t, err)
	for role, host := range map[prego.Role]struct {
		memoryMB int64
		cpus     float64
	}{prego.RoleApp: {16384, 8}, prego.RoleNode: {16384, 8}, prego.RoleDBShard: {16384, 4}, prego.RoleRedisPool: {8192, 4}} {
		var memory int64
		for _, c := range s[role] {
			memory += c.MemoryMB
			require.LessOrEqual(t, c.CPUs, host.cpus, "%s %s: the engine refuses more than there are", role, c.Name)
		}
		require.LessOrEqual(t, memory, host.memoryMB-1024, role)
	}
}

func TestStackFiles(t *testing.T) {
	t.Parallel()
	read := func(content string) error {
		file := filepath.Join(t.TempDir(), "stack.json")
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		_, err := Worker{StackFile: file}.Stack()
		return err
	}
	require.NoError(t, read(string(defaultStack)))
	require.ErrorContains(t, read(string(defaultStack)+"{}"), "something follows")
	require.ErrorContains(t, read(`{"app":[{"name":"a","image":"b","privileged":true}]}`), "privileged")
	require.ErrorContains(t, read(`{"app":[{"name":"a","image":"b"}]}`), "no container")
	_, err := Worker{StackFile: "/not/there"}.Stack()
	require.ErrorContains(t, err, "PREGO_STACK_FILE")
}
