package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/server"
)

// fakeHosts stands for agents and engines.
type fakeHosts struct {
	run     func(ctx context.Context, c server.Command, onLine func(stream, line string)) (server.CommandOutcome, error)
	logs    func(ctx context.Context, follow bool, line func(string) error) error
	listErr error
	drift   []server.ContainerDrift
	fail    error
	// during, when set, is called while containers are repaired.
	during func()
}

func (h *fakeHosts) Run(ctx context.Context, _ string, c server.Command, _ time.Duration, onLine func(stream, line string)) (server.CommandOutcome, error) {
	return h.run(ctx, c, onLine)
}

func (h *fakeHosts) ListContainers(context.Context, prego.ServerID, string) ([]server.ContainerInfo, error) {
	return []server.ContainerInfo{
		{Name: "bench", Image: "bench:1", State: "running", Health: "healthy", StartedAt: time.Now()}, {Name: "redis", Image: "redis:7", State: "exited", ExitCode: 137, OOMKilled: true},
	}, h.listErr
}

func (h *fakeHosts) ContainerLogs(ctx context.Context, _ prego.ServerID, _ string, _ prego.Role, _ string, _ int, follow bool, line func(string) error) error {
	return h.logs(ctx, follow, line)
}

func (h *fakeHosts) RepairContainers(context.Context, prego.ServerID, string, prego.Role) ([]server.ContainerDrift, error) {
	if h.during != nil {
		h.during()
	}
	return h.drift, h.fail
}

// reachable makes a server whose host can be called.
func (b *bundle) reachable(id string) {
	b.t.Helper()
	resp, body := b.do("POST", create, "operator", js, strings.ReplaceAll(valid, "app-1", id))
	require.Equal(b.t, 202, resp.StatusCode, "%s", body)
	_, err := b.pool.Exec(context.Background(), `UPDATE servers SET status = 'active', agent_status = 'connected', host = '192.0.2.7' WHERE server_id = $1`, id)
	require.NoError(b.t, err)
}

// eventsOf reads a stream.
func eventsOf(t *testing.T, body []byte) (names []string, data [][]byte) {
	t.Helper()
	r := wire.NewEventReader(bytes.NewReader(body))
	for {
		name, d, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, data
		}
		require.NoError(t, err)
		names, data = append(names, name), append(data, bytes.Clone(d))
	}
}

const listSites = `{"kind":"bench","args":["list-sites"]}`

