package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/workload"
)

// groupWith is an answer with a group in some state.
func groupWith(change func(*api.ProcessGroup)) func(http.ResponseWriter) {
	g := api.ProcessGroup{
		GroupId: "grp-0123456789ab", EnvId: "env-live", OrgId: "acme", Region: "eu", Name: "web", Replicas: 2, Release: 2, StableRelease: 1,
		Spec: workload.Spec{Image: "web:2", MemoryLimitBytes: 64 << 20, CPURequest: 0.5}, Status: "pending", DeployStatus: "rolling",
		Instances: map[string]int{"running": 1, "booting": 1}, CreatedAt: born, UpdatedAt: born,
	}
	change(&g)
	return answer(http.StatusOK, g)
}

func TestWatchingAGroupEndsWhenItRests(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		last func(*api.ProcessGroup)
		code int
	}{
		"deployed":    {func(g *api.ProcessGroup) { g.Converged, g.DeployStatus, g.Status = true, "succeeded", "running" }, 0},
		"rolled back": {func(g *api.ProcessGroup) { g.Converged, g.DeployStatus, g.Status = true, "rolled_back", "running" }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reason, message := "org_quota_exceeded:max_instances", "2 are used\nand a line more"
			same := groupWith(func(*api.ProcessGroup) {})
			c, s := scriptedClient(t, same, same, groupWith(func(g *api.ProcessGroup) {
				g.Status, g.StatusReason, g.StatusMessage = "unschedulable", &reason, &message
			}), groupWith(tc.last))
			var out bytes.Buffer
			err := watchGroup(context.Background(), &out, c, "grp-0123456789ab", time.Millisecond)
			var exit *exitError
			if tc.code == 0 {
				require.NoError(t, err)
			} else {
				require.True(t, errors.As(err, &exit))
				require.Equal(t, tc.code, exit.code)
			}
			require.Len(t, strings.Split(strings.TrimSpace(out.String()), "\n"), 3, "what stays the same is said once:\n%s", out.String())
			require.Contains(t, out.String(), "unschedulable: org_quota_exceeded:max_instances: 2 are used\n")
			require.Equal(t, "GET /v1/groups/grp-0123456789ab", s.asked[0])
		})
	}
}

func TestShowingAGroupSaysWhyItIsShort(t *testing.T) {
	t.Parallel()
	reason, message, deploy := "no_capacity_memory", "no server fits: of 1 servers memory 1", "one instance more than replicas at most"
	decision := json.RawMessage(`{"code":"no_capacity_memory"}`)
	tags := []string{"gpu"}
	var out bytes.Buffer
	require.NoError(t, printGroup(&out, api.ProcessGroup{
		GroupId: "grp-0123456789ab", Name: "web", EnvId: "env-live", OrgId: "acme", Region: "eu", Status: "unschedulable", StatusReason: &reason, StatusMessage: &message,
		DeployStatus: "rolling", DeployMessage: &deploy, Replicas: 3, Instances: map[string]int{"running": 2}, Decision: &decision, Constraint: api.Constraint{Require: &tags},
	}))
	for _, want := range []string{"unschedulable: no_capacity_memory", message, "2 of 3 run", deploy, `{"code":"no_capacity_memory"}`, "require gpu"} {
		require.Contains(t, out.String(), want)
	}
}

func TestADecisionIsShownAsASentence(t *testing.T) {
	t.Parallel()
	decision := json.RawMessage(`{"server_id":"n-1","selection_reason":"1 of 1 servers fit"}`)
	g := api.ProcessGroup{Decision: &decision}
	var out bytes.Buffer
	require.NoError(t, printGroup(&out, g))
	require.Contains(t, out.String(), "1 of 1 servers fit (n-1)")
	decision = json.RawMessage(`{"code":"no_nodes_active","selection_reason":"no server in the region"}`)
	message := "no server in the region"
	g.StatusMessage = &message
	out.Reset()
	require.NoError(t, printGroup(&out, g))
	require.Equal(t, 1, strings.Count(out.String(), message), "it is said once")
}

