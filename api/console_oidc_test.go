package api_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego/api"
	"github.com/prego/prego/cli"
	"github.com/prego/prego/console"
	"github.com/prego/prego/internal/oidc"
	chrome "github.com/prego/prego/lab/browser"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/oidctest"
)

// installation is an API with a console on one address, and a real issuer.
type installation struct {
	*bundle
	issuer string
	people *throughBrowsers
}

// throughBrowsers is the issuer's client; a browser's user may change the address that it is sent to.
type throughBrowsers struct {
	*oidc.People
	changed atomic.Bool
}

func (p *throughBrowsers) Begin(ctx context.Context, secret string, again bool) (string, error) {
	return p.People.Begin(ctx, secret, again && !p.changed.Load())
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	// By a name, so that the issuer, whose host is an address, is another site.
	at := strings.Replace("http://"+l.Addr().String(), "127.0.0.1", "localhost", 1)
	i := &installation{issuer: oidctest.Start(t, at+"/console/login/oidc/callback")}
	people := &throughBrowsers{People: oidc.NewPeople(oidc.Config{Issuer: i.issuer, ClientID: "prego", RedirectURL: at + "/console/login/oidc/callback", GroupsClaim: "groups"})}
	i.people = people
	i.bundle = setup(t, func(d *api.Deps) { live(d); d.People = people })
	i.api.Mount("/console", console.New(console.Deps{
		API: i.api.Handler(), Allow: i.api.Allow, Refusal: i.api.Refusal, Auth: api.Authenticate(i.store), People: people, Store: i.store, Feed: i.api.Subscribe, Watch: i.api.Watch, Now: time.Now, Log: zap.NewNop(),
	}).Handler())
	i.srv.Close()
	i.srv = httptest.NewUnstartedServer(i.api.Handler())
	_ = i.srv.Listener.Close()
	i.srv.Listener = l
	i.srv.Start()
	i.srv.URL = at
	t.Cleanup(i.srv.Close)
	i.sql(`SET LOCAL session_replication_role = replica;
		INSERT INTO principals (principal_id, kind, issuer, subject, name, created_by) VALUES ('g-ops', 'group', '` + i.issuer + `', 'ops', 'ops', 'x');
		INSERT INTO access_grants (grant_id, principal_id, access_role, created_by) VALUES ('g', 'g-ops', 'support', 'x')`)
	return i
}

// atIssuer logs in on the issuer's own pages, and agrees to what prego learns.
func (i *installation) atIssuer(tab *chrome.Tab, name string) {
	i.t.Helper()
	require.NoError(i.t, tab.Wait(`location.origin === "`+i.issuer+`" && document.querySelector("input[name=login]") !== null`))
	require.NoError(i.t, tab.Fill("input[name=login]", name))
	require.NoError(i.t, tab.Fill("input[name=password]", "any"))
	require.NoError(i.t, tab.Click("button[type=submit]"))
	require.NoError(i.t, tab.Wait(`document.body?.textContent.includes("Authorize") === true && document.querySelector("input[name=login]") === null`))
	require.NoError(i.t, tab.Click("button[type=submit]"))
}

func (i *installation) tab() *chrome.Tab {
	i.t.Helper()
	program := need.Program(i.t, "chromium")
	b, end, err := chrome.Start(context.Background(), program, filepath.Join(i.t.TempDir(), "chromium"))
	require.NoError(i.t, err)
	i.t.Cleanup(end)
	tab, end, err := b.NewTab(i.srv.URL)
	require.NoError(i.t, err)
	i.t.Cleanup(end)
	return tab
}

