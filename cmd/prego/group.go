package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/workload"
)

func groupPath(id string) string { return "/v1/groups/" + url.PathEscape(id) }

func newGroupCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "group", Short: "Run process groups: what an environment runs, and how many of it"}
	output := outputFlag(cmd)
	cmd.AddCommand(groupCreate(output), groupList(output), groupShow(output), groupScale(output), groupDeploy(output), groupDelete(), groupWatch())
	return cmd
}

// workloadFlags describe a release: a file with the whole workload.Spec, or the parts of it.
type workloadFlags struct {
	file, image     string
	memory          string
	cpu             float64
	ports           []int
	volumes         []string
	require, forbid []string
}

func (f *workloadFlags) add(cmd *cobra.Command, constraint bool) {
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "a WorkloadSpec as JSON, - for standard input; in place of the flags below")
	cmd.Flags().StringVar(&f.image, "image", "", "the image")
	cmd.Flags().StringVar(&f.memory, "memory", "256M", "hard limit per instance: bytes, or with K, M, G for powers of 1024")
	cmd.Flags().Float64Var(&f.cpu, "cpu", 0.25, "CPUs per instance, as a share")
	cmd.Flags().IntSliceVar(&f.ports, "port", nil, "ports that it listens on")
	cmd.Flags().StringSliceVar(&f.volumes, "volume", nil, "paths at which volumes must be mounted")
	cmd.MarkFlagsMutuallyExclusive("file", "image")
	if constraint {
		cmd.Flags().StringSliceVar(&f.require, "require", nil, "tags that servers must have")
		cmd.Flags().StringSliceVar(&f.forbid, "disallow", nil, "tags that servers must not have")
	}
}

// spec reads the flags; args are the command, where there is one.
func (f *workloadFlags) spec(in io.Reader, args []string) (s workload.Spec, err error) {
	if f.file != "" {
		var b []byte
		if f.file == "-" {
			b, err = io.ReadAll(in)
		} else {
			b, err = os.ReadFile(f.file)
		}
		if err != nil {
			return s, &exitError{code: 2, err: err}
		}
		// A field that is misspelt would be left out without a word.
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&s); err == nil && dec.More() {
			return s, &exitError{code: 2, err: fmt.Errorf("%s: more than one document", f.file)}
		} else if err != nil {
			return s, &exitError{code: 2, err: fmt.Errorf("%s: %w", f.file, err)}
		}
		return s, nil
	}
	if f.image == "" {
		return s, &exitError{code: 2, err: fmt.Errorf("--image or --file is required")}
	}
	s = workload.Spec{Image: f.image, Command: args, CPURequest: f.cpu, Ports: f.ports, Volumes: f.volumes}
	if len(f.require)+len(f.forbid) > 0 {
		s.Constraint = &prego.Constraint{Require: f.require, Disallow: f.forbid}
	}
	if s.MemoryLimitBytes, err = parseBytes(f.memory); err != nil {
		return s, &exitError{code: 2, err: fmt.Errorf("--memory: %w", err)}
	}
	return s, nil
}

// anything refuses a deploy that names nothing to change.
func (f *workloadFlags) anything(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && !slices.ContainsFunc([]string{"image", "memory", "cpu", "port", "volume"}, cmd.Flags().Changed) {
		return &exitError{code: 2, err: errors.New("nothing to deploy: give --image, another flag, a command or --file")}
	}
	return nil
}

// change is a spec with what the flags that were given change; args are the command,
// where there is one.
func (f *workloadFlags) change(cmd *cobra.Command, s workload.Spec, args []string) (workload.Spec, error) {
	given := cmd.Flags().Changed
	s.Constraint = nil // it is fixed
	if len(args) > 0 {
		s.Command = args
	}
	if given("image") {
		s.Image = f.image
	}
	if given("cpu") {
		s.CPURequest = f.cpu
	}
	if given("port") {
		s.Ports = f.ports
	}
	if given("volume") {
		s.Volumes = f.volumes
	}
	if given("memory") {
		var err error
		if s.MemoryLimitBytes, err = parseBytes(f.memory); err != nil {
			return s, &exitError{code: 2, err: fmt.Errorf("--memory: %w", err)}
		}
	}
	return s, nil
}

