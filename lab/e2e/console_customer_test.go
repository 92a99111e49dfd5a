package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/browser"
	"github.com/prego/prego/lab/need"
)

// onHost runs a command of prego as who is at the control plane's host, and returns the first line that it prints.
func (c *cell) onHost(args ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(c.bins, "prego"), args...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir,
		"PREGO_ENV=" + c.env, "DATABASE_URL=" + c.url, "PREGO_API_PUBLIC_URL=" + c.vars["PREGO_API_PUBLIC_URL"],
	}
	out, err := cmd.Output()
	if failed, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output wraps nothing
		c.t.Logf("%s", failed.Stderr)
	}
	require.NoError(c.t, err, "prego %s", strings.Join(args, " "))
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// device is a person with a browser of their own, which keeps passkeys.
func (c *console) device() *person {
	c.t.Helper()
	tab, end, err := c.browser.NewTab(fmt.Sprintf("http://localhost:%d", c.ports["api"]))
	require.NoError(c.t, err)
	c.t.Cleanup(end)
	require.NoError(c.t, tab.Authenticator())
	require.NoError(c.t, tab.Look(1280, false))
	return &person{t: c.t, tab: tab}
}

// joins opens a link to join on a new device, and registers a passkey.
func (c *console) joins(link string) *person {
	c.t.Helper()
	p := c.device()
	p.at(link, http.StatusOK)
	p.sends("Register a passkey")
	p.wait(`document.querySelector("header.top") !== null`)
	return p
}

// at opens a page by its address.
func (p *person) at(path string, status int) {
	p.t.Helper()
	got, err := p.tab.Open(path)
	require.NoError(p.t, err)
	require.Equal(p.t, int64(status), got, path)
	p.arrived()
}

// once is what a page shows only once.
func (p *person) once(what string) string {
	p.t.Helper()
	p.sees("It is shown only now")
	text, err := browser.Ask[string](p.tab, fmt.Sprintf(`document.getElementById("once-%s").value`, what))
	require.NoError(p.t, err)
	return text
}

// menu are the pages that a person is offered.
func (p *person) menu() []string {
	p.t.Helper()
	text, err := browser.Ask[string](p.tab, `[...document.querySelectorAll("nav.side a")].map((a) => a.firstChild.textContent).join("\n")`)
	require.NoError(p.t, err)
	return strings.Split(text, "\n")
}

// TestCustomersAreLetIn: from the first operator, by a link from the host, to a customer who manages their own org by what
// is visible in the console, and to break-glass.
func TestCustomersAreLetIn(t *testing.T) {
	t.Parallel()
	c := newConsoleCell(t, map[string]string{"PREGO_API_RATE_PER_SECOND": "5000"})
	c.org("other", "")
	foreign := c.environment("other", "free", "shop")

	ann := c.joins(c.onHost("access", "link", "--name", "Ann"))
	ann.opens("Orgs and quotas")
	ann.opens("New org")
	ann.fills("org", "acme")
	ann.sends("Create an org, or change its parent or tier")
	ann.opens("Show it")
	ann.sees("Org acme")
	invite := func(p *person, name, role string) string {
		t.Helper()
		p.opens("Invite")
		p.fills("access role", role)
		p.fills("name", name)
		p.sends("Create an invitation")
		return p.once("link")
	}
	olga := c.joins(invite(ann, "Olga", "org_owner"))
	olga.sees("Org acme")
	require.Subset(t, olga.menu(), []string{"Tenants", "Service accounts", "Invitations", "Costs", "Audit"})
	for _, page := range []string{"Now", "Servers", "Fleets", "Users", "Ledger"} {
		require.NotContains(t, olga.menu(), page)
	}
	for _, path := range []string{"/orgs/other", "/orgs/other?tab=quotas", "/envs/" + foreign, "/tenants/t-nope"} {
		olga.at("/console"+path, http.StatusNotFound)
	}
	olga.at("/console/orgs", http.StatusOK)
	olga.sees("acme")
	text, err := olga.tab.Text("main")
	require.NoError(t, err)
	require.NotContains(t, text, "other")

	olga.opens("Service accounts")
	olga.opens("New service account")
	olga.fills("name", "robot")
	olga.sends("Create a service account")
	olga.opens("Show it")
	olga.opens("New grant")
	olga.fills("access role", "developer")
	olga.sends("Give an access role to a user, group or service account")
	olga.opens("Back")
	olga.sees("developer")
	olga.opens("New token")
	olga.fills("expires in", "90d")
	olga.fills("name", "ci")
	olga.sends("Create a token of a service account")
	secret := olga.once("secret")
	require.NoError(t, olga.tab.ClickOn("Copy"))
	olga.wait(`document.querySelector("[data-copy]").textContent !== "Copy"`)
	require.Equal(t, http.StatusOK, c.as(secret, "/v1/orgs/acme"))
	require.Equal(t, http.StatusNotFound, c.as(secret, "/v1/orgs/other"))

	olga.at("/console", http.StatusOK)
	dan := c.joins(invite(olga, "Dan", "developer"))
	dan.sees("Org acme")
	require.Contains(t, dan.menu(), "Tenants")
	require.NotContains(t, dan.menu(), "Service accounts")

	// A lost device: another one by a link from the host. Its login ends from the first one.
	second := c.joins(c.onHost("access", "link", "--user", "Olga"))
	second.sees("Org acme")
	require.Equal(t, 2, c.number(`SELECT count(*) FROM passkeys k JOIN principals p USING (principal_id) WHERE p.name = 'Olga'`))
	olga.at("/console/you", http.StatusOK)
	olga.sends("End")
	olga.sees("Your logins and passkeys")
	second.at("/console/you", http.StatusOK)
	second.wait(`location.pathname === "/console/login"`)

	olga.opens("Tokens")
	olga.chooses("ci")
	olga.opens("Revoke")
	olga.sends("End a token")
	olga.sees("Done")
	require.Equal(t, http.StatusUnauthorized, c.as(secret, "/v1/orgs/acme"))

	olga.at("/console", http.StatusOK)
	olga.opens("Quotas")
	olga.sees("max instances", "limit")
	olga.opens("History")
	olga.sees("org.create")
	olga.opens("Costs")
	olga.sees("Nothing was billed in this month")
	olga.opens("Audit")
	olga.sees("createToken", "revokeToken", "Dan")
	for _, p := range []*person{ann, olga, dan, second} {
		require.Empty(t, p.tab.Problems())
	}

	// Without issuer and passkey.
	glass := c.device()
	glass.at(c.onHost("access", "break-glass"), http.StatusOK)
	glass.sends("Log in")
	glass.sees("break-glass", "critical")
	require.Equal(t, "all break-glass links and logins have ended", c.onHost("access", "break-glass", "--end"))
	glass.at("/console/servers", http.StatusOK)
	glass.wait(`location.pathname === "/console/login"`)
	status, body := c.request(http.MethodGet, "/v1/attention?kind=break_glass", nil)
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, decoded(t, body)["items"])
}

// as requests a page of the API with a token, and returns the status.
func (c *cell) as(token, path string) int {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://"+c.addr("api")+path, http.NoBody)
	require.NoError(c.t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := need.HTTP.Do(r)
	require.NoError(c.t, err)
	require.NoError(c.t, resp.Body.Close())
	return resp.StatusCode
}
