package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

func TestEveryRoleIsProvisionedAndDeleted(t *testing.T) {
	t.Parallel()
	// No site pool is filled meanwhile, so that every command on a host is one of the boot's.
	c := newCell(t, options{set: func(cfg *config.Config) { cfg.Tenants.SweepEvery = time.Hour }})
	spec := map[prego.Role]server.Spec{prego.RoleDBShard: {VolumeGB: 20}, prego.RoleNode: {Tags: []string{"Stack:blue"}}}
	for _, role := range prego.Roles() {
		a := c.create("s-"+string(role), role, spec[role])
		require.Equal(t, "server-provision/"+c.id("s-"+string(role)), a.WorkflowId)
		require.Equal(t, "/v1/servers/"+c.id("s-"+string(role)), a.StatusUrl)
	}
	for _, role := range prego.Roles() {
		s := c.awaitStatus("s-"+string(role), server.Active)
		require.Equal(t, api.AgentStatus("connected"), s.Agent.Status)
		require.NotNil(t, s.Agent.FirstSeenAt)
		require.NotNil(t, s.Agent.LastHeartbeatAt)
		require.True(t, s.Agent.FirstSeenAt.After(s.CreatedAt), "seen after it was asked for")
		require.False(t, s.Agent.LastHeartbeatAt.Before(*s.Agent.FirstSeenAt))
		require.WithinDuration(t, time.Now(), *s.Agent.LastHeartbeatAt, 30*time.Second)
		require.Equal(t, api.ServerManagedBy("worker_direct"), s.ManagedBy)
		want := []string{"requested", "create_intended", "token_issued", "server_created", "handshake", "first_heartbeat", "active"}
		require.Subset(t, steps(s), want)
		require.Equal(t, role.StartsContainers(), count(s, server.StepContainersStarted) == 1)
		require.Equal(t, 5, count(s, server.StepBootStage), "each stage of the boot phoned home")
	}
	require.Equal(t, []string{"stack:blue"}, c.get("s-node").Tags)
	require.Len(t, c.billed("server"), len(prego.Roles()))
	require.Len(t, c.billed("volume"), 1)
	c.settled()

	var consumed, unexpected int
	c.query(&consumed, `SELECT count(*) FROM server_bootstrap_tokens WHERE consumed_at IS NOT NULL`)
	require.Equal(t, len(prego.Roles()), consumed)
	c.query(&unexpected, `SELECT count(*) FROM agent_command_audit WHERE command_kind <> 'bootstrap' AND workflow_id LIKE 'server-provision/%'`)
	require.Zero(t, unexpected)
	c.query(&consumed, `SELECT count(*) FROM agent_command_audit WHERE args_redacted LIKE 'consume %' AND actor = 'system'`)
	require.Equal(t, len(prego.Roles()), consumed, "every consumption is audited")

	for _, role := range prego.Roles() {
		status, body := c.request(http.MethodDelete, "/v1/servers/"+c.id("s-"+string(role)), nil)
		require.Equal(t, http.StatusAccepted, status, "%s", body)
	}
	for _, role := range prego.Roles() {
		s := c.awaitStatus("s-"+string(role), server.Terminated)
		require.NotNil(t, s.TerminatedAt)
		require.True(t, s.TerminatedAt.After(*s.Agent.FirstSeenAt))
	}
	require.Empty(t, c.sim.Ledger(true), "something is still billed")
	c.settled()
	status, body := c.request(http.MethodPost, "/internal/servers/create", server.CreateRequest{
		ServerID: prego.ServerID(c.id("s-app")), Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner,
	})
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, string(body), "server_terminated")
}

