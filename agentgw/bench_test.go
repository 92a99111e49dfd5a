package agentgw_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/agentgw"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/lab/benchjson"
)

// BenchmarkHeartbeats prints heartbeats per second through the gateway, beside a
// bare handler that does the same mTLS and checks the same JWT, in the same run.
func BenchmarkHeartbeats(b *testing.B) {
	const agents, each = 16, 400
	bu := setup(b, func(s *agentgw.Settings) { s.Flush, s.HostUnits = 250*time.Millisecond, 1e6 })
	bare := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		cert := r.TLS.PeerCertificates[0]
		if bu.ca.Verify(pki.AgentClient, cert) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if _, err := bu.agents.Verify(r.Header.Get("Authorization")[7:], cert, wire.ScopeHeartbeat); err != nil {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	bare.TLS = bu.ca.GatewayTLS("gw.test")
	bare.EnableHTTP2 = true
	bare.StartTLS()
	b.Cleanup(bare.Close)
	clients := make([]*http.Client, agents)
	jwts := make([]string, agents)
	for i := range agents {
		id := fmt.Sprintf("a%d", i)
		bu.server(prego.ServerID(id))
		key := newKey(b)
		status, _, identity := bu.handshake(id, key, nil)
		require.Equal(b, 200, status)
		clients[i], jwts[i] = bu.client(certificate(b, identity.Certificates.AgentClient, key)), identity.Token
		bu.exec(`UPDATE servers SET status = 'active' WHERE server_id = $1`, id)
	}
	rate := func(url string) float64 {
		var failed atomic.Int64
		began := time.Now()
		var wg sync.WaitGroup
		for i := range agents {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range each {
					req, err := http.NewRequest(http.MethodPost, url+wire.PathHeartbeat, bytes.NewReader([]byte(beat)))
					if err != nil {
						failed.Add(1)
						continue
					}
					req.Header.Set("Authorization", "Bearer "+jwts[i])
					resp, err := clients[i].Do(req)
					if err != nil || resp.StatusCode != http.StatusOK {
						failed.Add(1)
					}
					if err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
					}
				}
			}()
		}
		wg.Wait()
		require.Zero(b, failed.Load())
		return agents * each / time.Since(began).Seconds()
	}
	var got, limit []float64
	for b.Loop() {
		got, limit = nil, nil
		rate(bu.url) // warm up
		rate(bare.URL)
		for range 5 { // in turns
			limit = append(limit, rate(bare.URL))
			got = append(got, rate(bu.url))
		}
	}
	slices.Sort(got)
	slices.Sort(limit)
	b.ReportMetric(0, "ns/op")
	benchjson.Record(b, "heartbeats", got[2], "heartbeats/s", limit[2])
}
