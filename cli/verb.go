package cli

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// verb makes a command.
type verb interface{ command(c *CLI) *cobra.Command }

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

var placeholder = regexp.MustCompile(`\{[a-z0-9-]+\}`)

// path fills a path's placeholders from the arguments or else from the answer.
func (in *call) path(path string) string {
	return placeholder.ReplaceAllStringFunc(path, func(name string) string { return url.PathEscape(in.arg(strings.Trim(name, "{}"))) })
}

func (in *call) arg(name string) string {
	return cmp.Or(in.args[name], idOf(in.answer, cmp.Or(kinds[name].id, name)))
}

// given reports whether a flag was given.
func (in *call) given(flag string) bool { return in.Flags().Changed(flag) }

// changes say what each flag changes when it is given.
type changes map[string]func()

// set is the change that copies the value of a flag.
func set[T any](to, flag *T) func() { return func() { *to = *flag } }

// changed tells whether any of the flags was given.
func (in *call) changed(by changes) bool {
	for flag := range by {
		if in.given(flag) {
			return true
		}
	}
	return false
}

// apply makes the changes of the flags that were given.
func (in *call) apply(by changes) {
	for flag, change := range by {
		if in.given(flag) {
			change()
		}
	}
}

// List is a verb that lists things of a kind.
type List[T any] struct {
	Use, Short, Example string // Use defaults to "list"
	Path, Items         string // Items is the field of the answer with the items
	Table               Table[T]
	Filters             string              // flags, as "region, org: org_id": the parameter follows a colon if it differs
	Values              map[string][]string // closed sets of values, by flag
	All                 bool                // offers --all, for lists that omit ended things
	Sorts               string              // fields that the API can sort by; other columns are sorted here
	Limit               int                 // default of --limit: 1000
	Whole               bool                // the answer has no pages
}

func (l List[T]) command(c *CLI) *cobra.Command {
	cmd := &cobra.Command{Use: cmp.Or(l.Use, "list"), Short: l.Short, Example: l.Example}
	f := cmd.Flags()
	params := addFilters(f, l.Filters, l.Values)
	limit, all, sort := 0, false, ""
	if !l.Whole {
		f.IntVar(&limit, "limit", cmp.Or(l.Limit, 1000), "list at most this many")
	}
	if l.All {
		f.BoolVarP(&all, "all", "a", false, "include ended ones")
	}
	f.StringVar(&sort, "sort", "", "sort by a column, -column for descending")
	columns := l.Table.flags(f)
	offerCSV(cmd)
	return c.run(cmd, l.Table.ID, func(in *call) (func() error, error) {
		if !l.Whole && limit < 1 {
			return nil, usagef("--limit must be at least 1")
		}
		by, err := sorted(columns, sort)
		if err != nil {
			return nil, err
		}
		if _, err := columnsOf(in.printer, l.Table); err != nil {
			return nil, err
		}
		q := url.Values{}
		if len(in.rest) > 0 { // the optional argument narrows the list, like the flag
			q.Set(usageOf(cmd.Use).optional+"_id", in.rest[0])
		}
		for param, v := range params {
			if *v != "" {
				q.Set(param, *v)
			}
		}
		if err := in.resolveFilters(q); err != nil {
			return nil, err
		}
		if all {
			q.Set("all", "true")
		}
		if sort != "" && slices.Contains(strings.Split(l.Sorts, ", "), by.field) {
			q.Set("sort", sort[:len(sort)-len(strings.TrimPrefix(sort, "-"))]+by.field)
		}
		raw, err := in.client.everyPage(in.Context(), in.path(l.Path), l.Items, q, limit)
		if err != nil {
			return nil, err
		}
		things := make([]T, len(raw))
		for i := range raw {
			if err := json.Unmarshal(raw[i], &things[i]); err != nil {
				return nil, err
			}
		}
		if sort != "" {
			arrange(by, strings.HasPrefix(sort, "-"), things, raw)
		}
		in.many, in.answered = true, raw
		switch {
		case in.format == csvFormat && !in.quiet:
			return nil, csvRows(in.printer, l.Table, things)
		case !in.forPeople():
			return nil, nil
		}
		return nil, rows(in.printer, l.Table, things)
	})
}

// Show is a verb that shows single things.
type Show[T any] struct {
	Use, Short, Example string
	Path                string
	Table               Table[T]
	After               func(in *call, thing T) // shows what is not a field
	Watch               follower
}

func (s Show[T]) command(c *CLI) *cobra.Command {
	watch := false
	cmd := &cobra.Command{Use: s.Use, Short: s.Short, Example: s.Example}
	cmd.Flags().BoolP("quiet", "q", false, "print ids only")
	if s.Watch != nil {
		cmd.Flags().BoolVar(&watch, "watch", false, "keep watching until the operation is done")
	}
	return c.run(cmd, s.Table.ID, func(in *call) (func() error, error) {
		var thing T
		if err := in.client.Do(in.Context(), http.MethodGet, in.path(s.Path), nil, nil, &in.answer); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(in.answer, &thing); err != nil {
			return nil, err
		}
		if in.forPeople() {
			if in.shown++; in.shown > 1 {
				fmt.Fprintln(in.w)
			}
			fields(in.printer, s.Table, thing)
			if s.After != nil {
				s.After(in, thing)
			}
		}
		if watch {
			return func() error { return s.Watch.follow(in) }, s.Watch.mark(in)
		}
		in.keep(in.answer)
		return nil, nil
	})
}