func TestExecStreamsAndIsAudited(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.reachable("app-1")
	zero := 0
	b.hosts.run = func(_ context.Context, c server.Command, onLine func(stream, line string)) (server.CommandOutcome, error) {
		var started int
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM agent_command_audit WHERE audit_id = $1 AND started_at IS NOT NULL AND finished_at IS NULL`, c.AuditID).Scan(&started))
		require.Equal(t, 1, started, "the row is there before the command runs")
		for _, l := range []string{"a.example.com", "token=sesame", "-----BEGIN RSA PRIVATE KEY-----", "MIIabc", "-----END RSA PRIVATE KEY-----", "b"} {
			onLine("stdout", l)
		}
		onLine("stderr", "warn hunter2-hunter2")
		return server.CommandOutcome{ExitCode: &zero, Duration: 12 * time.Millisecond, Stdout: "token=sesame\n", Stderr: "hunter2-hunter2"}, nil
	}
	resp, body := b.send("POST", "/v1/servers/app-1/exec", "operator", js, `{"kind":"bench","args":["--site","a.example.com","set-config","smtp_password","hunter2-hunter2"]}`)
	require.Equal(t, 200, resp.StatusCode, "%s", body)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	names, data := eventsOf(t, body)
	require.Equal(t, []string{"progress", "progress", "progress", "progress", "progress", "progress", "progress", "result"}, names)
	var printed []string
	for _, d := range data[:7] {
		printed = append(printed, as[api.ExecProgress](t, d).Line)
	}
	require.Equal(t, []string{"a.example.com", "token=[redacted]", "[redacted]", "[redacted]", "[redacted]", "b", "warn [redacted]"}, printed)
	result := as[api.ExecResult](t, data[7])
	require.Equal(t, api.ExecResult{AuditId: resp.Header.Get("Prego-Audit-Id"), DurationMs: 12, Stdout: "token=[redacted]\n", Stderr: "[redacted]"}, result)
	resp, body = b.do("GET", "/v1/servers/app-1/commands", "viewer", "", "")
	require.Equal(t, 200, resp.StatusCode)
	require.NotContains(t, string(body), "hunter2")
	page := as[api.CommandPage](t, body)
	require.Len(t, page.Commands, 1)
	row := page.Commands[0]
	require.Equal(t, []any{result.AuditId, "operator", "operator", "bench", "--site a.example.com set-config smtp_password …", 0},
		[]any{row.AuditId, string(row.Actor), deref(row.RequestedBy), string(row.Kind), row.Args, *row.ExitCode})
	for _, e := range b.logs.All() {
		for _, v := range e.ContextMap() {
			require.NotContains(t, toString(v), "hunter2")
		}
	}

	for range 4 {
		b.send("POST", "/v1/servers/app-1/exec", "operator", js, listSites)
	}
	seen, path := 0, "/v1/servers/app-1/commands?limit=2"
	for path != "" {
		_, body := b.do("GET", path, "viewer", "", "")
		page := as[api.CommandPage](t, body)
		seen += len(page.Commands)
		if path = ""; page.NextCursor != nil {
			path = "/v1/servers/app-1/commands?limit=2&cursor=" + *page.NextCursor
		}
	}
	require.Equal(t, 5, seen)
}

func TestExecRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.reachable("app-1")
	exec := "/v1/servers/app-1/exec"
	ran := 0
	for _, tc := range []struct {
		name, path, token, body string
		host                    error
		status                  int
		code                    string
	}{
		{"a viewer", exec, "viewer", listSites, nil, 403, "forbidden"},
		{"no such server", "/v1/servers/app-9/exec", "operator", listSites, nil, 404, "server_not_found"},
		{"unknown kind", exec, "operator", `{"kind":"bash","args":["-c","id"]}`, nil, 422, "kind_unknown"},
		{"no kind", exec, "operator", `{"args":["id"]}`, nil, 422, "kind_unknown"},
		{"no args", exec, "operator", `{"kind":"bench","args":[]}`, nil, 422, "invalid_field"},
		{"NUL", exec, "operator", `{"kind":"bench","args":["a\u0000"]}`, nil, 422, "invalid_field"},
		{"too long", exec, "operator", `{"kind":"bench","args":["list-sites"],"timeout_seconds":721}`, nil, 422, "invalid_field"},
		{"a directory", exec, "operator", `{"kind":"bench","args":["list-sites"],"working_dir":"/"}`, nil, 400, "unknown_field"},
		{"not allowed", exec, "operator", `{"kind":"bench","args":["console"]}`, &server.CommandError{Code: "command_not_allowed", Permanent: true, Message: "no"}, 422, "command_not_allowed"},
		{"busy", exec, "operator", listSites, &server.CommandError{Code: "busy", Message: "too many"}, 429, "busy"},
		{"away", exec, "operator", listSites, &server.CommandError{Code: server.CommandUnreachable, Message: "dial tcp: password=sesame"}, 409, "server_not_reachable"},
		{"another host", exec, "operator", listSites, &server.CommandError{Code: server.CommandMistrusted, Permanent: true, Message: "x"}, 409, "server_not_reachable"},
		{"given up", exec, "operator", listSites, context.DeadlineExceeded, 503, "not_ready"},
	} {
		b.hosts.run = func(context.Context, server.Command, func(string, string)) (server.CommandOutcome, error) {
			ran++
			return server.CommandOutcome{}, tc.host
		}
		before, ask := ran, b.do
		if tc.host != nil { // a dry run does not ask it
			ask = b.send
		}
		resp, body := ask("POST", tc.path, tc.token, js, tc.body)
		require.Equal(t, tc.status, resp.StatusCode, "%s: %s", tc.name, body)
		require.Equal(t, tc.code, as[api.Problem](t, body).Code, tc.name)
		require.NotContains(t, string(body), "sesame")
		require.Equal(t, tc.host != nil, ran > before, tc.name)
	}
	var unknown int
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM agent_command_audit WHERE exit_code IS NULL AND finished_at IS NOT NULL AND stderr_truncated <> ''`).Scan(&unknown))
	require.Equal(t, ran, unknown, "a sent command has its row; its outcome is unknown")

	for _, change := range []string{"status = 'draining'", "status = 'provisioning'", "agent_status = 'disconnected'", "host = ''"} {
		b.reachable("app-2")
		_, err := b.pool.Exec(t.Context(), `UPDATE servers SET `+change+` WHERE server_id = 'app-2'`)
		require.NoError(t, err)
		resp, body := b.do("POST", "/v1/servers/app-2/exec", "operator", js, listSites)
		require.Equal(t, []any{409, "server_not_reachable"}, []any{resp.StatusCode, as[api.Problem](t, body).Code}, change)
		b.reachable("app-2")
	}

	b.hosts.run = func(_ context.Context, _ server.Command, onLine func(string, string)) (server.CommandOutcome, error) {
		onLine("stdout", "half")
		return server.CommandOutcome{}, &server.CommandError{Code: server.CommandUnreachable, Message: "cut"}
	}
	resp, body := b.send("POST", exec, "operator", js, listSites)
	require.Equal(t, 200, resp.StatusCode)
	names, data := eventsOf(t, body)
	require.Equal(t, []string{"progress", "error"}, names)
	require.Equal(t, "server_not_reachable", as[api.Problem](t, data[1]).Code)
}

