package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/browser"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/server"
)

// decoded is a JSON object.
func decoded(t testing.TB, b []byte) map[string]any {
	t.Helper()
	var out map[string]any
	require.NoError(t, json.Unmarshal(b, &out), "%s", b)
	return out
}

// smuggled is hostile text in places that people read: names, reasons, hosts' reports.
const smuggled = `<img src=x onerror=alert(1)><script>alert(2)</script>"'><b>bold</b>`

// console is a cell with something to look at, and a browser.
type console struct {
	*cell
	browser *browser.Browser
	axe     string
	app     string // an app server
	tenant  string // waits for capacity
	group   string // can't be scheduled
}

// newConsoleCell is a cell and a browser.
func newConsoleCell(t *testing.T, vars map[string]string) *console {
	t.Helper()
	program := need.Program(t, "chromium")
	c := &console{cell: newCell(t, options{vars: vars})}
	b, end, err := browser.Start(context.Background(), program, filepath.Join(c.dir, "chromium"))
	require.NoError(t, err)
	t.Cleanup(end)
	c.browser = b
	return c
}

func newConsole(t *testing.T) *console {
	t.Helper()
	axe, err := os.ReadFile(filepath.Join(repo, ".prego", "bin", "axe.min.js"))
	if err != nil {
		need.Missing(t, "axe-core is not here: make axe")
	}
	c := newConsoleCell(t, map[string]string{"PREGO_API_RATE_PER_SECOND": "5000"})
	c.axe = string(axe)
	c.create("app", prego.RoleApp, server.Spec{})
	c.app = c.id("app")
	ask := func(method, path string, body any) map[string]any {
		status, answer := c.request(method, path, body)
		require.Less(t, status, 300, "%s %s: %s", method, path, answer)
		return decoded(t, answer)
	}
	ask(http.MethodPut, "/v1/orgs/acme", map[string]any{"tier": "paid"})
	ask(http.MethodPost, "/v1/policies", map[string]any{"policy_id": "spread", "type": "region_placement", "spec": map[string]any{"regions": []any{map[string]any{"name": "eu", "weight": 100, "cap": -1}}}})
	ask(http.MethodPost, "/v1/fleets", map[string]any{"fleet_id": "web", "role": "app", "region": "eu", "infra_provider": "hetzner", "max_size": 5})
	ask(http.MethodPost, "/v1/placement-pools", map[string]any{"name": "fast", "require": []string{"ssd"}})
	ask(http.MethodPut, "/v1/orgs/acme/quotas/max_instances", map[string]any{"limit": 7, "reason": smuggled})
	app := ask(http.MethodPost, "/v1/apps", map[string]any{"org_id": "acme", "name": "shop"})["app_id"].(string)
	env := ask(http.MethodPost, "/v1/apps/"+app+"/envs", map[string]any{"name": "live", "region": "eu"})["env_id"].(string)
	g := ask(http.MethodPost, "/v1/envs/"+env+"/groups", map[string]any{"name": "front", "spec": map[string]any{"image": "docker.io/library/nginx:1.29", "memory_limit_bytes": 64 << 20, "cpu_request": 0.1}, "replicas": 1})
	c.group = g["group_id"].(string)
	// Nobody can have it: it waits.
	c.tenant = ask(http.MethodPost, "/v1/tenants", map[string]any{"slug": "waits-" + c.env, "org_id": "acme", "region": "sg", "plan": "starter", "policy": "shared", "constraint": map[string]any{"require": []string{"nowhere"}}})["tenant_id"].(string)
	c.awaitStatus("app", server.Active)
	ask(http.MethodPost, "/v1/servers/"+c.app+"/cordon", map[string]any{"reason": smuggled})
	_, err = c.pool.Exec(t.Context(), `UPDATE tenants SET status_message = $2 WHERE tenant_id = $1`, c.tenant, smuggled)
	require.NoError(t, err)
	_, err = c.pool.Exec(t.Context(), `INSERT INTO events (kind, id, step, attempt, status, message, actor) VALUES ('server', $1, 'boot_stage', 1, 'active', $2, 'system')`, c.app, smuggled)
	require.NoError(t, err)
	// A day of its host, with a silence of two hours.
	_, err = c.pool.Exec(t.Context(), `
INSERT INTO server_samples (at, server_id, load1, memory_pct, disk_pct, cpu_pct)
SELECT date_bin('5 minutes', now(), 'epoch') - make_interval(mins => 5 * i), $1, i % 7 / 2.0, 40 + i % 9, 12, i % 50 FROM generate_series(0, 280) i WHERE i NOT BETWEEN 100 AND 123 ON CONFLICT DO NOTHING`, c.app)
	require.NoError(t, err)
	return c
}

