package agentgw

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// TestABatchOfReportsIsBounded: 5000 containers are written together, or one report with more.
func TestABatchOfReportsIsBounded(t *testing.T) {
	t.Parallel()
	sizes := func(batch []*waitingReport) (out []int) {
		for _, w := range batch {
			out = append(out, len(w.Seen))
		}
		return out
	}
	r := &reporter{}
	for i, n := range []int{3000, 2000, 1, 6000} {
		w := &waitingReport{ctx: t.Context()}
		w.ServerID, w.Seen = prego.ServerID(rune('a'+i)), make([]workload.InstanceSight, n)
		r.waiting = append(r.waiting, w)
	}
	require.Equal(t, []int{3000, 2000}, sizes(r.take()))
	require.Equal(t, []int{1}, sizes(r.take()))
	require.Equal(t, []int{6000}, sizes(r.take()))
	require.Empty(t, r.take())
}

func TestADocumentOfPeersHasItsAccess(t *testing.T) {
	t.Parallel()
	var rule server.PeersRule
	rule.Access = append(rule.Access, server.PeersGrant{Ports: []int{3306}, From: []string{"10.64.0.9"}})
	doc := peersDocumentOf("test", "db-1", server.PeersWanted{Version: 3, Rule: rule})
	require.Equal(t, []wire.PeersAccess{{Ports: []int{3306}, From: []string{"10.64.0.9"}}}, doc.Access)
}
