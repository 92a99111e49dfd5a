package api_test

import (
	"crypto/x509"
	"encoding/json"
	"hash/crc32"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/ops"
)

// anySecret is what NewSecret makes.
var anySecret = regexp.MustCompile(`prego_[a-z]+_[0-9A-Za-z]{38}`)

// consoleOfRows is a console and its API, whose callers are the rows of the database and those of auth.
func consoleOfRows(t *testing.T) *consoleBundle {
	t.Helper()
	b := &consoleBundle{bundle: people(t)}
	return b.withConsole(nil)
}

// aged makes all logins older than what may destroy requires.
func (b *bundle) aged() {
	b.sql(`UPDATE credentials SET fresh_at = now() - interval '16 minutes' WHERE kind = 'login'`)
}

// loginOf is the secret of a login of a principal.
func (b *bundle) loginOf(p access.Principal) (id, secret string) {
	b.t.Helper()
	secret, c, err := api.NewLogin(p, time.Now(), "192.0.2.7")
	require.NoError(b.t, err)
	_, err = b.store.CreateCredential(b.t.Context(), c)
	require.NoError(b.t, err)
	return c.CredentialID, secret
}

// bo is a user who is an operator.
func (b *bundle) bo() api.Grant {
	b.t.Helper()
	return as[api.Grant](b.t, b.want(201, "POST", "/v1/grants", "operator",
		`{"access_role":"operator","issuer":"https://id.example","subject":"bo","name":"Bo"}`))
}

// ofAccess reports whether an operation makes a credential, a grant or what they give.
func (o stated) ofAccess() bool {
	return slices.Contains([]string{"access", "access_role", "service_account", "token", "invitation", "user"}, o.thing()) &&
		o.method != http.MethodGet && !slices.Contains([]string{"revoke", "delete", "disable", "end"}, o.verb())
}

// linked opens a link to the console of a credential, and returns the login's secret.
func (b *consoleBundle) linked(by string) string {
	b.t.Helper()
	made := as[api.ConsoleLogin](b.t, b.want(201, "POST", "/v1/console-logins", by, ""))
	_, code, _ := strings.Cut(made.Path, "code=")
	v := b.browser()
	p := v.post("/console/login", url.Values{"code": {code}})
	require.Equal(b.t, http.StatusSeeOther, p.status, p.body)
	return v.cookie()
}

// cookie is the secret of a browser's login, "" without one.
func (v *browser) cookie() string {
	v.b.t.Helper()
	u, err := url.Parse(v.b.srv.URL + "/console")
	require.NoError(v.b.t, err)
	for _, k := range v.client.Jar.Cookies(u) {
		if k.Name == "prego_console" {
			return k.Value
		}
	}
	return ""
}

// signed are tokens that the control plane signs for its own hosts: of an agent, and of a command to one.
func signed(t *testing.T) (agent, exec string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, token.InitKeys(dir))
	ring := func(use token.Use) *token.Keyring {
		k, err := token.OpenKeyring(dir, use)
		require.NoError(t, err)
		return k
	}
	agents, execs := token.NewAgents(ring(token.UseAgent)), token.NewExec(ring(token.UseExec), func() int64 { return 0 })
	agent, _, err := agents.Issue("app-1", prego.RoleApp, &x509.Certificate{Raw: []byte("x")}, time.Hour)
	require.NoError(t, err)
	exec, err = execs.Issue("app-1", wire.KindBench, [32]byte{}, time.Minute)
	require.NoError(t, err)
	return agent, exec
}

