package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"filippo.io/age"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// The archives of a move.
const (
	archiveAll   = 1 // while the site serves
	archiveDelta = 2 // while it is held
	archiveLate  = 3 // of requests that were under way when it switched
)

func archiveName(id prego.MoveID, n int) string { return string(id) + "-" + strconv.Itoa(n) }

// CopySite copies the whole site while it serves, and returns how many bytes were sent.
func (a *Moves) CopySite(ctx context.Context, id prego.MoveID) (int64, error) {
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
	// A frozen database has arrived except for the last archive.
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

// pack has the host before seal an archive, and reads its report into packed, which holds seal. Only this
// call knows the archive's key: a repeated call makes a new archive.
func (a *Moves) pack(
	ctx context.Context, m moving, verb, name, what string, packed any, seal *wire.SealedBackup, more ...string,
) (key string, err error) {
	made, err := age.GenerateX25519Identity()
	if err != nil {
		return "", err
	}
	args := append([]string{"--site", m.Site, verb, name, made.Recipient().String()}, more...)
	out, err := a.run(ctx, m, m.from, "pack-"+name, a.Tenants.Settings.SiteTimeout, nil, args...)
	if err != nil {
		return "", err
	}
	err = json.Unmarshal([]byte(out), packed)
	seal.SHA256, seal.PlainSHA256 = wire.Ungrouped(seal.SHA256), wire.Ungrouped(seal.PlainSHA256)
	whole := seal.Name == name && seal.Bytes > 0
	if err != nil || !whole || !sha256Hex.MatchString(seal.SHA256) || !sha256Hex.MatchString(seal.PlainSHA256) {
		return "", permanentError(ErrTypeCommand, "the host's report of "+what+" can't be read", nil)
	}
	return made.String(), nil
}

// ship brings an archive of the site from one host to the other.
func (a *Moves) ship(ctx context.Context, m moving, n int, how string) (int64, error) {
	name := archiveName(m.MoveID, n)
	var since []string
	if n > archiveAll {
		since = append(since, archiveName(m.MoveID, n-1))
	}
	var packed wire.PackedSite
	key, err := a.pack(ctx, m, "pack-site", name, "what it packed", &packed, &packed.SealedBackup, since...)
	if err != nil {
		return 0, err
	}
	if how == "missing" && packed.Changed == 0 {
		return 0, nil
	}
	a.Tenants.hook("move/packed")
	if err := a.carry(ctx, m, name, packed.Bytes); err != nil {
		return 0, err
	}
	a.Tenants.hook("move/carried")
	_, err = a.run(ctx, m, m.to, "unpack-"+name, a.Tenants.Settings.SiteTimeout, map[string]string{wire.SecretBackupIdentity: key},
		"--site", m.Site, "unpack-site", name, packed.SHA256, packed.PlainSHA256, how)
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
	in := tenant.BackupRecord{Backup: tenant.Backup{Bytes: bytes, Parts: int((bytes + part - 1) / part)}, PartBytes: part}
	err = a.pieces(ctx, m, m.from, "upload", name, in, func(r *wire.TransferRequest, p wire.Piece) (err error) {
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
	if err := a.pieces(ctx, m, m.to, "download", name, in, func(r *wire.TransferRequest, p wire.Piece) error {
		p.URL = url
		r.Download = append(r.Download, p)
		return nil
	}); err != nil {
		return err
	}
	return ofStorage(b.Objects.Delete(ctx, object))
}

// pieces has a host transfer all pieces of an archive, some at a time. While the move can be undone, a full
// disk ends it, which makes room on it again.
func (a *Moves) pieces(ctx context.Context, m moving, t tenant.Record, verb, name string, of tenant.BackupRecord, add func(*wire.TransferRequest, wire.Piece) error) error {
	most := min(batchPieces, int(max(1, batchBytes/of.PartBytes)))
	for next := 1; next <= of.Parts; {
		in := wire.TransferRequest{Site: m.Site, Backup: name}
		for n := 0; n < most && next <= of.Parts; n++ {
			offset, bytes := partOf(of, next)
			if err := add(&in, wire.Piece{Number: next, Offset: offset, Bytes: bytes}); err != nil {
				return ofStorage(err)
			}
			next++
		}
		out, err := a.Backups.transfer(ctx, atOf(t), verb, name+"-"+thisCall(ctx), in)
		if err != nil {
			return err
		}
		if f := out.Failed; f != nil {
			return because(f.Code == wire.FailedDiskFull && m.State.Undoable(), prego.Reason(f.Code), fmt.Sprintf("piece %d: %s: %s", f.Number, f.Code, f.Message))
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

// CatchUp holds the site, copies the changes, and makes and tests the site at its new place. It
// returns the bytes sent.
func (a *Moves) CatchUp(ctx context.Context, id prego.MoveID) (int64, error) {
	m, err := a.undoable(ctx, id)
	if err != nil {
		return 0, err
	}
	within := a.Tenants.Settings.CommandTimeout
	if err := a.hold(ctx, m); err != nil {
		return 0, err
	}
	var bytes int64
	if m.MovesServer {
		if bytes, err = a.ship(ctx, m, archiveDelta, "all"); err != nil {
			return 0, err
		}
	}
	if m.MovesData() {
		last, err := a.shipData(ctx, m, m.DataArchives+1, m.DataArchives, true)
		if err != nil {
			return 0, permanentIf(err, wire.FailedDiffers)
		}
		bytes += last.Bytes
	}
	a.Tenants.hook("move/caught-up")
	if !m.MovesServer { // the site is where it was, and goes to its data after the switch
		return bytes, a.keep(ctx, m)
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
	if _, err := a.run(ctx, m, m.to, "check", within, nil, "--site", m.Site, "list-apps"); answeredNo(err) {
		return 0, because(true, tenant.ReasonMoveCheck, fmt.Sprintf("the site does not open on %s: %v", m.ToServerID, err))
	} else if err != nil {
		return 0, err
	}
	a.Tenants.hook("move/settled")
	return bytes, a.keep(ctx, m)
}
