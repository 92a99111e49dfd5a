package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/store"
)

// people is an API whose callers are read from the database, besides "operator" and "viewer" of the harness.
func people(t *testing.T) *bundle {
	t.Helper()
	var s *store.Store
	b := setup(t, func(d *api.Deps) {
		s = d.Store
		d.Auth = func(ctx context.Context, raw string) (access.Principal, error) {
			if p, err := auth(ctx, raw); err == nil {
				return p, nil
			}
			return api.Authenticate(s)(ctx, raw)
		}
	})
	for _, org := range []string{"a", "b"} {
		b.org(org, "")
	}
	return b
}

// ok requires a status, and returns the answer.
func (b *bundle) want(status int, method, path, token, body string) []byte {
	b.t.Helper()
	media := ""
	if body != "" {
		media = js
	}
	resp, answer := b.do(method, path, token, media, body)
	require.Equal(b.t, status, resp.StatusCode, "%s %s %s: %s", method, path, body, answer)
	return answer
}

// refused requires a refusal, and returns its code and text.
func (b *bundle) refused(status int, method, path, token, body string) string {
	b.t.Helper()
	p := as[api.Problem](b.t, b.want(status, method, path, token, body))
	return p.Code + ": " + deref(p.Detail)
}

// account makes a service account with a grant and a token.
func (b *bundle) account(name, org, role string) (id, tokenID, secret string) {
	b.t.Helper()
	of := ""
	if org != "" {
		of = `,"org_id":"` + org + `"`
	}
	id = as[api.ServiceAccount](b.t, b.want(201, "POST", "/v1/service-accounts", "operator", `{"name":"`+name+`"`+of+`}`)).PrincipalId
	if role != "" {
		b.want(201, "POST", "/v1/grants", "operator", `{"access_role":"`+role+`","principal_id":"`+id+`"`+of+`}`)
	}
	made := as[api.CreatedToken](b.t, b.want(201, "POST", "/v1/service-accounts/"+id+"/tokens", "operator", `{"name":"first","expires_in_seconds":3600}`))
	return id, made.TokenId, made.Secret
}

// TestATokenLivesFromItsCreationToItsEnd, is shown once, and never listed with its secret or hash.
func TestATokenLivesFromItsCreationToItsEnd(t *testing.T) {
	t.Parallel()
	b := people(t)
	id, tokenID, secret := b.account("robot", "a", "org_viewer")
	require.Regexp(t, `^prego_token_[0-9A-Za-z]{38}$`, secret)
	b.want(200, "GET", "/v1/orgs/a", secret, "")
	b.want(403, "GET", "/v1/servers", secret, "")

	// A repeated creation is the same account.
	require.Equal(t, id, as[api.ServiceAccount](t, b.want(200, "POST", "/v1/service-accounts", "operator", `{"name":"robot","org_id":"a"}`)).PrincipalId)

	for _, path := range []string{"/v1/tokens?all=true", "/v1/tokens/" + tokenID, "/v1/tokens?prefix=" + secret[:18]} {
		listed := string(b.want(200, "GET", path, "operator", ""))
		require.Contains(t, listed, secret[:18], path)
		require.NotContains(t, listed, secret, path)
		require.NotContains(t, listed, "hash", path)
	}
	shown := as[api.Token](t, b.want(200, "GET", "/v1/tokens/"+tokenID, "operator", ""))
	require.Equal(t, []any{"first", "robot", "a", "operator"}, []any{shown.Name, shown.PrincipalName, shown.OrgId, shown.CreatedBy})
	require.NotNil(t, shown.LastUsedAt)
	require.WithinDuration(t, time.Now().Add(time.Hour), shown.ExpiresAt, time.Minute)

	tokens := "/v1/service-accounts/" + id + "/tokens"
	for body, field := range map[string]string{
		`{"name":"x"}`: "expires_in_seconds",
		`{"name":"x","expires_in_seconds":31622401}`:                            "expires_in_seconds",
		`{"name":"x","expires_in_seconds":59}`:                                  "expires_in_seconds",
		`{"name":"x","expires_in_seconds":60,"caveats":{"operations":["fly"]}}`: "caveats.operations",
		`{"name":"x","expires_in_seconds":60,"caveats":{"monthly_cents":-1}}`:   "caveats.monthly_cents",
	} {
		require.Equal(t, field, deref(as[api.Problem](t, b.want(422, "POST", tokens, "operator", body)).Field), body)
	}

	b.want(204, "DELETE", "/v1/tokens/"+tokenID, "operator", "")
	b.want(204, "DELETE", "/v1/tokens/"+tokenID, "operator", "")
	require.Equal(t, "unauthenticated: the token is not valid here: it was revoked", b.refused(401, "GET", "/v1/orgs/a", secret, ""))
	require.JSONEq(t, `{"tokens":[]}`, string(b.want(200, "GET", "/v1/tokens", "operator", "")))
	require.NotNil(t, as[api.Token](t, b.want(200, "GET", "/v1/tokens/"+tokenID, "operator", "")).RevokedAt)

	// A disabled account has no callers, and no new tokens. Its name is free.
	other := as[api.CreatedToken](t, b.want(201, "POST", tokens, "operator", `{"name":"second","expires_in_seconds":3600}`))
	b.want(200, "GET", "/v1/orgs/a", other.Secret, "")
	b.want(200, "POST", "/v1/service-accounts/"+id+"/disable", "operator", "")
	b.want(200, "POST", "/v1/service-accounts/"+id+"/disable", "operator", "")
	b.want(401, "GET", "/v1/orgs/a", other.Secret, "")
	require.Contains(t, b.refused(409, "POST", tokens, "operator", `{"name":"x","expires_in_seconds":3600}`), "invalid_transition")
	require.NotEqual(t, id, as[api.ServiceAccount](t, b.want(201, "POST", "/v1/service-accounts", "operator", `{"name":"robot","org_id":"a"}`)).PrincipalId)
}

