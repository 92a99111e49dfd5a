package api_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	chromium "github.com/prego/prego/lab/browser"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/store"
)

// device is an authenticator with one passkey, as WebAuthn describes one (§6.1 and §6.5.1).
type device struct {
	t      *testing.T
	key    *ecdsa.PrivateKey
	id     []byte
	handle string // base64url
	count  uint32
	origin string
}

func newDevice(t *testing.T, origin string) *device {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return &device{t: t, key: key, id: []byte(rand.Text()), origin: origin}
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func (d *device) clientData(kind, challenge string) []byte {
	b, err := json.Marshal(map[string]any{"type": kind, "challenge": challenge, "origin": d.origin, "crossOrigin": false})
	require.NoError(d.t, err)
	return b
}

// data are the authenticator's data: user present and verified.
func (d *device) data(rp string, more []byte) []byte {
	hash := sha256.Sum256([]byte(rp))
	flags := byte(0x01 | 0x04)
	if more != nil {
		flags |= 0x40
	}
	return append(binary.BigEndian.AppendUint32(append(hash[:], flags), d.count), more...)
}

// create answers the challenge of a registration.
func (d *device) create(options string) string {
	var o struct {
		Challenge string
		RP        struct{ ID string }
		User      struct{ ID string }
	}
	require.NoError(d.t, json.Unmarshal([]byte(options), &o))
	d.handle = o.User.ID
	public, err := d.key.PublicKey.Bytes() // 0x04, x, y
	require.NoError(d.t, err)
	cose := append([]byte{0xa5, 0x01, 0x02, 0x03, 0x26, 0x20, 0x01, 0x21, 0x58, 0x20}, public[1:33]...)
	cose = append(append(cose, 0x22, 0x58, 0x20), public[33:]...)
	attested := append(append(make([]byte, 16), byte(len(d.id)>>8), byte(len(d.id))), d.id...)
	data := d.data(o.RP.ID, append(attested, cose...))
	object := []byte("\xa3\x63fmt\x64none\x67attStmt\xa0\x68authData\x58")
	object = append(append(object, byte(len(data))), data...)
	return d.answer(map[string]any{"clientDataJSON": b64(d.clientData("webauthn.create", o.Challenge)), "attestationObject": b64(object)})
}

// get answers the challenge of a login.
func (d *device) get(options string) string {
	var o struct{ Challenge, RPID string }
	require.NoError(d.t, json.Unmarshal([]byte(options), &o))
	client := d.clientData("webauthn.get", o.Challenge)
	data, hash := d.data(o.RPID, nil), sha256.Sum256(client)
	digest := sha256.Sum256(append(append([]byte(nil), data...), hash[:]...))
	signature, err := ecdsa.SignASN1(rand.Reader, d.key, digest[:])
	require.NoError(d.t, err)
	return d.answer(map[string]any{"clientDataJSON": b64(client), "authenticatorData": b64(data), "signature": b64(signature), "userHandle": d.handle})
}

func (d *device) answer(response map[string]any) string {
	b, err := json.Marshal(map[string]any{"id": b64(d.id), "rawId": b64(d.id), "type": "public-key", "response": response, "clientExtensionResults": map[string]any{}})
	require.NoError(d.t, err)
	return string(b)
}

// invite makes an invitation, and returns the code of its link.
func (b *consoleBundle) invite(role, org string) (id, code string) {
	b.t.Helper()
	in, err := json.Marshal(map[string]string{"name": "Ann", "access_role": role, "org_id": org})
	require.NoError(b.t, err)
	body := string(in)
	if org == "" {
		body = strings.Replace(body, `,"org_id":""`, "", 1)
	}
	resp, got := b.do(http.MethodPost, "/v1/invitations", "operator", js, body)
	require.Equal(b.t, http.StatusCreated, resp.StatusCode, "%s", got)
	var i api.Invitation
	require.NoError(b.t, json.Unmarshal(got, &i))
	_, code, _ = strings.Cut(*i.Path, "code=")
	return i.InvitationId, code
}

// origin is what the console's passkeys belong to.
func (b *consoleBundle) origin() string {
	return strings.Replace(b.srv.URL, "127.0.0.1", "localhost", 1)
}

// joins opens an invitation with a device.
func (v *browser) joins(d *device, code string) page {
	v.b.t.Helper()
	form := url.Values{"code": {code}, "name": {"Ann"}}
	begun := v.post("/console/join/begin", form)
	require.Equal(v.b.t, http.StatusOK, begun.status, begun.body)
	form.Set("credential", d.create(begun.body))
	return v.post("/console/join", form)
}

// enters logs in with a device.
func (v *browser) enters(d *device) page {
	v.b.t.Helper()
	begun := v.post("/console/login/begin", url.Values{})
	require.Equal(v.b.t, http.StatusOK, begun.status, begun.body)
	d.count++
	return v.post("/console/login", url.Values{"credential": {d.get(begun.body)}})
}

// TestInvitedUserJoinsAndLogsIn: the link is shown and used once, and gives what it was made for.
func TestInvitedUserJoinsAndLogsIn(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.org("acme", "")
	_, code := b.invite("developer", "acme")
	v := b.browser()
	for range 2 { // a chat's preview uses nothing up
		p := v.get("/console/join?code=" + code)
		require.Equal(t, http.StatusOK, p.status)
		require.Contains(t, p.body, "invites you as <strong>developer</strong> of the org <strong>acme</strong>")
	}
	d := newDevice(t, b.origin())
	p := v.joins(d, code)
	require.Equal(t, http.StatusSeeOther, p.status, p.body)
	require.Equal(t, http.StatusOK, v.get("/console/you").status)
	p = b.browser().get("/console/join?code=" + code)
	require.Equal(t, http.StatusGone, p.status)
	require.Contains(t, p.body, "the link was already used, was revoked or has expired")

	other := b.browser()
	require.Equal(t, http.StatusSeeOther, other.enters(d).status)
	require.Contains(t, other.get("/console/you").body, "Ann")
	var who string
	require.NoError(t, b.pool.QueryRow(t.Context(), `
SELECT concat_ws(' ', p.kind, p.issuer, p.name, g.access_role, g.org_id, count(k.*), (SELECT count(*) FROM credentials c WHERE c.principal_id = p.principal_id AND kind = 'login'))
FROM principals p JOIN access_grants g USING (principal_id) JOIN passkeys k USING (principal_id) WHERE p.kind = 'user' GROUP BY p.principal_id, g.grant_id`).Scan(&who))
	require.Equal(t, "user prego Ann developer acme 1 2", who)
	_, audit := b.do(http.MethodGet, "/v1/audit?kind=login_link", "operator", "", "")
	require.Contains(t, string(audit), `"createInvitation"`)
	require.NotContains(t, string(audit), code)
}

// TestInvitationWorksOnce, although 64 browsers accept it at the same time.
func TestInvitationWorksOnce(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, func(b *consoleBundle) { b.deps.Allow = func(access.Principal, *http.Request) error { return nil } })
	_, code := b.invite("support", "")
	var all sync.WaitGroup
	pages := make([]page, 64)
	answers := make([]func() page, len(pages))
	for i := range answers {
		v, d := b.browser(), newDevice(t, b.origin())
		form := url.Values{"code": {code}, "name": {"Ann"}}
		form.Set("credential", d.create(v.post("/console/join/begin", form).body))
		answers[i] = func() page { return v.post("/console/join", form) }
	}
	for i, answer := range answers {
		all.Go(func() { pages[i] = answer() })
	}
	all.Wait()
	joined := 0
	for _, p := range pages {
		if p.status == http.StatusSeeOther {
			joined++
			continue
		}
		require.Equal(t, http.StatusUnauthorized, p.status)
		require.Contains(t, p.body, "the link was already used")
	}
	require.Equal(t, 1, joined)
	var rows string
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT concat_ws(' ', (SELECT count(*) FROM principals WHERE kind = 'user'),
    (SELECT count(*) FROM passkeys), (SELECT count(*) FROM access_grants g JOIN principals p USING (principal_id) WHERE p.kind = 'user'))`).Scan(&rows))
	require.Equal(t, "1 1 1", rows)
}

// TestEndedInvitationsAreRefused: expired and revoked ones, also in the middle of joining.
func TestEndedInvitationsAreRefused(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	for name, end := range map[string]func(id string){
		"expired": func(string) { b.sql(`UPDATE login_links SET expires_at = now()`) },
		"revoked": func(id string) {
			resp, body := b.do(http.MethodDelete, "/v1/invitations/"+id, "operator", "", "")
			require.Equal(t, http.StatusNoContent, resp.StatusCode, "%s", body)
			resp, _ = b.do(http.MethodDelete, "/v1/invitations/"+id, "operator", "", "")
			require.Equal(t, http.StatusNotFound, resp.StatusCode)
		},
	} {
		id, code := b.invite("support", "")
		_, list := b.do(http.MethodGet, "/v1/invitations", "operator", "", "")
		require.Contains(t, string(list), id)
		require.NotContains(t, string(list), code)
		v, d := b.browser(), newDevice(t, b.origin())
		form := url.Values{"code": {code}, "name": {"Ann"}}
		form.Set("credential", d.create(v.post("/console/join/begin", form).body))
		end(id)
		p := v.post("/console/join", form)
		require.Equal(t, http.StatusUnauthorized, p.status, name)
		require.Contains(t, p.body, "the link was already used, was revoked or has expired", name)
		require.Equal(t, http.StatusGone, v.get("/console/join?code="+code).status, name)
		_, list = b.do(http.MethodGet, "/v1/invitations", "operator", "", "")
		require.NotContains(t, string(list), id, name)
	}
	require.Equal(t, http.StatusGone, b.browser().get("/console/join?code=made-up").status)
}

// TestNobodyInvitesToMoreThanTheyHave: neither to another access role nor to a larger place.
func TestNobodyInvitesToMoreThanTheyHave(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, func(b *consoleBundle) {})
	b.org("acme", "")
	b.org("other", "")
	_, code := b.invite("org_owner", "acme")
	v, d := b.browser(), newDevice(t, b.origin())
	require.Equal(t, http.StatusSeeOther, v.joins(d, code).status)
	form := func(role, org string) page {
		return v.post("/console/do/createInvitation", url.Values{"f.name": {"Bob"}, "f.access_role": {role}, "f.org_id": {org}})
	}
	v.csrf = csrfInput.FindStringSubmatch(v.get("/console/you").body)[1]
	require.Equal(t, http.StatusOK, form("developer", "acme").status)
	require.Equal(t, http.StatusForbidden, form("operator", "acme").status)
	require.Equal(t, http.StatusForbidden, form("developer", "").status)
	require.Equal(t, http.StatusUnprocessableEntity, form("developer", "other").status, "as if there were no such org")
	require.Equal(t, http.StatusUnprocessableEntity, form("no-such-role", "acme").status)
}

// TestFormsHaveNoFieldsOfOperators: a customer's form has no field that the API refuses to its sender.
func TestFormsHaveNoFieldsOfOperators(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.org("acme", "")
	fields := func(v *browser) map[string]bool {
		p := v.get("/console/do/createTenant")
		require.Equal(t, http.StatusOK, p.status, p.body)
		out := map[string]bool{}
		for _, m := range regexp.MustCompile(`name="f\.([a-z_]+)`).FindAllStringSubmatch(p.body, -1) {
			out[m[1]] = true
		}
		return out
	}
	_, code := b.invite("developer", "acme")
	v := b.browser()
	require.Equal(t, http.StatusSeeOther, v.joins(newDevice(t, b.origin()), code).status)
	customers, operators := fields(v), fields(b.login("operator"))
	require.Contains(t, customers, "slug")
	for _, name := range []string{"reserved_slug", "constraint", "stack", "policy"} {
		require.Contains(t, operators, name)
		require.NotContains(t, customers, name)
	}
}

