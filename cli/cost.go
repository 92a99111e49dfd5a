package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
	"github.com/prego/prego/cost"
)

// untracked is a short way to list what no row owns.
var untracked = hook{flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
	untracked := f.Bool("untracked", false, "only what no row owns; the same as --state untracked")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if *untracked {
			return cmd.Flags().Set("state", string(api.LedgerStateUntracked))
		}
		return nil
	}
}}

func costCommand(c *CLI) *cobra.Command {
	cmd, v := c.own("getCosts")
	offerCSV(cmd)
	return c.run(cmd, "", func(in *call) (func() error, error) {
		q, _, err := in.request(v, hook{})
		if err != nil {
			return nil, err
		}
		if in.format == csvFormat {
			return nil, in.client.stream(in.Context(), in.client.HTTP, http.MethodGet, "/v1/costs", q, http.Header{"Accept": {"text/csv"}}, nil, func(body io.Reader) error {
				_, err := io.Copy(in.w, body)
				return err
			})
		}
		if err := in.client.Do(in.Context(), http.MethodGet, "/v1/costs", q, nil, &in.answer); err != nil {
			return nil, err
		}
		in.keep(in.answer)
		var out api.Costs
		if err := json.Unmarshal(in.answer, &out); err != nil || !in.forPeople() {
			return nil, err
		}
		return nil, in.costs(out)
	})
}

// costLine is a row with amounts that are rounded so that they add up.
type costLine struct {
	Row     api.CostRow `json:"row"`
	Rounded string      `json:"rounded"`
	Idle    string      `json:"idle"`
	Percent string      `json:"percent"`
}

func (in *call) costs(c api.Costs) error {
	round := func(amount string) string {
		m, _ := cost.Parse(amount)
		return cost.Cents([]cost.Micro{m})[0].String()
	}
	amounts := make([]cost.Micro, len(c.Rows))
	for i, r := range c.Rows {
		amounts[i], _ = cost.Parse(r.Cost)
	}
	lines := make([]costLine, len(c.Rows))
	for i, cents := range cost.Cents(amounts) {
		lines[i] = costLine{Row: c.Rows[i], Rounded: cents.String(), Idle: round(c.Rows[i].OfWhichIdle), Percent: fmt.Sprintf("%.1f %%", 100*c.Rows[i].Share)}
	}
	until := "nothing is counted yet"
	if c.AsOf != nil {
		until = "up to " + c.AsOf.Format(time.RFC3339)
	}
	fmt.Fprintf(in.w, "%s, %s net, %s\n", c.Month, deref(c.Currency), until)
	if c.Unpriced > 0 {
		fmt.Fprintf(in.w, "WARNING: the price of %d things is not known; they are not in the total\n", c.Unpriced)
	}
	org, spare := ", row.org_id: org", []string{"basis", "org", "name"}
	if c.By == "org" { // the rows are orgs
		org, spare = "", []string{"basis", "name"}
	}
	columns := "row.id: " + string(c.By) + ", row.name: name" + org +
		", rounded: cost, idle, percent: share, row.basis: basis"
	if err := partsIn(in.printer, &api.Table{List: api.Columns(columns), Spare: spare}, lines); err != nil {
		return err
	}
	fmt.Fprintln(in.w)
	in.pairs(in.w, [2]string{"total", round(c.Total)}, [2]string{"idle", round(c.Idle)}, [2]string{"shared", round(c.Shared)}, [2]string{"untracked", round(c.Untracked)})
	return nil
}
