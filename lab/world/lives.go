package world

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
)

// wanted is a requested tenant, and its callers' knowledge of it.
type wanted struct{ id, slug, region string }

func (t *wanted) path(of string) string { return "/v1/tenants/" + t.id + of }

// life is what the owner of a tenant asks for later.
type life struct {
	do func(c *caller, t *wanted)
	// node: it has a dedicated node. Others, whose database is on a shard, are not moved here.
	node bool
}

// lives are as likely as each other.
var lives = []life{
	{do: leftAlone},
	{do: terminated},
	{do: terminated},
	{do: terminated},
	{do: cancelled},
	{do: cancelled},
	{do: suspended},
	{do: suspended},
	{do: resumed},
	{do: resumed},
	{do: backedUp},
	{do: backedUp},
	{do: backedUp},
	{do: scheduled},
	{do: drilled},
	{do: drilled},
	{do: moved, node: true},
	{do: moved, node: true},
	{do: moved, node: true},
	{do: moved, node: true},
	{do: movedNot, node: true},
	{do: movedNot, node: true},
	{do: drained, node: true},
	{do: drained, node: true},
	{do: restored},
	{do: restored},
	{do: cloned},
	{do: lost},
	{do: lost, node: true},
}

func leftAlone(*caller, *wanted) {} // nothing

// ends asks for something after which the tenant ends like this.
func (c *caller) ends(t *wanted, verb string, states ...string) {
	if c.answered(http.MethodPost, t.path("/"+verb), verb+"-"+t.slug, http.StatusAccepted, http.StatusConflict,
		http.StatusOK) < 300 {
		c.w.expected(t.slug, states...)
	}
}

func terminated(c *caller, t *wanted) { c.ends(t, "terminate", "data_purged", "failed") }

func cancelled(c *caller, t *wanted) { c.ends(t, "cancel", "data_purged", "failed") }

func suspended(c *caller, t *wanted) { c.ends(t, "suspend", "suspended") }

func resumed(c *caller, t *wanted) {
	for _, verb := range []string{"suspend", "resume"} {
		c.ask(http.MethodPost, t.path("/"+verb), verb+"-"+t.slug, nil, http.StatusAccepted, http.StatusConflict,
			http.StatusOK)
		if verb == "suspend" {
			time.Sleep(2 * time.Minute)
		}
	}
}

// backup asks for a backup of a tenant that is active, and waits until it is there; "" if it is not.
func (c *caller) backup(t *wanted, key string) string {
	var b struct {
		BackupID string `json:"backup_id"`
	}
	if !c.until(t.slug, 10*time.Minute, "active") {
		return ""
	}
	c.askUntil(http.MethodPost, t.path("/backups"), key+"-"+t.slug, nil, &b,
		[]int{http.StatusAccepted, http.StatusConflict})
	if b.BackupID == "" || !c.until(b.BackupID, 10*time.Minute, "stored") {
		return ""
	}
	return b.BackupID
}

// backedUp is a tenant with backups; retention keeps each day's last one. One is deleted by hand, and some of these
// deletions are undone. Some tenants end then.
func backedUp(c *caller, t *wanted) {
	first := c.backup(t, "first")
	time.Sleep(time.Minute)
	second := c.backup(t, "second")
	switch {
	case first != "" && second != "":
		c.until(first, 10*time.Minute, "deleted")
	case first != "":
		c.ask(http.MethodDelete, t.path("/backups/"+first), "", nil, http.StatusNoContent, http.StatusConflict)
		if len(t.slug)%2 == 0 {
			c.ask(http.MethodPost, t.path("/backups/"+first+"/undelete"), "", nil, http.StatusOK, http.StatusConflict)
		}
	}
	if len(t.id)%2 == 0 || strings.HasSuffix(t.slug, "1") {
		terminated(c, t)
	}
}

// scheduled is a tenant with its own schedule.
func scheduled(c *caller, t *wanted) {
	if !c.until(t.slug, 10*time.Minute, "active") {
		return
	}
	at := time.Now().Add(9 * time.Minute).UTC()
	policy := map[string]any{
		"schedule": fmt.Sprintf("%d %d * * *", at.Minute(), at.Hour()), "spread_seconds": 0,
		"keep_daily": 1, "keep_weekly": 0, "keep_monthly": 0,
	}
	c.ask(http.MethodPut, "/v1/backup-policies/"+t.id, "", policy, http.StatusOK)
	time.Sleep(11 * time.Minute)
}

