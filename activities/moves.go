package activities

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// MoveSettings are the numbers of moves.
type MoveSettings struct {
	CopyFor   time.Duration // how long copying may take while the site serves
	FreezeFor time.Duration // how long the site may be held before the move is undone
	// FreezeSlack is how much longer the hosts hold the site before they free it by themselves, because no control plane
	// works. It is longer than a command may be on its way.
	FreezeSlack time.Duration
	Settle      time.Duration // for requests that were under way when it switched
	Grace       time.Duration // how long the old server keeps what it had
	PassOn      time.Duration // how long edges of the network before pass on what still reaches them, at least
	Quiet       time.Duration
}

// Moves are the steps that bring a tenant to another place: its site's directory to another app
// server, its database to another shard, its cache to another pool, or some of these. Moved parts
// go through object storage; parts that stay get new access rules. See move_data.go for databases
// and caches.
type Moves struct {
	Store    *store.Store
	Tenants  *Tenants
	Backups  *Backups // whose storage and hosts are used
	Runs     Runs
	Edges    *Edges
	Settings MoveSettings
	Metrics  *MoveMetrics
	Log      *zap.Logger
}

// MoveMetrics count moves.
type MoveMetrics struct {
	Ended    *prometheus.CounterVec // by outcome: done, cancelled, or the reason
	Downtime prometheus.Histogram   // seconds without writes
}

// NewMoveMetrics registers them.
func NewMoveMetrics(reg prometheus.Registerer) *MoveMetrics {
	m := &MoveMetrics{
		Ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_tenant_moves_total", Help: "Moves of tenants that ended, by outcome: done, cancelled, or the reason of failure."}, []string{"outcome"}),
		Downtime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "prego_tenant_move_downtime_seconds", Help: "Seconds without write access to a moved site.", Buckets: []float64{.25, .5, 1, 2, 5, 10, 30, 60},
		}),
	}
	reg.MustRegister(m.Ended, m.Downtime)
	return m
}

// MovePlan is what a run of a move needs of its row.
type MovePlan struct {
	State     tenant.MoveState `json:"state"`
	OrgID     prego.OrgID      `json:"org_id"`
	TenantID  prego.TenantID   `json:"tenant_id"`
	From      prego.ServerID   `json:"from"`
	To        prego.ServerID   `json:"to,omitempty"`
	Cancelled bool             `json:"cancelled,omitempty"`
	Returned  bool             `json:"returned,omitempty"` // the new place was lost after the switch
	Step      time.Duration    `json:"step"`
	CopyFor   time.Duration    `json:"copy_for"`
	FreezeFor time.Duration    `json:"freeze_for"`
}

// PlanMove reads a move's row.
func (a *Moves) PlanMove(ctx context.Context, id prego.MoveID) (MovePlan, error) {
	m, err := a.Store.MoveRecord(ctx, id)
	s := a.Settings
	return MovePlan{
		State: m.State, OrgID: m.OrgID, TenantID: m.TenantID, From: m.FromServerID, To: m.ToServerID, Cancelled: m.CancelRequestedAt != nil, Returned: m.Returned && !m.State.Ended(),
		Step: a.Tenants.Settings.StepTimeout, CopyFor: s.CopyFor, FreezeFor: s.FreezeFor,
	}, permanentIfCoded(err)
}

// moving is a move with its tenant as seen from both ends.
type moving struct {
	tenant.MoveRecord
	from, to tenant.Record
	// unreplaced: the tenant's place is lost, and no restored site stands in for it yet. What the move has on other
	// servers may be the newest copy of its data.
	unreplaced bool
}

// awaitReplacement lets a lost tenant be restored before what its move has left is erased.
func (m moving) awaitReplacement() error {
	if !m.unreplaced {
		return nil
	}
	pause := movingRetry
	if m.from.State == tenant.Failed { // its restore failed: the next one is an operator's
		pause = time.Minute
	}
	return temporal.NewApplicationErrorWithOptions(fmt.Sprintf("tenant %s is lost: what it has on %s and %s stays until it is restored", m.TenantID, m.FromServerID, m.ToServerID), ErrTypeMoving,
		temporal.ApplicationErrorOptions{NextRetryDelay: pause})
}

