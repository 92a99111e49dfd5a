package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/workload"
)

// groupBundle is an org with an environment, and a server that offers 10,000 MiB.
func groupBundle(t *testing.T) *Store {
	t.Helper()
	s := New(pgtest.Pool(t))
	for _, sql := range []string{
		`INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'paid', 'test'), ('other', 'paid', 'test')`,
		`INSERT INTO apps (app_id, org_id, name, created_by) SELECT 'app-' || org_id, org_id, 'shop', 'test' FROM orgs WHERE org_id IN ('acme', 'other')`,
		`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) SELECT 'env-' || org_id, app_id, org_id, 'live', 'eu', 'test' FROM apps`,
		`INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by, workload_memory_bytes, workload_cpus)
		 VALUES ('nodes', '', 'app', 'hetzner', 0, -1, '{}', 'test', 10000::bigint * 1048576, 8)`,
		`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, agent_status, workflow_id, created_by, fleet_id, location)
		 VALUES ('node-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'connected', 'w', 'test', 'nodes', 'fsn1')`,
	} {
		_, err := s.pool.Exec(context.Background(), sql)
		require.NoError(t, err, sql)
	}
	return s
}

func specOf(memoryMB int64) workload.Spec {
	return workload.Spec{Image: "web:1", MemoryLimitBytes: memoryMB << 20, CPURequest: 0.1, Constraint: &prego.Constraint{}, Ports: []int{80}}
}

func (s *Store) testGroup(t require.TestingT, n int, org string, replicas int, spec workload.Spec) (string, error) {
	id := workload.NewGroupID(fmt.Sprintf("%012x", n))
	r := workload.CreateGroupRequest{Name: fmt.Sprintf("g%d", n), Spec: spec, Replicas: &replicas}
	require.NoError(t, r.Validate())
	_, _, err := s.CreateGroup(context.Background(), prego.GroupID(id), prego.EnvID("env-"+org), r, "test")
	return id, err
}

