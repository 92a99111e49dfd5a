package console

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// line is a line of a timeline.
type line struct {
	At, After   value
	Step        string
	Tone        string
	Who         string
	Text        string
	Reason      string
	Server      value
	From, State string
}

// timeline is a list of events, the newest first.
func timeline(events []object, now time.Time) []line {
	out := make([]line, 0, len(events))
	for _, e := range events {
		l := line{
			At: shown("at", e.at("at"), now), Step: e.text("step"), Who: e.text("actor"), Text: e.text("message"), Reason: e.text("reason"),
			From: e.text("from_state"), State: e.text("to_state"), Server: shown("server_id", e.at("server_id"), now),
		}
		if l.State == "" {
			l.State = e.text("status")
		}
		l.Tone = tones[l.State]
		out = append(out, l)
	}
	if len(out) > 1 && out[0].At.Time < out[len(out)-1].At.Time {
		slices.Reverse(out)
	}
	return out
}

// waterfall is how long the steps of a boot took.
type waterfall struct {
	Bars  []bar
	Total string
	Width int
}

// bar is one step: when it began, and how long it lasted, in the units of an SVG.
type bar struct {
	Step, Text, Took string
	X, Width, Y      float64
	LabelX           float64
	Bad              bool
}

// boot is the waterfall of the last attempt to make a server, nil if there is none.
func boot(events []object) *waterfall {
	type step struct {
		name, text string
		at         time.Time
		bad        bool
	}
	var steps []step
	for _, e := range events {
		at, err := time.Parse(time.RFC3339, e.text("at"))
		if err != nil {
			continue
		}
		name := e.text("step")
		switch name {
		case "requested", "retry_requested", "create_intended":
			if name != "create_intended" || len(steps) > 3 {
				steps = nil // another attempt
			}
		case "boot_stage":
			name = e.text("message")
		case "token_issued", "server_created", "handshake", "first_heartbeat", "containers_started", "active", "boot_failed", "failed":
		default:
			continue
		}
		steps = append(steps, step{name: strings.SplitN(name, ",", 2)[0], text: e.text("message"), at: at, bad: strings.Contains(name, "failed")})
		if name == "active" {
			break
		}
	}
	if len(steps) < 3 {
		return nil
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.at.Compare(b.at) })
	const width, labels = 640.0, 190 // beside the last bar
	total := steps[len(steps)-1].at.Sub(steps[0].at)
	w := &waterfall{Total: span(total), Width: int(width) + labels}
	for i, s := range steps[1:] {
		began := steps[i].at
		b := bar{Step: s.name, Text: s.text, Took: span(s.at.Sub(began)), Y: float64(i) * 22, Bad: s.bad}
		if total > 0 {
			b.X, b.Width = width*began.Sub(steps[0].at).Seconds()/total.Seconds(), max(2, width*s.at.Sub(began).Seconds()/total.Seconds())
		}
		b.LabelX = b.X + b.Width + 6
		w.Bars = append(w.Bars, b)
	}
	return w
}

// Height is the SVG's.
func (w *waterfall) Height() int { return len(w.Bars)*22 + 4 }

// quotaBar is how much of a limit is used and promised.
type quotaBar struct {
	Dimension, Limit, Used, Promised, Source, Reason, Do string
	UsedWidth, PromisedWidth                             string
	Full                                                 bool
}

// bars are an org's quotas. Each leads to a form that changes it, whose address change begins.
func bars(quotas []object, change string) []quotaBar {
	out := make([]quotaBar, 0, len(quotas))
	for _, q := range quotas {
		b := quotaBar{
			Dimension: q.text("dimension"), Limit: amount(q, "limit"), Used: amount(q, "usage"), Promised: amount(q, "reserved"), Source: q.text("source"), Reason: q.text("reason"),
		}
		if change != "" {
			b.Do = change + b.Dimension
		}
		if limit := q.number("limit"); limit > 0 {
			used := min(100, 100*q.number("usage")/limit)
			b.UsedWidth, b.PromisedWidth = fixed(used), fixed(min(100-used, 100*q.number("reserved")/limit))
			b.Full = q.number("usage")+q.number("reserved") >= limit
		}
		out = append(out, b)
	}
	return out
}

// amount is a quota's number; bytes in larger units.
func amount(q object, field string) string {
	n, ok := q.at(field).(json.Number)
	if !ok {
		return "no limit"
	}
	if strings.Contains(q.text("dimension"), "bytes") || strings.Contains(q.text("dimension"), "memory") || strings.Contains(q.text("dimension"), "disk") {
		f, _ := n.Float64()
		return size(f)
	}
	if f, err := n.Float64(); err == nil && q.text("dimension") == "max_monthly_euros" {
		return fmt.Sprintf("€ %.2f", f)
	}
	return n.String()
}

func fixed(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

// changedField is a field of an audit entry.
type changedField struct {
	Name     string
	Old, New value
}

// difference lists the fields that a change changed.
func difference(before, after any, now time.Time) []changedField {
	b, _ := before.(map[string]any)
	a, _ := after.(map[string]any)
	all := map[string]bool{}
	for k := range b {
		all[k] = true
	}
	for k := range a {
		all[k] = true
	}
	var out []changedField
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if fmt.Sprint(b[k]) == fmt.Sprint(a[k]) {
			continue
		}
		out = append(out, changedField{Name: k, Old: shown(k, b[k], now), New: shown(k, a[k], now)})
	}
	return out
}
