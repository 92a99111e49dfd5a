package activities

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// MoveStore is the part of Postgres that moves of tenants use.
type MoveStore interface {
	MoveRun(ctx context.Context, id prego.MoveID) (tenant.MoveRun, error)
	ReserveMove(ctx context.Context, id prego.MoveID, p tenant.MovePlace) (ok bool, err error)
	MoveCopied(ctx context.Context, id prego.MoveID, bytes int64, archives int) error
	FreezeMove(ctx context.Context, id prego.MoveID) (waits string, err error)
	SwitchMove(ctx context.Context, id prego.MoveID, delta int64) error
	MoveOpened(ctx context.Context, id prego.MoveID) error
	FinishMove(ctx context.Context, id prego.MoveID, state tenant.MoveState, reason prego.Reason, message string) (tenant.Move, error)
	ClearingMove(ctx context.Context, id prego.MoveID) (ok bool, err error)
	QuietMoves(ctx context.Context, quiet time.Duration) ([]tenant.QuietMove, error)
}

// MoveRuns starts and wakes runs.
type MoveRuns interface {
	EnsureMove(ctx context.Context, id prego.MoveID) (started bool, err error)
	WakeRuns(ctx context.Context, ids []string) error
}

// MoveSettings are the numbers of moves.
type MoveSettings struct {
	CopyFor   time.Duration // how long copying may take while the site serves
	FreezeFor time.Duration // how long the site may be held before the move is undone
	Settle    time.Duration // for requests that were under way when it switched
	Grace     time.Duration // how long the old server keeps what it had
	PassOn    time.Duration // how long edges of the network before pass on what still reaches them, at least
	Quiet     time.Duration
}

// Moves are the steps that bring a tenant to another place: its site's directory to another app
// server, its database to another shard, its cache to another pool, or some of these. What moves
// goes through object storage; for what stays it changes who is let in. See move_data.go for
// databases and caches.
type Moves struct {
	Store    MoveStore
	Tenants  *Tenants
	Backups  *StoredBackups // whose storage and hosts are used
	Runs     MoveRuns
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
			Name: "prego_tenant_move_downtime_seconds", Help: "Seconds for which a site that moved could not be written to.", Buckets: []float64{.25, .5, 1, 2, 5, 10, 30, 60},
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
	Grace     time.Duration    `json:"grace"`
}

// PlanMove reads a move's row.
func (a *Moves) PlanMove(ctx context.Context, id prego.MoveID) (MovePlan, error) {
	m, err := a.Store.MoveRun(ctx, id)
	s := a.Settings
	return MovePlan{
		State: m.State, OrgID: m.OrgID, TenantID: m.TenantID, From: m.FromServerID, To: m.ToServerID, Cancelled: m.CancelRequestedAt != nil, Returned: m.Returned && !m.State.Ended(),
		Step: a.Tenants.Settings.StepTimeout, CopyFor: s.CopyFor, FreezeFor: s.FreezeFor, Grace: s.Grace,
	}, permanentIfCoded(err)
}

// moving is a move with its tenant as seen from both ends.
type moving struct {
	tenant.MoveRun
	from, to tenant.Run
}

