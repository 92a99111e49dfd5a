package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/workload"
)

// waitingOrgs are orgs that want an instance each, the first for the longest time.
func waitingOrgs(t *testing.T, s *Store, from, n int) {
	t.Helper()
	exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) SELECT 'w' || n, 'paid', 'test' FROM generate_series($1::int, $2) n`, from, from+n-1)
	exec(t, s, `INSERT INTO apps (app_id, org_id, name, created_by) SELECT 'a' || n, 'w' || n, 'a', 'test' FROM generate_series($1::int, $2) n`, from, from+n-1)
	exec(t, s, `INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) SELECT 'e' || n, 'a' || n, 'w' || n, 'e', 'eu', 'test' FROM generate_series($1::int, $2) n`, from, from+n-1)
	exec(t, s, `INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by, wanted, waiting_since)
		SELECT 'g' || lpad(n::text, 5, '0'), 'e' || n, 'w' || n, 'eu', 'g', '{"image": "web:1"}', 1 << 30, 0.1, 3, 'test', 3, now() - make_interval(secs => 10000 - n)
		FROM generate_series($1::int, $2) n`, from, from+n-1)
}

func Test501stOrgIsTriedImmediately(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	waitingOrgs(t, s, 0, 700)
	demand := func(limit int) (ids []prego.GroupID) {
		t.Helper()
		d, err := s.InstanceDemand(ctx, "eu", limit, nil)
		require.NoError(t, err)
		for _, v := range d {
			ids = append(ids, v.GroupID)
		}
		return ids
	}
	first := demand(500)
	require.Len(t, first, 500)
	require.Equal(t, prego.GroupID("g00000"), first[0])
	for _, id := range first {
		require.NoError(t, s.NoPlace(ctx, id, workload.ReasonNoCapacityMemory, "no", nil, time.Now(), time.Hour))
	}
	exec(t, s, `UPDATE process_groups SET retry_at = now() + interval '1 hour' WHERE tries > 0`)
	waitingOrgs(t, s, 700, 1)
	next := demand(500)
	require.Equal(t, prego.GroupID("g00500"), next[0], "a refused group waits")
	require.Contains(t, next[:201], prego.GroupID("g00700"), "the last org has its first try after all others, before any second try")
	require.NotContains(t, next, prego.GroupID("g00000"))

	// A refused group returns when there may be room, after groups never tried, and in the order of refusals.
	require.NoError(t, s.RoomFreed(ctx, "us"))
	require.NotContains(t, demand(5000), prego.GroupID("g00000"))
	require.NoError(t, s.RoomFreed(ctx, "eu"))
	all := demand(5000)
	require.Equal(t, prego.GroupID("g00500"), all[0])
	require.Equal(t, []prego.GroupID{"g00000", "g00001"}, all[201:203])
}

func TestUnplaceableGroupBacksOff(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	waitingOrgs(t, s, 0, 1)
	due := func() bool {
		t.Helper()
		d, err := s.InstanceDemand(ctx, "eu", 10, nil)
		require.NoError(t, err)
		return len(d) > 0
	}
	refuse := func() (seconds float64) {
		t.Helper()
		require.NoError(t, s.NoPlace(ctx, "g00000", workload.ReasonNoCapacityMemory, "no", nil, time.Now(), 30*time.Second))
		seconds, err := value[float64](ctx, s.pool, `SELECT EXTRACT(EPOCH FROM retry_at - updated_at)::float8 FROM process_groups`)
		require.NoError(t, err)
		return seconds
	}
	var waits []string
	for range 7 {
		waits = append(waits, fmt.Sprint(refuse()))
		require.False(t, due())
	}
	require.Equal(t, []string{"1", "2", "4", "8", "16", "30", "30"}, waits)
	exec(t, s, `UPDATE process_groups SET retry_at = now()`)
	require.True(t, due())
	refuse()
	exec(t, s, `UPDATE process_groups SET release = release + 1`)
	require.True(t, due(), "another release may fit")
}