// turn plans a group, allocates what it wants, and makes all of it running and stopped: a whole round without
// containers.
func (s *Store) turn(ctx context.Context, id prego.GroupID) (outcomes []workload.AllocationOutcome, err error) {
	p, err := s.PlanGroup(ctx, id, time.Second)
	if err != nil {
		return nil, err
	}
	var wanted int
	if err := s.pool.QueryRow(ctx, `SELECT wanted FROM process_groups WHERE group_id = $1`, id).Scan(&wanted); err != nil {
		return nil, err
	}
	for range wanted {
		got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: id, ServerID: "node-1"}, time.Second)
		if err != nil {
			return outcomes, err
		}
		outcomes = append(outcomes, got.Outcome)
		if got.Outcome != workload.Allocated {
			break
		}
		p.Boot = append(p.Boot, string(got.InstanceID))
	}
	for _, i := range p.Boot {
		if _, err := s.InstanceRunning(ctx, i); err != nil {
			return outcomes, err
		}
	}
	for _, i := range p.Stop {
		if _, err := s.InstanceStopped(ctx, i); err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

func (s *Store) usage(t require.TestingT, org string) (usage, promised map[quota.Dimension]float64) {
	usage, promised = map[quota.Dimension]float64{}, map[quota.Dimension]float64{}
	rows, err := s.pool.Query(context.Background(), `SELECT dimension, usage, COALESCE(reserved, 0) FROM org_usage_view LEFT JOIN org_reserved_view USING (org_id, dimension) WHERE org_id = $1`, org)
	require.NoError(t, err)
	for rows.Next() {
		var d quota.Dimension
		var u, r float64
		require.NoError(t, rows.Scan(&d, &u, &r))
		usage[d], promised[d] = u, r
	}
	require.NoError(t, rows.Err())
	drift, err := s.usageDrift(context.Background(), s.pool, prego.OrgID(org))
	require.NoError(t, err)
	require.Empty(t, string(drift), "the counters are what there is")
	return usage, promised
}

// TestGroupsAgreeWithAModel runs random changes of groups against a plain model of promises: both accept and refuse
// the same changes, and the views agree after each.
func TestGroupsAgreeWithAModel(t *testing.T) {
	t.Parallel()
	base := groupBundle(t)
	n, ids := 0, 0
	deep.Check(t, 30, func(t *rapid.T) {
		ctx := context.Background()
		s := base
		n++
		orgID := fmt.Sprintf("m%d", n)
		const limit = 12
		for _, sql := range []string{
			`INSERT INTO orgs (org_id, tier, created_by) VALUES ($1, 'paid', 'test')`,
			`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-' || $1, $1, 'shop', 'test')`,
			`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-' || $1, 'app-' || $1, $1, 'live', 'eu', 'test')`,
			`INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ($1, 'max_instances', 12, 'test')`,
		} {
			_, err := s.pool.Exec(ctx, sql, orgID)
			require.NoError(t, err)
		}
		type group struct {
			id       string
			replicas int
		}
		var groups []group
		// The model's count for each group: promised or running, whichever is more.
		total := func() (n float64) {
			usage, promised := s.usage(t, orgID)
			return usage[quota.MaxInstances] + promised[quota.MaxInstances]
		}
		for range rapid.IntRange(3, 12).Draw(t, "changes") {
			switch rapid.SampledFrom([]string{"create", "scale", "turn", "delete"}).Draw(t, "change") {
			case "create":
				replicas := rapid.IntRange(0, 8).Draw(t, "replicas")
				before := total()
				ids++
				id, err := s.testGroup(t, ids, orgID, replicas, specOf(16))
				if replicas > 0 && before+float64(replicas) > limit {
					var over *org.QuotaExceeded
					require.ErrorAs(t, err, &over)
					require.Equal(t, org.QuotaExceeded{Dimension: "max_instances", Limit: limit, CurrentUsage: before, RequestedDelta: float64(replicas)}, *over)
					continue
				}
				require.NoError(t, err)
				groups = append(groups, group{id, replicas})
			case "scale":
				if len(groups) == 0 {
					continue
				}
				g := &groups[rapid.IntRange(0, len(groups)-1).Draw(t, "group")]
				replicas := rapid.IntRange(0, 14).Draw(t, "replicas")
				before := total()
				_, err := s.ScaleGroup(impact.By(ctx, "test"), prego.GroupID(g.id), replicas, "test")
				after := total()
				if err != nil {
					require.Equal(t, prego.CodeQuotaExceeded, prego.CodeOf(err))
					require.Greater(t, replicas, g.replicas, "scaling down is always allowed")
					require.Equal(t, before, after)
					continue
				}
				g.replicas = replicas
				require.LessOrEqual(t, after, math.Max(before, limit))
			case "turn":
				for _, g := range groups {
					outcomes, err := s.turn(ctx, prego.GroupID(g.id))
					require.NoError(t, err)
					for _, o := range outcomes {
						require.Equal(t, workload.Allocated, o, "the promise is kept, and there is room")
					}
				}
			case "delete":
				if len(groups) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(groups)-1).Draw(t, "group")
				_, err := s.DeleteGroup(impact.By(ctx, "test"), prego.GroupID(groups[i].id), "test")
				require.NoError(t, err)
				_, err = s.turn(ctx, prego.GroupID(groups[i].id))
				require.NoError(t, err)
				_, err = s.turn(ctx, prego.GroupID(groups[i].id))
				require.NoError(t, err)
				groups[i] = groups[len(groups)-1]
				groups = groups[:len(groups)-1]
			}
			require.LessOrEqual(t, total(), float64(limit))
		}
		want := 0
		for _, g := range groups {
			for range 2 {
				_, err := s.turn(ctx, prego.GroupID(g.id))
				require.NoError(t, err)
			}
			want += g.replicas
		}
		usage, promised := s.usage(t, orgID)
		require.Equal(t, float64(want), usage[quota.MaxInstances])
		require.Equal(t, float64(int64(want)*(48<<20)), usage[quota.MaxTotalMemoryBytes])
		require.Zero(t, promised[quota.MaxInstances])
		for _, g := range groups { // make room for the next
			_, err := s.DeleteGroup(impact.By(ctx, "test"), prego.GroupID(g.id), "test")
			require.NoError(t, err)
			for range 2 {
				_, err := s.turn(ctx, prego.GroupID(g.id))
				require.NoError(t, err)
			}
		}
	})
}

