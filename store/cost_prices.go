package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego/cost"
)

// A price that left the list stays: earlier resources still cost it.
const (
	listedPrices = `unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bool[], $6::bigint[], $7::bigint[], $8::text[]) l (provider, kind, type, location, per_gb, hourly, monthly, currency)`
	samePrice    = `p.provider = l.provider AND p.kind = l.kind AND p.type = l.type AND p.location = l.location AND p.valid_to IS NULL`

	sqlPricesEnded = `
UPDATE provider_prices p SET valid_to = now() FROM ` + listedPrices + ` WHERE ` + samePrice + `
  AND (p.per_gb, p.hourly, p.monthly, p.currency) IS DISTINCT FROM (l.per_gb, l.hourly, l.monthly, l.currency)`
	sqlPricesBegun = `
INSERT INTO provider_prices (provider, kind, type, location, per_gb, hourly, monthly, currency)
SELECT l.* FROM ` + listedPrices + ` WHERE NOT EXISTS (SELECT FROM provider_prices p WHERE ` + samePrice + `)`
)

// savePrices stores the current prices where they differ from the known ones.
func savePrices(ctx context.Context, tx pgx.Tx, prices []cost.Price) error {
	var providers, kinds, types, locations, currencies []string
	var perGB []bool
	var hourly []*cost.Micro
	var monthly []cost.Micro
	for _, p := range prices {
		providers, kinds, types, locations = append(providers, string(p.Provider)), append(kinds, string(p.Kind)), append(types, p.Type), append(locations, p.Location)
		perGB, hourly, monthly, currencies = append(perGB, p.PerGB), append(hourly, p.Hourly), append(monthly, p.Monthly), append(currencies, p.Currency)
	}
	for _, sql := range []string{sqlPricesEnded, sqlPricesBegun} {
		if _, err := tx.Exec(ctx, sql, filled(providers), filled(kinds), filled(types), filled(locations), perGB, hourly, monthly, filled(currencies)); err != nil {
			return err
		}
	}
	return nil
}

const sqlPrices = `
SELECT provider, kind, type, location, per_gb, hourly, monthly, currency, valid_from FROM provider_prices ORDER BY provider, kind, type, location, valid_from`

// tariffs are all prices by their subjects.
type tariffs map[[4]string]cost.Tariff

func readTariffs(ctx context.Context, tx pgx.Tx) (tariffs, error) {
	prices, err := many[cost.Price](ctx, tx, sqlPrices)
	out := tariffs{}
	for _, p := range prices {
		key := [4]string{string(p.Provider), string(p.Kind), p.Type, p.Location}
		out[key] = append(out[key], p)
	}
	return out, err
}

// of returns the tariff of a resource, nil if it has none.
func (t tariffs) of(provider, kind, typ, location string) cost.Tariff {
	if found := t[[4]string{provider, kind, typ, location}]; found != nil {
		return found
	}
	return t[[4]string{provider, kind, typ, ""}]
}