// TestASecretIsGoodForOneThing: each kind is sent wherever another one is accepted.
func TestASecretIsGoodForOneThing(t *testing.T) {
	t.Parallel()
	b := consoleOfRows(t)
	id, tokenID, secret := b.account("robot", "", "operator")
	_, login := b.loginOf(access.Principal{PrincipalID: id, CredentialID: tokenID, Name: "robot"})
	link := func() string {
		made := as[api.ConsoleLogin](t, b.want(201, "POST", "/v1/console-logins", secret, ""))
		return strings.TrimPrefix(made.Path, "/console/login?code=")
	}
	_, join := b.invite("support", "")
	agent, exec := signed(t)
	ci := newIssuer(t)
	bootstrap := []byte("bootstrap-secret-of-a-host")
	b.sql(`SET LOCAL session_replication_role = replica;
		INSERT INTO server_bootstrap_tokens (token_id, server_id, attempt, purpose, token_hash, expires_at)
		VALUES ('boot', 'app-1', 1, 'agent_bootstrap', sha256('bootstrap-secret-of-a-host'), now() + interval '1 hour')`)
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	remade := func(from, to access.CredentialKind, raw string) string { // with the checksum of the other kind
		forged := "prego_" + string(to) + "_" + strings.TrimPrefix(raw, "prego_"+string(from)+"_")[:32]
		for n, rest := 0, crc32.ChecksumIEEE([]byte(forged)); n < 6; n, rest = n+1, rest/62 {
			at := len("prego_"+string(to)+"_") + 32
			forged = forged[:at] + string(digits[rest%62]) + forged[at:]
		}
		kind, ok := access.KindOfSecret(forged)
		require.True(t, ok && kind == to)
		return forged
	}
	const bearer, cookie, form, code = "bearer", "cookie", "form", "code"
	for what, tc := range map[string]struct {
		secret func() string
		good   []string
	}{
		"token":                     {func() string { return secret }, []string{bearer, form}},
		"login":                     {func() string { return login }, []string{bearer, cookie, form}},
		"link":                      {link, []string{code}},
		"invitation":                {func() string { return join }, nil},
		"agent":                     {func() string { return agent }, nil},
		"exec":                      {func() string { return exec }, nil},
		"bootstrap":                 {func() string { return string(bootstrap) }, nil},
		"issuer's token":            {func() string { return ci.token(nil) }, nil},
		"credential's id":           {func() string { return tokenID }, nil},
		"prefix":                    {func() string { return secret[:18] }, nil},
		"hash":                      {func() string { return string(access.SecretHash(secret)) }, nil},
		"token, shorter":            {func() string { return secret[:len(secret)-1] }, nil},
		"token, longer":             {func() string { return secret + "0" }, nil},
		"token, in capitals":        {func() string { return strings.ToUpper(secret) }, nil},
		"token, twice":              {func() string { return secret + " " + secret }, nil},
		"token, another checksum":   {func() string { return secret[:len(secret)-6] + "000000" }, nil},
		"token as a login":          {func() string { return remade(access.Token, access.Login, secret) }, nil},
		"login as a token":          {func() string { return remade(access.Login, access.Token, login) }, nil},
		"link as a token":           {func() string { return remade(access.Link, access.Token, link()) }, nil},
		"token with a NUL":          {func() string { return secret + "%00" }, nil},
		"a token's name and secret": {func() string { return "robot:" + secret }, nil},
	} {
		for place, try := range map[string]func(raw string) bool{
			bearer: func(raw string) bool {
				resp, _ := b.sendAs(raw, "GET", "/v1/whoami", "", "X-None")
				return resp.StatusCode == http.StatusOK
			},
			cookie: func(raw string) bool {
				return b.browser().get("/console/servers", "Cookie", "prego_console="+raw).status == http.StatusOK
			},
			form: func(raw string) bool {
				return b.browser().post("/console/login", url.Values{"token": {raw}}).status == http.StatusSeeOther
			},
			code: func(raw string) bool {
				return b.browser().post("/console/login", url.Values{"code": {raw}}).status == http.StatusSeeOther
			},
		} {
			raw := tc.secret()
			if place == bearer || place == cookie { // what a header can't have
				raw = strings.Map(func(r rune) rune {
					if r < ' ' || r > '~' {
						return 'x'
					}
					return r
				}, raw)
			}
			require.Equal(t, slices.Contains(tc.good, place), try(raw), "%s as %s", what, place)
		}
	}
	require.Equal(t, http.StatusUnauthorized, func() int {
		req := request(t, b.bundle.srv.URL, "GET", "/v1/whoami", "", "", "")
		req.SetBasicAuth("robot", secret)
		resp, err := need.HTTP.Do(req)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode
	}(), "as a password")
	for _, place := range []string{"/v1/whoami?access_token=" + secret, "/v1/whoami?token=" + secret} {
		resp, _ := b.send("GET", place, "", "", "")
		require.Equal(t, http.StatusUnauthorized, resp.StatusCode, "in an address")
	}
	// Nor is one of ours a token of an issuer.
	for _, raw := range []string{secret, login, link(), agent, exec} {
		status, got, _ := b.exchange("jwt", id, raw)
		require.Equal(t, []any{http.StatusUnauthorized, "unauthenticated"}, []any{status, got})
	}
}

