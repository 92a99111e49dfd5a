package soak

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	halfHour = 30 * time.Minute
	warm     = halfHour / 6
)

// sampled is a series of half an hour with a sample every five seconds.
func sampled(limit Limit, value func(minutes float64, i int) float64) Series {
	s := Series{Name: "s", Limit: limit}
	for i := range int(halfHour / (5 * time.Second)) {
		at := time.Duration(i) * 5 * time.Second
		s.Points = append(s.Points, Point{At: at, Work: float64(i) / 2, Value: value(at.Minutes(), i)})
	}
	return s
}

func verdictOf(s Series) Result { return judge(s, warm, halfHour) }

// noises are what measurements of a process that leaks nothing look like: a few goroutines
// more or less in each sample.
func noises(r *rand.Rand) map[string]func(minutes float64, i int) float64 {
	walk := 0.0
	return map[string]func(float64, int) float64{
		"independent": func(float64, int) float64 { return 100 + 5*r.NormFloat64() },
		"alike": func(float64, int) float64 { // each resembles its predecessor
			walk = 0.9*walk + r.NormFloat64()
			return 100 + walk
		},
		"sawtooth": func(minutes float64, _ int) float64 { return 100 + 10*math.Mod(minutes/0.7+float64(r.IntN(2)), 1) },
		"far off": func(float64, int) float64 {
			if r.IntN(50) == 0 {
				return 1000
			}
			return float64(100 + r.IntN(3))
		},
		"integers": func(float64, int) float64 { return float64(100 + r.IntN(4)/3) },
		"constant": func(float64, int) float64 { return 100 },
	}
}

// goroutines is the limit that make soak gives them.
var goroutines = Limit{Slope: 20, Least: 5}

// TestALeakIsFoundAndNoiseIsNot plants a leak of one goroutine per minute in each kind of
// noise, and judges the noise alone.
func TestALeakIsFoundAndNoiseIsNot(t *testing.T) {
	t.Parallel()
	const rounds = 300
	found, accused := map[string]int{}, map[string]int{}
	for seed := range uint64(rounds) {
		for name, noise := range noises(rand.New(rand.NewPCG(seed, 1))) {
			if verdictOf(sampled(goroutines, noise)).Verdict == Grew {
				accused[name]++
			}
			if verdictOf(sampled(goroutines, func(m float64, i int) float64 { return noise(m, i) + math.Floor(m) })).Verdict == Grew {
				found[name]++
			}
		}
	}
	for name := range noises(rand.New(rand.NewPCG(0, 0))) {
		require.LessOrEqual(t, accused[name], rounds/100, "%s: noise taken for a leak", name)
		require.GreaterOrEqual(t, found[name], rounds*99/100, "%s: leaks found", name)
	}
}

// TestOnlySignificantGrowthIsReported: where every growth is above the limit, noise is taken for
// one hardly ever.
func TestOnlySignificantGrowthIsReported(t *testing.T) {
	t.Parallel()
	const rounds = 300
	accused := map[string]int{}
	for seed := range uint64(rounds) {
		for name, noise := range noises(rand.New(rand.NewPCG(seed, 3))) {
			if verdictOf(sampled(Limit{}, noise)).Verdict == Grew {
				accused[name]++
			}
		}
	}
	for name, n := range accused {
		require.LessOrEqual(t, n, rounds*3/100, name)
	}
}

// TestKendallVariance is as in Kendall's Rank Correlation Methods, worked out by hand.
func TestKendallVariance(t *testing.T) {
	t.Parallel()
	require.InDelta(t, 8*7*21/18.0, kendallVariance([]float64{1, 2, 3, 4, 5, 6, 7, 8}), 1e-9)
	require.InDelta(t, (4*3*13-2*2*1*9)/18.0, kendallVariance([]float64{1, 2, 1, 2}), 1e-9)
	require.Zero(t, kendallVariance([]float64{5, 5, 5, 5, 5}))
}

