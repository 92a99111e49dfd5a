package pack

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/golden"
	"github.com/prego/prego/server"
)

// TestPackingsAreAsRecorded compares each stage with testdata/recorded.txt. The same steps give the same result, so
// that a difference is a decision to pack in another way: -update records it, and BenchmarkPack shows whether it is a
// better one.
func TestPackingsAreAsRecorded(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("other processors fuse multiplications and additions, and round otherwise")
	}
	at := filepath.Join("testdata", "recorded.txt")
	var out strings.Builder
	for _, c := range recordedProblems() {
		record(t, &out, c.name, c.p)
		golden.Begins(t, at, out.String())
	}
	for seed := range uint64(12) {
		recordConsolidation(t, &out, seed)
		recordPlan(t, &out, seed)
		golden.Begins(t, at, out.String())
	}
	golden.Equal(t, at, out.String())
}

type recordedProblem struct {
	name string
	p    Problem
}

func recordedProblems() (out []recordedProblem) {
	for _, class := range []int{1, 4, 6, 7, 10} {
		out = append(out, recordedProblem{fmt.Sprintf("class %d", class), packClass(class, 36, 5)})
	}
	out = append(out, recordedProblem{"fleet", packFleet(70, 3)}, recordedProblem{"few", packClass(6, 11, 1)})
	for d := range 3 {
		out = append(out, recordedProblem{fmt.Sprintf("equals in %d", d+1), equals(d+1, uint64(d))})
	}
	out = append(out, recordedProblem{"without affinity", equals(3, 24)}, recordedProblem{"by best fit", equals(3, 47)})
	return out
}

// equals has whole numbers in some dimensions, and with them many equals: the orgs and the ids decide.
func equals(dims int, seed uint64) Problem {
	r := rand.New(rand.NewPCG(seed, 7))
	p := Problem{Capacity: map[string]float64{}, ReservePct: float64(10*dims - 10)}
	for k := range dims {
		p.Capacity[string(rune('a'+k))] = 12
	}
	for i := range 40 {
		it := Item{ID: fmt.Sprintf("%02d", i), Demand: map[string]float64{}}
		if i%5 > 0 {
			it.Org = fmt.Sprint(i % 9)
		}
		for _, name := range sortedKeys(p.Capacity) {
			it.Demand[name] = float64(r.IntN(6))
		}
		p.Items = append(p.Items, it)
	}
	return p
}

// record writes what each stage makes of a problem. Digests stand for packings.
func record(t *testing.T, out *strings.Builder, name string, p Problem) {
	in, unplaceable := newPackInstance(p)
	line := func(stage, format string, args ...any) {
		fmt.Fprintf(out, "%s, %s: %s\n", name, stage, fmt.Sprintf(format, args...))
	}
	packing := func(stage string, bins packBins) {
		line(stage, "%d bins, spread %d, %s", len(bins), in.spread(bins), digest("%v", bins))
	}
	line("instance", "%d items, %d unplaceable, %d orgs, scarce %.6f", in.n, len(unplaceable), in.orgs, in.scarce)
	for k, key := range in.keys() {
		order := in.byKey(key)
		line(fmt.Sprintf("key %d", k), "%s, %s", digest("%.9f", key), digest("%v", order))
		for _, affinity := range []bool{true, false} {
			packing(fmt.Sprintf("first fit, affinity %t", affinity), in.firstFit(order, affinity))
		}
		packing("best fit", in.bestFit(order))
		packing("bin-centric", in.binCentric(order))
	}
	packing("greedy", in.initial())
	line("bounds", "cliques %d, static %d", in.cliqueBound(), in.staticBound())

	r := rand.New(rand.NewPCG(11, 12))
	var bounds []int
	for range 40 {
		bounds = append(bounds, in.randomBound(r))
	}
	line("random bounds", "%d to %d, %s", slices.Min(bounds), slices.Max(bounds), digest("%v", bounds))

	lp := newPackLP(in)
	steps, best := 0, 0
	var proven []int
	var worth []float64
	for ; !lp.done && steps < 40; steps++ {
		_, most := lp.knap.solve(lp.price) // again, at the last step's prices
		proven, worth = append(proven, lp.step()), append(worth, most)
		best = max(best, proven[steps])
	}
	line("linear program", "%d kinds, done %t after %d steps, bound %d", lp.m, lp.done, steps, best)
	line("linear program", "steps %s, worth %s, prices %s", digest("%v", proven), digest("%.6f", worth),
		digest("%.6f", lp.price))

	ruin := newPackRuin(in, in.initial(), rand.New(rand.NewPCG(13, 14)))
	improved := 0
	for range 200 {
		if len(ruin.bins) > 1 && ruin.iterate() {
			improved++
			ruin.closeOne()
		}
	}
	packing("ruin", ruin.packing())
	line("ruin", "%d improvements, aside %s", improved, digest("%v", ruin.aside))

	for _, n := range []int{0, 1, 12} {
		s, err := Solve(p, packSteps(n))
		require.NoError(t, err)
		packHolds(t, p, s)
		line(fmt.Sprintf("%d steps", n), "%d bins, bound %d, %s", len(s.Bins), s.LowerBound, digest("%v", s.Bins))
	}
}

