package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

func (c *cell) release(name string) (r api.StackRelease) {
	c.t.Helper()
	c.send(http.MethodGet, "/v1/releases/"+name, nil, http.StatusOK, &r)
	return r
}

// rests waits until a release rests, and no server is being updated.
func (c *cell) rests(name, status string) api.StackRelease {
	c.t.Helper()
	var r api.StackRelease
	deadline := time.Now().Add(2 * patience)
	for {
		r = c.release(name)
		busy := false
		for _, s := range r.Servers {
			busy = busy || s.Status == "updating"
		}
		if r.Status == status && !busy {
			return r
		}
		if time.Now().After(deadline) || server.ReleaseStatus(r.Status).Rests() && !busy {
			b, _ := json.MarshalIndent(r, "", " ")
			c.t.Fatalf("release %s is not %s:\n%s", name, status, b)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// typist is a visitor of a site who writes one row after the other, and knows which were taken.
type typist struct {
	t            testing.TB
	at, site     string
	client       *http.Client
	session      string
	stop         chan struct{}
	work         sync.WaitGroup
	mu           sync.Mutex
	taken        map[string]bool
	order        []string // of accepted ones
	sent, denied int
}

// mark is the number of rows sent so far: later ones have larger numbers.
func (w *typist) mark() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent
}

// more waits until some more rows were taken.
func (w *typist) more(n int) {
	w.t.Helper()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.order)
	}
	want := count() + n
	eventually(w.t, func() bool { return count() >= want }, patience, 10*time.Millisecond)
}

// rewound stops writing to a restored site, and checks its rows: the ones accepted before the request for the backup
// are there, and so are those after the restore; the ones between are not, and of the ones during the backup the first
// are there and none after a gap.
func (w *typist) rewound(c *cell, app, database string, before, after, asked, restored int) {
	c.t.Helper()
	close(w.stop)
	w.work.Wait()
	there := w.found(c, app, database)
	gap := ""
	for _, row := range w.order {
		var n int
		_, err := fmt.Sscanf(row, "row %d", &n)
		require.NoError(c.t, err)
		switch {
		case n <= before, n > restored+1:
			require.Contains(c.t, there, row, "%d, %d, %d, %d", before, after, asked, restored)
		case n <= after+1: // one was under way
			if there[row] == 0 {
				gap = row
			} else {
				require.Empty(c.t, gap, "%s is there, and an earlier one is not", row)
			}
		case n <= asked:
			require.NotContains(c.t, there, row, "%d, %d, %d, %d", before, after, asked, restored)
		}
	}
	require.NoError(c.t, w.forget(c, app, database))
}

func (w *typist) forget(c *cell, app, database string) error {
	_, err := c.hostDB(app, database).ExecContext(c.t.Context(), "DELETE FROM `"+database+"`.tabToDo WHERE description LIKE 'row %'")
	return err
}

func (c *cell) typist(app, tenantID, site string) *typist {
	c.t.Helper()
	var address string
	c.query(&address, `SELECT host(private_address) FROM servers WHERE server_id = $1`, app)
	w := &typist{t: c.t, at: "http://" + address + ":8080", site: site, client: &http.Client{Timeout: 10 * time.Second}, stop: make(chan struct{}), taken: map[string]bool{}}
	var shown api.AdminPassword
	c.post("/v1/tenants/"+tenantID+"/admin-password", nil, http.StatusOK, &shown)
	status, _, header := w.ask("/api/method/login", url.Values{"usr": {shown.User}, "pwd": {shown.Password}})
	require.Equal(c.t, http.StatusOK, status)
	w.session, _, _ = strings.Cut(header.Get("Set-Cookie"), ";")
	w.work.Go(w.write)
	return w
}

func (w *typist) ask(path string, form url.Values) (status int, body string, header http.Header) {
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.at+path, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, err.Error(), nil
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("X-Frappe-Site-Name", w.site)
	r.Header.Set("Cookie", w.session)
	resp, err := w.client.Do(r)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(text), resp.Header
}

