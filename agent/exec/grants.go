package exec

import (
	"context"
	"database/sql"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/resp"
	"github.com/prego/prego/agent/wire"
)

// grantVerbs are mariadb's verbs on a shard that need more than the executor's user may do
// itself. Each is a procedure that runs as root, see grantsSQL: whoever gets hold of that
// user can make and drop databases of tenants, and neither read one nor become anybody else.
var grantVerbs = map[string]func(k *policy.Command) (statement string, args []any){
	"grant-database": func(k *policy.Command) (string, []any) {
		earlier := ""
		if p := k.In.Secrets[wire.SecretEarlierPassword]; p != "" {
			earlier = host.NativePassword(p)
		}
		return "CALL prego.grant_database(?, ?, ?, ?, ?)", []any{k.In.Args[1], k.In.Args[2], k.In.Args[3], host.NativePassword(k.In.Secrets[wire.SecretDatabasePassword]), earlier}
	},
	"admit-database": func(k *policy.Command) (string, []any) {
		return "CALL prego.admit_database(?, ?, ?, ?)", []any{k.In.Args[1], k.In.Args[2], k.In.Args[3], host.NativePassword(k.In.Secrets[wire.SecretDatabasePassword])}
	},
	"freeze-database": func(k *policy.Command) (string, []any) { return "CALL prego.freeze_database(?)", []any{k.In.Args[1]} },
	"thaw-database":   func(k *policy.Command) (string, []any) { return "CALL prego.thaw_database(?)", []any{k.In.Args[1]} },
	"erase-database":  func(k *policy.Command) (string, []any) { return "CALL prego.erase_database(?)", []any{k.In.Args[1]} },
}

func callGrant(ctx context.Context, db *sql.DB, k *policy.Command) error {
	statement, args := grantVerbs[k.Verb](k)
	_, err := db.ExecContext(ctx, statement, args...)
	return err
}

// tenantACL are the rights of a tenant's user in a Redis pool: the commands that Frappe gives
// its cache (frappe/utils/redis_wrapper.py, frappe/rate_limiter.py), on keys that begin with
// the name of the tenant's database, in one of the server's databases. KEYS, which Frappe
// uses a lot, lists keys whatever the key patterns say, and all that a database has: a
// database of its own keeps it to the tenant's, and quick.
func tenantACL(name, cacheDB, password string) []string {
	return []string{
		"ACL", "SETUSER", name, "reset", "on", host.RedisPassword(password), "resetkeys", "~" + name + "|*", "resetchannels",
		"-@all", "+@string", "+@hash", "+@list", "+@set", "+@sortedset", "+@keyspace", "+@connection", "+@transaction",
		"-@dangerous", "-@admin", "-@blocking", "-@scripting", "-move", "-copy", "-swapdb", "+keys", "-select", "+select|" + cacheDB,
	}
}

// redisUser does what a pool's user verbs ask for. Each can be repeated; the users are on
// disk when it succeeds.
func redisUser(do func(args ...string) (any, error), k *policy.Command) error {
	switch k.Verb {
	case "create-user":
		if _, err := do(tenantACL(k.In.Args[1], k.In.Args[2], k.In.Secrets[wire.SecretCachePassword])...); err != nil {
			return err
		}
	case "erase-user":
		if _, err := do("ACL", "DELUSER", k.In.Args[1]); err != nil {
			return err
		}
		if err := eraseKeys(do, k.In.Args[2], k.In.Args[1]+"|*"); err != nil {
			return err
		}
	}
	_, err := do("ACL", "SAVE")
	return err
}

// eraseKeys removes keys from one of the server's databases.
func eraseKeys(do func(args ...string) (any, error), cacheDB, pattern string) error {
	if _, err := do("SELECT", cacheDB); err != nil {
		return err
	}
	return resp.Scan(do, pattern, func(keys []string) error {
		_, err := do(append([]string{"UNLINK"}, keys...)...)
		return err
	})
}
