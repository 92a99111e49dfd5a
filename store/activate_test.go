package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
)

// TestActiveNeedsItsStateAndAHeartbeat: a server becomes active by one statement, only while its own generation is
// being provisioned, and after its agent has sent a heartbeat.
func TestActiveNeedsItsStateAndAHeartbeat(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	insertServer(t, s, "other", "provisioning")
	exec(t, s, `UPDATE servers SET agent_first_heartbeat_at = now(), attempt = 1`)
	for i, tc := range []struct {
		status, heartbeat string
		generation        int
		active            bool
	}{
		{status: "provisioning", heartbeat: "now()", generation: 1, active: true},
		{status: "provisioning", heartbeat: "NULL", generation: 1}, // the handshake is none
		{status: "provisioning", heartbeat: "now()", generation: 2},
		{status: "draining", heartbeat: "now()", generation: 1},
		{status: "failed", heartbeat: "now()", generation: 1},
		{status: "terminated", heartbeat: "now()", generation: 1},
	} {
		id := fmt.Sprintf("app-%d", i)
		insertServer(t, s, id, tc.status)
		exec(t, s, `UPDATE servers SET attempt = 1, agent_first_seen_at = now(), generation = $2,
			agent_first_heartbeat_at = `+tc.heartbeat+` WHERE server_id = $1`, id, tc.generation)
		_, err := s.Activate(t.Context(), prego.ServerID(id), 1, 1, server.StepHandshake)
		want := tc.status
		if tc.active {
			require.NoError(t, err)
			want = "active"
		} else {
			require.ErrorIs(t, err, server.ErrSuperseded, "%+v", tc)
		}
		is := fmt.Sprintf(`servers WHERE server_id = '%s' AND status = '%s'`, id, want)
		require.Equal(t, 1, count(t, s, is), "%+v", tc)
		require.Equal(t, 1, count(t, s, `servers WHERE server_id = 'other' AND status = 'provisioning'`), "it alone")
	}
}