func TestCreateIsIdempotentOnTheServerID(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	first := c.create("same", prego.RoleRedisPool, server.Spec{})
	require.Equal(t, first, c.create("same", prego.RoleRedisPool, server.Spec{}))
	c.awaitStatus("same", server.Active)
	again := c.create("same", prego.RoleRedisPool, server.Spec{})
	require.Equal(t, []api.OperationStatus{"running", "succeeded"}, []api.OperationStatus{first.Operation.Status, again.Operation.Status})
	first.Operation.Status = again.Operation.Status
	require.Equal(t, first, again, "also once it is active")
	status, body := c.request(http.MethodPost, "/internal/servers/create", server.CreateRequest{
		ServerID: prego.ServerID(c.id("same")), Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner,
	})
	require.Equal(t, http.StatusConflict, status)
	var p api.Problem
	require.NoError(t, json.Unmarshal(body, &p))
	require.Equal(t, "server_id_conflict", p.Code)
	require.Equal(t, 1, c.everBilled("server"))
}

func TestCreateAnswersOfUnknownOutcomeEndWithOneServer(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	n := 0
	for name, fault := range map[string]sim.Fault{
		"5xx twice":            {Kind: "http", Method: "POST", Path: "/v1/servers", Action: "respond", Status: 503, Code: "unavailable", Times: 2},
		"commit then 504":      {Kind: "http", Method: "POST", Path: "/v1/servers", Action: "commit_then_respond", Status: 504, Code: "timeout", Times: 1},
		"commit then reset":    {Kind: "http", Method: "POST", Path: "/v1/servers", Action: "commit_then_reset", Times: 1},
		"reset":                {Kind: "http", Method: "POST", Path: "/v1/servers", Action: "reset", Times: 1},
		"lands late":           {Kind: "land_late", DelayMS: 60, Times: 1},
		"lands after the next": {Kind: "land_late", DelayMS: 3000, Times: 1},
		"no answer in time":    {Kind: "http", Method: "POST", Path: "/v1/servers", Action: "delay", DelayMS: 4000, Times: 1},
		"rate limited":         {Kind: "http", Method: "POST", Path: "/v1/servers", Action: "respond", Status: 429, Code: "rate_limit_exceeded", Times: 1},
	} {
		n++
		id := fmt.Sprintf("one-%d", n)
		c.inject(fault)
		c.create(id, prego.RoleRedisPool, server.Spec{})
		s := c.awaitStatus(id, server.Active)
		require.Equal(t, 1, s.Attempt, "%s: no new attempt was needed", name)
		require.Len(t, c.billed("server"), n, name)
		require.Equal(t, n, c.everBilled("server"), name)
		c.settled()
	}
}

func TestCreateThatKeepsFailingEndsAsFailedCreate(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{set: func(cfg *config.Config) { cfg.Worker.CreateBackoff = 10 * time.Millisecond }}) // the pauses follow it
	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "respond", Status: 500, Code: "server_error"})
	c.create("never", prego.RoleRedisPool, server.Spec{})
	s := c.awaitFailed("never", prego.ReasonFailedCreate)
	require.Equal(t, 1, s.Attempt, "the tries share a name and a token")
	require.Empty(t, c.sim.Ledger(false))
	require.Equal(t, 9, c.sim.Faults()[0].Hits, "three tries of three calls")
	require.Equal(t, 2, count(s, server.StepAwaitingProvider), "each pause is on the timeline")
}

