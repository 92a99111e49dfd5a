package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/workload"
)

// hook is what the program adds to a command that the contract describes.
type hook struct {
	flags   func(cmd *cobra.Command, f *pflag.FlagSet)
	check   func(in *call) error                     // rejects flags before anything is read
	body    func(in *call, body object) (any, error) // changes the body, or replaces it
	method  func(in *call) string
	wait    time.Duration // for an answer
	finish  func(in *call) error
	say     func(in *call) (string, error)        // in place of the table
	after   func(in *call) error                  // shows what the table lacks
	instead func(in *call) (done bool, err error) // shows another kind of answer
	watch   follower
	// confirm shows the impact before anything is done, and asks for the name on a terminal.
	confirm bool
	tried   func(in *call, i impact.Impact) error // shows more of a dry run
	stream  func(in *call, r io.Reader) error     // reads an answer as it arrives
}

// said formats an answer with a hook.
func said[T any](text func(in *call, answer T) string) func(*call) (string, error) {
	return func(in *call) (string, error) {
		var v T
		if err := decode(in.answer, &v); err != nil {
			return "", err
		}
		return text(in, v), nil
	}
}

// more is a hook that shows more of an answer.
func more[T any](show func(in *call, answer T) error) func(*call) error {
	return func(in *call) error {
		var v T
		if err := decode(in.answer, &v); err != nil {
			return err
		}
		return show(in, v)
	}
}

// decode reads an answer, which may be empty.
func decode(raw json.RawMessage, to any) error {
	if len(raw) == 0 {
		return nil
	}
	return json.Unmarshal(raw, to)
}

// object is a body.
type object map[string]any

// verbWords are a verb's words without its arguments.
func verbWords(v *api.Verb) []string {
	all := strings.Fields(v.Use)
	n := slices.IndexFunc(all, func(w string) bool { return strings.ToLower(w) != w || strings.HasPrefix(w, "-") })
	if n < 0 {
		n = len(all)
	}
	return all[:n]
}

// addVerbs adds the commands that the contract describes to a program.
func (c *CLI) addVerbs(root *cobra.Command) {
	for v := range api.EachVerb {
		if v.Own {
			continue
		}
		words := verbWords(v)
		parent := c.noun(root, words[:len(words)-1])
		parent.AddCommand(c.verb(v, hooks[strings.Join(words, " ")]))
	}
}

// noun is the command of some words, made if there is none yet.
func (c *CLI) noun(root *cobra.Command, words []string) *cobra.Command {
	at := root
	for i, word := range words {
		n := slices.IndexFunc(at.Commands(), func(cmd *cobra.Command) bool { return cmd.Name() == word })
		if n >= 0 {
			at = at.Commands()[n]
			continue
		}
		noun := &cobra.Command{Use: word, Short: api.Nouns[strings.Join(words[:i+1], " ")]}
		if at == root {
			noun = c.top(noun)
		}
		at.AddCommand(noun)
		at = noun
	}
	return at
}

// verb makes a command.
func (c *CLI) verb(v *api.Verb, h hook) *cobra.Command {
	cmd := bare(v)
	for _, fl := range v.Flags {
		addFlag(cmd, fl)
	}
	if h.flags != nil {
		h.flags(cmd, cmd.Flags())
	}
	if v.Items != "" {
		c.list(cmd, v)
	} else {
		c.single(cmd, v, h)
	}
	if len(verbWords(v)) == 1 {
		return c.top(cmd)
	}
	return cmd
}

// own is a command of an operation that has code, with the flags that are the contract's.
func (c *CLI) own(operation string) (*cobra.Command, *api.Verb) {
	v := api.VerbsOf(operation)[0]
	cmd := bare(v)
	for _, fl := range v.Flags {
		addFlag(cmd, fl)
	}
	return cmd, v
}

// bare is a command without flags.
func bare(v *api.Verb) *cobra.Command {
	use := strings.Join(strings.Fields(v.Use)[len(verbWords(v))-1:], " ")
	return harms(&cobra.Command{Use: use, Short: v.Short, Long: v.Long, Example: v.Example, Aliases: v.Aliases}, v)
}