// TestACommandThatStopsIsAccepted: what a command does to the tenant of its site, or to all of its server, is stated and
// accepted before it runs.
func TestACommandThatStopsIsAccepted(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1")
	b.sql(`UPDATE servers SET host = '192.0.2.7'`)
	bakery, shop := b.site("bakery"), b.site("shop")
	ran := 0
	b.hosts.run = func(context.Context, server.Command, func(string, string)) (server.CommandOutcome, error) {
		ran++
		return server.CommandOutcome{ExitCode: new(int)}, nil
	}
	exec := func(kind string, args ...string) string {
		body, err := json.Marshal(map[string]any{"kind": kind, "args": args})
		require.NoError(t, err)
		return string(body)
	}
	for _, tc := range []struct {
		server, body        string
		affected, destroyed []string
	}{
		{"app-1", exec("bench", "--site", "bakery.sites.test", "migrate"), []string{bakery}, nil},
		{"app-1", exec("bench", "--site", "bakery.sites.test", "set-maintenance-mode", "on"), []string{bakery}, nil},
		{"app-1", exec("bench", "--site", "bakery.sites.test", "restore", "own-1"), []string{bakery}, []string{bakery}},
		{"db-1", exec("mariadb", "freeze-database", "tenant_bakery_db"), []string{bakery, shop}, nil},
	} {
		path := "/v1/servers/" + tc.server + "/exec"
		shown := b.refusedImpact("POST", path, tc.body, nothing)
		require.Zero(t, ran, tc.body)
		var affected, lost []string
		for _, a := range shown.Affected {
			affected = append(affected, a.ID)
		}
		for _, l := range shown.Destroyed {
			lost = append(lost, l.ID)
		}
		require.ElementsMatch(t, tc.affected, affected, tc.body)
		require.Equal(t, tc.destroyed, lost, tc.body)
		resp, answer := b.sendWith("POST", path, tc.body, "Impact-Accepted", shown.Digest)
		require.Equal(t, 200, resp.StatusCode, "%s", answer)
		require.Equal(t, 1, ran, tc.body)
		ran = 0
	}
	for _, body := range []string{
		exec("bench", "--site", "bakery.sites.test", "set-maintenance-mode", "off"),
		exec("bench", "--site", "bakery.sites.test", "list-apps"),
	} {
		resp, answer := b.send("POST", "/v1/servers/app-1/exec", "operator", js, body)
		require.Equal(t, 200, resp.StatusCode, "%s", answer)
	}
}

