package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

func (c *cell) catalog() api.Catalog {
	c.t.Helper()
	status, body := c.request(http.MethodGet, "/v1/catalog", nil)
	require.Equal(c.t, http.StatusOK, status, "%s", body)
	var out api.Catalog
	require.NoError(c.t, json.Unmarshal(body, &out))
	return out
}

// awaitCatalog waits for a catalog that satisfies ok.
func (c *cell) awaitCatalog(ok func(api.Catalog) bool) api.Catalog {
	c.t.Helper()
	var out api.Catalog
	eventually(c.t, func() bool { out = c.catalog(); return ok(out) }, patience, 50*time.Millisecond)
	return out
}

func (c *cell) refreshCatalog() {
	c.t.Helper()
	c.awaitRunEnd(server.CatalogWorkflowID(c.env))
	status, body := c.request(http.MethodPost, "/internal/catalog/refresh", nil)
	require.Equal(c.t, http.StatusAccepted, status, "%s", body)
}

// TestProviderCatalog: the worker reads the provider's catalog at its start; unsold types are refused immediately,
// retired ones are skipped with a reason, and an outage leaves the last good catalog.
func TestProviderCatalog(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{})
	first := c.awaitCatalog(func(cat api.Catalog) bool { return cat.Known })
	require.Empty(t, first.Problems, "the default catalog can be ordered")
	require.Equal(t, "EUR", deref(first.Currency))
	require.Len(t, first.Locations, 6)

	status, body := c.request(http.MethodPost, "/internal/servers/create", server.CreateRequest{
		ServerID: prego.ServerID(c.id("odd")), Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner, Spec: server.Spec{ServerType: "zz99"},
	})
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.Contains(t, string(body), `"server_type_unknown"`)

	// cx33 has gone, cpx32 will go, and ccx13 is out of stock at the first location.
	c.sim.Retire("cx33", "*", time.Now().Add(-24*time.Hour))
	c.sim.Retire("cpx32", "*", time.Now().AddDate(0, 1, 0))
	c.sim.SetStock("ccx13", "fsn1", false)
	c.refreshCatalog()
	second := c.awaitCatalog(func(cat api.Catalog) bool { return len(cat.Problems) > 0 })
	require.True(t, second.RefreshedAt.After(*first.RefreshedAt))
	c.create("pool", prego.RoleRedisPool, server.Spec{})
	s := c.awaitStatus("pool", server.Active)
	require.Equal(t, "ccx13", deref(s.Provider.ServerType))
	require.Equal(t, "nbg1", deref(s.Provider.Location), "fsn1 was known to be out of stock")
	require.Equal(t, 1, s.Attempt, "no request was needless")
	c.sameBill()
	require.Equal(t, 1, count(s, server.StepCandidatesSkipped))
	require.NotNil(t, s.Cost)
	require.Equal(t, "43.4900", s.Cost.Monthly.Net, "the machine and its address")

	// The provider is away: the catalog stays, and is marked as stale.
	c.inject(sim.Fault{Kind: "http", Method: "GET", Path: "/v1/server_types", Action: "respond", Status: 503, Code: "unavailable"})
	c.refreshCatalog()
	third := c.awaitCatalog(func(cat api.Catalog) bool { return cat.Failure != nil })
	require.Equal(t, second.RefreshedAt, third.RefreshedAt)
	require.Equal(t, second.ServerTypes, third.ServerTypes)
}

// TestNothingIsRefusedBeforeTheProviderEverAnswered: a fresh database, and the provider
// away.
func TestNothingIsRefusedBeforeTheProviderEverAnswered(t *testing.T) {
	t.Parallel()
	c := newCell(t, options{beforeStart: func(s *sim.Sim) error {
		_, err := s.Inject(sim.Fault{Kind: "http", Method: "GET", Path: "/v1/server_types", Action: "respond", Status: 503, Code: "unavailable"})
		return err
	}})
	c.awaitCatalog(func(cat api.Catalog) bool { return cat.Failure != nil })
	require.False(t, c.catalog().Known)
	c.create("early", prego.RoleRedisPool, server.Spec{ServerType: "cx33", Location: "hel1"})
	s := c.awaitStatus("early", server.Active)
	require.Equal(t, "hel1", deref(s.Provider.Location))
	require.Nil(t, s.Cost)
}

// sameBill checks that the ledger has what the cloud bills, and nothing else, at the same prices.
func (c *cell) sameBill() {
	c.t.Helper()
	c.settled()
	status, body := c.request(http.MethodGet, "/v1/ledger?limit=200&kind=server,volume,primary_ip,floating_ip,image", nil)
	require.Equal(c.t, http.StatusOK, status, "%s", body)
	var page api.LedgerPage
	require.NoError(c.t, json.Unmarshal(body, &page))
	prices := map[string]string{}
	for _, r := range page.Resources {
		require.True(c.t, r.PriceKnown, "%s %s", r.Kind, r.Name)
		prices[fmt.Sprintf("%s/%s", r.Kind, deref(r.ProviderId))] = deref(r.PriceMonth)
	}
	billed := c.sim.Ledger(true)
	require.Len(c.t, prices, len(billed))
	for _, e := range billed {
		price, known := prices[fmt.Sprintf("%s/%d", e.Kind, e.ID)]
		require.True(c.t, known, "%s %s is billed and not in the ledger", e.Kind, e.Name)
		ours, err := strconv.ParseFloat(price, 64)
		require.NoError(c.t, err)
		require.InDelta(c.t, e.Monthly, ours, 0.0001, "%s %s", e.Kind, e.Name)
	}
}
