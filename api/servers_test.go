package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/server"
)

// atOnce sends the requests together and counts the answers by status and code.
func (b *bundle) atOnce(n int, request func(i int) (method, path, body string)) map[string]int {
	b.t.Helper()
	b.untried = true
	answers := make([]string, n)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			<-start
			method, path, body := request(i)
			resp, answer := b.do(method, path, "operator", js, body)
			answers[i] = fmt.Sprint(resp.StatusCode)
			if resp.StatusCode >= 400 {
				answers[i] += " " + as[api.Problem](b.t, answer).Code
			}
		}()
	}
	close(start)
	wg.Wait()
	count := map[string]int{}
	for _, a := range answers {
		count[a]++
	}
	return count
}

func TestConcurrentCreatesOfOneServerMakeOneRow(t *testing.T) {
	t.Parallel()
	t.Run("equal bodies", func(t *testing.T) {
		t.Parallel()
		b := setup(t, nil)
		require.Equal(t, map[string]int{"202": 32}, b.atOnce(32, func(int) (string, string, string) { return "POST", create, valid }))
		require.Equal(t, 2, b.rows(), "one server and one event")
	})
	t.Run("two bodies", func(t *testing.T) {
		t.Parallel()
		b := setup(t, nil)
		count := b.atOnce(32, func(i int) (string, string, string) {
			if i%2 == 1 {
				return "POST", create, strings.Replace(valid, `"app"`, `"node"`, 1)
			}
			return "POST", create, valid
		})
		require.Equal(t, map[string]int{"202": 16, "409 server_id_conflict": 16}, count, "one of the two bodies won")
		require.Equal(t, 2, b.rows())
	})
	t.Run("equal imports", func(t *testing.T) {
		t.Parallel()
		b := setup(t, nil)
		require.Equal(t, map[string]int{"202": 32}, b.atOnce(32, func(int) (string, string, string) { return "POST", "/v1/servers/import", taken }))
		require.Equal(t, 2, b.rows())
	})
	t.Run("two imports of one machine", func(t *testing.T) {
		t.Parallel()
		b := setup(t, nil)
		count := b.atOnce(32, func(i int) (string, string, string) {
			return "POST", "/v1/servers/import", strings.Replace(taken, "db-1", fmt.Sprintf("db-%d", i%2), 1)
		})
		require.Equal(t, map[string]int{"202": 16, "409 provider_server_conflict": 16}, count)
		require.Equal(t, 2, b.rows())
	})
}

func TestCreateIsIdempotent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	_, first := b.do("POST", create, "operator", js, valid)
	accepted := func(answer []byte) api.Accepted {
		a := as[api.Accepted](t, answer)
		require.Equal(t, "server-provision/app-1", a.Operation.Id)
		a.Operation = nil // how it stands changes
		return a
	}
	require.Equal(t, api.Accepted{WorkflowId: "server-provision/app-1", ServerId: "app-1", StatusUrl: "/v1/servers/app-1"}, accepted(first))
	same := func(when string) {
		resp, again := b.do("POST", create, "operator", js+"; charset=UTF-8", ` {"infra_provider":"hetzner","region":"eu","role":"app","server_id":"app-1"}`)
		require.Equal(t, 202, resp.StatusCode, "%s: %s", when, again)
		require.Equal(t, accepted(first), accepted(again), when)
	}
	same("immediately, in other words")
	_, err := b.pool.Exec(context.Background(), `UPDATE infra_providers SET enabled = false`)
	require.NoError(t, err)
	same("after its provider was disabled")
	require.Equal(t, []string{"provision app-1", "provision app-1", "provision app-1"}, b.runs.asked())
	for _, status := range []server.Status{server.Active, server.Failed, server.Decommissioning} {
		b.set("app-1", status)
		same("while " + string(status))
	}
	require.Len(t, b.runs.asked(), 3, "nothing is started for a server that is not provisioning")
	b.set("app-1", server.Terminated)
	for _, body := range []string{valid, strings.Replace(valid, `"app"`, `"node"`, 1)} {
		resp, answer := b.do("POST", create, "operator", js, body)
		require.Equal(t, 409, resp.StatusCode)
		p := as[api.Problem](t, answer)
		require.Equal(t, "server_terminated", p.Code)
		require.Equal(t, "server_id", deref(p.Field))
	}
	resp, answer := b.do("POST", create, "operator", js, strings.Replace(valid, "app-1", "app-2", 1))
	require.Equal(t, 422, resp.StatusCode)
	require.Equal(t, "infra_provider_disabled", as[api.Problem](t, answer).Code)
	_, err = b.pool.Exec(context.Background(), `UPDATE infra_providers SET enabled = true, regions = '{us}' WHERE id = 'hetzner'`)
	require.NoError(t, err)
	resp, answer = b.do("POST", create, "operator", js, strings.Replace(valid, "app-1", "app-2", 1))
	require.Equal(t, 422, resp.StatusCode)
	require.Equal(t, "region_not_served", as[api.Problem](t, answer).Code)
	require.Equal(t, 2, b.rows(), "one server and one event, after all")
}

