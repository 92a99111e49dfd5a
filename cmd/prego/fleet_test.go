package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/server"
)

// told remembers the requests that an API is sent, and answers each with what is
// said of its method and path.
type told struct {
	mu      sync.Mutex
	bodies  map[string]string
	headers map[string]http.Header
	say     map[string]func(http.ResponseWriter)
}

func (a *told) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, _ := io.ReadAll(r.Body)
	key := r.Method + " " + r.URL.RequestURI()
	a.bodies[key], a.headers[key] = string(b), r.Header
	if say, ok := a.say[key]; ok {
		say(w)
		return
	}
	refused(http.StatusNotFound, prego.CodeNotFound)(w)
}

// operate runs a verb against an API that answers as said.
func operate(t *testing.T, verb *cobra.Command, stdin string, say map[string]func(http.ResponseWriter), args ...string) (string, *told, error) {
	t.Helper()
	a := &told{bodies: map[string]string{}, headers: map[string]http.Header{}, say: say}
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	t.Setenv("PREGO_API_URL", srv.URL)
	t.Setenv("PREGO_TOKEN", "x")
	verb.SilenceUsage, verb.SilenceErrors = true, true
	var out bytes.Buffer
	verb.SetOut(&out)
	verb.SetErr(&out)
	verb.SetIn(strings.NewReader(stdin))
	verb.SetArgs(args)
	err := verb.ExecuteContext(context.Background())
	return out.String(), a, err
}

func exitCode(t *testing.T, err error, want int) {
	t.Helper()
	if want == 0 {
		require.NoError(t, err)
		return
	}
	var exit *exitError
	require.True(t, errors.As(err, &exit), "%v", err)
	require.Equal(t, want, exit.code, "%v", err)
}

func TestActionsAreAskedForWithTheFlagsGiven(t *testing.T) {
	accepted := answer(http.StatusAccepted, api.FleetActionAccepted{FleetId: "pool", Seq: 7, Status: "queued", WorkflowId: "fleet-scale/pool"})
	for args, body := range map[string]string{
		"scale-out pool": `{"action":"CLUSTER_SCALE_OUT","inputs":{}}`,
		"scale-out pool --count 3 --region eu --region us":      `{"action":"CLUSTER_SCALE_OUT","inputs":{"count":3,"regions":["eu","us"]}}`,
		"scale-out pool --count 0":                              `{"action":"CLUSTER_SCALE_OUT","inputs":{"count":0}}`,
		"scale-in pool --count 2":                               `{"action":"CLUSTER_SCALE_IN","inputs":{"count":2}}`,
		"resize pool --to 5":                                    `{"action":"CLUSTER_RESIZE","inputs":{"adjustment_type":"EXACT_CAPACITY","number":5}}`,
		"resize pool --by -2 --best-effort":                     `{"action":"CLUSTER_RESIZE","inputs":{"adjustment_type":"CHANGE_IN_CAPACITY","number":-2,"strict":false}}`,
		"resize pool --percent 50 --min-step 2 --min 1 --max 9": `{"action":"CLUSTER_RESIZE","inputs":{"adjustment_type":"CHANGE_IN_PERCENTAGE","number":50,"min_step":2,"min_size":1,"max_size":9}}`,
		"replace pool --max-surge 2 --grace-period 1h":          `{"action":"CLUSTER_REPLACE","inputs":{"max_surge":2,"grace_period":3600}}`,
		"replace pool":                                          `{"action":"CLUSTER_REPLACE","inputs":{}}`,
		"node-create pool --region sg --idempotency-key k":      `{"action":"NODE_CREATE","inputs":{"region":"sg"}}`,
	} {
		out, a, err := operate(t, newFleetCommand(), "", map[string]func(http.ResponseWriter){"POST /v1/fleets/pool/actions": accepted}, strings.Fields(args)...)
		require.NoError(t, err, args)
		require.JSONEq(t, body, a.bodies["POST /v1/fleets/pool/actions"], args)
		require.Equal(t, "accepted: fleet pool action 7 is queued, workflow fleet-scale/pool\n", out, args)
		if strings.Contains(args, "--idempotency-key") {
			require.Equal(t, "k", a.headers["POST /v1/fleets/pool/actions"].Get("Idempotency-Key"))
		}
	}
	for args, want := range map[string]string{
		"resize pool --to 5 --by 2":        "[by to] were all set",
		"scale-out pool --dry-run --watch": "[dry-run watch] were all set",
		"scale-out":                        "accepts 1 arg(s), received 0",
		"scale-out a b":                    "accepts 1 arg(s), received 2",
		"scale-in pool --region eu":        "unknown flag: --region",
		"show pool -o yaml":                `--output must be table or json, not "yaml"`,
	} {
		_, _, err := operate(t, newFleetCommand(), "", nil, strings.Fields(args)...)
		require.ErrorContains(t, err, want, args)
	}
	_, _, err := operate(t, newFleetCommand(), "", map[string]func(http.ResponseWriter){"POST /v1/fleets/pool/actions": refused(422, prego.CodeInvalidField)}, "scale-out", "pool")
	exitCode(t, err, 2)
	for _, args := range [][]string{{"action", "pool", "first"}, {"cancel", "pool", "0"}} {
		_, _, err := operate(t, newFleetCommand(), "", nil, args...)
		exitCode(t, err, 2)
	}
}

