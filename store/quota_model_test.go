package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

const instanceOverhead = 32 << 20

// tightTiers are limits that a few operations reach.
func tightTiers() quota.Tiers {
	t := quota.Tiers{}
	for i, tier := range prego.Tiers() {
		n := float64(2 + 3*i)
		t[tier] = map[quota.Dimension]float64{}
		for _, d := range quota.Dimensions() {
			t[tier][d] = n
		}
		t[tier][quota.MaxTotalMemoryBytes] = n * (2 << 30)
		t[tier][quota.MaxTotalCPURequest] = n * 0.75
		t[tier][quota.MaxTotalVolumeBytes] = n * 20e9
	}
	return t
}

// plainModel is the rules in a few lines, with no database: what an org has, and what
// of it counts.
type plainModel struct {
	tiers     quota.Tiers
	tier      prego.Tier
	own       map[quota.Dimension]float64
	apps      map[string]bool
	envs      map[string]string // app
	tenants   map[string]*plainTenant
	instances map[string]*plainInstance
	volumes   map[string]float64
	routes    map[string]plainRoute
	domains   map[string]bool // verified
	addresses map[string]bool
	attached  map[string]bool
	snapshots map[string]string // tenant
	restores  map[string]string // by tenant, one at a time
	sessions  map[string]string // kind; those over keep counting for the hour
	over      map[string]bool
}

type plainTenant struct {
	plan   prego.Plan
	gb     int
	state  tenant.State
	placed bool
	server bool // its own, existing
	gone   bool // purged, and the purge in effect
}

type plainInstance struct {
	memory, cpu float64
	state       string
}

type plainRoute struct {
	host, scope, env string
	port             int
}

func (p *plainTenant) size() (memory, cpu, storage float64) {
	memory = map[prego.Plan]float64{"trial": 512 << 20, "starter": 1 << 30, "business": 2 << 30, "enterprise": 8 << 30}[p.plan]
	cpu = map[prego.Plan]float64{"trial": .25, "starter": .5, "business": 1, "enterprise": 4}[p.plan]
	return memory + instanceOverhead, cpu, 1e9 * float64(max(p.gb, p.plan.DefaultStorageGB()))
}

func (p *plainTenant) counts() bool {
	switch p.state {
	case tenant.Failed, tenant.Terminated:
		return p.placed || p.server
	case tenant.DataPurged:
		return !p.gone && (p.placed || p.server)
	default:
		return true
	}
}

func (m *plainModel) usage() map[quota.Dimension]float64 {
	u := map[quota.Dimension]float64{}
	for _, t := range m.tenants {
		if t.counts() {
			memory, cpu, storage := t.size()
			u[quota.MaxInstances]++
			u[quota.MaxTotalMemoryBytes] += memory
			u[quota.MaxTotalCPURequest] += cpu
			u[quota.MaxTotalVolumeBytes] += storage
		}
	}
	for _, i := range m.instances {
		if i.state != "stopped" {
			u[quota.MaxInstances]++
			u[quota.MaxTotalMemoryBytes] += i.memory + instanceOverhead
			u[quota.MaxTotalCPURequest] += i.cpu
		}
	}
	for _, size := range m.volumes {
		u[quota.MaxVolumes]++
		u[quota.MaxTotalVolumeBytes] += size
	}
	bindings := map[string]bool{}
	for _, r := range m.routes {
		address := "shared"
		if r.scope == "env_v4" {
			address = r.env
		}
		bindings[fmt.Sprintf("%s:%d", address, r.port)] = true
	}
	perTenant := map[string]float64{}
	for _, tenant := range m.snapshots {
		perTenant[tenant]++
		u[quota.MaxSnapshotsPerVolume] = max(u[quota.MaxSnapshotsPerVolume], perTenant[tenant])
	}
	for id, kind := range m.sessions {
		if kind == "exec" {
			u[quota.MaxExecSessionsPerHour]++
		}
		if !m.over[id] {
			u[map[string]quota.Dimension{"exec": quota.MaxExecSessions, "logs": quota.MaxLogStreams}[kind]]++
		}
	}
	u[quota.MaxApps], u[quota.MaxEnvs], u[quota.MaxRoutes] = float64(len(m.apps)), float64(len(m.envs)), float64(len(m.routes))
	u[quota.MaxHostnames], u[quota.MaxPublicPorts] = float64(len(m.domains)), float64(len(bindings))
	u[quota.MaxIPv4Allocations], u[quota.MaxVolumeAttachments] = float64(len(m.addresses)), float64(len(m.attached))
	u[quota.MaxRestoreJobs] = float64(len(m.restores))
	return u
}

