package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/browser"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// person uses the console with a mouse and typed text, or with keys only, and finds the way by what is visible.
type person struct {
	t        testing.TB
	tab      *browser.Tab
	keyboard bool
	done     int // clicks or keys; a typed text counts once
}

func (p *person) press(keys ...string) {
	p.t.Helper()
	require.NoError(p.t, p.tab.Press(keys...))
	p.done += len(keys)
}

func (p *person) wait(expression string) {
	p.t.Helper()
	if err := p.tab.Wait(expression); err != nil {
		text, _ := p.tab.Text("body")
		require.NoError(p.t, err, "%s", text)
	}
}

// arrived waits until an action has left a page and its script runs.
func (p *person) arrived() {
	p.t.Helper()
	p.wait(`window.left !== true && document.readyState === "complete"`)
}

func (p *person) leave() {
	p.t.Helper()
	_, err := browser.Ask[bool](p.tab, `window.left = true`)
	require.NoError(p.t, err)
}

// sees waits until the page shows a text.
func (p *person) sees(texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		p.wait(fmt.Sprintf(`document.querySelector("main")?.innerText.includes(%q)`, text))
	}
}

// opens follows the link or button with a text: by a click, or by the search for pages, things and buttons.
func (p *person) opens(text string) {
	p.t.Helper()
	p.shows(text)
	p.leave()
	if p.keyboard {
		p.finds(text, text)
	} else {
		require.NoError(p.t, p.tab.ClickOn(text))
		p.done++
	}
	p.arrived()
}

// shows opens what hides a button: More.
func (p *person) shows(text string) {
	p.t.Helper()
	if p.keyboard {
		return
	}
	hidden, err := browser.Ask[bool](p.tab, fmt.Sprintf(`(() => {
	const a = [...document.querySelectorAll("main details:not([open]) a")].find((a) => a.innerText.trim() === %[1]q || a.textContent.trim() === %[1]q);
	return a !== undefined && !a.checkVisibility({ contentVisibilityAuto: true });
})()`, text))
	require.NoError(p.t, err)
	if hidden {
		require.NoError(p.t, p.tab.ClickOn("More"))
		p.done++
	}
}

// turns opens a tab of a page, unless the page shows a text already.
func (p *person) turns(tab, text string) {
	p.t.Helper()
	shown, err := browser.Ask[bool](p.tab, fmt.Sprintf(`document.querySelector("main").innerText.includes(%q)`, text))
	require.NoError(p.t, err)
	if !shown {
		p.opens(tab)
	}
}

// finds types a part of a name into the search, and opens the answer with a text.
func (p *person) finds(part, text string) {
	p.t.Helper()
	p.press("Control+k")
	require.NoError(p.t, p.tab.Type(part))
	p.done++
	p.wait(fmt.Sprintf(`document.querySelector("#found [data-q]")?.dataset.q === %q`, part))
	focused := ""
	for range 20 {
		p.press("ArrowDown")
		var err error
		focused, err = browser.Ask[string](p.tab, `document.activeElement.innerText.trim()`)
		require.NoError(p.t, err)
		if focused == text {
			p.press("Enter")
			return
		}
	}
	p.t.Fatalf("the search for %q does not lead to %q but to %q", part, text, focused)
}

// chooses opens the row with a text.
func (p *person) chooses(text string) {
	p.t.Helper()
	p.sees(text)
	p.leave()
	if !p.keyboard {
		require.NoError(p.t, p.tab.ClickOn(text))
		p.done++
		p.arrived()
		return
	}
	for range 50 {
		p.press("j")
		focused, err := browser.Ask[string](p.tab, `document.activeElement.innerText.trim()`)
		require.NoError(p.t, err)
		if focused == text {
			p.press("Enter")
			p.arrived()
			return
		}
	}
	p.t.Fatalf("no row is called %q", text)
}

// enters skips the header and the menu, as the first link of each page offers.
func (p *person) enters() {
	p.t.Helper()
	inside, err := browser.Ask[bool](p.tab, `document.activeElement.closest("main") !== null`)
	require.NoError(p.t, err)
	if !inside {
		p.press("Tab", "Enter")
		p.wait(`document.activeElement.id === "main"`)
	}
}

// tabsTo presses Tab until a control is reached.
func (p *person) tabsTo(what, expression string) {
	p.t.Helper()
	for range 60 {
		p.press("Tab")
		there, err := browser.Ask[bool](p.tab, `(() => { const e = document.activeElement; return `+expression+` })()`)
		require.NoError(p.t, err)
		if there {
			return
		}
	}
	p.t.Fatalf("Tab does not reach %s", what)
}

