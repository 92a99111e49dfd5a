package pack

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// packClass generates an instance of a class of the two-dimensional vector packing
// problems of Caprara and Toth (Lower bounds and algorithms for the 2-dimensional
// vector packing problem, 2001), from their public description; numbers are whole.
// Class 10 comes in threes that fill a bin exactly, so that its optimum is n/3.
func packClass(class, n int, seed uint64) Problem {
	r := rand.New(rand.NewPCG(seed, uint64(class)))
	from := func(lo, hi int) float64 { return float64(lo + r.IntN(hi-lo+1)) }
	capacity := 1000.0
	var v [][2]float64
	for len(v) < n {
		switch class {
		case 1:
			v = append(v, [2]float64{from(100, 400), from(100, 400)})
		case 4:
			v = append(v, [2]float64{from(50, 200), from(50, 200)})
		case 6:
			capacity = 150
			v = append(v, [2]float64{from(20, 100), from(20, 100)})
		case 7:
			capacity = 150
			a := from(20, 100)
			v = append(v, [2]float64{a, from(int(a)-10, int(a)+10)})
		case 10:
			a, b := [2]float64{from(100, 400), from(100, 400)}, [2]float64{from(100, 400), from(100, 400)}
			v = append(v, a, b, [2]float64{1000 - a[0] - b[0], 1000 - a[1] - b[1]})
		}
	}
	p := Problem{Capacity: map[string]float64{"a": capacity, "b": capacity}}
	for i, x := range v {
		p.Items = append(p.Items, Item{ID: fmt.Sprintf("i%04d", i), Demand: map[string]float64{"a": x[0], "b": x[1]}})
	}
	return p
}

// packFleet generates tenants on servers of 64 GB, 16 cores and 60 slots with 30 % free. Sizes are Zipf-like: most
// tenants are small and a few are half a server; the demand for cores follows the demand for memory, more or less.
func packFleet(n int, seed uint64) Problem {
	r := rand.New(rand.NewPCG(seed, 99))
	p := Problem{Capacity: map[string]float64{"memory_mb": 65536, "cpu": 16, "slots": 60}, ReservePct: 30}
	for i := range n {
		size := math.Pow(1-r.Float64(), -0.8) // Pareto, a Zipf law by rank
		memory := math.Min(22000, math.Round(900*size*(0.7+0.6*r.Float64())))
		cpu := math.Min(6, math.Round(100*0.16*size*(0.4+1.2*r.Float64()))/100)
		p.Items = append(p.Items, Item{
			ID: fmt.Sprintf("t%05d", i), Org: fmt.Sprintf("o%04d", int(math.Pow(float64(n), r.Float64()))),
			Demand: map[string]float64{"memory_mb": memory, "cpu": cpu, "slots": 1},
		})
	}
	return p
}

// packSteps answers true n times.
func packSteps(n int) func() bool {
	return func() bool { n--; return n >= 0 }
}
