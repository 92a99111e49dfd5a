package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

func statusCommand(c *CLI) *cobra.Command {
	wide, check := false, false
	cmd, v := c.own("listAttention")
	f := cmd.Flags()
	f.BoolVar(&wide, "todo", false, "show below each what to do, and the commands for it")
	f.BoolVar(&check, "check", false, "exit with 3 if something is critical")
	columnFlags(f, everyColumn(api.TableOf("Attention")))
	watchFlag(f)
	cmd.MarkFlagsMutuallyExclusive("watch", "check")
	return c.run(cmd, "id", func(in *call) (func() error, error) {
		q, _, err := in.request(v, hook{})
		if err != nil {
			return nil, err
		}
		if in.is("watch") {
			return nil, in.watchStatus(q, wide)
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
	})
}

// watchStatus shows what needs attention again and again.
func (in *call) watchStatus(q url.Values, wide bool) error {
	var out api.AttentionList
	read := func(ctx context.Context) ([]json.RawMessage, error) {
		var answer json.RawMessage
		if err := in.client.Do(ctx, http.MethodGet, "/v1/attention", q, nil, &answer); err != nil {
			return nil, err
		}
		var items struct {
			Items []json.RawMessage `json:"items"`
		}
		out = api.AttentionList{}
		err := errors.Join(json.Unmarshal(answer, &out), json.Unmarshal(answer, &items))
		return items.Items, err
	}
	return in.keepShowing(api.TableOf("Attention"), read, func([]json.RawMessage) error { return in.status(out, wide) })
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
		in.wrap = !in.given("columns")
		if err := parts(in.printer, "Attention", out.Items); err != nil {
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
		fmt.Fprintf(in.w, "  %s\n", oneLine(a.Message))
		if a.Affected != nil {
			fmt.Fprintf(in.w, "  affects %s\n", a.Affected.Summary)
		}
		fmt.Fprintf(in.w, "  %s\n", a.Todo)
		for _, x := range a.Actions {
			fmt.Fprintf(in.w, "    %s  # %s\n", x.Cli, strings.ToLower(x.Label[:1])+x.Label[1:])
		}
	}
}