func (c *console) tab(token string) *browser.Tab {
	c.t.Helper()
	tab, end, err := c.browser.NewTab("http://" + c.addr("api"))
	require.NoError(c.t, err)
	c.t.Cleanup(end)
	if token != "" {
		require.NoError(c.t, tab.Login(token))
	}
	return tab
}

// pages are all pages: the ones without parameters, and one of each existing kind of object.
func (c *console) pages() []string {
	out := []string{
		"", "/map", "/map/packing", "/queue", "/tenants", "/decisions", "/orgs", "/domains", "/certificates", "/backup-policies", "/servers", "/fleets", "/policies", "/warm-pools", "/site-pools", "/site-pool-policies", "/placement-pools", "/scaling", "/releases",
		"/agent-releases", "/images", "/patch-waves", "/rebalances", "/apps", "/envs", "/groups", "/instances", "/routes", "/volumes", "/addresses", "/registries", "/ledger", "/costs?by=server", "/audit", "/backups", "/search?q=acme", "/what-if", "/what-if?f.request.region=eu&f.request.plan=starter&f.request.org_id=acme&f.request.tenant_id=another&f.change.region=us",
		"/servers/" + c.app + "?tab=host", "/servers/" + c.app + "?tab=history", "/tenants/" + c.tenant + "?tab=place",
		"/tenants/" + c.tenant + "?tab=details", "/orgs/acme?tab=quotas",
		"/servers/" + c.app, "/servers/" + c.app + "/commands", "/servers/" + c.app + "/containers", "/servers/" + c.app + "/logs/backend", "/tenants/" + c.tenant, "/tenants/" + c.tenant + "/backups", "/groups/" + c.group, "/groups/" + c.group + "/instances", "/orgs/acme", "/orgs/acme/events", "/fleets/web", "/fleets/web/actions", "/policies/spread", "/placement-pools/fast",
		"/do/createServer", "/do/drainServer?server_id=" + c.app, "/do/deleteServer?server_id=" + c.app, "/do/setOrgQuota?org_id=acme&dimension=max_instances", "/do/createFleetAction?fleet_id=web", "/do/putPolicy?policy_id=spread",
		"/servers?sort=-created_at&status=active&region=eu",
		"/you", "/login", "/invitations", "/access-roles", "/grants", "/service-accounts", "/tokens", "/users", "/logins", "/orgs/acme?tab=access",
		"/do/createInvitation", "/do/createServiceAccount", "/do/createGrant", "/do/narrowToken",
	}
	status, body := c.request(http.MethodPost, "/v1/invitations", map[string]any{"name": smuggled, "access_role": "developer", "org_id": "acme"})
	require.Equal(c.t, http.StatusCreated, status, "%s", body)
	out = append(out, strings.TrimPrefix(decoded(c.t, body)["path"].(string), "/console"))
	status, body = c.request(http.MethodPost, "/v1/service-accounts", map[string]any{"name": "robot", "org_id": "acme"})
	require.Equal(c.t, http.StatusCreated, status, "%s", body)
	account := decoded(c.t, body)["principal_id"].(string)
	status, body = c.request(http.MethodPost, "/v1/service-accounts/"+account+"/tokens", map[string]any{"name": "ci", "expires_in_seconds": 600})
	require.Equal(c.t, http.StatusCreated, status, "%s", body)
	out = append(out, "/service-accounts/"+account, "/tokens/"+decoded(c.t, body)["token_id"].(string), "/do/createToken?account_id="+account)
	// Of automatically created objects, the newest.
	for _, of := range []struct{ list, items, id, page string }{{"/v1/decisions", "decisions", "id", "/decisions/"}, {"/v1/audit", "entries", "entry_id", "/audit/"}} {
		status, body := c.request(http.MethodGet, of.list+"?limit=1", nil)
		require.Equal(c.t, http.StatusOK, status, "%s", body)
		for _, e := range decoded(c.t, body)[of.items].([]any) {
			out = append(out, of.page+fmt.Sprint(e.(map[string]any)[of.id]))
			if of.items == "decisions" {
				out = append(out, out[len(out)-1]+"/replay")
			}
		}
	}
	return out
}

