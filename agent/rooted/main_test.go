package rooted

import (
	"testing"

	"github.com/prego/prego/lab/agenttest"
)

func TestMain(m *testing.M) {
	agenttest.Run(m, map[string]func([]string) int{FreezeVerb: Freeze, sealerVerb: sealAndStop})
}
