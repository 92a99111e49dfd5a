package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// whereabouts is the servers of a tenant's site, database and cache.
type whereabouts struct{ app, db, cache prego.ServerID }

func (w whereabouts) on(id prego.ServerID) bool {
	return id != "" && (w.app == id || w.db == id || w.cache == id)
}

// remains is what a tenant has left on servers with the loss of a part of its place.
type remains struct {
	lost  prego.ServerID
	place whereabouts
}

type heldTenant struct {
	id      prego.TenantID
	trial   bool
	placed  bool
	live    bool // its site is in use, or kept until the purge
	at      whereabouts
	remains []remains // not restored yet
	ending  bool      // a caller accepted its end
	purged  bool
	move    *heldMove
}

type heldMove struct {
	id       prego.MoveID
	from, to whereabouts
	stage    int // how many of its steps were made
}

type heldMachine struct {
	server prego.ServerID
	empty  bool // it was when its server was provisioned again
}

// heldCopy is a volume, a backup or a snapshot.
type heldCopy struct {
	of          string
	key         string
	number      int
	done        bool // a backup or snapshot that succeeded
	used        bool // a volume that may hold data
	gone, kept  bool // its deletion was accepted, and may be undone
	keptMachine prego.ServerID
}

// heldWorld is what exists outside of the database and what callers have accepted, according to the operations that
// were played. Rows only choose the next step of a run.
type heldWorld struct {
	t         *rapid.T
	ctx       context.Context
	s         *Store
	n         int
	tenants   map[prego.TenantID]*heldTenant
	machines  map[string]*heldMachine // by the provider's id
	given     map[prego.ServerID]bool // a caller accepted its deletion
	lost      map[prego.ServerID]bool
	instances map[prego.ServerID]bool
	volumes   map[string]*heldCopy
	backups   map[string]*heldCopy
	snapshots map[string]*heldCopy
	frozen    bool
	done      map[string]int
}

const heldServers = 8

var heldSweep = server.SweepParams{
	DegradedAfter: time.Minute, FailedAfter: 10 * time.Minute, FreezePct: 100, FreezeMin: 100,
}

func siteOf(id prego.TenantID) string { return string(id) + ".example.com" }

// heldStore is two nodes, the second of them imported, and servers of each other role in pairs.
func heldStore(t *testing.T) *Store {
	b := peersSetup(t)
	for i, role := range []prego.Role{
		prego.RoleNode, prego.RoleNode, prego.RoleApp, prego.RoleApp, prego.RoleDBShard, prego.RoleDBShard,
		prego.RoleRedisPool, prego.RoleRedisPool,
	} {
		id := fmt.Sprintf("s-%d", i)
		b.server(id, role, fmt.Sprintf("10.64.0.%d", 10+i))
		if role == prego.RoleNode {
			for table, key := range map[string]string{"db_shards": "shard_id", "redis_pools": "pool_id"} {
				b.exec(fmt.Sprintf(`INSERT INTO %s (%s, server_id, region, on_node, tenant_capacity)
					VALUES ($1, $1, 'eu', true, 9)`, table, key), id)
			}
		}
	}
	b.exec(`UPDATE servers SET attempt = 1, provider_server_id = 'm-' || server_id, location = 'fsn1',
		server_type = 'cx22', agent_first_seen_at = now(), agent_last_heartbeat_at = now()`)
	b.exec(`UPDATE servers SET purpose = 'import_existing_server', imported_from_pulumi_at = now(),
		managed_by = 'pulumi' WHERE server_id = 's-1'`)
	b.exec(`INSERT INTO resources (provider, kind, name, provider_id, server_id, attempt, state)
		SELECT 'hetzner', 'server', server_id, 'm-' || server_id, server_id, 1, 'created' FROM servers
		UNION ALL SELECT 'hetzner', 'primary_ip', server_id || '-ip', 'i-' || server_id, server_id, 1, 'created'
		FROM servers`)
	b.exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app', 'o', 'a', 'test')`)
	b.exec(`INSERT INTO envs (env_id, org_id, app_id, name, region, created_by)
		VALUES ('env', 'o', 'app', 'e', 'eu', 'test')`)
	b.exec(`INSERT INTO process_groups (group_id, org_id, env_id, name, region, replicas, spec, memory_limit_bytes,
		cpu_request, created_by) VALUES ('grp', 'o', 'env', 'g', 'eu', 1, '{}', 1, 1, 'test')`)
	return b.s
}

func (w *heldWorld) exec(sql string, args ...any) {
	_, err := w.s.pool.Exec(w.ctx, sql, args...)
	require.NoError(w.t, err, sql)
}

func (w *heldWorld) next() int { w.n++; return w.n }

