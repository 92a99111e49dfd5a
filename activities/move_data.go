package activities

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// A database moves as archives that the app server makes, which has its user's certificate: a full
// one while the site serves, then the changes, repeatedly while they shrink. The last archive is
// made after the shard took the right to write from the database's user.

const (
	// maxDataArchives bounds the archives of one copy, while the site serves.
	maxDataArchives = 10
	// quickArchive is how long an archive may take for the next one to be the last.
	quickArchive = 3 * time.Second
)

func dataName(id prego.MoveID, n int) string { return string(id) + "-d" + strconv.Itoa(n) }

func permanentIf(err error, reason string) error {
	if app, ok := errors.AsType[*temporal.ApplicationError](err); isBecause(err, prego.Reason(reason)) && ok {
		return because(true, prego.Reason(reason), app.Message())
	}
	return err
}

// prepareData makes the database at its next place.
func (a *Moves) prepareData(ctx context.Context, m moving) error {
	secret := a.Tenants.databaseSecret(m.DatabaseName, m.to.Allocation.PasswordVersion)
	if !m.to.Allocation.OnShard {
		_, err := a.run(ctx, m, m.to, "make-data", a.Tenants.Settings.CommandTimeout, secret, "--site", m.Site, "make-data")
		return err
	}
	if _, err := a.Tenants.bench(ctx, a.Tenants.grantDatabase(m.to.Shard, a.audit(ctx, m, "grant"), m.DatabaseName, m.ToServerID, m.ToAddress, secret)); err != nil || m.MovesServer {
		return err
	}
	_, err := a.run(ctx, m, m.to, "expect-data", a.Tenants.Settings.CommandTimeout, nil, "--site", m.Site, "expect-data")
	return err
}

// copyData copies the database while it is written to, and returns the number of the last archive.
func (a *Moves) copyData(ctx context.Context, m moving) (bytes int64, n int, err error) {
	since, anew := 0, 0
	for before := time.Duration(0); ; {
		n++
		began := time.Now()
		packed, err := a.shipData(ctx, m, n, since, false)
		// What empties a table leaves no trace but fewer rows.
		if isBecause(err, wire.FailedDiffers) && since > 0 && anew < 2 && n < maxDataArchives {
			since, before = 0, 0
			anew++
			continue
		}
		if err != nil {
			return bytes, n, permanentIf(err, wire.FailedUnsupported)
		}
		a.Tenants.hook("move/data")
		bytes += packed.Bytes
		took := time.Since(began)
		// The first is never the last: many writes can arrive while it is made.
		if since > 0 && (took < quickArchive || before > 0 && took > before*7/10) || n >= maxDataArchives {
			return bytes, n, nil
		}
		if since > 0 {
			before = took
		}
		since = n
	}
}

// shipData brings an archive of the database from one host to the other, or, if the site stays
// on its host, from one of the host's connections to the other.
func (a *Moves) shipData(ctx context.Context, m moving, n, since int, last bool) (packed wire.PackedData, err error) {
	name := dataName(m.MoveID, n)
	var args []string
	if since > 0 {
		args = append(args, dataName(m.MoveID, since))
	}
	if last {
		args = append(args, "last")
	}
	key, err := a.pack(ctx, m, "pack-data", name, "the data that it packed", &packed, &packed.SealedBackup, args...)
	if err != nil {
		return packed, err
	}
	a.Tenants.hook("move/data-packed")
	if m.MovesServer {
		if err := a.carry(ctx, m, name, packed.Bytes); err != nil {
			return packed, err
		}
	}
	a.Tenants.hook("move/data-carried")
	address := m.to.Shard.Address
	if !m.to.Allocation.OnShard {
		address = "here"
	}
	secrets := a.Tenants.databaseSecret(m.DatabaseName, m.to.Allocation.PasswordVersion)
	secrets[wire.SecretBackupIdentity] = key
	_, err = a.run(ctx, m, m.to, "load-"+name, a.Tenants.Settings.SiteTimeout, secrets, "--site", m.Site, "load-data", name, packed.SHA256, packed.PlainSHA256, address)
	return packed, err
}

// hold makes the site read-only at its old place, and blocks all writes to a database that moves, existing sessions
// included. The hosts undo that by themselves when the lease is over.
func (a *Moves) hold(ctx context.Context, m moving) error {
	if held := time.Since(*m.FrozenAt); held > a.Settings.FreezeFor {
		return because(true, tenant.ReasonMoveFailed, fmt.Sprintf("the site was held %s ago, longer than %s",
			held.Round(time.Second), a.Settings.FreezeFor))
	}
	for i, c := range a.holds(ctx, m, "hold", a.Settings.FreezeFor+a.Settings.FreezeSlack) {
		if _, err := a.Tenants.bench(ctx, c); err != nil {
			return verbReason(err)
		}
		a.Tenants.hook([]string{"move/held", "move/data-frozen"}[i])
	}
	return nil
}

// keep has the hosts hold the site until the move frees it: it is about to be switched. If one has freed it, what has
// arrived is not all.
func (a *Moves) keep(ctx context.Context, m moving) error {
	for _, c := range a.holds(ctx, m, "keep", 0) {
		if _, err := a.Tenants.bench(ctx, c); err != nil {
			return err
		}
		a.Tenants.hook("move/kept")
	}
	return nil
}

