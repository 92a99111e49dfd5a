package store

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/edge"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/tenant"
)

// opening is a probed store in which the site of t-1 is being built.
func opening(t *testing.T) probes {
	t.Helper()
	p := probedStore(t)
	p.exec(`UPDATE tenants SET state = 'provisioning', converged_state = '', active_at = NULL, site = ''
		WHERE tenant_id = 't-1'`)
	return p
}

// open tries to end the provisioning of t-1, whose site is built.
func (p probes) open() error {
	p.Helper()
	built := tenant.Event{TenantID: "t-1", Step: tenant.StepSiteCreated, Message: "shop-1.example.com"}
	_, err := p.s.ActivateTenant(p.Context(), tenant.Ref{TenantID: "t-1", Generation: 1}, 0, built)
	return err
}

func (p probes) tenant() tenant.Tenant {
	p.Helper()
	tn, err := p.s.GetTenant(p.Context(), "t-1")
	require.NoError(p, err)
	return tn
}

// down lists the sites that are reported as down.
func (p probes) down() (found []attention.Finding) {
	p.Helper()
	all, _, err := p.s.Attention(p.Context(), attention.Limits{})
	require.NoError(p, err)
	return slices.DeleteFunc(all, func(f attention.Finding) bool { return f.Kind != attention.SiteDown })
}

// served lists the tenants in the documents of edges.
func (p probes) served() (ids []prego.TenantID) {
	p.Helper()
	c, err := p.s.EdgeChanges(p.Context(), "")
	require.NoError(p, err)
	for _, s := range c.Sites {
		ids = append(ids, s.TenantID)
	}
	return ids
}

// TestATenantIsActiveWhenAnEdgeFindsItsSiteUp: until then edges serve the site, and the tenant is not active. What an
// edge found of an earlier site does not count.
func TestATenantIsActiveWhenAnEdgeFindsItsSiteUp(t *testing.T) {
	t.Parallel()
	p := opening(t)
	p.report("edge-1", "a", 100, 0, saw("t-1", up, 100))
	require.NotContains(t, p.served(), prego.TenantID("t-1"))
	for range 2 {
		require.ErrorIs(t, p.open(), ErrNotOpen)
	}
	tn := p.tenant()
	require.Equal(t, tenant.Provisioning, tn.State)
	require.Nil(t, tn.ActiveAt)
	require.Equal(t, "shop-1.example.com", tn.Site)
	require.Contains(t, p.served(), prego.TenantID("t-1"))
	require.Equal(t, 1, count(t, p.s, `events WHERE id = 't-1' AND step = 'site_created'`))
	p.exec(`UPDATE tenants SET updated_at = now() - interval '1 hour' WHERE tenant_id = 't-1'`)
	require.ErrorIs(t, p.open(), ErrNotOpen)
	require.WithinDuration(t, p.tenant().CreatedAt, p.tenant().UpdatedAt, time.Minute, "its run is not looked for")
	require.Zero(t, count(t, p.s, `events WHERE id = 't-1' AND status = 'active'`))

	p.exec(`UPDATE tenants SET opening_since = opening_since - interval '5 seconds'`)
	ups := wire.EdgeProbes{Watch: "a", SinceMS: 100_000, After: 1}
	ups.Changes = []wire.EdgeProbe{saw("t-1", up, 0), saw("t-2", up, 0)}
	_, opened, err := p.s.EdgeProbed(t.Context(), edge.Probed{ServerID: "edge-1", EdgeProbes: ups})
	require.NoError(t, err)
	require.Equal(t, []prego.TenantID{"t-1"}, opened, "its run is signalled")
	noted := count(t, p.s, `changes WHERE kind = 'tenants'`)
	for range 2 {
		require.NoError(t, p.open())
	}
	tn = p.tenant()
	require.Equal(t, tenant.Active, tn.State)
	require.Nil(t, tn.OpeningSince)
	require.Contains(t, p.served(), prego.TenantID("t-1"))
	require.Equal(t, noted, count(t, p.s, `changes WHERE kind = 'tenants'`), "documents have it already")
	require.Equal(t, 1, count(t, p.s, `events WHERE id = 't-1' AND status = 'active'`))
}

