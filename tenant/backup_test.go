package tenant_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

var newYear = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// hourly are backups of each hour until now, the oldest first.
func hourly(hours int) []tenant.Retained {
	out := make([]tenant.Retained, hours)
	for i := range out {
		out[i] = tenant.Retained{BackupID: prego.BackupID(fmt.Sprintf("bak-%05d", i)), Kind: tenant.BackupScheduled, TakenAt: newYear.Add(time.Duration(i) * time.Hour)}
	}
	return out
}

func without(all []tenant.Retained, gone []prego.BackupID) (left []tenant.Retained) {
	for _, b := range all {
		if !slices.Contains(gone, b.BackupID) {
			left = append(left, b)
		}
	}
	return left
}

func TestWhatRetentionKeeps(t *testing.T) {
	t.Parallel()
	all := hourly(24 * 90) // until 31 March, 23:00
	now := newYear.Add(90 * 24 * time.Hour)
	left := without(all, tenant.Surplus(all, tenant.Retention{Daily: 3, Weekly: 2, Monthly: 3}, now))
	var at []string
	for _, b := range left {
		at = append(at, b.TakenAt.Format("01-02 15:04"))
	}
	require.Equal(t, []string{
		"01-31 23:00", "02-28 23:00", // months; March's is the newest of all
		"03-29 23:00", // Sunday: the week before; and a day
		"03-30 23:00", "03-31 23:00",
	}, at)
	require.Equal(t, []tenant.Retained{all[len(all)-1]}, without(all, tenant.Surplus(all, tenant.Retention{}, now)), "the newest always stays")
}

func TestWhatRetentionDoesNotTouch(t *testing.T) {
	t.Parallel()
	all := hourly(48)
	now := newYear.Add(48 * time.Hour)
	soon, past := now.Add(time.Second), now
	all[3].Held = true
	all[4].Verified, all[5].Verified = true, true
	all[6].ExpiresAt, all[7].ExpiresAt = &soon, &past
	var left []prego.BackupID
	for _, b := range without(all, tenant.Surplus(all, tenant.Retention{Daily: 1}, now)) {
		left = append(left, b.BackupID)
	}
	require.Equal(t, []prego.BackupID{"bak-00003", "bak-00005", "bak-00006", "bak-00047"}, left)
}

// TestRetentionHolds for any backups and rule.
func TestRetentionHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule := tenant.Retention{Daily: rapid.IntRange(0, 5).Draw(t, "daily"), Weekly: rapid.IntRange(0, 5).Draw(t, "weekly"), Monthly: rapid.IntRange(0, 4).Draw(t, "monthly")}
		var all []tenant.Retained
		at := newYear
		for i := range rapid.IntRange(1, 80).Draw(t, "backups") {
			at = at.Add(time.Duration(rapid.IntRange(1, 14*24).Draw(t, "hours")) * time.Hour)
			b := tenant.Retained{BackupID: prego.BackupID(fmt.Sprintf("bak-%03d", i)), TakenAt: at, Held: rapid.IntRange(0, 9).Draw(t, "held") == 0, Verified: rapid.Bool().Draw(t, "verified")}
			if rapid.IntRange(0, 5).Draw(t, "own end") == 0 {
				end := at.Add(time.Duration(rapid.IntRange(1, 60*24).Draw(t, "lives")) * time.Hour)
				b.ExpiresAt = &end
			}
			all = append(all, b)
		}
		now := at.Add(time.Hour)
		gone := tenant.Surplus(all, rule, now)
		left := without(all, gone)

		require.Equal(t, all[len(all)-1], left[len(left)-1], "the newest stays")
		bound := rule.Daily + rule.Weekly + rule.Monthly + 2
		days := make(map[string]bool)
		for _, b := range all {
			if b.Held || (b.ExpiresAt != nil && now.Before(*b.ExpiresAt)) {
				bound++
				require.Contains(t, left, b)
			}
			if b.ExpiresAt == nil {
				days[b.TakenAt.Format(time.DateOnly)] = true
			}
		}
		require.LessOrEqual(t, len(left), bound)
		stillDays := make(map[string]bool)
		for _, b := range left {
			if b.ExpiresAt == nil {
				stillDays[b.TakenAt.Format(time.DateOnly)] = true
			}
		}
		require.GreaterOrEqual(t, len(stillDays), min(rule.Daily, len(days)), "each of the newest days has one")
		require.Equal(t, slices.ContainsFunc(all, func(b tenant.Retained) bool { return b.Verified }), slices.ContainsFunc(left, func(b tenant.Retained) bool { return b.Verified }),
			"a verified backup stays until another is verified")

		require.Empty(t, tenant.Surplus(left, rule, now), "once is enough")
		mixed := rapid.Permutation(all).Draw(t, "order")
		require.Equal(t, gone, tenant.Surplus(mixed, rule, now), "the order of the rows does not matter")
		more := rule
		more.Daily++
		require.Subset(t, gone, tenant.Surplus(all, more, now), "a rule that keeps more deletes nothing else")

		// Deleting after each backup leaves what deleting once at the end leaves.
		var kept []tenant.Retained
		for _, b := range all {
			kept = append(kept, b)
			kept = without(kept, tenant.Surplus(kept, rule, b.TakenAt))
		}
		require.Equal(t, left, without(kept, tenant.Surplus(kept, rule, now)))
	})
}