func TestADryRunShowsCountsAndServers(t *testing.T) {
	path := "POST /v1/fleets/pool/actions?dry_run=true"
	id := "pool-1-2"
	reason, message := "no_feasible_plan", "There is no feasible plan to handle all nodes."
	for name, tc := range map[string]struct {
		plan api.FleetActionPlan
		want []string
		code int
	}{
		"grows": {api.FleetActionPlan{
			Data: json.RawMessage(`{"status":"OK","creation":{"count":3,"regions":{"eu":2,"us":1}}}`), DesiredCapacity: 5,
			Steps: []api.FleetPlannedStep{{Op: "create", Region: "us", Round: 1}, {Op: "create", Region: "eu", Round: 1}, {Op: "create", Region: "eu", Round: 1}},
		}, []string{"make", "eu 2, us 1", "desired", "5"}, 0},
		"shrinks": {api.FleetActionPlan{
			Data: json.RawMessage(`{"status":"OK","deletion":{"count":1,"candidates":["pool-1-2"],"grace_period":90}}`), DesiredCapacity: 1,
			Steps: []api.FleetPlannedStep{{Op: "delete", ServerId: &id, Region: "us", Round: 1}},
		}, []string{"take down", "us 1", "pool-1-2", "1m30s"}, 0},
		"replaces": {api.FleetActionPlan{
			Data: json.RawMessage(`{"status":"OK","replacement":{"count":1,"regions":{"us":1},"max_surge":2}}`), DesiredCapacity: 1,
			Steps: []api.FleetPlannedStep{{Op: "create", Region: "us", Round: 1}, {Op: "delete", ServerId: &id, Region: "us", Round: 1}},
		}, []string{"make", "take down", "at once", "2"}, 0},
		"does nothing": {api.FleetActionPlan{Data: json.RawMessage(`{"status":"OK"}`), DesiredCapacity: 2}, []string{"nothing to do"}, 0},
		"can't": {api.FleetActionPlan{
			Data: json.RawMessage(`{"status":"ERROR","reason":"There is no feasible plan to handle all nodes."}`), Reason: &reason, Message: &message, DesiredCapacity: 2,
		}, nil, exitOutcome},
	} {
		if tc.plan.Steps == nil {
			tc.plan.Steps = []api.FleetPlannedStep{}
		}
		out, _, err := operate(t, newFleetCommand(), "", map[string]func(http.ResponseWriter){path: answer(200, tc.plan)}, "scale-out", "pool", "--dry-run")
		exitCode(t, err, tc.code)
		for _, want := range tc.want {
			require.Contains(t, out, want, name)
		}
		out, _, err = operate(t, newFleetCommand(), "", map[string]func(http.ResponseWriter){path: answer(200, tc.plan)}, "scale-out", "pool", "--dry-run", "-o", "json")
		exitCode(t, err, tc.code)
		require.Contains(t, out, `"desired_capacity"`, name)
	}
}

// acting is an answer with an action's steps in the states given.
func acting(status server.FleetActionStatus, data string, states ...string) func(http.ResponseWriter) {
	a := api.FleetAction{FleetId: "pool", Seq: 7, Action: "CLUSTER_SCALE_OUT", Inputs: json.RawMessage(`{"count": 2}`), Data: json.RawMessage(data), Status: api.FleetActionStatus(status), RequestedBy: "me", CreatedAt: born}
	steps := []api.FleetActionStep{}
	for i, st := range states {
		at := born.Add(time.Duration(i+1) * time.Second)
		a.StartedAt = &at
		steps = append(steps, api.FleetActionStep{Op: "create", ServerId: "pool-7-" + string(rune('1'+i)), Region: "eu", Round: 1, State: api.FleetActionStepState(st), At: at, Replan: i == 2})
	}
	a.Steps = &steps
	if status.Ended() {
		a.FinishedAt = a.StartedAt
	}
	if status == server.ActionFailed {
		reason := "servers_failed"
		a.Reason = &reason
	}
	return answer(http.StatusOK, a)
}