func TestBootFailuresAreDestroyedAndRetriedTwice(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		fault  string
		reason prego.Reason
		says   string
		soon   bool // a timeout soon runs out
	}{
		{"never_boot", prego.ReasonFailedBoot, "the machine did not come up", true},
		{"no_cloud_init", prego.ReasonFailedHandshake, "no handshake within 2.", true},
		// Reported by the host: the workflow does not wait the minute of a handshake.
		{"boot_without_agent", prego.ReasonFailedBoot, "prego-agent could not be installed", false},
		{"stop_heartbeats", prego.ReasonFailedNoHeartbeat, "; the last sign of the boot, ", true},
	} {
		timeouts := quick
		if tc.soon {
			timeouts = impatient(tc.reason)
		}
		t.Run(tc.fault, func(t *testing.T) {
			t.Parallel()
			c := newCell(t, options{timeouts: timeouts})
			c.inject(sim.Fault{Kind: tc.fault, Times: 1})
			c.create("found", prego.RoleRedisPool, server.Spec{})
			s := c.awaitStatus("found", server.Active)
			require.Equal(t, 2, s.Attempt)
			require.Len(t, c.billed("server"), 1)
			require.Equal(t, 2, c.everBilled("server"))
			c.settled()

			c.inject(sim.Fault{Kind: tc.fault})
			c.create("lost", prego.RoleRedisPool, server.Spec{})
			s = c.awaitFailed("lost", tc.reason)
			require.Contains(t, deref(s.StatusMessage), tc.says, "the cause is in the reason")
			require.Equal(t, 3, s.Attempt)
			require.Equal(t, 2+3, c.everBilled("server"))
			require.Len(t, c.billed("server"), 1, "what failed is gone")
			require.Equal(t, 3, count(s, server.StepAttemptDestroyed))
			c.settled()
			require.Zero(t, c.number(`SELECT count(*) FROM server_bootstrap_tokens WHERE server_id = $1 AND superseded_at IS NULL`, c.id("lost")), "every token is revoked")
		})
	}
}

func TestSecondKeyFailsTheBootstrap(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	c.inject(sim.Fault{Kind: "duplicate_bootstrap", Times: 1})
	c.create("stolen", prego.RoleRedisPool, server.Spec{})
	s := c.awaitFailed("stolen", prego.ReasonFailedBootstrap)
	require.Equal(t, 1, count(s, server.StepHandshakeRefused))
	require.Empty(t, c.sim.Ledger(true))
	var revoked bool
	c.query(&revoked, `SELECT identity_revoked_at IS NOT NULL FROM servers WHERE server_id = $1`, c.id("stolen"))
	require.True(t, revoked, "the thief's identity is revoked")
}

func TestContainerFailureKeepsTheServerAndRetryFinishesOnIt(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	c.inject(sim.Fault{Kind: "container_start_fail", Times: 1})
	c.create("kept", prego.RoleApp, server.Spec{})
	s := c.awaitFailed("kept", prego.ReasonFailedContainer)
	require.Len(t, c.billed("server"), 1, "kept for debugging")
	before := deref(s.Provider.ProviderServerId)
	require.NotEmpty(t, before)
	status, body := c.request(http.MethodPost, "/v1/servers/"+c.id("kept")+"/retry", nil)
	require.Equal(t, http.StatusAccepted, status, "%s", body)
	again := c.awaitFailed("kept", prego.ReasonFailedContainer)
	require.Equal(t, before, deref(again.Provider.ProviderServerId), "the retry continued with the existing server")
	require.Equal(t, 2, again.Generation)
	status, _ = c.request(http.MethodDelete, "/v1/servers/"+c.id("kept"), nil)
	require.Equal(t, http.StatusAccepted, status)
	c.awaitStatus("kept", server.Terminated)
	require.Empty(t, c.sim.Ledger(true))
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	t.Run("the next candidate is taken", func(t *testing.T) {
		t.Parallel()
		c := newCell(t, options{})
		c.sim.SetStock("cx33", "*", false)
		c.create("next", prego.RoleRedisPool, server.Spec{})
		s := c.awaitStatus("next", server.Active)
		require.Equal(t, "cpx32", deref(s.Provider.ServerType))
		require.Equal(t, 1, c.everBilled("server"))
		c.settled()
	})
	t.Run("waits for stock", func(t *testing.T) {
		t.Parallel()
		c := newCell(t, options{})
		c.sim.SetStock("*", "*", false)
		c.create("waits", prego.RoleDBShard, server.Spec{VolumeGB: 10})
		c.await("waits", "awaiting capacity", func(s api.Server) bool { return deref(s.StatusReason) == "awaiting_capacity" })
		require.Empty(t, c.sim.Ledger(true), "no volume is left of refused candidates")
		c.sim.SetStock("*", "*", true)
		c.awaitStatus("waits", server.Active)
		c.settled()
	})
	t.Run("waits for quota and gives up at the deadline", func(t *testing.T) {
		t.Parallel()
		c := newCell(t, options{vars: map[string]string{"PREGO_CAPACITY_WAIT": "4s"}})
		c.sim.SetServerLimit(0)
		c.create("full", prego.RoleRedisPool, server.Spec{})
		s := c.awaitFailed("full", prego.ReasonFailedCapacity)
		require.Equal(t, 1, count(s, server.StepAwaitingCapacity))
		require.Empty(t, c.sim.Ledger(false))
	})
}

