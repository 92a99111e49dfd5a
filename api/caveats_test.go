package api_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/store"
)

// withTokens is setup with an API that also takes the tokens in its database.
func withTokens(t *testing.T) *bundle {
	t.Helper()
	return setup(t, func(d *api.Deps) {
		rows := api.Authenticate(d.Store)
		d.Auth = func(ctx context.Context, raw string) (access.Principal, error) {
			if strings.HasPrefix(raw, "prego_") {
				return rows(ctx, raw)
			}
			return auth(ctx, raw)
		}
	})
}

// limited makes a token of an operator, narrowed once for each of the caveats but the first.
func (b *bundle) limited(caveats ...access.Caveats) (secret string) {
	b.t.Helper()
	parent := ""
	b.sql(`INSERT INTO access_grants (grant_id, principal_id, access_role, created_by) VALUES ('operator', 'operator', 'operator', 'test') ON CONFLICT DO NOTHING`)
	for _, c := range caveats {
		var err error
		secret, err = access.NewSecret(access.Token, rand.Reader)
		require.NoError(b.t, err)
		id := rand.Text()
		_, err = b.store.CreateCredential(b.t.Context(), store.Credential{
			CredentialID: id, Kind: access.Token, Hash: access.SecretHash(secret), Prefix: access.SecretPrefix(secret), PrincipalID: "operator",
			ParentID: parent, Name: "robot", Caveats: c, CreatedBy: "test", ExpiresAt: time.Now().Add(time.Hour),
		})
		require.NoError(b.t, err)
		parent = id
	}
	return secret
}

// refusedBy sends a request that a caveat must refuse, and requires that nothing has changed.
func (b *bundle) refusedBy(token, caveat, method, path, body string) api.Problem {
	b.t.Helper()
	state := func() (out string) {
		require.NoError(b.t, b.pool.QueryRow(b.t.Context(), `SELECT concat((SELECT jsonb_agg(t) FROM tenants t), (SELECT count(*) FROM events), ' ',
			(SELECT count(*) FROM audit_entries WHERE kind = 'impact'), ' ', (SELECT count(*) FROM restore_jobs), ' ', (SELECT count(*) FROM volumes), ' ',
			(SELECT COALESCE(sum(monthly_cents + seconds_down), 0) FROM credential_spending))`).Scan(&out))
		return out
	}
	before := state()
	resp, answer := b.sendAs(token, method, path, body, "Idempotency-Key", rand.Text())
	require.Equal(b.t, http.StatusForbidden, resp.StatusCode, "%s %s: %s", method, path, answer)
	p := as[api.Problem](b.t, answer)
	require.Equal(b.t, []string{"caveat", caveat}, []string{p.Code, deref(p.Caveat)}, "%s", answer)
	require.Equal(b.t, before, state())
	return p
}

func (b *bundle) allowed(token string, status int, method, path, body string) []byte {
	b.t.Helper()
	resp, answer := b.sendAs(token, method, path, body, "Idempotency-Key", rand.Text())
	require.Equal(b.t, status, resp.StatusCode, "%s %s: %s", method, path, answer)
	return answer
}