// TestTheIntervalHoldsTheSlope counts in how many of many runs with a known slope, whose noise
// is correlated, it is in the interval. An interval that takes samples for independent would
// hold it in far fewer.
func TestTheIntervalHoldsTheSlope(t *testing.T) {
	t.Parallel()
	const rounds = 400
	held := 0
	for seed := range uint64(rounds) {
		noise := noises(rand.New(rand.NewPCG(seed, 2)))["alike"]
		r := verdictOf(sampled(Limit{}, func(m float64, i int) float64 { return noise(m, i) + 0.2*m }))
		if r.Low <= 12 && 12 <= r.High {
			held++
		}
	}
	require.GreaterOrEqual(t, held, rounds*96/100)
}

// TestSettledGrowthIsNoLeak: a cache that fills ever more slowly is no leak, nor is a single step.
func TestSettledGrowthIsNoLeak(t *testing.T) {
	t.Parallel()
	fills := sampled(goroutines, func(m float64, _ int) float64 { return 160 - 80*math.Exp(-m/5) })
	require.Equal(t, Settled, verdictOf(fills).Verdict)
	for _, at := range []float64{6, 12, 18, 24, 29} {
		step := sampled(goroutines, func(m float64, _ int) float64 {
			if m < at {
				return 100
			}
			return 150
		})
		require.NotEqual(t, Grew, verdictOf(step).Verdict, "at minute %v", at)
	}
	few := sampled(Limit{Slope: 2, Least: 5}, func(m float64, _ int) float64 { return 100 + m/10 })
	require.Equal(t, Flat, verdictOf(few).Verdict, "three in half an hour")
	late := sampled(goroutines, func(m float64, _ int) float64 { return 100 + 3*max(0, m-12) })
	require.Equal(t, Grew, verdictOf(late).Verdict, "what begins to leak is one")
}

func TestALimitPerUnitOfWork(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	rows := func(perUnit float64) Series {
		return sampled(Limit{Slope: 12, Per: "tenant", Least: 5}, func(_ float64, i int) float64 { return 1000 + perUnit*float64(i)/2 + 3*r.NormFloat64() })
	}
	got := verdictOf(rows(10))
	require.Equal(t, Bounded, got.Verdict)
	require.InDelta(t, 10, got.PerUnit, 0.1)
	require.InDelta(t, 3600, got.PerHour, 40)
	require.Equal(t, Grew, verdictOf(rows(14)).Verdict)
	require.Equal(t, Flat, verdictOf(rows(0)).Verdict)
	idle := rows(0)
	for i := range idle.Points {
		idle.Points[i].Work = 7
	}
	require.Equal(t, Short, verdictOf(idle).Verdict, "no work was done")
}

func TestTooFewWindowsSayNothing(t *testing.T) {
	t.Parallel()
	s := sampled(goroutines, func(m float64, _ int) float64 { return 100 * m })
	require.Equal(t, Grew, verdictOf(s).Verdict)
	s.Points = slices.DeleteFunc(s.Points, func(p Point) bool { return p.At > 12*time.Minute })
	require.Equal(t, Short, verdictOf(s).Verdict)
	require.Equal(t, Tally{}, CountVerdicts(Judge([]Series{s}, warm, halfHour)))
}

// TestWarmUpIsLeftOut: what happens before its end changes nothing.
func TestWarmUpIsLeftOut(t *testing.T) {
	t.Parallel()
	s := sampled(goroutines, func(m float64, _ int) float64 { return 20 * min(m, 5) })
	r := verdictOf(s)
	require.Equal(t, []any{Flat, 100.0, 100.0, 0.0}, []any{r.Verdict, r.Start, r.End, r.PerHour})
}

