package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/workload"
)

var groupTable = Table[api.ProcessGroup]{
	ID: "group_id", Columns: "group_id, name, running, replicas, deploy, status, image", Spare: "image, deploy",
	More: "deploy_message: last deploy, env_id, org_id, region, release, instances, memory, spec.cpu_request: cpus, stable_release, policy, paused_at: paused since, constraint, next_attempt_at: next attempt, decision, created_at, deleted_at",
	Computed: map[string]func(api.ProcessGroup) any{
		"running": func(g api.ProcessGroup) any { return g.Instances["running"] },
		"deploy":  func(g api.ProcessGroup) any { return groupDeploy(g) },
		"status":  func(g api.ProcessGroup) any { return groupStatus(g) },
		"image":   func(g api.ProcessGroup) any { return g.Spec.Image },
		"memory":  func(g api.ProcessGroup) any { return bytesText(g.Spec.MemoryLimitBytes) },
		"policy": func(g api.ProcessGroup) any {
			p := g.RolloutPolicy
			then := "fails"
			if p.AutoRollback {
				then = "rolls back"
			}
			return fmt.Sprintf("surge %s, unavailable %s; %s after %d failures or %s", p.MaxSurge, p.MaxUnavailable, then, p.MaxFailures+1, p.ProgressDeadline())
		},
		"constraint": func(g api.ProcessGroup) any {
			if c := (prego.Constraint{Require: deref(g.Constraint.Require), Disallow: deref(g.Constraint.Disallow)}); !c.Empty() {
				return c.String()
			}
			return nil
		},
		"decision": func(g api.ProcessGroup) any {
			if why := decided(deref(g.Decision)); why != deref(g.StatusMessage) {
				return why
			}
			return nil
		},
	},
}

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
	return g.Status + reasons(g.StatusReason, g.StatusMessage)
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
	Outcome: func(_ *call, g api.ProcessGroup) error { // rolled back is not what was wished for
		switch workload.DeployStatus(g.DeployStatus) {
		case workload.DeployRolledBack:
			return fmt.Errorf("rolled back: %s", deref(g.DeployMessage))
		case workload.DeployFailed:
			return fmt.Errorf("the rollout failed: %s", deref(g.DeployMessage))
		}
		return nil
	},
}

func groupCommand(c *CLI) *cobra.Command {
	var create, deploy workloadFlags
	var policy rolloutFlags
	replicas := 1
	return c.group("group", "Manage process groups: what an env runs, and how many of it", append([]verb{
		Action[api.ProcessGroup]{
			Use: "create ENV NAME [-- COMMAND…]", Short: "Create a process group", Path: "/v1/envs/{env}/groups", Table: groupTable, Watch: groupWatch,
			Example: "  prego group create prod web --image nginx:1.29 --memory 256M --port 80 --replicas 2",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				create.add(cmd, f, true)
				policy.add(f)
				f.IntVar(&replicas, "replicas", 1, "number of instances")
			},
			Body: func(in *call) (any, error) {
				spec, err := create.spec(in)
				if err != nil {
					return nil, err
				}
				change, err := policy.change(in)
				return workload.CreateGroupRequest{Name: in.typed, Spec: spec, Replicas: &replicas, Rollout: change}, err
			},
		},
		List[api.ProcessGroup]{
			Use: "list [ENV]", Short: "List process groups, of an env or of all, newest first", Path: "/v1/groups", Items: "groups",
			Filters: "env: env_id, app: app_id, org: org_id, region, status, name", Sorts: "created_at, name", All: true, Table: groupTable,
		},
		Show[api.ProcessGroup]{Use: "show GROUP…", Short: "Show process groups, what they lack and why", Path: "/v1/groups/{group}", Table: groupTable, Watch: groupWatch},
		groupWatch,
		Action[api.ProcessGroup]{
			Use: "scale GROUP REPLICAS", Short: "Set the number of a process group's instances", Path: "/v1/groups/{group}/scale", Table: groupTable, Watch: groupWatch,
			Body: func(in *call) (any, error) {
				n, err := whole(in.typed, "a number of replicas")
				return api.ScaleGroup{Replicas: n}, err
			},
		},
		Action[api.ProcessGroup]{
			Use: "deploy GROUP [-- COMMAND…]", Short: "Deploy another release; fields left out stay unchanged", Path: "/v1/groups/{group}/deploys", Table: groupTable, Watch: groupWatch,
			Example: "  prego group deploy web --image nginx:1.30 --watch",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				deploy.add(cmd, f, false)
				policy.add(f)
				for _, name := range []string{"memory", "cpu", "auto-rollback"} {
					f.Lookup(name).DefValue = "" // what the group has
				}
			},
			Body: func(in *call) (any, error) {
				change, err := policy.change(in)
				if err != nil {
					return nil, err
				}
				spec, err := deploy.change(in, change != nil)
				return api.DeployGroup{Spec: spec, RolloutPolicy: change}, err
			},
		},
		Action[struct{}]{
			Use: "delete GROUP…", Short: "Delete process groups and stop their instances", Method: http.MethodDelete, Path: "/v1/groups/{group}", Destroys: "deletes process group",
			Say: func(in *call, _ struct{}) string {
				return "deleted process group " + in.typed + "; its instances are being stopped"
			},
		},
	}, rolloutVerbs()...)...)
}

// workloadFlags describe a release: a file with the whole WorkloadSpec, or its parts.
type workloadFlags struct {
	file, image     string
	memory, disk    int64
	cpu             float64
	ports           []int
	volumes         []string
	require, forbid []string
	health          healthFlags
	drain, stop     time.Duration
}