// addFlag adds a flag of the contract's.
func addFlag(cmd *cobra.Command, fl api.Flag) {
	f := cmd.Flags()
	if fl.In == "query" {
		fl.Short = cmp.Or(fl.Short, map[string]string{"all": "a"}[fl.Name])
	}
	help := fl.Help
	if fl.Many && len(fl.Values) > 0 {
		help += ", or several with commas"
	}
	if len(fl.Values) > 0 {
		help += ": " + oneOrOther(fl.Values)
	}
	switch fl.Type {
	case "bool":
		f.BoolP(fl.Name, fl.Short, fl.Default == "true", help)
	case "int":
		n, _ := strconv.Atoi(fl.Default)
		f.IntP(fl.Name, fl.Short, n, help)
	case "number":
		n, _ := strconv.ParseFloat(fl.Default, 64)
		f.Float64P(fl.Name, fl.Short, n, help)
	case "list":
		f.StringSliceP(fl.Name, fl.Short, nil, help+"; may be repeated")
	case "ints":
		f.IntSliceP(fl.Name, fl.Short, nil, help)
	case "map":
		f.StringToStringP(fl.Name, fl.Short, nil, help+"; as name=value")
	case "duration":
		d, _ := time.ParseDuration(fl.Default)
		f.DurationP(fl.Name, fl.Short, d, help)
	case "memory", "disk":
		size := sizeFlag{new(int64), memory, bytesText}
		if help += ", " + sizeHelp; fl.Type == "disk" {
			size, help = sizeFlag{new(int64), disk, diskText}, fl.Help+", like 500MB or 20GB; K, M, G and T are powers of 1000, KiB to TiB of 1024"
		}
		if fl.Default != "" {
			_ = size.Set(fl.Default) // a test sets all defaults
		}
		f.VarP(size, fl.Name, fl.Short, help)
	case "secret":
		f.String(fl.Name+"-file", "", "file that holds the "+fl.Name+" (default: standard input)")
		return // it is read from standard input otherwise
	case "json":
		f.StringP(fl.Name, fl.Short, "", help+", as JSON or as a file that holds it; - for standard input")
	default:
		if len(fl.Values) > 0 {
			f.VarP(&choice{to: new(fl.Default), of: fl.Values, many: fl.Many}, fl.Name, fl.Short, help)
		} else {
			f.StringP(fl.Name, fl.Short, fl.Default, help)
		}
	}
	if fl.Required {
		required(cmd, fl.Name)
	}
	if fl.In == "query" && fl.Field == "status" && fl.Name == "status" { // both words are used for the state of things
		f.VarP(f.Lookup("status").Value, "state", "", "the same as --status")
	}
}

// value is a flag's value; nil if it has none.
func (in *call) value(fl api.Flag) (v any, err error) {
	f := in.Flags()
	switch fl.Type {
	case "bool":
		return f.GetBool(fl.Name)
	case "int":
		return f.GetInt(fl.Name)
	case "number":
		return f.GetFloat64(fl.Name)
	case "list":
		return f.GetStringSlice(fl.Name)
	case "ints":
		return f.GetIntSlice(fl.Name)
	case "map":
		return f.GetStringToString(fl.Name)
	case "duration":
		d, err := f.GetDuration(fl.Name)
		return seconds(d), err
	case "memory", "disk":
		size, _ := in.Flag(fl.Name).Value.(sizeFlag)
		return *size.n, nil
	case "secret":
		return in.secret(in.InOrStdin(), in.text(fl.Name+"-file"))
	case "share":
		s, err := workload.ParseShare(in.text(fl.Name))
		if err != nil {
			return nil, usagef("--%s: %w", fl.Name, err)
		}
		return s, nil
	case "json":
		return in.json(fl.Name)
	}
	text := in.text(fl.Name)
	if text == "" && !fl.Empty && !fl.Required {
		return nil, nil
	}
	return in.named(fl.Field, text)
}

// text is a flag's value as it was given.
func (in *call) text(flag string) string { return in.Flag(flag).Value.String() }

// json is a flag's JSON, or the contents of the file that it names.
func (in *call) json(flag string) (json.RawMessage, error) {
	text := in.text(flag)
	b := []byte(text)
	if !json.Valid(b) {
		var err error
		if b, err = read(in.InOrStdin(), text); err != nil {
			return nil, err
		}
		if !json.Valid(b) {
			return nil, usagef("--%s: %s is not a JSON document", flag, text)
		}
	}
	return b, nil
}

// named is an id where a property holds one and a name was given.
func (in *call) named(field, text string) (string, error) {
	what, isID := strings.CutSuffix(field[strings.LastIndexByte(field, '.')+1:], "_id")
	if !isID {
		return text, nil
	}
	return in.resolve(what, text)
}

// says reports whether a flag of the contract was given, or has a value that is always sent.
func (in *call) says(fl api.Flag) bool {
	return fl.Always || fl.Type == "secret" && fl.Required || in.Flags().Lookup(fl.Name) != nil && in.Flags().Changed(fl.Name) ||
		fl.Name == "status" && in.Flags().Changed("state")
}

