package sim

import (
	"slices"
	"strings"
	"sync"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/config"
	spec "github.com/prego/prego/server"
)

// declaredMariaDB are the options of the declared stack that are not about a host's files or size.
var declaredMariaDB = sync.OnceValue(func() []string {
	stack, err := config.Worker{}.Stack()
	if err != nil {
		panic(err) // it is embedded
	}
	shard := stack[prego.RoleDBShard]
	mariadb := shard[slices.IndexFunc(shard, func(c spec.ContainerSpec) bool { return c.Name == "mariadb" })]
	return slices.DeleteFunc(slices.Clone(mariadb.Command), func(option string) bool {
		return strings.Contains(option, "/etc/prego") || strings.Contains(option, "${") ||
			strings.HasPrefix(option, "--innodb-buffer-pool-size")
	})
})