// TestPeopleLogInToTheConsoleAtARealIssuer in Chromium, on the issuer's own pages.
func TestPeopleLogInToTheConsoleAtARealIssuer(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	for name, want := range map[string]string{"carol": "/console/servers", "dave": ""} {
		tab := i.tab()
		_, err := tab.Open("/console/servers")
		require.NoError(t, err)
		require.NoError(t, tab.ClickOn("Log in with "+i.issuer))
		i.atIssuer(tab, name)
		if want != "" {
			require.NoError(t, tab.Wait(`location.href === "`+i.srv.URL+want+`" && document.querySelector("header.top") !== null`))
			text, err := tab.Text("header.top")
			require.NoError(t, err)
			require.Contains(t, text, "carol@example.com")
			continue
		}
		require.NoError(t, tab.Wait(`document.querySelector("h1")?.textContent === "No access yet"`))
		text, err := tab.Text("main")
		require.NoError(t, err)
		var id string
		require.NoError(t, i.pool.QueryRow(t.Context(), `SELECT principal_id FROM principals WHERE subject = 'dave'`).Scan(&id))
		require.Contains(t, text, id)
		require.Contains(t, text, "dave@example.com")
	}
	require.Equal(t, 2, i.count(`SELECT count(*) FROM audit_entries a JOIN principals p ON p.principal_id = a.actor WHERE a.kind = 'credential' AND a.verb = 'create' AND p.kind = 'user'`))
}

// TestPeopleProveAgainAtARealIssuer: what may destroy asks for a new proof of who they are, at the issuer although they are
// logged in there, and leads back to the form with all that was typed. Another person's proof is none.
func TestPeopleProveAgainAtARealIssuer(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	i.fleet("app-1")
	i.sql(`UPDATE access_grants SET access_role = 'operator' WHERE grant_id = 'g'`)
	tab := i.tab()
	_, err := tab.Open("/console/servers")
	require.NoError(t, err)
	require.NoError(t, tab.ClickOn("Log in with "+i.issuer))
	i.atIssuer(tab, "carol")
	require.NoError(t, tab.Wait(`document.querySelector("header.top") !== null`))
	i.sql(`UPDATE credentials SET fresh_at = now() - interval '16 minutes' WHERE kind = 'login'`)
	old := func() int {
		return i.count(`SELECT count(*) FROM credentials WHERE kind = 'login' AND fresh_at < now() - interval '15 minutes'`)
	}
	stale := func() {
		t.Helper()
		_, err := tab.Open("/console/do/loseServer?server_id=app-1")
		require.NoError(t, err)
		require.NoError(t, tab.Fill("#f-reason", "the host burned down"))
		require.NoError(t, tab.Click("form.ask button.main"))
		require.NoError(t, tab.Wait(`document.querySelector(".refused:not([hidden])")?.innerText.includes("login_not_fresh") === true`))
	}
	again := func(name string) {
		t.Helper()
		require.NoError(t, tab.ClickOn("Log in with "+i.issuer+" and come back"))
		require.NoError(t, tab.Wait(`location.origin === "`+i.issuer+`" && document.querySelector("input[name=login]") !== null`))
		require.NoError(t, tab.Fill("input[name=login]", name))
		require.NoError(t, tab.Fill("input[name=password]", "any"))
		require.NoError(t, tab.Click("button[type=submit]"))
	}
	key := func() string {
		t.Helper()
		k, err := chrome.Ask[string](tab, `document.querySelector("input[name=key]").value`)
		require.NoError(t, err)
		return k
	}
	stale()
	before := key()
	again("carol")
	require.NoError(t, tab.Wait(`document.querySelector(".verdict.good")?.innerText.includes("You proved who you are") === true`))
	require.Equal(t, before, key(), "it is the same request")
	typed := `document.querySelector("#p-server_id")?.value + ": " + document.querySelector("#f-reason")?.value`
	kept, err := chrome.Ask[string](tab, typed)
	require.NoError(t, err)
	require.Equal(t, "app-1: the host burned down", kept)
	require.Zero(t, old())
	require.NoError(t, tab.Click("form.ask button.main"))
	require.NoError(t, tab.Wait(`document.querySelector(".verdict, .refused:not([hidden])") !== null && !/You proved|login_not_fresh/.test(document.body.innerText)`))
	require.Empty(t, tab.Problems())
	require.Equal(t, 1, i.count(`SELECT count(*) FROM audit_entries WHERE operation = 'consoleAgain'`))

	i.sql(`UPDATE credentials SET fresh_at = now() - interval '16 minutes' WHERE kind = 'login'`)
	stale()
	i.people.changed.Store(true) // who is logged in at the issuer is not asked
	require.NoError(t, tab.ClickOn("Log in with "+i.issuer+" and come back"))
	require.NoError(t, tab.Wait(`document.querySelector(".refused:not([hidden])")?.innerText.includes("does not state when you proved who you are") === true`))
	require.Equal(t, 1, old())
	require.NoError(t, tab.ClickOn("Back to the form"))
	require.NoError(t, tab.Wait(typed+` === "app-1: the host burned down"`), "nothing typed is lost")
	i.people.changed.Store(false)
	stale()
	again("mallory")
	require.NoError(t, tab.Wait(`document.body?.textContent.includes("Authorize") === true && document.querySelector("input[name=login]") === null`))
	require.NoError(t, tab.Click("button[type=submit]"))
	require.NoError(t, tab.Wait(`document.querySelector(".refused:not([hidden])")?.innerText.includes("you logged in at the issuer as mallory@example.com, and here as carol@example.com") === true`))
	require.Equal(t, 1, old())
	require.NoError(t, tab.ClickOn("Back to the form"))
	require.NoError(t, tab.Wait(typed+` === "app-1: the host burned down"`), "nothing typed is lost")
}

