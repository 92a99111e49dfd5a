package activities_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// TestARefusedRestoreStartsNoRun of a tenant that isn't there.
func TestARefusedRestoreStartsNoRun(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 1)
	s := p.steps(p.Placer(nil))
	require.Equal(t, prego.CodeTenantNotFound, prego.CodeOf(s.RestoreLost(t.Context(), "t-none")))
	require.Empty(t, s.runs.provisioned)
}

// TestASweepCountsLatePools: the gauge that an alert reads.
func TestASweepCountsLatePools(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 1)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("db-0", prego.RoleDBShard, "")
	p.Exec(`INSERT INTO site_pool (pool_site_id, app_server_id, db_shard_id, site_name, database_name, state, reserved_until, created_at)
		VALUES ('ps-1', 'app-0', 'db-0', 'pool-1.sites.test', 'pool_1', 'reserved', now() + interval '1 hour', now() - interval '1 day')`)
	p.Exec(`UPDATE site_pool_policies SET low_watermark = 1, target = 1, slo_seconds = 60`)
	s := p.steps(p.Placer(nil))
	_, _ = s.SweepTenants(t.Context())
	var late dto.Metric
	require.NoError(t, s.Metrics.Late.Write(&late))
	require.InDelta(t, 1, late.GetGauge().GetValue(), 0)
}

// TestAProvisioningResumesAtAMachineThatReported: one that was made, sent its first heartbeat, and holds its identity.
func TestAProvisioningResumesAtAMachineThatReported(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 1)
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, generation)
		VALUES ('web-1', '', 'app', 'eu', 'hetzner', '{}', 'provisioning', 'w', 'test', 1)`)
	a := &activities.Servers{Store: p.Store, Catalog: server.DefaultCatalog(), Settings: activities.Settings{CreateBackoff: 2 * time.Second}}
	const reported = `provider_server_id = '7', agent_status = 'connected', agent_first_heartbeat_at = now(), identity_revoked_at = NULL`
	for name, tc := range map[string]struct {
		but  string
		want bool
	}{
		"it reported":          {reported, true},
		"it was never made":    {`provider_server_id = ''`, false},
		"it sent no heartbeat": {`agent_first_heartbeat_at = NULL`, false},
		"its identity ended":   {`identity_revoked_at = now()`, false},
		"its agent is away":    {`agent_status = 'disconnected'`, false},
	} {
		p.Exec(`UPDATE servers SET ` + reported)
		p.Exec(`UPDATE servers SET ` + tc.but)
		plan, err := a.PlanProvisioning(t.Context(), activities.ServerRef{ServerID: "web-1", Generation: 1})
		require.NoError(t, err, name)
		require.Equal(t, tc.want, plan.Resume, name)
	}
}

// TestTheFirstArchiveFollowsNone: what a move copies first is the whole site, not what changed since another archive.
func TestTheFirstArchiveFollowsNone(t *testing.T) {
	t.Parallel()
	p, s, ref := networked(t, false)
	_, err := s.env.ExecuteActivity(s.BuildTenant, ref)
	require.NoError(t, err)
	p.Server("app-9", prego.RoleApp, "")
	p.Exec(`UPDATE servers SET network_id = 'n-1', private_address = '10.64.0.99' WHERE server_id = 'app-9'`)
	p.Exec(`INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, requested_by, site, database_name,
			from_server_id, to_server_id, moves_server, state, from_shard_id, from_pool_id)
		SELECT 'mov-1', t.org_id, t.tenant_id, a.allocation_id, 'ann', t.site, a.database_name,
			a.app_server_id, 'app-9', true, 'copying', a.db_shard_id, a.redis_pool_id
		FROM tenants t JOIN tenant_allocations a USING (tenant_id)`)
	s.hosts.ran, s.hosts.says = nil, map[string]string{"pack-site": fmt.Sprintf(
		`{"name":"mov-1-1","bytes":1,"sha256":%[1]q,"plain_sha256":%[1]q}`, strings.Repeat("0", 64))}
	m := &activities.Moves{Store: p.Store, Tenants: s.Tenants, Runs: s.runs, Backups: &activities.Backups{Store: p.Store, Tenants: s.Tenants}, Log: zap.NewNop()}
	s.env.RegisterActivity(m)
	_, err = s.env.ExecuteActivity(m.CopySite, prego.MoveID("mov-1"))
	require.ErrorContains(t, err, "no object storage is configured")
	i := slices.IndexFunc(s.hosts.ran, func(c []string) bool { return slices.Contains(c, "pack-site") })
	require.GreaterOrEqual(t, i, 0, "%v", s.hosts.ran)
	packed := s.hosts.ran[i]
	at := slices.Index(packed, "pack-site")
	require.Equal(t, "mov-1-1", packed[at+1])
	require.Len(t, packed[at:], 3, "the verb, the archive, whom it is sealed for, and no earlier archive: %v", packed)
}
