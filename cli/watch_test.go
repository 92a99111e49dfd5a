package cli

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/workload"
)

// inState is an answer with a tenant in a state, after n events of its life.
func inState(state, converged, reason string, n int) func(http.ResponseWriter) {
	t := api.Tenant{TenantId: "t-aaaabbbbcccc", Slug: "acme", State: api.TenantState(state), ConvergedState: converged, CreatedAt: born, StatusReason: &reason}
	for i := range n {
		t.Timeline = append(t.Timeline, api.TenantEvent{Id: int64(10 + i), At: born.Add(time.Duration(i) * time.Second), Step: "step", Actor: "test"})
	}
	return say(http.StatusOK, t)
}

func TestExitStatusOfChangesOfTenants(t *testing.T) {
	t.Parallel()
	accepted := func(state string) func(http.ResponseWriter) {
		return say(http.StatusAccepted, api.TenantAccepted{TenantId: "t-aaaabbbbcccc", State: api.TenantState(state), WorkflowId: "w"})
	}
	before := inState("active", "active", "", 1)
	for name, tc := range map[string]struct {
		action   string
		accepted func(http.ResponseWriter)
		after    func(http.ResponseWriter)
		code     int
	}{
		"suspended":            {"suspend", accepted("suspended"), inState("suspended", "suspended", "", 2), 0},
		"resumed meanwhile":    {"suspend", accepted("suspended"), inState("active", "active", "", 2), ExitOutcome},
		"refused":              {"resume", refuse(409, "invalid_transition", "no"), before, ExitRefused},
		"retried":              {"retry", accepted("provisioning"), inState("active", "active", "", 2), 0},
		"retried and failed":   {"retry", accepted("provisioning"), inState("failed", "failed", "", 2), ExitOutcome},
		"cancelled in time":    {"cancel", accepted("provisioning"), inState("failed", "failed", "cancelled", 2), 0},
		"cancelled too late":   {"cancel", accepted("provisioning"), inState("active", "active", "", 2), ExitOutcome},
		"cancelled, and alive": {"cancel", accepted("grace_period"), inState("grace_period", "grace_period", "", 2), 0},
	} {
		on := map[string][]func(http.ResponseWriter){"GET /v1/tenants/t-aaaabbbbcccc": {before, tc.after}, "POST /v1/tenants/t-aaaabbbbcccc/" + tc.action: {tc.accepted}}
		r := run(t, around{say: on}, "tenant", tc.action, "t-aaaabbbbcccc", "--watch", "--reason", "because")
		require.Equal(t, tc.code, r.code, "%s: %s", name, r.errs)
		require.JSONEq(t, `{"reason":"because"}`, r.bodies["POST /v1/tenants/t-aaaabbbbcccc/"+tc.action])
	}
}

// acting is an answer with an action's steps in the states given.
func acting(status, data string, states ...string) func(http.ResponseWriter) {
	a := api.FleetAction{FleetId: "pool", Seq: 7, Action: "CLUSTER_SCALE_OUT", Inputs: json.RawMessage(`{"count": 2}`), Data: json.RawMessage(data), Status: api.FleetActionStatus(status), RequestedBy: "me", CreatedAt: born}
	steps := []api.FleetActionStep{}
	for i, st := range states {
		at := born.Add(time.Duration(i+1) * time.Second)
		a.StartedAt = &at
		steps = append(steps, api.FleetActionStep{Op: "create", ServerId: "pool-7-" + string(rune('1'+i)), Region: "eu", Round: 1, State: api.FleetActionStepState(st), At: at, Replan: i == 2})
	}
	a.Steps = &steps
	return say(http.StatusOK, a)
}

