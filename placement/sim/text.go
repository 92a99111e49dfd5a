package sim

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes the report card.
func (r Report) WriteText(out io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%d tenants over %.0f days, policy %s, algorithm %s, seed %d\n\n", r.Tenants.Arrived, r.Days, r.Policy, r.Algorithm, r.Seed)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...any) {
		for i, c := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, c)
		}
		fmt.Fprintln(w)
	}
	end := func() { _ = w.Flush(); b.WriteByte('\n') } // into memory: it cannot fail

	for _, f := range r.facts() {
		row(f.Name, f.Value)
	}
	end()
	row("PLAN", "ARRIVED", "PLACED", "WAITED", "P50", "P95", "MAX")
	for _, p := range r.Plans {
		row(p.Plan, p.Arrived, p.Placed, p.Waited, seconds(p.P50), seconds(p.P95), seconds(p.Max))
	}
	end()
	row("REGION", "ROLE", "SCALE-OUTS", "SERVERS ORDERED")
	for _, s := range r.ScaleOuts {
		row(s.Region, s.Role, s.Runs, s.Servers)
	}
	end()
	row("REGION", "SERVERS", "", "MIN", "P50", "P95", "MAX")
	for _, u := range r.Regions {
		row(u.Region, u.Servers, "memory %", one(u.MemoryPct.Min), one(u.MemoryPct.P50), one(u.MemoryPct.P95), one(u.MemoryPct.Max))
		row("", "", "tenants", u.Tenants.Min, u.Tenants.P50, u.Tenants.P95, u.Tenants.Max)
	}
	end()
	row("ROLE", "TYPE", "SERVERS", "€/MONTH EACH", "€/MONTH")
	for _, s := range r.Servers {
		row(s.Role, s.ServerType, s.Count, two(euro(s.CentsPerMonth)), two(euro(s.Count*s.CentsPerMonth)))
	}
	end()
	for _, l := range []struct {
		name string
		list []Reason
	}{
		{"rejected, by reason", r.Rejected},
		{"waited for", r.WaitedFor},
		{"candidates turned down for waiting tenants", r.TurnedBy},
	} {
		if len(l.list) > 0 {
			fmt.Fprintf(&b, "%s: %s\n", l.name, list(l.list))
		}
	}
	fmt.Fprintf(&b, "invariants: %s\n", r.invariants())
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "  %s\n", v)
	}
	_, err := out.Write(b.Bytes())
	return err
}

// fact is a line of the card.
type fact struct{ Name, Value string }

func (r Report) facts() []fact {
	t := r.Tenants
	return []fact{
		{"tenants placed", fmt.Sprintf("%d of %d; %d live at the end, %d left", t.Placed, t.Arrived, t.Living, t.Left)},
		{"waited", fmt.Sprintf("%d (%s); p50 %s, p95 %s, max %s; %d still wait", r.Waits.Waited, percent(share(r.Waits.Waited, t.Arrived)), seconds(r.Waits.P50), seconds(r.Waits.P95), seconds(r.Waits.Max), t.Waiting)},
		{"rejected", fmt.Sprint(t.Rejected)},
		{"servers", fmt.Sprintf("%d at the end, %d at the peak (day %.1f)", r.ServersEnd, r.ServersPeak, r.PeakHours/24)},
		{"sites from a warm pool", fmt.Sprintf("%s (%d), %d made on demand", percent(r.Sites.Share), r.Sites.FromPool, r.Sites.OnDemand)},
		{"affinity", fmt.Sprintf("%s: %d of %d came to a server where their parent org lives",
			percent(r.Affinity.Rate), r.Affinity.Together, r.Affinity.Possible)},
		{"fairness", fmt.Sprintf("one org had at most %s of the waiting tenants, %s of the placed ones",
			percent(r.Fairness.MaxShareWaited), percent(r.Fairness.MaxShareServed))},
		{"cost", fmt.Sprintf("€%s per month at the end, €%s per tenant; €%s per month on the mean, €%s in all", two(r.Cost.PerMonthEnd), two(r.Cost.PerTenantEnd), two(r.Cost.PerMonthMean), two(r.Cost.Spent))},
		{"decisions", fmt.Sprint(r.Decisions)},
	}
}

func (r Report) invariants() string {
	if len(r.Violations) > 0 {
		return fmt.Sprintf("%d violated", len(r.Violations))
	}
	return "ok"
}

func list(in []Reason) string {
	parts := make([]string, 0, len(in))
	for _, x := range in {
		parts = append(parts, fmt.Sprintf("%s %d", x.Name, x.Count))
	}
	return strings.Join(parts, ", ")
}

func seconds(v float64) string { return (time.Duration(v) * time.Second).String() }

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func one(v float64) string { return fmt.Sprintf("%.1f", v) }

func two(v float64) string { return fmt.Sprintf("%.2f", v) }
