package activities

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

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
	m, err := a.Store.MoveRecord(ctx, in.MoveID)
	return m.ToServerID, err
}

// FreeMoved lets the site write at its new place.
func (a *Moves) FreeMoved(ctx context.Context, id prego.MoveID) error {
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

// MoveOpened records that the edges send all requests to the new place.
func (a *Moves) MoveOpened(ctx context.Context, id prego.MoveID) error {
	if err := a.Store.MoveOpened(ctx, id); err != nil {
		return err
	}
	m, err := a.Store.MoveRecord(ctx, id)
	if err == nil {
		a.wake(ctx, m.Move)
	}
	return err
}

func (a *Moves) wake(ctx context.Context, m tenant.Move) {
	if m.MaintenanceOf == "" {
		return
	}
	if err := a.Runs.WakeRuns(ctx, []string{server.MaintenanceWorkflowID(m.MaintenanceOf)}); err != nil {
		a.Log.Warn("the maintenance is not woken; it looks by itself", zap.String("server_id", string(m.MaintenanceOf)), zap.Error(err))
	}
}

// MoveRest is how long the old place is kept; Returned is set if the tenant uses it again.
type MoveRest struct {
	For      time.Duration `json:"for,omitempty"`
	Returned bool          `json:"returned,omitempty"`
}

// RestMove reads how long a tenant's old place is kept. Losing the new place also ends that.
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
	m, err := a.read(ctx, id)
	if err == nil && m.Crosses && m.State == tenant.MoveSwitched {
		// The edges before sent people to the old place until the new ones knew the site.
		_, err = a.Edges.AwaitEdges(ctx, AwaitEdgesInput{ServerIDs: []prego.ServerID{m.FromServerID}})
	}
	if err != nil || !m.MovesServer || m.State != tenant.MoveSwitched || m.FromStatus == string(server.Terminated) || m.ToStatus == string(server.Terminated) || !m.There() {
		return err
	}
	if err := prego.Sleep(ctx, a.Settings.Settle); err != nil {
		return err
	}
	return a.shipLate(ctx, m)
}

// shipLate copies files that the site received at its old place later. A cleared site has none.
func (a *Moves) shipLate(ctx context.Context, m moving) error {
	_, err := a.ship(ctx, m, archiveLate, "missing")
	if isBecause(err, prego.Reason(wire.FailedNoSite)) {
		return nil
	}
	return err
}

// ClearMove clears the tenant's site and data on the old server, and the move's own files.
func (a *Moves) ClearMove(ctx context.Context, id prego.MoveID) error {
	m, err := a.read(ctx, id)
	if err != nil || m.State != tenant.MoveSwitched {
		return err
	}
	if err := m.awaitReplacement(); err != nil {
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
		// The old data goes only after the site opens with the new.
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
// also there.
func (a *Moves) leave(ctx context.Context, m moving, t tenant.Record) error {
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

func (a *Moves) dropPacked(ctx context.Context, m moving, t tenant.Record) error {
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

// UndoMove leaves the tenant where it is, and leaves nothing at its planned place.
func (a *Moves) UndoMove(ctx context.Context, id prego.MoveID) error {
	m, err := a.read(ctx, id)
	if err != nil || !m.State.Undoable() || m.State == tenant.MoveQueued {
		return err
	}
	if err := m.awaitReplacement(); err != nil {
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
