package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

// csvFormat is a form of output that lists have besides those of all verbs.
const csvFormat = "csv"

// offerCSV has a command take csv as its form of output, too.
func offerCSV(cmd *cobra.Command) {
	cmd.Flags().VarP(&choice{to: new("table"), of: []string{"table", "json", "yaml", csvFormat}}, "output", "o", "form of output: table, json, yaml or csv")
}

// csvRows prints things as CSV (RFC 4180): all columns that there are, or those that were chosen, under the
// names of the API's fields. Values are the API's, too: sizes are plain numbers, times RFC 3339.
func csvRows[T any](p *printer, t Table[T], things []T) error {
	columns := t.columns(t.Columns + "," + t.More)
	if f := p.cmd.Flag("columns"); f != nil && f.Changed {
		var err error
		if columns, err = columnsOf(p, t); err != nil {
			return err
		}
	}
	w := csv.NewWriter(p.w)
	w.UseCRLF = true
	line := make([]string, len(columns))
	for i, c := range columns {
		line[i] = c.field
	}
	if !p.look(p.w).noHeader {
		if err := w.Write(line); err != nil {
			return err
		}
	}
	for _, thing := range things {
		for i, c := range columns {
			line[i] = plain(c.value(thing))
		}
		if err := w.Write(line); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// plain formats a value for programs.
func plain(v any) string {
	r := reflect.ValueOf(v)
	if r.Kind() == reflect.Pointer {
		if r.IsNil() {
			return ""
		}
		return plain(r.Elem().Interface())
	}
	switch x := v.(type) {
	case nil:
		return ""
	case time.Time:
		if x.IsZero() {
			return ""
		}
		return x.UTC().Format(time.RFC3339)
	case json.RawMessage:
		return compact(x)
	case fmt.Stringer:
		return x.String()
	}
	switch r.Kind() {
	case reflect.String:
		return api.CSVCell(r.String())
	case reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		if r.Kind() != reflect.Struct && r.Len() == 0 {
			return ""
		}
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		return string(b)
	}
	return fmt.Sprint(v)
}