func TestASpecIsReadFromFlagsOrAFile(t *testing.T) {
	t.Parallel()
	f := workloadFlags{image: "web:1", memory: "64M", cpu: 0.5, ports: []int{80}, require: []string{"gpu"}}
	s, err := f.spec(nil, []string{"serve"})
	require.NoError(t, err)
	require.Equal(t, workload.Spec{
		Image: "web:1", Command: []string{"serve"}, MemoryLimitBytes: 64 << 20, CPURequest: 0.5, Ports: []int{80}, Constraint: &prego.Constraint{Require: []string{"gpu"}},
	}, s)
	file := filepath.Join(t.TempDir(), "spec.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"image": "web:2", "memory_limit_bytes": 7}`), 0o600))
	s, err = (&workloadFlags{file: file}).spec(nil, nil)
	require.NoError(t, err)
	require.Equal(t, "web:2", s.Image)
	s, err = (&workloadFlags{file: "-"}).spec(strings.NewReader(`{"image": "web:3"}`), nil)
	require.NoError(t, err)
	require.Equal(t, "web:3", s.Image)
	wrong := filepath.Join(t.TempDir(), "wrong.json")
	require.NoError(t, os.WriteFile(wrong, []byte(`{"image": "web:2", "memory_limit": 7}`), 0o600))
	twice := filepath.Join(t.TempDir(), "twice.json")
	require.NoError(t, os.WriteFile(twice, []byte(`{"image": "web:2"} {}`), 0o600))
	for _, bad := range []workloadFlags{{}, {file: wrong}, {file: twice}, {image: "a", memory: "lots"}, {image: "a", memory: "-1"}, {image: "a", memory: "9223372036854775807T"}, {file: "/nowhere"}} {
		_, err := bad.spec(nil, nil)
		var exit *exitError
		require.True(t, errors.As(err, &exit), "%+v", bad)
		require.Equal(t, 2, exit.code)
	}
}

func TestADeployLeavesWhatIsNotGiven(t *testing.T) {
	g := api.ProcessGroup{GroupId: "grp-0123456789ab", Spec: workload.Spec{
		Image: "web:1", Command: []string{"serve"}, MemoryLimitBytes: 64 << 20, CPURequest: 0.5, Ports: []int{80}, Volumes: []string{"/data"}, Constraint: &prego.Constraint{Require: []string{"gpu"}},
	}}
	say := map[string]func(http.ResponseWriter){
		"GET /v1/groups/grp-0123456789ab":          answer(http.StatusOK, g),
		"POST /v1/groups/grp-0123456789ab/deploys": answer(http.StatusAccepted, g),
	}
	for args, want := range map[string]string{
		"--image web:2":                  `{"image":"web:2","command":["serve"],"memory_limit_bytes":67108864,"cpu_request":0.5,"ports":[80],"volumes":["/data"]}`,
		"--memory 1G --cpu 2 --port 81":  `{"image":"web:1","command":["serve"],"memory_limit_bytes":1073741824,"cpu_request":2,"ports":[81],"volumes":["/data"]}`,
		"--volume /srv -- serve --quiet": `{"image":"web:1","command":["serve","--quiet"],"memory_limit_bytes":67108864,"cpu_request":0.5,"ports":[80],"volumes":["/srv"]}`,
	} {
		_, a, err := operate(t, newGroupCommand(), "", say, append([]string{"deploy", "grp-0123456789ab"}, strings.Fields(args)...)...)
		require.NoError(t, err, args)
		require.JSONEq(t, `{"spec":`+want+`}`, a.bodies["POST /v1/groups/grp-0123456789ab/deploys"], args)
	}
	for _, args := range [][]string{nil, {"--memory", "lots"}} {
		_, a, err := operate(t, newGroupCommand(), "", say, append([]string{"deploy", "grp-0123456789ab"}, args...)...)
		exitCode(t, err, 2)
		require.NotContains(t, a.bodies, "POST /v1/groups/grp-0123456789ab/deploys", args)
	}
	_, a, err := operate(t, newGroupCommand(), "", say, "deploy", "grp-0123456789ab", "--file", "-", "--image", "web:2")
	require.ErrorContains(t, err, "none of the others can be")
	require.Empty(t, a.bodies)
}
