package store

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
)

// insertServer puts a plain row there for tests that are about something else.
func insertServer(t testing.TB, s *Store, id, status string) {
	t.Helper()
	_, err := s.pool.Exec(context.Background(), `
INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
VALUES ($1, '\x00', 'app', 'eu', 'hetzner', '{}', $2, 'server-provision/' || $1, 'test')`, id, status)
	require.NoError(t, err)
}

func TestPlacementGroupsHoldAtMostTen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	const servers = 35
	var wg sync.WaitGroup
	names := make([]string, servers)
	for i := range servers {
		insertServer(t, s, fmt.Sprintf("app-%02d", i), "provisioning")
	}
	for i := range servers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			name, err := s.AssignPlacementGroup(ctx, prego.ServerID(fmt.Sprintf("app-%02d", i)), "prego-test-app", 10, 3, nil)
			if err == nil {
				names[i] = name
			}
		}()
	}
	wg.Wait()
	count := map[string]int{}
	for _, n := range names {
		count[n]++
	}
	require.Equal(t, map[string]int{"prego-test-app-1": 10, "prego-test-app-2": 10, "prego-test-app-3": 10, "": 5}, count)

	again, err := s.AssignPlacementGroup(ctx, "app-00", "prego-test-app", 10, 4, nil)
	require.NoError(t, err)
	if names[0] != "" {
		require.Equal(t, names[0], again, "a server keeps its place")
	}
	moved, err := s.AssignPlacementGroup(ctx, "app-00", "prego-test-app", 10, 4, []string{"prego-test-app-1", "prego-test-app-2", "prego-test-app-3"})
	require.NoError(t, err)
	require.Equal(t, "prego-test-app-4", moved, "a group that the provider refused is left")
}
