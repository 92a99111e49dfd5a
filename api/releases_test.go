package api_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

func TestReleasesAreTurnedOverTheAPI(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for body, code := range map[string]string{
		`{"name":"15.80"}`:               "invalid_field",
		`{"name":"15/80","image":"i:1"}`: "invalid_field",
		`{"name":"15.80","image":"i:1","rings":[{"name":"a"},{"name":"b"}]}`: "invalid_field",
	} {
		resp, answer := b.do("POST", "/v1/releases", "operator", js, body)
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s: %s", body, answer)
		require.Equal(t, code, as[api.Problem](t, answer).Code)
	}
	const valid = `{"name":"15.80","image":"frappe/erpnext:v15.80.0","apps":{"frappe":"15.80.1"},"rings":[{"name":"early","percent":5,"soak_seconds":60}]}`
	resp, _ := b.do("POST", "/v1/releases", "viewer", js, valid)
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	resp, answer := b.do("POST", "/v1/releases", "operator", js, valid)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", answer)
	r := as[api.StackRelease](t, answer)
	require.Equal(t, "created", r.Status)
	require.Equal(t, map[string]string{"frappe": "15.80.1"}, r.Apps)
	require.Equal(t, "rest", r.Rings[1].Name)
	require.Empty(t, b.runs.asked(), "nothing happens before it is started")
	resp, answer = b.do("POST", "/v1/releases", "operator", js, `{"name":"15.80","image":"frappe/erpnext:v15.81.0"}`)
	require.Equal(t, http.StatusConflict, resp.StatusCode)
	require.Equal(t, "stack_release_exists", as[api.Problem](t, answer).Code)
	resp, answer = b.do("POST", "/v1/releases/none/start", "operator", "", "")
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
	require.Equal(t, "stack_release_not_found", as[api.Problem](t, answer).Code)

	_, err := b.pool.Exec(t.Context(), `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
		VALUES ('app-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'test')`)
	require.NoError(t, err)
	for _, turn := range []struct {
		verb   string
		status int
		now    string
	}{
		{"pause", http.StatusConflict, "created"},
		{"start", http.StatusAccepted, "rolling"},
		{"start", http.StatusAccepted, "rolling"},
		{"pause", http.StatusAccepted, "paused"},
		{"start", http.StatusConflict, "paused"},
		{"resume", http.StatusAccepted, "rolling"},
		{"cancel", http.StatusAccepted, "cancelled"},
		{"resume", http.StatusConflict, "cancelled"},
	} {
		resp, answer = b.do("POST", "/v1/releases/15.80/"+turn.verb, "operator", "", "")
		require.Equal(t, turn.status, resp.StatusCode, "%s: %s", turn.verb, answer)
		resp, answer = b.do("GET", "/v1/releases/15.80", "viewer", "", "")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		r = as[api.StackRelease](t, answer)
		require.Equal(t, turn.now, r.Status, turn.verb)
	}
	require.Contains(t, b.runs.asked(), server.StackReleaseWorkflowID("15.80"))
	require.Len(t, r.Servers, 1)
	require.Equal(t, []string{"app-1", "rest", "skipped"}, []string{r.Servers[0].ServerId, r.Servers[0].Ring, r.Servers[0].Status})
	resp, answer = b.do("GET", "/v1/releases?status=cancelled", "viewer", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Len(t, as[api.StackReleasePage](t, answer).Releases, 1)
}