// parseBytes reads 268435456, 256M or 1G.
func parseBytes(s string) (int64, error) {
	shift := map[string]int{"K": 10, "M": 20, "G": 30, "T": 40}
	digits, by := s, 0
	if n := len(s); n > 0 {
		if b, ok := shift[strings.ToUpper(s[n-1:])]; ok {
			digits, by = s[:n-1], b
		}
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || v < 0 || v > 1<<62>>by {
		return 0, fmt.Errorf("%q is no number of bytes", s)
	}
	return v << by, nil
}

// sized writes bytes as parseBytes reads them, in the largest unit that is whole.
func sized(n int64) string {
	unit, units := "", "KMGT"
	for n != 0 && n%1024 == 0 && units != "" {
		n, unit, units = n/1024, units[:1], units[1:]
	}
	return strconv.FormatInt(n, 10) + unit
}

func groupCreate(output *string) *cobra.Command {
	var f workloadFlags
	var replicas int
	cmd := &cobra.Command{
		Use: "create ENV_ID NAME [-- COMMAND…]", Short: "Make a process group", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			spec, err := f.spec(cmd.InOrStdin(), args[2:])
			if err != nil {
				return err
			}
			var g api.ProcessGroup
			if err := c.do(cmd.Context(), http.MethodPost, "/v1/envs/"+url.PathEscape(args[0])+"/groups", nil,
				workload.CreateGroupRequest{Name: args[1], Spec: spec, Replicas: &replicas}, &g); err != nil {
				return err
			}
			return showGroup(cmd, *output, g)
		},
	}
	f.add(cmd, true)
	cmd.Flags().IntVar(&replicas, "replicas", 1, "how many instances")
	return cmd
}

func groupList(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "list ENV_ID", Short: "List an environment's process groups", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			groups, err := listGroups(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), groups)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintln(w, "GROUP\tNAME\tRUNNING\tREPLICAS\tRELEASE\tDEPLOY\tSTATUS\tIMAGE")
			for _, g := range groups {
				fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", g.GroupId, g.Name, g.Instances["running"], g.Replicas, g.Release, g.DeployStatus, groupStatus(g), g.Spec.Image)
			}
			return w.Flush()
		},
	}
}

func listGroups(ctx context.Context, c *apiClient, env string) ([]api.ProcessGroup, error) {
	all := []api.ProcessGroup{}
	for cursor := ""; ; {
		q := url.Values{"limit": {"200"}}
		if cursor != "" {
			q.Set("cursor", cursor)
		}
		var page api.GroupPage
		if err := c.do(ctx, http.MethodGet, "/v1/envs/"+url.PathEscape(env)+"/groups", q, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Groups...)
		if page.NextCursor == nil {
			return all, nil
		}
		cursor = *page.NextCursor
	}
}

// groupStatus is a group's status with its reason.
func groupStatus(g api.ProcessGroup) string {
	if g.StatusReason != nil {
		return g.Status + ": " + *g.StatusReason
	}
	return g.Status
}

func showGroup(cmd *cobra.Command, output string, g api.ProcessGroup) error {
	if output == "json" {
		return printJSON(cmd.OutOrStdout(), g)
	}
	return printGroup(cmd.OutOrStdout(), g)
}

