package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
)

// TestOnlyAProvisioningFails: what moved on meanwhile, as a server that is being deleted, has no line that it failed.
func TestOnlyAProvisioningFails(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	for id, failed := range map[string]int{"provisioning": 1, "draining": 0, "active": 0} {
		insertServer(t, s, id, id)
		require.NoError(t, s.Fail(t.Context(), prego.ServerID(id), 1, 1, prego.ReasonFailedBoot, "no answer"))
		require.Equal(t, failed, count(t, s, `server_events WHERE step = 'failed' AND server_id = '`+id+`'`), id)
	}
}