func TestWatchingAnActionShowsEachStepOnce(t *testing.T) {
	t.Parallel()
	hangUp := func(w http.ResponseWriter) {
		c, _, err := w.(http.Hijacker).Hijack()
		require.NoError(t, err)
		_ = c.Close()
	}
	plan, anew := `{"status":"OK","creation":{"count":2,"regions":{"eu":2}}}`, `{"status":"OK","creation":{"count":2,"regions":{"eu":1,"us":1}}}`
	c, _ := scriptedClient(t, acting(server.ActionQueued, `{}`), acting(server.ActionRunning, plan, "planned", "planned"), hangUp, refused(503, prego.CodeNotReady),
		acting(server.ActionRunning, plan, "done", "planned"), acting(server.ActionRunning, anew, "done", "failed", "planned"), acting(server.ActionSucceeded, anew, "done", "failed", "done"))
	var out bytes.Buffer
	a, err := c.watchAction(context.Background(), &out, "pool", 7, time.Minute)
	require.NoError(t, err)
	require.EqualValues(t, "succeeded", a.Status)
	text := out.String()
	for want, times := range map[string]int{
		"queued  CLUSTER_SCALE_OUT": 1, "planned  {": 1, "planned anew  {": 1, "pool-7-1               eu  planned": 1, "pool-7-1               eu  done": 1,
		"pool-7-2               eu  failed": 1, "in place of one that failed": 2, "succeeded": 1, "does not answer": 1, "    2.00s": 3,
	} {
		require.Equal(t, times, strings.Count(text, want), "%q in\n%s", want, text)
	}
	c, s := scriptedClient(t, refused(404, prego.CodeActionNotFound))
	_, err = c.watchAction(context.Background(), &out, "pool", 7, time.Minute)
	require.ErrorContains(t, err, "action_not_found")
	require.Len(t, s.asked, 1)
	c, _ = scriptedClient(t, refused(503, prego.CodeNotReady))
	_, err = c.watchAction(context.Background(), &out, "pool", 7, 300*time.Millisecond)
	require.ErrorContains(t, err, "not_ready")
}

func TestExitStatusOfActions(t *testing.T) {
	for status, code := range map[server.FleetActionStatus]int{server.ActionSucceeded: 0, server.ActionFailed: exitOutcome, server.ActionCancelled: exitOutcome} {
		say := map[string]func(http.ResponseWriter){
			"POST /v1/fleets/pool/actions":  answer(http.StatusAccepted, api.FleetActionAccepted{FleetId: "pool", Seq: 7}),
			"GET /v1/fleets/pool/actions/7": acting(status, `{"status":"OK"}`, "done"),
		}
		out, _, err := operate(t, newFleetCommand(), "", say, "scale-out", "pool", "--watch")
		exitCode(t, err, code)
		require.Contains(t, out, string(status))
		_, _, err = operate(t, newFleetCommand(), "", say, "action", "pool", "7", "--watch", "-o", "json")
		exitCode(t, err, code)
		out, _, err = operate(t, newFleetCommand(), "", say, "action", "pool", "7")
		require.NoError(t, err)
		require.Contains(t, out, "pool-7-1")
	}
}