// fills types into the field with a label.
func (p *person) fills(label, text string) {
	p.t.Helper()
	labelled := fmt.Sprintf(`[...(e.labels ?? [])].some((l) => l.innerText.trim().startsWith(%q))`, label)
	if p.keyboard {
		p.enters()
		p.tabsTo(label, labelled)
	} else {
		shown, err := browser.Ask[string](p.tab, fmt.Sprintf(`[...document.querySelectorAll("main label")]
	.find((l) => l.textContent.trim().startsWith(%q))?.textContent.replace(/\s+/g, " ").trim() ?? ""`, label))
		require.NoError(p.t, err)
		require.NotEmpty(p.t, shown, "a field that is called %s", label)
		require.NoError(p.t, p.tab.ClickOn(shown))
		p.done++
	}
	p.press("Control+a")
	require.NoError(p.t, p.tab.Type(text))
	p.done++
}

// sends presses the form's button with a text.
func (p *person) sends(text string) {
	p.t.Helper()
	p.leave()
	if p.keyboard {
		p.enters()
		p.tabsTo(text, fmt.Sprintf(`e.tagName === "BUTTON" && e.innerText.trim() === %q`, text))
		p.press("Enter")
	} else {
		require.NoError(p.t, p.tab.ClickOn(text))
		p.done++
	}
	p.arrived()
}

