package api_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/org"
)

func TestDomainsOfATenant(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.sql(`INSERT INTO orgs (org_id, created_by, tier) VALUES ('acme', 't', 'paid'), ('corp', 't', 'paid')`)
	for i, state := range []string{"active", "active", "data_purged"} {
		b.sql(`INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
			VALUES ($1, $1, (ARRAY['acme', 'corp', 'acme'])[$2 + 1], 'eu', 'starter', 1, 1, 'shared', '', $3, 't')`, fmt.Sprintf("t-%d", i), i, state)
	}
	path := "/v1/tenants/t-0/domains"
	d := as[api.Domain](t, b.ok(201, "POST", path, `{"name":"WWW.Example.com"}`))
	require.Equal(t, "www.example.com", d.Name)
	require.Equal(t, org.DomainPending, d.Status)
	require.Len(t, d.Records, 2)
	require.Equal(t, api.DomainRecord{Type: api.CNAME, Name: "www.example.com", Value: "t-0.sites.test", Purpose: api.Routing}, d.Records[1])
	require.Equal(t, "_prego-challenge.www.example.com", d.Records[0].Name)
	require.Equal(t, d.DomainId, as[api.Domain](t, b.ok(201, "POST", path, `{"name":"www.example.com"}`)).DomainId, "the same claim")
	other := as[api.Domain](t, b.ok(201, "POST", "/v1/tenants/t-1/domains", `{"name":"www.example.com"}`))
	require.NotEqual(t, d.Records[0].Value, other.Records[0].Value, "each org has its own text")

	b.verified("www.example.com")
	page := as[api.DomainPage](t, b.ok(200, "GET", path+"?status=verified", ""))
	require.Len(t, page.Domains, 1)
	require.NotNil(t, page.Domains[0].VerifiedAt)
	for _, name := range []string{"www.example.com", "WWW.Example.com", "www.example.com."} {
		require.Len(t, as[api.DomainPage](t, b.ok(200, "GET", "/v1/domains?name="+name, "")).Domains, 2, name)
		require.Len(t, as[api.DomainPage](t, b.ok(200, "GET", path+"?name="+name, "")).Domains, 1, name)
		require.NotEmpty(t, as[api.SearchResults](t, b.ok(200, "GET", "/v1/search?q="+name, "")).Results, name)
	}
	require.Equal(t, d.DomainId, as[api.Domain](t, b.ok(200, "GET", "/v1/domains/"+d.DomainId, "")).DomainId)
	b.ok(200, "POST", "/v1/domains/"+d.DomainId+"/check", "")

	for body, code := range map[string]string{
		`{"name":"acme.sites.test"}`: "invalid_field", `{"name":"co.uk"}`: "invalid_field", `{"name":"*.example.com"}`: "invalid_field", `{"name":"192.0.2.1"}`: "invalid_field", `{}`: "invalid_field",
	} {
		require.Equal(t, code, as[api.Problem](t, b.ok(422, "POST", path, body)).Code, body)
	}
	require.Equal(t, "invalid_transition", as[api.Problem](t, b.ok(409, "POST", "/v1/tenants/t-2/domains", `{"name":"x.example.com"}`)).Code)
	b.ok(404, "POST", "/v1/tenants/t-9/domains", `{"name":"x.example.com"}`)
	b.ok(404, "DELETE", "/v1/tenants/t-1/domains/"+d.DomainId, "")
	b.ok(204, "DELETE", path+"/"+d.DomainId, "")
	b.ok(404, "GET", "/v1/domains/"+d.DomainId, "")
}

func TestDomainsOfRoutes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	env, group := b.workload("acme", "a", "eu")
	path := "/v1/envs/" + env + "/routes"
	d := as[api.Domain](t, b.ok(201, "POST", "/v1/domains", `{"org_id":"acme","name":"example.com"}`))
	require.Len(t, d.Records, 1, "no route has it: it leads nowhere yet")
	route := as[api.Route](t, b.ok(201, "POST", path, routeBody(group, "Example.com.", "https", 443)))
	for _, name := range []string{"example.com", "EXAMPLE.com."} {
		require.Len(t, as[api.RoutePage](t, b.ok(200, "GET", path+"?hostname="+name, "")).Routes, 1, name)
		require.Len(t, as[api.RoutePage](t, b.ok(200, "GET", "/v1/routes?hostname="+name, "")).Routes, 1, name)
	}
	d = as[api.Domain](t, b.ok(200, "GET", "/v1/domains/"+d.DomainId, ""))
	require.Equal(t, api.DomainRecord{Type: api.ALIAS, Name: "example.com", Value: "eu.edges.sites.test", Purpose: api.Routing}, d.Records[1])
	require.Equal(t, "domain_in_use", as[api.Problem](t, b.ok(409, "DELETE", "/v1/domains/"+d.DomainId, "")).Code)
	require.Equal(t, "invalid_field", as[api.Problem](t, b.ok(422, "POST", path, routeBody(group, "acme.sites.test", "https", 443))).Code, "a tenant's own name")
	b.ok(204, "DELETE", path+"/"+route.RouteId, "")
	b.ok(204, "DELETE", "/v1/domains/"+d.DomainId, "")
	require.Equal(t, "org_unknown", as[api.Problem](t, b.ok(422, "POST", "/v1/domains", `{"org_id":"ghost","name":"example.com"}`)).Code)
}