// TestForeignAndRepeatedAnswersAreRefused: of another origin, of another browser, to another challenge, and sent twice.
func TestForeignAndRepeatedAnswersAreRefused(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	_, code := b.invite("support", "")
	evil := newDevice(t, "https://evil.example")
	p := b.browser().joins(evil, code)
	require.Equal(t, http.StatusUnauthorized, p.status)
	require.Contains(t, p.body, "the passkey was not accepted")
	d := newDevice(t, b.origin())
	require.Equal(t, http.StatusSeeOther, b.browser().joins(d, code).status, "a refused answer uses no link up")

	d.origin = "https://evil.example"
	require.Equal(t, http.StatusUnauthorized, b.browser().enters(d).status)
	d.origin = b.srv.URL
	require.Equal(t, http.StatusUnauthorized, b.browser().enters(d).status, "the address is another origin than localhost")
	d.origin = b.origin()

	v := b.browser()
	begun := v.post("/console/login/begin", url.Values{})
	cookie, _, _ := strings.Cut(begun.header.Get("Set-Cookie"), ";")
	d.count++
	answer := url.Values{"credential": {d.get(begun.body)}}
	require.Equal(t, http.StatusUnauthorized, b.browser().post("/console/login", answer).status, "of another browser")
	require.Equal(t, http.StatusSeeOther, v.post("/console/login", answer).status)
	p = b.browser().post("/console/login", answer, "Cookie", cookie)
	require.Equal(t, http.StatusUnauthorized, p.status, "twice")
	require.Contains(t, p.body, "this took too long, or was sent twice")

	// The challenge of a registration is none of a login.
	_, code = b.invite("support", "")
	v = b.browser()
	begun = v.post("/console/join/begin", url.Values{"code": {code}, "name": {"Bob"}})
	require.Equal(t, http.StatusUnauthorized, v.post("/console/login", url.Values{"credential": {d.get(begun.body)}}).status)

	// A counter that does not grow is a copy's.
	d.count -= 2
	p = b.browser().enters(d)
	require.Equal(t, http.StatusUnauthorized, p.status)
	require.Contains(t, p.body, "it may have been copied")

	d.count += 10
	b.sql(`UPDATE principals SET disabled_at = now() WHERE kind = 'user'`)
	require.Equal(t, http.StatusUnauthorized, b.browser().enters(d).status)
}

