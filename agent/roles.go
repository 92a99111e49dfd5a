package agent

import "github.com/prego/prego/agent/wire"

// roleServices says what runs on the hosts of a role, as in the declared stack.
var roleServices = map[string][]string{
	"app":        {"mariadb", "redis", "bench"},
	"node":       {"mariadb", "redis", "bench"},
	"db-shard":   {"mariadb"},
	"redis-pool": {"redis"},
	"edge":       {},
}

// Roles whose hosts serve tenants of others.
const (
	roleShard = "db-shard"
	rolePool  = "redis-pool"
)

// serviceMount is the directory of a role's containers that gets the certificate for
// databases and caches, "" if the role has no use for one. A node keeps both to itself.
func serviceMount(role string) string {
	switch role {
	case roleShard:
		return wire.MariaDBMount
	case rolePool:
		return wire.RedisMount
	case "app":
		return wire.BenchMount
	}
	return ""
}

// servesOthers reports whether hosts of a role have databases or caches of others' tenants.
func servesOthers(role string) bool { return role == roleShard || role == rolePool }
