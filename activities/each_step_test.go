package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// fault fails one of the calls that a run's steps make outside of their process: to the database, a provider or a host.
type fault struct {
	mu    sync.Mutex // of n and where: a step may make calls concurrently
	n, at int        // calls so far, and the one that fails; 0 for none
	lost  bool       // it acts, and its answer is lost
	twice bool       // each step runs twice
	where string     // what failed
}

var errAway = errors.New("it is away")

func (f *fault) call(what string, act func() error) error {
	f.mu.Lock()
	f.n++
	fails := f.n == f.at
	if fails {
		f.where = what
	}
	f.mu.Unlock()
	if !fails {
		return act()
	}
	if f.lost {
		_ = act()
	}
	return errAway
}

// store fails statements. One whose answer is lost is as one before the next call, and is not played.
func (f *fault) store(p *placing) *store.Store {
	return store.New(pgtest.Tapped(p.T, p.Pool, func(sql string, _ []any) error {
		if f.lost {
			return nil
		}
		return f.call(sql, func() error { return nil })
	}))
}

// faultyCloud is a provider whose calls fail.
type faultyCloud struct {
	*cloud
	*fault
}

func (c faultyCloud) infra(what string, act func() error) error {
	err := c.call(what, act)
	if errors.Is(err, errAway) {
		return &server.InfraError{Class: server.InfraRetry, Code: "away", Message: what}
	}
	return err
}

func (c faultyCloud) FindServers(ctx context.Context, id prego.ServerID) (found []server.Handle, err error) {
	err = c.infra("FindServers", func() error { found, err = c.cloud.FindServers(ctx, id); return err })
	return found, err
}

func (c faultyCloud) ListOwned(ctx context.Context) (owned []server.OwnedResource, err error) {
	err = c.infra("ListOwned", func() error { owned, err = c.cloud.ListOwned(ctx); return err })
	return owned, err
}

func (c faultyCloud) DestroyServer(ctx context.Context, id prego.ServerID) error {
	return c.infra("DestroyServer", func() error { return c.cloud.DestroyServer(ctx, id) })
}

func (c faultyCloud) DeleteResource(ctx context.Context, kind server.ResourceKind, id prego.ServerID) error {
	return c.infra("DeleteResource", func() error { return c.cloud.DeleteResource(ctx, kind, id) })
}

func (c faultyCloud) PowerOff(ctx context.Context, id prego.ServerID) error {
	return c.infra("PowerOff", func() error { return c.cloud.PowerOff(ctx, id) })
}

func (c faultyCloud) Protect(ctx context.Context, kind server.ResourceKind, id string, on bool) error {
	return c.infra("Protect", func() error { return c.cloud.Protect(ctx, kind, id, on) })
}

// faultyHosts are hosts whose commands fail.
type faultyHosts struct {
	on activities.Bench
	*fault
}

func (h faultyHosts) Bench(ctx context.Context, c server.BenchCommand) (out string, err error) {
	err = h.call(strings.Join(c.Args, " "), func() error { out, err = h.on.Bench(ctx, c); return err })
	if errors.Is(err, errAway) {
		err = &server.CommandError{Kind: "bench", Code: server.CommandUnreachable, Message: "it is away"}
	}
	return out, err
}