// TestDeadEdgesDelayNoTenant: with none, a silent one, a failed one, or one of another network there is nothing to wait
// for, also when they die while a tenant waits.
func TestDeadEdgesDelayNoTenant(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"none":            `DELETE FROM edges`,
		"silent":          `UPDATE edges SET asked_at = now() - interval '41 seconds'`,
		"failed":          `UPDATE servers SET status = 'failed' WHERE role = 'edge'`,
		"another network": `UPDATE edges SET network = 'us'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := opening(t)
			require.ErrorIs(t, p.open(), ErrNotOpen)
			p.exec(change)
			require.NoError(t, p.open())
			require.Equal(t, tenant.Active, p.tenant().State)
		})
	}
}

// TestASuspendedTenantDoesNotWaitForEdges: they show a page for its site.
func TestASuspendedTenantDoesNotWaitForEdges(t *testing.T) {
	t.Parallel()
	p := opening(t)
	p.exec(`INSERT INTO tenant_losses (tenant_id, allocation_id, server_id, state, lost_at)
		SELECT tenant_id, allocation_id, 'node-2', 'suspended', now() FROM tenant_allocations WHERE tenant_id = 't-1'`)
	require.NoError(t, p.open())
	require.Equal(t, tenant.Suspended, p.tenant().State)
}

// TestASiteThatIsNotOpenSaysWhy: for each live edge, on the row with the newest cause and on the timeline once.
func TestASiteThatIsNotOpenSaysWhy(t *testing.T) {
	t.Parallel()
	p := opening(t)
	ref := tenant.Ref{TenantID: "t-1", Generation: 1}
	why := func() string {
		t.Helper()
		require.NoError(t, p.s.NotOpen(t.Context(), ref))
		tn := p.tenant()
		require.Equal(t, prego.ReasonAwaitingEdge, tn.StatusReason)
		return tn.StatusMessage
	}
	require.NoError(t, p.s.NotOpen(t.Context(), ref))
	require.Empty(t, p.tenant().StatusReason, "it is not built yet")
	require.ErrorIs(t, p.open(), ErrNotOpen)
	require.Equal(t, "edge edge-1 has not found it up yet; edge edge-2 has not found it up yet", why())
	name := wire.EdgeLeftOut{
		Kind: wire.EdgeHostPart, Name: "shop-1.example.com", Tenant: "t-1", Reason: "idna: invalid label",
	}
	for _, a := range []edge.Applied{
		{ServerID: "edge-1", Version: 7, LeftOut: []wire.EdgeLeftOut{name}},
		{ServerID: "edge-2", Version: 6, RefusedVersion: 7, RefusedReason: "no space"},
	} {
		_, err := p.s.EdgeApplied(t.Context(), a)
		require.NoError(t, err)
	}
	require.Equal(t, "edge edge-1 refuses its name: idna: invalid label; edge edge-2 refuses its document: no space",
		why())
	p.exec(`DELETE FROM edge_left_out; UPDATE edges SET refused_version = 0;
		UPDATE edges SET asked_at = 'epoch' WHERE server_id = 'edge-2'`)
	p.exec(`UPDATE tenants SET opening_since = opening_since - interval '5 seconds'`)
	p.report("edge-1", "a", 100, 0, saw("t-1", down, 0))
	require.Equal(t, "edge edge-1 gets no answer from it: refused", why())
	require.Equal(t, 1, count(t, p.s, `events WHERE id = 't-1' AND step = 'awaiting_edge'`))

	found := p.down()
	require.Len(t, found, 1)
	require.Equal(t, []string{"tenant", "t-1", "not_open"}, []string{found[0].Subject, found[0].ID, found[0].Reason})
	require.Equal(t, "the site of shop-1 is built and not open: edge edge-1 gets no answer from it: refused",
		found[0].Message)
	p.exec(`INSERT INTO edge_documents (network, version, digest, seen, released)
		SELECT network, 7, '', pg_current_snapshot(), 6 FROM edges WHERE server_id = 'edge-1'`)
	p.report("edge-1", "a", 100, 0, saw("t-1", up, 0))
	require.ErrorIs(t, p.open(), ErrNotOpen, "no other edge opens it")
	require.Equal(t, "edge edge-1 alone has a document that closes sites which answer", why())
	p.exec(`UPDATE edge_documents SET released = 7`)
	require.NoError(t, p.open())
	require.Empty(t, p.tenant().StatusReason)
	require.Empty(t, p.down())
}

// TestANetworkWithoutALiveEdgeIsReported: visitors do not reach its sites, and no probe reports that.
func TestANetworkWithoutALiveEdgeIsReported(t *testing.T) {
	t.Parallel()
	p := probedStore(t)
	p.exec(`INSERT INTO edges (server_id, network) SELECT 'node-3', 'us'`) // with one site
	p.exec(`UPDATE edges SET asked_at = now() - interval '10 minutes' WHERE server_id = 'edge-1'`)
	require.Empty(t, p.down(), "another one is alive")
	p.exec(`UPDATE servers SET status = 'failed' WHERE server_id = 'edge-2'`)
	found := p.down()
	require.Len(t, found, 1)
	require.Equal(t, []string{"region", "eu", "no_edge"}, []string{found[0].Subject, found[0].ID, found[0].Reason})
	require.Equal(t, "no edge of network eu is alive (edge-1, edge-2): visitors do not reach its 2 sites, "+
		"and new tenants become active without being open", found[0].Message)
	require.Equal(t, attention.Critical, attention.List(found)[0].Severity)
	p.exec(`UPDATE servers SET status = 'terminated' WHERE role = 'edge'`)
	require.Empty(t, p.down(), "a region without edges has none that is missing")
}

// TestAnOpeningSiteIsWithdrawnWithItsTenant: documents have it no longer, and a retried tenant waits again.
func TestAnOpeningSiteIsWithdrawnWithItsTenant(t *testing.T) {
	t.Parallel()
	p := opening(t)
	p.exec(`UPDATE servers SET tenant_count = 1; UPDATE db_shards SET current_tenant_count = 1;
		UPDATE redis_pools SET current_tenants = 1`)
	require.ErrorIs(t, p.open(), ErrNotOpen)
	require.NoError(t, p.s.FreePlace(t.Context(), "t-1", "cancelled", "", tenant.SiteDropped, nil))
	require.NotContains(t, p.served(), prego.TenantID("t-1"))
	require.Nil(t, p.tenant().OpeningSince)
	require.NoError(t, p.s.FailTenant(t.Context(), tenant.Ref{TenantID: "t-1", Generation: 1}, prego.ReasonCancelled, ""))
	require.Equal(t, tenant.Failed, p.tenant().State)
}
