package supervise

import (
	"testing"

	"github.com/prego/prego/lab/agenttest"
)

func TestMain(m *testing.M) {
	agenttest.Run(m, map[string]func([]string) int{"hold-for": func(args []string) int { return hold(args[0], args[1:]) }})
}