// TestAnOldLoginMakesNothingFresh: neither a link to the console nor the login page makes a fresh login of an old one,
// and no token, grant or invitation is made of it that could do what it may not.
func TestAnOldLoginMakesNothingFresh(t *testing.T) {
	t.Parallel()
	b := consoleOfRows(t)
	b.fleet("app-1", "db-1", "redis-1")
	g := b.bo()
	robot, robots, _ := b.account("robot", "", "operator")
	_, login := b.loginOf(access.Principal{PrincipalID: g.PrincipalId, Name: "Bo"})
	const one = `{"name":"x","expires_in_seconds":3600}`
	script := as[api.CreatedToken](t, b.want(201, "POST", "/v1/tokens", login, one)).Secret
	b.aged()
	v := b.browser()
	require.Equal(t, http.StatusSeeOther, v.post("/console/login", url.Values{"token": {login}}).status)
	for what, secret := range map[string]string{
		"old": login, "by a link": b.linked(login), "by the login page": v.cookie(), "twice": b.linked(b.linked(login)),
	} {
		for path, body := range map[string]string{
			"/v1/tokens": `{"name":"x","expires_in_seconds":3600}`,
			"/v1/service-accounts/" + robot + "/tokens":    `{"name":"x","expires_in_seconds":3600}`,
			"/v1/tokens/" + robots + "/rotate":             `{"expires_in_seconds":3600}`,
			"/v1/grants":                                   `{"access_role":"operator","principal_id":"` + robot + `"}`,
			"/v1/invitations":                              `{"name":"Eve","access_role":"operator"}`,
			"/v1/users/" + g.PrincipalId + "/enable":       "",
			"/v1/service-accounts":                         `{"name":"eve"}`,
			"PUT /v1/service-accounts/" + robot + "/trust": `{"issuer":"https://id.example","audience":"a","claims":{"sub":"x"}}`,
			"PUT /v1/access-roles/wide":                    `{"capabilities":["*"]}`,
			"DELETE /v1/servers/app-1":                     "",
		} {
			method, at, given := strings.Cut(path, " ")
			if !given {
				method, at = "POST", path
			}
			resp, answer := b.sendAs(secret, method, at, body, "X-None")
			require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s: %s: %s", what, path, answer)
			require.Equal(t, "login_not_fresh", as[api.Problem](t, answer).Code, "%s: %s", what, path)
		}
		b.want(200, "GET", "/v1/tenants", secret, "")
	}
	// Ending access needs no fresh login, a program has none, and a new proof makes it fresh again.
	b.want(200, "GET", "/v1/tenants", script, "")
	b.want(201, "POST", "/v1/tokens", script, `{"name":"x","expires_in_seconds":60}`)
	b.want(204, "DELETE", "/v1/tokens/"+robots, login, "")
	b.sql(`UPDATE credentials SET fresh_at = now()`)
	b.want(201, "POST", "/v1/tokens", login, `{"name":"x","expires_in_seconds":60}`)
}

// TestALoginIsAsOldAsItsProof: an issuer that knows the person still may have asked for no proof now.
func TestALoginIsAsOldAsItsProof(t *testing.T) {
	t.Parallel()
	b := people(t)
	b.bo()
	for ago, status := range map[time.Duration]int{
		16 * time.Minute: http.StatusForbidden, 14 * time.Minute: http.StatusCreated, -time.Hour: http.StatusCreated,
	} {
		who := access.Identity{Issuer: "https://id.example", Subject: "bo", Name: "Bo", AuthTime: time.Now().Add(-ago)}
		login, _, err := api.LogIn(t.Context(), b.store, who, "console", ops.AuditSource{From: "192.0.2.7"})
		require.NoError(t, err)
		answer := b.want(status, "POST", "/v1/tokens", login, `{"name":"x","expires_in_seconds":60}`)
		if status == http.StatusForbidden {
			require.Equal(t, "login_not_fresh", as[api.Problem](t, answer).Code)
		}
	}
	require.Zero(t, b.count(`SELECT count(*) FROM credentials WHERE fresh_at > now()`), "no proof is of the future")
}