// TestConsole looks at each page of the console with Chromium, as an operator and as a viewer, and uses it.
func TestConsole(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	tab := c.tab("")
	_, err := tab.Open("/console/servers?region=eu")
	require.NoError(t, err)
	require.NoError(t, tab.Fill("#token", "not a token"))
	require.NoError(t, tab.Click("form button.main"))
	require.NoError(t, tab.Wait(`document.querySelector(".refused:not([hidden])") !== null`))
	require.NoError(t, tab.Fill("#token", c.operator))
	require.NoError(t, tab.Click("form button.main"))
	require.NoError(t, tab.Wait(`location.pathname.startsWith("/console") && document.querySelector("header.top") !== null`))

	// Chromium takes most of the time; the console's tests render each page.
	t.Run("pages", func(t *testing.T) {
		for i, p := range deep.Some(t, 20, c.pages()) {
			require.NoError(t, tab.Look(1280, i%2 == 1))
			status, err := tab.Open("/console" + p)
			require.NoError(t, err)
			require.Equal(t, int64(http.StatusOK), status, p)
			require.Empty(t, tab.Problems(), p)
			violations, err := tab.Accessibility(c.axe)
			require.NoError(t, err)
			for _, v := range violations {
				t.Errorf("%s: %s", p, v)
			}
			bytes, err := browser.Ask[float64](tab, `performance.getEntriesByType("navigation")[0].decodedBodySize`)
			require.NoError(t, err)
			require.Less(t, int(bytes), 100<<10, "%s is too large", p)
			for _, width := range []int64{360, 2560} {
				require.NoError(t, tab.Look(width, false))
				wide, err := tab.Overflows()
				require.NoError(t, err)
				require.False(t, wide, "%s is wider than a window of %d pixels", p, width)
			}
			markup, err := browser.Ask[bool](tab, `document.querySelector("main img, main b, main script") === null`)
			require.NoError(t, err)
			require.True(t, markup, "%s shows what a stranger wrote as markup", p)
		}
		require.NoError(t, tab.Look(1280, false))
	})

	// It needs no token, and a script that filters it while a person types.
	t.Run("the reference of the API", func(t *testing.T) {
		anybody := c.tab("")
		usable := 0.0
		for range 3 { // of which the quickest counts: a push runs four tests on two cores
			status, err := anybody.Open("/docs")
			require.NoError(t, err)
			require.Equal(t, int64(http.StatusOK), status)
			require.NoError(t, anybody.Wait(`performance.getEntriesByType("navigation")[0].loadEventEnd > 0`))
			took, err := browser.Ask[float64](anybody, `performance.getEntriesByType("navigation")[0].loadEventEnd`)
			require.NoError(t, err)
			if usable == 0 || took < usable {
				usable = took
			}
		}
		t.Logf("/docs can be used after %.0f ms", usable)
		require.Less(t, usable, 1000.0, "ms")
		_, err := browser.Ask[bool](anybody, `(q => {
			q.value = "tenant create"
			return q.dispatchEvent(new Event("input"))
		})(document.getElementById("q"))`)
		require.NoError(t, err)
		found, err := browser.Ask[string](anybody,
			`[...document.querySelectorAll("li")].filter(li => li.checkVisibility()).map(li => li.id).join(" ")`)
		require.NoError(t, err)
		require.Contains(t, strings.Fields(found), "createTenant")
		require.NotContains(t, strings.Fields(found), "listServers")
		require.NoError(t, anybody.Click("#createTenant a"))
		require.NoError(t, anybody.Wait(
			`location.pathname === "/docs/operations/createTenant" && document.querySelector("#errors") !== null`))
		for _, page := range []string{"/docs", "/docs/operations/createTenant"} {
			_, err := anybody.Open(page)
			require.NoError(t, err)
			violations, err := anybody.Accessibility(c.axe)
			require.NoError(t, err)
			require.Empty(t, violations, page)
			require.NoError(t, anybody.Look(360, false))
			wide, err := anybody.Overflows()
			require.NoError(t, err)
			require.False(t, wide, "%s is wider than a window of 360 pixels", page)
			require.NoError(t, anybody.Look(1280, false))
		}
		require.Empty(t, anybody.Problems())
	})

	t.Run("what needs attention", func(t *testing.T) {
		c.exec(`UPDATE tenants SET waiting_since = now() - interval '3 minutes' WHERE waiting_since IS NOT NULL`)
		_, err := tab.Open("/console")
		require.NoError(t, err)
		text, err := tab.Text("main")
		require.NoError(t, err)
		require.Contains(t, text, "waits-"+c.env)
	})

	t.Run("what strangers write", func(t *testing.T) {
		_, err := tab.Open("/console/servers/" + c.app)
		require.NoError(t, err)
		text, err := tab.Text("main")
		require.NoError(t, err)
		require.Contains(t, text, smuggled, "it is shown as it is")
		require.Empty(t, tab.Problems())
	})

	t.Run("the last day of a host", func(t *testing.T) {
		_, err := tab.Open("/console/servers/" + c.app)
		require.NoError(t, err)
		text, err := tab.Text("main")
		require.NoError(t, err)
		require.Contains(t, text, "The agent was silent for 2 h in all.")
		require.Regexp(t, `Memory (now|\d+ min ago) \d+ %, lowest \d+ %, highest \d+ %`, text) // also this machine's, whose memory may be fuller
		lines, err := browser.Ask[float64](tab, `[...document.querySelectorAll(".charts svg[role=img][aria-label] .line")].filter(p => p.getAttribute("d").split("M").length === 3 && p.getTotalLength() > 200).length`)
		require.NoError(t, err)
		require.GreaterOrEqual(t, int(lines), 4, "a line for each figure, with a gap")
	})

	t.Run("keys", func(t *testing.T) {
		require.NoError(t, tab.Type("/"))
		require.NoError(t, tab.Wait(`document.activeElement.id === "q"`))
		_, err := browser.Ask[string](tab, `document.activeElement.value = ""`) // the key itself, which a person's browser keeps out
		require.NoError(t, err)
		require.NoError(t, tab.Type("waits-"+c.env))
		if err := tab.Wait(`document.querySelector("#found a") !== null`); err != nil {
			found, _ := browser.Ask[string](tab, `document.querySelector("#q").value + document.querySelector("#found").outerHTML`)
			require.NoError(t, err, found)
		}
		require.NoError(t, tab.Type("\u001b"))
		require.NoError(t, tab.Wait(`document.activeElement.id !== "q"`))
		require.NoError(t, tab.Type("g"))
		require.NoError(t, tab.Type("t"))
		require.NoError(t, tab.Wait(`location.pathname === "/console/tenants"`))

		// Rows have the focus one after the other, and Enter opens one.
		focused := `document.activeElement.closest("tbody tr") === document.querySelectorAll("main tbody tr")[%d]`
		_, err = tab.Open("/console/servers")
		require.NoError(t, err)
		for i, key := range []string{"j", "j", "k", "ArrowDown", "ArrowUp"} {
			if i == 0 || c.number(`SELECT count(*) FROM servers WHERE status <> 'terminated'`) > 1 {
				require.NoError(t, tab.Press(key))
				require.NoError(t, tab.Wait(fmt.Sprintf(focused, []int{0, 1, 0, 1, 0}[i])), key)
			}
		}
		require.NoError(t, tab.Press("Enter"))
		require.NoError(t, tab.Wait(`location.pathname.startsWith("/console/servers/")`))
		// The search also finds pages and the buttons of this one.
		for text, path := range map[string]string{"upcom": "/console/impact/upcoming", "Drain": "/console/do/drainServer"} {
			_, err = tab.Open("/console/servers/" + c.app)
			require.NoError(t, err)
			require.NoError(t, tab.Press("Control+k"))
			require.NoError(t, tab.Wait(`document.activeElement.id === "q"`))
			require.NoError(t, tab.Type(text))
			require.NoError(t, tab.Wait(fmt.Sprintf(`document.querySelector("#found [data-q]")?.dataset.q === %q`, text)))
			require.NoError(t, tab.Press("ArrowDown"))
			require.NoError(t, tab.Wait(`document.querySelector("#found li a") === document.activeElement`))
			require.NoError(t, tab.Press("Enter"))
			require.NoError(t, tab.Wait(fmt.Sprintf(`location.pathname === %q && document.readyState === "complete"`, path)))
		}
		require.NoError(t, tab.Press("?"))
		require.NoError(t, tab.Wait(`document.querySelector("#keys[open]").innerText.includes("Ctrl K")`))
		require.NoError(t, tab.Press("Escape"))
		require.Empty(t, tab.Problems())
	})

	t.Run("a telephone shows rows and their states first", func(t *testing.T) {
		require.NoError(t, tab.Look(360, false))
		defer func() { require.NoError(t, tab.Look(1280, false)) }()
		_, err := tab.Open("/console/servers")
		require.NoError(t, err)
		seen, err := browser.Ask[bool](tab, `(() => {
			const row = document.querySelector("main tbody tr"), state = row.querySelector(".state").getBoundingClientRect();
			return row.getBoundingClientRect().bottom < innerHeight / 2 && state.right <= innerWidth &&
				document.querySelector(".filters").getBoundingClientRect().top > row.getBoundingClientRect().bottom;
		})()`)
		require.NoError(t, err)
		require.True(t, seen)
	})

	t.Run("a change is seen immediately", func(t *testing.T) {
		_, err := tab.Open("/console/servers/" + c.app)
		require.NoError(t, err)
		require.NoError(t, tab.Wait(`document.querySelector("main").innerText.includes("Uncordon")`))
		_, err = browser.Ask[bool](tab, `window.same = true`)
		require.NoError(t, err)
		status, body := c.request(http.MethodPost, "/v1/servers/"+c.app+"/uncordon", nil)
		require.Equal(t, http.StatusOK, status, "%s", body)
		require.NoError(t, tab.Wait(`window.same === true && [...document.querySelectorAll(".do a")].some(a => a.innerText === "Cordon")`))
	})

	t.Run("a hidden tab has no stream", func(t *testing.T) {
		hide := func(hidden bool) {
			t.Helper()
			_, err := browser.Ask[bool](tab, fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %t, configurable: true}), document.dispatchEvent(new Event("visibilitychange"))`, hidden))
			require.NoError(t, err)
		}
		_, err := tab.Open("/console/servers/" + c.app)
		require.NoError(t, err)
		require.NoError(t, tab.Wait(`[...document.querySelectorAll(".do a")].some(a => a.innerText === "Cordon")`))
		_, err = browser.Ask[bool](tab, `window.same = true, window.gaveUp = 0, (close => { EventSource.prototype.close = function () { window.gaveUp++; close.call(this) } })(EventSource.prototype.close), true`)
		require.NoError(t, err)
		hide(true)
		require.NoError(t, tab.Wait(`window.gaveUp === 1`))
		status, body := c.request(http.MethodPost, "/v1/servers/"+c.app+"/cordon", map[string]any{"reason": "while hidden"})
		require.Equal(t, http.StatusOK, status, "%s", body)
		hide(false)
		require.NoError(t, tab.Wait(`window.same === true && document.querySelector("main").innerText.includes("while hidden")`), "it catches up")
		status, body = c.request(http.MethodPost, "/v1/servers/"+c.app+"/uncordon", nil)
		require.Equal(t, http.StatusOK, status, "%s", body)
		require.NoError(t, tab.Wait(`window.same === true && [...document.querySelectorAll(".do a")].some(a => a.innerText === "Cordon")`), "and follows later changes")
	})

	t.Run("typed text stays", func(t *testing.T) {
		_, err := tab.Open("/console/servers")
		require.NoError(t, err)
		require.NoError(t, tab.Fill(`.filters input[name="server_id"]`, "half a na"))
		_, err = browser.Ask[bool](tab, `window.held = 0, window.swaps = 0, document.addEventListener("htmx:beforeRequest", (e) => { if (e.defaultPrevented) window.held++ }), document.addEventListener("htmx:afterSwap", () => window.swaps++), true`)
		require.NoError(t, err)
		status, body := c.request(http.MethodPost, "/v1/servers/"+c.app+"/cordon", map[string]any{"reason": "seen later"})
		require.Equal(t, http.StatusOK, status, "%s", body)
		require.NoError(t, tab.Wait(`window.held > 0`))
		typed, err := browser.Ask[string](tab, `document.querySelector('.filters input[name="server_id"]').value`)
		require.NoError(t, err)
		require.Equal(t, "half a na", typed)
		_, err = browser.Ask[bool](tab, `(() => { const i = document.querySelector('.filters input[name="server_id"]'); i.focus(); i.value = ""; i.blur(); return true })()`)
		require.NoError(t, err)
		require.NoError(t, tab.Wait(`window.swaps > 0`))
		status, body = c.request(http.MethodPost, "/v1/servers/"+c.app+"/uncordon", nil)
		require.Equal(t, http.StatusOK, status, "%s", body)
	})

	t.Run("links of other sites", func(t *testing.T) {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintf(w, `<!doctype html><link rel="icon" href="data:,"><a id="link" href="http://%s/console/servers?region=eu">a server</a>`, c.addr("api"))
		}))
		defer other.Close()
		_, err := browser.Ask[bool](tab, fmt.Sprintf(`location.assign(%q), true`, strings.Replace(other.URL, "127.0.0.1", "localhost", 1)))
		require.NoError(t, err)
		require.NoError(t, tab.Wait(`document.querySelector("#link") !== null`))
		require.NoError(t, tab.Click("#link"))
		require.NoError(t, tab.Wait(`location.pathname === "/console/servers" && document.querySelector("header.top") !== null`))
	})

	t.Run("an operator acts", func(t *testing.T) {
		_, err := tab.Open("/console/servers/" + c.app)
		require.NoError(t, err)
		require.NoError(t, tab.Click(`.do a[href*="cordonServer"]`))
		require.NoError(t, tab.Wait(`document.querySelector("#f-reason") !== null`))
		require.NoError(t, tab.Fill("#f-reason", "disk is slow"))
		_, err = browser.Ask[bool](tab, `document.querySelector("#f-reason").dispatchEvent(new Event("input", {bubbles: true}))`)
		require.NoError(t, err)
		require.NoError(t, tab.Wait(`document.querySelector("#commands").innerText.includes("disk is slow")`))
		require.NoError(t, tab.Click("form.ask button.main"))
		require.NoError(t, tab.Wait(`document.querySelector(".verdict") !== null`))
		require.Equal(t, "disk is slow", deref(c.get("app").CordonReason))

		_, err = c.pool.Exec(t.Context(), `INSERT INTO backups (backup_id, org_id, tenant_id, server_id, kind, state, site, created_by, taken_at, bytes, sealed_identity, sha256, plain_sha256, manifest_sha256)
			VALUES ('bak-console', 'acme', $1, $2, 'manual', 'stored', 'a.example', 'ann', now(), 9, 'x', 'x', 'x', 'x')`, c.tenant, c.app)
		require.NoError(t, err)
		_, err = tab.Open("/console/do/deleteBackup?backup_id=bak-console&tenant_id=" + c.tenant)
		require.NoError(t, err)
		require.NoError(t, tab.Click("form.ask button.main"))
		require.NoError(t, tab.Wait(`document.querySelector(".plan")?.innerText.includes("destroys")`))
		require.NoError(t, tab.Fill("#typed", "another"))
		require.NoError(t, tab.Click("form.ask button.main"))
		require.NoError(t, tab.Wait(`document.querySelector(".refused")?.innerText.includes("typed")`))
		require.Equal(t, 1, c.number(`SELECT count(*) FROM backups WHERE backup_id = 'bak-console' AND state = 'stored'`), "the typed text is not its name")
		require.NoError(t, tab.Fill("#typed", "bak-console"))
		require.NoError(t, tab.Click("form.ask button.main"))
		require.NoError(t, tab.Wait(`document.querySelector(".verdict") !== null`))
		require.Zero(t, c.number(`SELECT count(*) FROM backups WHERE backup_id = 'bak-console' AND state = 'stored'`))

		_, err = tab.Open("/console/do/putPolicy?policy_id=spread")
		require.NoError(t, err)
		require.NoError(t, tab.Click(`form.ask button[name="compare"]`))
		require.NoError(t, tab.Wait(`document.querySelector("form.ask") !== null`))
		require.Empty(t, tab.Problems())
	})

	t.Run("a viewer looks", func(t *testing.T) {
		viewer := c.tab(c.viewer)
		for _, p := range []string{"", "/servers/" + c.app, "/tenants/" + c.tenant, "/fleets/web", "/orgs/acme"} {
			status, err := viewer.Open("/console" + p)
			require.NoError(t, err)
			require.Equal(t, int64(http.StatusOK), status)
			none, err := browser.Ask[bool](viewer, `document.querySelector('.do a[href*="/console/do/"]') === null`)
			require.NoError(t, err)
			require.True(t, none, "%s offers a viewer to change something", p)
		}
		status, err := viewer.Open("/console/do/drainServer?server_id=" + c.app)
		require.NoError(t, err)
		require.Equal(t, int64(http.StatusForbidden), status)
	})

	t.Run("forms of other sites and sessions", c.forgeries)
	t.Run("each action", c.everyAction)
	t.Run("links log in once", func(t *testing.T) {
		status, body := c.request(http.MethodPost, "/v1/console-logins", nil)
		require.Equal(t, http.StatusCreated, status, "%s", body)
		path := decoded(t, body)["path"].(string)
		other := c.tab("")
		_, err := other.Open(path)
		require.NoError(t, err)
		require.NoError(t, other.Click("form button.main"))
		require.NoError(t, other.Wait(`document.querySelector("header.top") !== null`))
		who, err := other.Text(".who")
		require.NoError(t, err)
		require.Contains(t, who, "alice")
		second := c.tab("")
		_, err = second.Open(path)
		require.NoError(t, err)
		require.NoError(t, second.Click("form button.main"))
		require.NoError(t, second.Wait(`document.querySelector(".refused:not([hidden])") !== null`))
		require.NoError(t, other.Click(`form[action="/console/logout"] button`))
		require.NoError(t, other.Wait(`location.pathname === "/console/login"`))
		status, body = c.request(http.MethodGet, "/v1/audit?kind=credential&limit=200", nil)
		require.Equal(t, http.StatusOK, status, "%s", body)
		require.Contains(t, string(body), `"consoleLogin"`)
		require.Contains(t, string(body), `"consoleLogout"`)
	})
}

// visitor is a browser without a window that keeps cookies.
type visitor struct {
	*http.Client
	base string
	csrf string
}

func (c *console) visitor(token string) *visitor {
	c.t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(c.t, err)
	v := &visitor{Client: &http.Client{Jar: jar, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, base: "http://" + c.addr("api")}
	resp, err := v.PostForm(v.base+"/console/login", url.Values{"token": {token}})
	require.NoError(c.t, err)
	_ = resp.Body.Close()
	require.Equal(c.t, http.StatusSeeOther, resp.StatusCode)
	_, page := v.get(c.t, "/console/servers")
	if m := regexp.MustCompile(`name="csrf" value="([^"]+)"`).FindStringSubmatch(page); m != nil {
		v.csrf = m[1]
	}
	require.NotEmpty(c.t, v.csrf)
	return v
}