var passkeyRemoval = regexp.MustCompile(`/console/you/passkeys/(passkey-\w+)/remove`)

// TestPasskeysAreAddedAndRemoved by their user, except the last one. Whoever has only a token adds none.
func TestPasskeysAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	_, code := b.invite("support", "")
	first, second := newDevice(t, b.origin()), newDevice(t, b.origin())
	v := b.browser()
	require.Equal(t, http.StatusSeeOther, v.joins(first, code).status)
	you := v.get("/console/you")
	v.csrf = csrfInput.FindStringSubmatch(you.body)[1]
	require.Empty(t, passkeyRemoval.FindString(you.body))
	var only string
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT passkey_id FROM passkeys`).Scan(&only))
	p := v.post("/console/you/passkeys/"+only+"/remove", url.Values{})
	require.Contains(t, p.body, "the last passkey can&#39;t be removed")

	add := func(v *browser, d *device) page {
		begun := v.post("/console/you/passkeys/begin", url.Values{})
		if begun.status != http.StatusOK {
			return begun
		}
		return v.post("/console/you/passkeys", url.Values{"name": {"phone"}, "credential": {d.create(begun.body)}})
	}
	require.Equal(t, http.StatusSeeOther, add(v, second).status)
	require.Equal(t, http.StatusSeeOther, b.browser().enters(second).status)
	require.Equal(t, http.StatusSeeOther, v.post("/console/you/passkeys/"+only+"/remove", url.Values{}).status)
	require.Equal(t, http.StatusUnauthorized, b.browser().enters(first).status)

	b.sql(`UPDATE credentials SET fresh_at = now() - interval '16 minutes'`)
	p = add(v, newDevice(t, b.origin()))
	require.Equal(t, http.StatusForbidden, p.status)
	require.Contains(t, p.body, "too long ago")
	p = add(b.login("operator"), newDevice(t, b.origin()))
	require.Equal(t, http.StatusForbidden, p.status)
	require.Contains(t, p.body, "this login may not register passkeys")

	// A login ends when its user ends it.
	id := regexp.MustCompile(`/console/you/logins/(login-\w+)/end`).FindStringSubmatch(v.get("/console/you").body)
	require.Len(t, id, 2)
	require.Equal(t, http.StatusSeeOther, v.post("/console/you/logins/"+id[1]+"/end", url.Values{}).status)
	require.NotContains(t, v.get("/console/you").body, id[1])
}

// TestOldLoginsDestroyNothing until their user proves again who they are. Nothing of the form is lost.
func TestOldLoginsDestroyNothing(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.fleet("app-1", "db-1", "redis-1")
	_, code := b.invite("operator", "")
	d := newDevice(t, b.origin())
	person := b.browser()
	require.Equal(t, http.StatusSeeOther, person.joins(d, code).status)
	person.csrf = csrfInput.FindStringSubmatch(person.get("/console/you").body)[1]
	token, other := b.token("bob", "operator"), b.token("eve", "operator")
	program := b.login(token)
	b.sql(`UPDATE credentials SET fresh_at = now() - interval '16 minutes' WHERE kind = 'login'`)
	form := func(more ...string) url.Values {
		f := url.Values{"server_id": {"app-1"}, "key": {"kept-key"}, "back": {"/console/servers"}}
		for i := 0; i < len(more); i += 2 {
			f.Set(more[i], more[i+1])
		}
		return f
	}
	for _, v := range []*browser{person, program} {
		p := v.post("/console/do/deleteServer", form())
		require.Equal(t, http.StatusForbidden, p.status, p.body)
		require.Contains(t, p.body, "login_not_fresh")
		require.Contains(t, p.body, "Prove again who you are")
		require.Contains(t, p.body, `value="app-1"`)
		require.Equal(t, http.StatusOK, v.post("/console/do/deleteServer", form("dry", "1")).status, "a dry run destroys nothing")
	}
	require.Equal(t, http.StatusForbidden, program.post("/console/do/deleteServer", form("again_token", other)).status, "of somebody else")
	p := program.post("/console/do/deleteServer", form("again_token", token))
	require.NotEqual(t, http.StatusForbidden, p.status)
	require.NotContains(t, p.body, "login_not_fresh")

	begun := person.post("/console/again/begin", url.Values{})
	require.Equal(t, http.StatusOK, begun.status, begun.body)
	d.count++
	p = person.post("/console/do/deleteServer", form("again_credential", d.get(begun.body)))
	require.NotEqual(t, http.StatusForbidden, p.status)
	require.NotContains(t, p.body, "login_not_fresh")
	p = person.post("/console/do/deleteServer", form("again_credential", d.get(begun.body)))
	require.Equal(t, http.StatusForbidden, p.status, "the challenge was answered")
	require.Contains(t, p.body, "sent twice")
}

// TestBreakGlassEndsWithItsLink: it logs in once, and nothing of it is left after 15 minutes.
func TestBreakGlassEndsWithItsLink(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	code, err := access.NewSecret(access.Link, rand.Reader)
	require.NoError(t, err)
	until, err := b.store.BreakGlass(t.Context(), store.LoginLink{LinkID: "link-1", Name: "bob", CreatedBy: "bob"}, access.SecretHash(code), 15*time.Minute, [2]string{"user-1", "grant-1"})
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(15*time.Minute), until, time.Minute)
	_, list := b.do(http.MethodGet, "/v1/attention?kind=break_glass", "operator", "", "")
	require.Contains(t, string(list), `"critical":1`)
	require.Equal(t, http.StatusGone, b.browser().get("/console/join?code="+code).status, "it registers no passkey")
	v := b.browser()
	require.Equal(t, http.StatusSeeOther, v.post("/console/login", url.Values{"code": {code}}).status)
	require.Equal(t, http.StatusUnauthorized, b.browser().post("/console/login", url.Values{"code": {code}}).status)
	p := v.get("/console/you")
	require.Equal(t, http.StatusOK, p.status)
	require.NotContains(t, p.body, "Register it")
	var ends time.Time
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT expires_at FROM credentials WHERE kind = 'login'`).Scan(&ends))
	require.True(t, until.Equal(ends))
	v.csrf = csrfInput.FindStringSubmatch(p.body)[1]
	require.Equal(t, http.StatusSeeOther, v.post("/console/logout", url.Values{}).status)
	_, list = b.do(http.MethodGet, "/v1/attention?kind=break_glass", "operator", "", "")
	require.Contains(t, string(list), `"critical":0`)
}