// drilled is a tenant whose backup is drilled, by hand beside the schedule, and possibly deleted at that moment.
func drilled(c *caller, t *wanted) {
	backup := c.backup(t, "first")
	if backup == "" {
		return
	}
	if !strings.HasSuffix(t.slug, "1") {
		c.w.caller("tidy "+t.slug, 0, func(c *caller) {
			c.ask(http.MethodDelete, t.path("/backups/"+backup), "", nil, http.StatusNoContent, http.StatusConflict)
		})
	}
	var d struct {
		DrillID string `json:"drill_id"`
	}
	c.askUntil(http.MethodPost, t.path("/drills"), "drill-"+t.slug, map[string]any{"backup_id": backup}, &d,
		[]int{http.StatusCreated, http.StatusConflict, http.StatusNotFound})
	if d.DrillID != "" && c.until(d.DrillID, 10*time.Minute, "running") && strings.HasSuffix(t.slug, "1") {
		terminated(c, t)
	}
}

// spare makes a node that others can move to, and waits until it is there; "" if it does not come.
func (c *caller) spare(t *wanted) string {
	id := "spare-" + t.slug
	body := map[string]any{
		"server_id": id, "role": "node", "region": t.region, "infra_provider": "hetzner",
		"spec": map[string]any{},
	}
	if !c.until(t.slug, 10*time.Minute, "active") || !c.ask(http.MethodPost, "/internal/servers/create", "", body,
		http.StatusAccepted) || !c.until(id, 10*time.Minute, "active") {
		return ""
	}
	return id
}

// move asks for a move, to a server or to any.
func (c *caller) move(t *wanted, key, to string) string {
	var m struct {
		MoveID string `json:"move_id"`
	}
	body := map[string]any{}
	if to != "" {
		body["to_server_id"] = to
	}
	c.askUntil(http.MethodPost, t.path("/moves"), key+"-"+t.slug, body, &m,
		[]int{http.StatusAccepted, http.StatusConflict})
	return m.MoveID
}

// moved is a tenant that moves to a node created for it, and, if it is there soon, ends.
func moved(c *caller, t *wanted) {
	spare := c.spare(t)
	if spare == "" {
		return
	}
	if id := c.move(t, "move", spare); id != "" && c.until(id, 10*time.Minute, "switched", "done") &&
		strings.HasSuffix(t.slug, "1") {
		terminated(c, t) // while the old place is still kept
	}
}

// movedNot is one whose move is cancelled, some sooner and some later, and asked for once more.
func movedNot(c *caller, t *wanted) {
	spare := c.spare(t)
	if spare == "" {
		return
	}
	id := c.move(t, "move", spare)
	if id == "" {
		return
	}
	time.Sleep(time.Duration(len(t.id)+int(t.id[len(t.id)-1])%20) * time.Second)
	c.ask(http.MethodDelete, t.path("/moves/"+id), "", nil, http.StatusAccepted, http.StatusConflict)
	if c.until(id, 10*time.Minute, "cancelled", "done") {
		c.move(t, "again", "")
	}
}

// drained is one whose server is emptied, and opened again afterwards.
func drained(c *caller, t *wanted) {
	if c.spare(t) == "" {
		return
	}
	id := c.server(t)
	if id == "" {
		return
	}
	status := 999
	c.askUntil(http.MethodPost, "/v1/servers/"+id+"/drain", "", map[string]any{"timeout_seconds": 600}, &status,
		[]int{http.StatusAccepted, http.StatusConflict, http.StatusNotFound})
	if status >= 300 {
		return
	}
	c.until(id+"/maintenance", 15*time.Minute, "done", "failed", "cancelled")
	c.ask(http.MethodPost, "/v1/servers/"+id+"/uncordon", "", nil, http.StatusOK, http.StatusConflict)
}

// restored is one whose site is brought back to a backup, while others write to it.
func restored(c *caller, t *wanted) {
	backup := c.backup(t, "first")
	if backup == "" {
		return
	}
	time.Sleep(2 * time.Minute)
	var j struct {
		JobID string `json:"job_id"`
	}
	// Retention may have deleted it meanwhile.
	c.askUntil(http.MethodPost, t.path("/restores"), "restore-"+t.slug, map[string]any{"backup_id": backup}, &j,
		[]int{http.StatusAccepted, http.StatusConflict, http.StatusUnprocessableEntity})
	if j.JobID == "" {
		return
	}
	if c.until(j.JobID, 10*time.Minute, "succeeded", "failed") && strings.HasSuffix(t.slug, "1") {
		terminated(c, t)
	}
}

