package activities

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// Difference is a mismatch between the world and the database restored to an earlier moment, and
// the control plane's response.
type Difference struct {
	Where    string // database, provider, temporal or host
	What     string // kind and name
	Is       string
	Then     string
	Destroys bool // something that exists, by itself
}

// hostPatience is how long a host may take to answer, hostsAtOnce how many are asked.
const (
	hostPatience = 15 * time.Second
	hostsAtOnce  = 16
)

// HostChecks are how hosts of active servers are asked.
type HostChecks struct {
	Containers func(context.Context, prego.ServerID) (ContainerReport, error)
	// Sites are those on a server's disk.
	Sites func(ctx context.Context, serverID prego.ServerID, addr string) ([]string, error)
	// Rows are the sites that the database knows.
	Rows func(ctx context.Context) ([]tenant.HostSites, error)
}

// CheckRestore compares the database with the provider, Temporal and, unless hosts is nil, each host
// of an active server. It changes nothing.
func CheckRestore(ctx context.Context, a *Reconciler, runs Runs, hosts *HostChecks) ([]Difference, error) {
	open, err := runs.OpenRuns(ctx)
	if err != nil {
		return nil, fmt.Errorf("open runs: %w", err)
	}
	var out []Difference
	missing := map[prego.ServerID]bool{} // at the provider; no host can answer
	for _, infra := range a.Infra {
		s, err := a.snapshot(ctx, infra)
		if err != nil {
			return nil, err
		}
		for _, r := range Compare(s).Missing {
			missing[r.ServerID] = true
		}
		out = append(out, predict(s, open, a.Rules)...)
		if hosts != nil {
			there := slices.DeleteFunc(slices.Clone(s.Rows), func(r server.ReconcileRow) bool { return missing[r.ServerID] })
			out = append(out, askHosts(ctx, there, hosts.Containers)...)
		}
	}
	if hosts == nil {
		return out, nil
	}
	rows, err := hosts.Rows(ctx)
	if err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(h tenant.HostSites) bool { return missing[h.ServerID] })
	return append(out, askSites(ctx, rows, hosts.Sites)...), nil
}

// predict returns the differences and the effects of the reconciliations after a restore. It is pure.
func predict(s Comparison, open []string, rules OrphanRules) []Difference {
	var out []Difference
	found := Compare(s)
	out = append(out, predictOrphans(s, found.Orphans, rules)...)
	for _, r := range found.Missing {
		out = append(out, Difference{
			Where: "provider", What: "server " + string(r.ServerID), Is: fmt.Sprintf("%s in the database, but the provider has no machine %s", r.Status, r.ProviderServerID),
			Then: "fails with server_missing; its tenants are restored elsewhere, as PREGO_RESTORE_LOST configures",
		})
	}
	for _, r := range found.Lost {
		out = append(out, Difference{
			Where: "provider", What: string(r.Kind) + " " + r.Name, Is: "is in the ledger, and not at the provider", Then: "its line is closed; what needs it makes another",
		})
	}
	machines := map[string][]server.OwnedResource{}
	for _, o := range s.Owned {
		if o.Kind == server.ResourceServer {
			machines[o.Labels[server.LabelServerID]] = append(machines[o.Labels[server.LabelServerID]], o)
		}
	}
	rows := map[string]server.ReconcileRow{}
	for _, r := range s.Rows {
		rows[string(r.ServerID)] = r
		d := Difference{Where: "database", What: "server " + string(r.ServerID)}
		run := server.ProvisionWorkflowID(r.ServerID)
		switch r.Status {
		case server.Provisioning:
			d.Is = fmt.Sprintf("was being provisioned, at attempt %d", r.Attempt)
			d.Then = "continues from its row, and gets a machine"
			m := machines[string(r.ServerID)]
			if len(m) > 0 {
				d.Is += fmt.Sprintf("; the provider has machine %s for it", m[0].ProviderID)
			}
			switch {
			case len(m) == 0:
			case m[0].Protected:
				d.Then = "keeps its machine, which is protected from deletion: its run repeats with holds_data until you decide"
			default:
				d.Then = "continues from its row; if the machine has used its token since, it is destroyed with all its data, and another is made. Back up its data first"
				d.Destroys = true
			}
		case server.Decommissioning:
			run = server.DecommissionWorkflowID(r.ServerID)
			d.Is, d.Then = "was being deleted", "is deleted"
			d.Destroys = len(machines[string(r.ServerID)]) > 0
		case server.Active, server.Failed, server.Terminated:
			continue
		}
		if !slices.Contains(open, run) {
			d.Then += ". Temporal has no run for it: the first reconciliation starts one"
		}
		out = append(out, d)
	}
	return append(out, predictRuns(rows, open)...)
}