// TestARotatedTokenEndsAfterItsOverlap with its children; the new one has its caveats, and none more.
func TestARotatedTokenEndsAfterItsOverlap(t *testing.T) {
	t.Parallel()
	b := people(t)
	id, _, _ := b.account("robot", "a", "org_viewer")
	old := as[api.CreatedToken](t, b.want(201, "POST", "/v1/service-accounts/"+id+"/tokens", "operator",
		`{"name":"limited","expires_in_seconds":86400,"caveats":{"destroys_nothing":true,"orgs":["a"]}}`))
	rotate := func(overlap string) api.CreatedToken {
		return as[api.CreatedToken](t, b.want(201, "POST", "/v1/tokens/"+old.TokenId+"/rotate", "operator", `{"expires_in_seconds":172800`+overlap+`}`))
	}
	renewed := rotate("")
	require.Equal(t, access.Caveats{DestroysNothing: true, Orgs: []prego.OrgID{"a"}}, renewed.Caveats)
	require.Equal(t, []string{"limited", id}, []string{renewed.Name, renewed.PrincipalId})
	require.WithinDuration(t, time.Now().Add(48*time.Hour), renewed.ExpiresAt, time.Minute)
	require.WithinDuration(t, time.Now().Add(time.Hour), as[api.Token](t, b.want(200, "GET", "/v1/tokens/"+old.TokenId, "operator", "")).ExpiresAt, time.Minute)
	b.want(200, "GET", "/v1/orgs/a", old.Secret, "")
	b.want(200, "GET", "/v1/orgs/a", renewed.Secret, "")

	rotate(`,"overlap_seconds":0`)
	require.Contains(t, b.refused(401, "GET", "/v1/orgs/a", old.Secret, ""), "token_expired")
	require.Contains(t, b.refused(409, "POST", "/v1/tokens/"+old.TokenId+"/rotate", "operator", `{"expires_in_seconds":3600}`), "the token has ended")
	require.Contains(t, b.refused(404, "POST", "/v1/tokens/token-none/rotate", "operator", `{"expires_in_seconds":3600}`), `there is no token "token-none"`)
}