func (a *Moves) read(ctx context.Context, id prego.MoveID) (m moving, err error) {
	if m.MoveRun, err = a.Store.MoveRun(ctx, id); err != nil {
		return m, permanentIfCoded(err)
	}
	t, err := a.Tenants.Store.TenantRun(ctx, m.TenantID)
	if err != nil {
		return m, fromTenantStore(err)
	}
	at := func(id prego.ServerID, host, address, status string) tenant.Run {
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
func (a *Moves) run(ctx context.Context, m moving, t tenant.Run, what string, timeout time.Duration, secrets map[string]string, args ...string) (string, error) {
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
			return because(true, prego.Reason(code), err.Error())
		}
		if err != nil {
			return err
		}
		ok, err := a.Store.ReserveMove(ctx, id, p)
		if err != nil {
			return fromTenantStore(err)
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

// PlaceMove decides where a tenant moves to. Nothing is reserved. An error with a placement's code
// says why there is no place.
func (p *Placer) PlaceMove(ctx context.Context, t tenant.Run, m tenant.Move) (tenant.MovePlace, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refresh(ctx, nil); err != nil {
		return tenant.MovePlace{}, err
	}
	r := RequestOf(t)
	r.Region = cmp.Or(m.ToRegion, r.Region)
	d := p.fleet.DecideMove(placement.Move{
		Request: r, From: m.FromServerID, ShardID: cmp.Or(m.FromShardID, t.Allocation.DBShardID), PoolID: cmp.Or(m.FromPoolID, t.Allocation.RedisPoolID),
		Server: m.MovesServer, Shard: m.MovesShard, Pool: m.MovesPool, To: m.Wanted, ToShard: m.WantedShard, ToPool: m.WantedPool,
	})
	if !d.PlacesTenant() {
		return tenant.MovePlace{}, prego.Errorf(d.Code, "%s", d.SelectionReason)
	}
	decision, policy, err := p.logs(d)
	alone := placement.MustBeAlone(r.Plan, d.Mode, false)
	out := tenant.MovePlace{
		ServerID: d.AppServerID, ShardID: d.DBShardID, PoolID: d.RedisPoolID, Override: m.Wanted != "" || m.WantedShard != "" || m.WantedPool != "", Dedicates: d.Dedicates,
		MaxTenants: p.Policy.MaxTenantsPerNode, MemoryMax: p.Policy.MemoryPctMax, DBDiskMax: p.Policy.DBDiskPctMax, RedisMax: p.Policy.RedisMemoryPctMax,
		Alone: alone, OwnPool: alone || r.DedicatedRedis, Decision: decision, Policy: policy, Algorithm: placement.AuditName(d.Mode, d.Algorithm),
	}
	return out, err
}

// PrepareMove has the new server let in at shard and pool, makes database and user there if they
// are others, and has the site expected.
func (a *Moves) PrepareMove(ctx context.Context, id prego.MoveID) error {
	stop := keepAlive(ctx)
	defer stop()
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

// thisCall is of one attempt of one step of one run: what is asked for again has another key, and
// is another command.
func thisCall(ctx context.Context) string {
	info := activity.GetInfo(ctx)
	run := info.WorkflowExecution.RunID
	return fmt.Sprintf("%s-%s-%d", run[strings.LastIndexByte(run, '-')+1:], info.ActivityID, info.Attempt)
}

// The archives of a move.
const (
	archiveAll   = 1 // while the site serves
	archiveDelta = 2 // while it is held
	archiveLate  = 3 // of requests that were under way when it switched
)

func archiveName(id prego.MoveID, n int) string { return string(id) + "-" + strconv.Itoa(n) }

// CopySite copies the whole site while it serves, and returns how many bytes were sent.
func (a *Moves) CopySite(ctx context.Context, id prego.MoveID) (int64, error) {
	stop := keepAlive(ctx)
	defer stop()
	m, err := a.undoable(ctx, id)
	if err != nil {
		return 0, err
	}
	a.Tenants.hook("move/copy")
	var bytes int64
	if m.MovesServer {
		if bytes, err = a.ship(ctx, m, archiveAll, "all"); err != nil {
			return 0, err
		}
	}
	archives := m.DataArchives
	// A frozen database has arrived but for the last archive.
	if m.MovesData() && (m.State != tenant.MoveFrozen || archives == 0) {
		sent, n, err := a.copyData(ctx, m)
		if err != nil {
			return 0, err
		}
		bytes, archives = bytes+sent, n
	}
	err = a.Store.MoveCopied(ctx, id, bytes, archives)
	a.Tenants.hook("move/copied")
	return bytes, err
}

// ship brings an archive of the site from one host to the other. Who opens it is known to this
// call alone: a repeated one makes the archive anew.
func (a *Moves) ship(ctx context.Context, m moving, n int, how string) (int64, error) {
	name := archiveName(m.MoveID, n)
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return 0, err
	}
	args := []string{"--site", m.Site, "pack-site", name, key.Recipient().String()}
	if n > archiveAll {
		args = append(args, archiveName(m.MoveID, n-1))
	}
	out, err := a.run(ctx, m, m.from, "pack-"+name, a.Tenants.Settings.SiteTimeout, nil, args...)
	if err != nil {
		return 0, err
	}
	var packed wire.PackedSite
	err = json.Unmarshal([]byte(out), &packed)
	sum, plainSum := wire.Ungrouped(packed.SHA256), wire.Ungrouped(packed.PlainSHA256)
	if err != nil || packed.Name != name || packed.Bytes < 1 || !sha256Hex.MatchString(sum) || !sha256Hex.MatchString(plainSum) {
		return 0, permanentError(ErrTypeCommand, "the host's report of what it packed can't be read", nil)
	}
	if how == "missing" && packed.Changed == 0 {
		return 0, nil
	}
	a.Tenants.hook("move/packed")
	if err := a.carry(ctx, m, name, packed.Bytes); err != nil {
		return 0, err
	}
	a.Tenants.hook("move/carried")
	_, err = a.run(ctx, m, m.to, "unpack-"+name, a.Tenants.Settings.SiteTimeout, map[string]string{wire.SecretBackupIdentity: key.String()},
		"--site", m.Site, "unpack-site", name, sum, plainSum, how)
	return packed.Bytes, err
}

// carry brings a sealed archive from one host to the other by way of object storage, where
// nothing of it stays.
func (a *Moves) carry(ctx context.Context, m moving, name string, bytes int64) error {
	b := a.Backups
	if b.Objects == nil {
		return because(true, tenant.ReasonNoStorage, "no object storage is configured (PREGO_BACKUP_ENDPOINT)")
	}
	part := tenant.PartBytes(bytes, b.Settings.PartBytes, b.Settings.MaxParts)
	if part > wire.MaxPiece {
		return because(true, tenant.ReasonStorageRefused, fmt.Sprintf("%d bytes are more than the storage takes in parts of %d", bytes, wire.MaxPiece))
	}
	object := tenant.MoveFolder(b.Settings.Environment, m.MoveID) + name + ".age"
	upload, err := b.Objects.Begin(ctx, object)
	if err != nil {
		return ofStorage(err)
	}
	in := tenant.BackupRun{Backup: tenant.Backup{Bytes: bytes, Parts: int((bytes + part - 1) / part)}, PartBytes: part}
	err = a.pieces(ctx, m.from, "upload", m.Site, name, in, func(r *wire.TransferRequest, p wire.Piece) (err error) {
		p.URL, err = b.Objects.PresignPart(ctx, object, upload, p.Number, b.Settings.URLTTL)
		r.Upload = append(r.Upload, p)
		return err
	})
	if err != nil {
		return err
	}
	parts, err := b.Objects.Parts(ctx, object, upload)
	if err == nil {
		_, err = b.Objects.Complete(ctx, object, upload, parts)
	}
	if err != nil {
		return ofStorage(err)
	}
	a.Tenants.hook("move/uploaded")
	url, err := b.Objects.PresignGet(ctx, object, b.Settings.URLTTL)
	if err != nil {
		return ofStorage(err)
	}
	if err := a.pieces(ctx, m.to, "download", m.Site, name, in, func(r *wire.TransferRequest, p wire.Piece) error {
		p.URL = url
		r.Download = append(r.Download, p)
		return nil
	}); err != nil {
		return err
	}
	return ofStorage(b.Objects.Delete(ctx, object))
}

// pieces has a host transfer all pieces of an archive, some at a time.
func (a *Moves) pieces(ctx context.Context, t tenant.Run, verb, site, name string, of tenant.BackupRun, add func(*wire.TransferRequest, wire.Piece) error) error {
	most := min(batchPieces, int(max(1, batchBytes/of.PartBytes)))
	for next := 1; next <= of.Parts; {
		in := wire.TransferRequest{Site: site, Backup: name}
		for n := 0; n < most && next <= of.Parts; n++ {
			offset, bytes := partOf(of, next)
			if err := add(&in, wire.Piece{Number: next, Offset: offset, Bytes: bytes}); err != nil {
				return ofStorage(err)
			}
			next++
		}
		out, err := a.Backups.transfer(ctx, atOf(t), verb+"-"+name+"-"+thisCall(ctx), in)
		if err != nil {
			return err
		}
		if f := out.Failed; f != nil {
			return because(false, prego.Reason(f.Code), fmt.Sprintf("piece %d: %s: %s", f.Number, f.Code, f.Message))
		}
	}
	return nil
}

// FreezeMove waits until nothing else works on the site, and keeps everything else away.
func (a *Moves) FreezeMove(ctx context.Context, id prego.MoveID) error {
	waits, err := a.Store.FreezeMove(ctx, id)
	switch {
	case errors.Is(err, server.ErrSuperseded):
		return because(true, tenant.ReasonMoveOvertaken, "the tenant has changed, or the move was cancelled")
	case err != nil:
		return err
	case waits != "":
		return temporal.NewApplicationError("the tenant's site cannot be held: "+waits, ErrTypeMoving)
	}
	a.Tenants.hook("move/frozen")
	return nil
}

// CatchUp holds the site, copies what has changed, and makes it a site at its new place, which
// is tried. It returns how many bytes were sent.
func (a *Moves) CatchUp(ctx context.Context, id prego.MoveID) (int64, error) {
	stop := keepAlive(ctx)
	defer stop()
	m, err := a.undoable(ctx, id)
	if err != nil {
		return 0, err
	}
	within := a.Tenants.Settings.CommandTimeout
	if _, err := a.run(ctx, m, m.from, "hold", within, nil, "--site", m.Site, "hold-site"); err != nil {
		return 0, err
	}
	a.Tenants.hook("move/held")
	var bytes int64
	if m.MovesData() {
		if err := a.freezeData(ctx, m); err != nil {
			return 0, err
		}
		a.Tenants.hook("move/data-frozen")
	}
	if m.MovesServer {
		if bytes, err = a.ship(ctx, m, archiveDelta, "all"); err != nil {
			return 0, err
		}
	}
	if m.MovesData() {
		last, err := a.shipData(ctx, m, m.DataArchives+1, true)
		if err != nil {
			return 0, permanentIf(err, wire.FailedDiffers)
		}
		bytes += last.Bytes
	}
	a.Tenants.hook("move/caught-up")
	if !m.MovesServer {
		return bytes, nil // the site is where it was, and goes to its data after the switch
	}
	al := m.to.Allocation
	address := m.to.Shard.Address
	if !al.OnShard {
		address = "here"
	}
	settle := command(m.to, a.audit(ctx, m, "settle"), within, "--site", m.Site, "settle-site", address)
	settle.Secrets = a.Tenants.databaseSecret(m.DatabaseName, al.PasswordVersion)
	cs := []server.BenchCommand{settle}
	if al.OnPool {
		cs = append(cs, a.connectCache(ctx, m, m.to))
	}
	if _, err := a.Tenants.inTurn(ctx, cs...); err != nil {
		return 0, err
	}
	// Frappe opens the site, its database and its cache.
	if _, err := a.run(ctx, m, m.to, "check", within, nil, "--site", m.Site, "list-apps"); err != nil {
		return 0, because(true, tenant.ReasonMoveCheck, fmt.Sprintf("the site does not open on %s: %v", m.ToServerID, err))
	}
	a.Tenants.hook("move/settled")
	return bytes, nil
}

// SwitchInput is a move that has caught up.
type SwitchInput struct {
	MoveID prego.MoveID `json:"move_id"`
	Bytes  int64        `json:"bytes"`
}

// SwitchMove makes the new place the tenant's, and returns its app server.
func (a *Moves) SwitchMove(ctx context.Context, in SwitchInput) (prego.ServerID, error) {
	if err := a.Store.SwitchMove(ctx, in.MoveID, in.Bytes); err != nil {
		if errors.Is(err, server.ErrSuperseded) {
			return "", because(true, tenant.ReasonMoveOvertaken, "the tenant has changed, or the move was cancelled")
		}
		return "", err
	}
	a.Tenants.hook("move/switched")
	m, err := a.Store.MoveRun(ctx, in.MoveID)
	return m.ToServerID, err
}

// FreeMoved lets the site write at its new place.
func (a *Moves) FreeMoved(ctx context.Context, id prego.MoveID) error {
	stop := keepAlive(ctx)
	defer stop()
	m, err := a.read(ctx, id)
	if err != nil || m.State != tenant.MoveSwitched {
		return err
	}
	if m.ToStatus == string(server.Terminated) || !m.There() {
		return nil
	}
	if !m.MovesServer {
		if err := a.connect(ctx, m, m.to); err != nil {
			return err
		}
	}
	_, err = a.run(ctx, m, m.to, "free", a.Tenants.Settings.CommandTimeout, nil, "--site", m.Site, "free-site")
	a.Tenants.hook("move/freed")
	return err
}

// MoveOpened records that the edges send everybody to the new place.
func (a *Moves) MoveOpened(ctx context.Context, id prego.MoveID) error {
	if err := a.Store.MoveOpened(ctx, id); err != nil {
		return err
	}
	m, err := a.Store.MoveRun(ctx, id)
	if err == nil {
		a.wake(ctx, m.Move)
	}
	return err
}

func (a *Moves) wake(ctx context.Context, m tenant.Move) {
	if m.DrainOf == "" {
		return
	}
	if err := a.Runs.WakeRuns(ctx, []string{server.DrainWorkflowID(m.DrainOf)}); err != nil {
		a.Log.Warn("the drain is not woken; it looks by itself", zap.String("server_id", string(m.DrainOf)), zap.Error(err))
	}
}

// MoveRest is for how long the old place is kept; Returned says that it is the tenant's again.
type MoveRest struct {
	For      time.Duration `json:"for,omitempty"`
	Returned bool          `json:"returned,omitempty"`
}

// RestMove reads for how long what a tenant had before is kept: no longer if the new place is lost, too.
func (a *Moves) RestMove(ctx context.Context, id prego.MoveID) (MoveRest, error) {
	m, err := a.read(ctx, id)
	if err != nil || m.State != tenant.MoveSwitched || !m.There() {
		return MoveRest{Returned: m.Returned && !m.State.Ended()}, err
	}
	rest := a.Settings.Grace
	if m.Crosses {
		rest = max(rest, a.Settings.PassOn)
	}
	if m.OpenedAt != nil {
		rest -= time.Since(*m.OpenedAt)
	}
	return MoveRest{For: rest}, nil
}

// SweepLate brings files after that requests wrote which were under way when the site was held.
func (a *Moves) SweepLate(ctx context.Context, id prego.MoveID) error {
	stop := keepAlive(ctx)
	defer stop()
	m, err := a.read(ctx, id)
	if err == nil && m.Crosses && m.State == tenant.MoveSwitched {
		// The edges before sent people to the old place until the new ones knew the site.
		_, err = a.Edges.AwaitEdges(ctx, AwaitEdgesInput{ServerIDs: []prego.ServerID{m.FromServerID}})
	}
	if err != nil || !m.MovesServer || m.State != tenant.MoveSwitched || m.FromStatus == string(server.Terminated) || m.ToStatus == string(server.Terminated) || !m.There() {
		return err
	}
	if err := sleep(ctx, a.Settings.Settle); err != nil {
		return err
	}
	return a.shipLate(ctx, m)
}

// shipLate brings files after that the site has got at its old place. One that is cleared away
// has none.
func (a *Moves) shipLate(ctx context.Context, m moving) error {
	_, err := a.ship(ctx, m, archiveLate, "missing")
	if isBecause(err, prego.Reason(wire.FailedNoSite)) {
		return nil
	}
	return err
}

// ClearMove clears away what the tenant had on the server before, and what the move needed.
func (a *Moves) ClearMove(ctx context.Context, id prego.MoveID) error {
	stop := keepAlive(ctx)
	defer stop()
	m, err := a.read(ctx, id)
	if err != nil || m.State != tenant.MoveSwitched {
		return err
	}
	a.Tenants.hook("move/clear")
	if ok, err := a.Store.ClearingMove(ctx, id); err != nil || !ok {
		return err
	}
	there := m.There() && m.ToStatus != string(server.Terminated)
	if there && m.MovesServer && m.FromStatus != string(server.Terminated) {
		// Of jobs that were queued there, and ran there until now.
		if err := a.shipLate(ctx, m); err != nil {
			return err
		}
	}
	// A site whose cache is lost does not open, and loses nothing else.
	if there && (m.MovesData() || m.MovesPool) && m.to.Pool.Status != server.Terminated {
		// What was before goes only when the site opens with what is now.
		if _, err := a.run(ctx, m, m.to, "proof", a.Tenants.Settings.CommandTimeout, nil, "--site", m.Site, "list-apps"); err != nil {
			return err
		}
	}
	if m.MovesServer && !m.MovesData() && m.There() && m.from.Shard.Status != server.Terminated {
		// Nobody but the new server is let in any more.
		if err := a.grant(ctx, m, m.ToServerID, m.ToAddress); err != nil {
			return err
		}
	}
	if m.MovesServer {
		if err := a.leave(ctx, m, m.from); err != nil {
			return err
		}
	}
	if err := a.eraseData(ctx, m, m.from); err != nil {
		return err
	}
	if there {
		if err := a.dropPacked(ctx, m, m.to); err != nil {
			return err
		}
	}
	a.Tenants.hook("move/cleared")
	return a.forgetObjects(ctx, m)
}

func (a *Moves) grant(ctx context.Context, m moving, app prego.ServerID, address string) error {
	secret := a.Tenants.databaseSecret(m.DatabaseName, m.from.Allocation.PasswordVersion)
	_, err := a.Tenants.bench(ctx, a.Tenants.grantDatabase(m.from.Shard, a.audit(ctx, m, "grant-"+string(app)), m.DatabaseName, app, address, secret))
	return err
}

// leave deletes the site's directory on a server that it is not on, and its database if that is
// there, too.
func (a *Moves) leave(ctx context.Context, m moving, t tenant.Run) error {
	if t.AppServerStatus == server.Terminated || t.Allocation.AppServerID == "" {
		return nil
	}
	verb := "leave-site"
	if !t.Allocation.OnShard {
		verb = "erase-site"
	}
	_, err := a.run(ctx, m, t, "leave", a.Tenants.Settings.SiteTimeout, nil, verb, m.Site, "--db-name", m.DatabaseName)
	return err
}

func (a *Moves) dropPacked(ctx context.Context, m moving, t tenant.Run) error {
	if m.MovesData() {
		_, err := a.run(ctx, m, t, "drop", a.Tenants.Settings.CommandTimeout, nil, "--site", m.Site, "drop-packed", string(m.MoveID), "all")
		return err
	}
	for n := archiveAll; n <= archiveLate; n++ {
		name := archiveName(m.MoveID, n)
		if _, err := a.run(ctx, m, t, "drop-"+name, a.Tenants.Settings.CommandTimeout, nil, "--site", m.Site, "drop-packed", name); err != nil {
			return err
		}
	}
	return nil
}

// forgetObjects deletes what a step that died left in the storage.
func (a *Moves) forgetObjects(ctx context.Context, m moving) error {
	b := a.Backups
	if b.Objects == nil {
		return nil
	}
	folder := tenant.MoveFolder(b.Settings.Environment, m.MoveID)
	uploads, err := b.Objects.Uploads(ctx, folder)
	for _, u := range uploads {
		if err == nil {
			err = b.Objects.Abort(ctx, u.Key, u.ID)
		}
	}
	names := []string{archiveName(m.MoveID, archiveAll), archiveName(m.MoveID, archiveDelta), archiveName(m.MoveID, archiveLate)}
	for n := 1; m.MovesData() && n <= maxDataArchives+1; n++ {
		names = append(names, dataName(m.MoveID, n))
	}
	for _, name := range names {
		if err == nil {
			err = b.Objects.Delete(ctx, folder+name+".age")
		}
	}
	return ofStorage(err)
}

// UndoMove leaves the tenant where it is, and nothing where it was to go.
func (a *Moves) UndoMove(ctx context.Context, id prego.MoveID) error {
	stop := keepAlive(ctx)
	defer stop()
	m, err := a.read(ctx, id)
	if err != nil || !m.State.Undoable() || m.State == tenant.MoveQueued {
		return err
	}
	a.Tenants.hook("move/undo")
	here := m.Here() && m.FromStatus != string(server.Terminated)
	if err := a.vacate(ctx, m); err != nil {
		return err
	}
	// First: the site may write again.
	if m.MovesData() && (here || m.Here() && m.from.Allocation.OnShard) {
		if err := a.thawData(ctx, m); err != nil {
			return err
		}
	}
	if here && m.Returned && !m.MovesServer {
		if err := a.connect(ctx, m, m.from); err != nil {
			return err
		}
	}
	if here {
		if _, err := a.run(ctx, m, m.from, "free", a.Tenants.Settings.CommandTimeout, nil, "--site", m.Site, "free-site"); err != nil {
			return err
		}
		a.Tenants.hook("move/undone-hold")
		if m.MovesData() && (!m.from.Allocation.OnShard || m.from.Shard.Status != server.Terminated) {
			if _, err := a.run(ctx, m, m.from, "forget", a.Tenants.Settings.SiteTimeout, nil, "--site", m.Site, "forget-data"); err != nil {
				return err
			}
		}
		if err := a.dropPacked(ctx, m, m.from); err != nil {
			return err
		}
	}
	if m.MovesServer {
		if err := a.leave(ctx, m, m.to); err != nil {
			return err
		}
	}
	if err := a.eraseData(ctx, m, m.to); err != nil {
		return err
	}
	if m.MovesServer && !m.MovesData() && here && m.from.Shard.Status != server.Terminated {
		if err := a.grant(ctx, m, m.FromServerID, m.FromAddress); err != nil {
			return err
		}
	}
	a.Tenants.hook("move/undone")
	return a.forgetObjects(ctx, m)
}

// vacate closes the site of a tenant that was given back where the move had brought it: it is in use there.
func (a *Moves) vacate(ctx context.Context, m moving) error {
	if !m.Returned || !m.MovesServer || m.ToStatus == string(server.Terminated) {
		return nil
	}
	_, err := a.run(ctx, m, m.to, "vacate", a.Tenants.Settings.CommandTimeout, nil, "--site", m.Site, "hold-site")
	if err != nil && strings.Contains(err.Error(), "does not exist") { // it was cleared away before
		return nil
	}
	return err
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

// LookAtMoves starts the runs of moves that have lost theirs. It is not an activity.
func LookAtMoves(a *Moves) func(context.Context) (prego.LookResult, error) {
	return func(ctx context.Context) (prego.LookResult, error) {
		quiet, err := a.Store.QuietMoves(ctx, a.Settings.Quiet)
		found := false
		for _, m := range quiet {
			started, startErr := a.Runs.EnsureMove(ctx, m.MoveID)
			if startErr == nil && !started && m.Lost { // its run waits for the old place's time to be over
				startErr = a.Runs.WakeRuns(ctx, []string{tenant.MoveWorkflowID(m.MoveID)})
			}
			if startErr != nil {
				return prego.LookResult{Found: found}, startErr
			}
			found = found || started
		}
		return prego.LookResult{Found: found}, err
	}
}