// ok is whether an operation was accepted. A refusal has a code, or is a run's that is superseded.
func (w *heldWorld) ok(name string, err error) bool {
	var quotas *org.QuotaExceeded
	if err == nil {
		w.t.Logf("%s", name)
		w.done[name]++
		return true
	}
	if prego.CodeOf(err) == prego.CodeInternal && !errors.Is(err, server.ErrSuperseded) && !errors.As(err, &quotas) {
		require.NoError(w.t, err, name)
	}
	return false
}

// caller is one that accepts every impact, or none.
func (w *heldWorld) caller() (ctx context.Context, accepts bool) {
	if accepts = rapid.Bool().Draw(w.t, "accepts"); accepts {
		return impact.By(w.ctx, "test"), true
	}
	return w.ctx, false
}

func drawn[K ~string, V any](w *heldWorld, from map[K]V) (K, V) {
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(from))).Draw(w.t, "which")
	return id, from[id]
}

func (w *heldWorld) someServer() prego.ServerID {
	return prego.ServerID(fmt.Sprintf("s-%d", rapid.IntRange(0, heldServers-1).Draw(w.t, "server")))
}

// somePlace is a node, or an app server with a shard and a pool.
func (w *heldWorld) somePlace() whereabouts {
	if n := rapid.IntRange(0, 3).Draw(w.t, "place"); n < 2 {
		id := prego.ServerID(fmt.Sprintf("s-%d", n))
		return whereabouts{id, id, id}
	}
	pick := func(first int) prego.ServerID {
		return prego.ServerID(fmt.Sprintf("s-%d", first+rapid.IntRange(0, 1).Draw(w.t, "of two")))
	}
	return whereabouts{pick(2), pick(4), pick(6)}
}

func (w *heldWorld) ref(id prego.TenantID) (tenant.Ref, tenant.Tenant) {
	now, err := w.s.GetTenant(w.ctx, string(id))
	require.NoError(w.t, err)
	return tenant.Ref{TenantID: id, Generation: now.Generation}, now
}

func (w *heldWorld) createTenant() {
	id := prego.TenantID(fmt.Sprintf("t-%d", w.next()))
	plan := rapid.SampledFrom([]prego.Plan{prego.PlanTrial, prego.PlanStarter}).Draw(w.t, "plan")
	r := tenant.CreateRequest{Slug: string(id), OrgID: "o", Region: prego.RegionEU, Plan: plan}
	require.NoError(w.t, r.Validate())
	_, _, err := w.s.CreateTenant(w.ctx, r, id, tenant.ModeShared, "", "ann")
	if w.ok("create", err) {
		w.tenants[id] = &heldTenant{id: id, trial: plan == prego.PlanTrial}
	}
}

// provision is a step of a tenant's provisioning or restore: a place, its site, its activation.
func (w *heldWorld) provision(h *heldTenant) {
	ref, now := w.ref(h.id)
	if now.State != tenant.Provisioning && now.State != tenant.Trial {
		return
	}
	switch {
	case !h.placed:
		p := w.somePlace()
		out, err := w.s.Reserve(w.ctx, tenant.Reservation{
			TenantID: h.id, Generation: ref.Generation, AppServerID: p.app, DBShardID: prego.ShardID(p.db),
			RedisPoolID: prego.RedisPoolID(p.cache), SiteName: siteOf(h.id), DatabaseName: string(h.id),
			Mode: tenant.ModeShared, Algorithm: "best_fit", AuditAs: "best_fit", MemoryPctMax: 90, MaxTenants: 9,
			Decision: []byte(`{}`), Policy: []byte(`{}`), Reason: "r", Actor: "workflow",
		})
		if w.ok("place", err) && out.Outcome == tenant.ReservePlaced {
			w.done["placed"]++
			h.placed, h.at = true, p
		}
	case now.Site == "" && now.RestoreFrom != "":
		e := tenant.Event{TenantID: h.id, Step: tenant.StepRestored, Message: "from a backup"}
		if w.ok("restored", w.s.SiteRestored(w.ctx, ref, siteOf(h.id), e)) {
			h.remains = nil
		}
	case now.Site == "":
		w.ok("site", w.s.SiteReady(w.ctx, ref, siteOf(h.id), tenant.StepSiteCreated))
	default:
		if _, err := w.s.ActivateTenant(w.ctx, ref, time.Hour); w.ok("activate", err) {
			h.live, h.remains = true, nil
		}
	}
}

func (w *heldWorld) failTenant(h *heldTenant) {
	ref, now := w.ref(h.id)
	if now.State != tenant.Provisioning || now.Site != "" && now.RestoreFrom != "" {
		return
	}
	if w.ok("fail", w.s.FailTenant(w.ctx, ref, prego.ReasonFailedSite, "no")) && rapid.Bool().Draw(w.t, "undone") {
		w.ok("undo", w.s.FreePlace(w.ctx, h.id, "failed", "", tenant.SiteDropped, nil))
		h.placed = false
	}
}