// TestLimitedTokensGiveNoAccess by any operation that makes a credential, a grant or an access role, or that brings an
// org below another one.
func TestLimitedTokensGiveNoAccess(t *testing.T) {
	t.Parallel()
	b := withTokens(t)
	for _, id := range []string{"acme", "other"} {
		b.org(id, "")
	}
	b.sql(`SET LOCAL session_replication_role = replica;
		INSERT INTO principals (principal_id, kind, name, created_by) VALUES ('sa-x', 'service_account', 'x', 'x')`)
	narrowed := b.limited(access.Caveats{}, access.Caveats{})
	tried := 0
	for id, o := range operations(t) {
		if !o.ofAccess() {
			continue
		}
		path, body := o.request(own)
		for caveat, c := range map[string]access.Caveats{
			"operations": {Operations: []string{id}}, "orgs": {Orgs: []prego.OrgID{"acme", "other"}},
			"monthly_cents": {MonthlyCents: new(int64(1 << 50))}, "seconds_down": {SecondsDown: new(int64(1 << 50))},
			"destroys_nothing": {DestroysNothing: true}, "reveals_nothing": {RevealsNothing: true}, "dry_run_only": {DryRunOnly: true},
		} {
			p := b.refusedBy(b.limited(c), caveat, o.method, path, body)
			require.NotEmpty(t, deref(p.Detail), "%s: %s", id, caveat)
			tried++
		}
	}
	require.Greater(t, tried, 50)
	caveat := b.limited(access.Caveats{DestroysNothing: true})
	for what, limited := range map[string]string{"caveat": caveat, "narrowed": narrowed} {
		resp, answer := b.sendAs(limited, "PUT", "/v1/orgs/acme", `{"parent_org_id":"other"}`, "X-None")
		require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s: %s", what, answer)
		require.Contains(t, string(answer), "it can't give access to others", what)
		b.allowed(limited, 200, "PUT", "/v1/orgs/acme", `{"tier":"paid"}`)
	}
	require.Equal(t, 0, b.count(`SELECT count(*) FROM orgs WHERE parent_org_id IS NOT NULL`))
}

// TestADryRunTokenEndsNoLogins but its own narrower ones: the login of another user is not about its caller.
func TestADryRunTokenEndsNoLogins(t *testing.T) {
	t.Parallel()
	b := people(t)
	g := b.bo()
	login, secret := b.loginOf(access.Principal{PrincipalID: g.PrincipalId, Name: "Bo"})
	dry := b.limited(access.Caveats{DryRunOnly: true})
	b.untried = true // its dry run is allowed
	require.Contains(t, b.refused(403, "DELETE", "/v1/logins/"+login, dry, ""), "dry_run_only")
	b.want(200, "GET", "/v1/whoami", secret, "")
	b.want(200, "DELETE", "/v1/logins/"+login+"?dry_run=true", dry, "")
	b.want(200, "GET", "/v1/whoami", secret, "")
	b.want(204, "DELETE", "/v1/logins/"+login, b.limited(access.Caveats{RevealsNothing: true}), "")
	b.want(401, "GET", "/v1/whoami", secret, "")
}

