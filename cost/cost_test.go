package cost

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
)

func TestAmounts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"5.4900000000": "5.49", "0.0088": "0.0088", "0": "0.00", "15": "15.00", "0.0000004": "0.00", "0.0000005": "0.000001", "138.49": "138.49", "1.5": "1.50",
	} {
		m, ok := Parse(text)
		require.True(t, ok, text)
		require.Equal(t, want, m.String(), text)
	}
	for _, text := range []string{"", "-1", "1e3", "1/2", ".", "1.2.3", "five", "99999999999999999999", " 1"} {
		_, ok := Parse(text)
		require.False(t, ok, "%q", text)
	}
	require.Equal(t, []Micro{340000, 330000, 330000}, Cents([]Micro{333334, 333333, 333333}))
}

// drawHolding draws how something is shared.
func drawHolding(t *rapid.T) Holding {
	h := Holding{Capacity: rapid.Int64Range(0, 1<<40).Draw(t, "capacity")}
	n := rapid.IntRange(0, 40).Draw(t, "uses")
	for i := range n {
		kind := rapid.SampledFrom([]OwnerKind{OfTenant, OfOrg}).Draw(t, "kind")
		h.Uses = append(h.Uses, Use{Owner: Owner{Kind: kind, ID: fmt.Sprint(kind, i)}, Weight: rapid.Int64Range(0, 1<<36).Draw(t, "weight")})
	}
	switch rapid.IntRange(0, 5).Draw(t, "shape") {
	case 0:
		h.Whole = Owner{Kind: OfTenant, ID: "t-1", OrgID: "acme"}
	case 1:
		h.Part = rapid.SampledFrom([]Part{Shared, Untracked}).Draw(t, "part")
	case 2:
		h.Capacity, h.Uses = InSlots(rapid.Int64Range(1, 300).Draw(t, "slots"), h.Uses)
	}
	return h
}

// TestNothingIsLostOrInvented: in every shape, entries add up to the amount, none is
// negative, and no owner has more than all of it.
func TestNothingIsLostOrInvented(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount := Micro(rapid.Int64Range(0, 1<<50).Draw(t, "amount"))
		var sum Micro
		owners := map[Owner]Micro{}
		for _, e := range drawHolding(t).Attribute(amount) {
			require.Positive(t, e.Amount)
			require.Equal(t, e.Part == Used, e.Owner.Kind != OfNobody)
			sum += e.Amount
			owners[e.Owner] += e.Amount
			require.LessOrEqual(t, owners[e.Owner], amount)
		}
		require.Equal(t, amount, sum)
	})
}

// TestSharesFollowWeights: who weighs more never pays less, and who is alone with a part of
// the capacity pays that part.
func TestSharesFollowWeights(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount := Micro(rapid.Int64Range(0, 1<<50).Draw(t, "amount"))
		h := drawHolding(t)
		shares, _ := Split(amount, h.Capacity, h.Uses)
		weight, paid := map[Owner]int64{}, map[Owner]Micro{}
		for _, u := range h.Uses {
			weight[u.Owner] += u.Weight
		}
		for _, s := range shares {
			paid[s.Owner] += s.Cost
		}
		for a := range weight {
			for b := range weight {
				if weight[a] > weight[b] {
					require.GreaterOrEqual(t, paid[a]+1, paid[b])
				}
			}
		}
	})
}

func TestUnusedCapacityIsIdle(t *testing.T) {
	t.Parallel()
	a, b := Owner{Kind: OfTenant, ID: "a"}, Owner{Kind: OfTenant, ID: "b"}
	shares, idle := Split(1000, 16, []Use{{a, 1}, {b, 3}})
	require.Equal(t, []Share{{a, 63}, {b, 187}}, shares)
	require.Equal(t, Micro(750), idle)
	shares, idle = Split(1000, 2, []Use{{a, 1}, {b, 3}})
	require.Equal(t, []Share{{a, 250}, {b, 750}}, shares, "more is promised than there is")
	require.Zero(t, idle)
	_, idle = Split(1000, 16, nil)
	require.Equal(t, Micro(1000), idle)
	// Two of four slots are taken, by weights of one and three.
	capacity, uses := InSlots(4, []Use{{a, 1}, {b, 3}})
	shares, idle = Split(1000, capacity, uses)
	require.Equal(t, []Share{{a, 125}, {b, 375}}, shares)
	require.Equal(t, Micro(500), idle)
}

