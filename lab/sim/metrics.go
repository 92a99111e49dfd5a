package sim

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Metrics are those of resources that do next to nothing, the same at the same time.

var (
	serverSeries = map[string][]string{
		"cpu":     {"cpu"},
		"disk":    {"disk.0.iops.read", "disk.0.iops.write", "disk.0.bandwidth.read", "disk.0.bandwidth.write"},
		"network": {"network.0.pps.in", "network.0.pps.out", "network.0.bandwidth.in", "network.0.bandwidth.out"},
	}
	balancerSeries = map[string][]string{
		"open_connections": {"open_connections"}, "connections_per_second": {"connections_per_second"}, "requests_per_second": {"requests_per_second"},
		"bandwidth": {"bandwidth.in", "bandwidth.out"},
	}
)

// maxSamples is how many values a series has at most; the step is chosen by it.
const maxSamples = 500

// metrics answers for the resources of a kind.
func metrics[T any](k *kind[T], known map[string][]string) endpoint {
	return func(r *http.Request) (int, any, error) {
		if _, err := k.find(r); err != nil {
			return 0, nil, err
		}
		q := r.URL.Query()
		start, err := time.Parse(time.RFC3339, q.Get("start"))
		if err != nil {
			return 0, nil, invalid("invalid input in field 'start'", "start")
		}
		end, err := time.Parse(time.RFC3339, q.Get("end"))
		if err != nil || !end.After(start) {
			return 0, nil, invalid("invalid input in field 'end'", "end")
		}
		step := max(1, int(end.Sub(start).Seconds())/maxSamples)
		if v := q.Get("step"); v != "" {
			if step, err = strconv.Atoi(v); err != nil || step < 1 {
				return 0, nil, invalid("invalid input in field 'step'", "step")
			}
		}
		series := map[string]any{}
		types := strings.FieldsFunc(strings.Join(q["type"], ","), func(r rune) bool { return r == ',' })
		if len(types) == 0 || slices.ContainsFunc(types, func(t string) bool { return known[t] == nil }) {
			return 0, nil, invalid("invalid input in field 'type'", "type")
		}
		for _, typ := range types {
			for _, name := range known[typ] {
				values := []any{}
				for at := start; !at.After(end) && len(values) < maxSamples; at = at.Add(time.Duration(step) * time.Second) {
					values = append(values, []any{at.Unix(), strconv.FormatFloat(float64(at.Unix()%7)/10, 'f', 1, 64)})
				}
				series[name] = map[string]any{"values": values}
			}
		}
		return http.StatusOK, map[string]any{"metrics": map[string]any{"start": start.UTC(), "end": end.UTC(), "step": step, "time_series": series}}, nil
	}
}