// TestNothingMadeOfATokenIsWider than it: what is narrowed asks for more in each caveat, and a login by it, a token
// narrowed from that login, and one that replaces it are tried as well.
func TestNothingMadeOfATokenIsWider(t *testing.T) {
	t.Parallel()
	b := consoleOfRows(t)
	b.fleet("app-1", "db-1", "redis-1")
	b.org("acme", "")
	site := b.site("bakery")
	id, tokenID, whole := b.account("agent", "a", "org_owner")
	b.want(201, "POST", "/v1/grants", "operator", `{"access_role":"org_owner","org_id":"acme","principal_id":"`+id+`"}`)
	b.want(201, "POST", "/v1/grants", "operator", `{"access_role":"org_owner","org_id":"b","principal_id":"`+id+`"}`)
	const operations = `"getTenant","listTenants","cancelTenant","setAdminPassword","suspendTenant","createVolume","getOrg",` +
		`"narrowToken","createConsoleLogin","rotateToken"`
	const parent = `{"name":"parent","expires_in_seconds":600,"caveats":{"orgs":["acme","a"],"destroys_nothing":true,` +
		`"reveals_nothing":true,"monthly_cents":0,"seconds_down":0,"operations":[` + operations + `]}}`
	const wider = `{"name":"wider","expires_in_seconds":31622400,"caveats":{"orgs":["acme","a"],"monthly_cents":100000,` +
		`"seconds_down":100000,"operations":["createApp","createGrant",` + operations + `]}}`
	narrow := func(by, body string) api.CreatedToken {
		t.Helper()
		return as[api.CreatedToken](t, b.want(201, "POST", "/v1/tokens", by, body))
	}
	p := narrow(whole, parent)
	falsy := narrow(p.Secret, `{"name":"falsy","expires_in_seconds":31622400,`+
		`"caveats":{"destroys_nothing":false,"reveals_nothing":false,"dry_run_only":false}}`)
	const other = `{"name":"x","expires_in_seconds":60,"caveats":{"orgs":["b"]}}`
	require.Contains(t, b.refused(422, "POST", "/v1/tokens", p.Secret, other), "not an org that is known here")
	child := narrow(p.Secret, wider)
	login := b.linked(child.Secret)
	below := narrow(login, wider)
	replace := "/v1/tokens/" + child.TokenId + "/rotate"
	rotated := as[api.CreatedToken](t, b.want(201, "POST", replace, "operator", `{"expires_in_seconds":31622400}`))
	require.Equal(t, p.TokenId, deref(rotated.ParentId))
	for what, secret := range map[string]string{
		"parent": p.Secret, "falsy": falsy.Secret, "child": child.Secret, "login": login, "below the login": below.Secret,
		"rotated": rotated.Secret,
	} {
		who := as[api.Caller](t, b.want(200, "GET", "/v1/whoami", secret, ""))
		require.WithinDuration(t, time.Now().Add(10*time.Minute), *who.ExpiresAt, time.Minute, "%s outlives its parent", what)
		b.allowed(secret, 200, "GET", "/v1/tenants/"+site, "")
		for path, caveat := range map[string]string{
			"POST /v1/apps":                                "operations",
			"POST /v1/grants":                              "operations",
			"GET /v1/servers":                              "", // of no grant
			"GET /v1/orgs/b":                               "404",
			"POST /v1/tenants/" + site + "/cancel":         "any", // of several
			"POST /v1/tenants/" + site + "/admin-password": "reveals_nothing",
			"POST /v1/volumes":                             "monthly_cents",
			"POST /v1/tokens/" + tokenID + "/rotate":       "any",
		} {
			method, at, _ := strings.Cut(path, " ")
			body := map[string]string{
				"/v1/apps":    `{"org_id":"acme","name":"x"}`,
				"/v1/grants":  `{"access_role":"org_owner","org_id":"acme","principal_id":"` + id + `"}`,
				"/v1/volumes": `{"org_id":"acme","region":"eu","name":"data","size_bytes":10000000000}`,

				"/v1/tokens/" + tokenID + "/rotate": `{"expires_in_seconds":3600}`,
			}[at]
			if body == "" && method == "POST" {
				body = `{}`
			}
			resp, answer := b.sendAs(secret, method, at, body, "X-None")
			if caveat == "404" {
				require.Equal(t, http.StatusNotFound, resp.StatusCode, "%s: %s: %s", what, path, answer)
				continue
			}
			require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s: %s: %s", what, path, answer)
			if refusal := as[api.Problem](t, answer); caveat != "any" && caveat != "" {
				require.Equal(t, caveat, deref(refusal.Caveat), "%s: %s: %s", what, path, answer)
			}
		}
	}
	// Whatever ends above ends all below it, also by an overlap that is over.
	b.want(201, "POST", "/v1/tokens/"+tokenID+"/rotate", "operator", `{"expires_in_seconds":3600,"overlap_seconds":0}`)
	for _, secret := range []string{whole, p.Secret, falsy.Secret, child.Secret, login, below.Secret, rotated.Secret} {
		b.want(401, "GET", "/v1/whoami", secret, "")
	}
}

