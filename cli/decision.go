package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
)

func replayText(_ *call, r api.DecisionReplay) string {
	out := []string{"decided   " + placeText(r.Decided), "replayed  " + placeText(r.Replayed), "now       " + placeText(r.Now)}
	if r.Same {
		out = append(out, "the same answer")
	}
	for _, d := range r.Differences {
		line := fmt.Sprintf("%s %s: %s then, %s now", d.What, d.Field, d.Then, d.Now)
		if d.Decisive {
			line += " (changes the answer)"
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// placeText is a decision in one line.
func placeText(l placement.Line) string {
	switch {
	case l.AppServerID != "" && l.PoolSiteID != "":
		return fmt.Sprintf("%s: %s, shard %s, pool %s, site %s", l.Outcome, l.AppServerID, l.DBShardID, l.RedisPoolID, l.PoolSiteID)
	case l.AppServerID != "":
		return fmt.Sprintf("%s: %s, shard %s, pool %s", l.Outcome, l.AppServerID, l.DBShardID, l.RedisPoolID)
	case len(l.MissingRoles) > 0:
		return fmt.Sprintf("%s: %s, short of %s", l.Outcome, l.Code, strings.Join(prego.Strings(l.MissingRoles), ", "))
	case l.Code != "":
		return fmt.Sprintf("%s: %s", l.Outcome, l.Code)
	}
	return string(l.Outcome)
}

var partNames = map[string]string{placement.KindAppServer: "app servers", placement.KindDBShard: "DB shards", placement.KindRedisPool: "Redis pools"}

// funnelIDs is how many ids of each filter are shown, and funnelScores how many scores.
const funnelIDs, funnelScores = 5, 5

func printFunnel(w io.Writer, f placement.Funnel) {
	for _, p := range f.Parts {
		if p.Candidates == 0 {
			fmt.Fprintf(w, "\n%s: not looked at\n", partNames[p.Kind])
			continue
		}
		fmt.Fprintf(w, "\n%s: %d candidates\n", partNames[p.Kind], p.Candidates)
		for _, s := range p.Filters {
			ids := strings.Join(s.IDs[:min(len(s.IDs), funnelIDs)], " ")
			if s.Removed > funnelIDs {
				ids += " …"
			}
			fmt.Fprintf(w, "  - %-28s %5d  leaves %-5d  %s\n", s.Filter, s.Removed, s.Left, ids)
		}
		for i, s := range p.Scored {
			if i >= funnelScores && !s.Chosen {
				continue
			}
			mark := " "
			if s.Chosen {
				mark = "*"
			}
			var parts []string
			for _, name := range slices.Sorted(maps.Keys(s.Components)) {
				parts = append(parts, fmt.Sprintf("%s %.3f", name, s.Components[name]))
			}
			fmt.Fprintf(w, "  %s %-28s %.4f  %s\n", mark, s.ID, s.Score, strings.Join(parts, ", "))
		}
		if n := p.Remaining - funnelScores; n > 0 {
			fmt.Fprintf(w, "    and %d more\n", n)
		}
	}
}

// whatIf asks for a tenant, existing or not.
var whatIf = hook{
	body: func(in *call, body object) (any, error) {
		if body["tenant_id"] != nil {
			delete(body, "request")
		} else {
			if in.text("region") == "" || in.text("plan") == "" {
				return nil, usagef("--tenant, or --region and --plan are required")
			}
			api.Put(body, "request.tenant_id", placement.AnotherTenant)
		}
		if change, _ := body["change"].(map[string]any); change == nil {
			body["change"] = object{}
		} else if in.text("add-server") == "" {
			delete(change, "add_server")
		}
		return body, nil
	},
	say: said(func(_ *call, r api.WhatIfResult) string {
		out := "as it is   " + placeText(r.AsIs.Line) + "\nwhat if    " + placeText(r.Changed.Line)
		if r.Same {
			out += "\nthe same place"
		}
		if r.AddedMonthly != nil {
			out += "\nthe server costs " + monthly(*r.AddedMonthly, deref(r.Currency))
		}
		return out
	}),
	after: more(func(in *call, r api.WhatIfResult) error {
		printFunnel(in.w, r.Changed.Funnel)
		return nil
	}),
}

// mapText is a fleet map with a line for each server or group.
func mapText(_ *call, m api.FleetMap) string {
	var out strings.Builder
	for _, r := range m.Regions {
		fmt.Fprintf(&out, "%s: %d servers\n", r.Region, r.ServersTotal)
		for _, f := range r.Fleets {
			name := f.FleetId
			if name == "" {
				name = "(no fleet)"
			}
			fmt.Fprintf(&out, "  %s, %s: %d servers, %s, %d tenants, %d instances\n", name, f.Role, f.ServersTotal, memoryText(f.MemoryMb), f.Tenants, f.Instances)
			for _, g := range deref(f.Groups) {
				fmt.Fprintf(&out, "    %5d × %-12s %s %-7s %s\n", g.Servers, g.State, bar(g.MemoryPct), g.Fill, deref(g.Alarm))
			}
			for _, s := range f.Servers {
				state := string(s.Status)
				switch {
				case s.Draining:
					state = "draining"
				case s.Cordoned:
					state = "cordoned"
				}
				fmt.Fprintf(&out, "    %-24s %-12s %s %4s  %s\n", s.ServerId, state, bar(s.MemoryPct), pctText(s.MemoryPct), deref(s.Alarm))
			}
		}
	}
	if len(m.Regions) == 0 {
		return "no servers"
	}
	return trimLines(out.String())
}

func trimLines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func memoryText(mb int) string {
	if mb == 0 {
		return "memory unknown"
	}
	return fmt.Sprintf("%.0f GiB", float64(mb)/1024)
}

func pctText(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", *v)
}

// bar draws a percentage in ten characters.
func bar(v *float64) string {
	n := 0
	if v != nil {
		n = min(10, max(0, int(*v/10+0.5)))
	}
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", 10-n) + "]"
}

func showDecision(in *call, d api.ExplainedDecision) error {
	if d.Funnel != nil {
		printFunnel(in.w, *d.Funnel)
	}
	return nil
}
