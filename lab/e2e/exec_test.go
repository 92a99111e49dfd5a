package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// cli runs an operator's verb and returns what it prints and its status.
func (c *cell) cli(token string, args ...string) (stdout, stderr string, status int) {
	c.t.Helper()
	cmd := exec.Command(filepath.Join(bins, "prego"), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PREGO_API_URL=http://" + c.addr("api"), "PREGO_TOKEN=" + token}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(c.t, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestAnOperatorLooksAtAHostWithoutLoggingIn(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	app := c.sharedFleet(2)
	id := c.tenant("alpha", prego.PlanTrial, func(m map[string]any) { m["apps"] = []string{"erpnext"} })
	c.settledTenant(id, tenant.Active)

	// What the tenant's provisioning ran is in the audit, with how it ended.
	var page api.CommandPage
	c.send(http.MethodGet, "/v1/servers/"+app+"/commands?limit=200", nil, http.StatusOK, &page)
	ran := map[string]api.Command{}
	for _, v := range page.Commands {
		ran[v.AuditId] = v
		if strings.HasPrefix(v.AuditId, id) {
			require.Equal(t, []any{"workflow", "bench", tenant.ProvisionWorkflowID(prego.TenantID(id))}, []any{string(v.Actor), string(v.Kind), deref(v.WorkflowId)})
			require.NotNil(t, v.ExitCode, v.AuditId)
			require.Zero(t, *v.ExitCode, v.AuditId)
			require.NotNil(t, v.FinishedAt)
		}
	}
	for _, what := range []string{"promote", "configure", "app-erpnext", "scheduler"} {
		require.Contains(t, ran, id+"-a1-"+what)
	}

	// The stream, as it is on the wire.
	body, err := json.Marshal(api.Exec{Kind: "bench", Args: []string{"list-sites"}})
	require.NoError(t, err)
	send := func(token string, body []byte) *http.Response {
		req, err := http.NewRequest(http.MethodPost, "http://"+c.addr("api")+"/v1/servers/"+app+"/exec", bytes.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := need.HTTP.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	resp := send(c.operator, body)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	events, lines := wire.NewEventReader(resp.Body), []string{}
	for {
		name, data, err := events.Next()
		require.NoError(t, err)
		if name == wire.EventResult {
			var r api.ExecResult
			require.NoError(t, json.Unmarshal(data, &r))
			require.Zero(t, r.ExitCode)
			require.Equal(t, resp.Header.Get("Prego-Audit-Id"), r.AuditId)
			break
		}
		var l api.ExecProgress
		require.NoError(t, json.Unmarshal(data, &l))
		lines = append(lines, l.Line)
	}
	require.Contains(t, strings.Join(lines, "\n"), `"alpha.sites.test"`)
	require.Equal(t, http.StatusForbidden, send(c.viewer, body).StatusCode)
	refused := send(c.operator, []byte(`{"kind":"bench","args":["--site","alpha.sites.test","console"]}`))
	require.Equal(t, http.StatusUnprocessableEntity, refused.StatusCode)
	var p api.Problem
	require.NoError(t, json.NewDecoder(refused.Body).Decode(&p))
	require.Equal(t, "command_not_allowed", p.Code)

	// The verbs.
	out, errs, status := c.cli(c.operator, "exec", app, "bench", "--", "--site", "alpha.sites.test", "list-apps")
	require.Zero(t, status, errs)
	require.Contains(t, out, "erpnext")
	_, errs, status = c.cli(c.operator, "exec", app, "bench", "--", "--site", "no-such.sites.test", "list-apps")
	require.NotZero(t, status)
	require.NotEqual(t, 2, status, "it is the command's own: %s", errs)
	_, errs, status = c.cli(c.operator, "exec", app, "bench", "--", "execute", "frappe.ping")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "command_not_allowed")
	_, errs, status = c.cli(c.viewer, "exec", app, "bench", "--", "list-sites")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "forbidden")
	out, _, status = c.cli(c.viewer, "server", "commands", app)
	require.Zero(t, status)
	require.Contains(t, out, "alice")
	require.Contains(t, out, "alpha.sites.test enable-scheduler")
	require.Equal(t, 2, c.number(`SELECT count(*) FROM agent_command_audit WHERE actor = 'operator' AND requested_by LIKE 'alice (%' AND exit_code IS NULL AND stderr_truncated LIKE 'refused: command_not_allowed%' AND args_redacted NOT LIKE '%frappe.ping%'`), "words that the table lacks are not recorded")

	// The containers.
	var list api.ContainerList
	c.send(http.MethodGet, "/v1/servers/"+app+"/containers", nil, http.StatusOK, &list)
	var names []string
	for _, v := range list.Containers {
		require.Equal(t, v.Name == "configurator", v.State == "exited", "%s is %s", v.Name, v.State) // it runs once
		names = append(names, v.Name)
	}
	require.ElementsMatch(t, []string{
		"backend", "configurator", "frontend", "mariadb", "queue-long", "queue-short", "redis-cache", "redis-queue", "scheduler", "websocket",
	}, names)
	var host string
	c.query(&host, `SELECT host FROM servers WHERE server_id = $1`, app)
	engine := c.engineOf(strings.TrimSuffix(app, "-"+c.env))
	out, errs, status = c.cli(c.operator, "container", "logs", app, "mariadb", "--tail", "5")
	require.Zero(t, status, errs)
	require.Contains(t, out, "is running")
	_, errs, status = c.cli(c.operator, "container", "logs", app, "nginx")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "container_not_found")

	require.NoError(t, engine.Stop(t.Context(), "frontend"))
	_, _, status = c.cli(c.viewer, "container", "repair", app)
	require.Equal(t, 2, status)
	_, errs, status = c.cli(c.operator, "container", "repair", app)
	require.NotZero(t, status)
	require.Contains(t, errs, "interrupts tenant alpha")
	out, errs, status = c.cli(c.operator, "container", "repair", app, "--yes")
	require.Zero(t, status, errs)
	require.Contains(t, out, "repaired frontend: stopped")
	there, err := engine.List(t.Context())
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(there, func(i server.ContainerInfo) bool { return i.State != "running" && i.Name != "configurator" }))
	require.Equal(t, 1, c.number(`SELECT count(*) FROM server_events WHERE server_id = $1 AND step = 'containers_repaired' AND actor = 'operator' AND message LIKE '%alice%'`, app))

	// A host that is away: it is unknown whether the command ran, and the row records that.
	_, err = c.pool.Exec(t.Context(), `UPDATE servers SET host = '127.9.9.9' WHERE server_id = $1`, app)
	require.NoError(t, err)
	began := time.Now()
	_, errs, status = c.cli(c.operator, "exec", app, "bench", "--", "list-sites")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "server_not_reachable")
	require.Less(t, time.Since(began), 30*time.Second)
	// The pool's refill may call the host meanwhile, and has rows of its own.
	require.Equal(t, 1, c.number(`SELECT count(*) FROM agent_command_audit WHERE server_id = $1 AND actor = 'operator'
		AND requested_by LIKE 'alice (%' AND args_redacted = 'list-sites'
		AND exit_code IS NULL AND finished_at IS NOT NULL AND stderr_truncated LIKE 'outcome unknown%'`, app))
	_, err = c.pool.Exec(t.Context(), `UPDATE servers SET host = $2 WHERE server_id = $1`, app, host)
	require.NoError(t, err)
}
