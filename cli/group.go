package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/workload"
)

// groupDeploy is how far a group's last deploy is, and why it failed.
func groupDeploy(g api.ProcessGroup) string {
	text := g.DeployStatus
	if g.DeployReason != nil {
		text += ": " + *g.DeployReason
	}
	if g.PausedAt != nil && workload.DeployStatus(text).UnderWay() {
		text += ", paused"
	}
	return text
}

// groupStatus is a group's status with its reason.
func groupStatus(g api.ProcessGroup) string {
	return g.Status + why(g.StatusReason, g.StatusMessage)
}

// decided formats a decision as a sentence; -o json has the counts behind it.
func decided(raw api.GroupDecision) string {
	var d struct {
		ServerID        prego.ServerID `json:"server_id"`
		SelectionReason string         `json:"selection_reason"`
	}
	if json.Unmarshal(raw, &d) != nil || d.SelectionReason == "" {
		return string(raw)
	}
	if d.ServerID != "" {
		d.SelectionReason += " (" + string(d.ServerID) + ")"
	}
	return d.SelectionReason
}

var groupWatch = Watch[api.ProcessGroup]{
	Use: "watch GROUP", Short: "Follow a process group until its operations are done", Path: "/v1/groups/{group}", Again: "prego group watch {group}",
	Lines: func(g api.ProcessGroup) []line {
		text := fmt.Sprintf("%d of %d run, %d booting, %d draining, %d failed; release %d %s; %s", g.Instances["running"], g.Replicas, g.Instances["booting"],
			g.Instances["draining"], g.Instances["failed"], g.Release, groupDeploy(g), groupStatus(g))
		return []line{{text, g.UpdatedAt, text}}
	},
	Doing: func(g api.ProcessGroup) string { return g.Name + ": " + groupStatus(g) },
	Rests: func(g api.ProcessGroup) bool { return g.Converged || g.DeployStatus == string(workload.DeployFailed) },
	Outcome: func(_ *call, g api.ProcessGroup) error { // rolled back is not the wanted outcome
		switch workload.DeployStatus(g.DeployStatus) {
		case workload.DeployRolledBack:
			return fmt.Errorf("rolled back: %s", deref(g.DeployMessage))
		case workload.DeployFailed:
			return fmt.Errorf("the rollout failed: %s", deref(g.DeployMessage))
		}
		return nil
	},
}

var groupColumns = computed(map[string]func(api.ProcessGroup) string{
	"deploy": groupDeploy,
	"policy": func(g api.ProcessGroup) string {
		p := g.RolloutPolicy
		then := "fails"
		if p.AutoRollback {
			then = "rolls back"
		}
		return fmt.Sprintf("surge %s, unavailable %s; %s after %d failures or %s", p.MaxSurge, p.MaxUnavailable, then, p.MaxFailures+1, p.ProgressDeadline())
	},
	"constraint": func(g api.ProcessGroup) string {
		c := prego.Constraint{Require: deref(g.Constraint.Require), Disallow: deref(g.Constraint.Disallow)}
		return map[bool]string{false: c.String()}[c.Empty()]
	},
	"decision": func(g api.ProcessGroup) string {
		if why := decided(deref(g.Decision)); why != deref(g.StatusMessage) {
			return why
		}
		return ""
	},
})

var instanceColumns = computed(map[string]func(api.Instance) string{"ports": func(i api.Instance) string {
	var ports []string
	for _, p := range i.Ports {
		ports = append(ports, fmt.Sprintf("%d→%d", p.HostPort, p.ContainerPort))
	}
	return strings.Join(ports, ", ")
}})

// specFlags are the flags of a release besides its properties: a file with the whole WorkloadSpec, and the kinds of
// health checks.
func specFlags(cmd *cobra.Command, f *pflag.FlagSet) {
	f.StringP("file", "f", "", "a WorkloadSpec as JSON, - for standard input; instead of the flags below")
	f.Int("health-tcp", 0, "it is healthy when a connection to this port can be opened")
	f.Bool("no-health", false, "no check: it is healthy once it has run for a few seconds")
	cmd.MarkFlagsMutuallyExclusive("file", "image")
	cmd.MarkFlagsMutuallyExclusive("health-http", "health-tcp", "health-command", "no-health")
	for _, name := range []string{"health-http", "health-tcp", "health-command", "no-health"} {
		cmd.MarkFlagsMutuallyExclusive("file", name)
	}
}

var createGroup = hook{flags: specFlags, watch: groupWatch, body: func(in *call, body object) (any, error) {
	if file := in.text("file"); file != "" {
		return specOf(in, body, file)
	}
	if in.text("image") == "" {
		return nil, usagef("--image or --file is required")
	}
	return body, healthOf(in, body)
}}

// deployGroup changes the group's release by the flags that are given.
var deployGroup = hook{flags: specFlags, watch: groupWatch, body: func(in *call, body object) (any, error) {
	if file := in.text("file"); file != "" {
		return specOf(in, body, file)
	}
	if len(body) == 0 && !in.is("no-health") && !in.given("health-tcp") {
		return nil, usagef("nothing to deploy; give --image, another flag, a command or --file")
	}
	var now struct {
		Spec map[string]any `json:"spec"`
	}
	if err := in.client.Do(in.Context(), http.MethodGet, in.path("/v1/groups/{group_id}"), nil, nil, &now); err != nil {
		return nil, err
	}
	delete(now.Spec, "constraint") // it is fixed
	given, _ := body["spec"].(map[string]any)
	if was, ok := now.Spec["health"].(map[string]any); ok {
		check, _ := given["health"].(map[string]any)
		maps.Copy(was, check)
		delete(given, "health")
	}
	maps.Copy(now.Spec, given)
	body["spec"] = now.Spec
	return body, healthOf(in, body)
}}

// specOf puts a file's WorkloadSpec into a body.
func specOf(in *call, body object, file string) (any, error) {
	b, err := read(in.InOrStdin(), file)
	if err != nil {
		return nil, err
	}
	// A misspelt field would be ignored silently.
	var s workload.Spec
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return nil, usagef("%s: %w", file, err)
	}
	if dec.More() {
		return nil, usagef("%s: more than one document", file)
	}
	body["spec"] = s
	return body, nil
}

// healthOf decides what kind of health check a release has: a flag of another kind replaces the check, the others
// change it.
func healthOf(in *call, body object) error {
	spec, _ := body["spec"].(map[string]any)
	if in.is("no-health") {
		delete(spec, "health")
		return nil
	}
	given := false
	in.Flags().Visit(func(f *pflag.Flag) { given = given || strings.HasPrefix(f.Name, "health-") })
	if !given {
		return nil
	}
	check, _ := spec["health"].(map[string]any)
	for flag, kind := range map[string]string{"health-http": "http", "health-tcp": "tcp", "health-command": "command"} {
		if !in.given(flag) {
			continue
		}
		if check == nil {
			check = map[string]any{}
		}
		check["kind"] = kind
		for flag, name := range map[string]string{"health-http": "path", "health-port": "port", "health-command": "command"} {
			if !in.given(flag) {
				delete(check, name)
			}
		}
		if kind == "tcp" && !in.given("health-port") {
			n, err := in.Flags().GetInt(flag)
			if err != nil {
				return err
			}
			check["port"] = n
		}
	}
	if check["kind"] == nil {
		return usagef("there is no health check to change; give --health-http, --health-tcp or --health-command")
	}
	api.Put(body, "spec.health", check)
	return nil
}