// cloned is a tenant with a copy beside it from then on, which is terminated in some seeds.
func cloned(c *caller, t *wanted) {
	if c.backup(t, "first") == "" {
		return
	}
	copied := &wanted{slug: t.slug + "c", region: t.region}
	var made struct {
		TenantID string `json:"tenant_id"`
	}
	c.askUntil(http.MethodPost, t.path("/clones"), "clone-"+t.slug, map[string]any{"slug": copied.slug}, &made,
		[]int{http.StatusAccepted, http.StatusConflict})
	if copied.id = made.TenantID; copied.id == "" {
		return
	}
	c.w.visitors(copied.slug)
	if c.until(copied.slug, 10*time.Minute, "active") && strings.HasSuffix(t.slug, "1") {
		c.ask(http.MethodPost, copied.path("/unmute"), "unmute-"+copied.slug, nil, http.StatusOK, http.StatusAccepted,
			http.StatusConflict)
	}
}

// server is where a tenant is; "" if it is nowhere.
func (c *caller) server(t *wanted) string {
	var is struct {
		Allocation struct {
			AppServerID string `json:"app_server_id"`
		} `json:"allocation"`
	}
	c.askUntil(http.MethodGet, t.path(""), "", nil, &is, []int{http.StatusOK})
	return is.Allocation.AppServerID
}

// lost is a tenant whose server dies with all its tenants, some with a backup and some in the middle of a move.
func lost(c *caller, t *wanted) {
	if c.backup(t, "first") == "" {
		return
	}
	if strings.HasSuffix(t.slug, "2") {
		if spare := c.spare(t); spare != "" {
			c.move(t, "move", spare)
			time.Sleep(30 * time.Second)
		}
	}
	id := c.server(t)
	for try := 0; id != "" && try < 5; try++ {
		var p api.Problem
		c.askUntil(http.MethodPost, "/v1/servers/"+id+"/lost", fmt.Sprintf("lost-%s-%d", t.slug, try), nil, &p,
			[]int{http.StatusAccepted, http.StatusConflict, http.StatusNotFound})
		if p.Code != string(prego.CodeSiteAnswers) {
			return
		}
		c.w.Met("a server whose sites answer was not declared lost")
		c.switchOff(id)
		time.Sleep(time.Minute)
	}
}

// switchOff switches a server off at the provider, past the control plane.
func (c *caller) switchOff(id string) {
	var s api.Server
	found := c.askUntil(http.MethodGet, "/v1/servers/"+id, "", nil, &s, []int{http.StatusOK})
	if !found || s.Provider.ProviderServerId == nil {
		return
	}
	path := "/v1/servers/" + *s.Provider.ProviderServerId + "/actions/poweroff"
	req := httptest.NewRequestWithContext(context.Background(), http.MethodPost, path, http.NoBody)
	req.Header.Set("Authorization", "Bearer "+ProviderToken)
	c.w.provider.ServeHTTP(httptest.NewRecorder(), req)
}

// until waits until an object with an id, or a tenant by its slug, is in one of these states. It reads the state
// between the play's steps, without requests.
func (c *caller) until(id string, within time.Duration, states ...string) bool {
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(10 * time.Second) {
		c.w.mu.Lock()
		state := c.w.states[id]
		c.w.mu.Unlock()
		if slices.Contains(states, state) {
			return true
		}
		if state == "failed" || c.w.over() {
			return false
		}
	}
	return false
}

// lookAround reads the states that callers wait for.
func (w *World) lookAround(watch *pgxpool.Pool) {
	found, err := w.rows(watch, `SELECT slug || ' ' || state FROM tenants UNION ALL SELECT backup_id || ' ' || state FROM backups UNION ALL SELECT move_id || ' ' || state FROM tenant_moves
		UNION ALL SELECT slug || '/move ' || (SELECT m.state FROM tenant_moves m WHERE m.tenant_id = t.tenant_id ORDER BY m.created_at DESC LIMIT 1) FROM tenants t
		UNION ALL SELECT job_id || ' ' || status FROM restore_jobs UNION ALL SELECT drill_id || ' ' || state FROM drills UNION ALL SELECT server_id || '/maintenance ' || status FROM server_maintenances UNION ALL SELECT server_id || ' ' || status FROM servers UNION ALL SELECT domain_id || ' ' || status FROM domains`)
	if err != nil {
		w.violationf("states: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range found {
		id, state, _ := strings.Cut(f, " ")
		w.states[id] = state
		if state == "active" {
			w.active[id] = true
		}
	}
}

// visitors come to a tenant's site as long as the play runs, and often while it moves.
func (w *World) visitors(slug string) {
	w.ending.Add(1)
	go func() {
		defer w.ending.Done()
		for waited := time.Duration(0); !w.over(); waited += 3 * time.Second {
			time.Sleep(3 * time.Second)
			w.mu.Lock()
			move := w.states[slug+"/move"]
			w.mu.Unlock()
			if waited >= 50*time.Second || move == "queued" || move == "copying" || move == "frozen" {
				waited = 0
				w.visit(slug)
			}
		}
	}()
}