// TestATokenThatDestroysNothing may not restore a site in place or cancel a tenant, by the impact of the change, whatever
// was accepted. It may read, make backups, and do what would destroy if something were there.
func TestATokenThatDestroysNothing(t *testing.T) {
	t.Parallel()
	b := withTokens(t)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1", "app-2")
	id := b.site("bakery")
	b.sql(`UPDATE site_usage SET database_bytes = 3221225472, files_bytes = 107374182`)
	b.sql(`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, kind, state, site, created_by, object_key, taken_at, bytes,
		sealed_identity, sha256, plain_sha256, manifest_sha256)
		VALUES ('bak-1', 'acme', $1, 'app-1', 'manual', 'stored', 'bakery.sites.test', 'ann', 'k', now(), 9, 'x', 'x', 'x', 'x')`, id)
	tenant := "/v1/tenants/" + id
	token := b.limited(access.Caveats{DestroysNothing: true})
	child := b.limited(access.Caveats{DestroysNothing: true}, access.Caveats{}, access.Caveats{})
	for _, token := range []string{token, child} {
		p := b.refusedBy(token, "destroys_nothing", "POST", tenant+"/restores", `{"backup_id":"bak-1"}`)
		require.Equal(t, "the token's caveat destroys_nothing: this destroys 1 site, bakery.sites.test, 3.1 GiB", deref(p.Detail))
		require.Equal(t, "bakery.sites.test", p.Impact.Destroyed[0].Name)
		b.refusedBy(token, "destroys_nothing", "POST", tenant+"/cancel", `{}`)
		b.refusedBy(token, "destroys_nothing", "DELETE", tenant+"/backups/bak-1", "")
		b.refusedBy(token, "destroys_nothing", "DELETE", "/v1/servers/app-1", "")
		b.refusedBy(token, "destroys_nothing", "POST", "/v1/servers/app-1/exec", `{"kind":"docker","args":["ps"]}`)
		b.allowed(token, 200, "GET", tenant, "")
		b.allowed(token, 200, "GET", "/v1/whoami", "")
	}
	resp, answer := b.sendAs(token, "POST", tenant+"/cancel", `{}`, "Impact-Accepted", b.refusedImpact("POST", tenant+"/cancel", `{}`, nothing).Digest)
	require.Equal(t, 403, resp.StatusCode, "accepted: %s", answer)
	require.Nil(t, as[api.Tried](t, b.allowed(token, 200, "POST", tenant+"/backups?dry_run=true", "")).Refusal)
	b.allowed(token, 202, "POST", tenant+"/backups", "")
	b.allowed(token, 202, "DELETE", "/v1/servers/app-2", "")
	b.allowed(token, 202, "DELETE", "/v1/servers/app-2", "")

	tried := as[api.Tried](t, b.allowed(token, 200, "POST", tenant+"/cancel?dry_run=true", `{}`))
	require.Equal(t, impact.Destroys, tried.Impact.Class)
	require.Equal(t, "destroys_nothing", deref(tried.Refusal.Caveat))
}

// TestATokenIsLimitedToOperationsAndOrgs, to what reveals nothing, and to dry runs.
func TestATokenIsLimitedToOperationsAndOrgs(t *testing.T) {
	t.Parallel()
	b := withTokens(t)
	b.org("acme", "")
	b.org("other", "")
	b.fleet("app-1", "db-1", "redis-1")
	id := b.site("bakery")
	tenant := "/v1/tenants/" + id

	reveals := b.limited(access.Caveats{RevealsNothing: true})
	b.refusedBy(reveals, "reveals_nothing", "POST", tenant+"/admin-password", `{}`)
	b.refusedBy(reveals, "reveals_nothing", "POST", tenant+"/users", `{"email":"kim@example.com","full_name":"Kim"}`)
	b.refusedBy(reveals, "reveals_nothing", "GET", "/v1/servers/app-1/containers/redis/logs", "")
	b.allowed(reveals, 200, "GET", tenant, "")

	dry := b.limited(access.Caveats{DryRunOnly: true})
	b.refusedBy(dry, "dry_run_only", "POST", tenant+"/suspend", `{}`)
	require.Nil(t, as[api.Tried](t, b.allowed(dry, 200, "POST", tenant+"/suspend?dry_run=true", `{}`)).Refusal)
	b.allowed(dry, 200, "GET", tenant, "")

	few := b.limited(access.Caveats{Operations: []string{"getTenant", "suspendTenant"}})
	b.refusedBy(few, "operations", "POST", tenant+"/cancel", `{}`)
	b.refusedBy(few, "operations", "POST", tenant+"/cancel?dry_run=true", `{}`)
	b.refusedBy(few, "operations", "GET", "/v1/tenants", "")
	b.allowed(few, 200, "GET", tenant, "")
	b.allowed(few, 200, "GET", "/v1/whoami", "")

	others := b.limited(access.Caveats{Orgs: []prego.OrgID{"other"}})
	resp, hidden := b.sendAs(others, "GET", tenant, "", "X-None")
	_, absent := b.sendAs(others, "GET", "/v1/tenants/t-nope", "", "X-None")
	require.Equal(t, 404, resp.StatusCode)
	require.Equal(t, strings.ReplaceAll(deref(as[api.Problem](t, absent).Detail), "t-nope", id), deref(as[api.Problem](t, hidden).Detail))
	p := b.refusedBy(others, "orgs", "DELETE", "/v1/servers/app-1", "")
	require.Equal(t, "the token's caveat orgs: deleteServer is about nothing that belongs to its orgs: other", deref(p.Detail))
	b.allowed(others, 200, "GET", "/v1/orgs/other", "")
	b.allowed(b.limited(access.Caveats{Orgs: []prego.OrgID{"acme"}}), 200, "GET", tenant, "")
	b.refusedBy(b.limited(access.Caveats{Orgs: []prego.OrgID{"acme"}}, access.Caveats{Orgs: []prego.OrgID{"other"}}), "orgs", "GET", tenant, "")
}