func printGroup(out io.Writer, g api.ProcessGroup) error {
	w := tabwriter.NewWriter(out, 2, 4, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	line("GROUP", "%s (%s of %s, %s in %s)", g.GroupId, g.Name, g.EnvId, g.OrgId, g.Region)
	line("STATUS", "%s", groupStatus(g))
	if g.StatusMessage != nil {
		line("", "%s", *g.StatusMessage)
	}
	line("INSTANCES", "%d of %d run, %d booting, %d draining, %d failed", g.Instances["running"], g.Replicas, g.Instances["booting"], g.Instances["draining"], g.Instances["failed"])
	line("RELEASE", "%d: %s (stable: %d)", g.Release, g.Spec.Image, g.StableRelease)
	line("EACH", "%s of memory, %g CPUs", sized(g.Spec.MemoryLimitBytes), g.Spec.CPURequest)
	line("DEPLOY", "%s %s", g.DeployStatus, deref(g.DeployMessage))
	var c prego.Constraint
	if g.Constraint.Require != nil {
		c.Require = *g.Constraint.Require
	}
	if g.Constraint.Disallow != nil {
		c.Disallow = *g.Constraint.Disallow
	}
	if !c.Empty() {
		line("CONSTRAINT", "%s", c)
	}
	if g.NextAttemptAt != nil {
		line("NEXT ATTEMPT", "%s", g.NextAttemptAt.Format(time.RFC3339))
	}
	if g.Decision != nil {
		if why := decided(*g.Decision); why != deref(g.StatusMessage) {
			line("DECISION", "%s", why)
		}
	}
	return w.Flush()
}

// decided is a decision as a sentence; --output json has the counts behind it.
func decided(raw api.GroupDecision) string {
	var d struct {
		ServerID        string `json:"server_id"`
		SelectionReason string `json:"selection_reason"`
	}
	switch err := json.Unmarshal(raw, &d); {
	case err != nil || d.SelectionReason == "":
		return string(raw)
	case d.ServerID != "":
		return d.SelectionReason + " (" + d.ServerID + ")"
	}
	return d.SelectionReason
}

func groupShow(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "show GROUP_ID", Short: "Show a process group, what it lacks and why", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var g api.ProcessGroup
			if err := c.do(cmd.Context(), http.MethodGet, groupPath(args[0]), nil, nil, &g); err != nil {
				return err
			}
			return showGroup(cmd, *output, g)
		},
	}
}

func groupScale(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "scale GROUP_ID REPLICAS", Short: "Set how many instances a process group has", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return &exitError{code: 2, err: fmt.Errorf("%q is not a number of replicas", args[1])}
			}
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var g api.ProcessGroup
			if err := c.do(cmd.Context(), http.MethodPost, groupPath(args[0])+"/scale", nil, api.ScaleGroup{Replicas: n}, &g); err != nil {
				return err
			}
			return showGroup(cmd, *output, g)
		},
	}
}

func groupDeploy(output *string) *cobra.Command {
	var f workloadFlags
	cmd := &cobra.Command{
		Use: "deploy GROUP_ID [-- COMMAND…]", Short: "Give a process group another release; what is left out stays as it is", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var g api.ProcessGroup
			var spec workload.Spec
			if f.file != "" {
				spec, err = f.spec(cmd.InOrStdin(), nil)
			} else if err = f.anything(cmd, args[1:]); err == nil {
				if err = c.do(cmd.Context(), http.MethodGet, groupPath(args[0]), nil, nil, &g); err == nil {
					spec, err = f.change(cmd, g.Spec, args[1:])
				}
			}
			if err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodPost, groupPath(args[0])+"/deploys", nil, api.DeployGroup{Spec: spec}, &g); err != nil {
				return err
			}
			return showGroup(cmd, *output, g)
		},
	}
	f.add(cmd, false)
	for _, name := range []string{"memory", "cpu"} {
		cmd.Flags().Lookup(name).DefValue = "" // what the group has
	}
	return cmd
}

func groupDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete GROUP_ID", Short: "Delete a process group and stop its instances", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			if err := c.do(cmd.Context(), http.MethodDelete, groupPath(args[0]), nil, nil, nil); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "deleted: its instances are being stopped")
			return nil
		},
	}
}

func groupWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch GROUP_ID", Short: "Show what becomes of a process group, until nothing more is to be done", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			return watchGroup(cmd.Context(), cmd.OutOrStdout(), c, args[0], 250*time.Millisecond)
		},
	}
}

