package api

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/oapi-codegen/runtime/types"

	"github.com/prego/prego"
	"github.com/prego/prego/cost"
	"github.com/prego/prego/store"
)

// costSlack is how late counting may be before a month is called incomplete.
const costSlack = 3 * time.Hour

// ListLedger shows a page of the billed items.
func (a *API) ListLedger(c echo.Context, _ ListLedgerParams) error {
	if !wantsCSV(c) {
		return list(c, "resources", store.Ledger.In(a.d.Store), ledgerView)
	}
	leave, err := a.exports.enter(caller(c))
	if err != nil {
		return err
	}
	defer leave()
	page, next, err := store.Ledger.In(a.d.Store)(c.Request().Context(), listQuery(c))
	if err != nil {
		return err
	}
	if next != "" {
		q := c.Request().URL.Query()
		q.Set("cursor", next)
		c.Response().Header().Set("Link", "<"+c.Request().URL.Path+"?"+q.Encode()+`>; rel="next"`)
	}
	rows := [][]string{{"kind", "provider", "provider_id", "name", "type", "location", "size_gb", "owner_kind", "owner_id", "org_id", "state", "since", "until", "price_month", "currency"}}
	for _, r := range page {
		price, until, size := "", "", ""
		if r.PriceKnown() {
			price = r.PriceMonth.String()
		}
		if r.Until != nil {
			until = r.Until.UTC().Format(time.RFC3339)
		}
		if r.SizeGB > 0 {
			size = strconv.FormatFloat(r.SizeGB, 'f', -1, 64)
		}
		rows = append(rows, []string{
			string(r.Kind), string(r.Provider), r.ProviderID, r.Name, r.Type, r.Location, size, string(r.OwnerKind), r.OwnerID, string(r.OrgID), string(r.State),
			r.Since.UTC().Format(time.RFC3339), until, price, r.Currency,
		})
	}
	return writeCSV(c, "ledger", rows)
}

func ledgerView(r cost.Resource) LedgerResource {
	v := viewOf[LedgerResource](r)
	v.Owner, v.PriceKnown = LedgerOwner{Kind: LedgerOwnerKind(r.OwnerKind), Id: optional(r.OwnerID)}, r.PriceKnown()
	if r.PriceKnown() {
		v.PriceMonth = new(r.PriceMonth.String())
	}
	return v
}

const defaultCostRows = 1000

// GetCosts shows what a month costs, and whose that is.
func (a *API) GetCosts(c echo.Context, p GetCostsParams) error {
	now := time.Now().UTC()
	month, by, limit := cost.MonthOf(now), cost.ByOrg, defaultCostRows
	if p.Month != nil {
		m, err := time.Parse("2006-01", *p.Month)
		if err != nil {
			return prego.Invalid("month", "must be a month, as 2026-11")
		}
		month = m
	}
	if p.By != nil {
		by = cost.By(*p.By)
	}
	if p.Limit != nil {
		limit = *p.Limit
	}
	if wantsCSV(c) {
		leave, err := a.exports.enter(caller(c))
		if err != nil {
			return err
		}
		defer leave()
	}
	m, err := a.d.Store.Costs(c.Request().Context(), by, month)
	if err != nil {
		return err
	}
	if p.Id != nil { // they may cost little
		limit = len(m.Lines)
	}
	report := cost.Summarize(by, m.Lines, limit)
	if p.Id != nil {
		report.Rows = slices.DeleteFunc(report.Rows, func(r cost.Row) bool { return !slices.Contains(*p.Id, r.ID) })
	}
	if wantsCSV(c) {
		return writeCSV(c, "costs-"+month.Format("2006-01"), costRows(month, m, report))
	}
	out := Costs{
		Month: month.Format("2006-01"), By: CostBy(by), Currency: optional(m.Currency), Net: true, Rows: []CostRow{}, Days: []CostDay{},
		Total: report.Total.String(), Idle: report.Idle.String(), Shared: report.Shared.String(), Untracked: report.Untracked.String(),
		Unpriced: m.Unpriced, AsOf: utc(m.AsOf), Complete: m.Complete(month, now, costSlack),
	}
	for _, r := range report.Rows {
		share := 0.0
		if report.Total > 0 {
			share = float64(r.Cost) / float64(report.Total)
		}
		out.Rows = append(out.Rows, CostRow{
			Kind: CostRowKind(r.Kind), Id: r.ID, Name: r.Name, OrgId: optional(string(r.OrgID)), Cost: r.Cost.String(), OfWhichIdle: r.Idle.String(), Share: float32(share), Basis: CostRowBasis(r.Basis),
		})
	}
	for _, d := range m.Days {
		out.Days = append(out.Days, costDayView(d))
	}
	return c.JSON(http.StatusOK, out)
}

func costDayView(d cost.Day) CostDay {
	return CostDay{Day: types.Date{Time: d.Day.UTC()}, Cost: d.Cost.String(), Idle: d.Idle.String()}
}

func costRows(month time.Time, m cost.Month, report cost.Report) [][]string {
	rows := [][]string{{"month", "kind", "id", "name", "org_id", "cost", "of_which_idle", "basis", "currency"}}
	for _, r := range report.Rows {
		rows = append(rows, []string{month.Format("2006-01"), r.Kind, r.ID, r.Name, string(r.OrgID), r.Cost.String(), r.Idle.String(), string(r.Basis), m.Currency})
	}
	return rows
}
