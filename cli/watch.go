package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
)

const (
	// watchEvery is the polling interval.
	watchEvery = 250 * time.Millisecond
	// patience is how long watching continues without an answer: an API that is being
	// replaced is back by then.
	patience = time.Minute
)

// line is an event. The key marks lines that were already shown.
type line struct {
	key  string
	at   time.Time // zero when only the present is known: it is when the line was seen first
	text string
}

// Watch follows a thing until no operation is running on it. It is the verb watch, and
// --watch of other verbs.
type Watch[T any] struct {
	Use, Short string                // of the verb
	Path       string                // of the thing
	Again      string                // the command that resumes watching, with placeholders
	Lines      func(T) []line        // its events, oldest first
	Line       func(T) string        // or its state: each change of it is an event
	Doing      func(T) string        // what it is doing now, in a few words
	Rests      func(T) bool          // no operation is running on it
	Wanted     func(*call, T) bool   // once it rests: the outcome is the wanted one; nil for any
	Is         func(T) standing      // what it is otherwise
	Outcome    func(*call, T) error  // or both: nil if the outcome is the wanted one
	Done       func(*call, T) string // the last line, on success
}

// standing is how a thing stands.
type standing struct {
	what, state     string
	reason, message *string
}

// outcome is nil if it is the wanted one.
func (w Watch[T]) outcome(in *call, thing T) error {
	switch {
	case w.Outcome != nil:
		return w.Outcome(in, thing)
	case w.Wanted == nil || w.Wanted(in, thing):
		return nil
	}
	is := w.Is(thing)
	return fmt.Errorf("%s is %s%s", is.what, is.state, why(is.reason, is.message))
}

// lines are a thing's events.
func (w Watch[T]) lines(thing T) []line {
	if w.Line != nil {
		text := w.Line(thing)
		return []line{{key: text, text: text}}
	}
	return w.Lines(thing)
}

// follower is a Watch of any type.
type follower interface {
	mark(in *call) error
	follow(in *call) error
}

// watcher is a Watch of any type that is a verb.
type watcher interface{ command(c *CLI) *cobra.Command }

func (w Watch[T]) command(c *CLI) *cobra.Command {
	cmd := &cobra.Command{Use: w.Use, Short: w.Short}
	return c.run(cmd, "", func(in *call) (func() error, error) {
		var thing T
		if err := in.client.Do(in.Context(), http.MethodGet, in.path(w.Path), nil, nil, &thing); err != nil {
			return nil, err
		}
		for _, l := range w.lines(thing) {
			in.seen[l.key] = true
		}
		if n := len(w.lines(thing)); n > 0 { // the last line has the current state
			delete(in.seen, w.lines(thing)[n-1].key)
		}
		return func() error { return w.follow(in) }, nil
	})
}

// mark remembers earlier events, so that only those caused by the request are shown.
// What the request creates does not exist yet.
func (w Watch[T]) mark(in *call) error {
	for _, name := range placeholder.FindAllString(w.Path, -1) {
		if in.arg(name[1:len(name)-1]) == "" {
			return nil
		}
	}
	var thing T
	err := in.client.Do(in.Context(), http.MethodGet, in.path(w.Path), nil, nil, &thing)
	var refused *Refusal
	if errors.As(err, &refused) {
		return nil // the request itself will be refused
	}
	for _, l := range w.lines(thing) {
		in.seen[l.key] = true
	}
	return err
}

func (w Watch[T]) follow(in *call) error {
	out := in.progress()
	spin := &spinner{w: out, terminal: in.Width(out), now: in.Now, began: in.Now()}
	thing, raw, err := w.until(in.Context(), in.client, in.path(w.Path), in.seen, spin)
	spin.clear()
	if in.Context().Err() != nil {
		return usagef("interrupted; the operation continues. Follow it again with: %s", in.path(w.Again))
	}
	if err != nil {
		return err
	}
	in.keep(raw)
	if err := w.outcome(in, thing); err != nil {
		return &Exit{Code: ExitOutcome, Err: err}
	}
	if w.Done != nil && in.forPeople() {
		fmt.Fprintln(in.w, w.Done(in, thing))
	}
	return nil
}

// until prints new events as they happen, until the thing rests.
func (w Watch[T]) until(ctx context.Context, c *Client, path string, seen map[string]bool, spin *spinner) (T, json.RawMessage, error) {
	var base time.Time
	var raw json.RawMessage
	thing, err := Until(ctx, spin.line, patience, func(ctx context.Context) (thing T, err error) {
		if err := c.Do(ctx, http.MethodGet, path, nil, nil, &raw); err != nil {
			return thing, err
		}
		return thing, json.Unmarshal(raw, &thing)
	}, func(thing T) bool {
		for _, l := range w.lines(thing) {
			if seen[l.key] {
				continue
			}
			at := l.at
			if at.IsZero() {
				at = spin.now()
			}
			if seen[l.key] = true; base.IsZero() {
				base = at
			}
			spin.event(stamp(at.Sub(base), at), l.text)
		}
		spin.turn(w.Doing(thing))
		return w.Rests(thing)
	})
	return thing, raw, err
}