// watchGroup prints a group whenever it changes. Rolled back is not what was wished for.
func watchGroup(ctx context.Context, w io.Writer, c *apiClient, id string, every time.Duration) error {
	last := ""
	for {
		var g api.ProcessGroup
		if err := c.do(ctx, http.MethodGet, groupPath(id), nil, nil, &g); err != nil {
			return err
		}
		why, _, _ := strings.Cut(deref(g.StatusMessage), "\n")
		if why != "" {
			why = ": " + why
		}
		now := fmt.Sprintf("%d of %d run, %d booting, %d draining, %d failed; release %d %s; %s%s", g.Instances["running"], g.Replicas, g.Instances["booting"],
			g.Instances["draining"], g.Instances["failed"], g.Release, g.DeployStatus, groupStatus(g), why)
		if now != last {
			fmt.Fprintln(w, time.Now().Format("15:04:05"), now)
			last = now
		}
		switch {
		case g.Converged && g.DeployStatus == string(workload.DeployRolledBack):
			return &exitError{code: 3, err: fmt.Errorf("rolled back: %s", deref(g.DeployMessage))}
		case g.Converged:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
}

func newInstanceCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "instance", Short: "List and read the instances of process groups"}
	output := outputFlag(cmd)
	cmd.AddCommand(instanceList(output), instanceShow(output), instanceLogs())
	return cmd
}

func instanceList(output *string) *cobra.Command {
	var stopped bool
	cmd := &cobra.Command{
		Use: "list GROUP_ID", Short: "List a process group's instances, newest first", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			all := []api.Instance{}
			for cursor := ""; ; {
				q := url.Values{"limit": {"200"}, "stopped": {strconv.FormatBool(stopped)}}
				if cursor != "" {
					q.Set("cursor", cursor)
				}
				var page api.InstancePage
				if err := c.do(cmd.Context(), http.MethodGet, groupPath(args[0])+"/instances", q, nil, &page); err != nil {
					return err
				}
				all = append(all, page.Instances...)
				if page.NextCursor == nil {
					break
				}
				cursor = *page.NextCursor
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintln(w, "INSTANCE\tSTATE\tRELEASE\tSERVER\tPORTS\tSINCE\tMESSAGE")
			for _, i := range all {
				var ports []string
				for _, p := range i.Ports {
					ports = append(ports, fmt.Sprintf("%d→%d", p.HostPort, p.ContainerPort))
				}
				message, _, _ := strings.Cut(deref(i.Message), "\n")
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", i.InstanceId, i.State, i.Release, i.ServerId, strings.Join(ports, " "), i.CreatedAt.Format(time.RFC3339), message)
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&stopped, "stopped", false, "also those that are stopped")
	return cmd
}

func instanceShow(output *string) *cobra.Command {
	return &cobra.Command{
		Use: "show INSTANCE_ID", Short: "Show an instance", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			var i api.Instance
			if err := c.do(cmd.Context(), http.MethodGet, "/v1/instances/"+url.PathEscape(args[0]), nil, nil, &i); err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), i)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintf(w, "INSTANCE\t%s of %s\nSTATE\t%s\nSERVER\t%s\nRELEASE\t%d: %s\nEACH\t%s of memory, %g CPUs\n", i.InstanceId, i.GroupId, i.State, i.ServerId,
				i.Release, i.Image, sized(i.MemoryLimitBytes), i.CpuRequest)
			if i.Message != nil {
				fmt.Fprintf(w, "MESSAGE\t%s\n", *i.Message)
			}
			return w.Flush()
		},
	}
}

func instanceLogs() *cobra.Command {
	var tail int
	var follow bool
	cmd := &cobra.Command{
		Use: "logs INSTANCE_ID", Short: "Show what an instance writes, without what looks like a secret", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			q := url.Values{"tail": {strconv.Itoa(tail)}, "follow": {strconv.FormatBool(follow)}}
			return c.stream(cmd.Context(), http.MethodGet, "/v1/instances/"+url.PathEscape(args[0])+"/logs", q, nil, func(body io.Reader) error {
				_, err := io.Copy(cmd.OutOrStdout(), body)
				return err
			})
		},
	}
	cmd.Flags().IntVar(&tail, "tail", 100, "lines from the end")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on as the instance writes, for 15 minutes at most")
	return cmd
}
