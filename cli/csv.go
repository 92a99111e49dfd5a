package cli

import (
	"encoding/csv"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

// csvFormat is a form of output that lists have besides the common ones.
const csvFormat = "csv"

// offerCSV has a command take csv as another form of output.
func offerCSV(cmd *cobra.Command) {
	cmd.Flags().VarP(&choice{to: new("table"), of: []string{"table", "json", "yaml", csvFormat}}, "output", "o", "form of output: table, json, yaml or csv")
}

// csv prints things as CSV (RFC 4180): all columns, or the chosen ones, under the names of the
// API's fields. Values are also the API's: sizes are plain numbers, times RFC 3339.
func (p *printer) csv(t *api.Table, things []thing) error {
	columns := fieldsOnce(everyColumn(t))
	if f := p.cmd.Flag("columns"); f != nil && f.Changed {
		var err error
		if columns, err = p.columnsOf(t); err != nil {
			return err
		}
	}
	w := csv.NewWriter(p.w)
	w.UseCRLF = true
	line := make([]string, len(columns))
	for i, c := range columns {
		line[i] = c.Path
	}
	if !p.look(p.w).noHeader {
		if err := w.Write(line); err != nil {
			return err
		}
	}
	for _, thing := range things {
		for i, c := range columns {
			line[i] = plain(p.value(c, thing), c.Format)
		}
		if err := w.Write(line); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// fieldsOnce leaves out further columns of a field, such as the age of something beside the time.
func fieldsOnce(columns []api.Column) []api.Column {
	seen := map[string]bool{}
	return slices.DeleteFunc(columns, func(c api.Column) bool {
		twice := seen[c.Path]
		seen[c.Path] = true
		return twice
	})
}

// plain formats a value for programs.
func plain(v any, format string) string {
	switch x := v.(type) {
	case nil:
		return ""
	case string:
		if at, err := time.Parse(time.RFC3339, x); err == nil && (format == "time" || format == "age") {
			if at.IsZero() {
				return ""
			}
			return at.UTC().Format(time.RFC3339)
		}
		return api.CSVCell(x)
	case []any:
		if len(x) == 0 {
			return ""
		}
		return jsonText(x)
	case map[string]any:
		if len(x) == 0 {
			return ""
		}
		return jsonText(x)
	}
	return fmt.Sprint(v)
}
