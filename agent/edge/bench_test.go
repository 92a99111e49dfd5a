package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/benchjson"
)

// BenchmarkEdge prints the requests per second of an edge with 10,000 hosts, beside a Caddy
// that knows one host and does nothing else, in turns in the same run; and how long an edge
// takes for its first document, and for a change of a site's and of a route's upstream.
func BenchmarkEdge(b *testing.B) {
	const sites, routes, rounds, span = 9000, 1000, 4, 2 * time.Second
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 1024)) }))
	b.Cleanup(s.Close)
	at := strings.TrimPrefix(s.URL, "http://")
	full, bare := newEdge(b), newProxy(b)
	d := large(sites, routes, []string{at}, [][]string{{at}})
	require.NoError(b, full.Apply(context.Background(), d, nil))
	benchjson.Record(b, "edge_first_document_ms", float64(full.Took().Milliseconds()), "ms", 0)
	var config map[string]any
	first, err := Caddy(wire.EdgeDocument{}, nil, bare.settings)
	require.NoError(b, err)
	require.NoError(b, json.Unmarshal(first, &config))
	delete(config, "logging")
	config["apps"].(obj)["http"] = obj{"servers": obj{"one": obj{
		"listen": []string{fmt.Sprintf("127.0.0.1:%d", bare.settings.HTTPPort)}, "automatic_https": obj{"disable": true},
		"routes": []obj{{"handle": []obj{{"handler": "reverse_proxy", "upstreams": []obj{{"dial": at}}}}}},
	}}}
	plain, err := json.Marshal(config)
	require.NoError(b, err)
	require.NoError(b, bare.admin.load(context.Background(), plain))

	rate := func(p *proxy, name func(int) string) float64 {
		var done, failed atomic.Int64
		var why atomic.Value
		var wg sync.WaitGroup
		began := time.Now()
		for w := range 8 {
			wg.Go(func() {
				c := p.newClient()
				for i := w; time.Since(began) < span; i += 7919 {
					// A connection is kept per worker and not per name, which is what a client is left with otherwise.
					req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://edge/", nil)
					if err != nil {
						failed.Add(1)
						why.Store(err.Error())
						continue
					}
					req.Host = name(i)
					resp, err := c.Do(req)
					if err != nil {
						failed.Add(1)
						why.Store(err.Error())
						continue
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					if resp.StatusCode != http.StatusOK {
						failed.Add(1)
						why.Store(resp.Status)
						continue
					}
					done.Add(1)
				}
			})
		}
		wg.Wait()
		require.Zero(b, failed.Load(), "of %d requests, %v", failed.Load()+done.Load(), why.Load())
		return float64(done.Load()) / time.Since(began).Seconds()
	}
	site := func(i int) string { return fmt.Sprintf("tenant-%05d.eu.example.com", i%sites) }
	route := func(i int) string { return fmt.Sprintf("www.shop-%05d.example.org", i%routes) }
	var edges, routed, bares, siteChanges, routeChanges []float64
	for b.Loop() {
		for range rounds { // in turns: the machine is not the same all the time
			bares = append(bares, rate(bare, site))
			edges = append(edges, rate(full.proxy, site))
			routed = append(routed, rate(full.proxy, route))
		}
		for i := range 5 {
			d.Version++
			d.Hosts[i].State = wire.EdgeMaintenance
			require.NoError(b, full.Apply(context.Background(), d, nil))
			siteChanges = append(siteChanges, float64(full.Took().Milliseconds()))
			d.Version++
			d.Hosts[sites+i].Upstreams = nil
			require.NoError(b, full.Apply(context.Background(), d, nil))
			routeChanges = append(routeChanges, float64(full.Took().Milliseconds()))
		}
	}
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	benchjson.Record(b, "edge_rps", median(edges), "requests/s", median(bares))
	benchjson.Record(b, "edge_routed_rps", median(routed), "requests/s", median(bares))
	benchjson.Record(b, "edge_reload_ms", median(siteChanges), "ms", 0)
	benchjson.Record(b, "edge_route_change_ms", median(routeChanges), "ms", 0)
}