// TestANarrowedTokenOnlyNarrows: it has the caveats of all above it, ends with them, gives nothing to others, and
// ends when any of them is revoked.
func TestANarrowedTokenOnlyNarrows(t *testing.T) {
	t.Parallel()
	b := people(t)
	_, tokenID, secret := b.account("owner", "a", "org_owner")
	narrow := func(by, body string) api.CreatedToken {
		t.Helper()
		return as[api.CreatedToken](t, b.want(201, "POST", "/v1/tokens", by, body))
	}
	child := narrow(secret, `{"name":"child","expires_in_seconds":31622400,"caveats":{"dry_run_only":true,"seconds_down":5}}`)
	require.Equal(t, tokenID, deref(child.ParentId))
	require.WithinDuration(t, time.Now().Add(time.Hour), child.ExpiresAt, time.Minute, "not longer than its parent")
	grandchild := narrow(child.Secret, `{"name":"wider","expires_in_seconds":60,"caveats":{"seconds_down":500}}`)
	p, err := b.store.Authenticate(t.Context(), access.SecretHash(grandchild.Secret))
	require.NoError(t, err)
	five, more := int64(5), int64(500)
	require.Equal(t, []access.Caveats{{SecondsDown: &more}, {DryRunOnly: true, SecondsDown: &five}}, p.Caveats)
	require.True(t, p.Narrowed)

	// A narrowed token escapes neither its caveats nor its end by a token or grant of somebody else.
	plain := narrow(secret, `{"name":"plain","expires_in_seconds":60}`)
	other := as[api.ServiceAccount](t, b.want(201, "POST", "/v1/service-accounts", secret, `{"name":"other","org_id":"a"}`)).PrincipalId
	for _, limited := range []string{grandchild.Secret, plain.Secret} {
		for path, body := range map[string]string{
			"/v1/service-accounts/" + p.PrincipalID + "/tokens": `{"name":"x","expires_in_seconds":3600}`,
			"/v1/tokens/" + tokenID + "/rotate":                 `{"expires_in_seconds":3600}`,
			"/v1/grants":                                        `{"access_role":"developer","org_id":"a","principal_id":"` + other + `"}`,
		} {
			require.Regexp(t, "it can't give access to others|gives access without the caveat", b.refused(403, "POST", path, limited, body), path)
		}
	}
	b.want(201, "POST", "/v1/grants", secret, `{"access_role":"developer","org_id":"a","principal_id":"`+other+`"}`)

	// How deep tokens are narrowed is bounded.
	deepest := grandchild.Secret
	for range 5 {
		deepest = narrow(deepest, `{"name":"deep","expires_in_seconds":60}`).Secret
	}
	require.Contains(t, b.refused(409, "POST", "/v1/tokens", deepest, `{"name":"deep","expires_in_seconds":60}`), "was narrowed 7 times already")

	b.want(200, "GET", "/v1/orgs/a", deepest, "")
	b.want(204, "DELETE", "/v1/tokens/"+child.TokenId, "operator", "")
	for _, ended := range []string{child.Secret, grandchild.Secret, deepest} {
		b.want(401, "GET", "/v1/orgs/a", ended, "")
	}
	require.NotNil(t, as[api.Token](t, b.want(200, "GET", "/v1/tokens/"+grandchild.TokenId, "operator", "")).RevokedAt)
	b.want(200, "GET", "/v1/orgs/a", plain.Secret, "")
	b.want(204, "DELETE", "/v1/tokens/"+tokenID, "operator", "")
	b.want(401, "GET", "/v1/orgs/a", plain.Secret, "")
}

// TestNoUseSucceedsAfterARevocation was answered, of 64 that happen with as many uses, of the token or of its child.
func TestNoUseSucceedsAfterARevocation(t *testing.T) {
	t.Parallel()
	b := people(t)
	id, _, _ := b.account("robot", "a", "org_viewer")
	var wg sync.WaitGroup
	var late atomic.Int32
	for n := range 64 {
		made := as[api.CreatedToken](t, b.want(201, "POST", "/v1/service-accounts/"+id+"/tokens", "operator", fmt.Sprintf(`{"name":"t%d","expires_in_seconds":3600}`, n)))
		use := made.Secret
		if n%2 == 1 {
			use = as[api.CreatedToken](t, b.want(201, "POST", "/v1/tokens", use, `{"name":"child","expires_in_seconds":60}`)).Secret
		}
		var revoked atomic.Bool
		wg.Go(func() {
			for range 200 {
				after := revoked.Load()
				resp, _ := b.send("GET", "/v1/orgs/a", use, "", "")
				switch {
				case after && resp.StatusCode != http.StatusUnauthorized:
					late.Add(1)
					return
				case after:
					return
				}
			}
		})
		wg.Go(func() {
			resp, _ := b.send("DELETE", "/v1/tokens/"+made.TokenId, "operator", "", "")
			if resp.StatusCode == http.StatusNoContent {
				revoked.Store(true)
			}
		})
	}
	wg.Wait()
	require.Zero(t, late.Load())
	require.JSONEq(t, `{"tokens":[]}`, string(b.want(200, "GET", "/v1/tokens?name=t0,t1,child", "operator", "")))
}