func TestWatchingAnActionShowsEachStepOnce(t *testing.T) {
	t.Parallel()
	plan, anew := `{"status":"OK","creation":{"count":2,"regions":{"eu":2}}}`, `{"status":"OK","creation":{"count":2,"regions":{"eu":1,"us":1}}}`
	for status, code := range map[string]int{"succeeded": 0, "failed": ExitOutcome, "cancelled": ExitOutcome} {
		on := map[string][]func(http.ResponseWriter){
			"POST /v1/fleets/pool/actions": {say(http.StatusAccepted, api.FleetActionAccepted{FleetId: "pool", Seq: 7, Status: "queued", WorkflowId: "w"})},
			"GET /v1/fleets/pool/actions/7": {
				acting("queued", `{}`), acting("running", plan, "planned", "planned"), refuse(503, "not_ready", "later"), acting("running", plan, "done", "planned"),
				acting("running", anew, "done", "failed", "planned"), acting(status, anew, "done", "failed", "done"),
			},
		}
		r := run(t, around{say: on}, "fleet", "scale-out", "pool", "--watch")
		require.Equal(t, code, r.code, r.errs)
		for want, times := range map[string]int{
			"queued  CLUSTER_SCALE_OUT": 1, "planned  {": 2, "pool-7-1               eu  planned": 1, "pool-7-1               eu  done": 1,
			"pool-7-2               eu  failed": 1, "replaces a failed action": 2, "waiting for the API": 1,
		} {
			require.Equal(t, times, strings.Count(r.out, want), "%q in\n%s", want, r.out)
		}
		require.Contains(t, r.out+r.errs, status)
	}
}

func TestWatchingAGroupEndsWhenItRests(t *testing.T) {
	t.Parallel()
	const path = "/v1/groups/grp-0123456789ab"
	group := func(change func(*api.ProcessGroup)) func(http.ResponseWriter) {
		g := api.ProcessGroup{
			GroupId: "grp-0123456789ab", Name: "web", Replicas: 2, Release: 2, Spec: workload.Spec{Image: "web:2"}, Status: "pending", DeployStatus: "rolling",
			Instances: map[string]int{"running": 1, "booting": 1}, CreatedAt: born, UpdatedAt: born,
		}
		change(&g)
		return say(http.StatusOK, g)
	}
	same := group(func(*api.ProcessGroup) {})
	reason, message := "org_quota_exceeded:max_instances", "2 are used\nand a line more"
	short := group(func(g *api.ProcessGroup) {
		g.Status, g.StatusReason, g.StatusMessage = "unschedulable", &reason, &message
	})
	for last, code := range map[string]int{"succeeded": 0, "rolled_back": ExitOutcome} {
		end := group(func(g *api.ProcessGroup) { g.Converged, g.DeployStatus, g.Status = true, last, "running" })
		r := run(t, around{say: map[string][]func(http.ResponseWriter){"GET " + path: {same, same, same, short, end}}}, "group", "watch", "grp-0123456789ab")
		require.Equal(t, code, r.code, r.errs)
		require.Len(t, strings.Split(strings.TrimSpace(r.out), "\n"), 3, "an unchanged state is printed once:\n%s", r.out)
		require.Contains(t, r.out, "unschedulable: org_quota_exceeded:max_instances, 2 are used and a line more\n")
	}
}

func TestPasswordsAreShownOnce(t *testing.T) {
	t.Parallel()
	site := "https://a.b.c"
	on := always(map[string]any{"POST /v1/tenants/t-aaaabbbbcccc/admin-password": api.AdminPassword{User: "Administrator", Password: "abc", SiteUrl: &site}})
	r := run(t, around{say: on}, "tenant", "password", "t-aaaabbbbcccc")
	require.Equal(t, "user      Administrator\npassword  abc\nsite      https://a.b.c\n", r.out)
	require.Equal(t, "This password is not stored and will not be shown again.\n", r.errs)
	r = run(t, around{say: on}, "tenant", "password", "t-aaaabbbbcccc", "-o", "json")
	require.JSONEq(t, `{"user":"Administrator","password":"abc","site_url":"https://a.b.c"}`, r.out)
}

