package store

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// TestTheLastGate: whatever holds something live, or the only copy of something, is deleted only in the state of its
// deletion, whichever road asks.
func TestTheLastGate(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 1), context.Background() // t-0 on n-0
	exec(t, s, `UPDATE servers SET provider_server_id = '7', attempt = 2 WHERE server_id = 'n-0'`)
	counted(t, s)
	for _, line := range []string{
		`'server', 'n-0', '7', 'n-0', 2, 'created', true`, `'primary_ip', 'n-0-ip0', '70', 'n-0', 2, 'created', false`,
		`'volume', 'n-0-data', '71', 'n-0', 2, 'created', false`,
		`'server', 'n-0-used', '6', 'n-0', 1, 'created', true`, `'primary_ip', 'n-0-used-ip0', '60', 'n-0', 1, 'created', false`,
		`'server', 'n-0-never', '5', 'n-0', 0, 'created', false`,
	} {
		exec(t, s, `INSERT INTO resources (provider, kind, name, provider_id, server_id, attempt, state, protected) VALUES ('hetzner', `+line+`)`)
	}
	exec(t, s, `INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, provider_id, status, created_by, made_bytes)
		SELECT 'vol-1', org_id, 'eu', 'fsn1', 'data', 10000000000, 'hetzner', 'vol-1', '90', 'ready', 'test', 10000000000 FROM orgs LIMIT 1`)
	storedBackup(t, s, "bak-1", "t-0", 0)
	exec(t, s, `UPDATE backups SET object_key = 'e/t-0/bak-1/site.age', manifest_key = 'e/t-0/bak-1/manifest.json'`)
	exec(t, s, `INSERT INTO snapshots (snapshot_id, org_id, tenant_id, server_id, site, status, created_by) SELECT 'snp-1', org_id, 't-0', 'n-0', site, 'succeeded', 'test' FROM tenants`)

	type ask func(context.Context) error
	resource := func(kind server.ResourceKind, id string) ask {
		return func(ctx context.Context) error { return s.MayDelete(ctx, "hetzner", kind, id) }
	}
	site := func(site, database string) ask {
		return func(ctx context.Context) error { return s.MayErase(ctx, "n-0", site, database) }
	}
	object := func(key string) ask {
		return func(ctx context.Context) error { return s.MayDeleteObject(ctx, key) }
	}
	copied := func(name string) ask { return func(ctx context.Context) error { return s.MayForget(ctx, name) } }
	exec(t, s, `UPDATE tenant_allocations SET redis_pool_id = 'n-2', on_pool = true`)
	cache := func(ctx context.Context) error { return s.MayErase(ctx, "n-2", "", "t-0") }
	const draining = `UPDATE servers SET status = 'draining' WHERE server_id = 'n-0'`
	kept := func(row, until string) string {
		return `UPDATE ` + row + `, kept_until = now() ` + until
	}
	const volume, backup, early, late = `volumes SET status = 'releasing'`, `backups SET state = 'deleting'`,
		`+ interval '1 second'`, `- interval '1 second'`
	const purged = `UPDATE tenants SET state = 'data_purged'`
	const lost = `UPDATE tenants SET state = 'failed', site = '';
		UPDATE tenant_allocations SET released_at = now();
		INSERT INTO tenant_losses (tenant_id, allocation_id, server_id, state, lost_at) SELECT tenant_id, allocation_id, 'n-1', 'active', now() FROM tenant_allocations`
	const alone = `UPDATE servers SET tenant_count = 0; UPDATE db_shards SET current_tenant_count = 0;
		UPDATE redis_pools SET current_tenants = 0`
	const survived, restored, cleared = lost + `; ` + alone, `UPDATE tenant_losses SET restored_at = now()`,
		`UPDATE tenant_losses SET cleared_at = now()`
	const moved = `UPDATE tenant_allocations SET app_server_id = 'n-1', db_shard_id = 'n-1', redis_pool_id = 'n-1'`
	for name, c := range map[string]struct {
		ask    ask
		rows   string // changed before
		passes bool
	}{
		"a server with a tenant":               {resource(server.ResourceServer, "7"), "", false},
		"its address":                          {resource(server.ResourcePrimaryIP, "70"), "", false},
		"its data volume":                      {resource(server.ResourceVolume, "71"), "", false},
		"the machine that was in use before":   {resource(server.ResourceServer, "6"), "", false},
		"the address of that":                  {resource(server.ResourcePrimaryIP, "60"), "", false},
		"a machine that never enrolled":        {resource(server.ResourceServer, "5"), "", true},
		"a failed server with a tenant":        {resource(server.ResourceServer, "7"), `UPDATE servers SET status = 'failed' WHERE server_id = 'n-0'`, false},
		"a server to be deleted":               {resource(server.ResourceServer, "7"), draining, true},
		"an empty server":                      {resource(server.ResourceServer, "7"), alone, true},
		"a server with what survived a loss":   {resource(server.ResourceServer, "7"), survived, false},
		"the same, to be deleted":              {resource(server.ResourceServer, "7"), survived + `; ` + draining, false},
		"its volume":                           {resource(server.ResourceVolume, "71"), survived + `; ` + draining, false},
		"a server whose remains are cleared":   {resource(server.ResourceServer, "7"), survived + `; ` + cleared, true},
		"a server whose tenants are restored":  {resource(server.ResourceServer, "7"), survived + `; ` + restored, true},
		"a server whose tenants have ended":    {resource(server.ResourceServer, "7"), survived + `; ` + purged, true},
		"another server":                       {resource(server.ResourceServer, "8"), "", true},
		"a volume":                             {resource(server.ResourceVolume, "90"), "", false},
		"a volume to be deleted":               {resource(server.ResourceVolume, "90"), `UPDATE volumes SET status = 'releasing'`, true},
		"a volume that is still kept":          {resource(server.ResourceVolume, "90"), kept(volume, early), false},
		"the same, when its time is over":      {resource(server.ResourceVolume, "90"), kept(volume, late), true},
		"a volume that was never made":         {resource(server.ResourceVolume, "90"), `UPDATE volumes SET made_bytes = 0`, true},
		"a tenant's site":                      {site("t-0.example.com", "t-0"), "", false},
		"its site under its earlier name":      {site("t-0", ""), "", false},
		"its database":                         {site("", "t-0"), "", false},
		"a suspended tenant's site":            {site("t-0.example.com", "t-0"), `UPDATE tenants SET state = 'suspended'`, false},
		"a terminated tenant's site":           {site("t-0.example.com", "t-0"), `UPDATE tenants SET state = 'terminated'`, false},
		"a site that is being built":           {site("t-0.example.com", "t-0"), `UPDATE tenants SET state = 'provisioning', site = ''`, true},
		"a purged tenant's site":               {site("t-0.example.com", "t-0"), purged, true},
		"what a moved tenant left":             {site("t-0.example.com", "t-0"), moved, true},
		"another site":                         {site("t-1.example.com", "t-1"), "", true},
		"the database that survived a loss":    {site("", "t-0"), lost, false},
		"the same, after the restore":          {site("", "t-0"), lost + `; UPDATE tenant_losses SET restored_at = now()`, true},
		"the same, restored and compared":      {site("", "t-0"), lost + `; UPDATE tenants SET state = 'provisioning', site = 'pool-7'`, true},
		"the same, being restored":             {site("", "t-0"), lost + `; UPDATE tenants SET state = 'provisioning'`, false},
		"the cache that survived":              {cache, lost, true},
		"the cache":                            {cache, "", false},
		"the same, of a tenant that has ended": {site("", "t-0"), lost + `; ` + purged, true},
		"a snapshot":                           {copied("snp-1"), "", false},
		"a deleted snapshot":                   {copied("snp-1"), `UPDATE snapshots SET status = 'deleted'`, true},
		"a copy that was only sealed":          {copied("bak-1"), "", true},
		"a backup":                             {object("e/t-0/bak-1/site.age"), "", false},
		"its manifest":                         {object("e/t-0/bak-1/manifest.json"), "", false},
		"a backup to be deleted":               {object("e/t-0/bak-1/site.age"), `UPDATE backups SET state = 'deleting'`, true},
		"a backup that is still kept":          {object("e/t-0/bak-1/site.age"), kept(backup, early), false},
		"its manifest, while it is kept":       {object("e/t-0/bak-1/manifest.json"), kept(backup, early), false},
		"a backup whose time is over":          {object("e/t-0/bak-1/site.age"), kept(backup, late), true},
		"a backup that failed":                 {object("e/t-0/bak-1/site.age"), `UPDATE backups SET state = 'failed'`, true},
		"what a move left in the storage":      {object("e/moves/mov-1/all.age"), "", true},
	} {
		// The gate decides by rows alone: each case has a transaction that is rolled back.
		require.NoError(t, s.Try(ctx, func(ctx context.Context) error {
			for sql := range strings.SplitSeq(c.rows, ";") {
				if _, err := s.pool.Exec(ctx, sql); err != nil {
					return err
				}
			}
			err := c.ask(ctx)
			if c.passes {
				require.NoError(t, err, name)
				require.Zero(t, number(ctx, t, s, `SELECT count(*) FROM destructions WHERE refused_at IS NOT NULL`), name)
			} else {
				require.ErrorContains(t, err, "holds_data: ", name)
				require.Equal(t, 1, number(ctx, t, s, `SELECT count(*) FROM destructions WHERE refused_at IS NOT NULL`), name)
			}

			if _, err := s.Freeze(ctx, "restore", "ann"); err != nil {
				return err
			}
			require.ErrorContains(t, c.ask(ctx), "frozen: ", name)
			return nil
		}))
	}
}