func TestWhenATenantIsBackedUp(t *testing.T) {
	t.Parallel()
	p := tenant.BackupPolicy{Schedule: "0 2 * * *", Spread: 4 * time.Hour}
	delays := make(map[time.Duration]bool)
	for i := range 200 {
		id := fmt.Sprintf("t-%d", i)
		d := p.Delay(id)
		delays[d] = true
		require.Less(t, d, p.Spread)
		require.Equal(t, d, p.Delay(id), "the same at each start of a process")
		first := p.Next(id, newYear)
		require.Equal(t, newYear.Add(2*time.Hour+d), first)
		require.Equal(t, first.Add(24*time.Hour), p.Next(id, first), "never twice for one moment")
		require.Equal(t, first, p.Next(id, first.Add(-time.Second)))
	}
	require.Greater(t, len(delays), 190, "they are spread")
	require.Zero(t, tenant.BackupPolicy{}.Next("t-1", newYear))
	turns := p.Turns("t-1", newYear, 3)
	d := p.Delay("t-1")
	require.Equal(t, []time.Time{newYear.Add(2*time.Hour + d), newYear.Add(26*time.Hour + d), newYear.Add(50*time.Hour + d)}, turns)
	require.Equal(t, []time.Time{newYear.Add(2 * time.Hour)}, p.Turns("", newYear, 1), "a plan's tenants have different delays")
	require.Empty(t, tenant.BackupPolicy{}.Turns("t-1", newYear, 3))
	require.Equal(t, newYear.Add(time.Hour), tenant.BackupPolicy{Schedule: "0 * * * *"}.Next("t-1", newYear.In(time.FixedZone("", 3600*5+1800))))
}

func TestPoliciesThatAreRefused(t *testing.T) {
	t.Parallel()
	keep := tenant.Retention{Daily: 7}
	for field, p := range map[string]tenant.BackupPolicy{
		"schedule":       {Schedule: "x", Retention: keep},
		"schedule ":      {Schedule: "* * * * *", Retention: keep},
		"schedule  ":     {Schedule: "0,5 2 * * *", Retention: keep},
		"schedule   ":    {Schedule: "0 0 30 2 *", Retention: keep},
		"schedule    ":   {Schedule: "TZ=Asia/Kolkata 0 2 * * *", Retention: keep},
		"spread_seconds": {Schedule: "0 2 * * *", Spread: 25 * time.Hour, Retention: keep},
		"keep_daily":     {Schedule: "0 2 * * *"},
		"keep_weekly":    {Schedule: "0 2 * * *", Retention: tenant.Retention{Weekly: -1, Daily: 1}},
	} {
		var e *prego.Error
		require.ErrorAs(t, p.Validate(), &e, field)
		require.Contains(t, field, e.Field)
	}
	for _, s := range []string{"", "0 2 * * *", "*/15 * * * *", "30 1 * * 0", "0 0 29 2 *"} {
		require.NoError(t, tenant.BackupPolicy{Schedule: s, Retention: keep}.Validate(), s)
	}
}

func TestKeysOfBackups(t *testing.T) {
	t.Parallel()
	object, manifest := tenant.BackupKeys("prod", "t-1", "bak-1")
	for _, key := range []string{object, manifest} {
		tenantID, id, ok := tenant.BackupOfKey("prod", key)
		require.True(t, ok)
		require.Equal(t, prego.TenantID("t-1"), tenantID)
		require.Equal(t, prego.BackupID("bak-1"), id)
	}
	for _, key := range []string{"", "prod", "other/tenants/t-1/bak-1/site.age", "prod/tenants/t-1/site.age", "prod/tenants/t-1/bak-1/x", "prod/tenants/t-1/bak-1/x/site.age"} {
		_, _, ok := tenant.BackupOfKey("prod", key)
		require.False(t, ok, key)
	}
}

// TestPartsFit: no object has more parts than the storage takes, and none is a byte short.
func TestPartsFit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total, least, most := rapid.Int64Range(0, 1<<44).Draw(t, "bytes"), rapid.Int64Range(1, 1<<26).Draw(t, "least"), rapid.IntRange(1, 10_000).Draw(t, "parts")
		part := tenant.PartBytes(total, least, most)
		n := tenant.PartCount(total, part)
		require.GreaterOrEqual(t, part, least)
		require.LessOrEqual(t, n, most)
		require.GreaterOrEqual(t, part*int64(n), total)
		require.Less(t, part*int64(n-1), max(1, total))
	})
}

// TestUnusableBackupsPushOutNone: what the rule keeps without them, it keeps with them.
func TestUnusableBackupsPushOutNone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule := tenant.Retention{Daily: rapid.IntRange(0, 5).Draw(t, "daily"), Weekly: rapid.IntRange(0, 5).Draw(t, "weekly"), Monthly: rapid.IntRange(0, 4).Draw(t, "monthly")}
		var all, good []tenant.Retained
		at := newYear
		for i := range rapid.IntRange(1, 40).Draw(t, "backups") {
			at = at.Add(time.Duration(rapid.IntRange(1, 4*24).Draw(t, "hours")) * time.Hour)
			b := tenant.Retained{BackupID: prego.BackupID(fmt.Sprintf("bak-%03d", i)), TakenAt: at, Unusable: rapid.Bool().Draw(t, "unusable")}
			all = append(all, b)
			if !b.Unusable {
				good = append(good, b)
			}
		}
		left := without(all, tenant.Surplus(all, rule, at))
		require.Subset(t, left, without(good, tenant.Surplus(good, rule, at)))
	})
}
