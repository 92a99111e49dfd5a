package activities_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/worker"
)

// addressCloud routes each address to one server.
type addressCloud struct {
	activities.OrgInfra
	at   map[string]string // provider's server by address
	fail error             // of the next assignment, after its effect
}

func (c *addressCloud) AssignFloatingIP(_ context.Context, address string, serverID prego.ServerID) error {
	c.at[address] = string(serverID)
	err := c.fail
	c.fail = nil
	return err
}

func (c *addressCloud) DeleteResource(_ context.Context, kind server.ResourceKind, id prego.ServerID) error {
	if kind != server.ResourceFloatingIP {
		return errors.New("not " + string(kind))
	}
	delete(c.at, string(id))
	return nil
}

// addressHosts are edges that have addresses.
type addressHosts struct {
	has    map[string]bool // edge and address
	silent map[prego.ServerID]bool
}

func (*addressHosts) BenchAll(context.Context, []server.BenchCommand) (int, error) { panic("not used") }

func (h *addressHosts) Bench(_ context.Context, c server.BenchCommand) (string, error) {
	if h.silent[c.ServerID] {
		return "", &server.CommandError{Kind: c.Kind, Code: server.CommandUnreachable, Message: "no answer"}
	}
	key := string(c.ServerID) + " " + c.Args[1]
	if c.Args[0] == "add" {
		h.has[key] = true
	} else {
		delete(h.has, key)
	}
	return "", nil
}

// TestAnAddressFollowsTheEdges moves an address to a live edge, to another when that drains or
// dies, and to none on release. Only its edge serves it.
func TestAnAddressFollowsTheEdges(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	ctx := t.Context()
	cloud := &addressCloud{at: map[string]string{}}
	hosts := &addressHosts{has: map[string]bool{}, silent: map[prego.ServerID]bool{}}
	started := addressRuns{}
	a := &activities.OrgResources{Store: p.Store, Infra: map[prego.InfraProviderID]activities.OrgInfra{prego.ProviderHetzner: cloud}, Hosts: hosts, Runs: &started}
	edge := func(id, provider, location string) {
		p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, provider_server_id, location, agent_status)
			VALUES ($1, '\x00', 'edge', 'eu', 'hetzner', '{}', 'active', 'w', 'a', $2, $3, 'connected')`, id, provider, location)
	}
	p.Exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'o1', 'a', 'a')`)
	p.Exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-a', 'app-a', 'o1', 'a', 'eu', 'a')`)
	p.Exec(`INSERT INTO ipv4_allocations (allocation_id, org_id, env_id, provider, name, location, provider_id, address, status, created_by)
		VALUES ('ip4-a', 'o1', 'env-a', 'hetzner', 'n', 'fsn1', '7', '203.0.113.7', 'ready', 'a')`)
	ref := activities.OrgResourceRef{Kind: server.ResourceFloatingIP, ID: "ip4-a"}
	settled := func() bool {
		plan, err := a.PlanOrgResource(ctx, ref)
		require.NoError(t, err)
		astray, err := p.Store.AddressesAstray(ctx)
		require.NoError(t, err)
		require.Equal(t, plan.Settled(), len(astray) == 0, "the look and the plan agree")
		return plan.Settled()
	}
	served := func() (where string) {
		require.NoError(t, p.Pool.QueryRow(ctx, `SELECT COALESCE(string_agg(env_id || ' ' || address || ' ' || server_id, ','), '') FROM edge_addresses()`).Scan(&where))
		return where
	}
	require.True(t, settled(), "without an edge there is nothing to do")
	edge("edge-1", "11", "nbg1")
	edge("edge-2", "12", "fsn1")
	require.False(t, settled())
	_, err := worker.LookAtAddresses(ctx, a)
	require.NoError(t, err)
	require.Equal(t, []string{"ip4-a"}, started.addresses)

	// The answer of the provider is lost; the step is repeated.
	cloud.fail = &server.InfraError{Class: server.InfraAmbiguous, Code: "timeout", Message: "no answer"}
	require.ErrorContains(t, a.MoveAddress(ctx, "ip4-a"), "no answer")
	require.Empty(t, served(), "no edge has it for certain")
	for range 2 {
		require.NoError(t, a.MoveAddress(ctx, "ip4-a"))
	}
	require.True(t, settled())
	require.Equal(t, "env-a 203.0.113.7 edge-2", served(), "the edge at its location")
	require.Equal(t, []any{map[string]string{"7": "12"}, map[string]bool{"edge-2 203.0.113.7": true}}, []any{cloud.at, hosts.has})

	p.Exec(`UPDATE servers SET agent_status = 'degraded' WHERE server_id = 'edge-2'`)
	require.True(t, settled(), "an edge that is late with its heartbeats serves")
	p.Exec(`UPDATE servers SET status = 'draining', agent_status = 'connected' WHERE server_id = 'edge-2'`)
	require.False(t, settled())
	require.NoError(t, a.MoveAddress(ctx, "ip4-a"))
	require.Equal(t, "env-a 203.0.113.7 edge-1", served())
	require.Equal(t, []any{map[string]string{"7": "11"}, map[string]bool{"edge-1 203.0.113.7": true}}, []any{cloud.at, hosts.has})

	p.Exec(`UPDATE servers SET status = 'active' WHERE server_id = 'edge-2'`)
	require.True(t, settled(), "it does not go back by itself")
	hosts.silent["edge-1"] = true
	p.Exec(`UPDATE servers SET agent_status = 'disconnected' WHERE server_id = 'edge-1'`)
	require.NoError(t, a.MoveAddress(ctx, "ip4-a"))
	require.Equal(t, "env-a 203.0.113.7 edge-2", served(), "the dead one need not give it up")
	v, err := p.Store.GetIPv4(ctx, "env-a")
	require.NoError(t, err)
	require.Equal(t, []any{prego.ServerID("edge-2"), true}, []any{v.ServerID, v.Served})
	var events, notes int
	require.NoError(t, p.Pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM org_events WHERE type = 'ipv4.assign'), (SELECT count(*) FROM changes WHERE kind = 'edge_addresses')`).Scan(&events, &notes))
	require.Equal(t, 3, events)
	require.GreaterOrEqual(t, notes, 6, "edges hear of each step")

	// All edges are gone: it stays where it was.
	p.Exec(`UPDATE servers SET status = 'failed' WHERE role = 'edge'`)
	require.True(t, settled())
	p.Exec(`UPDATE servers SET status = 'active', agent_status = 'connected' WHERE role = 'edge'`)

	_, err = p.Store.DisableIPv4(impact.By(ctx, "test"), "env-a", "a")
	require.NoError(t, err)
	require.Empty(t, served(), "released addresses are served no longer")
	require.NoError(t, a.ReleaseOrgResource(ctx, ref))
	require.Empty(t, cloud.at)
	require.NotContains(t, strings.Join(keysOf(hosts.has), ","), "edge-2")
	_, err = p.Store.GetIPv4(ctx, "env-a")
	require.Equal(t, prego.CodeIPv4NotFound, prego.CodeOf(err))
	require.NoError(t, a.MoveAddress(ctx, "ip4-a"), "there is none any more")
}

type addressRuns struct {
	activities.Runs
	addresses []string
}

func (r *addressRuns) EnsureAddress(_ context.Context, id string) (bool, error) {
	r.addresses = append(r.addresses, id)
	return true, nil
}

func keysOf(m map[string]bool) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}