func (m *plainModel) limit(d quota.Dimension) float64 {
	return m.tiers.Effective(m.tier, m.own, d).Value
}

func (m *plainModel) verdict(deltas ...quota.Delta) *org.QuotaExceeded {
	return quota.Check(deltas, m.usage(), m.limit)
}

// modelRun numbers the drawn runs.
var modelRun atomic.Int64

// driven is a store and the model that it is held against.
type driven struct {
	*plainModel
	t   *rapid.T
	s   *Store
	org string
	n   int
	// group and env are made once: what instances and routes refer to.
	group, env string
}

func (d *driven) id(prefix string) string {
	d.n++
	return fmt.Sprintf("%s-%s-%d", prefix, d.org, d.n)
}

// same compares a refusal with the model's, and returns whether it was accepted.
func (d *driven) same(want *org.QuotaExceeded, err error) bool {
	var got *org.QuotaExceeded
	if errors.As(err, &got) || want != nil {
		require.Equal(d.t, want, got, "%v", err)
		return false
	}
	require.NoError(d.t, err)
	return true
}

// take writes a row as its own room does: it takes the quota first.
func (d *driven) take(deltas []quota.Delta, sql string, args ...any) bool {
	ctx := context.Background()
	err := d.s.inTx(ctx, "test", func(tx *txn) error {
		if err := d.s.takeQuota(ctx, tx, prego.OrgID(d.org), deltas...); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sql, args...)
		return err
	})
	return d.same(d.verdict(deltas...), err)
}

func (d *driven) exec(sql string, args ...any) {
	_, err := d.s.pool.Exec(context.Background(), sql, args...)
	require.NoError(d.t, err, sql)
}

func pick[K ~string, V any](d *driven, from map[K]V) (K, bool) {
	if len(from) == 0 {
		return "", false
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(from))).Draw(d.t, "which"), true
}

func oneMore(d quota.Dimension) []quota.Delta { return []quota.Delta{{Dimension: d, By: 1}} }

// create creates a tenant, if the quota admits it.
func (d *driven) create(plan prego.Plan, gb int) (id string) {
	id = d.id("t")
	p := &plainTenant{plan: plan, gb: gb, state: tenant.Provisioning}
	r := tenant.CreateRequest{Slug: id, OrgID: prego.OrgID(d.org), Region: prego.RegionEU, Plan: p.plan, StorageQuotaGB: p.gb}
	require.NoError(d.t, r.Validate())
	memory, cpu, storage := p.size()
	_, _, err := d.s.CreateTenant(context.Background(), r, prego.TenantID(id), tenant.ModeShared, "", "test")
	if d.same(d.verdict(tenantSize{memory, cpu, storage}.deltas()...), err) {
		if p.plan == prego.PlanTrial {
			p.state = tenant.Trial
		}
		d.tenants[id] = p
	}
	return id
}

// toTheEnd ends a tenant, unless it is being made.
func (d *driven) toTheEnd(id string) {
	ctx, t := context.Background(), d.t
	p := d.tenants[id]
	for _, action := range []tenant.Action{tenant.ActionCancel, tenant.ActionTerminate, tenant.ActionPurge} {
		if next, err := action.Apply(p.state); err == nil && p.state != tenant.Provisioning {
			_, err = d.s.ChangeTenant(impact.By(ctx, "test"), prego.TenantID(id), action, lasting, "test", "")
			require.NoError(t, err)
			p.state = next
		}
	}
	if p.state == tenant.DataPurged && !p.gone {
		d.agree() // purged, and not in effect: the rest stays counted
		require.NoError(t, d.s.TenantConverged(ctx, prego.TenantID(id), tenant.DataPurged))
		p.gone = true
	}
}