func (w *workloadFlags) add(cmd *cobra.Command, f *pflag.FlagSet, constraint bool) {
	w.memory = 256 << 20
	f.StringVarP(&w.file, "file", "f", "", "a WorkloadSpec as JSON, - for standard input; instead of the flags below")
	f.StringVar(&w.image, "image", "", "container image")
	f.Var(sizeFlag{&w.memory, memory, bytesText}, "memory", "memory limit of each instance, "+sizeHelp)
	f.Var(sizeFlag{&w.disk, memory, bytesText}, "disk", "disk that each instance needs outside of volumes, "+sizeHelp)
	f.Float64Var(&w.cpu, "cpu", 0.25, "CPUs of each instance")
	f.IntSliceVar(&w.ports, "port", nil, "ports that it listens on")
	f.StringSliceVar(&w.volumes, "volume", nil, "paths at which volumes must be mounted")
	cmd.MarkFlagsMutuallyExclusive("file", "image")
	w.health.add(cmd, f)
	f.DurationVar(&w.drain, "drain", 0, "time that a healthy instance runs on once it is taken out of service, before SIGTERM")
	f.DurationVar(&w.stop, "stop-timeout", 0, "time from SIGTERM to SIGKILL (10s if absent)")
	if constraint {
		f.StringSliceVar(&w.require, "require", nil, "tags that servers must have")
		f.StringSliceVar(&w.forbid, "disallow", nil, "tags that servers must not have")
	}
}

// spec is the release that the flags describe.
func (w *workloadFlags) spec(in *call) (s workload.Spec, err error) {
	if w.file != "" {
		b, err := read(in.InOrStdin(), w.file)
		if err != nil {
			return s, err
		}
		// A misspelt field would be ignored silently.
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&s); err != nil {
			return s, usagef("%s: %w", w.file, err)
		}
		if dec.More() {
			return s, usagef("%s: more than one document", w.file)
		}
		return s, nil
	}
	if w.image == "" {
		return s, usagef("--image or --file is required")
	}
	s = workload.Spec{Image: w.image, Command: in.rest, CPURequest: w.cpu, MemoryLimitBytes: w.memory, DiskRequestBytes: w.disk, Ports: w.ports, Volumes: w.volumes}
	if len(w.require)+len(w.forbid) > 0 {
		s.Constraint = &prego.Constraint{Require: w.require, Disallow: w.forbid}
	}
	in.apply(w.ending(&s))
	return s, w.health.change(in, &s)
}

// ending are the flags about how an instance ends.
func (w *workloadFlags) ending(s *workload.Spec) changes {
	return changes{"drain": wholeSeconds(&s.DrainSeconds, &w.drain), "stop-timeout": wholeSeconds(&s.StopTimeoutSeconds, &w.stop)}
}

// change is the group's release, changed by the given flags. There must be one, unless
// something else changes.
func (w *workloadFlags) change(in *call, others bool) (workload.Spec, error) {
	if w.file != "" {
		return w.spec(in)
	}
	var g api.ProcessGroup
	flags := changes{
		"image": set(&g.Spec.Image, &w.image), "cpu": set(&g.Spec.CPURequest, &w.cpu), "port": set(&g.Spec.Ports, &w.ports),
		"volume": set(&g.Spec.Volumes, &w.volumes), "memory": set(&g.Spec.MemoryLimitBytes, &w.memory), "disk": set(&g.Spec.DiskRequestBytes, &w.disk),
	}
	maps.Copy(flags, w.ending(&g.Spec))
	if !others && !in.changed(flags) && !w.health.given(in) && len(in.rest) == 0 {
		return g.Spec, usagef("nothing to deploy; give --image, another flag, a command or --file")
	}
	err := in.client.Do(in.Context(), http.MethodGet, in.path("/v1/groups/{group}"), nil, nil, &g)
	g.Spec.Constraint = nil // it is fixed
	in.apply(flags)
	if len(in.rest) > 0 {
		g.Spec.Command = in.rest
	}
	if err != nil {
		return g.Spec, err
	}
	return g.Spec, w.health.change(in, &g.Spec)
}

var instanceTable = Table[api.Instance]{
	ID: "instance_id", Columns: "instance_id, state, release, restarts, server_id, ports, created_at: age, message", Spare: "age, ports, release", More: "group_id, image, memory_limit_bytes: memory, cpu_request: cpus, healthy, created_at",
	Computed: map[string]func(api.Instance) any{"ports": func(i api.Instance) any {
		var ports []string
		for _, p := range i.Ports {
			ports = append(ports, fmt.Sprintf("%d→%d", p.HostPort, p.ContainerPort))
		}
		return ports
	}},
}

func instanceCommand(c *CLI) *cobra.Command {
	return c.group("instance", "Inspect the instances of process groups",
		List[api.Instance]{Use: "list [GROUP]", Short: "List instances, of a process group or of all, newest first", Path: "/v1/instances", Items: "instances", All: true, Filters: "state, server: server_id, org: org_id, env: env_id", Sorts: "created_at", Table: instanceTable},
		Show[api.Instance]{Use: "show INSTANCE…", Short: "Show instances", Path: "/v1/instances/{instance}", Table: instanceTable},
		logs{"logs INSTANCE", "Print an instance's log, without what looks like a secret", "/v1/instances/{instance}/logs", ""},
	)
}
