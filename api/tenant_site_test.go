package api_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/edge"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// lives makes a tenant whose site is on a host that answers.
func (b *bundle) lives(slug string) (id, of string) {
	b.t.Helper()
	b.reachable("app-1")
	exec := func(sql string, args ...any) {
		b.t.Helper()
		_, err := b.pool.Exec(context.Background(), sql, args...)
		require.NoError(b.t, err)
	}
	exec(`INSERT INTO orgs (org_id, created_by, tier) VALUES ('acme', 'a', 'enterprise') ON CONFLICT DO NOTHING`)
	resp, body := b.do("POST", "/v1/tenants", "operator", js, `{"slug":"`+slug+`","org_id":"acme","region":"eu","plan":"starter","admin_email":"ann@example.com"}`)
	require.Equal(b.t, http.StatusAccepted, resp.StatusCode, "%s", body)
	id = as[api.TenantAccepted](b.t, body).TenantId
	exec(`INSERT INTO db_shards (shard_id, server_id, region, tenant_capacity) VALUES ('app-1', 'app-1', 'eu', 10) ON CONFLICT DO NOTHING`)
	exec(`INSERT INTO redis_pools (pool_id, server_id, region, tenant_capacity) VALUES ('app-1', 'app-1', 'eu', 10) ON CONFLICT DO NOTHING`)
	exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
		VALUES ($1, 'app-1', 'app-1', 'app-1', '', 'tenant_x_db', 'hetzner', 'best_fit')`, id)
	exec(`UPDATE tenants SET state = 'active', converged_state = 'active', site = slug || '.sites.test' WHERE tenant_id = $1`, id)
	exec(`INSERT INTO site_usage (tenant_id, quota_gb, tried_at) SELECT tenant_id, storage_quota_gb, 'epoch' FROM tenants WHERE tenant_id = $1`, id)
	return id, "/v1/tenants/" + id
}

// told records a host's requests.
type told struct {
	mu       sync.Mutex
	commands []server.Command
}

func (s *told) last() server.Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commands[len(s.commands)-1]
}

// answers has the host end each command with a status, after printing the secrets that
// it was given, which no host should.
func (b *bundle) answers(status int) *told {
	s := &told{}
	b.hosts.run = func(_ context.Context, c server.Command, onLine func(stream, line string)) (server.CommandOutcome, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.commands = append(s.commands, c)
		text := "done"
		for _, secret := range c.Secrets {
			text += " " + secret
		}
		onLine("stdout", text)
		return server.CommandOutcome{ExitCode: &status, Duration: time.Millisecond, Stdout: text, Stderr: text}, nil
	}
	return s
}

// nowhere looks for a secret in every row, and in every line of the log.
func (b *bundle) nowhere(secret string) {
	b.t.Helper()
	require.GreaterOrEqual(b.t, len(secret), 8)
	rows, err := b.pool.Query(context.Background(), `SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'`)
	require.NoError(b.t, err)
	var tables []string
	for rows.Next() {
		var name string
		require.NoError(b.t, rows.Scan(&name))
		tables = append(tables, name)
	}
	require.NoError(b.t, rows.Err())
	require.Greater(b.t, len(tables), 20)
	for _, table := range tables {
		var n int
		require.NoError(b.t, b.pool.QueryRow(context.Background(), `SELECT count(*) FROM `+table+` r WHERE r::text LIKE '%' || $1 || '%'`, secret).Scan(&n))
		require.Zero(b.t, n, "in %s", table)
	}
	for _, e := range b.logs.All() {
		require.NotContains(b.t, e.Message+toString(e.ContextMap()), secret)
	}
}

func TestThePasswordIsShownOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	host := b.answers(0)
	id, of := b.lives("acme-kr")
	resp, body := b.do("POST", of+"/admin-password", "operator", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	first := as[api.AdminPassword](t, body)
	require.Equal(t, []any{"Administrator", "https://acme-kr.sites.test"}, []any{first.User, deref(first.SiteUrl)})
	require.Len(t, first.Password, 24)
	asked := host.last()
	require.Equal(t, []string{"--site", "acme-kr.sites.test", "set-admin-password"}, asked.Args)
	require.Equal(t, map[string]string{wire.SecretAdminPassword: first.Password}, asked.Secrets)
	require.Equal(t, []string{"app-1", id}, []string{string(asked.ServerID), string(asked.TenantID)})
	b.nowhere(first.Password)

	_, body = b.do("POST", of+"/admin-password", "operator", "", "")
	second := as[api.AdminPassword](t, body)
	require.NotEqual(t, first.Password, second.Password)
	_, body = b.do("GET", of, "viewer", "", "")
	require.NotContains(t, string(body), second.Password)
	tn := as[api.Tenant](t, body)
	require.Equal(t, []string{"admin_password_set", "operator"}, []string{tn.Timeline[len(tn.Timeline)-1].Step, tn.Timeline[len(tn.Timeline)-1].Actor})

	b.answers(1)
	resp, body = b.do("POST", of+"/admin-password", "operator", "", "")
	p := as[api.Problem](t, body)
	require.Equal(t, []any{http.StatusConflict, "site_command_failed"}, []any{resp.StatusCode, p.Code})
	require.Contains(t, deref(p.Detail), "done [redacted]", "not even where a host prints it")
	resp, body = b.do("POST", of+"/admin-password", "viewer", "", "")
	require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s", body)
}