func TestWhoseAServerIs(t *testing.T) {
	t.Parallel()
	tenant := Use{Owner{OfTenant, "t-1", "acme"}, 1 << 30}
	for name, c := range map[string]struct {
		thing Thing
		want  []Entry
	}{
		"a tenant's own":    {Thing{ServerID: "s", Role: prego.RoleNode, DedicatedTo: "t-1", DedicatedOrg: "acme", MemoryBytes: 16 << 30}, []Entry{{Used, Owner{OfTenant, "t-1", "acme"}, "", Own, 100}}},
		"an edge":           {Thing{ServerID: "s", Role: prego.RoleEdge}, []Entry{{Shared, Owner{Kind: OfNobody}, "", NoBasis, 100}}},
		"a warm one":        {Thing{ServerID: "s", Role: prego.RoleNode, Region: "eu", WarmPlan: "starter", MemoryBytes: 16 << 30}, []Entry{{Idle, Owner{Kind: OfNobody}, "warm/eu/starter", NoBasis, 100}}},
		"an app server":     {Thing{ServerID: "s", Role: prego.RoleApp, MemoryBytes: 4 << 30, Uses: []Use{tenant}}, []Entry{{Used, tenant.Owner, "sites/s", ByWeight, 25}, {Idle, Owner{Kind: OfNobody}, "sites/s", NoBasis, 75}}},
		"a shard":           {Thing{ServerID: "s", Role: prego.RoleDBShard, Slots: 100, Uses: []Use{tenant}}, []Entry{{Used, tenant.Owner, "shard/s", ByWeight, 1}, {Idle, Owner{Kind: OfNobody}, "shard/s", NoBasis, 99}}},
		"one for instances": {Thing{ServerID: "s", Role: prego.RoleNode, MemoryBytes: 16 << 30, WorkloadMemory: 2 << 30, Uses: []Use{{Owner{OfOrg, "acme", "acme"}, 1 << 30}}}, []Entry{{Used, Owner{OfOrg, "acme", "acme"}, "", ByMemory, 50}, {Idle, Owner{Kind: OfNobody}, "", NoBasis, 50}}},
		"an address":        {Thing{OwnerKind: OfEnv, OwnerID: "env-1", OrgID: "acme"}, []Entry{{Used, Owner{OfOrg, "acme", "acme"}, "", Own, 100}}},
		"a backup":          {Thing{OwnerKind: OfTenant, OwnerID: "t-1", OrgID: "acme"}, []Entry{{Used, Owner{OfTenant, "t-1", "acme"}, "", Own, 100}}},
		"a golden image":    {Thing{OwnerKind: OfEnvironment}, []Entry{{Shared, Owner{Kind: OfNobody}, "", NoBasis, 100}}},
		"an orphan":         {Thing{OwnerKind: OfNobody, Untracked: true}, []Entry{{Untracked, Owner{Kind: OfNobody}, "", NoBasis, 100}}},
	} {
		require.Equal(t, c.want, c.thing.Holding().Attribute(100), name)
	}
}

func hourly(from time.Time, hour, month Micro) Price {
	return Price{Hourly: &hour, Monthly: month, Currency: "EUR", ValidFrom: from}
}

func total(days []DayAmount) (sum Micro) {
	for _, d := range days {
		sum += d.Amount
	}
	return sum
}

func TestHoursThatWereBegunArePaid(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 3, 10, 59, 0, 0, time.UTC)
	tariff := Tariff{hourly(start, 8800, 5_490_000)}
	for lived, want := range map[time.Duration]Micro{0: 8800, 3 * time.Minute: 8800, time.Hour: 8800, time.Hour + time.Second: 17600, 25 * time.Hour: 25 * 8800} {
		m, days := Meter{StartedAt: start, EndedAt: new(start.Add(lived))}.Count(tariff, 0, time.Time{}, start.AddDate(0, 1, 0))
		require.True(t, m.Closed)
		require.Equal(t, want, total(days), lived)
	}
	m, days := Meter{StartedAt: start}.Count(nil, 0, time.Time{}, start.Add(time.Hour))
	require.Empty(t, days)
	require.False(t, m.Priced, "it waits for a price")
	m, days = m.Count(tariff, 0, time.Time{}, start.Add(time.Hour))
	require.Equal(t, Micro(17600), total(days))
	require.True(t, m.Priced)
}

// TestAMonthCostsAMonth: whole months cost the monthly price exactly, by hours that add up to
// more and by parts of the month, and by size.
func TestAMonthCostsAMonth(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, tariff := range []Tariff{{hourly(start, 8800, 5_490_000)}, {{Monthly: 44_000, PerGB: true, Currency: "EUR", ValidFrom: start}}, {{Monthly: 3_000_001, Currency: "EUR", ValidFrom: start}}} {
		want := []Micro{5_490_000, 440_000, 3_000_001}[i]
		months := map[time.Time]Micro{}
		_, days := Meter{StartedAt: start}.Count(tariff, 10_000_000_000, time.Time{}, start.AddDate(1, 0, 0).Add(-time.Second))
		for _, d := range days {
			months[MonthOf(d.Day)] += d.Amount
		}
		require.Len(t, months, 12)
		for m, sum := range months {
			require.Equal(t, want, sum, m)
		}
	}
}

