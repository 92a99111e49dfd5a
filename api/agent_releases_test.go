package api_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

func TestReleasesOfTheAgentAreTurnedOverTheAPI(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	document := fmt.Sprintf(`{"version":"v1.4.0","serial":7,"sha256":"%s"}`, strings.Repeat("a", 64))
	signed := func(document, signature, rings string) string {
		return fmt.Sprintf(`{"signed":{"document":%q,"signature":%q},"rings":[%s]}`, base64.StdEncoding.EncodeToString([]byte(document)), signature, rings)
	}
	for name, body := range map[string]string{
		"no base64":       `{"signed":{"document":"?","signature":"c2ln"}}`,
		"no document":     signed("{}", "c2ln", ""),
		"no signature":    signed(document, "", ""),
		"rings of others": signed(document, "c2ln", `{"name":"canary","tenants":["t-1"]}`),
		"rings backwards": signed(document, "c2ln", `{"name":"a","percent":9},{"name":"b","percent":5}`),
	} {
		resp, answer := b.do("POST", "/v1/agent-releases", "operator", js, body)
		require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s: %s", name, answer)
	}
	valid := signed(document, "c2ln", `{"name":"early","percent":5,"soak_seconds":60}`)
	resp, _ := b.do("POST", "/v1/agent-releases", "viewer", js, valid)
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	resp, answer := b.do("POST", "/v1/agent-releases", "operator", js, valid)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", answer)
	r := as[api.AgentRelease](t, answer)
	require.Equal(t, "created", r.Status)
	require.Equal(t, []string{"early", "rest"}, []string{r.Rings[0].Name, r.Rings[1].Name})
	resp, answer = b.do("POST", "/v1/agent-releases", "operator", js, signed(strings.Replace(document, "v1.4.0", "v1.5.0", 1), "c2ln", ""))
	require.Equal(t, http.StatusConflict, resp.StatusCode, "of the same serial")
	require.Equal(t, "stack_release_exists", as[api.Problem](t, answer).Code)

	_, err := b.pool.Exec(t.Context(), `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, agent_version)
		VALUES ('app-1', '', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'test', 'v1.3.0')`)
	require.NoError(t, err)
	for _, turn := range []struct {
		verb   string
		status int
		now    string
	}{{"pause", http.StatusConflict, "created"}, {"start", http.StatusOK, "rolling"}, {"pause", http.StatusOK, "paused"}, {"start", http.StatusOK, "rolling"}, {"cancel", http.StatusOK, "cancelled"}, {"start", http.StatusConflict, "cancelled"}} {
		resp, answer = b.do("POST", "/v1/agent-releases/v1.4.0/"+turn.verb, "operator", "", "")
		require.Equal(t, turn.status, resp.StatusCode, "%s: %s", turn.verb, answer)
		resp, answer = b.do("GET", "/v1/agent-releases/v1.4.0", "viewer", "", "")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		r = as[api.AgentRelease](t, answer)
		require.Equal(t, turn.now, r.Status, turn.verb)
	}
	require.Len(t, r.Servers, 1)
	require.Equal(t, []string{"app-1", "early", "skipped"}, []string{r.Servers[0].ServerId, r.Servers[0].Ring, r.Servers[0].Status})
	require.Equal(t, "v1.3.0", *r.Servers[0].AgentVersion)
	resp, answer = b.do("GET", "/v1/agent-releases?status=cancelled", "viewer", "", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Len(t, as[api.AgentReleasePage](t, answer).AgentReleases, 1)
}