func TestUsersAndMailOfASite(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	host := b.answers(0)
	_, of := b.lives("acme-kr")
	resp, body := b.do("POST", of+"/users", "operator", js, `{"email":"bob@example.com","name":"Bob B."}`)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", body)
	u := as[api.TenantUser](t, body)
	require.Equal(t, []string{"--site", "acme-kr.sites.test", "add-user", "bob@example.com", "Bob B."}, host.last().Args)
	require.Equal(t, map[string]string{wire.SecretUserPassword: deref(u.Password)}, host.last().Secrets)
	b.nowhere(deref(u.Password))
	resp, body = b.do("POST", of+"/users", "operator", js, `{"email":"o'brien@example.com"}`)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", body)
	resp, body = b.do("POST", of+"/users", "operator", js, `{"email":"carl@example.com","password":"none"}`)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", body)
	require.Nil(t, as[api.TenantUser](t, body).Password)
	require.Empty(t, host.last().Secrets)

	resp, body = b.do("PUT", of+"/mail", "operator", js, `{"server":"smtp.example.com","port":587,"tls":true,"login":"erp","password":"swordfish-1","sender":"erp@example.com"}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	require.NotContains(t, string(body), "swordfish")
	asked := host.last()
	require.Equal(t, map[string]string{wire.SecretMailPassword: "swordfish-1"}, asked.Secrets)
	require.Equal(t, "configure", asked.Args[2])
	require.JSONEq(t, `{"mail_server":"smtp.example.com","mail_port":587,"use_tls":1,"mail_login":"erp","auto_email_id":"erp@example.com",
		"email_sender_name":null,"always_use_account_email_id_as_sender":1,"disable_mail_smtp_authentication":0}`, asked.Args[3])
	b.nowhere("swordfish-1")
	_, body = b.do("GET", of, "viewer", "", "")
	tn := as[api.Tenant](t, body)
	require.Equal(t, []any{"smtp.example.com", "erp"}, []any{tn.Mail.Server, deref(tn.Mail.Login)})
	require.Equal(t, []string{"ann@example.com", "ann@example.com"}, []string{deref(tn.AdminEmail), deref(tn.AdminName)})
	before := host.last()
	require.Equal(t, []impact.Thing{{
		Kind: "mail", ID: tn.TenantId, Name: "smtp.example.com", OrgID: "acme", Class: impact.Interrupts,
	}}, b.refusedImpact("DELETE", of+"/mail", "", nothing).Affected)
	require.Equal(t, before, host.last(), "nothing reaches the site before it is accepted")
	resp, body = b.do("DELETE", of+"/mail", "operator", "", "")
	require.Equal(t, http.StatusNoContent, resp.StatusCode, "%s", body)
	require.Contains(t, host.last().Args[3], `"mail_password":null`)
	_, body = b.do("GET", of, "viewer", "", "")
	require.Nil(t, as[api.Tenant](t, body).Mail)
	resp, body = b.send("DELETE", of+"/mail", "operator", "", "")
	require.Equal(t, http.StatusNoContent, resp.StatusCode, "without settings nothing is asked: %s", body)
}

// TestRepairingUsedContainersIsAccepted before any reaches the host: any of them may be recreated.
func TestRepairingUsedContainersIsAccepted(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id, _ := b.lives("acme-kr")
	repaired := 0
	b.hosts.during = func() { repaired++ }
	const repair = "/v1/servers/app-1/containers/repair"
	shown := b.refusedImpact("POST", repair, "", nothing)
	require.Equal(t, []impact.Thing{{
		Kind: "tenant", ID: id, Name: "acme-kr", OrgID: "acme", Class: impact.Interrupts,
	}}, shown.Affected)
	require.Zero(t, repaired)
	b.ok(200, "POST", repair, "")
	require.Equal(t, 1, repaired)
}

// TestTenantShowsWhetherItsSiteAnswers: only while an edge probes it, and its uptime of the month.
func TestTenantShowsWhetherItsSiteAnswers(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id, of := b.lives("alpha")
	shown := func() api.Tenant {
		_, body := b.do("GET", of, "viewer", "", "")
		return as[api.Tenant](t, body)
	}
	require.Nil(t, shown().SiteHealth)
	require.Nil(t, shown().Uptime)
	for _, sql := range []string{
		`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
			SELECT 'edge-1', '', 'edge', region, 'hetzner', '{}', 'provisioning', 'w', 'test' FROM servers WHERE server_id = 'app-1'`,
		`UPDATE servers SET status = 'active' WHERE server_id = 'edge-1'`,
		`INSERT INTO edges (server_id, network) SELECT 'edge-1', COALESCE(network_id, region) FROM servers WHERE server_id = 'app-1'`,
	} {
		_, err := b.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	report := edge.Probed{ServerID: "edge-1", EdgeProbes: wire.EdgeProbes{Watch: "w", SinceMS: 100_000, Changes: []wire.EdgeProbe{
		{Tenant: id, State: wire.EdgeProbeUp, AgeMS: 100_000},
		{Tenant: id, State: wire.EdgeProbeDown, Cause: wire.EdgeProbeMissing, AgeMS: 50_000},
	}}}
	_, _, err := b.store.EdgeProbed(t.Context(), report)
	require.NoError(t, err)
	tn := shown()
	h := tn.SiteHealth
	require.Equal(t, []any{false, "missing", []string{"edge-1"}, []string{"edge-1"}}, []any{h.Up, deref(h.Cause), h.Edges, h.DownAt})
	month := (*tn.Uptime)[0]
	require.Regexp(t, `^20[0-9]{2}-[01][0-9]$`, month.Month)
	require.Positive(t, month.DownSeconds)
	require.NotNil(t, month.UptimePct)
}

func TestStorageQuota(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id, of := b.lives("alpha")
	rules := tenant.StorageRules{WarnPct: 90, HardPct: 120, Grace: time.Hour}
	turns, err := b.store.TakeSitesToMeasure(t.Context(), time.Hour, 10)
	require.NoError(t, err)
	require.Equal(t, []tenant.SiteToMeasure{{TenantID: prego.TenantID(id), ServerID: "app-1"}}, turns)
	level, err := b.store.KeepSiteUsage(t.Context(), prego.TenantID(id), tenant.SiteSize{DatabaseBytes: 8e9, FilesBytes: 3e9, BackupsBytes: 1, Users: 2}, rules)
	require.NoError(t, err)
	require.Equal(t, tenant.StorageOver, level)
	_, body := b.do("GET", of, "viewer", "", "")
	tn := as[api.Tenant](t, body)
	s := tn.Storage
	require.Equal(t, []any{int64(11e9), int64(10e9), "over", false, 2}, []any{s.UsedBytes, s.QuotaBytes, string(s.Level), s.ReadOnly, s.Users})
	require.InDelta(t, 110, s.UsedPct, 0.01)
	require.NotNil(t, s.OverSince)
	last := tn.Timeline[len(tn.Timeline)-1]
	require.Equal(t, []string{"storage", "storage_over", "11.00 of 10 GB are used (110 %)"}, []string{last.Step, deref(last.Reason), deref(last.Message)})

	resp, body := b.do("PUT", of+"/storage-quota", "operator", js, `{"gb":20}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
	_, body = b.do("GET", of, "viewer", "", "")
	require.Equal(t, 20, as[api.Tenant](t, body).StorageQuotaGb)
	turns, err = b.store.TakeSitesToMeasure(t.Context(), time.Hour, 10)
	require.NoError(t, err)
	require.Len(t, turns, 1, "it is measured next, whenever that was before")
	_, err = b.pool.Exec(t.Context(), `INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ('acme', 'max_total_volume_bytes', 25e9, 'a')`)
	require.NoError(t, err)
	resp, body = b.do("PUT", of+"/storage-quota", "operator", js, `{"gb":26}`)
	p := as[api.Problem](t, body)
	require.Equal(t, []any{http.StatusConflict, "quota_exceeded", "max_total_volume_bytes"}, []any{resp.StatusCode, p.Code, deref(p.Dimension)})
	resp, body = b.do("PUT", of+"/storage-quota", "operator", js, `{"gb":5}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", body)
}

func TestSitesRefuse(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.answers(0)
	id, of := b.lives("alpha")
	_, err := b.pool.Exec(t.Context(), `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
		VALUES ('t-gone', 'gone', 'acme', 'eu', 'starter', 1, 1, 'shared', '\x00', 'terminated', 'a')`)
	require.NoError(t, err)
	for _, tc := range []struct {
		method, path, body string
		status             int
		code, field        string
	}{
		{"POST", "/v1/tenants/t-none/admin-password", "", 404, "tenant_not_found", ""},
		{"POST", "/v1/tenants/t-gone/admin-password", "", 409, "invalid_transition", ""},
		{"PUT", "/v1/tenants/t-gone/storage-quota", `{"gb":2}`, 409, "invalid_transition", ""},
		{"PUT", of + "/storage-quota", `{"gb":0}`, 422, "invalid_field", "gb"},
		{"PUT", of + "/storage-quota", `{}`, 422, "invalid_field", "gb"},
		{"POST", of + "/users", `{"email":"ghost"}`, 422, "invalid_field", "email"},
		{"POST", of + "/users", `{"email":"a@b.c","name":"<b>"}`, 422, "invalid_field", "name"},
		{"POST", of + "/users", `{"email":"a..b@c.de"}`, 422, "invalid_field", "email"},
		{"POST", of + "/users", `{"email":"a.@c.de"}`, 422, "invalid_field", "email"},
		{"POST", of + "/users", `{"email":"a@192.0.2.1"}`, 422, "invalid_field", "email"},
		{"POST", of + "/users", `{"email":"a@xn--a.de"}`, 422, "invalid_field", "email"},
		{"POST", of + "/users", `{"email":"` + strings.Repeat("a", 65) + `@c.de"}`, 422, "invalid_field", "email"},
		{"PUT", of + "/mail", `{"server":"169.254.1.1","port":587,"sender":"a@b.c"}`, 422, "invalid_field", "server"},
		{"PUT", of + "/mail", `{"server":"127.1","port":587,"sender":"a@b.c"}`, 422, "invalid_field", "server"},
		{"POST", of + "/users", `{"email":"a@b.c","password":"hunter2"}`, 422, "invalid_field", "password"},
		{"PUT", of + "/mail", `{"server":"smtp.example.com","port":465,"tls":true,"sender":"a@b.c"}`, 422, "invalid_field", "port"},
		{"PUT", of + "/mail", `{"server":"smtp.example.com","port":587,"tls":false,"login":"a","password":"b","sender":"a@b.c"}`, 422, "invalid_field", "tls"},
		{"PUT", of + "/mail", `{"server":"smtp.example.com","port":587,"tls":true,"login":"a","sender":"a@b.c"}`, 422, "invalid_field", "password"},
		{"PUT", of + "/mail", `{"server":"smtp.example.com","port":587,"password":"b","sender":"a@b.c"}`, 422, "invalid_field", "password"},
		{"PUT", of + "/mail", `{"server":"-x","port":587,"sender":"a@b.c"}`, 422, "invalid_field", "server"},
		{"PUT", of + "/mail", `{"server":"x","port":25,"sender":"a"}`, 422, "invalid_field", "sender"},
		{"POST", "/v1/tenants", `{"slug":"b","org_id":"acme","region":"eu","plan":"trial","admin_email":"x"}`, 422, "invalid_field", "admin_email"},
		{"POST", "/v1/tenants", `{"slug":"b","org_id":"acme","region":"eu","plan":"trial","admin_name":"x"}`, 422, "invalid_field", "admin_name"},
	} {
		contentType := ""
		if tc.body != "" {
			contentType = js
		}
		resp, body := b.do(tc.method, tc.path, "operator", contentType, tc.body)
		p := as[api.Problem](t, body)
		require.Equal(t, []any{tc.status, tc.code, tc.field}, []any{resp.StatusCode, p.Code, deref(p.Field)}, "%s %s %s: %s", tc.method, tc.path, tc.body, body)
	}
	_, err = b.pool.Exec(t.Context(), `UPDATE servers SET agent_status = 'disconnected' WHERE server_id = 'app-1'`)
	require.NoError(t, err)
	resp, body := b.do("POST", "/v1/tenants/"+id+"/admin-password", "operator", "", "")
	require.Equal(t, []any{409, "server_not_reachable"}, []any{resp.StatusCode, as[api.Problem](t, body).Code})
}
