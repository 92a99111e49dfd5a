package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/cli"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/sim"
	"github.com/prego/prego/tenant"
)

// simulateFlags are the command's flags.
type simulateFlags struct {
	tenants           int
	seed              uint64
	policy, algorithm string
	json              bool
	html              string
	prices            string // a location, whose prices are read from the API
}

func newSimulateCommand() *cobra.Command {
	var o simulateFlags
	cmd := &cobra.Command{
		Use: "simulate", Short: "Simulate the life of a fleet with the placement engine (docs/simulate.md)",
		Args: func(cmd *cobra.Command, args []string) error { return badUsage(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			var prices *api.Catalog
			if o.prices != "" {
				c, err := cli.New(os.Getenv).Client()
				if err != nil {
					return err
				}
				got, err := c.Catalog(cmd.Context())
				if err != nil {
					return err
				}
				prices = &got
			}
			return simulate(o, prices, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return badUsage(err) })
	f := cmd.Flags()
	f.IntVar(&o.tenants, "tenants", 10_000, fmt.Sprintf("how many tenants ask for a place, 0 to %d", sim.MaxTenants))
	f.Uint64Var(&o.seed, "seed", 1, "random seed; the same seed gives the same report")
	f.StringVar(&o.policy, "policy", string(tenant.ModeShared), "shared or one_tenant_one_server")
	f.StringVar(&o.algorithm, "algorithm", string(placement.BestFit), "best_fit, first_fit or round_robin")
	f.BoolVar(&o.json, "json", false, "print one JSON document")
	f.StringVar(&o.prices, "prices", "", "use this location's prices from the provider's catalog, read through the API (default: the model's)")
	f.StringVar(&o.html, "html", "", "also draw the report into this file")
	return cmd
}

// badUsage is status 2: the request is impossible.
func badUsage(err error) error {
	if err == nil {
		return nil
	}
	return &cli.Exit{Code: cli.ExitRefused, Err: err}
}

// config checks the flags.
func (o simulateFlags) config() (sim.Config, error) {
	p := placement.DefaultPolicy()
	p.Mode, p.Algorithm = tenant.PlacementMode(o.policy), placement.Algorithm(o.algorithm)
	switch {
	case o.tenants < 0 || o.tenants > sim.MaxTenants:
		return sim.Config{}, fmt.Errorf("--tenants must be 0 to %d, not %d", sim.MaxTenants, o.tenants)
	case !p.Mode.Valid():
		return sim.Config{}, fmt.Errorf("--policy must be shared or one_tenant_one_server, not %q", o.policy)
	case !p.Algorithm.Valid() || p.Algorithm == placement.NewServer:
		return sim.Config{}, fmt.Errorf("--algorithm must be best_fit, first_fit or round_robin, not %q", o.algorithm)
	}
	return sim.DefaultConfig(o.tenants, p), nil
}

// priced sets the prices of a location on the model's machines.
func priced(c *sim.Config, catalog api.Catalog, location string) error {
	for i, role := range c.Roles {
		cents := 0
		for _, t := range catalog.ServerTypes {
			for _, at := range t.Locations {
				if net, err := strconv.ParseFloat(at.Price.Monthly.Net, 64); err == nil && t.Name == role.ServerType && at.Location == location {
					cents = int(math.Round(net * 100))
				}
			}
		}
		if cents == 0 {
			return fmt.Errorf("--prices: %s is not sold in %s, as far as is known; see prego catalog", role.ServerType, location)
		}
		c.Roles[i].CentsPerMonth = cents
	}
	return nil
}

// simulate runs the model; prices may be nil.
func simulate(o simulateFlags, prices *api.Catalog, out, notes io.Writer) error {
	c, err := o.config()
	if err != nil {
		return badUsage(err)
	}
	if prices != nil {
		if err := priced(&c, *prices, o.prices); err != nil {
			return badUsage(err)
		}
	}
	var page *os.File
	if o.html != "" { // before the work, so that a bad path fails immediately
		if page, err = os.Create(o.html); err != nil {
			return badUsage(fmt.Errorf("--html: %w", err))
		}
		defer func() { _ = page.Close() }() // a no-op after a successful close
	}
	s := sim.New(c, rand.NewPCG(o.seed, 0))
	began := time.Now()
	s.Run()
	took := time.Since(began)
	r := s.Report()
	r.Seed = o.seed
	// The time depends on the machine, not on the seed: it is no part of the report.
	if r.Decisions > 0 {
		fmt.Fprintf(notes, "%d decisions, simulated in %s\n", r.Decisions, took.Round(time.Millisecond))
	}
	if page != nil {
		if err := r.WriteHTML(page); err != nil {
			return err
		}
		if err := page.Close(); err != nil {
			return err
		}
	}
	if err := printReport(r, o.json, out); err != nil {
		return err
	}
	return verdict(r)
}

// verdict is status 1 if an invariant is violated.
func verdict(r sim.Report) error {
	if n := len(r.Violations); n > 0 {
		return &cli.Exit{Code: cli.ExitUsage, Err: fmt.Errorf("invariants violated: %d", n)}
	}
	return nil
}

func printReport(r sim.Report, asJSON bool, out io.Writer) error {
	if !asJSON {
		return r.WriteText(out)
	}
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