// TestStreamsEndWithTheirCallerAndTheProcess serves with the process's own limits.
// TestACommandThatErasesIsRefused, also from an operator, while a tenant has what it would erase.
func TestACommandThatErasesIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.reachable("app-1")
	b.org("acme", "")
	id := b.tenant(`{"slug":"acme","org_id":"acme","region":"eu","plan":"starter"}`)
	for _, sql := range []string{
		`UPDATE tenants SET state = 'active', site = 'acme.example.com'`,
		`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name,
			infra_provider, algorithm) VALUES ('` + id + `', 'app-1', 'app-1', 'app-1', 'acme.example.com', 'pool_acme',
			'hetzner', 'x')`,
	} {
		_, err := b.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	ran := 0
	b.hosts.run = func(context.Context, server.Command, func(string, string)) (server.CommandOutcome, error) {
		ran++
		return server.CommandOutcome{}, nil
	}
	drop := func(database string) (int, api.Problem) {
		resp, body := b.send("POST", "/v1/servers/app-1/exec", "operator", js, `{"kind":"mariadb","args":["drop-database","`+database+`"]}`)
		if resp.StatusCode == http.StatusOK {
			return resp.StatusCode, api.Problem{}
		}
		return resp.StatusCode, as[api.Problem](t, body)
	}
	status, p := drop("pool_acme")
	require.Equal(t, []any{409, "holds_data"}, []any{status, p.Code})
	require.Contains(t, *p.Detail, "tenant acme is active")
	require.Zero(t, ran)
	status, _ = drop("pool_old")
	require.Equal(t, []any{200, 1}, []any{status, ran})
	_, err := b.pool.Exec(t.Context(), `INSERT INTO freezes (frozen_by, reason) VALUES ('ann', 'a wrong policy')`)
	require.NoError(t, err)
	status, p = drop("pool_old")
	require.Equal(t, []any{409, "frozen"}, []any{status, p.Code})
	require.Equal(t, 1, ran)
}

