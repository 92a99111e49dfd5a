package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"
)

// Table says how things of a kind are shown: Columns are those of a list, and More what
// is shown of a single thing besides. Both name fields of the API's answers, separated
// by commas: "server_id, agent.status: agent, created_at: age". The title follows a
// colon; by default it is derived from the field's name.
type Table[T any] struct {
	ID       string // the identifying field
	Columns  string
	More     string
	Spare    string                 // columns to leave out on narrow terminals, the least important first
	Computed map[string]func(T) any // values for fields that answers don't have
}

// column is a column of a table.
type column[T any] struct {
	title, field string
	value        func(T) any
}

// key is the column's name in --columns.
func (c column[T]) key() string { return strings.ReplaceAll(c.title, " ", "-") }

// columns parses a specification. A field that T does not have is a bug.
func (t Table[T]) columns(spec string) []column[T] {
	var all []column[T]
	for part := range strings.SplitSeq(spec, ",") {
		field, title, titled := strings.Cut(strings.TrimSpace(part), ":")
		if field == "" {
			continue
		}
		if !titled {
			title = field[strings.LastIndex(field, ".")+1:]
			for _, end := range []string{"_id", "_at", "_bytes", "_gb"} {
				title = strings.TrimSuffix(title, end)
			}
			title = strings.ReplaceAll(title, "_", " ")
		}
		value, ok := t.Computed[field]
		if !ok {
			value = fieldOf[T](field)
		}
		all = append(all, column[T]{title: strings.TrimSpace(title), field: field, value: value})
	}
	return all
}

// fieldOf reads a field by its JSON name; nil if it is missing.
func fieldOf[T any](path string) func(T) any {
	var steps [][]int
	at := reflect.TypeFor[T]()
	for name := range strings.SplitSeq(path, ".") {
		if at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		found := false
		for i := 0; at.Kind() == reflect.Struct && i < at.NumField() && !found; i++ {
			if tag, _, _ := strings.Cut(at.Field(i).Tag.Get("json"), ","); tag == name {
				steps, at, found = append(steps, []int{i}), at.Field(i).Type, true
			}
		}
		if !found {
			panic(fmt.Sprintf("cli: %s has no field %q", reflect.TypeFor[T](), path))
		}
	}
	return func(thing T) any {
		v := reflect.ValueOf(thing)
		for _, step := range steps {
			for v.Kind() == reflect.Pointer {
				if v.IsNil() {
					return nil
				}
				v = v.Elem()
			}
			v = v.FieldByIndex(step)
		}
		return v.Interface()
	}
}

// cell formats a value for people; the column's names tell its unit.
func cell(v any, field, title string, now time.Time) string {
	r := reflect.ValueOf(v)
	if r.Kind() == reflect.Pointer {
		if r.IsNil() {
			return ""
		}
		return cell(r.Elem().Interface(), field, title, now)
	}
	switch x := v.(type) {
	case nil:
		return ""
	case time.Time:
		switch {
		case x.IsZero():
			return ""
		case slices.Contains(relative, title):
			return age(now.Sub(x))
		}
		return x.Format(time.RFC3339)
	case bool:
		return map[bool]string{true: "yes", false: "no"}[x]
	case json.RawMessage:
		return compact(x)
	case fmt.Stringer:
		return x.String()
	}
	switch r.Kind() {
	case reflect.Slice:
		parts := make([]string, r.Len())
		for i := range parts {
			parts[i] = cell(r.Index(i).Interface(), "", "", now)
		}
		return strings.Join(parts, ", ")
	case reflect.Map:
		parts := map[string]string{}
		for _, k := range r.MapKeys() {
			parts[k.String()] = fmt.Sprintf("%s %v", k, r.MapIndex(k))
		}
		var sorted []string
		for _, k := range slices.Sorted(maps.Keys(parts)) {
			sorted = append(sorted, parts[k])
		}
		return strings.Join(sorted, ", ")
	case reflect.Float64:
		return number(r.Float()) + gigabytes(field)
	case reflect.Int, reflect.Int64:
		if strings.HasSuffix(field, "bytes") {
			return bytesText(r.Int())
		}
		return strconv.FormatInt(r.Int(), 10) + gigabytes(field)
	}
	return oneLine(fmt.Sprint(v))
}

// relative are the titles of times that are shown as durations since then.
var relative = []string{"age", "since", "changed", "building"}

func gigabytes(field string) string {
	if strings.HasSuffix(field, "_gb") {
		return " GB"
	}
	return ""
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

// sorted is the column named by --sort, after a hyphen for descending order.
func sorted[T any](columns []column[T], by string) (c column[T], err error) {
	if by == "" {
		return c, nil
	}
	return find(columns, strings.TrimPrefix(by, "-"))
}

// find is a column by its key or its field.
func find[T any](columns []column[T], name string) (column[T], error) {
	keys := make([]string, len(columns))
	for i, c := range columns {
		if keys[i] = c.key(); name == c.key() || name == c.field {
			return c, nil
		}
	}
	return column[T]{}, usagef("there is no column %q%s; there are %s", name, suggest(name, keys), strings.Join(keys, ", "))
}

// arrange sorts things, together with their raw answers, by a column.
func arrange[T any](by column[T], descending bool, things []T, raw []json.RawMessage) {
	order := make([]int, len(things))
	for n := range order {
		order[n] = n
	}
	slices.SortStableFunc(order, func(a, b int) int {
		n := compare(by.value(things[a]), by.value(things[b]))
		if descending {
			n = -n
		}
		return n
	})
	oldThings, oldRaw := slices.Clone(things), slices.Clone(raw)
	for to, from := range order {
		things[to], raw[to] = oldThings[from], oldRaw[from]
	}
}

// compare orders two values of a column: numbers and times by size, missing ones first.
func compare(a, b any) int {
	x, y := reflect.Indirect(reflect.ValueOf(a)), reflect.Indirect(reflect.ValueOf(b))
	switch {
	case !x.IsValid() || !y.IsValid():
		return map[bool]int{true: 1}[x.IsValid()] - map[bool]int{true: 1}[y.IsValid()]
	case x.CanInt() && y.CanInt():
		return cmp.Compare(x.Int(), y.Int())
	case x.CanFloat() && y.CanFloat():
		return cmp.Compare(x.Float(), y.Float())
	}
	if s, ok := x.Interface().(time.Time); ok {
		if t, ok := y.Interface().(time.Time); ok {
			return s.Compare(t)
		}
	}
	return cmp.Compare(cell(a, "", "", time.Time{}), cell(b, "", "", time.Time{}))
}

// columnGap is the space between two columns.
const columnGap = 2

// cutWidth is the minimum width of a cut column.
const cutWidth = 12

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
func counts(n map[string]int64) string { return cell(n, "", "", time.Time{}) }