// TestAnOwnerReachesOnlyItsOrgsAccess: another org's accounts, tokens and grants are answered like absent ones, and
// none of them is listed.
func TestAnOwnerReachesOnlyItsOrgsAccess(t *testing.T) {
	t.Parallel()
	b := people(t)
	_, _, owner := b.account("owner", "a", "org_owner")
	account, tokenID, _ := b.account("secret-robot", "b", "org_owner")
	operators, operatorsToken, _ := b.account("backend", "", "provisioner")
	grant := as[api.GrantPage](t, b.want(200, "GET", "/v1/grants?org_id=b", "operator", "")).Grants[0].GrantId
	plain := func(text, id string) string { return strings.ReplaceAll(text, id, "ID") }
	for _, tc := range []struct{ method, path, absent, body string }{
		{"GET", "/v1/service-accounts/ID", "sa-none", ""},
		{"POST", "/v1/service-accounts/ID/disable", "sa-none", ""},
		{"POST", "/v1/service-accounts/ID/tokens", "sa-none", `{"name":"x","expires_in_seconds":3600}`},
		{"GET", "/v1/tokens/ID", "token-none", ""},
		{"DELETE", "/v1/tokens/ID", "token-none", ""},
		{"POST", "/v1/tokens/ID/rotate", "token-none", `{"expires_in_seconds":3600}`},
		{"DELETE", "/v1/grants/ID", "grant-none", ""},
	} {
		for _, foreign := range map[string][]string{"sa-none": {account, operators}, "token-none": {tokenID, operatorsToken}, "grant-none": {grant}}[tc.absent] {
			theirs := b.refused(404, tc.method, strings.ReplaceAll(tc.path, "ID", foreign), owner, tc.body)
			none := b.refused(404, tc.method, strings.ReplaceAll(tc.path, "ID", tc.absent), owner, tc.body)
			require.Equal(t, plain(none, tc.absent), plain(theirs, foreign), "%s %s", tc.method, tc.path)
		}
	}
	for _, path := range []string{"/v1/service-accounts", "/v1/tokens", "/v1/grants", "/v1/service-accounts?org_id=b", "/v1/tokens?org_id=b", "/v1/grants?org_id=b", "/v1/grants?principal_id=" + account} {
		listed := string(b.want(200, "GET", path, owner, ""))
		for _, theirs := range []string{account, operators, tokenID, operatorsToken, grant, "secret-robot", "backend"} {
			require.NotContains(t, listed, theirs, path)
		}
		require.Equal(t, !strings.Contains(path, "?"), strings.Contains(listed, "owner"), "%s: %s", path, listed)
	}
	// Another org's account can't be granted something here, and neither org's owner reaches the installation.
	for _, id := range []string{account, operators, "sa-none"} {
		require.Equal(t, "invalid_field: is not a principal that is known here",
			b.refused(422, "POST", "/v1/grants", owner, `{"access_role":"developer","org_id":"a","principal_id":"`+id+`"}`))
	}
	require.Contains(t, b.refused(422, "POST", "/v1/grants", owner, `{"access_role":"developer","org_id":"b","principal_id":"`+account+`"}`), "org_unknown")
	require.Contains(t, b.refused(403, "POST", "/v1/grants", owner, `{"access_role":"org_viewer","principal_id":"`+account+`"}`), "must name an org")
	require.Contains(t, b.refused(403, "POST", "/v1/service-accounts", owner, `{"name":"x"}`), "must name an org")
	for _, path := range []string{"/v1/users", "/v1/users/usr-none"} {
		b.want(403, "GET", path, owner, "")
	}
	require.JSONEq(t, `{"logins":[]}`, string(b.want(200, "GET", "/v1/logins", owner, "")))
}

