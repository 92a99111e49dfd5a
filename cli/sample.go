package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// serverSamples is the verb that shows how a host's figures went.
func serverSamples(c *CLI) *cobra.Command {
	var back time.Duration
	cmd, _ := c.own("listServerSamples")
	offerCSV(cmd)
	cmd.Flags().DurationVar(&back, "since", server.SampledFor, "how far back, at most 24h")
	return c.run(cmd, "", func(in *call) (func() error, error) {
		if back <= 0 || back > server.SampledFor {
			return nil, usagef("--since must be above 0 and at most %s", server.SampledFor)
		}
		until := in.Now()
		q := url.Values{}
		if in.given("since") {
			q.Set("since", until.Add(-back).UTC().Format(time.RFC3339))
		}
		if err := in.client.Do(in.Context(), http.MethodGet, in.path("/v1/servers/{server}/samples"), q, nil, &in.answer); err != nil {
			return nil, err
		}
		in.keep(in.answer)
		var out api.ServerSampleList
		if err := json.Unmarshal(in.answer, &out); err != nil {
			return nil, err
		}
		if in.format == csvFormat {
			return nil, in.samples(out.Samples)
		}
		if !in.forPeople() {
			return nil, nil
		}
		if len(out.Samples) == 0 {
			fmt.Fprintln(in.w, "no samples in this time")
			return nil, nil
		}
		table := &api.Table{List: api.Columns("figure, last, least, most, course"), Spare: []string{"least", "most"}}
		return nil, partsIn(in.printer, table, trends(out.Samples, until.Add(-back), until))
	})
}

// samples prints samples as CSV.
func (in *call) samples(samples []api.ServerSample) error {
	table := &api.Table{List: api.Columns("at|time, load1, cpu_pct, memory_pct, disk_pct, db_disk_pct, redis_memory_pct, worker_slots_pct")}
	things := make([]thing, len(samples))
	for i, s := range samples {
		raw, err := json.Marshal(s)
		if err == nil {
			things[i], err = thingOf(raw, nil)
		}
		if err != nil {
			return err
		}
	}
	return in.csv(table, things)
}

// trend is how a figure went.
type trend struct {
	Figure string `json:"figure"`
	Last   string `json:"last"`
	Least  string `json:"least"`
	Most   string `json:"most"`
	Course string `json:"course"`
}

// courseWidth is how many characters show how a figure went.
const courseWidth = 48

// trends are the trends of all known figures.
func trends(samples []api.ServerSample, from, until time.Time) []trend {
	var out []trend
	for _, f := range []struct {
		name, unit string
		top        float64 // the whole height; 0 for the largest
		of         func(api.ServerSample) *float64
	}{
		{"load", "", 0, func(s api.ServerSample) *float64 { return s.Load1 }},
		{"CPU", " %", 100, func(s api.ServerSample) *float64 { return s.CpuPct }},
		{"memory", " %", 100, func(s api.ServerSample) *float64 { return s.MemoryPct }},
		{"disk", " %", 100, func(s api.ServerSample) *float64 { return s.DiskPct }},
		{"workers", " %", 100, func(s api.ServerSample) *float64 { return s.WorkerSlotsPct }},
		{"database disk", " %", 100, func(s api.ServerSample) *float64 { return s.DbDiskPct }},
		{"Redis memory", " %", 100, func(s api.ServerSample) *float64 { return s.RedisMemoryPct }},
	} {
		var known []float64
		cells := make([]float64, courseWidth) // the highest of each
		for i := range cells {
			cells[i] = math.NaN()
		}
		for _, s := range samples {
			v := f.of(s)
			if v == nil {
				continue
			}
			known = append(known, *v)
			i := int(float64(courseWidth) * float64(s.At.Sub(from)) / float64(until.Sub(from)))
			i = max(0, min(courseWidth-1, i))
			if math.IsNaN(cells[i]) || *v > cells[i] {
				cells[i] = *v
			}
		}
		if len(known) == 0 {
			continue
		}
		least, most := slices.Min(known), slices.Max(known)
		top := f.top
		if top == 0 {
			top = max(1, most)
		}
		out = append(out, trend{Figure: f.name, Last: number(known[len(known)-1]) + f.unit, Least: number(least) + f.unit, Most: number(most) + f.unit, Course: course(cells, top)})
	}
	return out
}

// course draws figures as bars; a dot is where there are none.
func course(cells []float64, top float64) string {
	bars := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, v := range cells {
		if math.IsNaN(v) {
			b.WriteRune('·')
			continue
		}
		b.WriteRune(bars[max(0, min(len(bars)-1, int(v/top*float64(len(bars)))))])
	}
	return b.String()
}