func (d *driven) step() {
	ctx, t := context.Background(), d.t
	ref := func(id prego.TenantID) tenant.Ref {
		now, err := d.s.GetTenant(ctx, string(id))
		require.NoError(t, err)
		return tenant.Ref{TenantID: id, Generation: now.Generation}
	}
	op := 0 // rapid prefers small numbers: drawn from bits, each operation is as likely
	for range 5 {
		op <<= 1
		if rapid.Bool().Draw(t, "op") {
			op++
		}
	}
	switch op {
	case 0, 1:
		id := d.id("app")
		_, _, err := d.s.CreateApp(ctx, workload.App{AppID: prego.AppID(id), OrgID: prego.OrgID(d.org), Name: id, CreatedBy: "test"}, "")
		if d.same(d.verdict(oneMore(quota.MaxApps)...), err) {
			d.apps[id] = true
		}
	case 2:
		id, ok := pick(d, d.apps)
		if !ok {
			return
		}
		used := slices.Contains(slices.Collect(maps.Values(d.envs)), id)
		err := d.s.DeleteApp(ctx, id, "test")
		require.Equal(t, used, prego.CodeOf(err) == prego.CodeAppInUse && err != nil)
		if err == nil {
			delete(d.apps, id)
		}
	case 3, 4:
		app, ok := pick(d, d.apps)
		if !ok {
			return
		}
		id := d.id("env")
		_, _, err := d.s.CreateEnv(ctx, workload.Env{EnvID: prego.EnvID(id), AppID: prego.AppID(app), Name: id, Region: prego.RegionEU, CreatedBy: "test"}, "")
		if d.same(d.verdict(oneMore(quota.MaxEnvs)...), err) {
			d.envs[id] = app
		}
	case 5:
		if id, ok := pick(d, d.envs); ok && id != d.env {
			require.NoError(t, d.s.DeleteEnv(ctx, id, "test"))
			delete(d.envs, id)
		}
	case 6, 7, 8:
		d.create(rapid.SampledFrom(prego.Plans()).Draw(t, "plan"), rapid.SampledFrom([]int{0, 5, 20}).Draw(t, "gb"))
	case 9:
		if id, ok := pick(d, d.tenants); ok && !d.tenants[id].placed && d.tenants[id].state == tenant.Provisioning {
			d.exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
				VALUES ($1, 'old', 'old', 'old', $1, $1, 'hetzner', 'best_fit')`, id)
			d.tenants[id].placed = true
		}
	case 10:
		if id, ok := pick(d, d.tenants); ok && d.tenants[id].placed {
			d.exec(`UPDATE tenant_allocations SET released_at = now(), release_reason = 'test' WHERE tenant_id = $1`, id)
			d.tenants[id].placed = false
		}
	case 11:
		if id, ok := pick(d, d.tenants); ok && !d.tenants[id].server && d.tenants[id].counts() {
			d.exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, dedicated_for_tenant_id)
				VALUES ($1, '', 'node', 'eu', 'hetzner', '{}', 'draining', 'w', 'test', $2)`, d.id("srv"), id)
			d.tenants[id].server = true
		}
	case 12:
		if id, ok := pick(d, d.tenants); ok {
			d.exec(`UPDATE servers SET status = 'terminated' WHERE dedicated_for_tenant_id = $1`, id)
			d.tenants[id].server = false
		}
	case 13:
		if id, ok := pick(d, d.tenants); ok && (d.tenants[id].state == tenant.Trial || d.tenants[id].state == tenant.Provisioning) {
			require.NoError(t, d.s.FailTenant(ctx, ref(prego.TenantID(id)), prego.ReasonFailedSite, ""))
			d.tenants[id].state = tenant.Failed
			maps.DeleteFunc(d.restores, func(_, of string) bool { return of == id }) // a restore that would bring it back has failed with it
		}
	case 14:
		if id, ok := pick(d, d.tenants); ok && d.tenants[id].state == tenant.Provisioning {
			_, err := d.s.ActivateTenant(ctx, ref(prego.TenantID(id)), 0)
			require.NoError(t, err)
			d.tenants[id].state = tenant.Active
		}
	case 15, 16:
		id, ok := pick(d, d.tenants)
		if !ok {
			return
		}
		p := d.tenants[id]
		action := rapid.SampledFrom([]tenant.Action{
			tenant.ActionRetry, tenant.ActionRetry, tenant.ActionCancel, tenant.ActionReactivate, tenant.ActionTerminate, tenant.ActionPurge, tenant.ActionSuspend, tenant.ActionResume,
		}).Draw(t, "action")
		next, err := action.Apply(p.state)
		if err != nil || p.state == tenant.Provisioning {
			return
		}
		var want *org.QuotaExceeded
		if action == tenant.ActionRetry && !p.counts() {
			memory, cpu, storage := p.size()
			want = d.verdict(tenantSize{memory, cpu, storage}.deltas()...)
		}
		_, err = d.s.ChangeTenant(impact.By(ctx, "test"), prego.TenantID(id), action, lasting, "test", "")
		if d.same(want, err) {
			p.state = next
		}
	case 17:
		// To its end, which single actions hardly ever come to.
		id, ok := pick(d, d.tenants)
		if !ok || rapid.IntRange(0, 2).Draw(t, "to the end") > 0 {
			return
		}
		d.toTheEnd(id)
	case 18, 19:
		id := d.id("ins")
		i := &plainInstance{memory: float64(rapid.SampledFrom([]int{64 << 20, 1 << 30}).Draw(t, "memory")), cpu: rapid.SampledFrom([]float64{0, .25}).Draw(t, "cpu"), state: "booting"}
		if d.take([]quota.Delta{{Dimension: quota.MaxInstances, By: 1}, {Dimension: quota.MaxTotalMemoryBytes, By: i.memory + instanceOverhead}, {Dimension: quota.MaxTotalCPURequest, By: i.cpu}},
			`INSERT INTO instances (instance_id, group_id, org_id, server_id, number, spec, release, memory_limit_bytes, cpu_request, state) VALUES ($1, $2, $3, 'old', 1, '{}', 1, $4, $5, 'booting')`,
			id, d.group, d.org, i.memory, i.cpu) {
			d.instances[id] = i
		}
	case 20:
		if id, ok := pick(d, d.instances); ok && d.instances[id].state != "stopped" {
			d.instances[id].state = rapid.SampledFrom([]string{"running", "draining", "failed", "stopped"}).Draw(t, "state")
			d.exec(`UPDATE instances SET state = $2 WHERE instance_id = $1`, id, d.instances[id].state)
		}
	case 21:
		id, size := d.id("vol"), rapid.SampledFrom([]float64{10e9, 25e9}).Draw(t, "size")
		if d.take([]quota.Delta{{Dimension: quota.MaxVolumes, By: 1}, {Dimension: quota.MaxTotalVolumeBytes, By: size}},
			`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by) VALUES ($1, $2, 'eu', 'fsn1', $1, $3, 'hetzner', $1, 'ready', 'test')`,
			id, d.org, size) {
			d.volumes[id] = size
		}
	case 22:
		if id, ok := pick(d, d.volumes); ok && !d.attached[id] {
			if rapid.Bool().Draw(t, "attach") {
				if d.take(oneMore(quota.MaxVolumeAttachments), `INSERT INTO volume_attachments (attachment_id, org_id, volume_id, group_id, mount_path, created_by) VALUES ($1, $2, $1, $3, '/data/' || $1, 'test')`,
					id, d.org, d.group) {
					d.attached[id] = true
				}
				return
			}
			d.exec(`UPDATE volumes SET deleted_at = now(), status = 'releasing' WHERE volume_id = $1`, id)
			delete(d.volumes, id)
		}
	case 23, 28: // often: differences show with many of them
		id := d.id("rte")
		r := plainRoute{scope: rapid.SampledFrom([]string{"shared_v6", "env_v4"}).Draw(t, "scope"), env: d.env, port: rapid.SampledFrom([]int{80, 443, 5432}).Draw(t, "port")}
		if rapid.Bool().Draw(t, "named") {
			r.host = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "host") + "." + d.org
		}
		for _, have := range d.routes {
			if r.host != "" && have.host == r.host && have.port == r.port {
				return // the one hostname and port is taken
			}
		}
		with := *d.plainModel
		with.routes = maps.Clone(d.routes)
		with.routes[id] = r
		before, after := d.usage(), with.usage()
		var deltas []quota.Delta
		for _, dim := range []quota.Dimension{quota.MaxRoutes, quota.MaxPublicPorts} {
			deltas = append(deltas, quota.Delta{Dimension: dim, By: after[dim] - before[dim]})
		}
		if d.take(deltas, `INSERT INTO routes (route_id, org_id, env_id, group_id, hostname, listener_scope, listen_port, protocol, target_port, created_by)
			VALUES ($1, $2, $3, $4, $5, $6, $7, 'tcp', 80, 'test')`, id, d.org, d.env, d.group, r.host, r.scope, r.port) {
			d.routes[id] = r
		}
	case 24:
		if name := d.id("dom"); rapid.Bool().Draw(t, "verified") {
			// A claim that waits counts for nothing; a verified claim does.
			d.exec(`INSERT INTO domains (domain_id, org_id, name, token, sought_until, created_by) VALUES ($1, $2, $1, 't', now(), 'test')`, name, d.org)
			if d.take(oneMore(quota.MaxHostnames), `UPDATE domains SET status = 'verified' WHERE domain_id = $1`, name) {
				d.domains[name] = true
			}
		} else if name, ok := pick(d, d.domains); ok {
			d.exec(rapid.SampledFrom([]string{
				`UPDATE domains SET status = 'lost' WHERE domain_id = $1`, `UPDATE domains SET deleted_at = now() WHERE domain_id = $1`, `DELETE FROM domains WHERE domain_id = $1`,
			}).Draw(t, "how"), name)
			delete(d.domains, name)
		}
		if id, ok := pick(d, d.routes); ok {
			d.exec(`UPDATE routes SET deleted_at = now() WHERE route_id = $1`, id)
			delete(d.routes, id)
		}
		if len(d.addresses) == 0 {
			if id := d.id("ip4"); d.take(oneMore(quota.MaxIPv4Allocations), `INSERT INTO ipv4_allocations (allocation_id, org_id, env_id, provider, location, name, status, created_by)
				VALUES ($1, $2, $3, 'hetzner', 'fsn1', $1, 'pending', 'test')`, id, d.org, d.env) {
				d.addresses[id] = true
			}
		}
	case 25, 29, 30, 31:
		id := d.id("x")
		switch rapid.IntRange(0, 3).Draw(t, "operational") {
		case 0:
			tenant, ok := pick(d, d.tenants)
			n := 0.0
			for _, of := range d.snapshots {
				if of == tenant {
					n++
				}
			}
			// Of the volume that has most: a snapshot of another one takes nothing.
			by := max(0, n+1-d.usage()[quota.MaxSnapshotsPerVolume])
			if ok && d.take([]quota.Delta{{Dimension: quota.MaxSnapshotsPerVolume, By: by}},
				`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, server_id, site, status, created_by) VALUES ($1, $2, $3, 'old', 's', 'queued', 'test')`, id, d.org, tenant) {
				d.snapshots[id] = tenant
			}
		case 1:
			kind := rapid.SampledFrom([]string{"exec", "logs"}).Draw(t, "kind")
			deltas := oneMore(quota.MaxLogStreams)
			if kind == "exec" {
				deltas = append(oneMore(quota.MaxExecSessions), oneMore(quota.MaxExecSessionsPerHour)...)
			}
			if d.take(deltas, `INSERT INTO org_sessions (session_id, org_id, kind, subject, actor, lease_until) VALUES ($1, $2, $3, 's', 'test', now() + interval '1 hour')`, id, d.org, kind) {
				d.sessions[id] = kind
			}
		case 2:
			if id, ok := pick(d, d.sessions); ok { // closed, or its process died
				d.exec(rapid.SampledFrom([]string{`UPDATE org_sessions SET closed_at = now() WHERE session_id = $1`, `UPDATE org_sessions SET lease_until = now() WHERE session_id = $1`}).Draw(t, "end"), id)
				d.over[id] = true
			}
		case 3:
			of, ok := pick(d, d.snapshots)
			if slices.Contains(slices.Collect(maps.Values(d.restores)), d.snapshots[of]) {
				return
			}
			if ok && d.take(oneMore(quota.MaxRestoreJobs),
				`INSERT INTO restore_jobs (job_id, org_id, tenant_id, snapshot_id, status, created_by) SELECT $1, org_id, tenant_id, snapshot_id, $3, 'test' FROM snapshots WHERE snapshot_id = $2`,
				id, of, rapid.SampledFrom([]string{"queued", "running"}).Draw(t, "status")) {
				d.restores[id] = d.snapshots[of]
				d.exec(`UPDATE snapshots SET status = 'succeeded' WHERE snapshot_id = $1`, of)
				delete(d.snapshots, of)
			}
		}
	case 26:
		dim := rapid.SampledFrom(quota.Dimensions()).Draw(t, "dimension")
		if _, ok := d.own[dim]; ok && rapid.Bool().Draw(t, "unset") {
			_, err := d.s.UnsetQuota(ctx, prego.OrgID(d.org), dim, "test", "")
			require.NoError(t, err)
			delete(d.own, dim)
			return
		}
		limit := d.tiers[d.tier][dim] * rapid.SampledFrom([]float64{0, 1, 2}).Draw(t, "times")
		_, err := d.s.SetQuota(ctx, prego.OrgID(d.org), dim, limit, "test", "why")
		require.NoError(t, err)
		d.own[dim] = limit
	case 27:
		d.tier = rapid.SampledFrom(prego.Tiers()).Draw(t, "tier")
		_, err := d.s.PutOrg(ctx, prego.OrgID(d.org), tenant.PutOrgRequest{Tier: d.tier}, "test")
		require.NoError(t, err)
	}
}

