package activities

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// A site of an app server has its database on a shard and its cache in a Redis pool
// (docs/adr/0029). Their agents make and drop its users there; the app server's agent is
// given the users' passwords, and connects the site.

// Passwords derives the passwords of tenants: a repeated step gets the same one.
type Passwords interface {
	// Password is that of a use, "database" or "cache", of a database by its name.
	Password(use, name string, version int) string
}

// Uses of Passwords.
const (
	useDatabase = "database"
	useCache    = "cache"
)

// awaitPeers waits until a server lets in its users.
func (a *Tenants) awaitPeers(ctx context.Context, id prego.ServerID) error {
	if a.AwaitPeers == nil {
		return nil
	}
	return a.AwaitPeers(ctx, AwaitPeersInput{ServerIDs: []prego.ServerID{id}})
}

// clientAddress is where a server's connections come from, as the other end sees it. Hosts
// that are processes of the simulator have addresses on one loopback, whose connections all
// come from one address.
func clientAddress(private string) string {
	if ip, err := netip.ParseAddr(private); err == nil && ip.IsLoopback() {
		return "127.0.0.1"
	}
	return private
}

// dataCommand is a command on a shard or in a pool. It belongs to no site, and so to no
// tenant.
func (a *Tenants) dataCommand(on tenant.DataHost, kind wire.CommandKind, auditID string, secrets map[string]string, args ...string) server.BenchCommand {
	return server.BenchCommand{
		Kind: string(kind), ServerID: on.ServerID, Addr: on.Host, AuditID: auditID, Timeout: a.Settings.CommandTimeout, Secrets: secrets, Args: args,
	}
}

// grantDatabase makes a site's database and its user on the shard, with access only from the app
// server.
func (a *Tenants) grantDatabase(on tenant.DataHost, auditID, name string, app prego.ServerID, address string, secrets map[string]string) server.BenchCommand {
	return a.dataCommand(on, wire.KindMariaDB, auditID, secrets, "grant-database", name, clientAddress(address), string(app))
}

func (a *Tenants) databaseSecret(name string, version int) map[string]string {
	return map[string]string{wire.SecretDatabasePassword: a.Passwords.Password(useDatabase, name, version)}
}

func (a *Tenants) cacheSecret(name string, version int) map[string]string {
	return map[string]string{wire.SecretCachePassword: a.Passwords.Password(useCache, name, version)}
}

// newSite is the command that makes a site, and what its database takes to be there first.
func (a *Tenants) newSite(app server.BenchCommand, shard *tenant.DataHost, site, name string, version int) server.BenchCommand {
	app.Timeout, app.Args = a.Settings.SiteTimeout, []string{"new-site", site, "--db-name", name}
	if shard != nil {
		app.Args = append(app.Args, "--db-host", shard.Address)
		app.Secrets = a.databaseSecret(name, version)
	}
	return app
}

// ensureDatabase makes a tenant's database on its shard, for a site that is made on demand.
// That of a pool site was made with it.
func (a *Tenants) ensureDatabase(ctx context.Context, t tenant.Record) error {
	al := t.Allocation
	if !al.OnShard || al.PoolSiteID != "" {
		return nil
	}
	if err := a.awaitPeers(ctx, t.Shard.ServerID); err != nil {
		return err
	}
	_, err := a.bench(ctx, a.grantDatabase(t.Shard, auditID(t, "grant-database"), al.DatabaseName, al.AppServerID, t.AppServerAddress, a.databaseSecret(al.DatabaseName, al.PasswordVersion)))
	return err
}

// cacheCommands give a tenant's site its cache in the pool: the user first, then the site's
// address of it.
func (a *Tenants) cacheCommands(t tenant.Record, site, what string) []server.BenchCommand {
	al := t.Allocation
	if !al.OnPool {
		return nil
	}
	number, secret := strconv.Itoa(tenant.CacheDB(al.AllocationID)), a.cacheSecret(al.DatabaseName, al.PasswordVersion)
	connect := command(t, what+"connect-cache", a.Settings.CommandTimeout, "--site", site, "connect-cache", t.Pool.Address, number)
	connect.Secrets = secret
	return []server.BenchCommand{
		a.dataCommand(t.Pool, wire.KindRedisCLI, auditID(t, what+"create-user"), secret, "create-user", al.DatabaseName, number),
		connect,
	}
}