// TestCountingIsTheSameInAnySteps: counting in any number of steps, with any pauses, gives the
// same result.
func TestCountingIsTheSameInAnySteps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		start := time.Date(2026, 10, 28, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.IntRange(0, 100*3600).Draw(t, "start")) * time.Second)
		end := start.Add(time.Duration(rapid.IntRange(0, 60*86400).Draw(t, "lived")) * time.Second)
		change := start.Add(time.Duration(rapid.IntRange(-86400, 30*86400).Draw(t, "change")) * time.Second)
		tariff := Tariff{hourly(start.AddDate(0, -1, 0), 8800, 5_490_000), hourly(change, 12_000, 7_000_000)}
		if rapid.Bool().Draw(t, "monthly") {
			tariff[0].Hourly, tariff[1].Hourly = nil, nil
		}
		notBefore := MonthOf(start.AddDate(0, rapid.IntRange(0, 1).Draw(t, "later"), 0))
		once, want := Meter{StartedAt: start, EndedAt: &end}.Count(tariff, 1, notBefore, end.Add(time.Hour))
		m := Meter{StartedAt: start}
		byDay := map[time.Time]Micro{}
		for at := start; !m.Closed; at = at.Add(time.Duration(rapid.IntRange(0, 5*86400).Draw(t, "pause")) * time.Second) {
			if !at.Before(end) {
				m.EndedAt = &end
				at = end.Add(time.Hour)
			}
			var days []DayAmount
			m, days = m.Count(tariff, 1, notBefore, at)
			for _, d := range days {
				require.GreaterOrEqual(t, d.Amount, Micro(0))
				byDay[d.Day] += d.Amount
			}
		}
		require.Equal(t, once, m)
		wanted := map[time.Time]Micro{}
		for _, d := range want {
			wanted[d.Day] += d.Amount
		}
		require.Equal(t, wanted, byDay)
	})
}

// TestRowsAddUp: rows of a report add up to its lines, however many are shown.
func TestRowsAddUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var lines []Line
		var sum Micro
		for range rapid.IntRange(0, 50).Draw(t, "lines") {
			l := Line{
				Key: rapid.SampledFrom([]string{"", "a", "b", "c", "d", "idle"}).Draw(t, "key"), Part: rapid.SampledFrom([]Part{Used, Idle, Shared, Untracked}).Draw(t, "part"),
				Basis: rapid.SampledFrom([]Basis{Own, ByWeight, NoBasis}).Draw(t, "basis"), Amount: Micro(rapid.Int64Range(0, 1<<40).Draw(t, "amount")),
			}
			sum += l.Amount
			lines = append(lines, l)
		}
		limit := rapid.IntRange(1, 6).Draw(t, "limit")
		r := Summarize(ByOrg, lines, limit)
		var cost, idle Micro
		seen, named := map[[2]string]bool{}, 0
		amounts := make([]Micro, 0, len(r.Rows))
		for _, row := range r.Rows {
			cost, idle = cost+row.Cost, idle+row.Idle
			require.LessOrEqual(t, row.Idle, row.Cost)
			require.False(t, seen[[2]string{row.Kind, row.ID}], "one row for %s %s", row.Kind, row.ID)
			seen[[2]string{row.Kind, row.ID}] = true
			if row.Kind == string(ByOrg) {
				named++
			}
			amounts = append(amounts, row.Cost)
		}
		require.Equal(t, sum, cost)
		require.Equal(t, sum, r.Total)
		require.Equal(t, r.Idle, idle)
		require.LessOrEqual(t, named, limit)
		var cents Micro
		for i, c := range Cents(amounts) {
			require.Zero(t, c%10_000)
			require.Less(t, max(c-amounts[i], amounts[i]-c), Micro(10_000))
			cents += c
		}
		require.Equal(t, (sum+5000)/10_000*10_000, cents)
	})
}

func TestAmountsAreRoundedForPeople(t *testing.T) {
	t.Parallel()
	for amount, want := range map[string]string{
		"16.490000": "16.49", "0.910022": "0.91", "0": "0.00", "0.004321": "0.0043", "0.000001": "0.000001", "–": "–",
	} {
		require.Equal(t, want, Rounded(amount), amount)
	}
}