func TestAcceptedAlthoughTheEngineIsAway(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.runs.fail = errors.New("temporal is away")
	resp, body := b.do("POST", create, "operator", js, valid)
	require.Equal(t, 202, resp.StatusCode, "%s", body)
	resp, body = b.do("DELETE", "/v1/servers/app-1", "operator", "", "")
	require.Equal(t, 202, resp.StatusCode, "%s", body)
	resp, _ = b.do("POST", "/internal/reconcile", "operator", "", "")
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, []string{"provision app-1", "decommission app-1", "reconcile"}, b.runs.asked())
	require.Equal(t, 2, b.logs.FilterMessage("run not started; the worker will start it").Len())
}

func TestACallerWhoHangsUpHasAnAcceptedServer(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	starting, gone, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	b.runs.hold = func(ctx context.Context) {
		close(starting)
		<-gone
		select {
		case <-ctx.Done():
			result <- ctx.Err()
		case <-time.After(50 * time.Millisecond): // nothing of the caller's going comes through
			_, bounded := ctx.Deadline()
			if !bounded {
				result <- errors.New("a start without a deadline")
			}
			result <- nil
		}
	}
	ctx, hangUp := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.srv.URL+create, strings.NewReader(valid))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer operator")
	req.Header.Set("Content-Type", js)
	go func() {
		<-starting
		hangUp()
	}()
	_, err = need.HTTP.Do(req)
	require.ErrorIs(t, err, context.Canceled)
	close(gone)
	require.NoError(t, <-result)
	require.Equal(t, 2, b.rows())
}

func TestRetryAndDeleteAreAllowedWhenTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.do("POST", create, "operator", js, valid)
	retry := func() (int, string) {
		resp, body := b.do("POST", "/v1/servers/app-1/retry", "operator", "", "")
		return resp.StatusCode, string(body)
	}
	for _, status := range []server.Status{server.Provisioning, server.Active, server.Decommissioning, server.Terminated} {
		b.set("app-1", status)
		code, body := retry()
		require.Equal(t, 409, code)
		require.Contains(t, body, "invalid_transition")
		require.Contains(t, body, "only a failed server can be retried; this one is "+string(status))
	}
	b.set("app-1", server.Failed)
	tenants := func(n int) {
		_, err := b.pool.Exec(context.Background(), `UPDATE servers SET tenant_count = $1 WHERE server_id = 'app-1'`, n)
		require.NoError(t, err)
	}
	tenants(6)
	status, refusal := retry()
	require.Equal(t, 409, status)
	require.Contains(t, refusal, `"server_has_tenants"`)
	require.Contains(t, refusal, "server app-1 has 6 tenants, and a retry would replace its machine")
	require.Equal(t, &api.ServerUse{Tenants: 6}, b.show("app-1").Holds)
	tenants(0)
	require.Nil(t, b.show("app-1").Holds)
	require.Equal(t, map[string]int{"202": 1, "409 invalid_transition": 15},
		b.atOnce(16, func(int) (string, string, string) { return "POST", "/v1/servers/app-1/retry", "" }))
	s := b.show("app-1")
	require.Equal(t, 2, s.Generation)
	require.Equal(t, api.ServerStatus("provisioning"), s.Status)
	require.Equal(t, "server-provision/app-1", s.WorkflowId)

	for _, status := range []server.Status{server.Provisioning, server.Active, server.Failed} {
		id := "d-" + string(status)
		b.do("POST", create, "operator", js, strings.Replace(valid, "app-1", id, 1))
		b.set(id, status)
		require.Equal(t, map[string]int{"202": 16}, b.atOnce(16, func(int) (string, string, string) { return "DELETE", "/v1/servers/" + id, "" }))
		s := b.show(id)
		require.Equal(t, api.ServerStatus("draining"), s.Status)
		require.NotNil(t, s.DecommissionRequestedAt)
		require.Len(t, s.Timeline, 2, "asked sixteen times, written once")
		require.Equal(t, "decommission_requested", s.Timeline[1].Step)
		require.Equal(t, "server-decommission/"+id, s.WorkflowId)
		require.Equal(t, "http://ui/server-decommission/"+id, deref(s.RunUrl))
	}
	started := len(b.runs.asked())
	b.set("d-active", server.Terminated)
	resp, body := b.do("DELETE", "/v1/servers/d-active", "operator", "", "")
	require.Equal(t, 202, resp.StatusCode)
	require.Equal(t, "server-decommission/d-active", as[api.Accepted](t, body).WorkflowId)
	require.Len(t, b.runs.asked(), started, "a deleted server is not taken down again")
}