// TestGrantsNeverEscalate: not by a wider access role, a custom one, or the token of a stronger account.
func TestGrantsNeverEscalate(t *testing.T) {
	t.Parallel()
	b := people(t)
	_, _, owner := b.account("owner", "a", "org_owner")
	helper, helpersToken, helpers := b.account("helper", "a", "")
	b.want(403, "GET", "/v1/orgs/a", helpers, "")
	to := func(role string) string {
		return `{"access_role":"` + role + `","org_id":"a","principal_id":"` + helper + `"}`
	}
	for _, role := range []string{"operator", "support", "provisioner"} {
		require.Contains(t, b.refused(403, "POST", "/v1/grants", owner, to(role)), "capabilities that you do not have there yourself", role)
	}
	require.Contains(t, b.refused(422, "POST", "/v1/grants", owner, to("nothing")), "is no access role")
	made := as[api.Grant](t, b.want(201, "POST", "/v1/grants", owner, to("org_viewer")))
	require.Equal(t, made, as[api.Grant](t, b.want(200, "POST", "/v1/grants", owner, to("org_viewer"))))
	b.want(200, "GET", "/v1/orgs/a", helpers, "")
	b.want(204, "DELETE", "/v1/grants/"+made.GrantId, owner, "")
	b.want(403, "GET", "/v1/orgs/a", helpers, "")

	// An operator makes the account stronger than the org's owner, elsewhere: no token of it is the owner's to make.
	b.want(201, "POST", "/v1/service-accounts/"+helper+"/tokens", owner, `{"name":"mine","expires_in_seconds":3600}`)
	b.want(201, "POST", "/v1/grants", "operator", `{"access_role":"developer","org_id":"b","principal_id":"`+helper+`"}`)
	require.Contains(t, b.refused(403, "POST", "/v1/service-accounts/"+helper+"/tokens", owner, `{"name":"mine","expires_in_seconds":3600}`), "you do not have there yourself")
	require.Contains(t, b.refused(403, "POST", "/v1/tokens/"+helpersToken+"/rotate", owner, `{"expires_in_seconds":3600}`), "you do not have there yourself")

	// Custom access roles are the installation's, and name what exists.
	b.want(403, "PUT", "/v1/access-roles/mine", owner, `{"capabilities":["*"]}`)
	require.Contains(t, b.refused(422, "PUT", "/v1/access-roles/mine", "operator", `{"capabilities":["tenant:read","tenants:read"]}`), "tenants:read, which includes no capability")
	require.Contains(t, b.refused(422, "PUT", "/v1/access-roles/org_owner", "operator", `{"capabilities":["*"]}`), "built in")
	b.want(200, "PUT", "/v1/access-roles/editors", "operator", `{"capabilities":["access_role:*","access:grant","org:read"]}`)
	_, _, editor := b.account("editor", "", "editors")
	require.Contains(t, b.refused(403, "PUT", "/v1/access-roles/editors", editor, `{"capabilities":["*"]}`), "you do not have there yourself")
	b.want(200, "PUT", "/v1/access-roles/editors", editor, `{"capabilities":["access_role:change","access:grant"]}`)
	require.Contains(t, b.refused(403, "POST", "/v1/grants", editor, `{"access_role":"operator","principal_id":"`+helper+`"}`), "you do not have there yourself")
	require.Contains(t, b.refused(409, "DELETE", "/v1/access-roles/editors", "operator", ""), "access_role_in_use")
	listed := string(b.want(200, "GET", "/v1/access-roles", owner, ""))
	require.Contains(t, listed, `"editors"`)
	require.Contains(t, listed, `"org_viewer"`)
	held := as[api.GrantPage](t, b.want(200, "GET", "/v1/grants?access_role=editors", "operator", "")).Grants
	require.Len(t, held, 1)
	b.want(204, "DELETE", "/v1/grants/"+held[0].GrantId, "operator", "")
	b.want(204, "DELETE", "/v1/access-roles/editors", "operator", "")
	b.want(404, "DELETE", "/v1/access-roles/editors", "operator", "")
}

