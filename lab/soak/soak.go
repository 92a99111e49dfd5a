// Package soak judges the measurements of a long run: which quantities grow, and whether they may. It only calculates;
// lab/e2e measures (make soak).
// Measurements of a running system are neither independent nor normally distributed: heaps are sawteeth, caches fill in
// steps, one sample in a hundred is far off. So samples are gathered into windows, each of which counts once, and the
// slope is the median of the slopes between all pairs of windows (Theil–Sen). Its interval follows Kendall's rank
// statistic with ties, widened where neighbouring windows resemble each other.
package soak

import (
	"math"
	"slices"
	"time"
)

// Point is one measurement.
type Point struct {
	At    time.Duration // since the run began
	Work  float64       // units of work that were done by then, for limits that are per unit
	Value float64
}

// Unit is what a series counts; it decides how numbers are printed.
type Unit string

// The units.
const (
	Number  Unit = ""
	Bytes   Unit = "bytes"
	Seconds Unit = "seconds"
)

// Limit is how much a series may grow.
type Limit struct {
	// Slope is what it may grow per hour or, if Per names a unit of work, per such unit.
	Slope float64
	Per   string
	// Least is how much it must have grown in the whole run to count as having grown. It keeps a
	// short run from making much of little.
	Least float64
}

// Series is one quantity over the run, in the order of time.
type Series struct {
	Name   string
	Unit   Unit
	Limit  Limit
	Points []Point
	// Quantile of a window's points stands for it; 0 is their median.
	Quantile float64
}

// Verdict is what became of a series.
type Verdict string

// The verdicts.
const (
	// Flat: it doesn't grow, or by less than its limit.
	Flat Verdict = "flat"
	// Bounded: it grows with the work that is done, as is known, and within its limit.
	Bounded Verdict = "bounded"
	// Settled: it grew by more than its limit, but no longer in the second half.
	Settled Verdict = "settled"
	// Grew: it grew by more than its limit until the end.
	Grew Verdict = "grew"
	// Short: there is too little of it for a verdict.
	Short Verdict = "too short"
)

// Result is the verdict on a series.
type Result struct {
	Series  Series
	Verdict Verdict
	// Start and End are the medians of the first and the last fifth, without the warm-up.
	Start, End float64
	// PerHour is the slope per hour, between Low and High in 99 of 100 runs in which nothing changes but chance.
	PerHour, Low, High float64
	// PerUnit is the slope per unit of work, if the limit is per unit.
	PerUnit float64
}

const (
	// windows divide a run, without its warm-up. More of them would resemble each other more, without more information.
	windows = 24
	// fewest windows must have points.
	fewest = 8
	// confidence of the interval, as quantile of the normal distribution: 99 %.
	confidence = 2.576
)

// Judge decides for each series whether it grew. Measurements from before the end of the warm-up are left out.
func Judge(all []Series, warmup, end time.Duration) []Result {
	out := make([]Result, len(all))
	for i, s := range all {
		out[i] = judge(s, warmup, end)
	}
	return out
}

func judge(s Series, warmup, end time.Duration) Result {
	r := Result{Series: s}
	w := gather(s, warmup, end)
	if len(w) < fewest {
		r.Verdict = Short
		return r
	}
	fifth := max(1, len(w)/5)
	r.Start, r.End = middle(values(w[:fifth])), middle(values(w[len(w)-fifth:]))
	hours := func(p Point) float64 { return p.At.Hours() }
	all := fit(w, hours)
	r.PerHour, r.Low, r.High = all.slope, all.low, all.high
	x, decisive := hours, all
	if s.Limit.Per != "" {
		x = func(p Point) float64 { return p.Work }
		if x(w[len(w)-1]) <= x(w[0]) {
			r.Verdict = Short
			return r
		}
		decisive = fit(w, x)
		r.PerUnit = decisive.slope
	}
	grown := decisive.slope * (x(w[len(w)-1]) - x(w[0]))
	switch {
	case decisive.low <= 0 || decisive.slope <= s.Limit.Slope || grown <= s.Limit.Least:
		r.Verdict = Flat
		if s.Limit.Per != "" && decisive.low > 0 {
			r.Verdict = Bounded
		}
	case fit(w[len(w)/2:], x).slope <= s.Limit.Slope:
		r.Verdict = Settled
	default:
		r.Verdict = Grew
	}
	return r
}