// Action is a verb that sends a request for each given thing.
type Action[T any] struct {
	Use, Short, Long, Example string
	Aliases                   []string
	Method, Path              string        // Method defaults to POST
	MethodOf                  func() string // if flags decide
	Flags                     func(cmd *cobra.Command, f *pflag.FlagSet)
	Body                      func(in *call) (any, error)
	Query                     func(in *call) url.Values
	Destroys                  string              // what is confirmed: "deletes server"
	Harmless                  func(in *call) bool // reports whether the flags rule out destruction, so that there is nothing to confirm
	Patience                  time.Duration
	Table                     Table[T]
	Say                       func(in *call, answer T) string // in place of the table
	After                     func(in *call, answer T)
	Finish                    func(in *call) error                   // more requests before the answer is shown
	Instead                   func(in *call) (shown bool, err error) // shows another kind of answer
	Watch                     follower
}

func (a Action[T]) command(c *CLI) *cobra.Command {
	cmd := &cobra.Command{Use: a.Use, Short: a.Short, Long: a.Long, Example: a.Example, Aliases: a.Aliases}
	f := cmd.Flags()
	watch, yes, key := false, false, ""
	if a.Watch != nil {
		f.BoolVar(&watch, "watch", false, "show the progress until it is done")
	}
	if a.Destroys != "" {
		f.BoolVarP(&yes, "yes", "y", false, "don't ask for confirmation")
	}
	method := cmp.Or(a.Method, http.MethodPost)
	if method == http.MethodPost {
		f.StringVar(&key, "idempotency-key", "", "key that makes it safe to repeat the request")
	}
	f.BoolP("quiet", "q", false, "print ids only")
	if a.Flags != nil {
		a.Flags(cmd, f)
	}
	return c.run(cmd, a.Table.ID, func(in *call) (func() error, error) {
		var body any
		var err error
		if a.Body != nil {
			if body, err = a.Body(in); err != nil {
				return nil, err
			}
		}
		if a.Destroys != "" && !yes && (a.Harmless == nil || !a.Harmless(in)) {
			if err := in.confirm(a.Destroys); err != nil {
				return nil, err
			}
		}
		if watch {
			if err := a.Watch.mark(in); err != nil {
				return nil, err
			}
		}
		var q url.Values
		if a.Query != nil {
			q = a.Query(in)
		}
		if a.MethodOf != nil {
			method = a.MethodOf()
		}
		header := http.Header{}
		if key != "" {
			header.Set("Idempotency-Key", key)
		}
		client := *in.client
		if a.Patience > 0 {
			client.HTTP = &http.Client{Timeout: a.Patience}
		}
		if err := client.send(in.Context(), method, in.path(a.Path), q, header, body, &in.answer); err != nil {
			return nil, err
		}
		if a.Finish != nil {
			if err := a.Finish(in); err != nil {
				return nil, err
			}
		}
		if a.Instead != nil {
			if shown, err := a.Instead(in); shown || err != nil {
				return nil, err
			}
		}
		var answer T
		if len(in.answer) > 0 {
			if err := json.Unmarshal(in.answer, &answer); err != nil {
				return nil, err
			}
		}
		if in.forPeople() {
			if a.Say != nil {
				fmt.Fprintln(in.w, a.Say(in, answer))
			} else {
				fields(in.printer, a.Table, answer)
			}
			if a.After != nil {
				a.After(in, answer)
			}
		}
		if watch {
			return func() error { return a.Watch.follow(in) }, nil
		}
		if len(in.answer) > 0 {
			in.keep(in.answer)
		}
		return nil, nil
	})
}

// Delete is the delete verb of a noun.
func Delete(use, what, path string) Action[struct{}] {
	return Action[struct{}]{
		Use: use, Short: "Delete a " + what, Method: http.MethodDelete, Path: path, Destroys: "deletes " + what,
		Say: func(in *call, _ struct{}) string { return "deleted " + what + " " + in.typed },
	}
}

// confirm asks for the name of what is to be destroyed.
func (in *call) confirm(destroys string) error {
	if in.Width(in.InOrStdin()) == 0 {
		return usagef("this %s %s; without a terminal to ask at, confirm it with --yes", destroys, in.typed)
	}
	fmt.Fprintf(in.ErrOrStderr(), "This %s %s. Type its name to confirm: ", destroys, in.typed)
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

func whole(arg, what string) (int, error) {
	n, err := strconv.Atoi(arg)
	if err != nil {
		return 0, usagef("%q is not %s", arg, what)
	}
	return n, nil
}