// TestOperatorsCompleteTenTasks: from the first page, by what is visible, with a mouse and with keys only.
func TestOperatorsCompleteTenTasks(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	c := newConsoleCell(t, backupVars(s, map[string]string{
		"PREGO_API_RATE_PER_SECOND": "5000", "PREGO_MOVE_GRACE": "1s",
	}))
	c.org("acme", "")
	c.sharedFleet(0)
	alpha := c.cell.tenant("alpha-site", prego.PlanStarter, nil)
	c.settledTenant(alpha, tenant.Active)
	c.create("app2", prego.RoleApp, server.Spec{})
	_, err := c.pool.Exec(t.Context(), `
WITH meter AS (INSERT INTO cost_meters (provider, kind, provider_id, name, started_at, month, billed)
    VALUES ('hetzner', 'server', '1', 'x', now(), date_trunc('month', now()), 9000000) RETURNING meter_id)
INSERT INTO cost_entries (day, meter_id, part, owner_kind, owner_id, org_id, basis, amount, currency)
SELECT current_date, meter_id, 'used', 'tenant', $1, 'acme', 'own', 9000000, 'EUR' FROM meter`, alpha)
	require.NoError(t, err)
	c.backupState("/v1/tenants/"+alpha, c.backup("/v1/tenants/"+alpha), tenant.BackupStored)
	c.awaitStatus("app2", server.Active)

	// A group of each person's org waits for room, and then for the org's quota.
	c.nodes("work", 1, 1<<30)
	groups := map[string]api.ProcessGroup{}
	for _, name := range []string{"mouse", "keyboard"} {
		env := prego.EnvID(c.environment("waits-"+name, "free", "shop"))
		running := c.cell.group(env, "runs", 1, spec("docker.io/library/nginx:1.29", 64))
		c.settledGroup(running.GroupId)
		groups[name] = c.cell.group(env, "web-"+name, 1, spec("docker.io/library/nginx:1.29", 1500))
		c.unschedulable(groups[name].GroupId, "no_capacity_memory")
		c.limit("waits-"+name, "max_instances", 1)
	}
	fleet := map[string]any{"workload_memory_bytes": 8 << 30}
	c.send(http.MethodPatch, "/v1/fleets/"+c.id("work"), fleet, http.StatusOK, nil)
	for _, g := range groups {
		c.unschedulable(g.GroupId, "org_quota_exceeded:max_instances")
	}

	drain := api.Contract().Paths.Find("/v1/servers/{server_id}/drain").Post.Summary
	for _, keyboard := range []bool{false, true} {
		name := map[bool]string{false: "mouse", true: "keyboard"}[keyboard]
		from, g := c.getTenant(alpha).Allocation.AppServerId, groups[name]
		p := &person{t: t, tab: c.tab(c.operator), keyboard: keyboard}
		require.NoError(t, p.tab.Look(1280, false))
		task := func(what string, do func()) {
			t.Helper()
			_, err := p.tab.Open("/console")
			require.NoError(t, err)
			p.arrived()
			p.done = 0
			do()
			t.Logf("%-8s %-34s %3d %s", name, what, p.done, map[bool]string{false: "clicks and texts", true: "keys and texts"}[keyboard])
		}
		task("who is on this server", func() {
			p.opens("Servers")
			p.chooses(from)
			p.sees("alpha-site")
		})
		task("why is it here", func() {
			p.opens("Tenants")
			p.chooses("alpha-site")
			p.turns("Place", "the whole decision")
			p.opensLink("the whole decision")
			p.sees("How it was decided", from)
		})
		task("what costs most", func() {
			p.opens("Costs")
			p.wait(`/acme[^]*9\.0\d/.test(document.querySelector("main tbody tr")?.innerText)`)
		})
		task("find a tenant by part of its name", func() {
			if keyboard {
				p.leave()
				p.finds("pha-s", "alpha-site")
			} else {
				require.NoError(t, p.tab.Click("#q"))
				require.NoError(t, p.tab.Type("pha-s"))
				p.done += 2
				p.leave()
				require.NoError(t, p.tab.ClickOn("alpha-site"))
				p.done++
			}
			p.arrived()
			p.sees("Tenant alpha-site")
		})
		task("raise the quota of what waits", func() {
			p.opens("Queue")
			p.chooses("web-" + name)
			p.sees("org_quota_exceeded:max_instances")
			p.opensLink("waits-" + name)
			p.turns("Quotas", "max instances")
			p.opensLink("max instances")
			p.fills("limit", "5")
			p.fills("reason", "approved by ann")
			p.sends("Override a limit of an org")
			p.sees("Done")
			require.Equal(t, 5, c.number(`SELECT limit_value::int FROM org_quotas WHERE org_id = $1 AND dimension = 'max_instances'`, "waits-"+name))
			c.awaitGroup(g.GroupId, "past its quota", func(g api.ProcessGroup) bool { return deref(g.StatusReason) != "org_quota_exceeded:max_instances" })
		})
		task("who changed it", func() {
			p.opens("Audit")
			p.sees("limit value 1 → 5", "alice", "approved by ann")
		})
		task("restore a backup to a copy", func() {
			p.opens("Tenants")
			p.chooses("alpha-site")
			p.opens("Copy")
			p.fills("slug", "copy-by-"+name)
			p.sends("Create a tenant with a copy of another one's site")
			p.sees("Accepted")
			p.opensLink("Show it")
			p.sees("Tenant copy-by-" + name)
			p.wait(`document.querySelector("h1").innerText.includes("active")`) // without loading the page again
		})
		task("drain a server", func() {
			p.opens("Servers")
			p.chooses(from)
			p.opens("Drain")
			p.sends(drain)
			if asked, err := browser.Ask[bool](p.tab, `document.querySelector("#typed") !== null`); err == nil && asked {
				p.fills("Type", from)
				p.sends(drain)
			}
			p.sees("Accepted")
		})
		task("watch a move", func() {
			p.sees("is being emptied", "alpha-site")
			p.opensLink("alpha-site")
			p.sees("Tenant alpha-site")
			p.wait(`!document.querySelector("main").innerText.includes("is moving")`) // without loading the page again
			p.sees(c.getTenant(alpha).Allocation.AppServerId)
			require.NotEqual(t, from, c.getTenant(alpha).Allocation.AppServerId)
		})
		c.drained(from)
		status, body := c.request(http.MethodPost, "/v1/servers/"+from+"/uncordon", nil)
		require.Equal(t, http.StatusOK, status, "%s", body)
		task("end a session", func() {
			if keyboard {
				p.press("/")
				p.tabsTo("the logout", `e.innerText === "Log out"`)
				p.leave()
				p.press("Enter")
			} else {
				p.leave()
				require.NoError(t, p.tab.ClickOn("Log out"))
				p.done++
			}
			p.wait(`location.pathname === "/console/login"`)
			status, err := p.tab.Open("/console/servers")
			require.NoError(t, err)
			require.Equal(t, int64(http.StatusOK), status)
			p.wait(`location.pathname === "/console/login"`)
		})
		require.Empty(t, p.tab.Problems())
	}
}

// opensLink follows a link within the page: by a click, or with the Tab key.
func (p *person) opensLink(text string) {
	p.t.Helper()
	p.sees(text)
	p.leave()
	if p.keyboard {
		p.enters()
		p.tabsTo(text, fmt.Sprintf(`e.tagName === "A" && e.closest("main") !== null && e.innerText.trim() === %q`, text))
		p.press("Enter")
	} else {
		require.NoError(p.t, p.tab.ClickOn(text))
		p.done++
	}
	p.arrived()
}
