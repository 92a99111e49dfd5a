package activities_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/activities"
)

// TestADrillIsClearedWithoutItsHost: the host was lost together with a tenant that is not restored yet, so its disk is
// kept. Nothing waits for that: the drill lets go of its place, and its database on the shard is dropped.
func TestADrillIsClearedWithoutItsHost(t *testing.T) {
	t.Parallel()
	p, s, _ := networked(t, false)
	for _, sql := range []string{
		`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by)
			SELECT 'bak-1', org_id, tenant_id, 'app-0', slug, 'manual', 'test' FROM tenants`,
		`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, reason)
			VALUES ('dr-1', 'app-0', 'db-0', 'drill-1.sites.test', 'pool_drill_1', 'draining', 'a drill')`,
		`INSERT INTO drills (drill_id, org_id, tenant_id, backup_id, server_id, pool_site_id, state, finished_at, created_by)
			SELECT 'drl-1', org_id, tenant_id, 'bak-1', 'app-0', 'dr-1', 'failed', now(), 'test' FROM tenants`,
		`UPDATE servers SET status = 'draining' WHERE server_id = 'app-0'`,
	} {
		p.Exec(sql)
	}
	drills := &activities.Drills{Store: p.Store, Backups: &activities.Backups{Store: p.Store, Tenants: s.Tenants}}
	s.env.RegisterActivity(drills)
	clean := func() error {
		_, err := s.env.ExecuteActivity(drills.ClearDrill, "drl-1")
		return err
	}
	require.ErrorContains(t, clean(), "server app-0 is draining", "its agent may still run commands")
	require.Empty(t, s.hosts.ran)
	p.Exec(`UPDATE servers SET identity_revoked_at = now() WHERE server_id = 'app-0'`)
	require.NoError(t, clean())
	require.Equal(t, [][]string{{"db-0", "erase-database", "pool_drill_1"}}, s.hosts.ran)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM drills WHERE cleared_at IS NOT NULL`))
	require.Zero(t, p.Number(`SELECT count(*) FROM site_pool`))
	require.NoError(t, clean(), "again")
	require.Len(t, s.hosts.ran, 1)
}
