package app

import (
	"errors"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/dns"
	"github.com/prego/prego/worker"
	"github.com/prego/prego/workflows"
)

// newNames creates the steps that keep the zone's records and orgs' names. No server is
// deleted while the zone names its addresses.
func newNames(p *Process, servers *activities.Servers, runs *workflows.Client) (*activities.Names, error) {
	n := p.cfg.Names
	resolver, err := dns.New(dns.Config{Resolvers: n.Resolvers, Authoritative: n.Authoritative, Local: p.cfg.Hetzner.Simulated, Exchange: p.resolve})
	if err != nil {
		return nil, err
	}
	zones, ok := servers.Infra[prego.ProviderHetzner].(activities.DNS)
	if !ok && n.Zone != "" {
		return nil, errors.New("PREGO_DNS_ZONE: the provider keeps no zones")
	}
	names := &activities.Names{
		Store: p.db, DNS: zones, Resolver: resolver, Runs: runs, Zone: n.Zone, SiteDomain: p.cfg.Tenants.SiteDomain, Rules: n.Rules(),
		Metrics: activities.NewNameMetrics(p.reg), Log: p.log.Named("names"), Hooks: p.hooks,
	}
	servers.LeaveDNS = names.LeaveDNS
	return names, nil
}

// lookAtNames are what a worker looks for of names.
func lookAtNames(p *Process, names *activities.Names) []worker.Look {
	out := []worker.Look{{Name: "names", Every: p.cfg.Names.Every, Do: worker.At(names, worker.LookAtNames)}}
	if names.Zone != "" {
		out = append(out, worker.Look{Name: "dns records", Every: p.cfg.Names.CompareEvery, Do: worker.At(names, worker.LookAtRecords)})
	}
	return out
}
