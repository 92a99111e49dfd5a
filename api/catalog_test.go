package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// sells stores what the provider sells.
func (b *bundle) sells() {
	at := func(locations ...string) (out []server.OfferedAt) {
		for _, l := range locations {
			out = append(out, server.OfferedAt{Location: l, Available: true, PeriodPrice: server.PeriodPrice{Hourly: server.Price{Net: "0.02", Gross: "0.03"}, Monthly: server.Price{Net: "15.99", Gross: "19.03"}}})
		}
		return out
	}
	require.NoError(b.t, b.store.SaveProviderCatalog(context.Background(), prego.ProviderHetzner, server.ProviderCatalog{
		Currency: "EUR", VATRate: "19.00", Locations: []server.OfferedLocation{{Name: "fsn1"}, {Name: "nbg1"}, {Name: "hel1"}, {Name: "ash"}, {Name: "hil"}, {Name: "sin"}},
		ServerTypes: []server.OfferedType{{Name: "cx43", Architecture: "x86", At: at("fsn1", "nbg1", "hel1")}},
		Images:      []server.OfferedImage{{ID: "1", Name: "debian-12", Kind: "system", Architecture: "x86"}},
		IPv4:        map[string]server.PeriodPrice{"fsn1": {Hourly: server.Price{Net: "0.0008", Gross: "0.001"}, Monthly: server.Price{Net: "0.5", Gross: "0.595"}}},
	}))
}

const fleetBody = `{"fleet_id":"web","role":"app","region":"eu","infra_provider":"hetzner","spec":{},"constraint":{}}`

func TestWhatTheProviderDoesNotHaveIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.sells()
	for name, c := range map[string]struct{ body, code, field string }{
		"type":     {`{"server_type":"zz99"}`, "server_type_unknown", "spec.server_type"},
		"location": {`{"location":"atl1"}`, "location_unknown", "spec.location"},
		"region":   {`{"location":"ash"}`, "location_not_in_region", "spec.location"},
		"image":    {`{"image":"debian-99"}`, "image_unknown", "spec.image"},
	} {
		for path, body := range map[string]string{create: valid, "/v1/fleets": fleetBody} {
			resp, answer := b.do("POST", path, "operator", js, strings.Replace(body, `"spec":{}`, `"spec":`+c.body, 1))
			require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode, "%s %s: %s", name, path, answer)
			p := as[api.Problem](t, answer)
			require.Equal(t, c.code, p.Code)
			require.Equal(t, c.field, deref(p.Field))
		}
	}
	require.Zero(t, b.rows(), "a refused request has changed nothing")
	require.Empty(t, b.runs.asked())

	resp, answer := b.do("POST", "/v1/fleets", "operator", js, fleetBody)
	require.Equal(t, http.StatusCreated, resp.StatusCode, "%s", answer)
	resp, answer = b.do("PATCH", "/v1/fleets/web", "operator", js, `{"spec":{"server_type":"zz99"}}`)
	require.Equal(t, http.StatusUnprocessableEntity, resp.StatusCode)
	require.Equal(t, "server_type_unknown", as[api.Problem](t, answer).Code)
	resp, answer = b.do("PATCH", "/v1/fleets/web", "operator", js, `{"spec":{"server_type":"cx43"}}`)
	require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)
}

func TestAcceptedRequestStaysAcceptedWhenItsTypeIsRetired(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	pinned := strings.Replace(valid, `"spec":{}`, `"spec":{"server_type":"zz99"}`, 1)
	resp, answer := b.do("POST", create, "operator", js, pinned)
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "the provider's catalog is unknown so far: %s", answer)
	b.sells()
	resp, answer = b.do("POST", create, "operator", js, pinned)
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", answer)
}

func TestCatalogIsShown(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	get := func() api.Catalog {
		resp, answer := b.do("GET", "/v1/catalog", "viewer", "", "")
		require.Equal(t, http.StatusOK, resp.StatusCode, "%s", answer)
		return as[api.Catalog](t, answer)
	}
	c := get()
	require.False(t, c.Known)
	require.True(t, c.Stale)
	require.Empty(t, c.Problems)

	require.NoError(t, b.store.CatalogNotRead(context.Background(), prego.ProviderHetzner, "no answer"))
	require.Equal(t, "no answer", deref(get().Failure))
	b.sells()
	require.NoError(t, b.store.CatalogNotRead(context.Background(), prego.ProviderHetzner, "no answer again"))
	c = get()
	require.True(t, c.Known)
	require.False(t, c.Stale, "the last good catalog stays")
	require.Equal(t, "no answer again", deref(c.Failure))
	require.Equal(t, "cx43", c.ServerTypes[0].Name)
	require.Equal(t, "15.99", c.ServerTypes[0].Locations[0].Price.Monthly.Net)
	require.Contains(t, c.Problems, api.CatalogProblem{Kind: "server_type", Name: "ccx33", Message: "is not a machine type of the provider"})
	require.Equal(t, []string{"cx43", "cpx42", "ccx23"}, c.Configured.ServerTypes["app"]["any"])

	_, err := b.pool.Exec(context.Background(), `UPDATE provider_catalogs SET refreshed_at = now() - interval '2 hours'`)
	require.NoError(t, err)
	require.True(t, get().Stale)

	resp, _ := b.do("POST", "/internal/catalog/refresh", "viewer", "", "")
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	resp, answer := b.do("POST", "/internal/catalog/refresh", "operator", "", "")
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", answer)
	require.Equal(t, []string{"catalog"}, b.runs.asked())
}

func TestServerShowsItsCost(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	resp, answer := b.do("POST", create, "operator", js, valid)
	require.Equal(t, http.StatusAccepted, resp.StatusCode, "%s", answer)
	b.sells()
	require.Nil(t, b.show("app-1").Cost, "there is no machine yet")
	_, err := b.pool.Exec(context.Background(), `UPDATE servers SET provider_server_id = '7', server_type = 'cx43', location = 'fsn1'`)
	require.NoError(t, err)
	cost := b.show("app-1").Cost
	require.NotNil(t, cost)
	require.Equal(t, "16.4900", cost.Monthly.Net)
	require.Equal(t, []string{"cx43", "IPv4 address"}, cost.Parts)
}