// TestAKeptAnswerHasNoSecret, and a revoked token repeats nothing: neither gets a token by the key of the request that
// made it.
func TestAKeptAnswerHasNoSecret(t *testing.T) {
	t.Parallel()
	b := people(t)
	id, tokenID, secret := b.account("robot", "a", "org_owner")
	for path, body := range map[string]string{
		"/v1/tokens":                             `{"name":"x","expires_in_seconds":3600}`,
		"/v1/service-accounts/" + id + "/tokens": `{"name":"x","expires_in_seconds":3600}`,
		"/v1/console-logins":                     "",
		"/v1/invitations":                        `{"name":"Eve","access_role":"developer","org_id":"a"}`,
	} {
		resp, first := b.sendAs(secret, "POST", path, body, "Idempotency-Key", "k"+path)
		require.Equal(t, http.StatusCreated, resp.StatusCode, "%s: %s", path, first)
		made := anySecret.FindString(string(first))
		require.NotEmpty(t, made, path)
		resp, again := b.sendAs(secret, "POST", path, body, "Idempotency-Key", "k"+path)
		require.Equal(t, http.StatusConflict, resp.StatusCode, "%s: %s", path, again)
		require.NotRegexp(t, anySecret, string(again), path)
		require.Zero(t, b.count(`
SELECT count(*) FROM request_keys WHERE convert_from(COALESCE(body, ''), 'UTF8') LIKE '%prego\_%'`), path)
	}
	b.want(204, "DELETE", "/v1/tokens/"+tokenID, "operator", "")
	const body = `{"name":"x","expires_in_seconds":3600}`
	resp, answer := b.sendAs(secret, "POST", "/v1/tokens", body, "Idempotency-Key", "k/v1/tokens")
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode, "%s", answer)
}

// TestTrustsAreNotConfused: of two accounts that trust tokens of one subject, each gets only its own; a token that was
// exchanged is no subject of an exchange, is narrowed only, and ends when it is revoked.
func TestTrustsAreNotConfused(t *testing.T) {
	t.Parallel()
	b := people(t)
	ci, other := newIssuer(t), newIssuer(t)
	trust := func(account, issuer, audience string, claims map[string]string) {
		body, err := json.Marshal(map[string]any{"issuer": issuer, "audience": audience, "claims": claims})
		require.NoError(t, err)
		b.want(200, "PUT", "/v1/service-accounts/"+account+"/trust", "operator", string(body))
	}
	main := map[string]string{"sub": "repo:acme/shop:ref:refs/heads/main"}
	one, _, _ := b.account("one", "a", "org_viewer")
	two, _, _ := b.account("two", "b", "org_viewer")
	three, _, _ := b.account("three", "b", "org_viewer")
	slash, _, _ := b.account("slash", "b", "org_viewer")
	trust(one, ci.url, "https://prego.example.com", main)
	trust(two, ci.url, "https://two.example.com", main)
	trust(three, other.url, "https://prego.example.com", main)
	trust(slash, ci.url+"/", "https://prego.example.com", main)
	status, code, first := b.exchange("jwt", one, ci.token(nil))
	require.Equal(t, http.StatusCreated, status, code)
	b.want(200, "GET", "/v1/orgs/a", first.AccessToken, "")
	b.want(404, "GET", "/v1/orgs/b", first.AccessToken, "")
	for _, account := range []string{two, three} {
		status, code, _ := b.exchange("jwt", account, ci.token(nil))
		require.Equal(t, []any{http.StatusUnauthorized, "unauthenticated"}, []any{status, code}, account)
	}
	status, code, _ = b.exchange("jwt", slash, ci.token(nil))
	require.Equal(t, []any{http.StatusServiceUnavailable, "not_ready"}, []any{status, code}, "its document has another name")
	status, code, _ = b.exchange("jwt", two, ci.token(jwt.MapClaims{"aud": "https://two.example.com"}))
	require.Equal(t, http.StatusCreated, status, code)
	for name, claims := range map[string]jwt.MapClaims{
		"two audiences":     {"aud": []string{"https://prego.example.com", "https://two.example.com"}},
		"nested audiences":  {"aud": []any{[]string{"https://prego.example.com"}}},
		"another party's":   {"aud": []string{"https://prego.example.com", "x"}, "azp": "x"},
		"issuer of another": {"iss": other.url},
		"not yet":           {"nbf": time.Now().Add(time.Hour).Unix()},
		"issued tomorrow":   {"iat": time.Now().Add(24 * time.Hour).Unix()},
		"subject's case":    {"sub": strings.ToUpper(main["sub"])},
		"subject and space": {"sub": main["sub"] + " "},
	} {
		status, code, _ := b.exchange("jwt", one, ci.token(claims))
		require.Equal(t, []any{http.StatusUnauthorized, "unauthenticated"}, []any{status, code}, name)
	}
	for _, kind := range []string{"jwt", "id_token", "access_token"} {
		status, _, _ := b.exchange(kind, one, first.AccessToken)
		require.GreaterOrEqual(t, status, 400, kind)
	}
	status, code, _ = b.exchange("id_token", "", ci.token(nil))
	require.Equal(t, []any{http.StatusUnauthorized, "unauthenticated"}, []any{status, code}, "a program is no person")

	const long = `{"name":"x","expires_in_seconds":31622400}`
	child := as[api.CreatedToken](t, b.want(201, "POST", "/v1/tokens", first.AccessToken, long))
	require.WithinDuration(t, time.Now().Add(5*time.Minute), child.ExpiresAt, time.Minute, "it ends with the issuer's")
	held := as[api.TokenPage](t, b.want(200, "GET", "/v1/tokens?principal_id="+one, "operator", "")).Tokens
	for _, made := range held {
		if strings.HasPrefix(made.Name, "exchanged") {
			b.want(204, "DELETE", "/v1/tokens/"+made.TokenId, "operator", "")
		}
	}
	b.want(401, "GET", "/v1/orgs/a", first.AccessToken, "")
	b.want(401, "GET", "/v1/orgs/a", child.Secret, "")
}