// TestPasskeysInABrowser: Chromium registers a passkey from an invitation, logs in with it, and proves with it again who
// its user is.
func TestPasskeysInABrowser(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, nil)
	b.fleet("app-1", "db-1", "redis-1")
	_, code := b.invite("operator", "")
	program, end, err := chromium.Start(context.Background(), need.Program(t, "chromium"), filepath.Join(t.TempDir(), "chromium"))
	require.NoError(t, err)
	t.Cleanup(end)
	tab, endTab, err := program.NewTab(b.srv.URL) // an address: pages move to localhost by themselves
	require.NoError(t, err)
	t.Cleanup(endTab)
	require.NoError(t, tab.Authenticator())
	status, err := tab.Open("/console/join?code=" + code)
	require.NoError(t, err)
	require.Equal(t, int64(http.StatusOK), status)
	require.NoError(t, tab.ClickOn("Register a passkey"))
	require.NoError(t, tab.Wait(`location.hostname === "localhost" && document.readyState === "complete"`))
	require.NoError(t, tab.Fill("#name", "Ann"))
	require.NoError(t, tab.ClickOn("Register a passkey"))
	require.NoError(t, tab.Wait(`document.querySelector("header.top") !== null`))
	_, err = tab.Open(b.origin() + "/console/join?code=" + code)
	require.NoError(t, err)
	text, err := tab.Text("main")
	require.NoError(t, err)
	require.Contains(t, text, "was already used")

	// A second registration on the same device is refused by the browser.
	_, err = tab.Open(b.origin() + "/console/you")
	require.NoError(t, err)
	require.NoError(t, tab.ClickOn("Register it"))
	require.NoError(t, tab.Wait(`document.querySelector("[data-wrong]").textContent === "This device has a passkey for you already."`))

	require.NoError(t, tab.ClickOn("Log out"))
	require.NoError(t, tab.ClickOn("Log in with a passkey"))
	require.NoError(t, tab.Wait(`document.querySelector("header.top") !== null`))
	text, err = tab.Text("header.top .who a")
	require.NoError(t, err)
	require.Contains(t, text, "Ann")

	b.sql(`UPDATE credentials SET fresh_at = now() - interval '16 minutes' WHERE kind = 'login'`)
	_, err = tab.Open(b.origin() + "/console/do/deleteServer?server_id=app-1")
	require.NoError(t, err)
	require.NoError(t, tab.Click("form.ask button.main"))
	require.NoError(t, tab.ClickOn("Use your passkey and continue"))
	require.NoError(t, tab.Wait(`document.querySelector(".verdict, [name=accepted]") !== null`))
	require.Empty(t, tab.Problems())
}