func (v *visitor) get(t testing.TB, path string) (int, string) {
	t.Helper()
	resp, err := v.Get(v.base + path)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

func (v *visitor) post(t testing.TB, path string, form url.Values, header http.Header) (int, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, v.base+path, strings.NewReader(form.Encode()))
	require.NoError(t, err)
	maps.Copy(r.Header, header)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := v.Do(r)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

// forgeries are forms that another site sends with a browser's cookie, and that others stole.
func (c *console) forgeries(t *testing.T) {
	alice, bob, again := c.visitor(c.operator), c.visitor(c.viewer), c.visitor(c.operator)
	form := func(csrf string) url.Values { return url.Values{"server_id": {c.app}, "csrf": {csrf}} }
	for name, try := range map[string]struct {
		who    *visitor
		form   url.Values
		header http.Header
	}{
		"without the session's mark":     {alice, form(""), nil},
		"with another session's mark":    {alice, form(again.csrf), nil},
		"from another site":              {alice, form(alice.csrf), http.Header{"Origin": {"https://evil.example"}}},
		"as a viewer, with its own mark": {bob, form(bob.csrf), nil},
	} {
		status, body := try.who.post(t, "/console/do/uncordonServer", try.form, try.header)
		require.Equal(t, http.StatusForbidden, status, "%s: %s", name, body)
	}
	require.NotNil(t, c.get("app").CordonedBy, "nothing was changed")
	stranger := &visitor{Client: &http.Client{Timeout: time.Minute, CheckRedirect: alice.CheckRedirect}, base: alice.base}
	status, _ := stranger.post(t, "/console/do/uncordonServer", form(alice.csrf), nil)
	require.Equal(t, http.StatusUnauthorized, status)
	status, _ = stranger.get(t, "/console/servers")
	require.Equal(t, http.StatusSeeOther, status)
	// A cookie without a session, and an ended session; a stream does not redirect to the login.
	for path, want := range map[string]int{"/console/servers": http.StatusSeeOther, "/console/events": http.StatusUnauthorized} {
		r, err := http.NewRequest(http.MethodGet, alice.base+path, nil)
		require.NoError(t, err)
		if want == http.StatusUnauthorized {
			r.Header.Set("Accept", "text/event-stream")
		}
		r.AddCookie(&http.Cookie{Name: "prego_console", Value: "made-up"})
		resp, err := stranger.Do(r)
		require.NoError(t, err)
		_ = resp.Body.Close()
		require.Equal(t, want, resp.StatusCode, path)
	}
	status, _ = again.post(t, "/console/logout", url.Values{"csrf": {again.csrf}}, nil)
	require.Equal(t, http.StatusSeeOther, status)
	status, _ = again.get(t, "/console/servers")
	require.Equal(t, http.StatusSeeOther, status)
}

// everyAction opens the form of each operation that changes something and sends it empty, as an
// operator and as a viewer. What lacks something is refused with a reason; nothing fails.
func (c *console) everyAction(t *testing.T) {
	alice, bob := c.visitor(c.operator), c.visitor(c.viewer)
	var ids []string
	support, _ := access.BuiltIn("support")
	viewers := map[string]bool{}
	for _, item := range api.Contract().Paths.Map() {
		for method, op := range item.Operations() {
			if method != http.MethodGet && op.OperationID != "endOwnCredential" { // which would end the test
				ids = append(ids, op.OperationID)
				required, _ := op.Extensions["x-capability"].(string)
				viewers[op.OperationID] = required == "" || support.Includes(access.Capability(required))
			}
		}
	}
	slices.Sort(ids)
	require.Greater(t, len(ids), 100)
	known := url.Values{"org_id": {"acme"}, "fleet_id": {"web"}, "policy_id": {"spread"}, "pool": {"fast"}, "server_id": {"none"}, "tenant_id": {"t-none"}, "group_id": {"grp-none"}, "dimension": {"max_instances"}}
	for _, id := range ids {
		status, body := alice.get(t, "/console/do/"+id+"?"+known.Encode())
		require.Equal(t, http.StatusOK, status, "%s: %s", id, body)
		require.Contains(t, body, "curl -X", id)
		status, _ = bob.get(t, "/console/do/"+id+"?"+known.Encode())
		require.Equal(t, viewers[id], status != http.StatusForbidden, "%s: %d", id, status)
		form := url.Values{"csrf": {alice.csrf}, "typed": {"none"}}
		maps.Copy(form, known)
		status, body = alice.post(t, "/console/do/"+id, form, nil)
		require.Less(t, status, 500, "%s: %s", id, body)
		if status != http.StatusOK {
			require.Contains(t, body, `class="refused"`, "%s: a refusal has its reason", id)
		}
		form.Set("csrf", bob.csrf)
		status, _ = bob.post(t, "/console/do/"+id, form, nil)
		require.Equal(t, viewers[id], status != http.StatusForbidden, "%s: %d", id, status)
	}
}