func (a *Moves) read(ctx context.Context, id prego.MoveID) (m moving, err error) {
	if m.MoveRecord, err = a.Store.MoveRecord(ctx, id); err != nil {
		return m, permanentIfCoded(err)
	}
	t, err := a.Tenants.Store.TenantRecord(ctx, m.TenantID)
	if err != nil {
		return m, fromStore(err)
	}
	m.unreplaced = t.LostAt != nil && t.Site == "" && (t.State == tenant.Failed || t.State == tenant.Provisioning)
	at := func(id prego.ServerID, host, address, status string) tenant.Record {
		out := t
		al := tenant.Allocation{AllocationID: m.AllocationID, TenantID: m.TenantID, DatabaseName: m.DatabaseName}
		if t.Allocation != nil {
			al = *t.Allocation
		}
		al.AppServerID = id
		out.Allocation, out.AppServerHost, out.AppServerAddress, out.AppServerStatus = &al, host, address, server.Status(status)
		out.Site, out.Held = m.Site, false
		return out
	}
	m.from, m.to = at(m.FromServerID, m.FromHost, m.FromAddress, m.FromStatus), at(m.ToServerID, m.ToHost, m.ToAddress, m.ToStatus)
	m.from.Shard, m.from.Pool = m.FromShard, m.FromPool
	m.from.Allocation.DBShardID, m.from.Allocation.RedisPoolID = m.FromShardID, m.FromPoolID
	m.from.Allocation.OnShard, m.from.Allocation.OnPool = m.FromOnShard, m.FromOnPool
	m.to.Shard, m.to.Pool = m.from.Shard, m.from.Pool
	m.to.Allocation.OnShard, m.to.Allocation.OnPool = m.FromOnShard, m.FromOnPool
	if m.MovesShard {
		m.to.Shard, m.to.Allocation.OnShard = m.ToShard, m.ToRole == prego.RoleApp
	}
	if m.MovesPool {
		m.to.Pool, m.to.Allocation.OnPool = m.ToPool, m.ToRole == prego.RoleApp
	}
	return m, nil
}

// undoable is read for steps that come before the switch.
func (a *Moves) undoable(ctx context.Context, id prego.MoveID) (moving, error) {
	m, err := a.read(ctx, id)
	switch {
	case err != nil:
		return m, err
	case !m.State.Undoable() || !m.TenantState.HasSite() || !m.Here():
		return m, because(true, tenant.ReasonMoveOvertaken, fmt.Sprintf("tenant %s is %s on server %s, and the move %s", m.TenantID, m.TenantState, m.AllocationServer, m.State))
	case m.ToServerID != "" && (m.ToClosed || m.MovesServer && m.ToStatus != string(server.Active)):
		return m, because(true, tenant.ReasonMoveTarget, fmt.Sprintf("%s takes no more tenants", m.To()))
	}
	return m, nil
}

// run has a host run a command for a move, and returns what it printed.
func (a *Moves) run(ctx context.Context, m moving, t tenant.Record, what string, timeout time.Duration, secrets map[string]string, args ...string) (string, error) {
	c := command(t, a.audit(ctx, m, string(t.Allocation.AppServerID)+"-"+what), timeout, args...)
	c.Secrets = secrets
	out, err := a.Tenants.bench(ctx, c)
	return out, verbReason(err)
}

