package e2e

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

var record = flag.Bool("record", false, "rewrite the histories of the replay test")

// history reads the whole history of a run.
func history(t testing.TB, workflowID string) *historypb.History {
	t.Helper()
	return historyOf(t, workflowID, "")
}

// historyOf reads the history of a run, "" for the newest.
func historyOf(t testing.TB, workflowID, runID string) *historypb.History {
	t.Helper()
	var h historypb.History
	iter := temporalClient.GetWorkflowHistory(context.Background(), workflowID, runID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for iter.HasNext() {
		e, err := iter.Next()
		require.NoError(t, err)
		h.Events = append(h.Events, e)
	}
	return &h
}

func (c *cell) awaitRunEnd(workflowID string) {
	c.t.Helper()
	eventually(c.t, func() bool {
		d, err := temporalClient.DescribeWorkflowExecution(context.Background(), workflowID, "")
		return err == nil && d.GetWorkflowExecutionInfo().GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
	}, patience, 50*time.Millisecond)
}

// TestNoSecretIsLeftAnywhere sweeps everything that is kept — rows, histories,
// logs — for every secret that there was, plain, in base64 and in hex.
func TestNoSecretIsLeftAnywhere(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{processes: true, timeouts: impatient(prego.ReasonFailedHandshake)})
	// Failures put more text into more places.
	c.inject(sim.Fault{Kind: "boot_without_agent", Times: 1})
	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "respond", Status: 429, Code: "rate_limit_exceeded", Message: "limit reached for token " + c.vars["HCLOUD_TOKEN"], Times: 1})
	c.create("secretive", prego.RoleApp, server.Spec{})
	c.awaitStatus("secretive", server.Active)
	c.awaitRunEnd(server.ProvisionWorkflowID(prego.ServerID(c.id("secretive"))))

	deriver, err := token.NewDeriver(c.masterKey)
	require.NoError(t, err)
	secrets := map[string]string{"master key": c.masterKey, "provider token": c.vars["HCLOUD_TOKEN"], "operator token": c.operator, "root password": "YItygq1v3GYjjMomLaKc"}
	rows, err := c.pool.Query(context.Background(), `SELECT token_id FROM server_bootstrap_tokens`)
	require.NoError(t, err)
	for rows.Next() {
		var id string
		require.NoError(t, rows.Scan(&id))
		secrets["bootstrap token "+id] = deriver.Derive(id)
	}
	require.NoError(t, rows.Err())
	require.Len(t, secrets, 6, "two attempts, two tokens")
	// The agent's own JWT, from the host.
	identity, err := os.ReadFile(filepath.Join(c.sim.Hosts()[0].Root, "var/lib/prego-agent/identity.json"))
	require.NoError(t, err)
	jwt := strings.Split(strings.SplitN(string(identity), `"token":"`, 2)[1], `"`)[0]
	require.True(t, strings.HasPrefix(jwt, "ey"))
	secrets["agent token"] = jwt

	places := map[string]string{}
	dump, err := exec.Command(pgDump(t), "--inserts", c.url).Output()
	require.NoError(t, err)
	require.Contains(t, string(dump), c.id("secretive"), "the sweep looks at something")
	places["database"] = string(dump)
	for _, name := range []string{"worker", "api", "agentgw"} {
		b, err := os.ReadFile(c.logFile(name))
		require.NoError(t, err)
		require.NotEmpty(t, b)
		places[name+" log"] = string(b)
	}
	h, err := protojson.Marshal(history(t, server.ProvisionWorkflowID(prego.ServerID(c.id("secretive")))))
	require.NoError(t, err)
	places["history"] = string(h) + decodePayloads(string(h))
	require.Contains(t, places["history"], c.id("secretive"))
	for what, secret := range secrets {
		for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret))} {
			for place, text := range places {
				require.NotContains(t, text, form, "%s in %s", what, place)
			}
		}
	}
}

