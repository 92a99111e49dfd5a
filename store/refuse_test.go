package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/org"
)

// TestARefusedSurgeIsTheGroupsOwn: a group without room for an instance on top drains one first, if it is rolling out;
// what it may still have on top are its own instances that run. No other group is touched, nor one that wants nothing.
func TestARefusedSurgeIsTheGroupsOwn(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	exec(t, s, placeFleet+`
		INSERT INTO orgs (org_id, created_by) VALUES ('o1', 'test');
		INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'o1', 'a', 'test');
		INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-a', 'app-a', 'o1', 'a', 'eu', 'test');
		INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas,
			created_by, wanted, deploy_status)
		VALUES ('full', 'env-a', 'o1', 'eu', 'full', '{}', 1, 1, 2, 'test', 1, 'rolling'),
			('over', 'env-a', 'o1', 'eu', 'over', '{}', 1, 1, 1, 'test', 1, 'rolling'),
			('still', 'env-a', 'o1', 'eu', 'still', '{}', 1, 1, 1, 'test', 1, 'none'),
			('calm', 'env-a', 'o1', 'eu', 'calm', '{}', 1, 1, 1, 'test', 0, 'rolling'),
			('waits', 'env-a', 'o1', 'eu', 'waits', '{}', 1, 1, 1, 'test', 1, 'rolling'),
			('second', 'env-a', 'o1', 'eu', 'second', '{}', 1, 1, 1, 'test', 1, 'rolling');
		INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, number, spec, state)
		SELECT g || '-' || n, g, 'o1', (SELECT min(server_id) FROM servers), 1, 1, 1, n, '{}', CASE WHEN g = 'full' AND n = 3 THEN 'stopped' ELSE 'running' END
		FROM (VALUES ('full', 3), ('over', 4), ('still', 1), ('calm', 1)) v (g, of), generate_series(1, of) n`)
	over := &org.QuotaExceeded{Dimension: "max_instances"}
	type standing struct {
		NoSurge bool
		Limit   int // -1: all
		Wanted  int
		Deploy  string
		Told    bool
	}
	is := func(id string) (out standing) {
		require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT no_surge, COALESCE(surge_limit, -1), wanted, deploy_status, deploy_message <> ''
			FROM process_groups WHERE group_id = $1`, id).Scan(&out.NoSurge, &out.Limit, &out.Wanted, &out.Deploy, &out.Told))
		return out
	}
	refuse := func(id prego.GroupID, surge bool) {
		t.Helper()
		_, err := s.refuseAllocation(t.Context(), id, &refusedAllocation{over: over, surge: surge}, time.Minute)
		require.NoError(t, err)
	}
	untouched := standing{false, -1, 1, "rolling", false}
	refuse("full", true)
	require.Equal(t, standing{true, 0, 0, "draining_first", true}, is("full"), "a stopped instance is none on top")
	require.Equal(t, untouched, is("over"))
	refuse("over", true)
	require.Equal(t, standing{false, 3, 0, "rolling", false}, is("over"), "three run on top already")
	require.Equal(t, standing{true, 0, 0, "draining_first", true}, is("full"))
	refuse("still", true)
	require.Equal(t, standing{true, 0, 0, "none", true}, is("still"), "no rollout, no drain")
	refuse("calm", true)
	require.Equal(t, standing{false, -1, 0, "rolling", false}, is("calm"), "it was changed since, and wants nothing")
	refuse("calm", false)
	refuse("waits", false)
	require.Equal(t, 1, count(t, s, `process_groups WHERE status = 'unschedulable' AND group_id = 'waits'`))
	require.Equal(t, 1, count(t, s, `process_groups WHERE status = 'unschedulable'`))
}
