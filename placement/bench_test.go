package placement_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

// large is a fleet of n app servers with a shard per twenty and a pool per hundred
// of them, and two sites each.
func large(n int) placement.Data {
	d := fleet()
	d.Servers, d.Shards, d.Pools, d.Sites = nil, nil, nil, nil
	for i := range n/20 + 1 {
		d.Shards = append(d.Shards, placement.Shard{ShardID: prego.ShardID(fmt.Sprintf("db-%06d", i)), Region: "eu", Tenants: i * 7 % 400, Capacity: 400, Status: "active"})
	}
	for i := range n/100 + 1 {
		d.Pools = append(d.Pools, placement.RedisPool{PoolID: fmt.Sprintf("redis-%06d", i), Region: "eu", Tenants: i * 13 % 2000, Capacity: 2000, Status: "active"})
	}
	for i := range n {
		id := fmt.Sprintf("app-%06d", i)
		d.Servers = append(d.Servers, placement.Server{
			ServerID: prego.ServerID(id), Role: prego.RoleApp, Region: []prego.Region{"eu", "eu", "eu", "sg"}[i%4], InfraProvider: "hetzner", Status: "active",
			MemoryPct: float64(i * 37 % 100), TenantCount: i * 11 % 21,
		})
		for j := range 2 {
			d.Sites = append(d.Sites, placement.PoolSite{PoolSiteID: fmt.Sprintf("s-%06d-%d", i, j), AppServerID: prego.ServerID(id), DBShardID: d.Shards[i/20].ShardID})
		}
	}
	return d
}

// BenchmarkDecide considers every server. The bare limit is one read of as many
// numbers as there are servers, in the same run.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("servers=%d", n), func(b *testing.B) {
			f := placement.NewSnapshot(shared(), large(n))
			r := request(func(r *placement.Request) { r.ParentOrgID = "p" })
			const rounds = 300
			decide, bare := make([]time.Duration, 0, rounds), make([]time.Duration, 0, rounds)
			numbers := make([]float64, 3*n) // as many bytes as the scan reads
			var sum float64
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for i := range rounds {
				r.TenantID = prego.TenantID(fmt.Sprint("t", i))
				began := time.Now()
				d := f.Decide(r)
				decide = append(decide, time.Since(began))
				f.Apply(r, d)
				if d.Outcome != placement.Placed {
					b.Fatal(d)
				}
			}
			runtime.ReadMemStats(&after)
			for range rounds {
				began := time.Now()
				for _, v := range numbers {
					sum += v
				}
				bare = append(bare, time.Since(began))
			}
			slices.Sort(decide)
			slices.Sort(bare)
			p50, limit := decide[rounds/2], bare[rounds/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(p50.Nanoseconds())/1000, "p50-µs")
			b.ReportMetric(float64(decide[rounds*99/100].Nanoseconds())/1000, "p99-µs")
			b.ReportMetric(float64(p50)/float64(max(limit, 1)), "x-of-one-read")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/rounds, "B/decision")
			_ = sum
		})
	}
}
