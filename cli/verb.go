package cli

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// call is one run of a verb on one thing.
type call struct {
	*cobra.Command
	*printer
	client *Client
	args   map[string]string // ids, by the argument names in the verb's Use, in lower case
	typed  string            // the last argument, as given
	rest   []string          // the arguments after those
	answer json.RawMessage   // of the verb's request
	seen   map[string]bool   // keys of events before the request
}

// usage describes the arguments in a verb's Use: "logs SERVER CONTAINER", "show
// SERVER…", "list [ENV]", "deploy GROUP [-- COMMAND…]".
type usage struct {
	names         []string
	optional      string
	several, rest bool
}

func usageOf(use string) (u usage) {
	for _, word := range strings.Fields(use)[1:] {
		if strings.HasPrefix(word, "[") || word == "--" {
			u.optional = strings.ToLower(strings.Trim(word, "[]-"))
			u.rest = u.optional == ""
			break
		}
		u.several = strings.HasSuffix(word, "…")
		u.names = append(u.names, strings.ToLower(strings.TrimSuffix(word, "…")))
	}
	return u
}

// exactly rejects other numbers of arguments.
func exactly(use ...string) cobra.PositionalArgs {
	return usageOf(strings.Join(append([]string{"x"}, use...), " ")).check
}

func (u usage) check(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch n := len(u.names); {
	case len(args) < n || dash >= 0 && dash < n:
		return usagef("%s is missing; usage: %s", strings.ToUpper(u.names[min(len(args), n-1)]), cmd.UseLine())
	case len(args) > n && !u.several && !u.rest && (u.optional == "" || len(args) > n+1):
		return usagef("unexpected argument %q; usage: %s", args[len(args)-1], cmd.UseLine())
	}
	return nil
}

// run makes the command call do for each named thing; the function that do returns runs
// after do was called for all.
func (c *CLI) run(cmd *cobra.Command, id string, do func(in *call) (after func() error, err error)) *cobra.Command {
	u := usageOf(cmd.Use)
	cmd.Args, cmd.ValidArgsFunction = u.check, c.completeArgs(u)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := c.Client()
		if err != nil {
			return err
		}
		n := len(u.names)
		last, rest := []string{""}, args[n:]
		if n > 0 {
			last = args[n-1 : n]
		}
		if u.several {
			last, rest = args[n-1:], nil
		}
		p := c.printer(cmd, len(last) > 1)
		var calls []*call
		var failed []error
		fail := func(name string, err error) {
			if len(last) > 1 {
				fmt.Fprintf(cmd.ErrOrStderr(), "prego: %s: %v\n", name, err)
			}
			failed = append(failed, err)
		}
		var afters []func() error
		for _, name := range last {
			in := &call{Command: cmd, printer: p, client: client, args: map[string]string{}, rest: rest, typed: name, seen: map[string]bool{}}
			given := args[:n]
			if n > 0 {
				given = append(append([]string{}, args[:n-1]...), name)
			}
			after, err := in.begin(u.names, given, do)
			if err != nil {
				fail(name, err)
			} else if after != nil {
				calls, afters = append(calls, in), append(afters, after)
			}
		}
		for i, after := range afters {
			if err := after(); err != nil {
				fail(calls[i].typed, err)
			}
		}
		if err := p.flush(id); err != nil {
			return err
		}
		if len(last) > 1 && len(failed) > 0 {
			return &Exit{Code: exitCode(failed[0]), Err: fmt.Errorf("%d of %d failed", len(failed), len(last))}
		}
		return errors.Join(failed...)
	}
	return cmd
}

// begin resolves the names, and calls do.
func (in *call) begin(names, given []string, do func(in *call) (func() error, error)) (func() error, error) {
	for i, name := range names {
		id, err := in.resolve(name, given[i])
		if err != nil {
			return nil, err
		}
		in.args[name] = id
	}
	return do(in)
}

// argument is where a text has an argument of its command.
var argument = regexp.MustCompile(`\{arg ([a-z-]+)\}`)

var placeholder = regexp.MustCompile(`\{[a-z0-9_-]+\}`)

// path fills a path's placeholders from the arguments or else from the answer.
func (in *call) path(path string) string {
	return placeholder.ReplaceAllStringFunc(path, func(name string) string { return url.PathEscape(in.arg(strings.Trim(name, "{}"))) })
}

func (in *call) arg(name string) string {
	return cmp.Or(in.args[name], idOf(in.answer, cmp.Or(kinds[name].id, name)))
}

// given reports whether a flag was given.
func (in *call) given(flag string) bool { return in.Flags().Changed(flag) }

// typedAgain reads the name of the thing to destroy.
func (in *call) typedAgain() error {
	line, err := in.ask()
	if err != nil || strings.TrimSpace(line) != in.typed {
		return usagef("not confirmed; nothing was done")
	}
	return nil
}

// ask reads a line from the terminal.
func (p *printer) ask() (string, error) {
	if p.stdin == nil {
		p.stdin = bufio.NewReader(p.cmd.InOrStdin())
	}
	return p.stdin.ReadString('\n')
}

// seconds rounds a duration up to whole seconds.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