func (w *typist) write() {
	for n := 1; ; n++ {
		select {
		case <-w.stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		row := fmt.Sprintf("row %d", n)
		status, _, _ := w.ask("/api/resource/ToDo", url.Values{"description": {row}})
		w.mu.Lock()
		w.sent++
		if status == http.StatusOK {
			w.taken[row], w.order = true, append(w.order, row)
		} else {
			w.denied++
		}
		w.mu.Unlock()
	}
}

// ends stops writing, and checks that each row that was taken is there, once.
func (w *typist) ends(c *cell, app, database string) (rows, denied int) {
	c.t.Helper()
	close(w.stop)
	w.work.Wait()
	there := w.found(c, app, database)
	for row := range w.taken {
		require.Contains(c.t, there, row, "site %s has lost a row that it had taken", w.site)
	}
	return len(w.taken), w.denied
}

// found are the rows that a site has, each once.
func (w *typist) found(c *cell, app, database string) map[string]int {
	c.t.Helper()
	found, err := c.hostDB(app, database).QueryContext(c.t.Context(), "SELECT description, count(*) FROM `"+database+"`.tabToDo WHERE description LIKE 'row %' GROUP BY 1")
	require.NoError(c.t, err)
	defer func() { _ = found.Close() }()
	there := map[string]int{}
	for found.Next() {
		var row string
		var n int
		require.NoError(c.t, found.Scan(&row, &n))
		require.Equal(c.t, 1, n, "%s of %s is there once", row, w.site)
		there[row] = n
	}
	require.NoError(c.t, found.Err())
	return there
}

// TestRecordReleaseHistories rolls releases out over sites under constant writes: one with every process killed in the
// middle of its steps, one with a failing migration, one with a wrong version of a site. A rolled back site has its
// rows, its image and its versions. The runs are recorded with -record.
func TestRecordReleaseHistories(t *testing.T) {
	t.Parallel()
	all := rounds(t, 3, []string{
		"release/step", "release/stepped", "bench/planned", "bench/prepare", "bench/closed", "bench/offline", "bench/kept", "bench/swap", "bench/swapped", "bench/migrate", "bench/migrated",
		"bench/checked", "bench/opened", "bench/ended",
	}, everybody)
	back := rounds(t, 1, []string{"bench/restore", "bench/restored", "bench/opened", "bench/ended"}, everybody)
	m, vars, own := newMortals(t, slices.Concat(all, back))
	m.s3 = s3test.Start(t)
	c := newCell(t, options{url: own, vars: backupVars(m.s3, vars)})
	m.cell = c
	c.org("acme", "")
	app := c.sharedFleet(1)
	slugs := []string{"alpha", "beta", "gamma"}
	ids, databases, typists := map[string]string{}, map[string]string{}, map[string]*typist{}
	for _, slug := range slugs {
		ids[slug] = c.tenant(slug, prego.PlanStarter, nil)
		databases[slug] = c.settledTenant(ids[slug], tenant.Active).Allocation.DatabaseName
	}
	for _, slug := range slugs {
		typists[slug] = c.typist(app, ids[slug], slug+".sites.test")
	}
	c.create("later", prego.RoleApp, server.Spec{}) // it has no tenants, and comes last
	c.awaitStatus("later", server.Active)
	later := c.id("later")
	version := func(slug string) string {
		t.Helper()
		return inMariaDB[string](c, app, databases[slug], "SELECT app_version FROM `"+databases[slug]+"`.`tabInstalled Application` WHERE app_name = 'frappe'")
	}
	bench := func(id string) (image string) {
		t.Helper()
		c.query(&image, `SELECT bench_image FROM servers WHERE server_id = $1`, id)
		return image
	}
	serve := func() {
		t.Helper()
		for _, slug := range slugs {
			require.Equal(t, "off", c.maintenance(app, slug+".sites.test"), slug)
			require.Equal(t, 0, c.number(`SELECT count(*) FROM stack_release_sites WHERE tenant_id = $1 AND offline_at IS NOT NULL AND opened_at IS NULL`, ids[slug]))
			left, err := os.ReadDir(filepath.Join(c.rootOf(app), wire.BenchDir, "sites", slug+".sites.test", wire.SnapshotsDir))
			require.NoError(t, err)
			require.Empty(t, left, "nothing is left on the host")
		}
		require.Equal(t, 0, c.number(`SELECT count(*) FROM servers WHERE closing`))
	}
	create := func(name, image string, apps map[string]string) {
		t.Helper()
		if apps == nil {
			apps = map[string]string{}
		}
		c.post("/v1/releases", map[string]any{"name": name, "image": image, "apps": apps, "rings": []map[string]any{{"name": "canary", "tenants": []string{ids["alpha"]}}}}, http.StatusCreated, nil)
	}
	turn := func(name, verb string) {
		t.Helper()
		c.post("/v1/releases/"+name+"/"+verb, nil, http.StatusAccepted, nil)
	}

	// Any process may die at any step.
	for i, round := range all[1:] {
		name := fmt.Sprintf("r0-%d", i)
		create(name, fmt.Sprintf("frappe/erpnext:v15.5%d.0", i), nil)
		m.play(round, func() { turn(name, "start") })
		c.rests(name, "done")
		require.Equal(t, fmt.Sprintf("15.5%d.0", i), version("gamma"))
		serve()
	}
	before := c.number(`SELECT count(*) FROM backups WHERE kind = 'pre_update'`)
	create("r1", "frappe/erpnext:v15.60.0", map[string]string{"frappe": "15.60.0"})
	m.play(all[0], func() { turn("r1", "start") })
	r := c.rests("r1", "done")
	require.True(t, r.Current)
	require.Len(t, r.Servers, 2)
	require.Equal(t, []string{"canary", "rest"}, []string{r.Servers[0].Ring, r.Servers[1].Ring})
	require.Equal(t, 3, r.Servers[0].Sites)
	for _, slug := range slugs {
		require.Equal(t, "15.60.0", version(slug))
		require.Equal(t, len(all), c.number(`SELECT count(*) FROM backups WHERE tenant_id = $1 AND kind = 'pre_update' AND state IN ('stored', 'deleting', 'deleted')`, ids[slug]))
	}
	require.Equal(t, before+3, c.number(`SELECT count(*) FROM backups WHERE kind = 'pre_update'`))
	require.Equal(t, "frappe/erpnext:v15.60.0", bench(app))
	require.Equal(t, "frappe/erpnext:v15.60.0", bench(later))
	serve()
	keepHistory(t, c, "release-done", server.StackReleaseWorkflowID("r1"))
	keepHistory(t, c, "bench-updated", server.BenchUpdateWorkflowID("r1", prego.ServerID(app)))

	// The second site's migration fails, after it has changed the database, with deaths on the way back.
	create("r2", "frappe/erpnext:v15.61.0", nil)
	for i, round := range back {
		c.inject(sim.Fault{Kind: "bench", Verb: "migrate", Action: "fail_after", Message: "a patch failed", Skip: 1, Times: 1})
		m.play(round, func() { turn("r2", []string{"start", "resume"}[min(i, 1)]) })
		r = c.rests("r2", "stopped")
	}
	require.Equal(t, "migrate_failed", deref(r.Reason))
	require.Equal(t, "rolled_back", r.Servers[0].Status)
	require.Equal(t, "pending", r.Servers[1].Status)
	require.Equal(t, "frappe/erpnext:v15.60.0", bench(app))
	for _, slug := range slugs {
		require.Equal(t, "15.60.0", version(slug), slug)
	}
	serve()
	keepHistory(t, c, "release-stopped", server.StackReleaseWorkflowID("r2"))
	keepHistory(t, c, "bench-went-back", server.BenchUpdateWorkflowID("r2", prego.ServerID(app)))
	c.post("/v1/releases/r2/start", nil, http.StatusConflict, nil)

	// It is tried again.
	turn("r2", "resume")
	c.rests("r2", "done")
	require.Equal(t, "15.61.0", version("beta"))
	require.Equal(t, "frappe/erpnext:v15.61.0", bench(later))
	serve()

	// A site has another version than was asked for; and an update that never comes.
	create("r3", "frappe/erpnext:v15.62.0", map[string]string{"frappe": "15.99.0"})
	turn("r3", "start")
	r = c.rests("r3", "stopped")
	require.Equal(t, "wrong_version", deref(r.Reason))
	require.Equal(t, "frappe/erpnext:v15.61.0", bench(app))
	require.Equal(t, "15.61.0", version("gamma"))
	serve()
	turn("r3", "cancel")
	r = c.release("r3")
	require.Equal(t, "cancelled", r.Status)
	require.Equal(t, "skipped", r.Servers[1].Status)

	var rows, denied int
	for _, slug := range slugs {
		n, no := typists[slug].ends(c, app, databases[slug])
		require.Positive(t, n)
		rows, denied = rows+n, denied+no
	}
	t.Logf("%v, and on the way back %v: %d rows were taken by 3 sites during 4 updates, and all are there once; %d were refused", all, back, rows, denied)
}