// TestBudgetsAreSharedAndCounted: a token and those narrowed from it spend one budget. What has no known cost or time is
// refused, and a refusal costs nothing.
func TestBudgetsAreSharedAndCounted(t *testing.T) {
	t.Parallel()
	b := withTokens(t)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1")
	id := b.site("bakery")
	volume := func(name string) string {
		return `{"org_id":"acme","name":"` + name + `","region":"eu","location":"fsn1","size_bytes":10000000000}`
	}
	parent := access.Caveats{Orgs: []prego.OrgID{"acme"}, MonthlyCents: new(int64(100)), SecondsDown: new(int64(60))}
	token := b.limited(parent, access.Caveats{})
	b.sql(`TRUNCATE provider_prices`)
	p := b.refusedBy(token, "monthly_cents", "POST", "/v1/volumes", volume("data"))
	require.Equal(t, "the token's caveat monthly_cents: what this costs a month is unknown", deref(p.Detail))
	b.sql(`INSERT INTO provider_prices (provider, kind, type, location, per_gb, monthly, currency) VALUES ('hetzner', 'volume', '', '', true, 44000, 'EUR')`)
	dry := b.allowed(token, 200, "POST", "/v1/volumes?dry_run=true", volume("data"))
	require.Equal(t, int64(44), as[api.Tried](t, dry).Impact.MonthlyCents)
	b.allowed(token, 202, "POST", "/v1/volumes", volume("data"))
	b.allowed(token, 202, "POST", "/v1/volumes", volume("more"))
	p = b.refusedBy(token, "monthly_cents", "POST", "/v1/volumes", volume("most"))
	require.Equal(t, "the token's caveat monthly_cents: this costs 0.44 a month, and 0.12 of 1.00 are left", deref(p.Detail))
	tried := as[api.Tried](t, b.allowed(token, 200, "POST", "/v1/volumes?dry_run=true", volume("most")))
	require.Equal(t, "monthly_cents", deref(tried.Refusal.Caveat))
	var spent []int64
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT array_agg(monthly_cents) FROM credential_spending`).Scan(&spent))
	require.Equal(t, []int64{88, 88}, spent, "of the token and of its parent")

	p = b.refusedBy(token, "monthly_cents", "POST", "/v1/tenants", `{"slug":"new","org_id":"acme","region":"eu","plan":"starter"}`)
	require.Equal(t, "the token's caveat monthly_cents: what createTenant costs a month is unknown", deref(p.Detail))
	p = b.refusedBy(token, "seconds_down", "POST", "/v1/tenants/"+id+"/suspend", `{}`)
	require.Equal(t, "the token's caveat seconds_down: this interrupts tenant bakery, and for how long is unknown", deref(p.Detail))
	b.allowed(token, 200, "GET", "/v1/tenants/"+id, "")
}

// TestOperationsInTablesOfCaveatsExist and change something. Others are refused under a budget.
func TestOperationsInTablesOfCaveatsExist(t *testing.T) {
	t.Parallel()
	all := operations(t)
	for _, id := range api.Spending {
		require.Contains(t, all, id)
		require.NotEqual(t, http.MethodGet, all[id].method, id)
	}
}

// TestCaveatsOfATokenNameWhatExists in the reach of who makes it.
func TestCaveatsOfATokenNameWhatExists(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.org("other", "")
	check := func(c access.Caveats) error {
		return api.CheckCaveats(b.api, t.Context(), &c, onOrg("provisioner", "acme"))
	}
	require.NoError(t, check(access.Caveats{Operations: []string{"getTenant"}, Orgs: []prego.OrgID{"acme"}}))
	require.Equal(t, prego.CodeInvalidField, prego.CodeOf(check(access.Caveats{Operations: []string{"getTenat"}})))
	require.Equal(t, prego.CodeInvalidField, prego.CodeOf(check(access.Caveats{Orgs: []prego.OrgID{"other"}})))
	require.Equal(t, prego.CodeInvalidField, prego.CodeOf(check(access.Caveats{Orgs: []prego.OrgID{"nope"}})))
}
