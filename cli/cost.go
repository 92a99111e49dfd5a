package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
	"github.com/prego/prego/cost"
)

var ledgerTable = Table[api.LedgerResource]{
	ID: "id", Columns: "name, kind, type, location, owner, state, since: age, price_month: price/month, currency", Spare: "currency, type, location",
	More: "id, provider, provider_id, size_gb, org_id, since, until, price_known",
	Computed: map[string]func(api.LedgerResource) any{
		"owner": func(r api.LedgerResource) any {
			if r.Owner.Id == nil {
				return string(r.Owner.Kind)
			}
			return string(r.Owner.Kind) + ":" + *r.Owner.Id
		},
	},
}

func ledgerCommand(c *CLI) *cobra.Command {
	return c.group("ledger", "Show what providers bill, whose it is, and its price", ledgerList{List[api.LedgerResource]{
		Short: "List what is billed, newest first", Path: "/v1/ledger", Items: "resources", All: true, Table: ledgerTable,
		Filters: "kind, owner, org: org_id, state, location", Sorts: "since, name, price_month",
	}})
}

// ledgerList is a list with a short way to ask for what no row owns.
type ledgerList struct{ List[api.LedgerResource] }

func (l ledgerList) command(c *CLI) *cobra.Command {
	cmd := l.List.command(c)
	untracked := cmd.Flags().Bool("untracked", false, "only what no row owns; the same as --state untracked")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if *untracked {
			return cmd.Flags().Set("state", string(api.LedgerStateUntracked))
		}
		return nil
	}
	return cmd
}

func costCommand(c *CLI) *cobra.Command {
	by := "org"
	month, limit := "", 0
	var ids []string
	cmd := &cobra.Command{
		Use: "cost", Short: "Show what a month costs, and whose it is",
		Example: "prego cost --by tenant --month 2026-11\nprego cost --by server -o csv",
	}
	cmd.Flags().Var(&choice{to: &by, of: []string{"tenant", "org", "server", "pool", "fleet", "region", "kind"}}, "by", "what a row stands for: tenant, org, server, pool, fleet, region or kind")
	cmd.Flags().StringVar(&month, "month", "", "month in UTC, as 2026-11; the current one when left out")
	cmd.Flags().StringSliceVar(&ids, "id", nil, "only the rows of these things; the sums stay those of the month")
	cmd.Flags().IntVar(&limit, "limit", 1000, "show at most this many rows; the others are added up")
	offerCSV(cmd)
	return c.run(cmd, "", func(in *call) (func() error, error) {
		q := url.Values{"by": {by}, "limit": {strconv.Itoa(limit)}}
		if month != "" {
			q.Set("month", month)
		}
		if len(ids) > 0 {
			q.Set("id", strings.Join(ids, ","))
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
	if err := rows(in.printer, Table[costLine]{
		Columns: "row.id: " + string(c.By) + ", row.name: name, row.org_id: org, rounded: cost, idle, percent: share, row.basis: basis", Spare: "basis, org, name",
	}, lines); err != nil {
		return err
	}
	fmt.Fprintln(in.w)
	in.pairs(in.w, [2]string{"total", round(c.Total)}, [2]string{"idle", round(c.Idle)}, [2]string{"shared", round(c.Shared)}, [2]string{"untracked", round(c.Untracked)})
	return nil
}