// PlaceMove chooses the server and reserves it.
func (a *Moves) PlaceMove(ctx context.Context, id prego.MoveID) error {
	m, err := a.undoable(ctx, id)
	if err != nil || m.State != tenant.MoveQueued {
		return err
	}
	if a.Backups.Objects == nil {
		return because(true, tenant.ReasonNoStorage, "no object storage is configured (PREGO_BACKUP_ENDPOINT), and sites are moved through it")
	}
	for race := 0; ; race++ {
		p, err := a.Tenants.Placer.PlaceMove(ctx, m.from, m.Move)
		if code := prego.CodeOf(err); err != nil && code != prego.CodeInternal {
			if now, err := a.Store.MoveRecord(ctx, id); err != nil || now.State != tenant.MoveQueued {
				return err // an earlier attempt, which has not ended yet, has taken the place
			}
			return because(true, prego.Reason(code), err.Error())
		}
		if err != nil {
			return err
		}
		ok, err := a.Store.ReserveMove(ctx, id, p)
		if err != nil {
			return fromStore(err)
		}
		if ok {
			a.Tenants.hook("move/placed")
			return nil
		}
		if race >= maxMoveRaces {
			return temporal.NewApplicationError(fmt.Sprintf("%s on shard %s and in pool %s does not take the tenant: it was taken meanwhile, has another image, or is being updated", p.ServerID, p.ShardID, p.PoolID), string(prego.CodeInsufficientResources))
		}
	}
}

// maxMoveRaces is how often a place may be taken by others before a step waits.
const maxMoveRaces = 5

// PrepareMove has the new server let in at shard and pool, makes database and user there if they
// are others, and has the site expected.
func (a *Moves) PrepareMove(ctx context.Context, id prego.MoveID) error {
	m, err := a.undoable(ctx, id)
	if err != nil {
		return err
	}
	a.Tenants.hook("move/prepare")
	for _, host := range []struct {
		used bool
		at   tenant.DataHost
	}{{m.to.Allocation.OnShard, m.to.Shard}, {m.to.Allocation.OnPool, m.to.Pool}} {
		if !host.used {
			continue
		}
		if err := a.Tenants.awaitPeers(ctx, host.at.ServerID); err != nil {
			return err
		}
	}
	if m.MovesServer {
		if _, err := a.run(ctx, m, m.to, "expect", a.Tenants.Settings.CommandTimeout, nil, "expect-site", m.Site, "--db-name", m.DatabaseName); err != nil {
			return err
		}
	}
	switch {
	case m.MovesData():
		err = a.prepareData(ctx, m)
	case m.MovesServer:
		secret := a.Tenants.databaseSecret(m.DatabaseName, m.from.Allocation.PasswordVersion)
		_, err = a.Tenants.bench(ctx, a.Tenants.dataCommand(m.from.Shard, wire.KindMariaDB, a.audit(ctx, m, "admit"), secret, "admit-database", m.DatabaseName, clientAddress(m.ToAddress), string(m.ToServerID)))
	}
	if err == nil && m.MovesPool && m.to.Allocation.OnPool {
		err = a.makeCache(ctx, m)
	}
	return err
}

func (a *Moves) audit(ctx context.Context, m moving, what string) string {
	return fmt.Sprintf("%s-%s-%s", m.MoveID, what, thisCall(ctx))
}

// thisCall is of one attempt of one step of one run: a repeated request has another key and is
// another command.
func thisCall(ctx context.Context) string {
	info := activity.GetInfo(ctx)
	run := info.WorkflowExecution.RunID
	return fmt.Sprintf("%s-%s-%d", run[strings.LastIndexByte(run, '-')+1:], info.ActivityID, info.Attempt)
}

// MoveEnd is how a move ended.
type MoveEnd struct {
	MoveID  prego.MoveID     `json:"move_id"`
	State   tenant.MoveState `json:"state"`
	Reason  prego.Reason     `json:"reason,omitempty"`
	Message string           `json:"message,omitempty"`
}

// FinishMove records it, and gives back the room that the move took.
func (a *Moves) FinishMove(ctx context.Context, in MoveEnd) (tenant.MoveResult, error) {
	m, err := a.Store.FinishMove(ctx, in.MoveID, in.State, in.Reason, in.Message)
	if err != nil {
		return tenant.MoveResult{}, err
	}
	a.wake(ctx, m)
	out := tenant.MoveResult{State: m.State, Reason: m.Reason, Message: m.Message}
	if m.DowntimeMS != nil {
		out.DowntimeMS = *m.DowntimeMS
		a.Metrics.Downtime.Observe(float64(out.DowntimeMS) / 1000)
	}
	a.Metrics.Ended.WithLabelValues(cmp.Or(string(m.Reason), string(m.State))).Inc()
	return out, nil
}
