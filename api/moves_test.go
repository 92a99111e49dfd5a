package api_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

// TestEqualMoveRequestsAreOneMove: each of 64 that come together is answered with the move that one of them started.
func TestEqualMoveRequestsAreOneMove(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1", "app-2")
	path := "/v1/tenants/" + b.site("bakery") + "/moves"
	var together sync.WaitGroup
	ids := make([]string, 64)
	statuses := make([]int, len(ids))
	for i := range ids {
		together.Go(func() {
			resp, body := b.send("POST", path, "operator", js, `{"to_server_id":"app-2","reason":"closer"}`)
			statuses[i] = resp.StatusCode
			if resp.StatusCode == http.StatusAccepted {
				ids[i] = as[api.Move](t, body).MoveId
			}
		})
	}
	together.Wait()
	for i := range ids {
		require.Equal(t, []any{http.StatusAccepted, ids[0]}, []any{statuses[i], ids[i]}, fmt.Sprint(i))
	}
	for what, sql := range map[string]string{
		"row":        `SELECT count(*) FROM tenant_moves`,
		"event":      `SELECT count(*) FROM events WHERE kind = 'tenant' AND step = 'move_requested'`,
		"org's":      `SELECT count(*) FROM org_events WHERE type = 'move.create'`,
		"audit's":    `SELECT count(*) FROM audit_entries WHERE kind = 'move' AND verb <> 'request'`,
		"open moves": `SELECT count(*) FROM tenant_moves WHERE finished_at IS NULL`,
	} {
		var n int
		require.NoError(t, b.pool.QueryRow(t.Context(), sql).Scan(&n), what)
		require.Equal(t, 1, n, what)
	}
}

// TestAMoveToNowhereIsRefused: before anything is started, by the code of what does not exist.
func TestAMoveToNowhereIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1", "app-2")
	path := "/v1/tenants/" + b.site("bakery") + "/moves"
	for body, want := range map[string][3]string{
		`{"to_server_id":"nope"}`: {"server_unknown", "to_server_id", `there is no app server "nope"`},
		`{"to_server_id":"db-1"}`: {"server_unknown", "to_server_id", `there is no app server "db-1"`},
		`{"to_shard_id":"nope"}`:  {"db_shard_unknown", "to_shard_id", `there is no DB shard "nope"`},
		`{"to_pool_id":"nope"}`:   {"redis_pool_unknown", "to_pool_id", `there is no Redis pool "nope"`},
	} {
		resp, answer := b.send("POST", path, "operator", js, body)
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s: %s", body, answer)
		p := as[api.Problem](t, answer)
		require.Equal(t, want, [3]string{p.Code, *p.Field, *p.Detail})
	}
	var moves int
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM tenant_moves`).Scan(&moves))
	require.Zero(t, moves)
}
