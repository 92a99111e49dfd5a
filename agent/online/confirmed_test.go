package online

import (
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// TestJobsRunWhileTheGatewayConfirmsTheHost: none after a boot until a heartbeat was accepted, none since the identity
// was revoked, and all through an outage.
func TestJobsRunWhileTheGatewayConfirmsTheHost(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	k := stopTime(a.host)
	first := true
	then := func(status int, code string, want bool, why string) {
		t.Helper()
		g.Fault(wire.PathHeartbeat, func(_ int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
			switch status {
			case 0:
				agenttest.Drop()
			case http.StatusOK:
				return false
			}
			agenttest.Refuse(w, status, code)
			return true
		})
		if first {
			first = false
			agenttest.Loop(t, a.beating)
		} else {
			k.end <- struct{}{}
		}
		k.next(t)
		_, err := os.Stat(a.host.Path(wire.ConfirmedPath))
		require.Equal(t, want, err == nil, why)
	}
	const revoked = "identity_revoked"
	then(0, "", false, "the gateway is not reached")
	then(http.StatusServiceUnavailable, "not_ready", false, "it accepts nothing")
	then(http.StatusForbidden, revoked, false, "it gave the host up before its boot")
	then(http.StatusOK, "", true, "it accepts the host")
	then(0, "", true, "no outage holds jobs")
	then(http.StatusServiceUnavailable, "not_ready", true, "no outage holds jobs")
	then(http.StatusUnauthorized, "token_expired", true, "no outage of days holds jobs")
	then(http.StatusForbidden, "certificate_subject", true, "no wrong key of a gateway's holds jobs")
	then(http.StatusForbidden, revoked, false, "the host was given up")
	then(0, "", false, "and stays so")
	then(http.StatusOK, "", true, "that was a mistake")
}
