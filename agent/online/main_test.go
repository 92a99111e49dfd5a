package online

import (
	"testing"

	"github.com/prego/prego/lab/agenttest"
)

func TestMain(m *testing.M) { agenttest.Run(m, nil) }