func TestStreamsEndWithTheirCallerAndTheProcess(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.reachable("app-1")
	closed := make(chan error, 2)
	b.hosts.logs = func(ctx context.Context, _ bool, line func(string) error) error {
		if err := line("one"); err != nil {
			return err
		}
		deadline, _ := ctx.Deadline()
		if err := line(time.Until(deadline).Round(time.Minute).String()); err != nil {
			return err
		}
		<-ctx.Done()
		closed <- ctx.Err()
		return ctx.Err()
	}
	finished := make(chan struct{})
	b.hosts.run = func(ctx context.Context, _ server.Command, onLine func(string, string)) (server.CommandOutcome, error) {
		onLine("stdout", "one")
		select {
		case <-ctx.Done():
			return server.CommandOutcome{}, ctx.Err()
		case <-finished:
			three := 3
			return server.CommandOutcome{ExitCode: &three}, nil
		}
	}
	a := api.New(api.Deps{
		Store: b.store, Shell: b.hosts, Containers: b.hosts, Runs: b.runs, Auth: auth, Importer: imports{}, Log: zap.NewNop(),
		Registry: prometheus.NewRegistry(), RatePerSecond: 1000, RateBurst: 1000,
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, l, 10*time.Second) }()
	open := func(ctx context.Context, method, path, body string) *bufio.Scanner {
		req := request(t, "http://"+l.Addr().String(), method, path, "operator", js, body).WithContext(ctx)
		resp, err := need.HTTP.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		require.Equal(t, 200, resp.StatusCode)
		s := bufio.NewScanner(resp.Body)
		require.True(t, s.Scan())
		return s
	}
	logs := "/v1/servers/app-1/containers/bench/logs?follow=true"
	caller, leave := context.WithCancel(t.Context())
	open(caller, "GET", logs, "")
	leave()
	require.ErrorIs(t, <-closed, context.Canceled, "it ends with its caller")

	// A command runs to its end even if its caller disconnects.
	caller, leave = context.WithCancel(t.Context())
	open(caller, "POST", "/v1/servers/app-1/exec", listSites)
	leave()
	time.Sleep(100 * time.Millisecond)
	close(finished)
	require.Eventually(t, func() bool {
		var n int
		err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM agent_command_audit WHERE exit_code = 3`).Scan(&n)
		return err == nil && n == 1
	}, 5*time.Second, 20*time.Millisecond)

	s := open(t.Context(), "GET", logs, "")
	require.True(t, s.Scan())
	require.Equal(t, "15m0s", s.Text())
	stop()
	require.ErrorIs(t, <-closed, context.Canceled, "it ends with the process")
	require.NoError(t, <-served)
}

func TestContainersAreShownAndRepaired(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.reachable("app-1")
	resp, body := b.do("GET", "/v1/servers/app-1/containers", "viewer", "", "")
	require.Equal(t, 200, resp.StatusCode, "%s", body)
	list := as[api.ContainerList](t, body).Containers
	require.Equal(t, []any{"bench", "healthy", "redis", 137, true}, []any{list[0].Name, deref(list[0].Health), list[1].Name, *list[1].ExitCode, *list[1].OomKilled})

	b.hosts.logs = func(_ context.Context, _ bool, line func(string) error) error {
		return errors.Join(line("password=sesame"), line("-----BEGIN PRIVATE KEY-----"), line("abc"))
	}
	logs := "/v1/servers/app-1/containers/bench/logs"
	resp, body = b.do("GET", logs+"?tail=2", "operator", "", "")
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "password=[redacted]\n[redacted]\n[redacted]\n", string(body))
	for path, want := range map[string]string{logs + "?tail=0": "invalid_field", logs + "?tail=x": "invalid_field", logs + "?since=1": "unknown_field", "/v1/servers/app-1/containers/..x/logs": "invalid_field"} {
		resp, body = b.do("GET", path, "operator", "", "")
		require.Equal(t, want, as[api.Problem](t, body).Code, "%s %d", path, resp.StatusCode)
	}
	b.hosts.logs = func(context.Context, bool, func(string) error) error {
		return prego.Errorf(prego.CodeContainerNotFound, "no")
	}
	resp, _ = b.do("GET", logs, "operator", "", "")
	require.Equal(t, 404, resp.StatusCode)

	repair := "/v1/servers/app-1/containers/repair"
	resp, _ = b.do("POST", repair, "viewer", "", "")
	require.Equal(t, 403, resp.StatusCode)
	b.hosts.drift = []server.ContainerDrift{{Container: "redis", Kind: server.DriftStopped, Detail: "exited"}}
	resp, body = b.do("POST", repair, "operator", "", "")
	require.Equal(t, 200, resp.StatusCode, "%s", body)
	require.Equal(t, "redis", as[api.ContainerRepair](t, body).Repaired[0].Container)
	timeline := b.show("app-1").Timeline
	leased := false // as long as the command may run, so that no caller repeats it
	b.hosts.during = func() {
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT leased_until > now() + interval '15 minutes' FROM request_keys ORDER BY created_at DESC LIMIT 1`).Scan(&leased))
	}
	resp, body = b.sendWith("POST", repair, "", "Idempotency-Key", "r")
	require.Equal(t, []any{200, true}, []any{resp.StatusCode, leased}, "%s", body)
	b.hosts.during = nil
	last := timeline[len(timeline)-1]
	require.Equal(t, []string{"containers_repaired", "operator", "redis: stopped (exited); asked for by operator"}, []string{last.Step, string(last.Actor), deref(last.Message)})

	b.hosts.fail = &server.ContainerError{Container: "redis", Message: "it dies in a loop; password=sesame"}
	resp, body = b.send("POST", repair, "operator", "", "") // a dry run does not query the host
	require.Equal(t, []any{409, "container_failed"}, []any{resp.StatusCode, as[api.Problem](t, body).Code})
	require.NotContains(t, string(body), "sesame")
	b.hosts.listErr = errors.New("dial tcp: refused")
	resp, body = b.do("GET", "/v1/servers/app-1/containers", "operator", "", "")
	require.Equal(t, []any{409, "server_not_reachable"}, []any{resp.StatusCode, as[api.Problem](t, body).Code})
	b.set("app-1", server.Failed)
	resp, body = b.do("POST", repair, "operator", "", "")
	require.Equal(t, []any{409, "invalid_transition"}, []any{resp.StatusCode, as[api.Problem](t, body).Code})
}