func consoleLink(in *call, l api.ConsoleLogin) string { return in.client.Base + l.Path }

func invitationLink(in *call, i api.Invitation) string {
	if i.Path == nil {
		return i.InvitationId
	}
	return in.client.Base + *i.Path
}

func showRegistries(in *call, l api.RegistryList) error {
	return parts(in.printer, "Registry", l.Registries)
}

// request makes the query and the body of a verb, and completes its path.
func (in *call) request(v *api.Verb, h hook) (url.Values, any, error) {
	q, body := url.Values{}, object{}
	put := func(fl api.Flag, value any) {
		switch fl.In {
		case "path":
			in.args[fl.Field] = fmt.Sprint(value)
		case "query":
			q.Set(fl.Field, fmt.Sprint(value))
		case "body":
			api.Put(body, fl.Field, value)
		}
	}
	for _, s := range v.Set {
		var value any = s.Default
		if s.Type == "bool" {
			value = s.Default == "true"
		}
		put(s, value)
	}
	for _, fl := range v.Flags {
		if !in.says(fl) {
			continue
		}
		value, err := in.value(fl)
		if err != nil {
			return nil, nil, err
		}
		if value != nil {
			put(fl, value)
		}
	}
	for _, a := range v.Args {
		var value any = in.args[strings.ToLower(a.Name)]
		if !a.Required {
			if len(in.rest) == 0 {
				continue
			}
			id, err := in.named(a.Field, in.rest[0])
			if err != nil {
				return nil, nil, err
			}
			value = id
		}
		if a.Type == "int" {
			n, err := strconv.Atoi(fmt.Sprint(value))
			if err != nil {
				return nil, nil, usagef("%q is not a number of %s", value, strings.ToLower(a.Name))
			}
			value = n
		}
		put(a, value)
	}
	if v.Rest != "" && len(in.rest) > 0 {
		api.Put(body, v.Rest, in.rest)
	}
	switch {
	case h.body != nil:
		b, err := h.body(in, body)
		if o, ok := b.(object); ok && len(o) == 0 && v.Body != "required" {
			b = nil
		}
		return q, b, err
	case v.Body == "" || len(body) == 0 && v.Body == "optional":
		return q, nil, nil
	case len(body) == 0 && v.Method == http.MethodPatch:
		return nil, nil, usagef("nothing to change; give a flag")
	}
	return q, body, nil
}

// single has a command send a request for each given thing, and show the answer.
func (c *CLI) single(cmd *cobra.Command, v *api.Verb, h hook) {
	f := cmd.Flags()
	if h.stream == nil {
		f.BoolP("quiet", "q", false, "print ids only")
	}
	if h.watch != nil {
		f.Bool("watch", false, "show the progress until it is done")
		if f.Lookup("dry-run") != nil {
			cmd.MarkFlagsMutuallyExclusive("dry-run", "watch")
		}
	}
	if v.Impact.Exceeds(impact.Moves) {
		f.BoolP("yes", "y", false, "accept what is interrupted")
		f.String("accept", "", "accept what is interrupted (interrupts), or also what is destroyed (destroys)")
	}
	if v.Method == http.MethodPost && h.stream == nil {
		f.String("idempotency-key", "", "key that makes it safe to repeat the request")
	}
	id := ""
	if v.Table != nil {
		id = v.Table.ID
	}
	c.run(cmd, id, func(in *call) (func() error, error) {
		if h.check != nil {
			if err := h.check(in); err != nil {
				return nil, err
			}
		}
		q, body, err := in.request(v, h)
		if err != nil {
			return nil, err
		}
		watch, reads := h.watch != nil && in.is("watch"), v.Method == http.MethodGet
		if watch && !reads {
			if err := h.watch.mark(in); err != nil {
				return nil, err
			}
		}
		method, header, client := v.Method, http.Header{}, *in.client
		if h.method != nil {
			method = h.method(in)
		}
		if key := in.Flag("idempotency-key"); key != nil && key.Value.String() != "" {
			header.Set("Idempotency-Key", key.Value.String())
		}
		if h.wait > 0 {
			client.HTTP = &http.Client{Timeout: h.wait}
		}
		if h.stream != nil && !in.is("dry-run") {
			return nil, in.accepting(func(header http.Header) error {
				return client.stream(in.Context(), &http.Client{}, method, in.path(v.Path), q, header, body,
					func(r io.Reader) error { return h.stream(in, r) })
			}, header)
		}
		if h.confirm {
			if err := in.confirmed(v, q, body, header); err != nil {
				return nil, err
			}
		}
		send := func(header http.Header) error {
			return client.send(in.Context(), method, in.path(v.Path), q, header, body, &in.answer)
		}
		if err := in.accepting(send, header); err != nil {
			return nil, err
		}
		if in.is("dry-run") && h.instead == nil {
			return nil, in.tried(h.tried)
		}
		if h.finish != nil {
			if err := h.finish(in); err != nil {
				return nil, err
			}
		}
		if h.instead != nil {
			if done, err := h.instead(in); done || err != nil {
				return nil, err
			}
		}
		if in.forPeople() {
			if err := in.show(v, h); err != nil {
				return nil, err
			}
		}
		if watch && reads {
			err = h.watch.mark(in)
		}
		if watch {
			return func() error { return h.watch.follow(in) }, err
		}
		if len(in.answer) > 0 {
			in.keep(in.answer)
		}
		return nil, nil
	})
}