func (w *heldWorld) changeTenant(h *heldTenant) {
	action := rapid.SampledFrom([]tenant.Action{
		tenant.ActionCancel, tenant.ActionTerminate, tenant.ActionReactivate, tenant.ActionSuspend, tenant.ActionResume,
		tenant.ActionRetry, tenant.ActionRetry,
	}).Draw(w.t, "action")
	ctx, accepts := w.caller()
	_, err := w.s.ChangeTenant(ctx, h.id, action, lasting, "ann", "")
	if !w.ok(string(action), err) {
		return
	}
	switch action {
	case tenant.ActionCancel, tenant.ActionTerminate:
		h.ending = h.trial || accepts || !h.live && len(h.remains) == 0
		if accepts && action == tenant.ActionTerminate { // what a loss has left of it ends with it
			h.remains = nil
		}
	default:
		h.ending = h.trial
	}
}

// timer lets a tenant's time run out.
func (w *heldWorld) timer(h *heldTenant) {
	w.exec(`UPDATE tenants SET deadline_at = now() WHERE tenant_id = $1 AND state <> 'data_purged'`, string(h.id))
	if changed, err := w.s.ExpireTenant(w.ctx, h.id, lasting); w.ok("timer", err) && changed {
		w.done["timed"]++
		if _, now := w.ref(h.id); now.State == tenant.DataPurged {
			w.done["purged"]++
			h.purged = h.purged || h.ending || h.trial
		}
	}
}

// purge is the run of a tenant whose data is purged.
func (w *heldWorld) purge(h *heldTenant) {
	if _, now := w.ref(h.id); now.State != tenant.DataPurged || !h.placed {
		return
	}
	if w.s.MayErase(w.ctx, h.at.app, siteOf(h.id), string(h.id)) != nil ||
		w.s.MayErase(w.ctx, h.at.db, "", string(h.id)) != nil {
		return
	}
	require.True(w.t, h.purged, "%s is erased, and no caller accepted its end", h.id)
	w.ok("free", w.s.FreePlace(w.ctx, h.id, "purged", "", tenant.SiteDropped, nil))
	w.ok("converged", w.s.TenantConverged(w.ctx, h.id, tenant.DataPurged))
	h.placed, h.live = false, false
}

// moveTenant is the next step of a tenant's move, or its undoing.
func (w *heldWorld) moveTenant(h *heldTenant) {
	if h.move == nil {
		if !h.live {
			return
		}
		to := w.somePlace()
		ask := tenant.MoveAsked{
			ID: prego.MoveID(fmt.Sprintf("mov-%d", w.next())), TenantID: h.id, By: "ann", To: tenant.AnyTarget,
		}
		if to.app != h.at.app && to.db != h.at.db && to.cache != h.at.cache {
			ask.Shard, ask.Pool = tenant.AnyTarget, tenant.AnyTarget
		} else if to.app != to.db && h.at.app != h.at.db && to.app != h.at.app {
			to.db, to.cache = h.at.db, h.at.cache
		} else {
			return
		}
		w.exec(`UPDATE tenants SET converged_state = state WHERE tenant_id = $1`, string(h.id))
		m, err := w.s.RequestMove(w.ctx, ask)
		if !w.ok("move", err) {
			return
		}
		place := tenant.MovePlace{
			ServerID: to.app, ShardID: prego.ShardID(to.db), PoolID: prego.RedisPoolID(to.cache), MaxTenants: 9,
			MemoryMax: 90, DBDiskMax: 90, RedisMax: 90,
			Decision: []byte("{}"), Policy: []byte("{}"), Algorithm: "best_fit",
		}
		if ok, err := w.s.ReserveMove(w.ctx, m.MoveID, place); !w.ok("reserve move", err) || !ok {
			_, err := w.s.FinishMove(w.ctx, m.MoveID, tenant.MoveFailed, tenant.ReasonMoveFailed, "")
			w.ok("no place", err)
			return
		}
		h.move = &heldMove{id: m.MoveID, from: h.at, to: to}
		return
	}
	m := h.move
	end := func(state tenant.MoveState) {
		if _, err := w.s.FinishMove(w.ctx, m.id, state, "", ""); w.ok("move "+string(state), err) {
			h.move = nil
		}
	}
	record, err := w.s.MoveRecord(w.ctx, m.id)
	require.NoError(w.t, err)
	switch {
	case record.State == tenant.MoveSwitched && !h.live: // lost, or ended, at the new place
		end(tenant.MoveDone)
	case record.State != tenant.MoveSwitched &&
		(!h.live || record.Returned || rapid.IntRange(0, 5).Draw(w.t, "cancel") == 0):
		end(tenant.MoveCancelled)
	case m.stage == 0:
		waits, err := w.s.FreezeMove(w.ctx, m.id)
		if w.ok("freeze", err) && waits == "" {
			m.stage++
		}
	case m.stage == 1:
		if w.ok("switch", w.s.SwitchMove(w.ctx, m.id, 0)) {
			m.stage++
			h.at = m.to
		}
	case m.stage == 2:
		if w.ok("opened", w.s.MoveOpened(w.ctx, m.id)) {
			m.stage++
		}
	case m.stage == 3:
		if ok, err := w.s.ClearingMove(w.ctx, m.id); w.ok("clearing", err) && ok {
			m.stage++
		}
	default:
		if w.s.MayErase(w.ctx, m.from.app, siteOf(h.id), "") == nil {
			end(tenant.MoveDone)
		}
	}
}