func TestTwoStageBoot(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{set: func(cfg *config.Config) { cfg.Worker.UserDataLimit = 12000 }})
	c.create("two", prego.RoleRedisPool, server.Spec{})
	c.awaitStatus("two", server.Active)
	var stages int
	c.query(&stages, `SELECT count(*) FROM boot_artifacts`)
	require.Equal(t, 1, stages)
}

// TestAProgressingBootIsAwaited has milestones that are each in time, and together far
// longer than a silent host is given.
func TestAProgressingBootIsAwaited(t *testing.T) {
	t.Parallel()
	slow := func(cfg *sim.Config) { cfg.Profile.Stage = 3 * time.Second }
	timeouts := quick
	timeouts.Handshake = prego.Duration(6 * time.Second) // less than a boot, and enough for a stage on a busy machine
	t.Run("in time as a whole", func(t *testing.T) {
		t.Parallel()
		timeouts := timeouts
		timeouts.Boot = prego.Duration(time.Minute)
		c := newCell(t, options{timeouts: timeouts, sim: slow})
		c.create("slow", prego.RoleRedisPool, server.Spec{})
		require.Equal(t, 1, c.awaitStatus("slow", server.Active).Attempt)
	})
	t.Run("too long as a whole", func(t *testing.T) {
		t.Parallel()
		timeouts := timeouts
		timeouts.Boot = prego.Duration(7 * time.Second)
		// Its handshake comes long after it has been given up, also where that is late.
		c := newCell(t, options{timeouts: timeouts, sim: slow})
		c.create("slower", prego.RoleRedisPool, server.Spec{})
		s := c.awaitFailed("slower", prego.ReasonFailedHandshake)
		require.Regexp(t, `no handshake within ([7-9]|1[0-4])(\.\d)?s; the last sign of the boot, \ds ago: [a-z_]+`, deref(s.StatusMessage))
	})
}