func TestACommandEndsAsItDidOnTheHost(t *testing.T) {
	t.Parallel()
	stream := func(events string) map[string][]func(http.ResponseWriter) {
		return map[string][]func(http.ResponseWriter){"POST /v1/servers/app-1/exec": {say(http.StatusOK, events)}}
	}
	lines := "event: progress\ndata: {\"stream\":\"stdout\",\"line\":\"out\"}\n\nevent: progress\ndata: {\"stream\":\"stderr\",\"line\":\"err\"}\n\n"
	r := run(t, around{say: stream(lines + "event: result\ndata: {\"exit_code\":7}\n\n")}, "exec", "app-1", "bench", "--", "list-apps")
	require.Equal(t, []any{"out\n", "err\n", 7}, []any{r.out, r.errs, r.code})
	require.JSONEq(t, `{"kind":"bench","args":["list-apps"],"timeout_seconds":60}`, r.bodies["POST /v1/servers/app-1/exec"])
	r = run(t, around{say: stream(lines)}, "exec", "app-1", "bench", "--", "list-apps")
	require.Equal(t, ExitUsage, r.code)
	require.Contains(t, r.errs, "the command may still be running")

	refused, err := json.Marshal(api.Problem{Title: "Conflict", Status: 409, Code: "impact_not_accepted", Impact: &impact.Impact{
		Class: impact.Interrupts, Affected: []impact.Thing{{Kind: "tenant", ID: "t-1", Name: "bakery", Class: impact.Interrupts}}, Digest: "1-abcd",
	}})
	require.NoError(t, err)
	asks := func() map[string][]func(http.ResponseWriter) {
		return map[string][]func(http.ResponseWriter){"POST /v1/servers/app-1/exec": {
			say(http.StatusConflict, string(refused)), say(http.StatusOK, "event: result\ndata: {\"exit_code\":0}\n\n"),
		}}
	}
	migrate := []string{"exec", "app-1", "bench", "--", "--site", "bakery.example.com", "migrate"}
	r = run(t, around{say: asks(), width: 80, stdin: "app-1\n"}, migrate...)
	require.Contains(t, r.errs, "Type app-1 to accept that: ")
	require.Zero(t, r.code, r.errs)
	require.Equal(t, "1-abcd", r.headers["POST /v1/servers/app-1/exec"].Get("Impact-Accepted"))
	r = run(t, around{say: asks()}, append([]string{"exec", "--yes"}, migrate[1:]...)...)
	require.Zero(t, r.code, r.errs)
	r = run(t, around{say: asks()}, migrate...)
	require.Equal(t, ExitUsage, r.code)
	r = run(t, around{say: map[string][]func(http.ResponseWriter){"POST /v1/servers/app-1/exec": {
		say(http.StatusOK, `{"impact":{"class":"interrupts","affected":[],"destroyed":[]}}`),
	}}}, append([]string{"exec", "--dry-run"}, migrate[1:]...)...)
	require.Zero(t, r.code, r.errs)
	require.Contains(t, r.out, "nothing has changed")
}

// TestAWatchTimesWhatHasNoTime: an image reports its current state, but not since when.
func TestAWatchTimesWhatHasNoTime(t *testing.T) {
	t.Parallel()
	states := []string{"building", "verifying", "ready"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		say(http.StatusOK, api.GoldenImage{ImageId: "img-1", Status: api.GoldenImageStatus(states[0]), CreatedAt: born})(w)
		states = states[1:]
	}))
	t.Cleanup(server.Close)
	var out strings.Builder
	now := born
	spin := &spinner{w: &out, now: func() time.Time { now = now.Add(3 * time.Second); return now }}
	_, _, err := imageWatch().until(t.Context(), NewClient(server.URL, "token"), "/v1/images/img-1", map[string]bool{}, spin)
	require.NoError(t, err)
	require.Equal(t, "    0.00s  img-1  building\n    3.00s  img-1  verifying\n    6.00s  img-1  ready\n", out.String())
}