func (h faultyHosts) BenchAll(ctx context.Context, cs []server.BenchCommand) (done int, err error) {
	for _, c := range cs {
		if _, err := h.Bench(ctx, c); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

func (h faultyHosts) Transfer(
	context.Context, prego.ServerID, string, wire.TransferRequest,
) (out wire.TransferResponse, err error) {
	if h.call("transfer", func() error { return nil }) != nil {
		err = &server.CommandError{Kind: "transfer", Code: server.CommandUnreachable, Message: "it is away"}
	}
	return out, err
}

// faultyObjects are a storage whose calls fail.
type faultyObjects struct {
	activities.ObjectStorage
	*fault
}

func (o faultyObjects) Put(ctx context.Context, key string, body []byte) error {
	return o.call("put", func() error { return o.ObjectStorage.Put(ctx, key, body) })
}

func (o faultyObjects) Get(ctx context.Context, key string, limit int64) (body []byte, err error) {
	err = o.call("get", func() error { body, err = o.ObjectStorage.Get(ctx, key, limit); return err })
	return body, err
}

func (o faultyObjects) Head(ctx context.Context, key string) (found tenant.StoredObject, ok bool, err error) {
	err = o.call("head", func() error { found, ok, err = o.ObjectStorage.Head(ctx, key); return err })
	return found, ok, err
}

func (o faultyObjects) List(
	ctx context.Context, prefix, after string, n int,
) (found []tenant.StoredObject, err error) {
	err = o.call("list", func() error { found, err = o.ObjectStorage.List(ctx, prefix, after, n); return err })
	return found, err
}

// played is what a run leaves: in the rows, at the provider and on the hosts.
type played struct{ rows, things, commands []string }

// in returns a step that is an activity.
func in(env *testsuite.TestActivityEnvironment, activity, input any) func() error {
	return func() error {
		_, err := env.ExecuteActivity(activity, input)
		return err
	}
}

// run runs the steps of a run: one that fails is repeated, by Temporal or by the caller whose request it is.
func (f *fault) run(t *testing.T, steps ...func() error) {
	t.Helper()
	for _, step := range steps {
		times := 1
		if f.twice {
			times = 2
		}
		for range times {
			err := errAway
			for try := 0; err != nil; try++ {
				if err = step(); err == nil {
					break
				}
				if app := (*temporal.ApplicationError)(nil); errors.As(err, &app) {
					require.False(t, app.NonRetryable(), "%s: %v", f.where, err)
				} else {
					require.ErrorIs(t, err, errAway, f.where)
				}
				require.Less(t, try, 3, "%s: %v", f.where, err)
			}
		}
	}
}

// logged are tables whose rows a restored database gets back.
var logged = []string{
	"servers", "resources", "orgs", "tenants", "tenant_allocations", "tenant_losses", "db_shards", "redis_pools",
	"site_pool", "restore_jobs", "snapshots", "backups", "server_bootstrap_tokens",
}

// rowsOf are the rows that a run may change, and the events without repetitions.
func (p *placing) rowsOf(names map[string]string) []string {
	p.T.Helper()
	return p.rows(names, append(slices.Clone(logged), "(SELECT work_id FROM org_work)",
		"(SELECT DISTINCT kind, id, status, step, reason FROM events)")...)
}

// rows are the rows of tables without times and counters. Names that differ from one database to the next are replaced.
func (p *placing) rows(names map[string]string, tables ...string) (out []string) {
	p.T.Helper()
	for _, table := range tables {
		rows, err := p.Pool.Query(context.Background(), `SELECT to_jsonb(x) FROM `+table+` x`)
		require.NoError(p.T, err)
		for rows.Next() {
			var row map[string]any
			require.NoError(p.T, rows.Scan(&row))
			for k := range row {
				if strings.HasSuffix(k, "_at") || strings.HasSuffix(k, "_since") || strings.HasSuffix(k, "_until") {
					row[k] = row[k] != nil
				}
			}
			delete(row, "request_hash")
			delete(row, "loss_id") // of a sequence
			delete(row, "changed_xid")
			text, err := json.Marshal(row)
			require.NoError(p.T, err)
			line := table + " " + string(text)
			for _, name := range slices.Sorted(maps.Keys(names)) {
				line = strings.ReplaceAll(line, name, names[name])
			}
			out = append(out, line)
		}
		require.NoError(p.T, rows.Err())
	}
	slices.Sort(out)
	return out
}

// left are the resources that are still there.
func (c *cloud) left() (things []string) {
	for _, o := range c.things {
		things = append(things, fmt.Sprintf("%s %s", o.Kind, o.ProviderID))
	}
	return things
}

func (h *hosts) distinct(names map[string]string) (out []string) {
	for _, c := range h.ran {
		line := strings.Join(slices.DeleteFunc(slices.Clone(c), func(word string) bool {
			return strings.HasPrefix(word, "age1") // a new key each time
		}), " ")
		for _, name := range slices.Sorted(maps.Keys(names)) {
			line = strings.ReplaceAll(line, name, names[name])
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// deleteServer is the run that takes a server with all that it owns down.
func deleteServer(t *testing.T, f *fault) played {
	p := newPlacing(t, 4)
	p.machine("srv-1", server.Decommissioning, 1, "1")
	p.line(server.ResourceServer, "s", "1", "srv-1", 1)
	p.line(server.ResourceVolume, "v", "2", "srv-1", 1)
	p.line(server.ResourceVolume, "w", "", "srv-1", 1) // of unknown outcome
	p.Exec(`UPDATE resources SET intended_at = now() - interval '61 minutes'`)
	c := &cloud{}
	c.has(server.ResourceServer, "1", "s", "srv-1", 1)
	c.has(server.ResourceVolume, "2", "v", "srv-1", 1)
	c.has(server.ResourceVolume, "3", "w", "", 0)
	c.has(server.ResourceServer, "4", "other", "srv-2", 1)
	c.things[0].Protected = true // since it was in use
	_, err := p.Store.NoteProtection(t.Context(), prego.ProviderHetzner, server.ResourceServer, "1")
	require.NoError(t, err)
	a, env := p.servers(c, f.store(p))
	a.Infra[prego.ProviderHetzner] = faultyCloud{c, f}
	destroy := activities.DestroyInput{ServerID: "srv-1", Attempt: 1, Reason: prego.ReasonDecommission}
	f.run(t,
		in(env, a.PlanDecommission, prego.ServerID("srv-1")),
		in(env, a.DestroyServer, destroy),
		in(env, a.TerminateServer, prego.ServerID("srv-1")))
	require.Equal(t, []string{"server 4"}, c.left())
	return played{p.rowsOf(nil), c.left(), nil}
}

// names are what a tenant's database and hosts call it.
func (p *placing) names() map[string]string {
	out := map[string]string{
		p.Text(`SELECT tenant_id FROM tenants`): "TENANT", p.Text(`SELECT slug FROM tenants`): "SLUG",
	}
	for i := range p.Number(`SELECT count(*) FROM tenant_allocations`) {
		at := fmt.Sprintf(` FROM tenant_allocations ORDER BY allocation_id LIMIT 1 OFFSET %d`, i)
		out[p.Text(`SELECT database_name`+at)] = fmt.Sprintf("DATABASE%d", i)
	}
	return out
}

// purgeTenant is the run that erases a tenant whose time is over.
func purgeTenant(t *testing.T, f *fault) played {
	p, s, ref := networked(t, false)
	_, err := s.env.ExecuteActivity(s.BuildTenant, ref)
	require.NoError(t, err)
	names := p.names()
	p.Exec(`UPDATE tenants SET state = 'data_purged'`)
	s.hosts.ran = nil
	s.Store, s.Bench = f.store(p), faultyHosts{s.hosts, f}
	f.run(t,
		in(s.env, s.DropSite, activities.DropInput{TenantID: ref.TenantID}),
		in(s.env, s.FreePlace, activities.FreePlaceInput{
			TenantID: ref.TenantID, Reason: string(tenant.DataPurged), Fate: tenant.SiteDropped,
		}),
		in(s.env, s.TenantConverged, activities.ConvergedInput{TenantID: ref.TenantID, State: tenant.DataPurged}))
	return played{p.rowsOf(names), nil, s.hosts.distinct(names)}
}

// restoreLost is the step that restores a tenant elsewhere whose app server is lost.
func restoreLost(t *testing.T, f *fault) played {
	l := newLosing(t, "app-0", "")
	names := l.names()
	tapped := f.store(l.placing)
	l.Tenants.Store, l.Bench = tapped, faultyHosts{l.hosts, f}
	f.run(t, in(l.env, l.BuildTenant, l.ref))
	require.Equal(t, 1, l.Number(`SELECT count(*) FROM tenants WHERE state = 'active'`))
	return played{l.rowsOf(names), nil, l.hosts.distinct(names)}
}

// loseServer is the road of a server that is declared lost: its machine is switched off and kept, its tenant is
// restored on another server, and then the machine goes.
func loseServer(t *testing.T, f *fault) played {
	l := newBackedUp(t)
	l.Exec(`UPDATE servers SET provider_server_id = '1', attempt = 1 WHERE server_id = 'app-0'`)
	l.line(server.ResourceServer, "app-0", "1", "app-0", 1)
	c := &cloud{}
	c.has(server.ResourceServer, "1", "app-0", "app-0", 1)
	c.things[0].Protected = true // since it is in use
	_, err := l.placing.Store.NoteProtection(t.Context(), prego.ProviderHetzner, server.ResourceServer, "1")
	require.NoError(t, err)
	tapped, placer := f.store(l.placing), l.placing.Placer(nil)
	placer.Store = tapped
	l.Tenants.Store, l.Tenants.Placer, l.Bench = tapped, placer, faultyHosts{l.hosts, f}
	a, env := l.servers(c, tapped)
	a.Infra[prego.ProviderHetzner] = faultyCloud{c, f}
	destroy := in(env, a.DestroyServer, activities.DestroyInput{ServerID: "app-0", Attempt: 1})
	f.run(t,
		func() error {
			_, err := tapped.LoseServer(impact.By(t.Context(), "test"), "app-0", "its disk died", "ann")
			return err
		},
		in(env, a.PlanDecommission, prego.ServerID("app-0")),
		destroy)
	require.Equal(t, []string{"server 1"}, c.left(), "it has the tenant's newest data")
	require.Contains(t, c.off, "1")
	l.replace(prego.RoleApp)
	f.run(t, in(l.env, l.RestoreLost, l.ref.TenantID))
	l.ref.Generation++
	f.run(t,
		in(l.env, l.PlaceTenant, l.ref),
		in(l.env, l.BuildTenant, l.ref),
		destroy,
		in(env, a.TerminateServer, prego.ServerID("app-0")))
	require.Empty(t, c.left())
	require.Equal(t, 1, l.Number(`SELECT count(*) FROM tenants WHERE state = 'active'`))
	names := l.names()
	names[l.Text(`SELECT job_id FROM restore_jobs`)] = "JOB"
	return played{l.rowsOf(names), nil, l.hosts.distinct(names)}
}

// restoring are the steps of a restore in place, after its plan.
func (l *losing) restoring(a *activities.Snapshots, job string, fetch, forget []func() error) []func() error {
	return slices.Concat([]func() error{in(l.env, a.PlanRestore, job), in(l.env, a.BeginRestore, job)}, fetch,
		[]func() error{
			in(l.env, a.MaintainForRestore, activities.RestoreMaintenance{JobID: job}),
			in(l.env, a.BackupBeforeRestore, job),
			in(l.env, a.RestoreSite, activities.RestoreInput{JobID: job, What: activities.RestoreApply}),
			in(l.env, a.MaintainForRestore, activities.RestoreMaintenance{JobID: job, Off: true}),
			in(l.env, a.ForgetKept, job),
		}, forget,
		[]func() error{in(l.env, a.FinishRestore, activities.SnapshotEnd{ID: job, Status: tenant.JobSucceeded})})
}

// inPlace is a tenant whose site is restored where it is.
func inPlace(t *testing.T, f *fault) (*losing, *activities.Snapshots, map[string]string) {
	l := newBackedUp(t)
	names, tapped := l.names(), f.store(l.placing)
	l.hosts.ran = nil
	l.Tenants.Store, l.Bench = tapped, faultyHosts{l.hosts, f}
	a := l.snapshots(l.placing)
	a.Store, a.Runs = tapped, l.runs
	return l, a, names
}

// writes has the host's next backup written under a name.
func (l *losing) writes(name string) {
	l.hosts.says["backup"] = fmt.Sprintf(
		`{"name":%q,"files":[{"path":"%s/private/snapshots/%[1]s-database.sql.gz","bytes":7}]}`, name, l.site)
}

// restoreBackup is the run that restores a backup in place.
func restoreBackup(t *testing.T, f *fault) played {
	l, a, names := inPlace(t, f)
	b := *l.Restorer
	b.Store, b.Objects, b.Hosts, b.Audit = a.Store, faultyObjects{l.bucket, f}, faultyHosts{l.hosts, f}, a.Store
	env := (&testsuite.WorkflowTestSuite{}).NewTestActivityEnvironment()
	env.RegisterActivity(&b)
	_, err := l.placing.Store.CreateRestore(impact.By(t.Context(), "test"), l.ref.TenantID,
		tenant.RestoreOf{BackupID: "bak-3"}, "rst-1", "ann")
	require.NoError(t, err)
	l.writes("rst-1-before")
	f.run(t, l.restoring(a, "rst-1",
		[]func() error{in(env, b.FetchBackup, activities.FetchInput{
			BackupID: "bak-3", TenantID: l.ref.TenantID, Name: "rst-1-in",
		})},
		[]func() error{in(l.env, a.ForgetFetched, "rst-1"), in(env, b.Restored, prego.BackupID("bak-3"))})...)
	require.Equal(t, 1, l.Number(`SELECT count(*) FROM restore_jobs WHERE status = 'succeeded'`))
	require.Zero(t, l.Number(`SELECT count(*) FROM org_work`), "the next one has its turn")
	return played{l.rowsOf(names), nil, l.hosts.distinct(names)}
}

// restoreSnapshot are the runs that take a snapshot, restore it, and delete it.
func restoreSnapshot(t *testing.T, f *fault) played {
	l, a, names := inPlace(t, f)
	_, err := l.placing.Store.CreateSnapshot(t.Context(), l.ref.TenantID, "snp-1", "ann")
	require.NoError(t, err)
	l.writes("snp-1")
	f.run(t,
		in(l.env, a.PlanSnapshot, prego.SnapshotID("snp-1")),
		in(l.env, a.TakeSnapshot, prego.SnapshotID("snp-1")),
		in(l.env, a.FinishSnapshot, activities.SnapshotEnd{ID: "snp-1", Status: tenant.JobSucceeded}))
	_, err = l.placing.Store.CreateRestore(impact.By(t.Context(), "test"), l.ref.TenantID,
		tenant.RestoreOf{SnapshotID: "snp-1"}, "rst-1", "ann")
	require.NoError(t, err)
	l.writes("rst-1-before")
	f.run(t, l.restoring(a, "rst-1", nil, nil)...)
	_, err = l.placing.Store.DeleteSnapshot(impact.By(t.Context(), "test"), l.ref.TenantID, "snp-1", "ann")
	require.NoError(t, err)
	f.run(t, in(l.env, a.EraseSnapshot, prego.SnapshotID("snp-1")))
	require.Zero(t, l.Number(`SELECT count(*) FROM snapshots WHERE erased_at IS NOT NULL`), "it is kept")
	l.Exec(`UPDATE snapshots SET kept_until = now()`)
	f.run(t, in(l.env, a.EraseSnapshot, prego.SnapshotID("snp-1")))
	require.Equal(t, 1, l.Number(`SELECT count(*) FROM snapshots WHERE erased_at IS NOT NULL`))
	require.Zero(t, l.Number(`SELECT count(*) FROM org_work`), "the next one has its turn")
	return played{l.rowsOf(names), nil, l.hosts.distinct(names)}
}

// faultyVolumes is a provider with volumes whose calls fail.
type faultyVolumes struct {
	*orgCloud
	faultyCloud
}

func (c faultyVolumes) DetachVolume(ctx context.Context, id prego.VolumeID) error {
	return c.infra("DetachVolume", func() error { return c.orgCloud.DetachVolume(ctx, id) })
}

// deleteVolume is the run that takes a volume from its server and, once it is kept no longer, deletes it.
func deleteVolume(t *testing.T, f *fault) played {
	p := newPlacing(t, 4)
	p.machine("srv-1", server.Active, 1, "1")
	for _, sql := range []string{
		`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'o1', 'a', 'a')`,
		`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by)
			VALUES ('env-a', 'app-a', 'o1', 'a', 'eu', 'a')`,
		`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request,
			replicas, created_by) VALUES ('grp-a', 'env-a', 'o1', 'eu', 'a', '{}', 1, 0, 1, 'a')`,
		`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, made_bytes, provider,
			provider_name, provider_id, status, created_by)
			VALUES ('vol-a', 'o1', 'eu', 'fsn1', 'a', 10000000000, 10000000000, 'hetzner', 'n', '7', 'ready', 'a')`,
		`INSERT INTO volume_attachments (attachment_id, volume_id, group_id, org_id, mount_path, server_id, created_by)
			VALUES ('vat-a', 'vol-a', 'grp-a', 'o1', '/data', 'srv-1', 'a')`,
	} {
		p.Exec(sql)
	}
	p.line(server.ResourceVolume, "n", "7", "", 0)
	c := &cloud{}
	c.has(server.ResourceVolume, "7", "n", "", 0)
	c.has(server.ResourceVolume, "8", "other", "", 0)
	c.things[0].Protected = true // since it was in use
	_, err := p.Store.NoteProtection(t.Context(), prego.ProviderHetzner, server.ResourceVolume, "7")
	require.NoError(t, err)
	volumes := &orgCloud{on: map[string]string{"7": "1"}}
	on := &volumeHosts{cloud: volumes, mounted: map[string]bool{"srv-1/7": true}}
	volumes.hosts = on
	a := &activities.OrgResources{
		Store: f.store(p), Hosts: faultyHosts{on, f}, Infra: map[prego.InfraProviderID]activities.OrgInfra{
			prego.ProviderHetzner: faultyVolumes{volumes, faultyCloud{c, f}},
		},
	}
	env := (&testsuite.WorkflowTestSuite{}).NewTestActivityEnvironment()
	env.RegisterActivity(a)
	ref := activities.OrgResourceRef{Kind: server.ResourceVolume, ID: "vol-a"}
	ctx := impact.By(t.Context(), "test")
	require.NoError(t, p.Store.DetachVolume(ctx, "vol-a", "vat-a", "ann"))
	f.run(t, in(env, a.PlanOrgResource, ref), in(env, a.DetachLeftVolume, prego.VolumeID("vol-a")))
	require.Empty(t, volumes.on)
	_, err = p.Store.DeleteVolume(ctx, "vol-a", "", "ann")
	require.NoError(t, err)
	f.run(t, in(env, a.ReleaseOrgResource, ref))
	require.Equal(t, []string{"volume 7", "volume 8"}, c.left(), "its deletion can be undone")
	p.Exec(`UPDATE volumes SET kept_until = now()`)
	f.run(t, in(env, a.PlanOrgResource, ref), in(env, a.ReleaseOrgResource, ref))
	require.Equal(t, []string{"volume 8"}, c.left())
	return played{append(p.rowsOf(nil), p.rows(nil, "volumes", "volume_attachments")...), c.left(), nil}
}

// clearMoved is the end of a move: the old place is erased.
func clearMoved(t *testing.T, f *fault) played {
	p, s, ref := networked(t, false)
	_, err := s.env.ExecuteActivity(s.BuildTenant, ref)
	require.NoError(t, err)
	names := p.names()
	p.Server("app-9", prego.RoleApp, "")
	p.Exec(`UPDATE servers SET network_id = 'n-1', private_address = '10.64.0.99', tenant_count = 1
		WHERE server_id = 'app-9'`)
	p.Exec(`INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, requested_by, site, database_name,
			from_server_id, to_server_id, moves_server, state, from_shard_id, from_pool_id, frozen_at)
		SELECT 'mov-1', t.org_id, t.tenant_id, a.allocation_id, 'ann', t.site, a.database_name,
			'app-9', a.app_server_id, true, 'switched', a.db_shard_id, a.redis_pool_id, now()
		FROM tenants t JOIN tenant_allocations a USING (tenant_id)`) // it came from app-9
	s.hosts.ran, s.hosts.says = nil, map[string]string{"pack-site": fmt.Sprintf(
		`{"name":"mov-1-3","bytes":1,"sha256":%[1]q,"plain_sha256":%[1]q}`, strings.Repeat("0", 64))}
	tapped := f.store(p)
	s.Store, s.Bench = tapped, faultyHosts{s.hosts, f}
	m := &activities.Moves{
		Store: tapped, Tenants: s.Tenants, Runs: s.runs,
		Backups: &activities.Backups{Store: tapped, Tenants: s.Tenants},
		Metrics: activities.NewMoveMetrics(prometheus.NewRegistry()), Log: zap.NewNop(),
	}
	s.env.RegisterActivity(m)
	f.run(t,
		in(s.env, m.ClearMove, prego.MoveID("mov-1")),
		in(s.env, m.FinishMove, activities.MoveEnd{MoveID: "mov-1", State: tenant.MoveDone}))
	return played{append(p.rowsOf(names), p.rows(names, "tenant_moves")...), nil, s.hosts.distinct(names)}
}

// completeRestored are the worker's steps that write the redo log, and the operator's that complete a restored database
// by it, or take it as it is.
func completeRestored(asIs bool) func(*testing.T, *fault) played {
	return func(t *testing.T, f *fault) played {
		s3 := s3test.Start(t)
		bucket, err := objects.New(objects.Config{
			Endpoint: s3.Endpoint, Bucket: s3.Bucket, Region: s3.Region, AccessKey: s3.AccessKey,
			SecretKey: s3.SecretKey, PathStyle: true, MayDelete: s3test.MayDelete,
		})
		require.NoError(t, err)
		vault := newVault(t)
		open := func(f *fault) (*placing, *activities.RedoLog) {
			p := newPlacing(t, 1)
			return p, &activities.RedoLog{
				Store: f.store(p), Objects: faultyObjects{bucket, f}, Vault: vault, Environment: "test", Now: time.Now,
			}
		}
		verify := func(l *activities.RedoLog) func() error {
			return func() error { _, err := l.Verify(t.Context(), true); return err }
		}
		save := func(l *activities.RedoLog) func() error {
			return func() error { _, err := l.Save(t.Context()); return err }
		}
		apply := func(f *fault, l *activities.RedoLog, asIs bool) func() error {
			return func() error {
				if r, err := l.Plan(t.Context()); err != nil || !r.Lacks() {
					return err
				}
				_, err := l.Apply(t.Context(), func(context.Context, string) (int, error) {
					return 0, f.call("end runs", func() error { return nil })
				}, asIs)
				return err
			}
		}
		live, log := open(f)
		f.run(t, verify(log), save(log))
		live.Server("app-0", prego.RoleApp, "")
		f.run(t, save(log))
		live.Tenant(prego.PlanStarter, nil)
		f.run(t, save(log), save(log))
		lived := live.rows(nil, logged...)

		restored, log := open(f)
		before := restored.rows(nil, logged...)
		f.run(t, save(log), verify(log), apply(f, log, asIs), verify(log))
		rows := restored.rows(nil, logged...)
		require.Equal(t, map[bool][]string{true: before, false: lived}[asIs], rows)
		restored.Exec(`INSERT INTO orgs (org_id, tier, created_by) VALUES ('o9', 'enterprise', 'test')`)
		f.run(t, save(log), save(log))
		require.Equal(t, 1, restored.Number(`SELECT count(*) FROM redo
			WHERE unsaved IS NULL AND recovering_since IS NULL`))
		rows = restored.rows(nil, logged...)

		if asIs { // what it did not take does not return in the next restore of the same moment
			again, log := open(&fault{})
			f.run(t, verify(log), apply(&fault{}, log, false))
			require.Equal(t, rows, again.rows(nil, logged...))
		}
		return played{rows, nil, nil}
	}
}

// TestEachStepFailsOnceAndRunsTwice: wherever one call of a run fails, before it acts or with its answer lost, and with
// each step run twice, the run ends as it does without.
func TestEachStepFailsOnceAndRunsTwice(t *testing.T) {
	t.Parallel()
	for name, story := range map[string]func(*testing.T, *fault) played{
		"a server is deleted": deleteServer, "a tenant is purged": purgeTenant,
		"a lost tenant is restored": restoreLost, "a server is lost": loseServer,
		"a backup is restored in place": restoreBackup, "a snapshot is restored": restoreSnapshot,
		"a volume is deleted": deleteVolume, "a move's old place is cleared": clearMoved,
		"a restored database is completed": completeRestored(false),
		"a restored database stays as is":  completeRestored(true),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play := func(what string, f *fault) (end played) {
				require.True(t, t.Run(what, func(t *testing.T) { end = story(t, f) }), what)
				return end
			}
			count := func(lost bool) (played, []*fault) {
				f := fault{lost: lost}
				end := play("undisturbed", &f)
				all := make([]*fault, f.n)
				for i := range all {
					all[i] = &fault{at: i + 1, lost: lost}
				}
				return end, all
			}
			want, calls := count(false)
			again, lost := count(true)
			require.Equal(t, want, again, "it ends the same each time")
			require.NotEmpty(t, want.rows)
			require.Equal(t, want, play("each step twice", &fault{twice: true}))
			for _, c := range deep.Some(t, 3, append(calls, lost...)) {
				end := play(fmt.Sprintf("call %d, answer lost %t", c.at, c.lost), c)
				require.NotEmpty(t, c.where, "call %d was not made", c.at)
				require.Equal(t, want, end, "call %d fails, answer lost %v: %s", c.at, c.lost, c.where)
			}
			t.Logf("%d calls, and %d with an answer to lose", len(calls), len(lost))
		})
	}
}