// lose is what the loss of a server means.
func (w *heldWorld) lose(id prego.ServerID) {
	for _, h := range w.tenants {
		_, now := w.ref(h.id)
		if m := h.move; m != nil && h.live && m.stage >= 2 && h.at == m.to && w.returns(m, id) {
			w.done["returned"]++
			h.at = m.from
			continue
		}
		if !h.live || h.at.app != id && h.at.db != id {
			continue
		}
		require.NotEqual(w.t, tenant.Active, now.State, "%s had its data on %s, which is lost", h.id, id)
		if now.State == tenant.Failed {
			w.done["tenant lost"]++
			h.remains = append(h.remains, remains{id, h.at})
		}
		h.live, h.placed = false, false
	}
	w.lost[id] = true
}

// returns is whether a tenant is given back the place that it moved from: the move lost a part there, no part of the
// former place is lost, and no backup has more than the database there.
func (w *heldWorld) returns(m *heldMove, id prego.ServerID) bool {
	if m.to.db != m.from.db {
		newer, err := value[int](w.ctx, w.s.pool, `SELECT count(*) FROM tenant_moves m JOIN backups b USING (tenant_id)
			WHERE m.move_id = $1 AND b.state = 'stored' AND b.taken_at > m.frozen_at`, m.id)
		require.NoError(w.t, err)
		if newer > 0 {
			return false
		}
	}
	moved := m.to.app != m.from.app && m.to.app == id || m.to.db != m.from.db && m.to.db == id
	for _, s := range []prego.ServerID{m.from.app, m.from.db, m.from.cache} {
		srv, err := w.s.GetServer(w.ctx, s)
		require.NoError(w.t, err)
		moved = moved && s != id && !w.lost[s] && (srv.Status == server.Active || srv.Status == server.Decommissioning)
	}
	return moved && m.stage < 4
}

func (w *heldWorld) loseServer() {
	id := w.someServer()
	before, err := w.s.GetServer(w.ctx, id)
	require.NoError(w.t, err)
	if rapid.Bool().Draw(w.t, "missing") {
		marked, err := w.s.MarkMissing(w.ctx, id, "m-"+string(id))
		if w.ok("missing", err) && marked {
			w.lose(id)
			w.vanish("m-" + string(id))
		}
		return
	}
	ctx, accepts := w.caller()
	if _, err := w.s.LoseServer(ctx, id, "", "ann"); w.ok("lose", err) && before.Status != server.Terminated {
		w.lose(id)
		w.given[id] = w.given[id] || accepts
	}
}

// vanish is the end of a machine.
func (w *heldWorld) vanish(id string) {
	m := w.machines[id]
	delete(w.machines, id)
	if m == nil || m.empty {
		return
	}
	for _, h := range w.tenants {
		for i, r := range h.remains {
			h.remains[i].place = r.without(m.server)
		}
	}
}

func (r remains) without(id prego.ServerID) whereabouts {
	for _, at := range []*prego.ServerID{&r.place.app, &r.place.db, &r.place.cache} {
		if *at == id {
			*at = ""
		}
	}
	return r.place
}

func (w *heldWorld) restoreElsewhere(h *heldTenant) {
	_, _, err := w.s.RestoreElsewhere(w.ctx, h.id, "", "", "ann")
	w.ok("restore", err)
}

// clear erases what losses have left of a tenant on servers that exist.
func (w *heldWorld) clear(h *heldTenant) {
	left, err := w.s.LeftOfLosses(w.ctx, h.id)
	require.NoError(w.t, err)
	for _, l := range left {
		a := l.Allocation
		if w.s.MayErase(w.ctx, a.AppServerID, a.SiteName, a.DatabaseName) == nil &&
			w.s.MayErase(w.ctx, l.Shard.ServerID, "", a.DatabaseName) == nil {
			w.ok("cleared", w.s.LossCleared(w.ctx, l.LossID))
		}
	}
}

