package host

import "github.com/prego/prego/agent/wire"

// RoleServices lists the services on the hosts of a role, as in the declared stack.
var RoleServices = map[string][]string{
	"app":        {"mariadb", "redis", "bench"},
	"node":       {"mariadb", "redis", "bench"},
	"db-shard":   {"mariadb"},
	"redis-pool": {"redis"},
	"edge":       {},
}

// Roles whose hosts serve tenants of others.
const (
	RoleShard = "db-shard"
	RolePool  = "redis-pool"
)

// ServiceMount is the directory of a role's containers that gets the certificate for
// databases and caches, "" if the role has no use for one. A node keeps both to itself.
func ServiceMount(role string) string {
	switch role {
	case RoleShard:
		return wire.MariaDBMount
	case RolePool:
		return wire.RedisMount
	case "app":
		return wire.BenchMount
	}
	return ""
}

// ServesOthers reports whether hosts of a role have databases or caches of others' tenants.
func ServesOthers(role string) bool { return role == RoleShard || role == RolePool }
