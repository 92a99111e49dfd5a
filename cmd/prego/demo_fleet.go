package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/cli"
	"github.com/prego/prego/server"
)

// demoFleet has a fleet over three regions brought to four servers: by weight as many
// in us as in eu, but for the cap. A second start meets the fleet as the first one
// left it, takes its servers down, and begins again.
func demoFleet(ctx context.Context, out io.Writer, c *cli.Client) error {
	const fleet, spread, size = "demo-pool", "demo-spread", 4
	fmt.Fprintln(out, "\nA fleet over three regions: eu=50, us=50 with at most 1, sg=25. The plan of making 4 servers:")
	none := int64(server.NoMaxSize)
	spec := json.RawMessage(`{"regions":[{"name":"eu","weight":50},{"name":"us","weight":50,"cap":1},{"name":"sg","weight":25}]}`)
	for _, r := range []struct {
		method, path string
		in           any
	}{
		{http.MethodPost, "/v1/fleets", server.CreateFleetRequest{FleetID: fleet, Role: prego.RoleRedisPool, InfraProvider: prego.ProviderHetzner, MaxSize: &none}},
		{http.MethodPost, "/v1/policies", api.CreatePolicy{PolicyId: spread, Type: api.PolicyType(server.PolicyRegionPlacement), Spec: spec}},
		{http.MethodPut, fleetPath(fleet, "policies", spread), api.AttachPolicy{}},
	} {
		if err := c.Do(ctx, r.method, r.path, nil, r.in, nil); err != nil {
			return err
		}
	}
	body := func(n int) any {
		return map[string]any{"action": server.ClusterResize, "inputs": map[string]any{"adjustment_type": "EXACT_CAPACITY", "number": n}}
	}
	var f api.ServerFleet
	if err := c.Do(ctx, http.MethodGet, fleetPath(fleet), nil, nil, &f); err != nil {
		return err
	}
	if f.Size > 0 {
		fmt.Fprintf(out, "  of an earlier start there are %d; they go first\n", f.Size)
		if err := act(ctx, c, io.Discard, fleet, body(0)); err != nil {
			return err
		}
	}
	var plan api.FleetActionPlan
	if err := c.Do(ctx, http.MethodPost, fleetPath(fleet, "actions"), url.Values{"dry_run": {"true"}}, body(size), &plan); err != nil {
		return err
	}
	if plan.Reason != nil {
		return errors.New(deref(plan.Message))
	}
	if err := cli.PrintPlan(out, plan); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nThe action:")
	if err := act(ctx, c, out, fleet, body(size)); err != nil {
		return err
	}
	if err := c.Do(ctx, http.MethodGet, fleetPath(fleet), nil, nil, &f); err != nil {
		return err
	}
	fmt.Fprintf(out, "fleet %s has %d servers: %s\n", fleet, f.Size, cli.Counts(f.Regions))
	return nil
}

// act has an action carried out and shows its steps.
func act(ctx context.Context, c *cli.Client, out io.Writer, fleet string, body any) error {
	var a api.FleetActionAccepted
	if err := c.Do(ctx, http.MethodPost, fleetPath(fleet, "actions"), nil, body, &a); err != nil {
		return err
	}
	return ended(ctx, c, out, fleet, a.Seq)
}

// ended waits until an action of a fleet succeeded.
func ended(ctx context.Context, c *cli.Client, out io.Writer, fleet string, action int) error {
	done, err := cli.WatchAction().Follow(ctx, c, fleetPath(fleet, "actions", strconv.Itoa(action)), out)
	if err != nil {
		return err
	}
	return cli.ActionFailure(done)
}

func fleetPath(more ...string) string { return "/v1/fleets/" + strings.Join(more, "/") }
