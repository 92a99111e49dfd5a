package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/workload"
)

// aVolume is a volume in a location, mounted at a path by a group.
func aVolume(id, location, group, path string) string {
	return fmt.Sprintf(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes,
			made_bytes, provider, provider_name, status, created_by) VALUES ('%[1]s', 'acme', 'eu', '%[2]s', '%[1]s',
			10000000000, 10000000000, 'hetzner', '%[1]s', 'ready', 'test');
		INSERT INTO volume_attachments (attachment_id, org_id, volume_id, group_id, mount_path, created_by)
			VALUES ('vat-%[1]s', 'acme', '%[1]s', %[3]s, '%[4]s', 'test');`, id, location, group, path)
}

// TestAllocationChecksTheServerAgain: whatever changed since the decision, no instance starts on a server that does not
// take it. Each case changes the rows between the two; GROUP is the group, and OTHER another one.
func TestAllocationChecksTheServerAgain(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	exec(t, s, `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy,
		request_hash, state, created_by)
		VALUES ('t', 't', 'acme', 'eu', 'starter', 1, 1, 'shared', '', 'trial', 'test')`)
	const (
		shard = `INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity, dedicated_for_tenant_id)
			VALUES ('d', 'node-1', 'eu', 9, 't')`
		pool = `INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity, dedicated_for_tenant_id)
			VALUES ('r', 'node-1', 'eu', 9, 't')`
	)
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status,
		workflow_id, created_by, fleet_id, location)
		VALUES ('node-2', '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'nodes', 'fsn1')`)
	volumes := func(of string, n int) string {
		var out strings.Builder
		for i := range n {
			out.WriteString(aVolume(fmt.Sprintf("v%d", i), "fsn1", of, fmt.Sprintf("/v%d", i)))
		}
		return out.String()
	}
	const (
		here = `UPDATE volume_attachments SET server_id = 'node-1';`
		gone = `UPDATE volume_attachments SET deleted_at = now();`
	)
	// An instance of another group, with almost all memory and the first port.
	instance := func(server, state string) string {
		return fmt.Sprintf(`INSERT INTO instances (instance_id, group_id, org_id, server_id, release,
			memory_limit_bytes, cpu_request, number, spec, ports, state)
			VALUES ('ins', OTHER, 'acme', '%s', 1, 9921::bigint << 20,
			0, 1, '{}', '[{"container_port": 80, "host_port": 20000}]', '%s')`, server, state)
	}
	small := strings.Replace(instance("node-1", "running"), "9921", "16", 1)
	stopped := strings.Replace(small, "running", "stopped", 1)
	elsewhere := strings.Replace(small, "node-1", "node-2", 1)
	own := aVolume("vol", "fsn1", "GROUP", "/data")
	resource := func(kind, server, state string) string {
		return fmt.Sprintf(`INSERT INTO resources (provider, kind, name, provider_id, state, server_id, created_at)
			VALUES ('hetzner', '%s', 'r', '77', '%s', '%s', now());`, kind, state, server)
	}
	n := 0
	for name, tc := range map[string]struct {
		change  string
		volumes []string // paths that must be mounted
		lost    bool
		port    int // 20000 unless given
	}{
		"nothing":                  {change: `SELECT`},
		"another region":           {change: `UPDATE servers SET region = 'us'`, lost: true},
		"draining":                 {change: `UPDATE servers SET status = 'draining'`, lost: true},
		"failed":                   {change: `UPDATE servers SET status = 'failed'`, lost: true},
		"terminated":               {change: `UPDATE servers SET status = 'terminated'`, lost: true},
		"a silent agent":           {change: `UPDATE servers SET agent_status = 'degraded'`, lost: true},
		"cordoned":                 {change: `UPDATE servers SET cordoned_at = now()`, lost: true},
		"without a fleet":          {change: `UPDATE servers SET fleet_id = NULL`, lost: true},
		"dedicated to a tenant":    {change: `UPDATE servers SET dedicated_for_tenant_id = 't'`, lost: true},
		"its shard is dedicated":   {change: shard, lost: true},
		"its shard is shared":      {change: shard + `; UPDATE db_shards SET dedicated_for_tenant_id = NULL`},
		"its pool is dedicated":    {change: pool, lost: true},
		"its pool is shared":       {change: pool + `; UPDATE redis_pools SET dedicated_for_tenant_id = NULL`},
		"warm":                     {change: `UPDATE servers SET warm_plan = 'business'`, lost: true},
		"warm once, with a tenant": {change: `UPDATE servers SET warm_plan = 'business', tenant_count = 1`},
		"the group's volume is elsewhere": {
			change: aVolume("vol", "nbg1", "GROUP", "/data"), volumes: []string{"/data"}, lost: true,
		},
		"another group's volume is elsewhere": {change: aVolume("vol", "nbg1", "OTHER", "/data")},
		"a volume that it had is elsewhere": {
			change: aVolume("vol", "nbg1", "GROUP", "/data") + `UPDATE volume_attachments SET deleted_at = now()`,
		},
		"its volume is here":            {change: own, volumes: []string{"/data"}},
		"its volume is not mounted yet": {change: `SELECT`, volumes: []string{"/data"}, lost: true},
		"its volume is mounted elsewhere": {
			change: aVolume("vol", "fsn1", "GROUP", "/other"), volumes: []string{"/data"}, lost: true,
		},
		"one of its volumes is not mounted": {
			change: own, volumes: []string{"/data", "/more"}, lost: true,
		},
		"another group's is mounted there": {
			change: aVolume("vol", "fsn1", "OTHER", "/data"), volumes: []string{"/data"}, lost: true,
		},
		"its volume was mounted": {
			change:  aVolume("vol", "fsn1", "GROUP", "/data") + `UPDATE volume_attachments SET deleted_at = now()`,
			volumes: []string{"/data"}, lost: true,
		},
		"the server has all volumes that it can": {
			change:  volumes("OTHER", 16) + here + own,
			volumes: []string{"/data"}, lost: true,
		},
		"it has one volume less": {
			change: volumes("OTHER", 15) + here + own, volumes: []string{"/data"},
		},
		"the volumes are not on the server": {
			change: volumes("OTHER", 16) + own, volumes: []string{"/data"},
		},
		"the group had more volumes": {
			change: volumes("GROUP", 16) + gone + own, volumes: []string{"/data"},
		},
		"the volumes of what runs here are coming": {
			change: volumes("OTHER", 16) + small + `;` + own, volumes: []string{"/data"}, lost: true,
		},
		"what has them has stopped": {
			change: volumes("OTHER", 16) + stopped + `;` + own, volumes: []string{"/data"},
		},
		"what has them runs elsewhere": {
			change: volumes("OTHER", 16) + elsewhere + `;` + own, volumes: []string{"/data"},
		},
		"what runs here has no volumes": {
			change:  volumes("OTHER", 16) + strings.Replace(small, "OTHER", "'third'", 1) + `;` + own,
			volumes: []string{"/data"}, port: 20001,
		},
		"what runs here had volumes": {
			change: volumes("OTHER", 16) + gone + small + `;` + own, volumes: []string{"/data"}, port: 20001,
		},
		"the server borrows too many": {
			change: volumes("OTHER", 16) + `UPDATE volumes SET lent_to = 'node-1', lent_for = 'b';
				INSERT INTO volume_attachments (attachment_id, org_id, volume_id, group_id, mount_path, created_by,
					deleted_at)
				SELECT 'old-' || volume_id, org_id, volume_id, 'third', '/old', 'test', now() FROM volumes;` + own,
			volumes: []string{"/data"}, lost: true,
		},
		"another server borrows them": {
			change:  volumes("OTHER", 16) + `UPDATE volumes SET lent_to = 'node-2', lent_for = 'b';` + own,
			volumes: []string{"/data"},
		},
		"the server has a data volume": {
			change:  volumes("OTHER", 15) + here + resource("volume", "node-1", "created") + own,
			volumes: []string{"/data"}, lost: true,
		},
		"its data volume is gone": {
			change:  volumes("OTHER", 15) + here + resource("volume", "node-1", "released") + own,
			volumes: []string{"/data"},
		},
		"another server has a data volume": {
			change:  volumes("OTHER", 15) + here + resource("volume", "node-2", "created") + own,
			volumes: []string{"/data"},
		},
		"it has an address": {
			change:  volumes("OTHER", 15) + here + resource("primary_ip", "node-1", "created") + own,
			volumes: []string{"/data"},
		},
		"too many volumes don't matter to a group without": {change: volumes("OTHER", 17) + here},
		"its memory is taken":                              {change: instance("node-1", "running"), lost: true},
		"its memory is being taken":                        {change: instance("node-1", "booting"), lost: true},
		"its memory is free again":                         {change: instance("node-1", "stopped")},
		"another server's memory is taken":                 {change: instance("node-2", "running")},
		"its first port is taken":                          {change: small, port: 20001},
		"its first port is free again":                     {change: stopped},
		"another server's first port is taken":             {change: elsewhere},
		"another server is dedicated": {
			change: `UPDATE servers SET dedicated_for_tenant_id = 't' WHERE server_id = 'node-2'`,
		},
		"another server is warm": {
			change: `UPDATE servers SET warm_plan = 'business' WHERE server_id = 'node-2'`,
		},
		"another server's shard is dedicated": {change: strings.Replace(shard, "node-1", "node-2", 1)},
		"another server's pool is dedicated":  {change: strings.Replace(pool, "node-1", "node-2", 1)},
	} {
		n += 2
		own, err := s.testGroup(t, n, "acme", 1, workload.Spec{
			Image: "web:1", MemoryLimitBytes: 16 << 20, CPURequest: 0.1, Constraint: &prego.Constraint{},
			Ports:   []int{80},
			Volumes: tc.volumes,
		})
		require.NoError(t, err, name)
		other, err := s.testGroup(t, n+1, "acme", 0, specOf(16))
		require.NoError(t, err, name)
		_, err = s.PlanGroup(t.Context(), prego.GroupID(own), time.Second)
		require.NoError(t, err, name)
		exec(t, s, `UPDATE process_groups SET wanted = 1 WHERE group_id = $1`, own)
		change := strings.NewReplacer("GROUP", "'"+own+"'", "OTHER", "'"+other+"'").Replace(tc.change)
		exec(t, s, `BEGIN; SET LOCAL session_replication_role = replica; `+change+`; COMMIT`,
			pgx.QueryExecModeSimpleProtocol)
		place := workload.InstancePlace{GroupID: prego.GroupID(own), ServerID: "node-1"}
		got, err := s.Allocate(t.Context(), place, time.Second)
		require.NoError(t, err, name)
		want := workload.Allocated
		if tc.lost {
			want = workload.AllocationLost
		}
		require.Equal(t, want, got.Outcome, name)
		if !tc.lost {
			var port int
			require.NoError(t, s.pool.QueryRow(t.Context(),
				`SELECT (ports -> 0 ->> 'host_port')::int FROM instances WHERE instance_id = $1`,
				got.InstanceID).Scan(&port))
			require.Equal(t, max(tc.port, 20000), port, name)
		}
		exec(t, s, `BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM instances;
			DELETE FROM volume_attachments; DELETE FROM volumes; DELETE FROM db_shards;
			DELETE FROM resources; DELETE FROM redis_pools;
			UPDATE servers SET region = 'eu', status = 'active', agent_status = 'connected', cordoned_at = NULL,
				fleet_id = 'nodes', dedicated_for_tenant_id = NULL, warm_plan = NULL, tenant_count = 0; COMMIT`,
			pgx.QueryExecModeSimpleProtocol)
	}
}