func number(ctx context.Context, t *testing.T, s *Store, sql string) (n int) {
	t.Helper()
	require.NoError(t, s.pool.QueryRow(ctx, sql).Scan(&n))
	return n
}

// TestTooManyDestructionsFreezeAll until an operator has looked: what is deleted again counts once, and what holds
// nothing is not counted.
func TestTooManyDestructionsFreezeAll(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, mostDestroyedMin+2), context.Background()
	exec(t, s, `UPDATE tenants SET state = 'data_purged'`)
	erase := func(n int) error {
		return s.MayErase(ctx, prego.ServerID(fmt.Sprintf("n-%d", n%3)), fmt.Sprintf("t-%d.example.com", n), "")
	}
	for n := range mostDestroyedMin {
		for range 2 {
			require.NoError(t, erase(n))
		}
		require.NoError(t, s.MayErase(ctx, "n-0", fmt.Sprintf("pool-%d", n), ""))
	}
	frozen, err := s.Frozen(ctx)
	require.NoError(t, err)
	require.False(t, frozen.Frozen)

	require.ErrorContains(t, erase(mostDestroyedMin), "frozen: ")
	require.ErrorContains(t, erase(0), "frozen: ", "and what passed before")
	require.ErrorContains(t, s.MayErase(ctx, "n-0", "pool-1", ""), "frozen: ")
	frozen, err = s.Frozen(ctx)
	require.NoError(t, err)
	require.Equal(t, "prego", frozen.By)
	require.Equal(t, "21 tenants, volumes and servers lost their data within an hour", frozen.Reason)
	kept, err := s.Freeze(ctx, "me too", "ann")
	require.NoError(t, err)
	require.Equal(t, frozen, kept, "the earlier one stays")

	for range 2 {
		require.NoError(t, s.Unfreeze(ctx, "ann"))
	}
	for n := range mostDestroyedMin + 2 {
		require.NoError(t, erase(n), "counted from then on")
	}
	require.Equal(t, 1, count(t, s, `freezes WHERE ended_by = 'ann'`))
}

