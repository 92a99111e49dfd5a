package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/cli"
	"github.com/prego/prego/internal/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// demo provisions one server of each role, a tenant of each plan and a fleet over
// three regions, and prints each step as it happens. Then process groups run, and
// some are refused. standIn is the image that hosts with real engines have, "" where
// engines are simulated and have all.
func demo(ctx context.Context, out io.Writer, c *cli.Client, standIn string) error {
	suffix := time.Now().UTC().Format("150405")
	lines := &lockedWriter{w: out}
	if _, err := demoServers(ctx, out, lines, c, []server.CreateRequest{
		{ServerID: "app-eu-" + suffix, Role: prego.RoleApp, Region: prego.RegionEU},
		{ServerID: "db-shard-sg-" + suffix, Role: prego.RoleDBShard, Region: prego.RegionSG, Spec: server.Spec{VolumeGB: 20}},
		{ServerID: "redis-pool-us-" + suffix, Role: prego.RoleRedisPool, Region: prego.RegionUS},
		{ServerID: "node-eu-" + suffix, Role: prego.RoleNode, Region: prego.RegionEU, Spec: server.Spec{Tags: []string{"demo"}}},
	}); err != nil {
		return err
	}
	if err := demoTenants(ctx, out, lines, c, suffix); err != nil {
		return err
	}
	work := &demoWork{c: c, out: out, suffix: suffix, fleet: "work-" + suffix, image: "docker.io/library/nginx:1.29"}
	if standIn != "" {
		work.image, work.command = standIn, []string{sim.StandInProgram, "stand-in", "web"}
	}
	action, err := work.begin(ctx)
	if err != nil {
		return err
	}
	if err := demoFleet(ctx, out, c); err != nil {
		return err
	}
	return work.show(ctx, action)
}

// demoServers provisions servers at once, and returns them when all are active.
func demoServers(ctx context.Context, out, lines io.Writer, c *cli.Client, requests []server.CreateRequest) ([]api.Server, error) {
	fmt.Fprintln(out, "\nOne server of each role, requested over HTTP:")
	var wg sync.WaitGroup
	errs := make([]error, len(requests))
	servers := make([]api.Server, len(requests))
	for i, r := range requests {
		r.InfraProvider = prego.ProviderHetzner
		var a api.Accepted
		if err := c.Do(ctx, http.MethodPost, "/internal/servers/create", nil, r, &a); err != nil {
			return nil, err
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			s, err := cli.WatchServer("").Follow(ctx, c, "/v1/servers/"+r.ServerID, lines)
			if err == nil && server.Status(s.Status) != server.Active {
				err = cli.ServerFailure(s)
			}
			servers[i], errs[i] = s, err
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	fmt.Fprintln(out, "\nAll active. Their runs in Temporal's UI:")
	for _, s := range servers {
		fmt.Fprintf(out, "  %-24s %s\n", s.ServerId, deref(s.RunUrl))
	}
	return servers, nil
}

// demoTenants brings a tenant of each plan to life and prints why each is where it
// is: the trial shares a server, the starter claims a warm one, the others have one
// of their own built.
func demoTenants(ctx context.Context, out, lines io.Writer, c *cli.Client, suffix string) error {
	fmt.Fprintln(out, "\nA tenant of each plan. First a warm server, to be claimed at once:")
	for _, org := range []string{"acme", "corp"} {
		if err := c.Do(ctx, http.MethodPut, "/v1/orgs/"+org, nil, map[string]string{"tier": string(prego.TierEnterprise)}, nil); err != nil {
			return err
		}
	}
	if err := warmServer(ctx, lines, c); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nThe tenants, requested over HTTP:")
	requests := []tenant.CreateRequest{
		{Slug: "trial-" + suffix, OrgID: "acme", Plan: prego.PlanTrial, Policy: tenant.ModeShared},
		{Slug: "starter-" + suffix, OrgID: "acme", Plan: prego.PlanStarter, Apps: []string{"erpnext"}},
		{Slug: "business-" + suffix, OrgID: "corp", Plan: prego.PlanBusiness, DataResidency: "DE"},
		{Slug: "enterprise-" + suffix, OrgID: "corp", Plan: prego.PlanEnterprise},
	}
	var wg sync.WaitGroup
	tenants, errs := make([]api.Tenant, len(requests)), make([]error, len(requests))
	for i, r := range requests {
		r.Region = prego.RegionEU
		var a api.TenantAccepted
		if err := c.Do(ctx, http.MethodPost, "/v1/tenants", nil, r, &a); err != nil {
			return err
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			t, err := cli.WatchTenant(nil).Follow(ctx, c, "/v1/tenants/"+a.TenantId, lines)
			if err == nil && tenant.State(t.State) != tenant.Active {
				err = cli.TenantFailure(t)
			}
			tenants[i], errs[i] = t, err
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nAll active. Where, why, and how long it took:")
	for _, t := range tenants {
		fmt.Fprintf(out, "  %-11s https://%s on %s after %.1f s\n", t.Plan, deref(t.Site), t.Allocation.AppServerId, t.ActiveAt.Sub(t.CreatedAt).Seconds())
		if t.Decision != nil {
			for _, row := range cli.Decided(*t.Decision) {
				fmt.Fprintf(out, "    %-12s %s\n", row[0], row[1])
			}
		}
		fmt.Fprintf(out, "    %-12s %s\n", "run", deref(t.RunUrl))
	}
	return nil
}

// warmServer asks for a warm server for starters in eu and waits until the next
// tenant could claim it.
func warmServer(ctx context.Context, lines io.Writer, c *cli.Client) error {
	began := time.Now()
	if err := c.Do(ctx, http.MethodPut, "/v1/warm-pools/eu/starter", nil, map[string]int{"target": 1}, nil); err != nil {
		return err
	}
	for {
		var pools api.WarmPoolList
		if err := c.Do(ctx, http.MethodGet, "/v1/warm-pools", nil, nil, &pools); err != nil {
			return err
		}
		for _, p := range pools.WarmPools {
			if p.Claimable > 0 {
				fmt.Fprintf(lines, "%8.2fs  warm server of plan %s in %s is claimable\n", time.Since(began).Seconds(), p.Plan, p.Region)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// lockedWriter keeps lines of several writers whole.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