// has is whether anything of a tenant's only copy, or anything live, is on a server.
func (w *heldWorld) has(id prego.ServerID) (what []string) {
	for _, h := range w.tenants {
		if h.live && h.at.on(id) && !h.purged {
			what = append(what, fmt.Sprintf("%s is live", h.id))
		}
		for _, r := range h.remains {
			if !h.purged && (r.place.app == id || r.place.db == id) {
				what = append(what, fmt.Sprintf("%s was lost with %s and is not restored", h.id, r.lost))
			}
		}
	}
	if w.instances[id] {
		what = append(what, "an instance runs")
	}
	return what
}

// unrestored is whether a server that is lost has what its tenants need until they are restored.
func (w *heldWorld) unrestored(id prego.ServerID) bool {
	for _, h := range w.tenants {
		for _, r := range h.remains {
			if !h.purged && (r.place.app == id || r.place.db == id) {
				return true
			}
		}
	}
	return false
}

func (w *heldWorld) changeServer() {
	id := w.someServer()
	ctx, accepts := w.caller()
	empty := len(w.has(id)) == 0
	var err error
	how := rapid.SampledFrom([]string{
		"delete", "decommission", "member", "freed", "retry", "silent", "drain", "resize", "replace", "run",
	}).Draw(w.t, "how")
	switch how {
	case "delete":
		_, err = w.s.DeleteServer(ctx, id, "ann")
	case "decommission":
		_, err = w.s.RequestDecommission(w.ctx, id, "ann")
	case "member":
		_, err = w.s.DecommissionMember(w.ctx, id, "fleet")
	case "freed":
		_, err = w.s.RemoveFreed(w.ctx, id, "rebalance")
	case "silent":
		w.silent(id)
		_, err = w.s.SweepSilent(w.ctx, heldSweep)
	case "retry":
		if _, err = w.s.RequestRetry(w.ctx, id, "ann"); err == nil && !w.imported(id) {
			require.Empty(w.t, w.has(id), "%s is provisioned again", id)
			for _, m := range w.machines {
				m.empty = m.empty || m.server == id
			}
		}
	case "run":
		_, err = w.s.StepMaintenance(w.ctx, id, server.MaintenanceLimits{Servers: 9, Instances: 9, Tenants: 9})
	default:
		_, err = w.s.RequestMaintenance(ctx, id, server.MaintenanceKind(how),
			server.MaintenanceRequest{ServerType: "cx32"}, "ann")
	}
	if w.ok(how, err) && (how == "delete" || how == "decommission" || how == "member" || how == "freed") {
		now, err := w.s.GetServer(w.ctx, id)
		require.NoError(w.t, err)
		gone := now.Status == server.Decommissioning || now.Status == server.Terminated
		w.given[id] = w.given[id] || accepts && how == "delete" || empty && gone
	}
}

func (w *heldWorld) imported(id prego.ServerID) bool { return id == "s-1" }

func (w *heldWorld) silent(id prego.ServerID) {
	w.exec(`UPDATE servers SET agent_last_heartbeat_at = now() - interval '1 hour' WHERE server_id = $1`, string(id))
}

// importAgain takes over an imported server again whose agent has fallen silent: with the same machine.
func (w *heldWorld) importAgain() {
	w.silent("s-1")
	_, err := w.s.SweepSilent(w.ctx, heldSweep)
	w.ok("silent", err)
	_, err = w.s.RequestRetry(w.ctx, "s-1", "ann")
	w.ok("import again", err)
}

// destroy is the run that ends a machine, if the gate lets it.
func (w *heldWorld) destroy() {
	if len(w.machines) == 0 {
		return
	}
	id, m := drawn(w, w.machines)
	srv, err := w.s.GetServer(w.ctx, m.server)
	require.NoError(w.t, err)
	if !m.empty && srv.Status != server.Decommissioning ||
		w.s.MayDelete(w.ctx, "hetzner", server.ResourceServer, id) != nil {
		return
	}
	w.done["destroyed"]++
	w.vanish(id)
	if m.empty {
		return
	}
	w.ok("begin release", w.s.BeginRelease(w.ctx, m.server, srv.Attempt))
	live, err := w.s.LiveResources(w.ctx, m.server)
	require.NoError(w.t, err)
	for _, r := range live {
		w.ok("released", w.s.Released(w.ctx, r.ResourceID))
	}
	w.ok("finish release", w.s.FinishRelease(w.ctx, m.server, srv.Attempt, "", ""))
	if w.ok("terminate", w.s.Terminate(w.ctx, m.server)) {
		w.lose(m.server)
		for _, h := range w.tenants {
			for i, r := range h.remains {
				h.remains[i].place = r.without(m.server)
			}
		}
	}
}