// decodePayloads decodes the base64 inputs and results of a history.
func decodePayloads(history string) string {
	var b strings.Builder
	for _, field := range strings.Split(history, `"data":"`)[1:] {
		text, _, _ := strings.Cut(field, `"`)
		if d, err := base64.StdEncoding.DecodeString(text); err == nil {
			b.Write(d)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func pgDump(t testing.TB) string {
	t.Helper()
	if p, err := exec.LookPath("pg_dump"); err == nil {
		return p
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pg_dump")
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found[len(found)-1]
}

// writeHistory writes a history if recording is on.
func writeHistory(t *testing.T, name string, h *historypb.History) {
	t.Helper()
	if !*record {
		return
	}
	b, err := protojson.MarshalOptions{Multiline: true}.Marshal(h)
	require.NoError(t, err)
	dir := filepath.Join(repo, "workflows", "testdata", "histories")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".json"), b, 0o600))
}

// TestRecordHistories runs each story once and, with -record, writes its history. Without the flag it checks that the
// current runs can be replayed immediately.
func TestRecordHistories(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{timeouts: impatient(prego.ReasonFailedHandshake)})
	c.create("plain", prego.RoleApp, server.Spec{})
	c.awaitStatus("plain", server.Active)
	keepHistory(t, c, "provision-active", server.ProvisionWorkflowID(prego.ServerID(c.id("plain"))))
	status, _ := c.request(http.MethodDelete, "/v1/servers/"+c.id("plain"), nil)
	require.Equal(t, http.StatusAccepted, status)
	c.awaitStatus("plain", server.Terminated)
	keepHistory(t, c, "decommission", server.DecommissionWorkflowID(prego.ServerID(c.id("plain"))))

	c.inject(sim.Fault{Kind: "no_cloud_init", Server: "*-retried-*", Times: 1})
	c.create("retried", prego.RoleRedisPool, server.Spec{})
	c.awaitStatus("retried", server.Active)
	keepHistory(t, c, "provision-retried", server.ProvisionWorkflowID(prego.ServerID(c.id("retried"))))

	c.inject(sim.Fault{Kind: "no_cloud_init", Server: "*-hopeless-*"})
	c.create("hopeless", prego.RoleRedisPool, server.Spec{})
	c.awaitFailed("hopeless", prego.ReasonFailedHandshake)
	keepHistory(t, c, "provision-failed", server.ProvisionWorkflowID(prego.ServerID(c.id("hopeless"))))

	c.inject(sim.Fault{Kind: "boot_without_agent", Server: "*-broken-*"})
	c.create("broken", prego.RoleRedisPool, server.Spec{})
	c.awaitFailed("broken", prego.ReasonFailedBoot)
	keepHistory(t, c, "provision-boot-failed", server.ProvisionWorkflowID(prego.ServerID(c.id("broken"))))

	c.sim.SetStock("*", "*", false)
	c.create("waiting", prego.RoleRedisPool, server.Spec{})
	eventually(t, func() bool { return deref(c.get("waiting").StatusReason) == "awaiting_capacity" }, patience, 50*time.Millisecond)
	c.sim.SetStock("*", "*", true)
	c.awaitStatus("waiting", server.Active)
	keepHistory(t, c, "provision-awaited-capacity", server.ProvisionWorkflowID(prego.ServerID(c.id("waiting"))))

	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "respond", Status: 503, Code: "unavailable", Times: 6})
	c.create("outage", prego.RoleRedisPool, server.Spec{})
	require.Equal(t, 1, c.awaitStatus("outage", server.Active).Attempt, "the third try of the same attempt")
	keepHistory(t, c, "provision-awaited-provider", server.ProvisionWorkflowID(prego.ServerID(c.id("outage"))))

	c.create("cancelled", prego.RoleRedisPool, server.Spec{})
	require.NoError(t, temporalClient.CancelWorkflow(context.Background(), server.ProvisionWorkflowID(prego.ServerID(c.id("cancelled"))), ""))
	c.await("cancelled", "failed or active", func(s api.Server) bool { return s.Status == "failed" || s.Status == "active" })
	keepHistory(t, c, "provision-cancelled", server.ProvisionWorkflowID(prego.ServerID(c.id("cancelled"))))

	c.reconcile()
	keepHistory(t, c, "reconcile", server.ReconcileWorkflowID(c.env))
	require.NoError(t, temporalClient.ScheduleClient().GetHandle(context.Background(), server.SweepWorkflowID(c.env)).Trigger(context.Background(), client.ScheduleTriggerOptions{}))
	var sweep string
	eventually(t, func() bool {
		d, err := temporalClient.ScheduleClient().GetHandle(context.Background(), server.SweepWorkflowID(c.env)).Describe(context.Background())
		if err != nil || len(d.Info.RecentActions) == 0 {
			return false
		}
		sweep = d.Info.RecentActions[0].StartWorkflowResult.WorkflowID
		return true
	}, patience, 100*time.Millisecond)
	keepHistory(t, c, "sweep-heartbeats", sweep)
}
