package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"

	"github.com/prego/prego/api"
	"github.com/prego/prego/cost"
)

// thing is an object of an answer.
type thing struct {
	raw      json.RawMessage
	fields   map[string]any
	computed func(column string) string
}

// computer computes the columns of a schema that no field of it holds, by their names in the contract's x-columns.
type computer func(raw json.RawMessage) func(column string) string

func computed[T any](columns map[string]func(T) string) computer {
	return func(raw json.RawMessage) func(string) string {
		var v T
		err := json.Unmarshal(raw, &v)
		return func(column string) string {
			if err != nil {
				return err.Error()
			}
			return columns[column](v)
		}
	}
}

// thingOf reads an object.
func thingOf(raw json.RawMessage, t *api.Table) (out thing, err error) {
	out.raw = raw
	if len(raw) == 0 {
		return out, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if t != nil && computers[t.Type] != nil {
		out.computed = computers[t.Type](raw)
	}
	return out, dec.Decode(&out.fields)
}

// thingsOf reads objects: raw ones or a list of the API's types.
func thingsOf(t *api.Table, raw []json.RawMessage) (out []thing, err error) {
	for _, r := range raw {
		one, err := thingOf(r, t)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// at returns the value at a path of names: for each object if it leads through a list.
func (t thing) at(path string) any { return within(t.fields, path) }

func within(v any, path string) any {
	if path == "" {
		return v
	}
	switch v := v.(type) {
	case map[string]any:
		name, rest, _ := strings.Cut(path, ".")
		return within(v[name], rest)
	case []any:
		out := []any{}
		for _, e := range v {
			out = append(out, within(e, path))
		}
		return out
	}
	return nil
}

// value is what a column shows.
func (p *printer) value(c api.Column, t thing) any {
	switch {
	case c.Text != "":
		return p.render(c.Text, t)
	case c.Code && t.computed != nil:
		return t.computed(c.Path)
	}
	return t.at(c.Path)
}

var (
	bracketed = regexp.MustCompile(`\[(?:([!a-z_. ]+)\? )?([^\]]*)\]`)
	field     = regexp.MustCompile(`\{([^}]*)\}`)
)

// render fills a text of the contract: "{path}" is a field, and "{function path path}" a function of some. Text in
// brackets is left out if one of its fields is empty, or with conditions, as in "[path !path? text]", if a condition
// does not hold.
func (p *printer) render(text string, t thing) string {
	text = bracketed.ReplaceAllStringFunc(text, func(part string) string {
		m := bracketed.FindStringSubmatch(part)
		for condition := range strings.FieldsSeq(m[1]) {
			path, not := strings.CutPrefix(condition, "!")
			if v := t.at(path); (v != nil && v != false) == not {
				return ""
			}
		}
		for _, f := range field.FindAllStringSubmatch(m[2], -1) {
			if m[1] == "" && p.made(f[1], t) == "" {
				return ""
			}
		}
		return m[2]
	})
	return field.ReplaceAllStringFunc(text, func(f string) string { return p.made(f[1:len(f)-1], t) })
}

// made returns the text for a field, or a function of fields, in a text.
func (p *printer) made(words string, t thing) string {
	all := strings.Fields(words)
	if len(all) == 1 {
		return p.cell(t.at(all[0]), "")
	}
	var texts, some []string
	var times []time.Time
	for _, path := range all[1:] {
		text := p.cell(t.at(path), "")
		if texts = append(texts, text); text != "" && !slices.Contains(some, text) {
			some = append(some, text)
		}
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			times = append(times, at)
		}
	}
	n, _ := strconv.ParseFloat(texts[0], 64)
	list, _ := t.at(all[1]).([]any)
	switch function := all[0]; {
	case function == "why":
		return reasons(texts...)
	case function == "join":
		return strings.Join(some, ": ")
	case function == "unique":
		return strings.Join(some, ", ")
	case function == "first" && len(some) > 0:
		return some[0]
	case function == "or":
		return cmp.Or(texts[0], all[2])
	case function == "count":
		return strconv.Itoa(len(list))
	case function == "each":
		parts := make([]string, len(list))
		for i, v := range list {
			parts[i] = p.cell(v, "")
		}
		return strings.Join(parts, "; ")
	case function == "span":
		return (time.Duration(n) * time.Second).String()
	case function == "ms" && texts[0] != "":
		return (time.Duration(n) * time.Millisecond).String()
	case function == "gb":
		return fmt.Sprintf("%.1f GB", n/1e9)
	case function == "price":
		return monthly(n, texts[1])
	case function == "between" && len(times) > 1:
		return times[1].Sub(times[0]).Round(time.Second).String()
	case layouts[function] != "" && len(times) > 0:
		return times[0].UTC().Format(layouts[function])
	}
	return ""
}

// layouts are the functions that format a time.
var layouts = map[string]string{
	"time": time.RFC3339, "day": time.DateOnly, "minute": "2006-01-02 15:04 MST", "clock": time.TimeOnly,
}

// cell formats a value for people.
func (p *printer) cell(v any, format string) string {
	switch x := v.(type) {
	case nil:
		return ""
	case bool:
		return map[bool]string{true: "yes", false: "no"}[x]
	case json.Number:
		return quantity(x, format)
	case string:
		if format == "money" {
			return cost.Rounded(x)
		}
		at, err := time.Parse(time.RFC3339, x)
		switch {
		case err != nil || format != "time" && format != "age":
			return oneLine(x)
		case at.IsZero():
			return ""
		case format == "age":
			return age(p.Now().Sub(at))
		}
		return at.Format(time.RFC3339)
	case []any:
		parts := make([]string, len(x))
		for i := range parts {
			parts[i] = p.cell(x[i], "")
		}
		return strings.Join(parts, ", ")
	case map[string]any:
		if format == "json" {
			return jsonText(x)
		}
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(x)) {
			parts = append(parts, fmt.Sprintf("%s %v", k, x[k]))
		}
		return strings.Join(parts, ", ")
	}
	return fmt.Sprint(v)
}

// quantity is a number in the unit of its column.
func quantity(n json.Number, format string) string {
	i, err := n.Int64()
	switch {
	case err == nil && format == "bytes":
		return bytesText(i)
	case err == nil && format == "disk":
		return diskText(i)
	}
	text := n.String()
	if f, err := n.Float64(); err == nil && strings.ContainsAny(text, ".eE") {
		text = number(f)
	}
	return text + map[string]string{"gb": " GB"}[format]
}

// jsonText is a value as JSON.
func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	return string(b)
}

