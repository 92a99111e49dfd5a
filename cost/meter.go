package cost

import (
	"slices"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Price is what a provider asks for a kind of thing from ValidFrom on.
type Price struct {
	Provider prego.InfraProviderID
	Kind     server.ResourceKind
	Type     string
	Location string // "" is everywhere
	PerGB    bool
	Hourly   *Micro // nil: an hour costs its part of the month
	Monthly  Micro  // at most, in a calendar month
	Currency string
	// ValidFrom is when it was first read.
	ValidFrom time.Time
}

// For is the price of something of this size.
func (p Price) For(bytes int64) Price {
	if !p.PerGB {
		return p
	}
	p.Monthly = p.Monthly.part(bytes, 1_000_000_000)
	if p.Hourly != nil {
		p.Hourly = new(p.Hourly.part(bytes, 1_000_000_000))
	}
	return p
}

// Tariff are the prices of one thing over time, the oldest first.
type Tariff []Price

// At is the price at a time. Before the first known price it is the first one.
func (t Tariff) At(at time.Time) (Price, bool) {
	if len(t) == 0 {
		return Price{}, false
	}
	i, same := slices.BinarySearchFunc(t, at, func(p Price, at time.Time) int { return p.ValidFrom.Compare(at) })
	if !same {
		i = max(0, i-1)
	}
	return t[i], true
}

// Meter is how far something that is billed has been counted.
type Meter struct {
	StartedAt time.Time
	EndedAt   *time.Time // nil: it is billed
	Hours     int64      // since StartedAt that are counted
	Month     time.Time  // that Billed is of
	Billed    Micro
	Priced    bool // false: it waits for a price
	Closed    bool // counted to its end
}

// DayAmount is a day's counted amount, in UTC.
type DayAmount struct {
	Day      time.Time
	Amount   Micro
	Currency string
}

// Count counts the hours that have begun by until, as providers do: each hour that was begun
// is charged at the price at its start, and belongs to the month of its start; in a
// calendar month, in UTC, no more than the monthly price is paid. An hour without an hourly
// price costs its part of the month, so that a whole month costs the monthly price exactly.
// Hours before notBefore are passed over. Counting again from what it returns adds nothing
// that was counted.
func (m Meter) Count(tariff Tariff, bytes int64, notBefore, until time.Time) (Meter, []DayAmount) {
	var days []DayAmount
	m.Priced = true
	for {
		hour := m.StartedAt.Add(time.Duration(m.Hours) * time.Hour).UTC()
		if m.EndedAt != nil && m.Hours > 0 && !hour.Before(*m.EndedAt) {
			m.Closed = true
			return m, days
		}
		if hour.After(until) {
			return m, days
		}
		if hour.Before(notBefore) {
			m.Hours++
			continue
		}
		price, ok := tariff.At(hour)
		if !ok {
			m.Priced = false
			return m, days
		}
		month := MonthOf(hour)
		if !month.Equal(m.Month) {
			m.Month, m.Billed = month, 0
		}
		amount := price.For(bytes).hour(hour, month, m.Billed)
		m.Billed += amount
		m.Hours++
		day := hour.Truncate(24 * time.Hour)
		if n := len(days); n > 0 && days[n-1].Day.Equal(day) && days[n-1].Currency == price.Currency {
			days[n-1].Amount += amount
			continue
		}
		days = append(days, DayAmount{Day: day, Amount: amount, Currency: price.Currency})
	}
}

// hour is what an hour costs when so much of its month was billed before.
func (p Price) hour(hour, month time.Time, billed Micro) Micro {
	if p.Hourly != nil {
		return min(*p.Hourly, max(0, p.Monthly-billed))
	}
	hours := int64(month.AddDate(0, 1, 0).Sub(month) / time.Hour)
	n := int64(hour.Sub(month) / time.Hour)
	return p.Monthly.part(n+1, hours) - p.Monthly.part(n, hours)
}