// TestPeopleLogInByDevice: prego login prints a code, which is confirmed in a browser; prego logout ends the login.
func TestPeopleLogInByDevice(t *testing.T) {
	t.Parallel()
	i := newInstallation(t)
	home := t.TempDir()
	prego := func(errs io.Writer, words ...string) (string, error) {
		env := map[string]string{"PREGO_API_URL": i.srv.URL, "XDG_CONFIG_HOME": home}
		root := &cobra.Command{Use: "prego", SilenceUsage: true, SilenceErrors: true}
		cli.New(func(name string) string { return env[name] }).AddTo(root)
		var out bytes.Buffer
		root.SetArgs(words)
		root.SetOut(&out)
		root.SetErr(errs)
		root.SetIn(strings.NewReader(""))
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := prego(w, "login", "--device")
		_ = w.Close()
		done <- err
	}()
	said := make([]byte, 500)
	n, err := r.Read(said)
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, r) }()
	at := regexp.MustCompile(`Open (\S+) and confirm the code (\S+)`).FindStringSubmatch(string(said[:n]))
	require.NotNil(t, at, "%s", said[:n])
	u, err := url.Parse(at[1])
	require.NoError(t, err)
	require.Equal(t, at[2], u.Query().Get("user_code"))

	tab := i.tab()
	require.NoError(t, tab.Go(at[1]))
	require.NoError(t, tab.Wait(`document.querySelector("button[type=submit][autofocus]") !== null || document.body?.textContent.includes("`+at[2]+`") === true`))
	require.NoError(t, tab.Click("button[type=submit]"))
	i.atIssuer(tab, "carol")
	require.NoError(t, <-done)

	file := filepath.Join(home, "prego", "config.yaml")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	secret := regexp.MustCompile(`prego_login_\w+`).FindString(string(text))
	out, err := prego(io.Discard, "whoami")
	require.NoError(t, err)
	require.Contains(t, out, "carol@example.com")
	_, err = prego(io.Discard, "server", "list")
	require.NoError(t, err, "a group's grant")
	_, err = prego(io.Discard, "logout")
	require.NoError(t, err)
	resp, _ := i.send("GET", "/v1/whoami", secret, "", "")
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode, "the login has ended")
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, string(text), "prego_login_")
}

// TestIssuerThatIsAwayIsReported: the login page still takes tokens, and a login that nobody began is none.
func TestIssuerThatIsAwayIsReported(t *testing.T) {
	t.Parallel()
	b := setupConsole(t, func(b *consoleBundle) {
		b.deps.People = oidc.NewPeople(oidc.Config{Issuer: "http://127.0.0.1:1", ClientID: "prego", RedirectURL: "http://127.0.0.1:2/cb"})
	})
	v := b.browser()
	p := v.get("/console/login/oidc")
	require.Equal(t, http.StatusServiceUnavailable, p.status)
	require.Contains(t, p.body, "the issuer http://127.0.0.1:1 can&#39;t be reached right now. Tokens and links still work.")
	require.Contains(t, p.body, `name="token"`)
	p = v.get("/console/login/oidc/callback?code=x&state=y")
	require.Equal(t, http.StatusUnauthorized, p.status)
	require.Contains(t, p.body, "was not started in this browser")
	b.login("operator")
}