// number has at most three decimals.
func number(v float64) string { return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64) }

// oneLine joins the lines of a text.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// age formats a duration in its largest unit.
func age(d time.Duration) string {
	for _, u := range []struct {
		name string
		long time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if d >= 2*u.long {
			return strconv.Itoa(int(d/u.long)) + u.name
		}
	}
	return strconv.Itoa(int(max(d, 0)/time.Second)) + "s"
}

func compact(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return string(raw)
	}
	return string(b)
}

// key is a column's name in --columns.
func key(c api.Column) string { return strings.ReplaceAll(c.Title, " ", "-") }

// everyColumn is all columns of a table.
func everyColumn(t *api.Table) []api.Column { return slices.Concat(t.List, t.More) }

// sorted is the column named by --sort, after a hyphen for descending order.
func sorted(columns []api.Column, by string) (c api.Column, err error) {
	if by == "" {
		return c, nil
	}
	return find(columns, strings.TrimPrefix(by, "-"))
}

// find is a column by its key or its field.
func find(columns []api.Column, name string) (api.Column, error) {
	keys := make([]string, len(columns))
	for i, c := range columns {
		if keys[i] = key(c); name == keys[i] || name == c.Path {
			return c, nil
		}
	}
	return api.Column{}, usagef("there is no column %q%s; there are %s", name, suggest(name, keys), strings.Join(keys, ", "))
}

// arrange sorts things by a column.
func (p *printer) arrange(by api.Column, descending bool, things []thing) {
	slices.SortStableFunc(things, func(a, b thing) int {
		n := p.compare(p.value(by, a), p.value(by, b))
		if descending {
			n = -n
		}
		return n
	})
}

// compare orders two values of a column: numbers and times by size, missing ones first.
func (p *printer) compare(a, b any) int {
	if a == nil || b == nil {
		return map[bool]int{true: 1}[a != nil] - map[bool]int{true: 1}[b != nil]
	}
	if x, ok := a.(json.Number); ok {
		if y, ok := b.(json.Number); ok {
			m, _ := x.Float64()
			n, _ := y.Float64()
			return cmp.Compare(m, n)
		}
	}
	x, y := p.cell(a, ""), p.cell(b, "")
	if s, err := time.Parse(time.RFC3339, x); err == nil {
		if t, err := time.Parse(time.RFC3339, y); err == nil {
			return s.Compare(t)
		}
	}
	return cmp.Compare(x, y)
}

// columnGap is the space between two columns.
const columnGap = 2

// cutWidth is the minimum width of a cut column.
const cutWidth = 12

