package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
)

// exec runs a command on a host, and prints its output.
var exec = hook{
	flags: func(cmd *cobra.Command, _ *pflag.FlagSet) { cmd.Long += "\n\n" + hostCommands() },
	body: func(in *call, body object) (any, error) {
		if len(in.rest) == 0 {
			return nil, usagef("the command is missing; usage: %s", in.UseLine())
		}
		in.typed = in.args["server_id"]
		return body, nil
	},
	stream: func(in *call, r io.Reader) error { return in.events(wire.NewEventReader(r)) },
}

// hostCommands lists what callers may have a host run. Words in capitals stand for values; commands that need a secret
// are the control plane's own.
func hostCommands() string {
	out := []string{"Kinds and their commands (words in capitals stand for values):"}
	for _, kind := range []wire.CommandKind{wire.KindBench, wire.KindMariaDB, wire.KindRedisCLI} {
		out = append(out, "", string(kind)+":")
		for _, r := range policy.Rules[kind] {
			if r.Needs == "" {
				out = append(out, "  "+r.Line)
			}
		}
	}
	return strings.Join(out, "\n")
}

// printed prints a log.
var printed = hook{stream: func(in *call, r io.Reader) error {
	_, err := io.Copy(in.OutOrStdout(), r)
	return err
}}

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

func repaired(_ *call, r api.ContainerRepair) string {
	if len(r.Repaired) == 0 {
		return "nothing to repair"
	}
	lines := make([]string, len(r.Repaired))
	for i, d := range r.Repaired {
		lines[i] = fmt.Sprintf("repaired %s: %s %s", d.Container, d.Kind, deref(d.Detail))
	}
	return strings.Join(lines, "\n")
}