// TestHoldersEndWhatTheyNarrowed without a capability, and neither what is above nor what is beside their own.
func TestHoldersEndWhatTheyNarrowed(t *testing.T) {
	t.Parallel()
	b := people(t)
	_, tokenID, secret := b.account("reader", "a", "org_viewer")
	narrow := func(by, caveats string) api.CreatedToken {
		t.Helper()
		body := `{"name":"n","expires_in_seconds":600,"caveats":` + caveats + `}`
		return as[api.CreatedToken](t, b.want(201, "POST", "/v1/tokens", by, body))
	}
	listed := func(by string) (ids []string) {
		t.Helper()
		for _, one := range as[api.TokenPage](t, b.want(200, "GET", "/v1/tokens", by, "")).Tokens {
			ids = append(ids, one.TokenId)
		}
		return ids
	}
	require.Empty(t, listed(secret))
	agent, beside := narrow(secret, `{"dry_run_only":true}`), narrow(secret, `{}`)
	below := narrow(agent.Secret, `{}`)
	require.ElementsMatch(t, []string{agent.TokenId, beside.TokenId, below.TokenId}, listed(secret))
	require.Equal(t, []string{below.TokenId}, listed(agent.Secret))
	require.Equal(t, below.TokenId, as[api.Token](t, b.want(200, "GET", "/v1/tokens/"+below.TokenId, agent.Secret, "")).TokenId)
	for _, id := range []string{tokenID, agent.TokenId, beside.TokenId, "token-none"} {
		for _, method := range []string{"GET", "DELETE"} {
			require.Contains(t, b.refused(403, method, "/v1/tokens/"+id, agent.Secret, ""), "forbidden", id)
		}
	}
	b.want(204, "DELETE", "/v1/tokens/"+below.TokenId, agent.Secret, "")
	b.want(401, "GET", "/v1/whoami", below.Secret, "")
	require.Empty(t, listed(agent.Secret))
	b.want(204, "DELETE", "/v1/tokens/"+agent.TokenId, secret, "")
	b.want(401, "GET", "/v1/whoami", agent.Secret, "")
	b.want(200, "GET", "/v1/whoami", beside.Secret, "")

	// What is not its own needs the capability, and is subject to its caveats.
	dry := b.limited(access.Caveats{DryRunOnly: true})
	b.untried = true // its dry run is allowed
	require.Contains(t, b.refused(403, "DELETE", "/v1/tokens/"+beside.TokenId, dry, ""), "dry_run_only")
	b.want(200, "GET", "/v1/orgs/a", beside.Secret, "")
	_, _, owner := b.account("owner", "b", "org_owner")
	require.Contains(t, b.refused(404, "DELETE", "/v1/tokens/"+beside.TokenId, owner, ""), "not_found")
	other := narrow(owner, `{}`)
	require.Contains(t, listed(owner), other.TokenId)
	require.NotContains(t, listed(owner), beside.TokenId)
	b.want(204, "DELETE", "/v1/tokens/"+other.TokenId, owner, "")
}