// TestExpiredTokenIsRefusedAndReplaced lets the first attempt's token expire just before
// its agent presents it.
func TestExpiredTokenIsRefusedAndReplaced(t *testing.T) {
	t.Parallel()
	timeouts := quick
	timeouts.Handshake = prego.Duration(15 * time.Second) // the second attempt has it, too, on a busy machine
	c := newCell(t, options{
		timeouts: timeouts, sim: func(cfg *sim.Config) { cfg.Profile.Stage = 2 * time.Second },
		vars: map[string]string{"PREGO_PROVISION_RETRIES": "1"},
	})
	id := c.id("late")
	c.create("late", prego.RoleRedisPool, server.Spec{})
	said := func(step server.Step, attempt int, message string) func(api.Server) bool {
		return func(s api.Server) bool {
			return slices.ContainsFunc(s.Timeline, func(e api.Event) bool {
				return e.Step == string(step) && e.Attempt != nil && *e.Attempt == attempt && strings.HasPrefix(deref(e.Message), message)
			})
		}
	}
	c.await("late", "about to present its token", said(server.StepBootStage, 1, "agent_installed"))
	_, err := c.pool.Exec(t.Context(), `UPDATE server_bootstrap_tokens SET expires_at = now() WHERE server_id = $1 AND attempt = 1`, id)
	require.NoError(t, err)
	c.await("late", "refused", said(server.StepHandshakeRefused, 1, "an expired bootstrap token was presented"))
	agentLog := filepath.Join(filepath.Dir(c.sim.Hosts()[0].Root), "agent.log")
	eventually(t, func() bool {
		b, err := os.ReadFile(agentLog)
		return err == nil && strings.Contains(string(b), "the gateway answered 410 bootstrap_token_expired")
	}, patience, 20*time.Millisecond, "the agent got the refusal, and that it is permanent")

	s := c.awaitStatus("late", server.Active)
	require.Equal(t, 2, s.Attempt)
	require.True(t, said(server.StepAttemptFailed, 1, "no handshake within ")(s))
	require.True(t, said(server.StepHandshake, 2, "")(s))
	require.False(t, said(server.StepHandshake, 1, "")(s))
	var first, second bool
	c.query(&first, `SELECT consumed_at IS NULL AND superseded_at IS NOT NULL FROM server_bootstrap_tokens WHERE server_id = $1 AND attempt = 1`, id)
	require.True(t, first, "the expired token is revoked and was never consumed")
	c.query(&second, `SELECT consumed_at IS NOT NULL FROM server_bootstrap_tokens WHERE server_id = $1 AND attempt = 2`, id)
	require.True(t, second, "its replacement was")
	require.Len(t, c.billed("server"), 1)
}

func TestDeleteIsTakenAtAnyMoment(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{sim: func(cfg *sim.Config) {
		cfg.Profile = sim.Profile{Action: 300 * time.Millisecond, Boot: 200 * time.Millisecond, Stage: 100 * time.Millisecond, Restart: time.Second}
	}})
	for _, step := range []server.Step{server.StepRequested, server.StepCreateIntended, server.StepServerCreated, server.StepHandshake, server.StepActive} {
		id := "gone-at-" + strings.ReplaceAll(string(step), "_", "-")
		c.create(id, prego.RoleApp, server.Spec{})
		c.await(id, string(step), func(s api.Server) bool { return count(s, step) > 0 })
		for range 2 { // a repetition is the same request
			status, body := c.request(http.MethodDelete, "/v1/servers/"+c.id(id), nil)
			require.Equal(t, http.StatusAccepted, status, "%s", body)
		}
		s := c.awaitStatus(id, server.Terminated)
		require.Zero(t, count(s, server.StepFailed), step)
		require.Empty(t, c.sim.Ledger(true), step)
		c.settled()
		status, body := c.request(http.MethodDelete, "/v1/servers/"+c.id(id), nil)
		require.Equal(t, http.StatusAccepted, status, "%s", body)
	}
}

func TestSilentAgents(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: map[string]string{"PREGO_DEGRADED_AFTER": "3s", "PREGO_FAILED_AFTER": "6s"}})
	c.create("quiet", prego.RoleRedisPool, server.Spec{})
	c.awaitStatus("quiet", server.Active)
	host := c.sim.Hosts()[0]
	require.NoError(t, c.sim.HostAction(host.ID, "stop-agent"))
	s := c.await("quiet", "degraded", func(s api.Server) bool { return s.Agent.Status == "degraded" })
	require.Equal(t, api.ServerStatus("active"), s.Status)
	s = c.await("quiet", "failed", func(s api.Server) bool { return s.Status == "failed" })
	require.Equal(t, "heartbeat_lost", deref(s.StatusReason))
	require.Equal(t, api.AgentStatus("disconnected"), s.Agent.Status)
	require.Len(t, c.billed("server"), 1, "a silent server may hold data: it is never destroyed")
	require.NoError(t, c.sim.HostAction(host.ID, "resume-agent"))
	s = c.await("quiet", "active again", func(s api.Server) bool { return s.Status == "active" })
	require.Equal(t, 1, count(s, server.StepAgentConnected))
}
