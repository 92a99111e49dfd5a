package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

func signedAgent(t *testing.T, version string, serial int64, rings ...server.ReleaseRing) (server.CreateAgentReleaseRequest, server.AgentReleaseSaid) {
	t.Helper()
	document, err := json.Marshal(map[string]any{"version": version, "serial": serial, "sha256": strings.Repeat("0", 64)})
	require.NoError(t, err)
	r := server.CreateAgentReleaseRequest{Rings: rings, Signed: server.SignedText{Document: base64.StdEncoding.EncodeToString(document), Signature: "c2lnbmF0dXJl"}}
	said, err := r.Validate()
	require.NoError(t, err)
	return r, said
}

// TestFailedAgentReleaseStops: a release is offered ring by ring, to as many servers as allowed. A host that rolls
// back stops it, and offers not yet taken are withdrawn. Resumed, it continues without that host.
func TestFailedAgentReleaseStops(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	limits := server.AgentReleaseLimits{Servers: 2, Within: time.Minute}
	for i := range 6 {
		exec(t, s, benchesHere, fmt.Sprintf("s-%d", i), "app", "active")
	}
	exec(t, s, `UPDATE servers SET agent_version = 'v1'`)
	in, said := signedAgent(t, "v2", 7, server.ReleaseRing{Name: "early", Percent: 50, SoakSeconds: 60}, server.ReleaseRing{Name: "rest"})
	for range 2 {
		_, err := s.CreateAgentRelease(ctx, in, said, "ann")
		require.NoError(t, err)
	}
	other, again := signedAgent(t, "v2", 8)
	_, err := s.CreateAgentRelease(ctx, other, again, "ann")
	require.Equal(t, prego.CodeStackReleaseExists, prego.CodeOf(err))
	_, err = s.SteerAgentRelease(ctx, "v2", server.ReleasePaused, "ann")
	require.Equal(t, prego.CodeInvalidTransition, prego.CodeOf(err))
	_, err = s.SteerAgentRelease(ctx, "none", server.ReleaseRolling, "ann")
	require.Equal(t, prego.CodeStackReleaseNotFound, prego.CodeOf(err))
	changed, err := s.StepAgentRelease(ctx, limits)
	require.NoError(t, err)
	require.False(t, changed, "nothing is rolled out")
	turn := func(to server.ReleaseStatus) {
		t.Helper()
		_, err := s.SteerAgentRelease(ctx, "v2", to, "ann")
		require.NoError(t, err)
	}
	step := func() (offered []prego.ServerID) {
		t.Helper()
		_, err := s.StepAgentRelease(ctx, limits)
		require.NoError(t, err)
		offers, err := s.AgentOffers(ctx)
		require.NoError(t, err)
		for _, o := range offers {
			require.EqualValues(t, 7, o.Serial)
			offered = append(offered, o.ServerID)
		}
		return offered
	}
	tells := func(id prego.ServerID, serial int64, status string) *server.SignedRelease {
		t.Helper()
		wanted, err := s.AckAgentUpdate(ctx, id, server.AgentReport{Serial: serial, Status: status, Reason: "because"})
		require.NoError(t, err)
		return wanted
	}
	stands := func() server.AgentRelease {
		t.Helper()
		r, err := s.GetAgentRelease(ctx, "v2")
		require.NoError(t, err)
		return r
	}
	turn(server.ReleaseRolling)
	first := step()
	require.Len(t, first, 2)
	require.Equal(t, first, step(), "no more concurrently")
	require.Equal(t, said.Signed.Document, tells(first[0], 0, "").Document)
	require.Nil(t, tells(first[0], 7, "trying"), "it has it")
	require.Nil(t, tells(first[0], 7, "good"))
	second := step()
	require.Len(t, second, 2)
	require.NotContains(t, second, first[0])
	require.Nil(t, tells(second[0], 7, "back"))
	require.Empty(t, step(), "open offers are withdrawn")
	require.Equal(t, server.ReleaseStopped, stands().Status)
	require.Equal(t, server.ReasonAgentWentBack, stands().Reason)
	require.Contains(t, stands().Message, string(second[0])+": because")

	turn(server.ReleaseRolling)
	third := step()
	require.Equal(t, second[1:], third, "the last of its ring; the host that rolled back is left out")
	exec(t, s, `UPDATE agent_release_servers SET offered_at = now() - interval '2 minutes' WHERE status = 'offered'`)
	require.Empty(t, step())
	require.Equal(t, server.ReasonHeartbeatsEnded, stands().Reason)
	require.Nil(t, tells(third[0], 7, "good"), "it was only late")

	turn(server.ReleaseRolling)
	require.Empty(t, step())
	require.Contains(t, stands().Message, "soaks until")
	exec(t, s, `UPDATE agent_release_servers SET finished_at = finished_at - interval '2 minutes'`)
	last := step()
	require.Len(t, last, 2)
	require.Nil(t, tells(last[0], 7, "good"))
	require.Nil(t, tells(last[1], 7, "good"))
	exec(t, s, `UPDATE servers SET status = 'draining' WHERE server_id = ANY (SELECT server_id FROM agent_release_servers WHERE status = 'pending')`)
	exec(t, s, `UPDATE servers SET agent_version = 'v2' WHERE status = 'active'`)
	step()
	require.Equal(t, server.ReleaseDone, stands().Status)
	counts, err := s.AgentVersions(ctx)
	require.NoError(t, err)
	require.Equal(t, []server.AgentVersionCount{{Version: "v2", N: 5}}, counts)
}
