package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/placement/sim"
)

// simulateFlags are the command's.
type simulateFlags struct {
	tenants           int
	seed              uint64
	policy, algorithm string
	json              bool
	html              string
}

func newSimulateCommand() *cobra.Command {
	var o simulateFlags
	cmd := &cobra.Command{
		Use: "simulate", Short: "Play the life of a fleet through the placement engine (docs/simulate.md)",
		Args: func(cmd *cobra.Command, args []string) error { return badUsage(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error { return simulate(o, cmd.OutOrStdout(), cmd.ErrOrStderr()) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return badUsage(err) })
	f := cmd.Flags()
	f.IntVar(&o.tenants, "tenants", 10_000, fmt.Sprintf("how many tenants ask for a place, 0 to %d", sim.MaxTenants))
	f.Uint64Var(&o.seed, "seed", 1, "seed: the same one gives the same report")
	f.StringVar(&o.policy, "policy", string(prego.ModeShared), "shared or one_tenant_one_server")
	f.StringVar(&o.algorithm, "algorithm", string(placement.BestFit), "best_fit, first_fit or round_robin")
	f.BoolVar(&o.json, "json", false, "print one JSON document")
	f.StringVar(&o.html, "html", "", "draw the report into this file, too")
	return cmd
}

// badUsage is status 2: what was asked for is not possible.
func badUsage(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: 2, err: err}
}

// config checks the flags.
func (o simulateFlags) config() (sim.Config, error) {
	p := placement.DefaultPolicy()
	p.Mode, p.Algorithm = prego.PlacementMode(o.policy), placement.Algorithm(o.algorithm)
	switch {
	case o.tenants < 0 || o.tenants > sim.MaxTenants:
		return sim.Config{}, fmt.Errorf("--tenants must be 0 to %d, and is %d", sim.MaxTenants, o.tenants)
	case !p.Mode.Valid():
		return sim.Config{}, fmt.Errorf("--policy must be shared or one_tenant_one_server, and is %q", o.policy)
	case !p.Algorithm.Valid() || p.Algorithm == placement.NewServer:
		return sim.Config{}, fmt.Errorf("--algorithm must be best_fit, first_fit or round_robin, and is %q", o.algorithm)
	}
	return sim.DefaultConfig(o.tenants, p), nil
}

func simulate(o simulateFlags, out, notes io.Writer) error {
	c, err := o.config()
	if err != nil {
		return badUsage(err)
	}
	var page *os.File
	if o.html != "" { // before the work, so that a bad path is known at once
		if page, err = os.Create(o.html); err != nil {
			return badUsage(fmt.Errorf("--html: %w", err))
		}
		defer func() { _ = page.Close() }() // a second time after a good end
	}
	s, err := sim.New(c, rand.NewPCG(o.seed, 0))
	if err != nil {
		return badUsage(err)
	}
	began := time.Now()
	s.Run()
	took := time.Since(began)
	r := s.Report()
	r.Seed = o.seed
	// The time is the machine's and not the seed's: it is no part of the report.
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

// verdict is status 1 where an invariant does not hold.
func verdict(r sim.Report) error {
	if n := len(r.Violations); n > 0 {
		return &exitError{code: 1, err: fmt.Errorf("invariants violated: %d", n)}
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
