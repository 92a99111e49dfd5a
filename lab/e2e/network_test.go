package e2e

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// text reads one text from the database.
func (c *cell) text(sql string, args ...any) (v string) {
	c.t.Helper()
	require.NoError(c.t, c.pool.QueryRow(c.t.Context(), sql, args...).Scan(&v))
	return v
}

func (c *cell) privateAddress(id string) string {
	return c.text(`SELECT COALESCE(host(private_address), '') FROM servers WHERE server_id = $1`, c.id(id))
}

// networks are the provider's networks, by name.
func (c *cell) networks() map[string]string {
	c.t.Helper()
	out := map[string]string{}
	for _, n := range c.cloud(http.MethodGet, "/networks", nil)["networks"].([]any) {
		network := n.(map[string]any)
		out[network["name"].(string)] = fmt.Sprintf("%.0f", network["id"])
	}
	return out
}

// TestServersAreInANetwork: of their zone, with addresses that reach them; another one when the provider reports it
// full, and a new one when it was deleted.
func TestServersAreInANetwork(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	c.create("one", prego.RoleRedisPool, server.Spec{})
	c.create("two", prego.RoleRedisPool, server.Spec{})
	for _, id := range []string{"one", "two"} {
		c.awaitStatus(id, server.Active)
	}
	whole := netip.MustParsePrefix(c.vars["PREGO_NETWORK_RANGE"])
	seen := map[string]bool{}
	for _, id := range []string{"one", "two"} {
		address := c.privateAddress(id)
		require.True(t, whole.Contains(netip.MustParseAddr(address)), address)
		require.False(t, seen[address])
		seen[address] = true
		got := c.get(id)
		require.Equal(t, address, *got.Provider.PrivateAddress)
		require.Equal(t, "hetzner-eu-central-1", *got.Provider.Network)
	}
	first := "prego-" + c.env + "-eu-central-1"
	require.Len(t, c.networks(), 1)
	require.Contains(t, c.networks(), first)

	// The provider refuses one more server in it.
	c.inject(sim.Fault{Kind: "http", Method: "POST", Path: "/v1/servers", Action: "respond", Status: 403, Code: "resource_limit_exceeded", Message: "servers of a network limit reached", Times: 1})
	c.create("three", prego.RoleRedisPool, server.Spec{})
	c.awaitStatus("three", server.Active)
	require.Equal(t, "hetzner-eu-central-2", *c.get("three").Provider.Network)
	require.Len(t, c.networks(), 2)

	// The first one is deleted at the provider. The reconciliation detects this, and it is recreated.
	lost := c.networks()[first]
	c.provider(http.MethodDelete, "/networks/"+lost, nil)
	c.reconcile()
	eventually(t, func() bool { return c.privateAddress("one") != "" && c.privateAddress("two") != "" }, 20*time.Second, 100*time.Millisecond)
	require.NotEqual(t, c.privateAddress("one"), c.privateAddress("two"))
	require.Len(t, c.networks(), 2)
	require.NotEqual(t, lost, c.networks()[first])
	require.Equal(t, 2, c.number(`SELECT count(*) FROM resources WHERE kind = 'network' AND state = 'created'`))
	require.Equal(t, 3, c.number(`SELECT sum(members)::int FROM networks`))
}

// TestARegionWithTwoZones: an app server in one zone and a shard in the other are no place.
// What the tenant lacks is made where the least is missing, and nowhere else.
func TestARegionWithTwoZones(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{vars: sharedVars()})
	c.org("acme", "")
	for _, s := range []struct {
		id       string
		role     prego.Role
		location string
	}{{"app", prego.RoleApp, "ash"}, {"db", prego.RoleDBShard, "hil"}, {"redis", prego.RoleRedisPool, "hil"}} {
		c.post("/internal/servers/create", server.CreateRequest{
			ServerID: prego.ServerID(c.id(s.id)), Role: s.role, Region: prego.RegionUS, InfraProvider: prego.ProviderHetzner, Spec: server.Spec{Location: s.location},
		}, http.StatusAccepted, nil)
	}
	for _, id := range []string{"app", "db", "redis"} {
		c.awaitStatus(id, server.Active)
	}
	require.Equal(t, "hetzner-us-east-1", *c.get("app").Provider.Network)
	require.Equal(t, "hetzner-us-west-1", *c.get("db").Provider.Network)
	id := c.tenant("alpha", prego.PlanStarter, func(m map[string]any) { m["region"] = prego.RegionUS })
	tn := c.settledTenant(id, tenant.Active)
	require.Equal(t, []string{c.id("db"), c.id("redis")}, []string{tn.Allocation.DbShardId, tn.Allocation.RedisPoolId})
	require.NotEqual(t, c.id("app"), tn.Allocation.AppServerId)
	require.Equal(t, "hil", c.text(`SELECT location FROM servers WHERE server_id = $1`, tn.Allocation.AppServerId))
	require.Equal(t, 4, c.number(`SELECT count(*) FROM servers`), "nothing was created needlessly")
	require.Positive(t, c.number(`SELECT count(*) FROM allocation_snapshots WHERE tenant_id = $1 AND decision_log -> 'rejected_counts' ? 'network_zone_mismatch'`, id))
	c.settled()
}