func TestFleetsAreShownAndChanged(t *testing.T) {
	used := born
	f := api.ServerFleet{
		FleetId: "pool", Role: "app", InfraProvider: "hetzner", MaxSize: -1, Size: 3, DesiredCapacity: 4, Regions: map[string]int64{"us": 1, "eu": 2}, Profile: 2, CreatedAt: born,
		Policies: &[]api.AttachedPolicy{{PolicyId: "spread", Type: "region_placement", Spec: json.RawMessage(`{"regions":[]}`), Position: 10, Enabled: true, LastUsedAt: &used}},
	}
	next := "pool"
	say := map[string]func(http.ResponseWriter){
		"GET /v1/fleets?limit=200":               answer(200, api.ServerFleetPage{Fleets: []api.ServerFleet{f}, NextCursor: &next}),
		"GET /v1/fleets?cursor=pool&limit=200":   answer(200, api.ServerFleetPage{Fleets: []api.ServerFleet{f}}),
		"GET /v1/fleets/pool":                    answer(200, f),
		"POST /v1/fleets":                        answer(201, f),
		"PATCH /v1/fleets/pool":                  answer(200, f),
		"PUT /v1/fleets/pool/policies/spread":    answer(200, f),
		"DELETE /v1/fleets/pool/policies/spread": answer(204, nil),
		"DELETE /v1/fleets/pool":                 answer(204, nil),
		"POST /v1/fleets/pool/actions/7/cancel":  acting(server.ActionCancelled, `{}`),
		"GET /v1/fleets/pool/actions?limit=50":   answer(200, api.FleetActionPage{Actions: []api.FleetAction{{Seq: 7, Action: "NODE_CREATE", Status: "queued", Data: json.RawMessage(`{}`)}}}),
	}
	for args, want := range map[string]string{
		"list":                       "eu 2, us 1",
		"show pool":                  "size 3, desired 4, min 0, max none",
		"create pool --role app":     "by policy at hetzner",
		"update pool --max 9":        "region_placement",
		"attach pool spread":         "spread",
		"detach pool spread":         "detached: policy spread from fleet pool",
		"delete pool":                "deleted: fleet pool",
		"cancel pool 7":              "fleet pool action 7 is cancelled",
		"actions pool":               "NODE_CREATE",
		"actions pool --output json": `"NODE_CREATE"`,
	} {
		out, _, err := operate(t, newFleetCommand(), "", say, strings.Fields(args)...)
		require.NoError(t, err, args)
		require.Contains(t, strings.Join(strings.Fields(out), " "), want, args)
	}
	_, a, err := operate(t, newFleetCommand(), "", say, strings.Fields("create pool --role app --min 1 --max 5 --tag a --require a --serves-tenants --policy spread")...)
	require.NoError(t, err)
	require.JSONEq(t, `{"fleet_id":"pool","role":"app","infra_provider":"hetzner","min_size":1,"max_size":5,"spec":{"tags":["a"]},"constraint":{"require":["a"]},"serves_tenants":true}`,
		strings.Replace(a.bodies["POST /v1/fleets"], `,"disallow":null`, "", 1))
	require.JSONEq(t, `{}`, a.bodies["PUT /v1/fleets/pool/policies/spread"])

	// A flag of the spec leaves the others as they are.
	f.Spec = api.ServerSpec{Tags: &[]string{"old"}}
	image := "debian-13"
	f.Spec.Image = &image
	say["GET /v1/fleets/pool"] = answer(200, f)
	_, a, err = operate(t, newFleetCommand(), "", say, strings.Fields("update pool --tag new --min 0")...)
	require.NoError(t, err)
	require.JSONEq(t, `{"min_size":0,"spec":{"image":"debian-13","tags":["new"]}}`, a.bodies["PATCH /v1/fleets/pool"])
	_, a, err = operate(t, newFleetCommand(), "", say, strings.Fields("update pool --serves-tenants=false")...)
	require.NoError(t, err)
	require.JSONEq(t, `{"serves_tenants":false}`, a.bodies["PATCH /v1/fleets/pool"])
	_, _, err = operate(t, newFleetCommand(), "", say, "update", "pool")
	exitCode(t, err, 2)

	// What its servers offer to workloads.
	out, _, err := operate(t, newFleetCommand(), "", say, "show", "pool")
	require.NoError(t, err)
	require.Contains(t, out, "nothing to workloads")
	f.WorkloadMemoryBytes, f.WorkloadCpus = 1536<<20, 1.5
	say["GET /v1/fleets/pool"] = answer(200, f)
	out, a, err = operate(t, newFleetCommand(), "", say, strings.Fields("create pool --role app --workload-memory 1536M --workload-cpus 1.5")...)
	require.NoError(t, err)
	require.Contains(t, out, "1536M of memory and 1.5 CPUs to workloads")
	require.Contains(t, a.bodies["POST /v1/fleets"], `"workload_memory_bytes":1610612736,"workload_cpus":1.5`)
	for args, body := range map[string]string{
		"--workload-memory 2G":                  `{"workload_memory_bytes":2147483648}`,
		"--workload-memory 0 --workload-cpus 0": `{"workload_memory_bytes":0,"workload_cpus":0}`,
		"--workload-cpus 0.5 --tag new --max 3": `{"workload_cpus":0.5,"max_size":3,"spec":{"image":"debian-13","tags":["new"]}}`,
	} {
		_, a, err = operate(t, newFleetCommand(), "", say, append([]string{"update", "pool"}, strings.Fields(args)...)...)
		require.NoError(t, err, args)
		require.JSONEq(t, body, a.bodies["PATCH /v1/fleets/pool"], args)
	}
	for _, bad := range []string{"-1", "2GB", "", "1.5G", "99999999999999999999"} {
		_, a, err = operate(t, newFleetCommand(), "", say, "update", "pool", "--workload-memory="+bad)
		exitCode(t, err, 2)
		require.Empty(t, a.bodies, bad)
		_, a, err = operate(t, newFleetCommand(), "", say, "create", "pool", "--role", "app", "--workload-memory="+bad)
		exitCode(t, err, 2)
		require.Empty(t, a.bodies, bad)
	}
	_, a, err = operate(t, newFleetCommand(), "", say, strings.Fields("attach pool spread --position 3 --disabled")...)
	require.NoError(t, err)
	require.JSONEq(t, `{"position":3,"enabled":false}`, a.bodies["PUT /v1/fleets/pool/policies/spread"])
}

func TestPoliciesFromFlagsAndJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "spec.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"criteria":"RANDOM"}`), 0o600))
	p := api.Policy{PolicyId: "p", Type: "deletion", Spec: json.RawMessage(`{"criteria":"RANDOM"}`), CreatedAt: born, UpdatedAt: born}
	say := map[string]func(http.ResponseWriter){
		"POST /v1/policies": answer(201, p), "PUT /v1/policies/p": answer(200, p), "GET /v1/policies/p": answer(200, p), "DELETE /v1/policies/p": answer(204, nil),
		"GET /v1/policies?limit=200&type=deletion": answer(200, api.PolicyPage{Policies: []api.Policy{p}}),
	}
	for args, body := range map[string]string{
		"create p --region eu=100 --region us=50:3 --region sg": `{"policy_id":"p","type":"region_placement","spec":{"regions":[{"name":"eu","weight":100},{"name":"us","weight":50,"cap":3},{"name":"sg"}]}}`,
		"create p --region eu=-1:-2":                            `{"policy_id":"p","type":"region_placement","spec":{"regions":[{"name":"eu","weight":-1,"cap":-2}]}}`,
		"create p --criteria OLDEST_FIRST --grace-period 1h":    `{"policy_id":"p","type":"deletion","spec":{"criteria":"OLDEST_FIRST","grace_period":3600}}`,
		"create p --grace-period 5m":                            `{"policy_id":"p","type":"deletion","spec":{"grace_period":300}}`,
		"create p --event CLUSTER_SCALE_OUT --adjustment CHANGE_IN_PERCENTAGE --number 20 --min-step 2 --cooldown 5m --best-effort": `{"policy_id":"p","type":"scaling","spec":{"event":"CLUSTER_SCALE_OUT",
			"adjustment":{"type":"CHANGE_IN_PERCENTAGE","number":20,"min_step":2,"cooldown":300,"best_effort":true}}}`,
		"create p --type deletion --spec -":       `{"policy_id":"p","type":"deletion","spec":{"from":"stdin"}}`,
		"create p --type deletion --spec " + file: `{"policy_id":"p","type":"deletion","spec":{"criteria":"RANDOM"}}`,
		"update p --criteria RANDOM":              `{"spec":{"criteria":"RANDOM","grace_period":0}}`,
		"update p --spec -":                       `{"spec":{"from":"stdin"}}`,
	} {
		out, a, err := operate(t, newPolicyCommand(), `{"from":"stdin"}`, say, strings.Fields(args)...)
		require.NoError(t, err, args)
		require.JSONEq(t, body, a.bodies["POST /v1/policies"]+a.bodies["PUT /v1/policies/p"], args)
		require.Contains(t, out, `{"criteria":"RANDOM"}`, args)
	}
	for _, args := range []string{
		"create p", "update p", "create p --spec -", "create p --type deletion --spec - --criteria RANDOM", "create p --region eu --criteria RANDOM", "create p --number 3 --grace-period 1s",
		"create p --type scaling --criteria RANDOM", "create p --region eu=many", "create p --region eu=1:", "create p --region eu=1:2.5", "create p --type deletion --spec " + file + ".not",
	} {
		_, a, err := operate(t, newPolicyCommand(), `{}`, say, strings.Fields(args)...)
		exitCode(t, err, 2)
		require.Empty(t, a.bodies, args)
	}
	_, _, err := operate(t, newPolicyCommand(), `{`, say, "update", "p", "--spec", "-")
	exitCode(t, err, 2)
	for _, args := range []string{"list --type deletion", "show p", "list --type deletion -o json", "show p -o json"} {
		out, _, err := operate(t, newPolicyCommand(), "", say, strings.Fields(args)...)
		require.NoError(t, err, args)
		require.Contains(t, out, "RANDOM", args)
	}
	out, _, err := operate(t, newPolicyCommand(), "", say, "delete", "p")
	require.NoError(t, err)
	require.Equal(t, "deleted: policy p\n", out)
	_, _, err = operate(t, newPolicyCommand(), "", nil, "show", "p")
	exitCode(t, err, 2)
}