// listed is an answer with servers in states, in the order of their names.
func listed(states map[string]string) func(http.ResponseWriter) {
	var page api.ServerPage
	for _, id := range slices.Sorted(maps.Keys(states)) {
		page.Servers = append(page.Servers, api.ServerSummary{
			ServerId: id, Role: "app", Region: "eu", Status: api.ServerStatus(states[id]), AgentStatus: "connected",
			CreatedAt: born,
		})
	}
	return say(http.StatusOK, page)
}

// then ends a watch with an answer.
func then(end func(), answer func(http.ResponseWriter)) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		answer(w)
		end()
	}
}

func TestAWatchedListShowsEachChange(t *testing.T) {
	t.Parallel()
	watched := func(width int, args ...string) ran {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		first := listed(map[string]string{"app-1": "active", "app-2": "provisioning"})
		later := listed(map[string]string{"app-1": "active", "app-3": "provisioning"})
		on := map[string][]func(http.ResponseWriter){"GET /v1/servers": {first, first, later, then(end, later)}}
		return run(t, around{width: width, ctx: ctx, say: on}, append([]string{"server", "list", "--watch"}, args...)...)
	}
	r := watched(0)
	require.Zero(t, r.code, "an interruption is its end: %s", r.errs)
	require.Equal(t, "app-1  app  eu  active  connected  -\napp-2  app  eu  provisioning  connected  -\n"+
		"app-3  app  eu  provisioning  connected  -\napp-2  gone\n", r.out, "in a pipe, a line for each change")
	r = watched(120)
	require.Zero(t, r.code, r.errs)
	require.GreaterOrEqual(t, strings.Count(r.out, "\x1b[H\x1b[2J"), 2, "a terminal is drawn again: %q", r.out)
	require.Contains(t, r.out, "SERVER")
	require.Equal(t, "app-1\napp-2\napp-3\n", watched(0, "-q").out)
	lines := strings.Split(strings.TrimSpace(watched(0, "-o", "json").out), "\n")
	require.Len(t, lines, 3)
	require.Contains(t, lines[2], `"server_id":"app-3"`)
	require.Equal(t, ExitUsage, watched(0, "-o", "csv").code)
}

func TestAWatchedStatusShowsEachChange(t *testing.T) {
	t.Parallel()
	needs := func(ids ...string) func(http.ResponseWriter) {
		out := api.AttentionList{Items: []api.Attention{}, AsOf: born}
		for _, id := range ids {
			out.Items = append(out.Items, api.Attention{
				Id: id, Kind: "agent_silent", Severity: "critical", Message: "it is silent", Since: born,
			})
		}
		out.Counts.Critical = len(ids)
		return say(http.StatusOK, out)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	on := map[string][]func(http.ResponseWriter){
		"GET /v1/attention": {needs("a"), needs("a", "b"), then(end, needs("b"))},
	}
	r := run(t, around{ctx: ctx, say: on}, "status", "--watch")
	require.Zero(t, r.code, r.errs)
	require.Equal(t, 2, strings.Count(r.out, "it is silent"), r.out)
}

func TestABackupIsWatched(t *testing.T) {
	t.Parallel()
	in := func(state string, status int) func(http.ResponseWriter) {
		return say(status, api.Backup{
			BackupId: "bak-aaaabbbbcccc", State: api.BackupState(state), Site: "bakery.sites.test", CreatedAt: born,
		})
	}
	for state, code := range map[string]int{"stored": 0, "failed": ExitOutcome} {
		on := map[string][]func(http.ResponseWriter){
			"POST /v1/tenants/t-aaaabbbbcccc/backups": {in("queued", http.StatusAccepted)},
			"GET /v1/tenants/t-aaaabbbbcccc/backups/bak-aaaabbbbcccc": {
				in("making", 200), in("uploading", 200), in(state, 200),
			},
		}
		r := run(t, around{say: on}, "backup", "create", "t-aaaabbbbcccc", "--watch")
		require.Equal(t, code, r.code, r.errs)
		require.Contains(t, r.out, "uploading")
		require.Equal(t, code == 0, strings.Contains(r.out, "backup bak-aaaabbbbcccc is stored"), r.out)
	}
}
