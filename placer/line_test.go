package placer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// gate has a first reservation wait, so that others come together meanwhile.
type gate struct {
	first, open chan struct{}
	fail        error // of a reservation in line

	mu      sync.Mutex
	alone   int
	batches [][]string
}

func (g *gate) tap(sql string, args []any) error {
	if !strings.Contains(sql, "FROM reserve_placements(") {
		return nil
	}
	g.mu.Lock()
	inLine := args[23].(bool)
	if inLine {
		g.batches = append(g.batches, args[0].([]string))
	} else {
		g.alone++
	}
	first := !inLine && g.alone == 1
	g.mu.Unlock()
	if inLine {
		return g.fail
	}
	if first && g.open != nil {
		close(g.first)
		<-g.open
	}
	return nil
}

// crowd places one tenant and lets others come while it is being placed.
type crowd struct {
	*placing
	gate   *gate
	placer *placer.Placer
	wg     sync.WaitGroup
	mu     sync.Mutex
	got    map[prego.TenantID]placement.Decision
	errs   map[prego.TenantID]error
}

func newCrowd(t *testing.T, change func(*placement.Policy)) *crowd {
	c := &crowd{placing: newPlacing(t, 16), got: map[prego.TenantID]placement.Decision{}, errs: map[prego.TenantID]error{}}
	c.gate = &gate{first: make(chan struct{}), open: make(chan struct{})}
	c.placer = c.Placer(change)
	c.placer.Store = store.New(pgtest.Tapped(t, c.Pool, c.gate.tap))
	for i := range 2 {
		c.Server(prego.ServerID(fmt.Sprintf("app-%d", i)), prego.RoleApp, "")
	}
	c.Server("db-0", prego.RoleDBShard, "")
	c.Server("redis-0", prego.RoleRedisPool, "")
	return c
}

// comes lets a tenant ask for a place, and returns when it waits in line.
func (c *crowd) comes(ctx context.Context, tn tenant.Tenant) {
	before := c.placer.Waiting(tn.Region)
	c.wg.Go(func() {
		d, err := c.placer.Place(ctx, tenant.Record{Tenant: tn}, nil, "test")
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got[tn.TenantID], c.errs[tn.TenantID] = d, err
	})
	require.Eventually(c.T, func() bool { return c.placer.Waiting(tn.Region) > before }, 20*time.Second, time.Millisecond)
}

// starts places the first tenant, as far as the gate.
func (c *crowd) starts() {
	tn := c.Tenant("starter", nil)
	c.wg.Go(func() { _, _ = c.placer.Place(context.Background(), tenant.Record{Tenant: tn}, nil, "test") })
	<-c.gate.first
}

func (c *crowd) letGo() {
	close(c.gate.open)
	c.wg.Wait()
}

func (c *crowd) of(org prego.OrgID) tenant.Tenant {
	return c.Tenant("starter", func(r *tenant.CreateRequest) { r.OrgID = org })
}

