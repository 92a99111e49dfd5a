package adviser_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/adviser"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/placement"
)

func TestItAsksAndReadsTheAnswer(t *testing.T) {
	t.Parallel()
	ask := placement.AdviceRequest{TenantID: "t-1", Region: "eu", Plan: "starter", Candidates: []placement.Candidate{{AppServerID: "app-1", DBShardID: "db-1", RedisPoolID: "redis-1", Score: 0.5, Site: true}}}
	var got placement.AdviceRequest
	var head http.Header
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head = r.Header
		if r.Method == http.MethodPost && json.NewDecoder(r.Body).Decode(&got) == nil {
			_, _ = w.Write([]byte(`{"app_server_id":"app-1","reason":"quiet","confidence":0.9}`))
		}
	}))
	defer s.Close()
	a, err := adviser.HTTP{URL: s.URL, Token: "secret", Client: s.Client()}.Advise(t.Context(), ask)
	require.NoError(t, err)
	require.Equal(t, placement.Advice{AppServerID: "app-1", Reason: "quiet"}, a)
	require.Equal(t, ask, got)
	require.Equal(t, "Bearer secret", head.Get("Authorization"))
}

func TestWhatIsNoAdviceIsAnError(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	for want, answer := range map[string]http.HandlerFunc{
		"the adviser answered 500":             func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"can't be read: invalid character '<'": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`<html>`)) },
		"cannot unmarshal array":               func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"app_server_id":["app-1"]}`)) },
		"can't be read: unexpected EOF": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"reason":"` + strings.Repeat("x", 1<<20) + `"}`))
		},
		"can't be read: EOF":        func(http.ResponseWriter, *http.Request) {},
		"context deadline exceeded": func(http.ResponseWriter, *http.Request) { <-release },
	} {
		s := httptest.NewServer(answer)
		patience := time.Minute
		if strings.HasPrefix(want, "context") {
			patience = 300 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		a, err := adviser.HTTP{URL: s.URL, Client: s.Client()}.Advise(ctx, placement.AdviceRequest{})
		cancel()
		t.Cleanup(s.Close)
		require.ErrorContains(t, err, want)
		require.Zero(t, a)
	}
	_, err := adviser.HTTP{URL: "http://user:password@%zz", Client: need.HTTP}.Advise(t.Context(), placement.AdviceRequest{})
	require.ErrorContains(t, err, "PLACEMENT_ADVISER_URL")
	require.NotContains(t, err.Error(), "password")
}
