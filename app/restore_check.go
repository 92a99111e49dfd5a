package app

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workflows"
)

// CheckRestore finds in what a restored database differs from the provider, Temporal and, with hosts, the
// hosts of active servers.
func CheckRestore(ctx context.Context, o Options, hosts bool) (found []activities.Difference, err error) {
	err = run(ctx, o, "restore-check", func(ctx context.Context, p *Process, runs *workflows.Client) error {
		if _, err := p.readTrust(ctx); err != nil {
			return err
		}
		servers, fleet, err := buildActivities(ctx, p, runs)
		if err != nil {
			return err
		}
		if fleet.Images, err = newImages(p, servers, runs); err != nil {
			return err
		}
		var ask *activities.HostChecks
		if hosts {
			if ask, err = newHostChecks(p, servers); err != nil {
				return err
			}
		}
		found, err = activities.CheckRestore(ctx, fleet, runs, ask)
		return err
	})
	return found, err
}

// newHostChecks asks hosts without a record of it: nothing is written.
func newHostChecks(p *Process, servers *activities.Servers) (*activities.HostChecks, error) {
	ca, err := pki.Open(p.cfg.KeysDir, p.cfg.Environment)
	if err != nil {
		return nil, err
	}
	agents, err := newAgents(p, ca)
	if err != nil {
		return nil, err
	}
	return &activities.HostChecks{
		Containers: activities.CompareContainers(servers),
		Rows: func(ctx context.Context) ([]tenant.HostSites, error) {
			return p.db.HostSites(ctx, p.cfg.Tenants.SiteDomain)
		},
		Sites: func(ctx context.Context, id prego.ServerID, addr string) (sites []string, err error) {
			out, err := agents.Exec(ctx, id, addr, wire.ExecRequest{WorkflowID: "restore-check", Kind: wire.KindBench, Args: []string{"list-sites"}, TimeoutSeconds: 10})
			if err != nil {
				return nil, err
			}
			if out.ExitCode != 0 {
				return nil, fmt.Errorf("bench list-sites: exit status %d: %s", out.ExitCode, out.StderrTruncated)
			}
			return sites, json.Unmarshal([]byte(out.StdoutTruncated), &sites)
		},
	}, nil
}
