package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
)

func execCommand(c *CLI) *cobra.Command {
	var timeout time.Duration
	var tenant string
	cmd := &cobra.Command{
		Use: "exec SERVER KIND -- ARGS…", Short: "Run an allowed bench, mariadb or redis-cli command on a server's host",
		Long: `Run one of the commands that hosts allow, and print its output. The exit status is the
command's own; 1 when the API or the host did not answer, 2 when it was refused. Each is
kept in the audit: prego server commands SERVER.`,
		Example: "  prego exec app-sgp-007 bench -- --site acme.example.com list-apps",
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "time after which the command is killed")
	cmd.Flags().StringVar(&tenant, "tenant", "", "count it as a session of this tenant's org")
	return c.run(cmd, "", func(in *call) (func() error, error) {
		if len(in.rest) == 0 {
			return nil, usagef("the command is missing; usage: %s", cmd.UseLine())
		}
		body := api.Exec{Kind: api.ExecKind(in.args["kind"]), Args: in.rest, TimeoutSeconds: new(seconds(timeout))}
		if tenant != "" {
			id, err := in.resolve("tenant", tenant)
			if err != nil {
				return nil, err
			}
			body.TenantId = new(api.TenantID(id))
		}
		return nil, in.client.stream(in.Context(), &http.Client{}, http.MethodPost, in.path("/v1/servers/{server}/exec"), nil, nil, body, func(r io.Reader) error {
			return in.events(wire.NewEventReader(r))
		})
	})
}

// events prints a command's output to the same streams, and ends with its status.
func (in *call) events(events *wire.EventReader) error {
	for {
		name, data, err := events.Next()
		if err != nil {
			return fmt.Errorf("the connection was lost; the command may still be running (see prego server commands): %w", err)
		}
		switch name {
		case wire.EventProgress:
			var l api.ExecProgress
			if err := json.Unmarshal(data, &l); err != nil {
				return err
			}
			w := in.OutOrStdout()
			if l.Stream == "stderr" {
				w = in.ErrOrStderr()
			}
			fmt.Fprintln(w, l.Line)
		case wire.EventResult:
			var r api.ExecResult
			if err := json.Unmarshal(data, &r); err != nil || r.ExitCode == 0 {
				return err
			}
			return &Exit{Code: r.ExitCode}
		case wire.EventError:
			r := &Refusal{}
			if err := json.Unmarshal(data, r); err != nil {
				return err
			}
			return &Exit{Code: ExitUsage, Err: r}
		}
	}
}

// logs is a verb that prints a log.
type logs struct{ use, short, path, tenant string }

func (l logs) command(c *CLI) *cobra.Command {
	q := url.Values{}
	var tail, tenant string
	follow := false
	cmd := &cobra.Command{Use: l.use, Short: l.short}
	f := cmd.Flags()
	f.StringVar(&tail, "tail", "100", "lines from the end")
	f.BoolVarP(&follow, "follow", "f", false, "keep printing new lines, for 15 minutes at most")
	if l.tenant != "" {
		f.StringVar(&tenant, "tenant", "", l.tenant)
	}
	return c.run(cmd, "", func(in *call) (func() error, error) {
		q.Set("tail", tail)
		q.Set("follow", fmt.Sprint(follow))
		if tenant != "" {
			q.Set("tenant_id", tenant)
			if err := in.resolveFilters(q); err != nil {
				return nil, err
			}
		}
		return nil, in.client.stream(in.Context(), &http.Client{}, http.MethodGet, in.path(l.path), q, nil, nil, func(r io.Reader) error {
			_, err := io.Copy(in.OutOrStdout(), r)
			return err
		})
	})
}

func containerCommand(c *CLI) *cobra.Command {
	return c.group("container", "Inspect and repair the containers on a server's host",
		List[api.Container]{
			Use: "list SERVER", Short: "List a server's containers", Path: "/v1/servers/{server}/containers", Items: "containers", Whole: true,
			Table: Table[api.Container]{ID: "name", Columns: "name: container, state, health, restarts, started_at: since, image", Spare: "since, restarts, health", More: "exit_code, oom_killed"},
		},
		logs{"logs SERVER CONTAINER", "Print a container's log, without secrets", "/v1/servers/{server}/containers/{container}/logs", "count it as a log stream of this tenant's org"},
		Action[api.ContainerRepair]{
			Use: "repair SERVER", Short: "Restore a server's containers to their declaration", Path: "/v1/servers/{server}/containers/repair", Patience: 16 * time.Minute,
			Say: func(_ *call, r api.ContainerRepair) string {
				if len(r.Repaired) == 0 {
					return "nothing to repair"
				}
				out := ""
				for i, d := range r.Repaired {
					out += map[bool]string{false: "\n"}[i == 0] + fmt.Sprintf("repaired %s: %s %s", d.Container, d.Kind, deref(d.Detail))
				}
				return out
			},
		},
	)
}

// started are the actions that start a workflow and print its id.
func started(use, short, path string, flags func(*cobra.Command, *pflag.FlagSet)) Action[api.WorkflowStarted] {
	return Action[api.WorkflowStarted]{
		Use: use, Short: short, Path: path, Flags: flags, Table: Table[api.WorkflowStarted]{ID: "workflow_id"},
		Say: func(_ *call, w api.WorkflowStarted) string { return "started: workflow " + w.WorkflowId },
	}
}

func reconcileCommand(c *CLI) *cobra.Command {
	return c.alone(started("reconcile", "Compare the database with the provider now", "/internal/reconcile", nil))
}