// TestValuesOfArgumentsAreNotRecorded: no list or audit that a viewer reads has a value that an operator passed, in
// whatever key or group's command.
func TestValuesOfArgumentsAreNotRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.workloads()
	b.reachable("app-1")
	zero := 0
	b.hosts.run = func(
		_ context.Context, c server.Command, onLine func(stream, line string),
	) (server.CommandOutcome, error) {
		last := c.Args[len(c.Args)-1]
		onLine("stdout", "set to "+last)
		return server.CommandOutcome{ExitCode: &zero, Stdout: "set to " + last, Stderr: last}, nil
	}
	values := map[string]string{
		"smtp_pass": "Xk2plainword", "stripe_key": "sk_live_51HxAbCdEf", "otp": "987654", "pin": "4711-0815",
		"webhook": "https://hooks.example.com/T01/B02/wXyZ", "sentry_dsn": "https://a1b2c3@sentry.example.com/7",
		"client_key": "c1ientkeyvalue", "license": "LIC-AAAA-BBBB", "session": "sess-1234-abcd",
		"cookie": "sid=abcdef0123", "signature": "sig0123456789",
		"mail_password": "pa55-mail", "api_key": "apikey-0001", "aws_id": "AKIAIOSFODNN7EXAMPLE", "salt": "s4ltys4lt",
		"authorization": "Bearer abc.def.ghi", "seed": "correct-horse-battery",
	}
	require.Len(t, values, 17)
	exec := func(args ...string) {
		t.Helper()
		text, err := json.Marshal(map[string]any{"kind": "bench", "args": args})
		require.NoError(t, err)
		resp, body := b.send("POST", "/v1/servers/app-1/exec", "operator", js, string(text))
		require.Equal(t, 200, resp.StatusCode, "%s", body)
	}
	for key, value := range values {
		exec("--site", "a.example.com", "set-config", key, value)
	}
	exec("--site", "a.example.com", "add-user", "kim@example.com", "Kim Park")
	exec("drop-everything", "--pw=unpermitted")
	spec := strings.Replace(plainSpec, "{", `{"command":["serve","PASSWORD=in-a-command"],`, 1)
	resp, body := b.do("POST", groups, "operator", js, `{"name":"web","spec":`+spec+`}`)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", body)
	resp, body = b.do("POST", "/v1/groups/"+as[api.ProcessGroup](t, body).GroupId+"/deploys", "operator", js,
		`{"spec":`+strings.Replace(spec, "in-a-command", "in-a-deploy", 1)+`}`)
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", body)

	secrets := []string{"in-a-command", "in-a-deploy", "kim@example.com", "Kim Park", "unpermitted"}
	for _, value := range values {
		secrets = append(secrets, value)
	}
	for _, path := range []string{"/v1/servers/app-1/commands?limit=100", "/v1/audit?limit=200"} {
		resp, body := b.do("GET", path, "viewer", "", "")
		require.Equal(t, 200, resp.StatusCode)
		require.Contains(t, string(body), "set-config otp …", "the key is public")
		for _, secret := range secrets {
			require.NotContains(t, string(body), secret, path)
		}
	}
}