// awaitPool waits until the pool lets in the app server, unless it does already.
func (a *Tenants) awaitPool(ctx context.Context, t tenant.Record) error {
	if !t.Allocation.OnPool || t.PoolKnown {
		return nil
	}
	return a.awaitPeers(ctx, t.Pool.ServerID)
}

// dropData drops a tenant's database and cache, with its users there. Data on a lost server is
// already gone.
func (a *Tenants) dropData(ctx context.Context, t tenant.Record) error {
	al, try := t.Allocation, activity.GetInfo(ctx).Attempt
	if al.OnPool && t.Pool.Status != server.Terminated {
		c := a.dataCommand(t.Pool, wire.KindRedisCLI, auditID(t, fmt.Sprintf("erase-user-%d", try)), nil, "erase-user", al.DatabaseName, strconv.Itoa(tenant.CacheDB(al.AllocationID)))
		if _, err := a.bench(ctx, c); err != nil {
			return err
		}
	}
	if al.OnShard && t.Shard.Status != server.Terminated {
		c := a.dataCommand(t.Shard, wire.KindMariaDB, auditID(t, fmt.Sprintf("erase-database-%d", try)), nil, "erase-database", al.DatabaseName)
		if _, err := a.bench(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// shardOf is the server with the database of a pool site, nil for the app server itself.
func (a *Tenants) shardOf(ctx context.Context, site tenant.PoolSite) (*tenant.DataHost, error) {
	if !site.OnShard {
		return nil, nil //nolint:nilnil // it is on the app server
	}
	h, err := a.Store.ShardHost(ctx, site.DBShardID)
	return &h, err
}

// grantPoolSite makes the database of a pool site on its shard.
func (a *Tenants) grantPoolSite(ctx context.Context, site tenant.PoolSite, srv server.Server, shard *tenant.DataHost) error {
	if shard == nil {
		return nil
	}
	if err := a.awaitPeers(ctx, shard.ServerID); err != nil {
		return err
	}
	_, err := a.bench(ctx, a.grantDatabase(*shard, site.PoolSiteID+"-grant", site.DatabaseName, srv.ServerID, srv.PrivateAddress, a.databaseSecret(site.DatabaseName, 0)))
	return err
}

// erasePoolDatabase drops the database of a pool site from its shard.
func (a *Tenants) erasePoolDatabase(ctx context.Context, site tenant.PoolSite, shard *tenant.DataHost) error {
	if shard == nil || shard.Status != server.Active {
		return nil // the end of a shard takes all with it
	}
	id := fmt.Sprintf("%s-erase-database-%d", site.PoolSiteID, activity.GetInfo(ctx).Attempt)
	_, err := a.bench(ctx, a.dataCommand(*shard, wire.KindMariaDB, id, nil, "erase-database", site.DatabaseName))
	return err
}

// dropLeftDatabases drops the databases of pool sites whose server is gone. It continues after a
// failure, which the next sweep retries.
func (a *Tenants) dropLeftDatabases(ctx context.Context) error {
	sites, err := a.Store.LeftDatabases(ctx)
	if err != nil {
		return err
	}
	var try Attempts
	for site := range Each(&try, sites) {
		shard, err := a.shardOf(ctx, site)
		if err == nil {
			id := fmt.Sprintf("%s-left-%d", site.PoolSiteID, time.Now().Unix())
			_, err = a.bench(ctx, a.dataCommand(*shard, wire.KindMariaDB, id, nil, "erase-database", site.DatabaseName))
		}
		if err == nil {
			err = a.Store.DatabaseErased(ctx, site.PoolSiteID)
		}
		try.OK(err)
	}
	return try.Err()
}