// TestTheLastOwnerStays, also when two are removed at the same time.
func TestTheLastOwnerStays(t *testing.T) {
	t.Parallel()
	b := people(t)
	for _, tc := range []struct{ role, org string }{{"operator", ""}, {"org_owner", "a"}} {
		of := ""
		if tc.org != "" {
			of = `,"org_id":"` + tc.org + `"`
		}
		for range 10 {
			var ids, grants []string
			for _, name := range []string{"one", "two"} {
				g := as[api.Grant](t, b.want(201, "POST", "/v1/grants", "operator", `{"access_role":"`+tc.role+`","issuer":"https://id.example","subject":"`+name+tc.role+`"`+of+`}`))
				ids, grants = append(ids, g.PrincipalId), append(grants, g.GrantId)
			}
			// A group may have no members, and a disabled user does nothing.
			b.want(http.StatusCreated, "POST", "/v1/grants", "operator", `{"access_role":"`+tc.role+`","kind":"group","issuer":"https://id.example","subject":"g`+grants[0]+`"`+of+`}`)
			var wg sync.WaitGroup
			var done atomic.Int32
			remove := []func() (*http.Response, []byte){
				func() (*http.Response, []byte) { return b.send("DELETE", "/v1/grants/"+grants[0], "operator", "", "") },
				func() (*http.Response, []byte) {
					return b.send("POST", "/v1/users/"+ids[1]+"/disable", "operator", "", "")
				},
			}
			for _, do := range remove {
				wg.Go(func() {
					resp, answer := do()
					switch resp.StatusCode {
					case http.StatusOK, http.StatusNoContent:
						done.Add(1)
					case http.StatusConflict:
						if !strings.Contains(string(answer), `"last_owner"`) {
							done.Add(100)
						}
					default:
						done.Add(100)
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, 1, done.Load(), "one of both removals of %s on %q", tc.role, tc.org)
			b.want(200, "POST", "/v1/users/"+ids[1]+"/enable", "operator", "")
			b.sql(`SET session_replication_role = replica; DELETE FROM access_grants; RESET session_replication_role`)
		}
	}
	g := as[api.Grant](t, b.want(201, "POST", "/v1/grants", "operator", `{"access_role":"org_owner","org_id":"b","issuer":"i","subject":"s"}`))
	require.Equal(t, "last_owner: this is the last enabled org_owner of the org b: grant it to another user or service account first",
		b.refused(409, "DELETE", "/v1/grants/"+g.GrantId, "operator", ""))
	require.Contains(t, b.refused(409, "POST", "/v1/users/"+g.PrincipalId+"/disable", "operator", ""), "last_owner")
	require.Nil(t, as[api.User](t, b.want(200, "GET", "/v1/users/"+g.PrincipalId, "operator", "")).DisabledAt)
}

// TestAProvisionerOwnsWhatItCreates, after a rotation as before; another provisioner does not see it.
func TestAProvisionerOwnsWhatItCreates(t *testing.T) {
	t.Parallel()
	b := people(t)
	_, tokenID, form := b.account("form", "", "provisioner")
	_, _, other := b.account("other-form", "", "provisioner")
	tenant := func(org string) string {
		return `{"slug":"` + org + `-site","org_id":"` + org + `","region":"eu","plan":"starter","expected_users":5,"storage_quota_gb":5}`
	}
	require.Contains(t, b.refused(403, "POST", "/v1/tenants", form, tenant("a")), "forbidden")
	b.want(200, "PUT", "/v1/orgs/theirs", other, `{}`)
	b.want(200, "PUT", "/v1/orgs/mine", form, `{}`)
	b.want(200, "PUT", "/v1/orgs/mine", form, `{}`)
	b.want(202, "POST", "/v1/tenants", form, tenant("mine"))
	held := as[api.GrantPage](t, b.want(200, "GET", "/v1/grants?org_id=mine", "operator", "")).Grants
	require.Len(t, held, 1)
	require.Equal(t, []string{"form", "provisioner"}, []string{held[0].Name, held[0].AccessRole})

	renewed := as[api.CreatedToken](t, b.want(201, "POST", "/v1/tokens/"+tokenID+"/rotate", "operator", `{"expires_in_seconds":3600,"overlap_seconds":0}`)).Secret
	b.want(401, "GET", "/v1/orgs/mine", form, "")
	b.want(200, "GET", "/v1/orgs/mine", renewed, "")
	b.want(202, "POST", "/v1/tenants", renewed, strings.Replace(tenant("mine"), "mine-site", "mine-2", 1))

	for _, foreign := range []string{"mine", "none"} {
		require.Equal(t, `not_found: there is no org "ID"`, strings.ReplaceAll(b.refused(404, "GET", "/v1/orgs/"+foreign, other, ""), foreign, "ID"))
		require.Equal(t, "org_unknown: is not an org that is known here", b.refused(422, "POST", "/v1/tenants", other, tenant(foreign)))
	}
	b.want(403, "PUT", "/v1/orgs/mine", other, `{}`)
	b.want(404, "GET", "/v1/orgs/a", renewed, "")
	b.want(200, "PUT", "/v1/orgs/operators", "operator", `{}`)
	require.Empty(t, as[api.GrantPage](t, b.want(200, "GET", "/v1/grants?org_id=operators", "operator", "")).Grants)
}

// TestUsersAndTheirLoginsAreEnded by themselves, or by who may.
func TestUsersAndTheirLoginsAreEnded(t *testing.T) {
	t.Parallel()
	b := people(t)
	g := as[api.Grant](t, b.want(201, "POST", "/v1/grants", "operator", `{"access_role":"org_owner","org_id":"a","issuer":"https://id.example","subject":"bo","name":"Bo"}`))
	b.want(201, "POST", "/v1/grants", "operator", `{"access_role":"org_owner","org_id":"a","issuer":"https://id.example","subject":"ann"}`)
	users := as[api.UserPage](t, b.want(200, "GET", "/v1/users?subject=bo", "operator", "")).Users
	require.Len(t, users, 1)
	require.Equal(t, []any{"Bo", []api.UserGrant{{AccessRole: "org_owner", OrgId: "a"}}}, []any{users[0].Name, users[0].Grants})
	login := func() (id, secret string) {
		secret, c, err := api.NewLogin(access.Principal{PrincipalID: g.PrincipalId, Name: "Bo"}, time.Now(), "192.0.2.7")
		require.NoError(t, err)
		_, err = b.store.CreateCredential(t.Context(), c)
		require.NoError(t, err)
		return c.CredentialID, secret
	}
	first, firstSecret := login()
	second, secondSecret := login()
	_, _, stranger := b.account("stranger", "a", "org_owner")
	require.Len(t, as[api.LoginPage](t, b.want(200, "GET", "/v1/logins", firstSecret, "")).Logins, 2)
	require.Empty(t, as[api.LoginPage](t, b.want(200, "GET", "/v1/logins?principal_id="+g.PrincipalId, stranger, "")).Logins)
	require.Len(t, as[api.LoginPage](t, b.want(200, "GET", "/v1/logins", "viewer", "")).Logins, 2)
	theirs, none := b.refused(404, "DELETE", "/v1/logins/"+first, stranger, ""), b.refused(404, "DELETE", "/v1/logins/login-none", stranger, "")
	require.Equal(t, strings.ReplaceAll(none, "login-none", first), theirs)
	b.want(404, "DELETE", "/v1/logins/"+first, "viewer", "")
	b.want(204, "DELETE", "/v1/logins/"+second, firstSecret, "")
	b.want(401, "GET", "/v1/whoami", secondSecret, "")
	b.want(204, "DELETE", "/v1/logins/"+first, "operator", "")
	b.want(401, "GET", "/v1/whoami", firstSecret, "")

	_, third := login()
	script := as[api.CreatedToken](t, b.want(201, "POST", "/v1/tokens", third, `{"name":"script","expires_in_seconds":60}`))
	narrowed := script.Secret
	require.Contains(t, b.refused(409, "POST", "/v1/tokens/"+script.TokenId+"/rotate", "operator", `{"expires_in_seconds":60}`), "a token that a user narrowed")
	b.want(200, "GET", "/v1/orgs/a", narrowed, "")
	b.want(200, "POST", "/v1/users/"+g.PrincipalId+"/disable", "operator", "")
	b.want(401, "GET", "/v1/whoami", third, "")
	b.want(401, "GET", "/v1/orgs/a", narrowed, "")
	require.Contains(t, b.refused(422, "POST", "/v1/grants", "operator", `{"access_role":"developer","org_id":"b","issuer":"https://id.example","subject":"bo"}`), "disabled")
	b.want(200, "POST", "/v1/users/"+g.PrincipalId+"/enable", "operator", "")
	b.want(200, "GET", "/v1/orgs/a", narrowed, "")
}

// TestWhyExplainsTheDecisionOfRequests in words, and nothing of orgs that the caller does not see.
func TestWhyExplainsTheDecisionOfRequests(t *testing.T) {
	t.Parallel()
	b := people(t)
	_, _, owner := b.account("owner", "a", "org_owner")
	b.account("form", "", "provisioner")
	b.account("dev", "a", "developer")
	b.account("dev-b", "b", "developer")
	b.account("root", "", "operator")
	root := as[api.ServiceAccountPage](t, b.want(200, "GET", "/v1/service-accounts?name=root", "operator", "")).ServiceAccounts[0].PrincipalId
	b.want(201, "POST", "/v1/grants", "operator", `{"access_role":"billing","org_id":"a","principal_id":"`+root+`"}`)
	for _, id := range []string{"a", "b"} {
		b.sql(`SET session_replication_role = replica;
			INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by)
			VALUES ('t-` + id + `', 's-` + id + `', '` + id + `', 'eu', 'starter', 1, 1, 'shared', '', 'active', 'x');
			RESET session_replication_role`)
	}
	why := func(by, who, operation, object string) string {
		t.Helper()
		path := "/v1/access/why?principal=" + who + "&operation=" + operation
		if object != "" {
			path += "&object=" + object
		}
		resp, answer := b.do("GET", path, by, "", "")
		if resp.StatusCode != http.StatusOK {
			p := as[api.Problem](t, answer)
			return p.Code + ": " + deref(p.Detail)
		}
		d := as[api.AccessDecision](t, answer)
		return fmt.Sprint(d.Allowed, " ", d.Reason, ": ", d.Text)
	}
	for _, tc := range []struct{ by, who, operation, object, want string }{
		{"operator", "dev", "getTenant", "t-a", "true granted: dev may getTenant in a: it has developer on a, which includes tenant:read"},
		{"operator", "dev", "getTenant", "t-b", "false other_org: dev may not getTenant in b: it has developer on a, which includes tenant:read only there"},
		{"operator", "dev", "getTenant", "t-c", `tenant_not_found: there is no tenant "t-c"`},
		{"operator", "dev", "createTenant", "a", "true granted: dev may createTenant in a: it has developer on a, which includes tenant:create"},
		{"operator", "dev", "drainServer", "", "false no_capability: dev may not drainServer on the installation: this requires the capability server:drain, which none of its grants includes"},
		{"operator", "form", "putOrg", "new", "true granted: form may putOrg on the installation: it has provisioner on the installation, which includes org:create"},
		{"operator", "form", "createTenant", "a", "false no_capability: form may not createTenant in a: this requires the capability tenant:create, which none of its grants includes"},
		{"operator", "dev", "listTenants", "", "true granted: dev may listTenants somewhere: it has developer on a, which includes tenant:read"},
		{"operator", "dev", "whoami", "", "true open: dev may whoami: it is about the caller, and requires no capability"},
		{"operator", "dev", "createTenant", "", "invalid_field: must be given for this operation: an id of what it acts on"},
		{"operator", "dev", "fly", "", "invalid_field: must be an operationId of the contract, such as createTenant"},
		{"operator", "dev", "metrics", "", "invalid_field: must be an operationId of the contract, such as createTenant"},
		{"operator", "nobody", "getTenant", "t-a", `not_found: there is no principal "nobody"`},
		{owner, "dev", "getTenant", "t-a", "true granted: dev may getTenant in a: it has developer on a, which includes tenant:read"},
		{owner, "dev", "getTenant", "t-b", `tenant_not_found: there is no tenant "t-b"`},
		{owner, "dev", "getTenant", "t-c", `tenant_not_found: there is no tenant "t-c"`},
		{owner, "dev", "createTenant", "b", `not_found: there is no org "b"`},
		{owner, "dev-b", "getTenant", "t-a", `not_found: there is no principal "dev-b"`},
		{owner, "form", "getTenant", "t-a", `not_found: there is no principal "form"`},
		{owner, "root", "getTenant", "t-a", "true granted: root may getTenant in a: a grant outside of the orgs that you see includes tenant:read"},
		{owner, "root", "drainServer", "", "forbidden: this requires the capability access:read on the installation"},
	} {
		require.Equal(t, tc.want, why(tc.by, tc.who, tc.operation, tc.object), "%s %s %s", tc.who, tc.operation, tc.object)
	}
	b.want(403, "GET", "/v1/access/why?principal=dev&operation=whoami", b.token("billing", "billing"), "")
}