func (w *heldWorld) volume() {
	if len(w.volumes) < 2 {
		n := w.next()
		id := fmt.Sprintf("vol-%d", n)
		w.exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, made_bytes, grown_bytes,
			provider, provider_name, provider_id, status, created_by)
			VALUES ($1, 'o', 'eu', 'fsn1', $1, 1e10, 1e10, 1e10, 'hetzner', $1, 'v-' || $1, 'ready', 'test')`, id)
		w.volumes[id] = &heldCopy{number: n}
		if rapid.Bool().Draw(w.t, "used") {
			w.exec(`INSERT INTO volume_attachments
				(attachment_id, org_id, volume_id, group_id, mount_path, created_by, deleted_at)
				VALUES ('vat-' || $1, 'o', $1, 'grp', '/' || $1, 'ann', now())`, id)
			w.volumes[id].used = true
		}
		return
	}
	id, v := drawn(w, w.volumes)
	switch rapid.SampledFrom([]int{2, 0, 1, 3, 4}).Draw(w.t, "volume") {
	case 0:
		_, err := w.s.AttachVolume(w.ctx, workload.VolumeAttachment{
			AttachmentID: fmt.Sprintf("vat-%d", w.next()), VolumeID: prego.VolumeID(id), GroupID: "grp",
			MountPath: "/" + id,
		}, "ann")
		if w.ok("attach", err) {
			v.used = true
		}
	case 1:
		w.exec(`UPDATE volume_attachments SET deleted_at = now(), server_id = NULL
			WHERE volume_id = $1 AND deleted_at IS NULL`, id)
	case 2:
		ctx, accepts := w.caller()
		if _, err := w.s.DeleteVolume(ctx, prego.VolumeID(id), "", "ann"); w.ok("delete volume", err) && !v.gone {
			v.gone, v.kept = accepts || !v.used, v.used
		}
	case 3:
		if _, err := w.s.UndeleteVolume(w.ctx, prego.VolumeID(id), "ann"); w.ok("undelete volume", err) {
			v.gone, v.kept = false, false
		}
	case 4:
		w.exec(`UPDATE volumes SET kept_until = now() WHERE volume_id = $1 AND kept_until IS NOT NULL`, id)
		v.kept = false
	}
}

func (w *heldWorld) backup(h *heldTenant) {
	n := w.next()
	id := prego.BackupID(fmt.Sprintf("bak-%d", n))
	ask := tenant.BackupAsked{ID: id, TenantID: h.id, Kind: tenant.BackupManual, AtOnce: true, By: "ann"}
	b, err := w.s.RequestBackup(w.ctx, ask)
	if !w.ok("backup", err) {
		return
	}
	key := fmt.Sprintf("e/%s/%s/", h.id, b.BackupID)
	require.NoError(w.t, w.s.BackupKey(w.ctx, id, "r", tenant.SealedIdentity{KeyID: "k", Sealed: []byte("x")}))
	sealed := tenant.SealedBackup{Bytes: 5, PlainBytes: 5, SHA256: "a", PlainSHA256: "b", TakenAt: time.Now()}
	require.NoError(w.t, w.s.BackupSealed(w.ctx, id, sealed, 5, key+"site.age", key+"manifest.json"))
	c := &heldCopy{of: string(h.id), key: key, number: n}
	w.backups[string(id)] = c
	if rapid.IntRange(0, 4).Draw(w.t, "backup fails") == 0 {
		if w.ok("backup failed", w.s.BackupFailed(w.ctx, id, tenant.ReasonDiskFull, "")) {
			delete(w.backups, string(id))
		}
		return
	}
	require.NoError(w.t, w.s.BackupStored(w.ctx, id, "m", "e"))
	c.done = true
}

func (w *heldWorld) changeBackup() {
	if len(w.backups) == 0 {
		return
	}
	id, b := drawn(w, w.backups)
	of := tenant.BackupOwner{TenantID: prego.TenantID(b.of)}
	switch rapid.IntRange(0, 4).Draw(w.t, "change backup") {
	case 0:
		ctx, accepts := w.caller()
		if _, err := w.s.DeleteBackup(ctx, of, prego.BackupID(id), "ann"); w.ok("delete backup", err) && !b.gone {
			b.gone, b.kept = accepts, true
		}
	case 1: // its plan's policy accepted that
		ctx := impact.Standing(w.ctx, "retention")
		if _, err := w.s.DeleteBackup(ctx, of, prego.BackupID(id), "retention"); w.ok("retention", err) {
			b.gone = true
		}
	case 2:
		if _, err := w.s.UndeleteBackup(w.ctx, of, prego.BackupID(id), "ann"); w.ok("undelete backup", err) {
			b.gone, b.kept = false, false
		}
	case 3:
		w.exec(`UPDATE backups SET kept_until = now() WHERE backup_id = $1 AND kept_until IS NOT NULL`, id)
		b.kept = false
	case 4:
		w.ok("expire backups", w.s.ExpireBackups(w.ctx, of.TenantID, time.Hour))
	}
}

func (w *heldWorld) snapshot(h *heldTenant) {
	n := w.next()
	id := fmt.Sprintf("snp-%02d", n)
	if _, err := w.s.CreateSnapshot(w.ctx, h.id, id, "ann"); w.ok("snapshot", err) {
		require.NoError(w.t, w.s.SnapshotBegun(w.ctx, prego.SnapshotID(id)))
		require.NoError(w.t, w.s.SnapshotFinished(w.ctx, id, tenant.JobSucceeded, []string{"x"}, ""))
		w.snapshots[id] = &heldCopy{of: string(h.id), number: n, done: true, keptMachine: h.at.app}
	}
}

func (w *heldWorld) deleteSnapshot() {
	if len(w.snapshots) == 0 {
		return
	}
	id, c := drawn(w, w.snapshots)
	h := w.tenants[prego.TenantID(c.of)]
	ctx, accepts := w.caller()
	if _, err := w.s.DeleteSnapshot(ctx, h.id, prego.SnapshotID(id), "ann"); !w.ok("delete snapshot", err) {
		return
	}
	newer := !h.live || h.at.app != c.keptMachine
	for _, b := range w.backups {
		newer = newer || b.of == c.of && b.done && !b.gone
	}
	for _, o := range w.snapshots {
		newer = newer || o.of == c.of && o.number > c.number && !o.gone
	}
	c.gone, c.kept = accepts || newer, h.live && h.at.app == c.keptMachine
}

func (w *heldWorld) undeleteSnapshot() {
	if len(w.snapshots) == 0 {
		return
	}
	id, c := drawn(w, w.snapshots)
	if rapid.Bool().Draw(w.t, "its time is over") {
		w.exec(`UPDATE snapshots SET kept_until = now() WHERE snapshot_id = $1 AND kept_until IS NOT NULL`, id)
		c.kept = false
		return
	}
	_, err := w.s.UndeleteSnapshot(w.ctx, prego.TenantID(c.of), prego.SnapshotID(id), "ann")
	if w.ok("undelete snapshot", err) {
		c.gone, c.kept = false, false
	}
}

func (w *heldWorld) freeze() {
	if w.frozen = rapid.Bool().Draw(w.t, "frozen"); w.frozen {
		_, err := w.s.Freeze(w.ctx, "looking", "ann")
		require.NoError(w.t, err)
		return
	}
	require.NoError(w.t, w.s.Unfreeze(w.ctx, "ann"))
}

func (w *heldWorld) prune() {
	for _, table := range []ops.PrunedTable{
		ops.PrunedEvents, ops.PrunedFeed, ops.PrunedInstances, ops.PrunedKeys, ops.PrunedDecisions,
	} {
		_, err := w.s.Prune(w.ctx, table, 0, 100)
		w.ok("prune", err)
	}
}

func (w *heldWorld) instance() {
	id := w.someServer()
	srv, err := w.s.GetServer(w.ctx, id)
	if err != nil || srv.Status != server.Active || w.instances[id] || srv.Role != prego.RoleApp {
		return
	}
	w.exec(`INSERT INTO instances (instance_id, group_id, org_id, server_id, number, spec, release,
		memory_limit_bytes, cpu_request, state)
		VALUES ('ins-' || $1, 'grp', 'o', $1, $2, '{}', 1, 1, 0, 'running')`, string(id), w.next())
	w.instances[id] = true
}

// protects is the look that protects what holds data.
func (w *heldWorld) protects() {
	for id, m := range w.machines {
		if !m.empty && len(w.has(m.server)) > 0 {
			_, err := w.s.NoteProtection(w.ctx, "hetzner", server.ResourceServer, id)
			require.NoError(w.t, err)
		}
	}
}

func (w *heldWorld) refuses(err error, what string, args ...any) {
	what = fmt.Sprintf(what, args...)
	var held *Held
	require.ErrorAs(w.t, err, &held, "%s", what)
	if w.frozen {
		require.Equal(w.t, prego.CodeFrozen, held.Code, what)
	}
	w.done["refused"]++
}

// check asks the gate on every road about all that is live, or the only copy of something, and not accepted to end.
func (w *heldWorld) check() {
	ctx, s := w.ctx, w.s
	for _, h := range w.tenants {
		site, database := siteOf(h.id), string(h.id)
		if h.live && !h.purged {
			w.refuses(s.MayErase(ctx, h.at.app, site, ""), "the site of %s on %s", h.id, h.at.app)
			w.refuses(s.MayErase(ctx, h.at.db, "", database), "the database of %s on %s", h.id, h.at.db)
			w.refuses(s.MayErase(ctx, h.at.cache, "", database), "the cache of %s on %s", h.id, h.at.cache)
		}
		for _, r := range h.remains {
			if r.place.db != "" && !h.purged {
				err := s.MayErase(ctx, r.place.db, "", database)
				w.refuses(err, "the database that %s has left on %s", h.id, r.place.db)
			}
		}
	}
	for id, m := range w.machines {
		what := w.has(m.server)
		if m.empty || len(what) == 0 || w.given[m.server] && !w.unrestored(m.server) {
			continue
		}
		why := strings.Join(what, ", ")
		w.refuses(s.MayDelete(ctx, "hetzner", server.ResourceServer, id), "machine %s: %s", id, why)
		ip := "i-" + string(m.server)
		if !w.given[m.server] && !w.lost[m.server] && !w.unrestored(m.server) && !w.imported(m.server) {
			w.refuses(s.MayDelete(ctx, "hetzner", server.ResourcePrimaryIP, ip), "address %s: %s", ip, why)
		}
	}
	for id, v := range w.volumes {
		if !v.gone || v.kept {
			w.refuses(s.MayDelete(ctx, "hetzner", server.ResourceVolume, "v-"+id), "volume %s", id)
		}
	}
	for id, b := range w.backups {
		if !b.gone || b.kept {
			w.refuses(s.MayDeleteObject(ctx, b.key+"site.age"), "backup %s", id)
			w.refuses(s.MayDeleteObject(ctx, b.key+"manifest.json"), "the manifest of %s", id)
		}
	}
	for id, c := range w.snapshots {
		if !c.gone || c.kept {
			w.refuses(s.MayForget(ctx, id), "snapshot %s", id)
		}
	}
}

// step is one operation. Drawn from bits, each is as likely; runs continue for all tenants, since single steps would
// seldom come to their ends.
func (w *heldWorld) step() {
	one := func(f func(*heldTenant)) func() {
		return func() {
			_, h := drawn(w, w.tenants)
			f(h)
		}
	}
	all := func(f func(*heldTenant)) func() {
		return func() {
			for _, id := range slices.Sorted(maps.Keys(w.tenants)) {
				f(w.tenants[id])
			}
		}
	}
	continues := func(h *heldTenant) {
		if h.move != nil {
			w.moveTenant(h)
		}
	}
	operations := []func(){
		all(w.provision), all(w.provision), all(w.provision), all(continues), all(continues), all(continues),
		all(continues), func() { all(w.purge)(); all(w.clear)() }, w.importAgain, w.createTenant, one(w.failTenant),
		one(w.changeTenant), one(w.changeTenant),
		one(w.changeTenant), one(w.timer), one(w.timer), one(w.moveTenant), one(w.moveTenant), one(w.backup),
		one(w.snapshot), one(w.restoreElsewhere), one(w.restoreElsewhere), w.loseServer, w.changeServer, w.changeServer,
		w.destroy, w.destroy, w.volume, w.volume, w.changeBackup, w.deleteSnapshot,
		w.undeleteSnapshot,
		func() { rapid.SampledFrom([]func(){w.freeze, w.prune, w.instance}).Draw(w.t, "rest")() },
	}
	op := 0
	for range 5 {
		op <<= 1
		if rapid.Bool().Draw(w.t, "op") {
			op++
		}
	}
	operations[op]()
	w.protects()
}

// TestNoOperationOpensTheGate plays random operations of callers, runs, timers and looks, and asks the gate again and
// again about all that is live, or the only copy of something, by a model of the world. It refuses unless a caller has
// accepted the end.
func TestNoOperationOpensTheGate(t *testing.T) {
	t.Parallel()
	s, done := heldStore(t), map[string]int{}
	deep.Check(t, 15, func(rt *rapid.T) {
		require.NoError(rt, s.Try(context.Background(), func(ctx context.Context) error {
			w := &heldWorld{
				t: rt, ctx: ctx, s: s, done: done,
				tenants: map[prego.TenantID]*heldTenant{}, machines: map[string]*heldMachine{},
				given: map[prego.ServerID]bool{}, lost: map[prego.ServerID]bool{},
				instances: map[prego.ServerID]bool{}, volumes: map[string]*heldCopy{},
				backups: map[string]*heldCopy{}, snapshots: map[string]*heldCopy{},
			}
			for i := range heldServers {
				id := prego.ServerID(fmt.Sprintf("s-%d", i))
				w.machines["m-"+string(id)] = &heldMachine{server: id}
			}
			for range 4 { // most cases need some tenants with sites
				w.createTenant()
			}
			for _, id := range slices.Sorted(maps.Keys(w.tenants)) {
				for range 3 {
					w.provision(w.tenants[id])
				}
				w.backup(w.tenants[id])
			}
			for range 25 { // a check costs more than the steps
				for range rapid.IntRange(1, 4).Draw(rt, "steps") {
					w.step()
				}
				w.check()
			}
			return nil
		}))
	})
	t.Logf("%v", done)
}