// TestTheyArePlacedTogether: as an engine that knows no database places them one by one, in
// the order of their orgs' turns.
func TestTheyArePlacedTogether(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := newCrowd(t, func(p *placement.Policy) { p.MaxTenantsPerNode = 8 })
	c.Sites("app-0", "db-0", 2)
	c.Sites("app-1", "db-0", 3)
	c.Server("node-0", prego.RoleNode, "")
	c.starts()
	var came []placement.Request
	for i := range 20 {
		tn := c.of([]prego.OrgID{"o1", "o1", "o1", "o2"}[i%4])
		if i == 6 {
			tn = c.Tenant("enterprise", nil)
		}
		came = append(came, placer.RequestOf(tenant.Record{Tenant: tn}))
		c.comes(ctx, tn)
	}
	changes, err := c.Store.PlacementChanges(ctx, "", nil)
	require.NoError(t, err)
	twin := placement.SnapshotOf(c.placer.Policy, changes)
	first := placement.Request{TenantID: "t1", OrgID: "o1", Region: "eu", Plan: "starter", Mode: tenant.ModeShared}
	twin.Apply(first, twin.Decide(first))
	c.letGo()
	require.Len(t, c.gate.batches, 1)
	require.Equal(t, 1, c.gate.alone)
	var requests []placement.Request
	for _, i := range c.placer.Policy.Turns(came) {
		requests = append(requests, came[i])
	}
	placed := 0
	for i := range requests {
		want := twin.Decide(requests[i])
		twin.Apply(requests[i], want)
		id := requests[i].TenantID
		require.NoError(t, c.errs[id])
		require.Equal(t, want.Outcome, c.got[id].Outcome, "%s", id)
		if want.PlacesTenant() {
			require.Equal(t, string(id), c.gate.batches[0][placed])
			placed++
			require.Equal(t, 1, c.Number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1 AND app_server_id = $2 AND db_shard_id = $3 AND redis_pool_id = $4 AND COALESCE(pool_site_id, '') = $5`,
				id, want.AppServerID, want.DBShardID, want.RedisPoolID, want.PoolSiteID), "%s", id)
		} else {
			require.Equal(t, 1, c.Number(`SELECT count(*) FROM allocation_snapshots WHERE tenant_id = $1 AND allocation_id IS NULL`, id), "recorded")
		}
	}
	require.Equal(t, 16, placed,
		"seven more on each server, one of them next to the first, and the enterprise tenant's dedicated server")
	c.Recount()
	again, err := c.placer.Look(ctx, tenant.Record{Tenant: c.of("o2")})
	require.NoError(t, err)
	require.Equal(t, placement.AwaitingCapacity, again.Outcome, "the snapshot counts them all")
}

// TestOneThatLosesTakesNobodyAlong: its row is held, it has gone, or its pool has changed.
func TestOneThatLosesTakesNobodyAlong(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := newCrowd(t, nil)
	c.starts()
	held, gone, placed, fine, twice := c.of("o1"), c.of("o1"), c.of("o2"), c.of("o2"), c.of("o2")
	for _, tn := range []tenant.Tenant{held, gone, placed, fine, twice, twice} {
		c.comes(ctx, tn)
	}
	c.Exec(`UPDATE tenants SET cancel_requested_at = now() WHERE tenant_id = $1`, gone.TenantID)
	d, err := c.placing.Placer(nil).Place(ctx, tenant.Record{Tenant: placed}, nil, "another process")
	require.NoError(t, err)
	require.True(t, d.PlacesTenant())
	tx, err := c.Pool.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `SELECT FROM tenants WHERE tenant_id = $1 FOR UPDATE`, held.TenantID)
	require.NoError(t, err)
	go func() {
		for c.Number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1`, fine.TenantID) == 0 {
			time.Sleep(time.Millisecond)
		}
		_ = tx.Rollback(ctx) // the others didn't wait for it
	}()
	c.letGo()
	require.Len(t, c.gate.batches[0], 5, "a tenant that asks twice is placed once")
	require.ErrorIs(t, c.errs[gone.TenantID], server.ErrSuperseded)
	for _, tn := range []tenant.Tenant{held, placed, fine, twice} {
		require.NoError(t, c.errs[tn.TenantID])
		require.True(t, c.got[tn.TenantID].PlacesTenant())
		require.Equal(t, 1, c.Number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1`, tn.TenantID))
	}
	require.Zero(t, c.Number(`SELECT count(*) FROM tenant_allocations WHERE tenant_id = $1`, gone.TenantID))
	c.Recount()
}

// TestLeavingCallerIsNotPlaced: the tenant of a caller that gave up leaves the line, and no other tenant waits for
// it.
func TestLeavingCallerIsNotPlaced(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	c.starts()
	ctx, cancel := context.WithCancel(context.Background())
	goes, stays := c.of("o1"), c.of("o1")
	c.comes(ctx, goes)
	c.comes(context.Background(), stays)
	cancel()
	require.Eventually(t, func() bool { return c.placer.Waiting("eu") == 1 }, 20*time.Second, time.Millisecond)
	c.letGo()
	require.ErrorIs(t, c.errs[goes.TenantID], context.Canceled)
	require.True(t, c.got[stays.TenantID].PlacesTenant())
	require.Equal(t, 2, c.Number(`SELECT count(*) FROM tenant_allocations`))
	c.Recount()
}

// TestABatchThatFailsIsTriedOneByOne holds for every kind of failure.
func TestABatchThatFailsIsTriedOneByOne(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	c.gate.fail = errors.New("the database is away")
	c.starts()
	for range 5 {
		c.comes(context.Background(), c.of("o1"))
	}
	c.letGo()
	require.Len(t, c.gate.batches[0], 5)
	for id, err := range c.errs {
		require.NoError(t, err, "%s", id)
	}
	require.Equal(t, 6, c.Number(`SELECT count(*) FROM tenant_allocations`))
	c.Recount()
}

// TestSingleTenantsAreReservedWithoutBatch: tenants that come one after the other need one statement each.
func TestSingleTenantsAreReservedWithoutBatch(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	c.gate.open = nil
	for range 5 {
		d, err := c.placer.Place(context.Background(), tenant.Record{Tenant: c.of("o1")}, nil, "test")
		require.NoError(t, err)
		require.True(t, d.PlacesTenant())
	}
	require.Empty(t, c.gate.batches)
	require.Equal(t, 5, c.gate.alone)
}

// TestBatchesOfProcessesContend: two placers with many callers each fill a fleet to its
// last place, and no further.
func TestBatchesOfProcessesContend(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, nil)
	c.Exec(`UPDATE db_shards SET tenant_capacity = 50`)
	placers := []*placer.Placer{c.Placer(nil), c.Placer(nil)}
	const tenants = 60
	outcomes, errs := make([]placement.Outcome, tenants), make([]error, tenants)
	for _, p := range placers {
		p.Policy.MaxTenantsPerNode = 28
	}
	all := make([]tenant.Tenant, tenants)
	for i := range all {
		all[i] = c.of([]prego.OrgID{"o1", "o2"}[i%2])
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i, tn := range all {
		c.wg.Go(func() {
			d, err := placers[i/2%2].Place(ctx, tenant.Record{Tenant: tn}, nil, "test")
			outcomes[i], errs[i] = d.Outcome, err
		})
	}
	c.wg.Wait()
	require.NoError(t, errors.Join(errs...))
	waits := 0
	for _, o := range outcomes {
		if o == placement.AwaitingCapacity {
			waits++
		}
	}
	require.Equal(t, tenants-50, waits)
	require.Equal(t, 50, c.Number(`SELECT count(*) FROM tenant_allocations`))
	c.Recount()
}
