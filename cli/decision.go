package cli

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/placement"
)

var decisionTable = Table[api.Decision]{
	ID: "id", Columns: "id, tenant_id, outcome, code, region, algorithm, at: age, why", Spare: "why, algorithm, region, age", More: "org_id, actor, rejected",
	Computed: map[string]func(api.Decision) any{
		"why":      func(d api.Decision) any { return d.DecisionLog.SelectionReason },
		"rejected": func(d api.Decision) any { return countsText(d.DecisionLog.RejectedCounts) },
	},
}

var explainedTable = Table[api.ExplainedDecision]{
	ID: "decision.id", Columns: "decision.id: decision, decision.tenant_id: tenant, decision.outcome: outcome, decision.code: code, decision.region: region, decision.actor: actor, decision.at: at, why, input",
	Computed: map[string]func(api.ExplainedDecision) any{
		"why": func(d api.ExplainedDecision) any { return d.Decision.DecisionLog.SelectionReason },
	},
}

func countsText(counts map[string]int) string {
	var out []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%s %d", reason, counts[reason]))
	}
	return strings.Join(out, ", ")
}

func decisionCommand(c *CLI) *cobra.Command {
	return c.group("decision", "Show why tenants were placed where they are, and decide again",
		List[api.Decision]{
			Short: "List placement decisions, newest first", Path: "/v1/decisions", Items: "decisions", Filters: "tenant: tenant_id, org: org_id, region, outcome, code", Sorts: "id", Limit: 50,
			Values: map[string][]string{"outcome": {"placed", "on_demand", "awaiting_capacity", "hold", "new_server", "rejected", "moved"}}, Table: decisionTable,
		},
		Show[api.ExplainedDecision]{
			Use: "show DECISION…", Short: "Show decisions with what every filter removed and how the rest scored", Path: "/v1/decisions/{decision}", Table: explainedTable,
			After: func(in *call, d api.ExplainedDecision) {
				if d.Funnel != nil {
					printFunnel(in.w, *d.Funnel)
				}
			},
		},
		Action[api.DecisionReplay]{
			Use: "replay DECISION", Short: "Decide again on the input of a decision, with the policy of then and of today", Path: "/v1/decisions/{decision}/replay",
			Table: Table[api.DecisionReplay]{Columns: "same"},
			Say: func(_ *call, r api.DecisionReplay) string {
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
			},
		},
	)
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

func whatIfVerb() Action[api.WhatIfResult] {
	var in api.WhatIf
	var tenantID, org, plan, region, toPlan, toRegion, residency string
	var require, disallow, toRequire, toDisallow, cordon, uncordon, tags []string
	var add api.WhatIfServer
	var role, network, serverType, addRegion string
	return Action[api.WhatIfResult]{
		Use: "what-if", Short: "Compare a placement as it is with one under other circumstances; nothing is written", Path: "/v1/placements/what-if",
		Example: "  prego placement what-if --tenant acme-eu --cordon app-eu-1\n  prego placement what-if --region eu --plan starter --add-server app --add-tag gpu --to-require gpu",
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.StringVar(&tenantID, "tenant", "", "id of a tenant: one more like it is placed")
			f.StringVar(&region, "region", "", "region of a tenant that does not exist")
			f.StringVar(&plan, "plan", "", "its plan")
			f.StringVar(&org, "org", "", "its org")
			f.StringVar(&residency, "data-residency", "", "its country")
			tagFlags(f, &require, &disallow)
			f.StringVar(&toPlan, "to-plan", "", "another plan")
			f.StringVar(&toRegion, "to-region", "", "another region")
			f.StringSliceVar(&toRequire, "to-require", nil, "other required tags; may be repeated")
			f.StringSliceVar(&toDisallow, "to-disallow", nil, "other disallowed tags; may be repeated")
			f.StringSliceVar(&cordon, "cordon", nil, "server that takes nobody new; may be repeated")
			f.StringSliceVar(&uncordon, "uncordon", nil, "server that takes new tenants again; may be repeated")
			f.StringVar(&role, "add-server", "", "role of one more server: app, node, db-shard or redis-pool")
			f.StringVar(&addRegion, "add-region", "", "its region (default: the tenant's)")
			f.StringVar(&network, "add-network", "", "its private network (default: that of most servers there)")
			f.StringVar(&serverType, "add-type", "", "its server type, for the price")
			f.StringSliceVar(&tags, "add-tag", nil, "its tags; may be repeated")
		},
		Body: func(v *call) (any, error) {
			if tenantID != "" {
				id, err := v.resolve("tenant", tenantID)
				if err != nil {
					return nil, err
				}
				in.TenantId = new(prego.TenantID(id))
			} else {
				if region == "" || plan == "" {
					return nil, usagef("--tenant, or --region and --plan are required")
				}
				in.Request = &api.PlacementRequest{TenantId: placement.AnotherTenant, Region: prego.Region(region), Plan: prego.Plan(plan)}
				if org != "" {
					in.Request.OrgId = &org
				}
				if residency != "" {
					in.Request.DataResidency = &residency
				}
				if len(require)+len(disallow) > 0 {
					in.Request.Constraint = &api.Constraint{Require: optionalList(require), Disallow: optionalList(disallow)}
				}
			}
			if toPlan != "" {
				in.Change.Plan = new(prego.Plan(toPlan))
			}
			if toRegion != "" {
				in.Change.Region = new(prego.Region(toRegion))
			}
			if v.given("to-require") || v.given("to-disallow") {
				in.Change.Constraint = &api.Constraint{Require: optionalList(toRequire), Disallow: optionalList(toDisallow)}
			}
			if len(cordon) > 0 {
				in.Change.Cordon = new(prego.IDs[prego.ServerID](cordon))
			}
			if len(uncordon) > 0 {
				in.Change.Uncordon = new(prego.IDs[prego.ServerID](uncordon))
			}
			if role != "" {
				add.Role = prego.Role(role)
				if addRegion != "" {
					add.Region = new(prego.Region(addRegion))
				}
				if network != "" {
					add.NetworkId = &network
				}
				if serverType != "" {
					add.ServerType = &serverType
				}
				add.Tags = optionalList(tags)
				in.Change.AddServer = &add
			}
			return in, nil
		},
		Table: Table[api.WhatIfResult]{Columns: "same"},
		Say: func(_ *call, r api.WhatIfResult) string {
			out := "as it is   " + placeText(r.AsIs.Line) + "\nwhat if    " + placeText(r.Changed.Line)
			if r.Same {
				out += "\nthe same place"
			}
			if r.AddedMonthly != nil {
				out += "\nthe server costs " + monthly(*r.AddedMonthly, deref(r.Currency))
			}
			return out
		},
		After: func(v *call, r api.WhatIfResult) { printFunnel(v.w, r.Changed.Funnel) },
	}
}

func fleetMapVerb() Action[api.FleetMap] {
	var region, expand string
	return Action[api.FleetMap]{
		Use: "map", Short: "Show all servers by region and fleet, and how full they are", Method: http.MethodGet, Path: "/v1/fleet-map",
		Flags: func(_ *cobra.Command, f *pflag.FlagSet) {
			f.StringVar(&region, "region", "", "only this region")
			f.StringVar(&expand, "expand", "", "show each server of REGION/FLEET, however many there are; REGION/ for servers outside fleets")
		},
		Query: func(*call) url.Values {
			q := url.Values{}
			if region != "" {
				q["region"] = []string{region}
			}
			if expand != "" {
				q["expand"] = []string{expand}
			}
			return q
		},
		Table: Table[api.FleetMap]{Columns: "as_of"},
		Say:   func(_ *call, m api.FleetMap) string { return mapText(m) },
	}
}

// mapText is a fleet map with a line for each server or group.
func mapText(m api.FleetMap) string {
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
