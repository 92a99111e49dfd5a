package pack

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkPack reports beside the time how many bins are used for each of the
// lower bound, 1 being proven optimal.
func BenchmarkPack(b *testing.B) {
	run := func(name string, p Problem, steps int) {
		b.Run(fmt.Sprintf("%s/steps=%d", name, steps), func(b *testing.B) {
			var r Result
			for b.Loop() {
				var err error
				r, err = Solve(p, packSteps(steps))
				require.NoError(b, err)
			}
			b.ReportMetric(float64(len(r.Bins))/float64(max(1, r.LowerBound)), "bins/bound")
		})
	}
	for _, n := range []int{100, 1000, 10_000} {
		for _, steps := range []int{0, 1000} {
			run(fmt.Sprintf("fleet=%d", n), packFleet(n, 1), steps)
		}
	}
	for _, class := range []int{1, 4, 6, 7, 10} {
		for _, steps := range []int{0, 1000} {
			run(fmt.Sprintf("class=%d,n=201", class), packClass(class, 201, 1), steps)
		}
	}
}
