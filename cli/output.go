package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/prego/prego/api"
)

// printer writes a verb's answer in the requested form.
type printer struct {
	*CLI
	cmd      *cobra.Command
	w        io.Writer
	format   string // table, json or yaml, and csv for lists
	quiet    bool
	many     bool // JSON and YAML are lists, even of one thing
	answered []json.RawMessage
	shown    int           // how many things were shown as text
	stdin    *bufio.Reader // of the terminal
	wrap     bool          // the last column of tables is wrapped, not cut
}

func (c *CLI) printer(cmd *cobra.Command, many bool) *printer {
	p := &printer{CLI: c, cmd: cmd, w: cmd.OutOrStdout(), format: "table", many: many}
	if f := cmd.Flag("output"); f != nil {
		p.format = f.Value.String()
	}
	if f := cmd.Flag("quiet"); f != nil {
		p.quiet = f.Value.String() == "true"
	}
	return p
}

// forPeople reports whether the output is text for people.
func (p *printer) forPeople() bool { return p.format == "table" && !p.quiet }

// progress is where progress is printed.
func (p *printer) progress() io.Writer {
	if p.forPeople() {
		return p.w
	}
	return p.cmd.ErrOrStderr()
}

// look is the style of tables on a stream.
func (p *printer) look(w io.Writer) look {
	l := look{width: p.Width(w), wrap: p.wrap}
	l.colour = l.width > 0 && p.Getenv("NO_COLOR") == "" && p.Getenv("TERM") != "dumb"
	if f := p.cmd.Flag("no-header"); f != nil {
		l.noHeader = f.Value.String() == "true"
	}
	return l
}

// keep stores an answer to be printed at the end, unless it is printed as a table.
func (p *printer) keep(raw json.RawMessage) { p.answered = append(p.answered, raw) }

// flush prints the stored answers.
func (p *printer) flush(id string) error {
	switch {
	case p.quiet:
		for _, raw := range p.answered {
			fmt.Fprintln(p.w, idOf(raw, id))
		}
		return nil
	case p.format == "table" || p.format == csvFormat || len(p.answered) == 0 && !p.many:
		return nil
	}
	var v any = p.answered
	if !p.many {
		v = p.answered[0]
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if p.format == "yaml" {
		if b, err = toYAML(b); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(p.w, strings.TrimSpace(string(b)))
	return err
}

// toYAML keeps the order of fields: JSON is YAML in another style.
func toYAML(b []byte) ([]byte, error) {
	var n yaml.Node
	if err := yaml.Unmarshal(b, &n); err != nil {
		return nil, err
	}
	var plain func(*yaml.Node)
	plain = func(n *yaml.Node) {
		if n.Style = 0; len(n.Content) == 0 && n.Kind != yaml.ScalarNode {
			n.Style = yaml.FlowStyle
		}
		for _, child := range n.Content {
			plain(child)
		}
	}
	plain(&n)
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	err := enc.Encode(&n)
	return out.Bytes(), err
}

// idOf returns a field of an answer as text, "" if it is missing.
func idOf(raw json.RawMessage, field string) string {
	var fields map[string]any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if field == "" || dec.Decode(&fields) != nil || fields[field] == nil {
		return ""
	}
	return fmt.Sprint(fields[field])
}

// columnFlags adds the flags of tables.
func columnFlags(f *pflag.FlagSet, columns []api.Column) {
	keys := make([]string, len(columns))
	for i, c := range columns {
		keys[i] = key(c)
	}
	f.String("columns", "", "columns to show: "+strings.Join(keys, ", "))
	f.Bool("no-header", false, "leave out the table's header")
	f.BoolP("quiet", "q", false, "print ids only")
}

// columnsOf are the columns chosen by --columns, or else a list's own.
func (p *printer) columnsOf(t *api.Table) ([]api.Column, error) {
	f := p.cmd.Flag("columns")
	if f == nil || !f.Changed {
		return t.List, nil
	}
	all := everyColumn(t)
	var out []api.Column
	for name := range strings.SplitSeq(f.Value.String(), ",") {
		c, err := find(all, strings.ToLower(strings.TrimSpace(name)))
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// parts prints a list that is part of an answer as a table.
func parts[T any](p *printer, schema string, list []T) error {
	return partsIn(p, api.TableOf(schema), list)
}

// below shows a list of an answer as a table under the rest, unless it is empty.
func below[T, E any](schema string, of func(T) []E) func(*call) error {
	return more(func(in *call, answer T) error {
		list := of(answer)
		if len(list) == 0 {
			return nil
		}
		fmt.Fprintln(in.w)
		return parts(in.printer, schema, list)
	})
}

func partsIn[T any](p *printer, t *api.Table, list []T) error {
	things := make([]thing, len(list))
	for i := range list {
		raw, err := json.Marshal(list[i])
		if err == nil {
			things[i], err = thingOf(raw, t)
		}
		if err != nil {
			return err
		}
	}
	return p.rows(t, things)
}

// rows prints things as a table.
func (p *printer) rows(t *api.Table, things []thing) error {
	columns, err := p.columnsOf(t)
	if err != nil {
		return err
	}
	var spare []int
	if f := p.cmd.Flag("columns"); f == nil || !f.Changed {
		for _, name := range t.Spare {
			spare = append(spare, slices.IndexFunc(columns, func(c api.Column) bool { return key(c) == name }))
		}
	}
	if len(things) == 0 && p.Width(p.w) > 0 {
		text := "nothing found"
		if all := p.cmd.Flag("all"); all != nil && !all.Changed {
			text += "; --all includes what has ended"
		}
		fmt.Fprintln(p.cmd.ErrOrStderr(), text)
		return nil
	}
	header, fixed, lines := make([]string, len(columns)), make([]bool, len(columns)), make([][]string, len(things))
	for i, c := range columns {
		header[i] = strings.ToUpper(c.Title)
		fixed[i] = i == 0 || c.Path == "subject" || c.Path == "name" || c.Path == "slug" || strings.HasSuffix(c.Path, "_id") || c.Path == "at" || strings.HasSuffix(c.Path, "_at")
	}
	for n, thing := range things {
		lines[n] = make([]string, len(columns))
		for i, c := range columns {
			lines[n][i] = cmp.Or(p.cell(p.value(c, thing), c.Format), "-")
		}
	}
	grid(p.w, p.look(p.w), header, fixed, spare, lines)
	return nil
}

// fields prints one thing, one line per non-empty field.
func (p *printer) fields(t *api.Table, raw json.RawMessage) error {
	thing, err := thingOf(raw, t)
	if err != nil {
		return err
	}
	var pairs [][2]string
	for _, c := range everyColumn(t) {
		if c.Title != "age" { // created has the same information
			pairs = append(pairs, [2]string{c.Title, p.cell(p.value(c, thing), c.Format)})
		}
	}
	p.pairs(p.w, pairs...)
	return nil
}

// pairs prints names and non-empty values.
func (p *printer) pairs(w io.Writer, pairs ...[2]string) {
	pairs = slices.DeleteFunc(slices.Clone(pairs), func(row [2]string) bool { return row[1] == "" })
	width, colour := 0, p.look(w).colour
	for _, row := range pairs {
		width = max(width, runewidth.StringWidth(row[0]))
	}
	for _, row := range pairs {
		value := row[1]
		if colour && stateful[strings.ToUpper(row[0])] {
			value = coloured(value, value)
		}
		fmt.Fprintf(w, "%s%s%s\n", row[0], strings.Repeat(" ", width+columnGap-runewidth.StringWidth(row[0])), value)
	}
}