// wrapWidth is the minimum width of a wrapped column.
const wrapWidth = 40

// grid writes rows under a header. On a terminal that is too narrow for them, spare
// columns are left out, in this order, and then longer cells are cut, except fixed
// ones, which people copy, and the word that is a state.
func grid(w io.Writer, look look, header []string, fixed []bool, spare []int, rows [][]string) {
	all := append([][]string{header}, rows...)
	if look.noHeader {
		all = rows
	}
	widths, floor := make([]int, len(header)), make([]int, len(header))
	for _, row := range all {
		for i, text := range row {
			widths[i] = max(widths[i], runewidth.StringWidth(text))
			switch floor[i] = max(floor[i], min(widths[i], cutWidth)); {
			case fixed[i]:
				floor[i] = widths[i]
			case look.wrap && i == len(header)-1:
				floor[i] = min(widths[i], wrapWidth)
			case stateful[header[i]]:
				floor[i] = max(floor[i], len(firstWord(text))+1)
			}
		}
	}
	if look.width > 0 {
		fit(look.width, widths, floor, spare)
	}
	for n, row := range all {
		var line strings.Builder
		for i, text := range row {
			if widths[i] == 0 {
				continue
			}
			if look.wrap && i == len(row)-1 && look.width > 0 {
				indent := total(widths) - widths[i]
				line.WriteString(strings.TrimLeft(wrapped(text, look.width, indent), " "))
				continue
			}
			if look.width > 0 {
				text = runewidth.Truncate(text, widths[i], "…")
			}
			pad := widths[i] - runewidth.StringWidth(text) + columnGap
			if look.colour && stateful[header[i]] && (n > 0 || look.noHeader) {
				text = coloured(text, row[i])
			}
			line.WriteString(text + strings.Repeat(" ", pad))
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// fit narrows columns to a terminal's width. A column left out has width 0.
func fit(terminal int, widths, floor, spare []int) {
	for _, i := range spare {
		if total(floor) <= terminal {
			break
		}
		widths[i], floor[i] = 0, 0
	}
	for total(widths) > terminal {
		widest := -1
		for i, n := range widths {
			if n > floor[i] && (widest < 0 || n > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break // the rest can't be cut, and wraps
		}
		widths[widest]--
	}
}

// total is the width of a row.
func total(widths []int) int {
	sum := -columnGap
	for _, n := range widths {
		if n > 0 {
			sum += n + columnGap
		}
	}
	return sum
}

// look is the style of a table. Width 0 means no terminal.
type look struct {
	width            int
	colour, noHeader bool
	wrap             bool // the last column, on further lines
}

// wrapped breaks a text between words, and indents its lines.
func wrapped(text string, width, indent int) string {
	room := max(width-indent, cutWidth)
	var lines []string
	for runewidth.StringWidth(text) > room {
		head := runewidth.Truncate(text, room+1, "")
		if at := strings.LastIndexByte(head, ' '); at > 0 {
			head = head[:at]
		} else {
			head = runewidth.Truncate(text, room, "")
		}
		lines, text = append(lines, strings.TrimRight(head, " ")), strings.TrimLeft(text[len(head):], " ")
	}
	before := strings.Repeat(" ", indent)
	return before + strings.Join(append(lines, text), "\n"+before)
}

// stateful are the columns whose words are coloured.
var stateful = map[string]bool{"STATUS": true, "STATE": true, "AGENT": true, "HEALTH": true, "DEPLOY": true, "SEVERITY": true}

// colours maps states to codes: green for working, yellow for in progress, red for what
// needs attention. Others have none.
var colours = func() map[string]string {
	codes := map[string]string{}
	for code, words := range map[string]string{
		"32": "active running ready succeeded done available alive online healthy stable deployed converged",
		"33": "provisioning draining queued booting building verifying deploying pending trial suspended grace_period deleting planned waiting starting created warning",
		"31": "failed unschedulable offline lost dead unhealthy rolled_back exited error over read_only critical",
	} {
		for word := range strings.FieldsSeq(words) {
			codes[word] = code
		}
	}
	return codes
}()

// coloured colours a text by the state at the beginning of its cell.
func coloured(text, state string) string {
	if code := colours[firstWord(state)]; code != "" {
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	return text
}

// firstWord is the state at the beginning of a cell.
func firstWord(s string) string {
	return s[:len(s)-len(strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz_"))]
}

// counts formats counts, ordered by name.
func counts[N int | int64](of map[string]N) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf("%s %d", name, of[name]))
	}
	return strings.Join(out, ", ")
}
