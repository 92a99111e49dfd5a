package sim_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prego/prego/lab/golden"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/sim"
	"github.com/prego/prego/tenant"
)

// TestReportsAreAsRecorded compares whole reports with testdata/recorded.txt: the text, and digests of the document and
// of the page. A difference is a decision to simulate, place or display in another way, which -update records.
func TestReportsAreAsRecorded(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("other processors fuse multiplications and additions, and round otherwise")
	}
	at := filepath.Join("testdata", "recorded.txt")
	var out strings.Builder
	report := func(name string, r sim.Report) {
		text, html, doc := rendered(t, r)
		fmt.Fprintf(&out, "== %s: document %s, page %s\n%s\n", name, digest(doc), digest(html), text)
		golden.Begins(t, at, out.String())
	}
	for _, mode := range []tenant.PlacementMode{tenant.ModeShared, tenant.ModeOneTenantOneServer} {
		for seed := range uint64(4) {
			a := []placement.Algorithm{placement.BestFit, placement.FirstFit, placement.RoundRobin}[seed%3]
			s := sim.New(lively(mode, a, 120, seed), rand.NewPCG(seed, 2))
			s.Run()
			report(fmt.Sprintf("%s, %s, seed %d", mode, a, seed), s.Report())
		}
	}
	c := config(300, tenant.ModeShared, placement.BestFit)
	c.Days, c.Settle = 30, 25*time.Hour
	c.Plans[2].ChurnPerMonth = 1e-9 // no life is that short
	report("default", play(t, c, 1))
	c = lively(tenant.ModeShared, placement.BestFit, 120, 1)
	c.Settle = 0
	for i := range c.Roles {
		c.Roles[i].Boot *= 8
	}
	report("some still wait", play(t, c, 1))
	report("before it begins", sim.New(c, rand.NewPCG(1, 1)).Report())
	report("nothing", sim.Report{Violations: []string{"one", "another"}})
	report("a moment", sim.Report{Samples: []sim.Sample{{Tenants: 1, CostPerMonth: 2}}})
	report("many", many())
	golden.Equal(t, at, out.String())
}

// many has more servers and samples than a page draws one by one.
func many() sim.Report {
	r := sim.Report{
		Days: 70, Heat: []sim.RegionHeat{{Region: "eu"}},
		Rejected: []sim.Reason{{Name: "a", Count: 900}, {Name: "b", Count: 1}},
	}
	for i := range 480 {
		r.Heat[0].MemoryPct = append(r.Heat[0].MemoryPct, 100-float64(i)/5)
		x := sim.Sample{Hours: float64(i) * 3.5, Tenants: 3 * i, CostPerMonth: float64(40*i) + 0.5}
		x.Bands[i%10] = 1 + i/7
		r.Samples = append(r.Samples, x)
	}
	for i := range 70 {
		r.Daily = append(r.Daily, sim.Day{Day: i + 1, Booted: i * i % 37})
	}
	return r
}

func digest(s string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s))
	return fmt.Sprintf("%08x", h.Sum32())
}