// agree compares all that is shown with the model.
func (d *driven) agree() {
	ctx := context.Background()
	quotas, err := d.s.OrgQuotas(ctx, prego.OrgID(d.org))
	require.NoError(d.t, err)
	usage := d.usage()
	for i, dim := range quota.Dimensions() {
		q := quotas[i]
		limit := d.tiers.Effective(d.tier, d.own, dim)
		require.Equal(d.t, []any{string(dim), limit.Value, limit.Override, usage[dim]}, []any{q.Dimension, q.Limit, q.Override, q.Usage})
	}
	rows, err := d.s.pool.Query(ctx, `SELECT dimension, usage FROM org_usage_view WHERE org_id = $1`, d.org)
	require.NoError(d.t, err)
	view := map[quota.Dimension]float64{}
	var name string
	var used float64
	_, err = pgx.ForEachRow(rows, []any{&name, &used}, func() error { view[quota.Dimension(name)] = used; return nil })
	require.NoError(d.t, err)
	for _, dim := range quota.Dimensions() {
		require.Contains(d.t, view, dim)
		require.Equal(d.t, usage[dim], view[dim], dim)
	}
	require.Len(d.t, view, len(quota.Dimensions()))
}

// TestQuotasAgreeWithAPlainModel drives a store with random operations, and holds each
// verdict, all usage and all limits against the rules written down without a database.
func TestQuotasAgreeWithAPlainModel(t *testing.T) {
	t.Parallel()
	tiers := tightTiers()
	require.NoError(t, tiers.Validate())
	s := NewWithTiers(pgtest.Pool(t), tiers, prego.TierPaid)
	ctx := context.Background()
	for _, sql := range placedBefore(0)[:3] {
		_, err := s.pool.Exec(ctx, sql)
		require.NoError(t, err)
	}
	deep.Check(t, 30, func(rt *rapid.T) {
		d := &driven{t: rt, s: s, org: fmt.Sprintf("o%d", modelRun.Add(1)), plainModel: &plainModel{
			tiers: tiers, tier: prego.TierPaid, own: map[quota.Dimension]float64{}, apps: map[string]bool{}, envs: map[string]string{}, tenants: map[string]*plainTenant{},
			instances: map[string]*plainInstance{}, volumes: map[string]float64{}, routes: map[string]plainRoute{}, domains: map[string]bool{}, addresses: map[string]bool{}, attached: map[string]bool{},
			snapshots: map[string]string{}, restores: map[string]string{}, sessions: map[string]string{}, over: map[string]bool{},
		}}
		_, err := s.PutOrg(ctx, prego.OrgID(d.org), tenant.PutOrgRequest{}, "test")
		require.NoError(rt, err)
		app := d.id("app")
		d.env, d.group = d.id("env"), d.id("grp")
		_, _, err = s.CreateApp(ctx, workload.App{AppID: prego.AppID(app), OrgID: prego.OrgID(d.org), Name: "base", CreatedBy: "test"}, "")
		require.NoError(rt, err)
		_, _, err = s.CreateEnv(ctx, workload.Env{EnvID: prego.EnvID(d.env), AppID: prego.AppID(app), Name: "base", Region: prego.RegionEU, CreatedBy: "test"}, "")
		require.NoError(rt, err)
		d.apps[app], d.envs[d.env] = true, app
		d.exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
			VALUES ($1, $2, $3, 'eu', 'web', '{}', 1, 0, 0, 'test')`, d.group, d.env, d.org)
		// Steps may be without a tenant, or with none that ends: one ends in any case, and what is left does afterwards.
		first := d.create(prego.PlanTrial, 0)
		d.agree()
		d.toTheEnd(first)
		require.True(rt, d.tenants[first].gone, "no tenant came to its end")
		d.agree()
		for range rapid.IntRange(20, 120).Draw(rt, "steps") {
			d.step()
			d.agree()
		}
		for _, id := range slices.Sorted(maps.Keys(d.tenants)) {
			d.toTheEnd(id)
			d.agree()
		}
	})
}
