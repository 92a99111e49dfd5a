package region_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prego/prego/placement/region"
)

// spread is a policy of many regions with uneven weights, a cap on every seventh,
// and nodes that stand in them unevenly.
func spread(regions int, nodes int64) (region.Policy, map[string]int64) {
	var p region.Policy
	current := make(map[string]int64, regions)
	for i := range int64(regions) {
		r := region.Region{Name: fmt.Sprintf("region-%03d", i), Weight: 1 + i*37%100, Cap: region.NoCap}
		if i%7 == 3 {
			r.Cap = nodes / int64(regions)
		}
		p.Regions = append(p.Regions, r)
		current[r.Name] = i * 13 % 29 * nodes / int64(regions) / 100
	}
	return p, current
}

// median is the median time of a call of f, of rounds batches.
func median(rounds, batch int, f func()) time.Duration {
	times := make([]time.Duration, rounds)
	for i := range times {
		began := time.Now()
		for range batch {
			f()
		}
		times[i] = time.Since(began) / time.Duration(batch)
	}
	slices.Sort(times)
	return times[rounds/2]
}

// BenchmarkPlan grows a fleet by n nodes over R regions. The bare limit is what no
// plan can do without, in the same run: one map of the R counts is read, the R
// shares are sorted by remainder, and one map of the R answers is written.
func BenchmarkPlan(b *testing.B) {
	for _, size := range []struct {
		regions int
		nodes   int64
	}{
		{50, 10},
		{50, 100},
		{50, 1_000},
		{50, 10_000},
		{50, 100_000},
		{50, 1_000_000},
		{50, 100_000_000},
		{1, 10_000},
		{5, 10_000},
		{10, 10_000},
		{100, 10_000},
		{200, 10_000},
		{500, 10_000},
		{1_000, 10_000},
	} {
		b.Run(fmt.Sprintf("regions=%d/nodes=%d", size.regions, size.nodes), func(b *testing.B) {
			const rounds, batch = 201, 20
			p, current := spread(size.regions, size.nodes)
			grown := median(rounds, batch, func() {
				if _, err := region.Grow(p, current, nil, size.nodes); err != nil {
					b.Fatal(err)
				}
			})
			full := make(map[string]int64, len(current))
			for name, n := range current {
				full[name] = n + size.nodes
			}
			shrunk := median(rounds, batch, func() {
				if _, err := region.Shrink(p, full, nil, size.nodes); err != nil {
					b.Fatal(err)
				}
			})
			bare := median(rounds, batch, func() {
				parts, plan := make([]int64, 0, size.regions), make(map[string]int64)
				for _, r := range p.Regions {
					parts = append(parts, (current[r.Name]+size.nodes)*r.Weight%5051)
				}
				slices.Sort(parts)
				for i, r := range p.Regions {
					plan[r.Name] = parts[i]
				}
			})
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(grown.Nanoseconds())/1000, "grow-µs")
			b.ReportMetric(float64(shrunk.Nanoseconds())/1000, "shrink-µs")
			b.ReportMetric(float64(grown)/float64(max(bare, 1)), "x-of-bare")
		})
	}
}