// predictOrphans is about what carries our labels and has no owner, as if the second
// reconciliation were there.
func predictOrphans(s Comparison, orphans []server.OwnedResource, rules OrphanRules) []Difference {
	seen := map[string]server.Sighting{}
	for _, o := range orphans {
		seen[resourceKey(o.Kind, o.ProviderID)] = server.Sighting{Sightings: 2}
	}
	unlimited := rules
	unlimited.MaxPerRun = max(len(orphans), 1)
	doomed, tripped := Doomed(s, orphans, seen, unlimited)
	out := make([]Difference, 0, len(orphans))
	for _, o := range orphans {
		d := Difference{Where: "provider", What: string(o.Kind) + " " + o.Name, Is: "carries our labels and has no owner in the database, since " + o.CreatedAt.UTC().Format(time.RFC3339)}
		switch {
		case rules.MaxPerRun == 0:
			d.Then = "is counted, and kept while PREGO_ORPHAN_MAX_PER_RUN is 0"
		case o.Protected:
			d.Then = "is kept: it is protected from deletion, since it may hold data"
		case tripped:
			d.Then = "is kept: too many are unknown, and the breaker holds"
		case slices.ContainsFunc(doomed, func(x server.OwnedResource) bool { return x.Kind == o.Kind && x.ProviderID == o.ProviderID }):
			d.Then, d.Destroys = "is destroyed by the second reconciliation", true
		default:
			d.Then, d.Destroys = fmt.Sprintf("is destroyed once it is older than %s (PREGO_ORPHAN_AGE)", rules.MinAge), true
		}
		out = append(out, d)
	}
	return out
}

// predictRuns is about open runs of servers whose row does not wait for one.
func predictRuns(rows map[string]server.ReconcileRow, open []string) []Difference {
	var out []Difference
	for _, id := range open {
		for prefix, status := range map[string]server.Status{server.ProvisionWorkflowID(""): server.Provisioning, server.DecommissionWorkflowID(""): server.Decommissioning} {
			name, ok := strings.CutPrefix(id, prefix)
			if !ok {
				continue
			}
			d := Difference{Where: "temporal", What: "run " + id, Then: "ends when it reads the row: the row decides"}
			if r, known := rows[name]; !known {
				d.Is = "is open, and the database knows no such server"
			} else if r.Status != status {
				d.Is = fmt.Sprintf("is open, and %s in the database", r.Status)
			} else {
				continue
			}
			out = append(out, d)
		}
	}
	return out
}

// askHosts compares the containers of active servers with their declaration.
func askHosts(ctx context.Context, rows []server.ReconcileRow, check func(context.Context, prego.ServerID) (ContainerReport, error)) []Difference {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var out []Difference
	slots := make(chan struct{}, hostsAtOnce)
	for _, r := range rows {
		if r.Status != server.Active {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ask, cancel := context.WithTimeout(ctx, hostPatience)
			defer cancel()
			report, err := check(ask, r.ServerID)
			d := Difference{Where: "host", What: "server " + string(r.ServerID)}
			switch {
			case err != nil:
				d.Is = "does not answer: " + prego.Redact(err.Error())
				d.Then = "is marked as silent, and fails with heartbeat_lost unless its agent reports"
			case report.Skipped != "":
				d.Is, d.Then = "was not checked: "+report.Skipped, "is checked by the reconciliation"
			case len(report.Drift) > 0:
				d.Is, d.Then = "runs other containers than declared: "+report.summary(), "is reported by each reconciliation; prego container repair mends it"
			default:
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, d)
		})
	}
	wg.Wait()
	slices.SortFunc(out, func(a, b Difference) int { return strings.Compare(a.What, b.What) })
	return out
}

// askSites compares the sites on the disks of active servers with those of the rows.
func askSites(ctx context.Context, rows []tenant.HostSites, list func(context.Context, prego.ServerID, string) ([]string, error)) []Difference {
	found := make([][]Difference, len(rows))
	var wg sync.WaitGroup
	slots := make(chan struct{}, hostsAtOnce)
	for i, h := range rows {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ask, cancel := context.WithTimeout(ctx, hostPatience)
			defer cancel()
			there, err := list(ask, h.ServerID, h.Host)
			if err != nil {
				found[i] = []Difference{{
					Where: "host", What: "sites of server " + string(h.ServerID), Is: "were not listed: " + prego.Redact(err.Error()), Then: "compare them by hand: prego exec " + string(h.ServerID) + " bench -- list-sites",
				}}
				return
			}
			found[i] = predictSites(h, there)
		})
	}
	wg.Wait()
	return slices.Concat(found...)
}

// predictSites returns the differences between the sites on a server and the sites in its rows.
func predictSites(h tenant.HostSites, there []string) []Difference {
	var out []Difference
	known := map[string]bool{}
	for _, r := range h.Sites {
		known[r.Site] = true
		switch {
		case !r.Finished || slices.Contains(there, r.Site):
		case r.TenantID == "":
			out = append(out, Difference{
				Where: "host", What: "site " + r.Site, Is: fmt.Sprintf("free in the database, but server %s does not have it", h.ServerID), Then: "a tenant that gets it is placed again on another site; its database stays with the site that was promoted from it",
			})
		default:
			out = append(out, Difference{
				Where: "host", What: "site " + r.Site, Is: fmt.Sprintf("tenant %s is %s in the database, but server %s does not have its site", r.TenantID, r.State, h.ServerID),
				Then: "is not noticed: if the tenant was deleted since, cancel it again; if it was moved since, restore it from a backup",
			})
		}
	}
	for _, site := range slices.Sorted(slices.Values(there)) {
		if !known[site] {
			out = append(out, Difference{
				Where: "host", What: "site " + site, Is: fmt.Sprintf("is on server %s, but belongs to no tenant in the database", h.ServerID), Then: "is kept, and no other tenant gets it; it is not backed up. See docs/production.md",
			})
		}
	}
	return out
}
