package agentgw_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/agentgw"
	"github.com/prego/prego/server"
)

// TestClocksThatDiffer shifts the gateway's clock: hosts under test share this
// machine's.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	for name, tc := range map[string]struct {
		ahead time.Duration // of the host
		says  string        // "" is accepted
	}{
		"agree":             {0, ""},
		"a little ahead":    {15 * time.Second, ""},
		"a little behind":   {-15 * time.Second, ""},
		"above the limit":   {25 * time.Second, "the host's clock is 25s ahead of the control plane's"},
		"below the limit":   {-25 * time.Second, "the host's clock is 25s behind the control plane's"},
		"an hour ahead":     {time.Hour, "the host's clock is 1h0m0s ahead of the control plane's"},
		"an hour behind":    {-time.Hour, "the host's clock is 1h0m0s behind the control plane's"},
		"a year ahead":      {year, "the host's clock is 8760h0m0s ahead of the control plane's"},
		"a year behind":     {-year, "the host's clock is 8760h0m0s behind the control plane's"},
		"centuries in fact": {290 * year, "the host's clock is 2540400h0m0s ahead of the control plane's"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			// Both clocks stand still: a request may take a second.
			now := time.Now()
			b := setup(t, func(s *agentgw.Settings) {
				s.Now = func() time.Time { return now.Add(-tc.ahead) }
			})
			b.server("clock")
			key := newKey(t)
			shake := func(hostTime time.Time) (int, string) {
				status, p, _ := b.handshake("clock", key, func(in *wire.HandshakeRequest) { in.HostTime = hostTime })
				return status, p.Code
			}
			ailing := func() bool {
				families, err := b.reg.Gather()
				require.NoError(t, err)
				return slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "prego_agentgw_ailing_hosts_total" })
			}
			status, code := shake(now)
			state, err := b.store.ProvisionState(ctx, "clock")
			require.NoError(t, err)
			if tc.says == "" {
				require.Equal(t, 200, status, code)
				require.False(t, ailing())
				return
			}
			require.Equal(t, 412, status, "none of those after which an agent gives up")
			require.Equal(t, "clock_skew", code)
			require.Nil(t, state.HandshakeAt)
			require.Equal(t, tc.says, state.BootSign)
			require.Equal(t, prego.ReasonClockSkew, state.BootSignReason)
			require.True(t, ailing())
			shake(now)
			shake(now)
			events, err := b.store.ServerEvents(ctx, "clock")
			require.NoError(t, err)
			// The server's first event, and one for each minute of refusals: the three requests span at most two.
			require.LessOrEqual(t, len(events), 3, "a host that keeps asking does not fill the timeline")
			status, code = shake(now.Add(-tc.ahead))
			require.Equal(t, 200, status, "%s: once its clock is right the same token is good", code)
		})
	}
}

func TestHeartbeatsTellOfTheirHost(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := setup(t, nil)
	b.server("events")
	key := newKey(t)
	_, _, id := b.handshake("events", key, nil)
	c := b.client(certificate(t, id.Certificates.AgentClient, key))
	beat := func(docker string, ahead time.Duration) server.Server {
		t.Helper()
		before, err := b.store.GetServer(ctx, "events")
		require.NoError(t, err)
		body := fmt.Sprintf(`{"boot_id":"b1","agent_version":"v1","docker_state":%q,"host_time":%q}`, docker, time.Now().Add(ahead).Format(time.RFC3339Nano))
		status, _, _ := b.post(c, wire.PathHeartbeat, id.Token, "application/json", []byte(body))
		require.Equal(t, 200, status)
		var after server.Server
		require.Eventually(t, func() bool {
			after, err = b.store.GetServer(ctx, "events")
			return err == nil && after.AgentLastHeartbeatAt != nil && (before.AgentLastHeartbeatAt == nil || after.AgentLastHeartbeatAt.After(*before.AgentLastHeartbeatAt))
		}, 5*time.Second, time.Millisecond)
		return after
	}
	recorded := func() []string {
		events, err := b.store.ServerEvents(ctx, "events")
		require.NoError(t, err)
		var out []string
		for _, e := range events {
			switch e.Step {
			case server.StepClockSkewed, server.StepClockAgrees, server.StepDockerStopped, server.StepDockerRunning:
				out = append(out, string(e.Step)+" "+string(e.Reason)+": "+e.Message)
			}
		}
		return out
	}
	s := beat("running", 0)
	require.False(t, s.ClockSkewed)
	require.InDelta(t, 0, *s.ClockAheadSeconds, 2)
	require.Empty(t, recorded())
	s = beat("running", -time.Hour)
	require.False(t, s.ClockSkewed, "that one may have been long on its way")
	s = beat("stopped", -time.Hour)
	require.True(t, s.ClockSkewed)
	require.InDelta(t, -3600, *s.ClockAheadSeconds, 2)
	require.Equal(t, []string{
		"clock_skewed clock_skew: the host's clock is 3600 s behind the control plane's",
		"docker_stopped : dockerd is stopped",
	}, recorded())
	require.Equal(t, "stopped", s.DockerState)
	beat("stopped", -time.Hour)
	require.Len(t, recorded(), 2, "a lasting problem is recorded once")
	s = beat("running", 0)
	require.False(t, s.ClockSkewed)
	require.Len(t, recorded(), 4)
	require.Contains(t, recorded()[2], "clock_agrees : the host's clock is 0 s ")
	require.Equal(t, "docker_running : dockerd is running", recorded()[3])
	status, _, _ := b.post(c, wire.PathHeartbeat, id.Token, "application/json", []byte(`{"boot_id":"b1"}`))
	require.Equal(t, 200, status, "an earlier agent does not report its clock")
	require.Eventually(t, func() bool {
		s, err := b.store.GetServer(ctx, "events")
		return err == nil && s.ClockAheadSeconds == nil && !s.ClockSkewed
	}, 5*time.Second, time.Millisecond)
	require.Len(t, recorded(), 4)
}
