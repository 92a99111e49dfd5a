package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
)

// stream sends a request whose answer comes as it is made, and gives read its body.
func (c *apiClient) stream(ctx context.Context, method, path string, query url.Values, in any, read func(io.Reader) error) error {
	req, err := c.request(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{}).Do(req)
	if err != nil {
		return &exitError{code: 1, err: fmt.Errorf("the API at %s does not answer: %w", c.base, err)}
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		b, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
		if err != nil {
			return err
		}
		return notOK(resp, b)
	}
	return read(resp.Body)
}

func newExecCommand() *cobra.Command {
	var timeout time.Duration
	var tenant string
	cmd := &cobra.Command{
		Use: "exec SERVER_ID KIND -- ARGS…", Short: "Run an allowed bench, mariadb or redis-cli command on a server's host",
		Long: `Runs one of the commands that hosts allow, and prints what it prints. The exit status
is the command's own; 1 when the API or the host did not answer, 2 when it was refused.
Each is kept in the audit: prego server commands SERVER_ID.`,
		Example: "  prego exec app-sgp-007 bench -- --site acme.example.com list-apps",
		Args:    cobra.MinimumNArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			seconds := int((timeout + time.Second - 1) / time.Second)
			in := api.Exec{Kind: api.ExecKind(args[1]), Args: args[2:], TimeoutSeconds: &seconds, TenantId: flagged(tenant)}
			return c.stream(cmd.Context(), http.MethodPost, "/v1/servers/"+url.PathEscape(args[0])+"/exec", nil, in, func(body io.Reader) error {
				return printEvents(cmd, body)
			})
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "after which the command is killed")
	cmd.Flags().StringVar(&tenant, "tenant", "", "count it as a session of this tenant's org")
	return cmd
}

// printEvents prints a command's lines where it printed them, and ends as it did.
func printEvents(cmd *cobra.Command, body io.Reader) error {
	events := wire.NewEventReader(body)
	for {
		name, data, err := events.Next()
		if err != nil {
			return fmt.Errorf("the stream was cut off; the command may go on, see prego server commands: %w", err)
		}
		switch name {
		case wire.EventProgress:
			var l api.ExecProgress
			if err := json.Unmarshal(data, &l); err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if l.Stream == "stderr" {
				w = cmd.ErrOrStderr()
			}
			fmt.Fprintln(w, l.Line)
		case wire.EventResult:
			var r api.ExecResult
			if err := json.Unmarshal(data, &r); err != nil {
				return err
			}
			if r.ExitCode != 0 {
				return &exitError{code: r.ExitCode}
			}
			return nil
		case wire.EventError:
			r := &refusal{}
			if err := json.Unmarshal(data, &r.Problem); err != nil {
				return err
			}
			return &exitError{code: 1, err: r}
		}
	}
}

func serverCommands(output *string) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "commands SERVER_ID", Short: "List what was run on a server's host, newest first", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return errors.New("--limit must be at least 1")
			}
			c, err := newAPIClient()
			if err != nil {
				return err
			}
			all, err := walk(cmd.Context(), c, "/v1/servers/"+url.PathEscape(args[0])+"/commands", url.Values{}, limit,
				func(p api.CommandPage) ([]api.Command, *string) { return p.Commands, p.NextCursor })
			if err != nil {
				return err
			}
			if *output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 2, 4, 2, ' ', 0)
			fmt.Fprintln(w, "REQUESTED\tBY\tKIND\tEXIT\tMS\tARGS")
			for _, v := range all {
				by := string(v.Actor)
				switch {
				case v.RequestedBy != nil:
					by = *v.RequestedBy
				case v.WorkflowId != nil:
					by = *v.WorkflowId
				}
				exit, ms := "?", ""
				if v.ExitCode != nil {
					exit = strconv.Itoa(*v.ExitCode)
				}
				if v.DurationMs != nil {
					ms = strconv.FormatInt(*v.DurationMs, 10)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", v.RequestedAt.Format(time.RFC3339), by, v.Kind, exit, ms, v.Args)
			}
			return w.Flush()
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "at most so many")
	return cmd
}