// is reports whether a flag is set, which the command may not have.
func (in *call) is(flag string) bool { return in.Flag(flag) != nil && in.text(flag) == "true" }

// show prints an answer for people.
func (in *call) show(v *api.Verb, h hook) error {
	text, err := "", error(nil)
	switch {
	case h.say != nil:
		text, err = h.say(in)
	case v.Say != "":
		var t thing
		if t, err = thingOf(in.answer, nil); err == nil {
			text = argument.ReplaceAllStringFunc(v.Say, func(a string) string { return in.args[a[len("{arg "):len(a)-1]] })
			text = strings.TrimSpace(in.render(strings.ReplaceAll(text, "{typed}", in.typed), t))
		}
	case v.Table != nil:
		if in.shown++; in.shown > 1 {
			fmt.Fprintln(in.w)
		}
		err = in.fields(v.Table, in.answer)
	}
	if err != nil {
		return err
	}
	if text != "" {
		fmt.Fprintln(in.w, text)
	}
	if h.after != nil {
		return h.after(in)
	}
	return nil
}

// list has a command list things.
func (c *CLI) list(cmd *cobra.Command, v *api.Verb) {
	f := cmd.Flags()
	limit := 0
	if v.Paged {
		f.IntVar(&limit, "limit", cmp.Or(v.Limit, 1000), "list at most this many")
	}
	f.String("sort", "", "sort by a column, -column for descending")
	columns := everyColumn(v.Table)
	columnFlags(f, columns)
	offerCSV(cmd)
	watchFlag(f)
	c.run(cmd, v.Table.ID, func(in *call) (func() error, error) {
		if v.Paged && limit < 1 {
			return nil, usagef("--limit must be at least 1")
		}
		sort := in.text("sort")
		by, err := sorted(columns, sort)
		if err != nil {
			return nil, err
		}
		if _, err := in.columnsOf(v.Table); err != nil {
			return nil, err
		}
		q, _, err := in.request(v, hook{})
		if err != nil {
			return nil, err
		}
		if sort != "" && slices.Contains(v.Sorts, by.Path) {
			q.Set("sort", sort[:len(sort)-len(strings.TrimPrefix(sort, "-"))]+by.Path)
		}
		read := func(ctx context.Context) ([]json.RawMessage, error) {
			return in.client.everyPage(ctx, in.path(v.Path), v.Items, maps.Clone(q), limit)
		}
		raw, err := read(in.Context())
		if err != nil {
			return nil, err
		}
		if len(raw) == 0 {
			if err := in.known(v); err != nil {
				return nil, err
			}
		}
		ordered := func(raw []json.RawMessage) ([]thing, error) {
			things, err := thingsOf(v.Table, raw)
			if err == nil && sort != "" {
				in.arrange(by, strings.HasPrefix(sort, "-"), things)
			}
			return things, err
		}
		if in.is("watch") {
			return nil, in.keepShowing(v.Table, read, func(raw []json.RawMessage) error {
				things, err := ordered(raw)
				if err != nil {
					return err
				}
				return in.rows(v.Table, things)
			})
		}
		things, err := ordered(raw)
		if err != nil {
			return nil, err
		}
		in.many, in.answered = true, []json.RawMessage{}
		for _, t := range things {
			in.keep(t.raw)
		}
		switch {
		case in.format == csvFormat && !in.quiet:
			return nil, in.csv(v.Table, things)
		case !in.forPeople():
			return nil, nil
		}
		return nil, in.rows(v.Table, things)
	})
}