// TestALargeInstallationMayDestroyMore: a share of it, in percent.
func TestALargeInstallationMayDestroyMore(t *testing.T) {
	t.Parallel()
	s, ctx := backupTenants(t, 3), context.Background()
	exec(t, s, `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, converged_state, created_by)
		SELECT 'x-' || i, 'x-' || i, (SELECT org_id FROM orgs LIMIT 1), 'eu', 'starter', 10, 10, 'shared', '', 'active', 'active', 'test' FROM generate_series(1, 997) i`)
	exec(t, s, `UPDATE tenants SET state = 'data_purged' WHERE tenant_id = 't-0'`)
	exec(t, s, `INSERT INTO destructions (kind, id, at) SELECT 'tenant', 'y-' || i, now() FROM generate_series(1, 48) i`)
	exec(t, s, `INSERT INTO destructions (kind, id, at) SELECT 'tenant', 'z-' || i, now() - interval '61 minutes' FROM generate_series(1, 48) i`)
	require.NoError(t, s.MayErase(ctx, "n-0", "t-0.example.com", ""))
	exec(t, s, `INSERT INTO destructions (kind, id, at) VALUES ('tenant', 'y-0', now())`)
	require.ErrorContains(t, s.MayErase(ctx, "n-0", "t-0.example.com", ""), "50 tenants, volumes and servers")
}

// TestFreezesRace: freezing while others end the freeze always returns one.
func TestFreezesRace(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	ctx := t.Context()
	var all errgroup.Group
	for i := range 8 {
		all.Go(func() error {
			for range 40 {
				if i%2 == 0 {
					if err := s.Unfreeze(ctx, "ann"); err != nil {
						return err
					}
					continue
				}
				f, err := s.Freeze(ctx, "why", "bob")
				if err != nil {
					return err
				}
				if !f.Frozen || f.Reason != "why" || f.By != "bob" {
					return fmt.Errorf("%+v is no freeze", f)
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	_, err := s.Freeze(ctx, "first", "bob")
	require.NoError(t, err)
	f, err := s.Freeze(ctx, "second", "ann")
	require.NoError(t, err)
	require.Equal(t, "bob", f.By, "an earlier freeze stays as it is")
}