// listEvery is how often a list that is watched is read.
const listEvery = time.Second

// watchFlag adds --watch to a command that shows a list.
func watchFlag(f *pflag.FlagSet) {
	f.Bool("watch", false, "show it again and again; in a pipe, a line for each change")
}

// keepShowing shows a list again and again until the caller interrupts it: on a terminal in place of what was there, in
// a pipe a line for each thing that is new or changed, and for each that is gone. Ages are no change. With -o json a
// line is the thing itself.
func (in *call) keepShowing(t *api.Table, read func(context.Context) ([]json.RawMessage, error),
	draw func([]json.RawMessage) error,
) error {
	if in.format != "table" && in.format != "json" {
		return usagef("--watch shows tables and JSON")
	}
	live := in.Width(in.w) > 0 && in.forPeople()
	shown := map[string]string{}
	_, err := poll(in.Context(), listEvery, func(s string) { fmt.Fprintln(in.ErrOrStderr(), s) }, patience, read,
		func(raw []json.RawMessage) bool {
			if live {
				fmt.Fprint(in.w, "\x1b[H\x1b[2J")
				if err := draw(raw); err != nil {
					fmt.Fprintln(in.ErrOrStderr(), err)
				}
				return false
			}
			in.changes(t, raw, shown)
			return false
		})
	if in.Context().Err() == nil { // it has no other end
		return err
	}
	return nil
}

// changes prints a line for each thing that is not as it was shown.
func (in *call) changes(t *api.Table, raw []json.RawMessage, shown map[string]string) {
	there := map[string]bool{}
	for _, r := range raw {
		id := idOf(r, t.ID)
		there[id] = true
		line := in.steady(t, r)
		if shown[id] == line {
			continue
		}
		shown[id] = line
		switch {
		case in.quiet:
			line = id
		case in.format == "json":
			line = string(r)
		}
		fmt.Fprintln(in.w, line)
	}
	for _, id := range slices.Sorted(maps.Keys(shown)) {
		if there[id] {
			continue
		}
		delete(shown, id)
		if in.format == "table" && !in.quiet {
			fmt.Fprintf(in.w, "%s  gone\n", id)
		}
	}
}

// steady is a row without what changes by itself.
func (in *call) steady(t *api.Table, raw json.RawMessage) string {
	one, err := thingOf(raw, t)
	columns, unknown := in.columnsOf(t)
	if err = cmp.Or(err, unknown); err != nil {
		return err.Error()
	}
	var cells []string
	for _, c := range columns {
		if c.Format != "age" {
			cells = append(cells, cmp.Or(in.cell(in.printer.value(c, one), c.Format), "-"))
		}
	}
	return strings.Join(cells, "  ")
}

// stamp is the time since the first event or, after an hour, the time of day.
func stamp(since time.Duration, at time.Time) string {
	if since > time.Hour {
		return at.Format(time.RFC3339)
	}
	return fmt.Sprintf("%8.2fs", since.Seconds())
}

// Until reads something repeatedly until seen reports that it rests. It survives, and
// reports, outages of the API up to patience.
func Until[T any](ctx context.Context, tell func(string), patience time.Duration, read func(context.Context) (T, error), seen func(T) (rests bool)) (T, error) {
	return poll(ctx, watchEvery, tell, patience, read, seen)
}

func poll[T any](ctx context.Context, every time.Duration, tell func(string), patience time.Duration,
	read func(context.Context) (T, error), seen func(T) (rests bool),
) (T, error) {
	heard, away := time.Now(), false
	for {
		v, err := read(ctx)
		switch {
		case err == nil:
			heard, away = time.Now(), false
			if seen(v) {
				return v, nil
			}
		case ctx.Err() != nil:
			return v, ctx.Err()
		case !passing(err) || time.Since(heard) > patience:
			return v, err
		case !away:
			away = true
			tell("waiting for the API: " + err.Error())
		}
		select {
		case <-ctx.Done():
			return v, ctx.Err()
		case <-time.After(every):
		}
	}
}

// spinner shows on a terminal that something is running, and for how long.
type spinner struct {
	w        io.Writer
	terminal int // its width; 0 if it is none
	now      func() time.Time
	began    time.Time
	n        int
	drawn    bool
}

// turn draws the spinner's next frame.
func (s *spinner) turn(doing string) {
	if s.terminal == 0 {
		return
	}
	s.clear()
	frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
	text := []rune(fmt.Sprintf("%c %s  %s", frames[s.n%len(frames)], age(s.now().Sub(s.began)), doing))
	s.n, s.drawn = s.n+1, true
	fmt.Fprint(s.w, string(text[:min(len(text), s.terminal-1)]))
}

func (s *spinner) clear() {
	if s.drawn {
		fmt.Fprint(s.w, "\r\x1b[K")
	}
	s.drawn = false
}

// event prints an event; one that is too long for the terminal continues below its text.
func (s *spinner) event(at, text string) {
	if at += "  "; s.terminal > 0 {
		text = strings.TrimLeft(wrapped(text, s.terminal, len(at)), " ")
	}
	s.line(at + text)
}

func (s *spinner) line(text string) {
	s.clear()
	fmt.Fprintln(s.w, text)
}
