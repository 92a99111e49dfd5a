package dockerhost

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/server"
)

// TestHealthIsHeardOfNotAskedFor: a container that takes a while to become healthy is inspected after the engine's
// events, and often only without events.
func TestHealthIsHeardOfNotAskedFor(t *testing.T) {
	t.Parallel()
	const takes = 1500 * time.Millisecond
	awaited := func(events bool) (asked int64) {
		var looks atomic.Int64
		begun := time.Now()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch {
			case strings.HasSuffix(r.URL.Path, "/_ping"):
				w.Header().Set("Api-Version", "1.41")
			case strings.HasSuffix(r.URL.Path, "/events") && events:
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(takes - time.Since(begun))
				_ = json.NewEncoder(w).Encode(map[string]any{"Type": "container", "Action": "health_status: healthy", "Actor": map[string]any{"ID": "c1"}})
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			case strings.HasSuffix(r.URL.Path, "/containers/c1/json"):
				looks.Add(1)
				health := "starting"
				if time.Since(begun) > takes {
					health = "healthy"
				}
				_ = json.NewEncoder(w).Encode(map[string]any{"Id": "c1", "State": map[string]any{"Status": "running", "Running": true, "StartedAt": "2026-01-01T00:00:00Z", "Health": map[string]any{"Status": health}}})
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		}))
		defer srv.Close()
		c, err := client.New(client.WithHost("tcp://" + srv.Listener.Addr().String()))
		require.NoError(t, err)
		h := &Host{serverID: "s", c: c}
		defer func() { _ = c.Close(); srv.CloseClientConnections() }()
		require.NoError(t, h.await(t.Context(), h.watch(t.Context()), "c1", server.ContainerSpec{Name: "c", Health: &server.ContainerHealth{Command: []string{"/check"}}}))
		return looks.Load()
	}
	told := awaited(true)
	silent := awaited(false)
	require.LessOrEqual(t, told, int64(4), "at the start, once a second, and at the end")
	require.Greater(t, silent, told)
}
