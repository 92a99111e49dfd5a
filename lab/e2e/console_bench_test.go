package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/benchjson"
	"github.com/prego/prego/lab/pgtest"
)

// BenchmarkConsole loads pages of the console at 1,000 servers and 10,000 tenants, each beside what the API takes for
// the request that the page is of. No page may have more than 100 KB.
func BenchmarkConsole(b *testing.B) {
	c := &console{cell: newCell(b, options{vars: map[string]string{"PREGO_LOG_LEVEL": "warn", "PREGO_API_RATE_PER_SECOND": "100000"}})}
	c.kill("worker") // it would start to repair according to the rows
	c.kill("agentgw")
	pgtest.FillLarge(b, c.url, 1000, `
INSERT INTO server_samples (at, server_id, load1, memory_pct, disk_pct, cpu_pct)
SELECT date_bin('5 minutes', now(), 'epoch') - make_interval(mins => 5 * i), server_id, i % 7 / 2.0, 40 + i % 9, 12, i % 50 FROM generate_series(0, 288) i, servers`)
	v := c.visitor(c.operator)
	for b.Loop() {
		for _, p := range []struct{ name, page, api string }{
			{"now", "", "/v1/attention"},
			{"map", "/map", "/v1/fleet-map"},
			{"packing", "/map/packing", "/v1/fleet-map/packing"},
			{"servers", "/servers", "/v1/servers"},
			{"server", "/servers/s-500", "/v1/servers/s-500"},
			{"tenants", "/tenants?sort=slug", "/v1/tenants?sort=slug"},
			{"tenant", "/tenants/t-5000", "/v1/tenants/t-5000"},
			{"queue", "/queue", "/v1/queue"},
			{"decisions", "/decisions", "/v1/decisions"},
			{"orgs", "/orgs", "/v1/orgs"},
			{"org", "/orgs/o-0", "/v1/orgs/o-0"},
			{"groups", "/groups", "/v1/groups"},
			{"instances", "/instances", "/v1/instances"},
			{"ledger", "/ledger", "/v1/ledger"},
			{"costs", "/costs?by=org", "/v1/costs?by=org"},
			{"audit", "/audit", "/v1/audit"},
			{"search", "/search?q=slug-77", "/v1/search?q=slug-77"},
		} {
			page, size := median(func() int {
				status, body := v.get(b, "/console"+p.page)
				require.Equal(b, http.StatusOK, status, "%s: %s", p.name, body)
				return len(body)
			})
			bare, _ := median(func() int {
				status, body := c.request(http.MethodGet, p.api, nil)
				require.Equal(b, http.StatusOK, status, "%s: %s", p.name, body)
				return len(body)
			})
			require.Less(b, size, 100<<10, "%s", p.name)
			b.Logf("%-10s %6.1f ms, the API's answer %6.1f ms, %5.1f KB", p.name, page, bare, float64(size)/1024)
			benchjson.Record(b, "console_"+p.name+"_ms", page, "ms", bare)
		}
	}
}

// BenchmarkFleetMap loads the map of 10,000 servers: in groups, and with each server of a fleet.
func BenchmarkFleetMap(b *testing.B) {
	c := &console{cell: newCell(b, options{vars: map[string]string{"PREGO_LOG_LEVEL": "warn", "PREGO_API_RATE_PER_SECOND": "100000"}})}
	c.kill("worker")
	c.kill("agentgw")
	pgtest.FillLarge(b, c.url, 10000)
	v := c.visitor(c.operator)
	for b.Loop() {
		for _, query := range []string{"", "?expand=eu/nodes-1"} {
			page, size := median(func() int {
				status, body := v.get(b, "/console/map"+query)
				require.Equal(b, http.StatusOK, status, "%s", body)
				return len(body)
			})
			bare, _ := median(func() int {
				status, body := c.request(http.MethodGet, "/v1/fleet-map"+query, nil)
				require.Equal(b, http.StatusOK, status, "%s", body)
				return len(body)
			})
			require.Less(b, size, 100<<10, "%s", query)
			b.Logf("map%-20s %6.1f ms, the API's answer %6.1f ms, %5.1f KB", query, page, bare, float64(size)/1024)
			benchjson.Record(b, "console_map_10000"+strings.ReplaceAll(query, "?expand=eu/nodes-1", "_each")+"_ms", page, "ms", bare)
		}
	}
}

// median is how long the median of 11 loads takes, in ms, and how much the last one loaded.
func median(load func() int) (ms float64, size int) {
	var took []float64
	for range 11 {
		began := time.Now()
		size = load()
		took = append(took, float64(time.Since(began).Microseconds())/1000)
	}
	slices.Sort(took)
	return took[len(took)/2], size
}
