package child

import (
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/server"
)

// DeclaredMariaDB returns the options of the declared stack's MariaDB that are not about a host's files or size. The
// slice is the caller's.
func DeclaredMariaDB() []string {
	out := slices.DeleteFunc(slices.Clone(declaredMariaDB().Command), func(option string) bool {
		return strings.Contains(option, "/etc/prego") || strings.Contains(option, "${") ||
			strings.HasPrefix(option, "--innodb-buffer-pool-size")
	})
	return out
}

// MariaDBVersion returns the version that the declared stack runs, such as 11.8.
func MariaDBVersion() string {
	_, tag, _ := strings.Cut(declaredMariaDB().Image, ":")
	return tag
}

// MariaDBUser returns the option without which MariaDB refuses to run as root, where this is root.
func MariaDBUser() []string {
	if os.Geteuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

var declaredMariaDB = sync.OnceValue(func() server.ContainerSpec {
	stack, err := config.Worker{}.Stack()
	if err != nil {
		panic(err) // it is embedded
	}
	shard := stack[prego.RoleDBShard]
	return shard[slices.IndexFunc(shard, func(c server.ContainerSpec) bool { return c.Name == "mariadb" })]
})