// holds are the commands of hold and keep.
func (a *Moves) holds(ctx context.Context, m moving, what string, lease time.Duration) []server.BenchCommand {
	onSite := func(what, verb, undo string) server.BenchCommand {
		c := command(m.from, a.audit(ctx, m, string(m.FromServerID)+"-"+what), a.Tenants.Settings.CommandTimeout,
			"--site", m.Site, verb)
		c.Undo, c.Lease = []string{"--site", m.Site, undo}, lease
		return c
	}
	cs := []server.BenchCommand{onSite(what, "hold-site", "free-site")}
	switch {
	case !m.MovesData():
	case !m.from.Allocation.OnShard:
		cs = append(cs, onSite(what+"-data", "freeze-data", "thaw-data"))
	default:
		c := a.Tenants.dataCommand(m.from.Shard, wire.KindMariaDB, a.audit(ctx, m, what+"-data"), nil,
			"freeze-database", m.DatabaseName)
		c.Undo, c.Lease = []string{"thaw-database", m.DatabaseName}, lease
		cs = append(cs, c)
	}
	return cs
}

// thawData lets the database be written to again at its old place.
func (a *Moves) thawData(ctx context.Context, m moving) error {
	if !m.from.Allocation.OnShard {
		_, err := a.run(ctx, m, m.from, "thaw", a.Tenants.Settings.CommandTimeout, nil, "--site", m.Site, "thaw-data")
		return err
	}
	if m.from.Shard.Status == server.Terminated {
		return nil
	}
	c := a.Tenants.dataCommand(m.from.Shard, wire.KindMariaDB, a.audit(ctx, m, "thaw"), nil, "thaw-database", m.DatabaseName)
	_, err := a.Tenants.bench(ctx, c)
	return err
}

// eraseData drops what a tenant has on a shard and in a pool that it does not have any more, or
// did not get after all. A node's goes with its site.
func (a *Moves) eraseData(ctx context.Context, m moving, t tenant.Record) error {
	al := t.Allocation
	if m.MovesPool && al.OnPool && t.Pool.ServerID != "" && t.Pool.Status != server.Terminated {
		c := a.Tenants.dataCommand(t.Pool, wire.KindRedisCLI, a.audit(ctx, m, "erase-user-"+string(t.Pool.ServerID)), nil, "erase-user", m.DatabaseName, strconv.Itoa(tenant.CacheDB(m.AllocationID)))
		if _, err := a.Tenants.bench(ctx, c); err != nil {
			return err
		}
	}
	if m.MovesData() && al.OnShard && t.Shard.ServerID != "" && t.Shard.Status != server.Terminated {
		c := a.Tenants.dataCommand(t.Shard, wire.KindMariaDB, a.audit(ctx, m, "erase-database-"+string(t.Shard.ServerID)), nil, "erase-database", m.DatabaseName)
		if _, err := a.Tenants.bench(ctx, c); err != nil {
			return err
		}
		a.Tenants.hook("move/data-erased")
	}
	return nil
}

// makeCache makes the cache's user in the next pool. The cache itself starts empty.
func (a *Moves) makeCache(ctx context.Context, m moving) error {
	al := m.to.Allocation
	c := a.Tenants.dataCommand(m.to.Pool, wire.KindRedisCLI, a.audit(ctx, m, "create-user"), a.Tenants.cacheSecret(m.DatabaseName, al.PasswordVersion), "create-user", m.DatabaseName, strconv.Itoa(tenant.CacheDB(m.AllocationID)))
	_, err := a.Tenants.bench(ctx, c)
	return err
}

func (a *Moves) connectCache(ctx context.Context, m moving, t tenant.Record) server.BenchCommand {
	c := command(t, a.audit(ctx, m, "connect-cache"), a.Tenants.Settings.CommandTimeout, "--site", m.Site, "connect-cache", t.Pool.Address, strconv.Itoa(tenant.CacheDB(m.AllocationID)))
	c.Secrets = a.Tenants.cacheSecret(m.DatabaseName, t.Allocation.PasswordVersion)
	return c
}

// connect brings a site that stays on its host to its database and its cache, of the new place or of
// the old one.
func (a *Moves) connect(ctx context.Context, m moving, t tenant.Record) error {
	var cs []server.BenchCommand
	if m.MovesData() {
		c := command(t, a.audit(ctx, m, "connect-database"), a.Tenants.Settings.CommandTimeout, "--site", m.Site, "connect-database", t.Shard.Address)
		c.Secrets = a.Tenants.databaseSecret(m.DatabaseName, t.Allocation.PasswordVersion)
		cs = append(cs, c)
	}
	if m.MovesPool && t.Pool.Status != server.Terminated {
		cs = append(cs, a.connectCache(ctx, m, t))
	}
	if _, err := a.Tenants.inTurn(ctx, cs...); err != nil {
		return err
	}
	if m.MovesPool && t.Pool.Status == server.Terminated {
		return nil // without its cache it does not open, until it has another
	}
	if _, err := a.run(ctx, m, t, "check", a.Tenants.Settings.CommandTimeout, nil, "--site", m.Site, "list-apps"); err != nil {
		return fmt.Errorf("the site does not open with its data on %s and its cache in %s: %w", t.Shard.ServerID, t.Pool.ServerID, err)
	}
	a.Tenants.hook("move/connected")
	return nil
}