// TestManyWritersStayWithinQuotaAndMemory lets 64 writers scale and allocate concurrently, past both limits, and
// counts at the end.
func TestManyWritersStayWithinQuotaAndMemory(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	ctx := context.Background()
	_, err := s.pool.Exec(ctx, `INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ('acme', 'max_instances', 20, 'test'), ('other', 'max_instances', 60, 'test')`)
	require.NoError(t, err)
	_, err = s.pool.Exec(ctx, `UPDATE fleets SET workload_memory_bytes = 50::bigint * 48 * 1048576 WHERE fleet_id = 'nodes'`)
	require.NoError(t, err)
	var ids []string
	for i := range 16 {
		id, err := s.testGroup(t, i+1, []string{"acme", "other"}[i%2], 0, specOf(16))
		require.NoError(t, err)
		ids = append(ids, id)
	}
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			id := ids[w%len(ids)]
			for i := range 4 {
				if _, err := s.ScaleGroup(impact.By(ctx, "test"), prego.GroupID(id), (w+i*3)%10, "test"); err != nil && prego.CodeOf(err) != prego.CodeQuotaExceeded {
					t.Errorf("scale: %v", err)
				}
				if _, err := s.turn(ctx, prego.GroupID(id)); err != nil {
					t.Errorf("turn: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for org, limit := range map[string]float64{"acme": 20, "other": 60} {
		usage, _ := s.usage(t, org)
		require.LessOrEqual(t, usage[quota.MaxInstances], limit)
	}
	var n, ports int
	require.NoError(t, s.pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT ports -> 0 ->> 'host_port') FROM instances WHERE state <> 'stopped'`).Scan(&n, &ports))
	require.LessOrEqual(t, n, 50, "the server's memory")
	require.Equal(t, n, ports, "each has a separate port")
	require.Positive(t, n)
}

func TestDemandIsServedByOrgInTurn(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	ctx := context.Background()
	var ids []string
	for i, g := range []struct {
		org      string
		replicas int
	}{{"acme", 3}, {"acme", 1}, {"other", 2}} {
		id, err := s.testGroup(t, i+1, g.org, g.replicas, specOf(16))
		require.NoError(t, err)
		_, err = s.PlanGroup(ctx, prego.GroupID(id), time.Second)
		require.NoError(t, err)
		ids = append(ids, id)
	}
	order := func() (out []string) {
		demand, err := s.InstanceDemand(ctx, "eu", 100, nil)
		require.NoError(t, err)
		for _, d := range demand {
			out = append(out, string(d.GroupID))
		}
		return out
	}
	require.Equal(t, []string{ids[0], ids[2], ids[0], ids[2], ids[0], ids[1]}, order())
	// Refused by quota, a group waits for its time, or until less is used.
	_, err := s.pool.Exec(ctx, `INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ('acme', 'max_instances', 1, 'test')`)
	require.NoError(t, err)
	got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(ids[0]), ServerID: "node-1"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, workload.Allocated, got.Outcome)
	first := got.InstanceID
	got, err = s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(ids[0]), ServerID: "node-1"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, workload.AllocationQuota, got.Outcome)
	g, err := s.GetGroup(ctx, ids[0])
	require.NoError(t, err)
	require.Equal(t, "org_quota_exceeded:max_instances", g.StatusReason)
	require.Equal(t, []string{ids[1], ids[2], ids[2]}, order())
	_, err = s.pool.Exec(ctx, `UPDATE instances SET state = 'stopped' WHERE instance_id = $1`, first)
	require.NoError(t, err)
	require.Contains(t, order(), ids[0])
	// The server is checked again under its lock.
	_, err = s.pool.Exec(ctx, `UPDATE servers SET cordoned_at = now()`)
	require.NoError(t, err)
	got, err = s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(ids[2]), ServerID: "node-1"}, time.Hour)
	require.NoError(t, err)
	require.Equal(t, workload.AllocationLost, got.Outcome)
	servers, err := s.InstanceServers(ctx, "eu", []prego.GroupID{"none"})
	require.NoError(t, err)
	require.Equal(t, []instance.Server{{ServerID: "node-1", Location: "fsn1", Tags: []string{}, Active: true, Cordoned: true, MemoryBytes: 10000 << 20, CPUs: 8, Groups: map[string]int{}, GroupVolumes: map[string]int{}}}, servers)
}

func TestLargerDeployIsPromised(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	ctx := context.Background()
	id, err := s.testGroup(t, 1, "acme", 2, specOf(16))
	require.NoError(t, err)
	for range 2 {
		_, err = s.turn(ctx, prego.GroupID(id))
		require.NoError(t, err)
	}
	_, err = s.DeployGroup(ctx, prego.GroupID(id), specOf(116), nil, "test")
	require.NoError(t, err)
	_, promised := s.usage(t, "acme")
	require.Equal(t, float64(2*100<<20), promised[quota.MaxTotalMemoryBytes])
	require.Zero(t, promised[quota.MaxInstances])
	_, err = s.pool.Exec(ctx, `INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ('acme', 'max_total_memory_bytes', $1, 'test')`, 2*148<<20)
	require.NoError(t, err)
	var over *org.QuotaExceeded
	for range 2 { // promises count whether they are in the counters or still to be folded
		_, err = s.DeployGroup(ctx, prego.GroupID(id), specOf(117), nil, "test")
		require.True(t, errors.As(err, &over), "%v", err)
		require.Equal(t, float64(2<<20), over.RequestedDelta)
		require.NoError(t, s.foldUsage(ctx))
	}
	// Readers see the counts that the refusal was based on.
	quotas, err := s.OrgQuotas(ctx, "acme")
	require.NoError(t, err)
	memory := quotas[1]
	require.Equal(t, string(quota.MaxTotalMemoryBytes), memory.Dimension)
	require.Equal(t, over.CurrentUsage, memory.Usage+memory.Reserved)
	require.Zero(t, memory.Headroom())
	// As large as before, and no room for one more: an instance goes first.
	next := specOf(116)
	next.Image = "web:2"
	g, err := s.DeployGroup(ctx, prego.GroupID(id), next, nil, "test")
	require.NoError(t, err)
	require.Equal(t, workload.DeployDrainingFirst, g.DeployStatus)
}

// TestDiskIsAHardLimit allocates on a server that offers disk for two instances, and on the space that a third one
// frees.
func TestDiskIsAHardLimit(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	ctx := context.Background()
	_, err := s.pool.Exec(ctx, `UPDATE fleets SET workload_disk_bytes = 25 WHERE fleet_id = 'nodes'`)
	require.NoError(t, err)
	spec := specOf(16)
	spec.DiskRequestBytes = 10
	id, err := s.testGroup(t, 1, "acme", 3, spec)
	require.NoError(t, err)
	demand, err := s.InstanceDemand(ctx, "eu", 10, nil)
	require.NoError(t, err)
	if len(demand) == 0 { // before it is planned
		_, err = s.PlanGroup(ctx, prego.GroupID(id), time.Second)
		require.NoError(t, err)
		demand, err = s.InstanceDemand(ctx, "eu", 10, nil)
		require.NoError(t, err)
	}
	require.Equal(t, int64(10), demand[0].DiskBytes)
	for _, want := range []workload.AllocationOutcome{workload.Allocated, workload.Allocated, workload.AllocationLost} {
		got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(id), ServerID: "node-1"}, time.Second)
		require.NoError(t, err)
		require.Equal(t, want, got.Outcome)
	}
	servers, err := s.InstanceServers(ctx, "eu", nil)
	require.NoError(t, err)
	require.Equal(t, []int64{25, 20}, []int64{servers[0].DiskBytes, servers[0].DiskUsed})
	offers, err := s.InstanceOffers(ctx, "eu")
	require.NoError(t, err)
	require.Equal(t, int64(25), offers[0].DiskBytes)
	_, err = s.pool.Exec(ctx, `UPDATE instances SET state = 'stopped' WHERE number = 1`)
	require.NoError(t, err)
	got, err := s.Allocate(ctx, workload.InstancePlace{GroupID: prego.GroupID(id), ServerID: "node-1"}, time.Second)
	require.NoError(t, err)
	require.Equal(t, workload.Allocated, got.Outcome)

	// Groups that request no disk need none.
	plain, err := s.testGroup(t, 2, "acme", 1, specOf(16))
	require.NoError(t, err)
	_, err = s.turn(ctx, prego.GroupID(plain))
	require.NoError(t, err)
	var n int
	require.NoError(t, s.pool.QueryRow(ctx, `SELECT count(*) FROM instances WHERE group_id = $1`, plain).Scan(&n))
	require.Equal(t, 1, n)
}

// TestReplacementsAgreeWithAModel holds a group against a model of a few lines, through limits that are lowered: what
// runs is kept when it leaves, crashes or gets another release, and only what the limit allows is added.
func TestReplacementsAgreeWithAModel(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	ctx := context.Background()
	exec(t, s, `UPDATE fleets SET workload_memory_bytes = 1000000::bigint << 20`)
	n := 0
	deep.Check(t, 12, func(t *rapid.T) {
		n++
		org := fmt.Sprintf("r%d", n)
		for _, sql := range []string{
			`INSERT INTO orgs (org_id, tier, created_by) VALUES ($1, 'paid', 'test')`,
			`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-' || $1, $1, 'shop', 'test')`,
			`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by)
				VALUES ('env-' || $1, 'app-' || $1, $1, 'live', 'eu', 'test')`,
		} {
			_, err := s.pool.Exec(ctx, sql, org)
			require.NoError(t, err)
		}
		replicas, running, limit := 2, 2, 9
		set := func(to int) {
			_, err := s.SetQuota(ctx, prego.OrgID(org), quota.MaxInstances, float64(to), "test", "test")
			require.NoError(t, err)
			limit = to
		}
		set(limit)
		group, err := s.testGroup(t, 1000+n, org, replicas, specOf(16))
		require.NoError(t, err)
		id := prego.GroupID(group)
		settle := func() {
			for range 16 {
				_, err := s.turn(ctx, id)
				require.NoError(t, err)
			}
			var got, has int
			require.NoError(t, s.pool.QueryRow(ctx, `
				SELECT count(*) FILTER (WHERE state = 'running' AND NOT leaving), count(*)
				FROM instances WHERE group_id = $1 AND state <> 'stopped'`, group).Scan(&got, &has))
			require.Equal(t, []int{running, running}, []int{got, has}, "%d replicas, limit %d", replicas, limit)
		}
		settle()
		for range rapid.IntRange(3, 10).Draw(t, "changes") {
			changes := []string{"limit", "limit", "scale", "scale and limit", "leave", "crash", "deploy"}
			switch change := rapid.SampledFrom(changes).Draw(t, "change"); change {
			case "limit":
				set(rapid.IntRange(0, 9).Draw(t, "limit"))
				running = max(running, min(replicas, limit))
			case "scale", "scale and limit":
				to := rapid.IntRange(1, 6).Draw(t, "replicas")
				_, err := s.ScaleGroup(ctx, id, to, "test")
				if refused := to > replicas && to > limit; refused {
					require.Equal(t, prego.CodeQuotaExceeded, prego.CodeOf(err), "%v", err)
					continue
				}
				require.NoError(t, err)
				replicas = to
				if change == "scale and limit" {
					set(rapid.IntRange(0, 9).Draw(t, "limit"))
				}
				running = max(min(running, replicas), min(replicas, limit))
			case "leave":
				odd := rapid.IntRange(0, 1).Draw(t, "odd")
				_, err := s.pool.Exec(ctx, `UPDATE instances SET leaving = true
					WHERE group_id = $1 AND state = 'running' AND number % 2 = $2`, group, odd)
				require.NoError(t, err)
			case "crash":
				_, err := s.pool.Exec(ctx, `UPDATE instances SET state = 'failed' WHERE instance_id = (
					SELECT min(instance_id) FROM instances WHERE group_id = $1 AND state = 'running')`, group)
				require.NoError(t, err)
			case "deploy":
				next := specOf(16)
				next.Image = fmt.Sprintf("web:%d", rapid.IntRange(1, 1000).Draw(t, "tag"))
				if _, err := s.DeployGroup(ctx, id, next, nil, "test"); err != nil {
					require.Equal(t, prego.CodeQuotaExceeded, prego.CodeOf(err), "%v", err)
				}
			}
			settle()
		}
	})
}