// TestFitFollowsTheMajority: of exact points of a line, with less than 29 % replaced by anything, the slope is the
// line's.
func TestFitFollowsTheMajority(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(8, 40).Draw(t, "points")
		slope, base := float64(rapid.IntRange(-100, 100).Draw(t, "slope")), float64(rapid.IntRange(-100, 100).Draw(t, "base"))
		points := make([]Point, n)
		for i := range points {
			points[i] = Point{Work: float64(i), Value: base + slope*float64(i)}
		}
		for range rapid.IntRange(0, n/4).Draw(t, "wrong") {
			points[rapid.IntRange(0, n-1).Draw(t, "which")].Value = float64(rapid.IntRange(-1e6, 1e6).Draw(t, "value"))
		}
		l := fit(points, work)
		require.InDelta(t, slope, l.slope, 1e-6)
		require.LessOrEqual(t, l.low, l.slope)
		require.LessOrEqual(t, l.slope, l.high)
	})
}

func work(p Point) float64 { return p.Work }

// TestFitFollowsItsData: values that are shifted, stretched or mirrored have the slope and the
// interval of the others, stretched or mirrored.
func TestFitFollowsItsData(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.IntRange(-1000, 1000), 2, 30).Draw(t, "values")
		shift, by := float64(rapid.IntRange(-1000, 1000).Draw(t, "shift")), float64(rapid.IntRange(1, 50).Draw(t, "by"))
		points := func(f func(float64) float64) (out []Point) {
			for i, x := range v {
				out = append(out, Point{Work: float64(i), Value: f(float64(x))})
			}
			return out
		}
		l := fit(points(func(x float64) float64 { return x }), work)
		m := fit(points(func(x float64) float64 { return by*x + shift }), work)
		for _, pair := range [][2]float64{{l.slope, m.slope}, {l.low, m.low}, {l.high, m.high}} {
			require.InDelta(t, by*pair[0], pair[1], 1e-6)
		}
		require.InDelta(t, -l.slope, fit(points(func(x float64) float64 { return -x }), work).slope, 1e-6)
	})
}

func TestQuantileIsBetweenItsNeighbours(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 50).Draw(t, "values")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		got := quantile(v, q)
		below := 0
		for _, x := range v {
			if x <= got+1e-6 {
				below++
			}
		}
		require.GreaterOrEqual(t, float64(below), q*float64(len(v)-1)-1e-6)
		require.GreaterOrEqual(t, got, slices.Min(v)-1e-6)
		require.LessOrEqual(t, got, slices.Max(v)+1e-6)
	})
}

func TestReport(t *testing.T) {
	t.Parallel()
	leak := sampled(goroutines, func(m float64, _ int) float64 { return 40 + math.Floor(m) })
	leak.Name = "gateway goroutines"
	heap := sampled(Limit{Slope: 4 << 20, Least: 1 << 20}, func(float64, int) float64 { return 30 << 20 })
	heap.Name, heap.Unit = "api heap", Bytes
	rows := sampled(Limit{Slope: 12, Per: "tenant"}, func(_ float64, i int) float64 { return float64(10 * (i / 2)) })
	rows.Name = "rows of tenants"
	late := Series{Name: "late", Points: []Point{{At: 20 * time.Minute}}}
	slow := sampled(Limit{Slope: 1}, func(float64, int) float64 { return 1.5 })
	slow.Name, slow.Unit = "time p50", Seconds
	results := Judge([]Series{leak, heap, rows, late, slow}, warm, halfHour)
	require.Equal(t, strings.TrimPrefix(`
series                 start       end  slope per hour      [interval]  verdict
gateway goroutines      46.5      67.5           +60.6  [+57.6, +64.8]  grew: limit 20 per hour
api heap            30.0 MiB  30.0 MiB             0 B      [0 B, 0 B]  flat
`, "\n"), Report(results[:2]))
	require.Contains(t, Report(results), "bounded: +10 per tenant, limit 12")
	require.Contains(t, Report(results), "too short: 1 samples")
	require.Contains(t, Report(results), "1.50 s")
	require.Equal(t, "soak 30m0s: 150 tenants, 12 servers, 3 series flat, 1 grew", Summary(halfHour, 150, 12, CountVerdicts(results)))
}