func TestImport(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ask := func() (int, string) {
		resp, body := b.do("POST", "/v1/servers/import", "operator", js, taken)
		return resp.StatusCode, string(body)
	}
	code, first := ask()
	require.Equal(t, 202, code, first)
	require.Contains(t, first, "#cloud-config")
	s := b.show("db-1")
	require.Equal(t, api.ServerManagedBy("pulumi"), s.ManagedBy)
	require.NotNil(t, s.ImportedFromPulumiAt)
	require.Equal(t, "4711", deref(s.Provider.ProviderServerId))
	require.Equal(t, "import_requested", s.Timeline[0].Step)
	require.Equal(t, 1, s.Attempt)
	_, again := ask()
	require.Equal(t, first, again)

	b.set("db-1", server.Failed)
	code, body := ask()
	require.Equal(t, 409, code)
	require.Contains(t, body, "retry it")
	b.do("POST", "/v1/servers/db-1/retry", "operator", "", "")
	code, _ = ask()
	require.Equal(t, 202, code)
	require.Equal(t, 2, b.show("db-1").Attempt, "the token of the first attempt is over; the second gets its own")

	_, err := b.pool.Exec(context.Background(), `UPDATE servers SET status = 'failed', agent_status = 'connected', agent_first_heartbeat_at = now() WHERE server_id = 'db-1'`)
	require.NoError(t, err)
	b.do("POST", "/v1/servers/db-1/retry", "operator", "", "")
	require.Equal(t, 2, b.show("db-1").Attempt, "an agent that is there needs no new token")

	b.set("db-1", server.Active)
	code, body = ask()
	require.Equal(t, 409, code)
	require.Contains(t, body, "nothing left to bootstrap")
	resp, answer := b.do("POST", create, "operator", js, strings.Replace(valid, "app-1", "db-1", 1))
	require.Equal(t, 409, resp.StatusCode)
	require.Equal(t, "server_id_conflict", as[api.Problem](t, answer).Code, "a create is not an import")
}

func TestServersMayHaveTheNamesOfPaths(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, id := range []string{"import", "create", "retry", "servers"} {
		b.do("POST", create, "operator", js, strings.Replace(valid, "app-1", id, 1))
		_, body := b.send("GET", "/v1/servers/"+id, "viewer", "", "")
		require.Equal(t, id, as[api.Server](t, body).ServerId)
		b.set(id, server.Failed)
		resp, _ := b.send("POST", "/v1/servers/"+id+"/retry", "operator", "", "")
		require.Equal(t, 202, resp.StatusCode)
		resp, _ = b.send("DELETE", "/v1/servers/"+id, "operator", "", "")
		require.Equal(t, 202, resp.StatusCode)
	}
}

func TestTheTimelineIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.do("POST", create, "operator", js, valid)
	_, err := b.pool.Exec(context.Background(), `
INSERT INTO events (kind, id, step, status, message, actor)
SELECT 'server', 'app-1', 'agent_degraded', 'active', 'n' || n, 'system' FROM generate_series(1, 1200) n ORDER BY n`)
	require.NoError(t, err)
	line := b.show("app-1").Timeline
	require.Len(t, line, 1000)
	require.Equal(t, "n201", deref(line[0].Message))
	require.Equal(t, "n1200", deref(line[999].Message))
	for i := 1; i < len(line); i++ {
		require.Greater(t, line[i].Id, line[i-1].Id)
	}
}

func TestPagingMeetsEachServerOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx := context.Background()
	for i := range 57 {
		r := server.CreateRequest{ServerID: prego.ServerID(fmt.Sprintf("s-%03d", i)), Role: prego.Roles()[i%4], Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner, Spec: server.Spec{Tags: []string{fmt.Sprintf("t%d", i%3)}}}
		_, _, err := b.store.CreateServer(ctx, r, "test")
		require.NoError(t, err)
	}
	// Times that are equal, as rows of one transaction have them.
	_, err := b.pool.Exec(ctx, `UPDATE servers SET created_at = date_trunc('second', now()) - interval '1 hour' WHERE server_id < 's-040'`)
	require.NoError(t, err)
	n := 57
	deep.Check(t, 12, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 60).Draw(rt, "limit")
		grow := rapid.Bool().Draw(rt, "grow")
		seen := map[string]int{}
		path := fmt.Sprintf("/v1/servers?limit=%d", limit)
		for cursor := ""; ; {
			_, body := b.do("GET", path+cursor, "viewer", "", "")
			page := as[api.ServerPage](t, body)
			require.LessOrEqual(rt, len(page.Servers), limit)
			for _, s := range page.Servers {
				seen[s.ServerId]++
			}
			if grow && n < 90 { // rows that arrive during paging
				_, _, err := b.store.CreateServer(ctx, server.CreateRequest{ServerID: prego.ServerID(fmt.Sprintf("late-%d", n)), Role: prego.RoleApp, Region: prego.RegionUS, InfraProvider: prego.ProviderHetzner}, "test")
				require.NoError(rt, err)
				n++
			}
			if page.NextCursor == nil {
				break
			}
			cursor = "&cursor=" + *page.NextCursor
		}
		for i := range 57 {
			require.Equal(rt, 1, seen[fmt.Sprintf("s-%03d", i)])
		}
		for id, times := range seen {
			require.Equal(rt, 1, times, id)
		}
	})
	for query, want := range map[string]int{
		"?limit=200&role=app&tag=T0&region=eu": 5, "?region=sg": 0, "?status=active": 0, "?tag=t1&limit=200": 19, "?region=eu&status=provisioning&limit=200": 57,
	} {
		_, body := b.do("GET", "/v1/servers"+query, "viewer", "", "")
		require.Len(t, as[api.ServerPage](t, body).Servers, want, query)
	}
	_, body := b.do("GET", "/v1/servers", "viewer", "", "")
	require.Len(t, as[api.ServerPage](t, body).Servers, 50, "a page without a limit")
}

func TestAnOperatorCordonsAServer(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.do("POST", create, "operator", js, valid)
	b.set("app-1", server.Active)
	for range 2 {
		resp, body := b.do("POST", "/v1/servers/app-1/cordon", "operator", js, `{"reason":"disk errors"}`)
		require.Equal(t, 200, resp.StatusCode, "%s", body)
		require.Contains(t, string(body), `"cordoned_by":"operator"`)
	}
	s := b.show("app-1")
	require.NotNil(t, s.CordonedAt)
	require.Equal(t, "disk errors", *s.CordonReason)
	require.Equal(t, "by operator: disk errors", *s.Timeline[len(s.Timeline)-1].Message)
	resp, body := b.do("POST", "/v1/servers/app-1/uncordon", "operator", "", "")
	require.Equal(t, 200, resp.StatusCode, "%s", body)
	require.NotContains(t, string(body), "cordon")
	require.Nil(t, b.show("app-1").CordonedAt)
	b.set("app-1", server.Decommissioning)
	resp, body = b.do("POST", "/v1/servers/app-1/cordon", "operator", "", "")
	require.Equal(t, 409, resp.StatusCode)
	require.Contains(t, string(body), "invalid_transition")
}

func TestAServerIsEmptiedOnRequest(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.do("POST", create, "operator", js, valid)
	drain := func(method, path, body string) (int, string, api.Maintenance) {
		contentType := ""
		if body != "" {
			contentType = js
		}
		resp, out := b.do(method, "/v1/servers/app-1/"+path, "operator", contentType, body)
		var d api.Maintenance
		if resp.StatusCode < 300 {
			require.NoError(t, json.Unmarshal(out, &d))
		}
		return resp.StatusCode, string(out), d
	}
	status, body, _ := drain("GET", "maintenance", "")
	require.Equal(t, 404, status)
	require.Contains(t, body, "maintenance_not_found")
	status, body, _ = drain("POST", "drain", "")
	require.Equal(t, 409, status, "it is not active yet")
	require.Contains(t, body, "invalid_transition")
	b.set("app-1", server.Active)
	status, body, _ = drain("POST", "replace", `{"keep_tenants":true}`)
	require.Equal(t, 422, status)
	require.Contains(t, body, "keep_tenants")

	status, body, d := drain("POST", "drain", `{"reason":"disk errors","timeout_seconds":60}`)
	require.Equal(t, 202, status, body)
	require.Equal(t, []any{api.MaintenanceKind("drain"), api.MaintenanceStatus("waiting"), "disk errors", "operator", "server-maintenance/app-1"}, []any{d.Kind, d.Status, *d.Why, d.RequestedBy, d.Operation.Id})
	require.NotNil(t, d.DeadlineAt)
	require.NotNil(t, b.show("app-1").CordonedAt)
	require.Contains(t, b.runs.started, "drain app-1")
	_, _, again := drain("POST", "drain", "")
	require.Equal(t, d.Number, again.Number)
	status, _, _ = drain("POST", "reboot", "")
	require.Equal(t, 409, status)
	status, body, d = drain("DELETE", "maintenance", "")
	require.Equal(t, 202, status, body)
	require.NotNil(t, d.CancelRequestedAt)
	_, _, d = drain("GET", "maintenance", "")
	require.NotNil(t, d.CancelRequestedAt)
}
