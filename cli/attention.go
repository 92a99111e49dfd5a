package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/attention"
)

var attentionTable = Table[api.Attention]{
	ID: "id", Columns: "severity, kind, subject, since: age, message", Spare: "kind", More: "reason, org_id, todo, commands, docs, count, id",
	Computed: map[string]func(api.Attention) any{
		"subject": func(a api.Attention) any {
			return a.Subject.Kind + " " + a.Subject.Name
		},
		"commands": func(a api.Attention) any {
			all := make([]string, len(a.Actions))
			for i, x := range a.Actions {
				all[i] = x.Cli
			}
			return strings.Join(all, "; ")
		},
	},
}

func statusCommand(c *CLI) *cobra.Command {
	limit, wide, check := 100, false, false
	cmd := &cobra.Command{
		Use: "status", Short: "Show what needs attention now, the most urgent first",
		Long: "Show what needs attention now, the most urgent first: what is the matter, since when, and with --todo what to do.\n" +
			"With --check the exit status is 3 while something is critical.",
		Example: "  prego status --todo\n  prego status --check --severity critical -q",
	}
	f := cmd.Flags()
	params := addFilters(f, "severity, kind", map[string][]string{"severity": prego.Strings(attention.Severities()), "kind": prego.Strings(attention.Kinds())})
	f.IntVar(&limit, "limit", limit, "how many to list, at most 500")
	f.BoolVar(&wide, "todo", false, "show below each what to do, and the commands for it")
	f.BoolVar(&check, "check", false, "exit with 3 if something is critical")
	attentionTable.flags(f)
	return formed(c.run(cmd, attentionTable.ID, func(in *call) (func() error, error) {
		q := url.Values{"limit": {strconv.Itoa(limit)}}
		for name, value := range params {
			if *value != "" {
				q.Set(name, *value)
			}
		}
		var out api.AttentionList
		var answer json.RawMessage
		if err := in.client.Do(in.Context(), http.MethodGet, "/v1/attention", q, nil, &answer); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(answer, &out); err != nil {
			return nil, err
		}
		if in.quiet {
			in.many = true
			var raw struct {
				Items []json.RawMessage `json:"items"`
			}
			if err := json.Unmarshal(answer, &raw); err != nil {
				return nil, err
			}
			in.answered = raw.Items
		} else {
			in.keep(answer)
		}
		var critical error
		if check && out.Counts.Critical > 0 {
			critical = &Exit{Code: ExitOutcome, Err: errors.New(counted(out.Counts.Critical, "critical"))}
		}
		if !in.forPeople() {
			return func() error { return critical }, nil
		}
		if err := in.status(out, wide); err != nil {
			return nil, err
		}
		return func() error { return critical }, nil
	}))
}

// counted is like "2 are critical".
func counted(n int, what string) string {
	if n == 1 {
		return "1 is " + what
	}
	return fmt.Sprintf("%d are %s", n, what)
}

func (in *call) status(out api.AttentionList, wide bool) error {
	if out.Counts.Critical+out.Counts.Warning+out.Counts.Info == 0 {
		fmt.Fprintln(in.w, "nothing needs attention")
		return nil
	}
	switch {
	case len(out.Items) == 0:
	case !wide:
		if err := rows(in.printer, attentionTable, out.Items); err != nil {
			return err
		}
	default:
		in.todo(out)
	}
	fmt.Fprintf(in.w, "\ncritical %d, warning %d, info %d\n", out.Counts.Critical, out.Counts.Warning, out.Counts.Info)
	return nil
}

// todo shows items with what to do.
func (in *call) todo(out api.AttentionList) {
	look := in.look(in.w)
	for i, a := range out.Items {
		if i > 0 {
			fmt.Fprintln(in.w)
		}
		severity := string(a.Severity)
		if look.colour {
			severity = coloured(severity, severity)
		}
		fmt.Fprintf(in.w, "%s  %s  %s %s  (%s)\n", severity, a.Kind, a.Subject.Kind, a.Subject.Name, age(out.AsOf.Sub(a.Since).Truncate(time.Second)))
		fmt.Fprintf(in.w, "  %s\n  %s\n", oneLine(a.Message), a.Todo)
		for _, x := range a.Actions {
			fmt.Fprintf(in.w, "    %s  # %s\n", x.Cli, strings.ToLower(x.Label[:1])+x.Label[1:])
		}
	}
}

var queueTable = Table[api.QueueEntry]{
	ID: "id", Columns: "region, kind, position: no, name, org_id, waiting_since: age, code, expected, expected_because: because", Spare: "because, org, kind",
	More: "id, plan, missing_roles, reason, coming, expected_at",
	Computed: map[string]func(api.QueueEntry) any{
		"expected": func(e api.QueueEntry) any {
			if e.ExpectedAt == nil {
				return nil
			}
			return e.ExpectedAt.UTC().Format("15:04:05")
		},
		"coming": func(e api.QueueEntry) any {
			all := make([]string, len(e.Coming))
			for i, x := range e.Coming {
				all[i] = x.Id
			}
			return strings.Join(all, ", ")
		},
	},
}

func queueCommand(c *CLI) *cobra.Command {
	return c.group("queue", "Show who waits for capacity", List[api.QueueEntry]{
		Short: "List who waits for capacity, in the order in which they are served, and what is on its way", Path: "/v1/queue", Items: "entries",
		Filters: "kind, region, org: org_id", Limit: 50, Table: queueTable,
	})
}
