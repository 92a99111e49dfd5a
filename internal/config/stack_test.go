package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

func TestTheBuiltInStack(t *testing.T) {
	t.Parallel()
	s, err := Worker{}.Stack()
	require.NoError(t, err)
	vars := map[string]string{"server_id": "app-1", "bench_image": "b:1", "role": "app"}
	const derived = "derived-secret"
	names := func(role prego.Role) (out []string) {
		specs, err := s.For(role, vars, func(string) string { return derived })
		require.NoError(t, err)
		for _, c := range specs {
			require.Positive(t, c.MemoryMB, c.Name)
			require.Positive(t, c.CPUs, c.Name)
			require.True(t, c.Health != nil || c.Probe != nil, c.Name)
			for _, v := range c.Env {
				require.NotContains(t, v, derived, "the host makes its secrets itself")
			}
			out = append(out, c.Name)
		}
		return out
	}
	require.Contains(t, names(prego.RoleApp), wire.BenchContainer)
	require.Equal(t, []string{"mariadb", "redis", "bench"}, names(prego.RoleApp))
	require.Equal(t, []string{"mariadb", "redis", "bench"}, names(prego.RoleNode))
	require.Equal(t, []string{"mariadb"}, names(prego.RoleDBShard))
	require.Equal(t, []string{"redis"}, names(prego.RoleRedisPool))
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