// recordConsolidation frees hosts of a small fleet: some full, some empty, some without a price, and residents that
// stay, take nothing, or take what only some hosts have.
func recordConsolidation(t *testing.T, out *strings.Builder, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 21))
	var hosts []Host
	var residents []Resident
	for i := range 9 {
		h := Host{
			ID: fmt.Sprintf("h%d", i), Place: []string{"eu", "eu", "us"}[r.IntN(3)], Price: float64(10 * r.IntN(4)),
			Capacity: map[string]float64{"memory": float64(20 + 4*r.IntN(5)), "disk": float64(20 * r.IntN(4))},
			Takes:    r.IntN(6) > 0, Leaves: r.IntN(6) > 0,
		}
		if seed%3 == 2 {
			h.Capacity["tenants"] = 4
		}
		hosts = append(hosts, h)
		for k := range r.IntN(5) {
			v := Resident{
				ID: fmt.Sprintf("%d-%d", i, k), Host: h.ID, Bytes: int64(r.IntN(5)) << 24, Stays: r.IntN(12) == 0,
				Demand: map[string]float64{"memory": float64(r.IntN(11)), "disk": float64(5 * r.IntN(3))},
			}
			if seed%3 == 1 && r.IntN(9) == 0 {
				v.Demand["cards"] = float64(r.IntN(2))
			}
			if seed%3 == 2 {
				v.Demand["tenants"] = 1
			}
			residents = append(residents, v)
		}
	}
	for _, limits := range []ConsolidationLimits{{}, {Moves: 3}, {Bytes: 4 << 24}} {
		c, err := Consolidate(hosts, residents, limits)
		require.NoError(t, err)
		fmt.Fprintf(out, "consolidation %d, %+v: frees %.0f in %d bytes, %d used, at least %d\n", seed, limits, c.Price,
			c.Bytes, c.Used, c.LowerBound)
		fmt.Fprintf(out, "  %v\n", c.Freed)
		for _, m := range c.Moves {
			fmt.Fprintf(out, "  %v\n", m)
		}
	}
}

// recordPlan plans moves of tenants between app servers of two types with a price, and a type that the catalog lacks.
func recordPlan(t *testing.T, out *strings.Builder, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 22))
	price := func(v string) server.PeriodPrice { return server.PeriodPrice{Monthly: server.Price{Net: v}} }
	offered := func(name string, gb float64, disk int, v string) server.OfferedType {
		at := []server.OfferedAt{{Location: "fsn1", PeriodPrice: price(v)}}
		return server.OfferedType{Name: name, MemoryGB: gb, DiskGB: disk, At: at}
	}
	catalog := server.CatalogState{}
	catalog.Currency = "EUR"
	catalog.ServerTypes = []server.OfferedType{offered("small", 8, 80, "6.80"), offered("large", 16, 160, "13.00")}
	catalog.VolumeGBMonth = server.Price{Net: "0.05"}
	pct := func(from, n int) *float64 {
		v := float64(from + r.IntN(n))
		return &v
	}
	var f server.PackedFleet
	for i := range 10 {
		s := server.PackedServer{
			ServerID: prego.ServerID(fmt.Sprintf("s%d", i)), InfraProvider: "hetzner", Location: "fsn1",
			ServerType: []string{"small", "small", "large", "gone"}[r.IntN(4)],
			FleetID:    prego.FleetID([]string{"", "web"}[r.IntN(2)]),
			MemoryPct:  pct(15, 50), DiskPct: pct(5, 70), Takes: r.IntN(8) > 0, Leaves: r.IntN(8) > 0,
		}
		if r.IntN(9) == 0 {
			s.Tags = []string{"b", "a"}
		}
		if r.IntN(4) == 0 {
			s.Spec.VolumeGB = 10
		}
		switch r.IntN(12) {
		case 0:
			s.MemoryPct = nil
		case 1:
			s.DiskPct = nil
		}
		s.Tenants = r.IntN(4)
		for k := range s.Tenants {
			f.Tenants = append(f.Tenants, server.PackedTenant{
				TenantID: prego.TenantID(fmt.Sprintf("t%d-%d", i, k)), ServerID: s.ServerID,
				Bytes: int64(r.IntN(9)) * 1e9, Stays: r.IntN(15) == 0,
			})
		}
		f.Servers = append(f.Servers, s)
	}
	catalogs := map[prego.InfraProviderID]server.CatalogState{"hetzner": catalog}
	for _, usable := range []Usable{{MemoryPct: 70, DiskPct: 80, Tenants: 4}, {MemoryPct: 80}} {
		for _, asked := range []server.PackingRequest{{}, {FleetID: "web", MaxMoves: 2}} {
			plan, fills, err := PlanWithFill(f, catalogs, usable, asked, time.Unix(0, 0).UTC())
			require.NoError(t, err)
			fmt.Fprintf(out, "plan %d, %v, %v: frees %.2f %s in %d bytes, %d used, at least %d, unknown %v\n",
				seed, usable, asked, plan.Monthly, plan.Currency, plan.Bytes, plan.Servers, plan.Needed, plan.Unknown)
			fmt.Fprintf(out, "  %v\n", plan.Frees)
			for _, m := range plan.Moves {
				fmt.Fprintf(out, "  %v\n", m)
			}
			for _, v := range fills {
				fmt.Fprintf(out, "  %s, %d MB, %.4f %% to %.4f %%, %d to %d tenants, freed %t\n", v.ServerID, v.MemoryMB,
					*v.MemoryPct, *v.MemoryPctAfter, v.Tenants, v.TenantsAfter, v.Freed)
			}
		}
	}
}

func digest(format string, v any) string {
	h := fnv.New32a()
	fmt.Fprintf(h, format, v)
	return fmt.Sprintf("%08x", h.Sum32())
}