// gather makes one point of each window that has any.
func gather(s Series, warmup, end time.Duration) []Point {
	in := make([][]Point, windows)
	for _, p := range s.Points {
		if p.At >= warmup && p.At < end {
			i := int(int64(p.At-warmup) * windows / int64(end-warmup))
			in[i] = append(in[i], p)
		}
	}
	q := s.Quantile
	if q == 0 {
		q = 0.5
	}
	var out []Point
	for _, w := range in {
		if len(w) == 0 {
			continue
		}
		var at time.Duration
		var work float64
		for _, p := range w {
			at += p.At / time.Duration(len(w))
			work += p.Work / float64(len(w))
		}
		out = append(out, Point{At: at, Work: work, Value: quantile(values(w), q)})
	}
	return out
}

func values(points []Point) []float64 {
	out := make([]float64, len(points))
	for i, p := range points {
		out[i] = p.Value
	}
	return out
}

// quantile interpolates; of few values a high one is their maximum or close to it.
func quantile(v []float64, q float64) float64 {
	v = slices.Sorted(slices.Values(v))
	at := q * float64(len(v)-1)
	i := int(at)
	if i+1 >= len(v) {
		return v[len(v)-1]
	}
	return v[i] + (at-float64(i))*(v[i+1]-v[i])
}

func middle(v []float64) float64 { return quantile(v, 0.5) }

// line is a slope and its interval.
type line struct{ slope, low, high float64 }

// fit is Theil and Sen's estimate of the slope of values over x. If x never changes there
// is none.
func fit(points []Point, x func(Point) float64) line {
	var slopes []float64
	for i, a := range points {
		for _, b := range points[i+1:] {
			if dx := x(b) - x(a); dx > 0 {
				slopes = append(slopes, (b.Value-a.Value)/dx)
			}
		}
	}
	if len(slopes) == 0 {
		return line{}
	}
	slices.Sort(slopes)
	l := line{slope: middle(slopes)}
	half := confidence * math.Sqrt(kendallVariance(values(points))*inflation(points, x, l.slope)) / 2
	at := func(rank float64) float64 { return slopes[min(max(int(rank), 0), len(slopes)-1)] }
	n := float64(len(slopes))
	l.low, l.high = at(math.Floor(n/2-half)), at(math.Ceil(n/2+half))
	return l
}

// kendallVariance is the variance of the number of ordered pairs less the inverted ones, among values with ties
// (Kendall 1970).
func kendallVariance(v []float64) float64 {
	f := func(n float64) float64 { return n * (n - 1) * (2*n + 5) }
	sum := f(float64(len(v)))
	same := map[float64]float64{}
	for _, x := range v {
		same[x]++
	}
	for _, x := range slices.Sorted(func(yield func(float64) bool) { // in one order: sums of floats depend on it
		for _, n := range same {
			if !yield(n) {
				return
			}
		}
	}) {
		sum -= f(x)
	}
	return max(sum, 0) / 18
}

// inflation is the growth of the variance because each value resembles its predecessor: (1+r)/(1-r), where r is the
// correlation of the residuals with themselves a window later. It is at most 4: growth in each window is significant
// nevertheless, since steps of a leak in whole numbers also resemble each other.
func inflation(points []Point, x func(Point) float64, slope float64) float64 {
	rest := make([]float64, len(points))
	for i, p := range points {
		rest[i] = p.Value - slope*x(p)
	}
	m := middle(rest)
	var with, total float64
	for i := range rest {
		d := rest[i] - m
		total += d * d
		if i > 0 {
			with += d * (rest[i-1] - m)
		}
	}
	if total == 0 {
		return 1
	}
	r := min(max(with/total, 0), 0.6)
	return (1 + r) / (1 - r)
}
