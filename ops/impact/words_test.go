package impact

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

var born = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestTheAgeOfBackupsIsShown(t *testing.T) {
	t.Parallel()
	at := func(hours int) *time.Time { return new(born.Add(-time.Duration(hours) * time.Hour)) }
	for want, d := range map[string]Loss{
		"":                                {Kind: "image"},
		", and there is no backup of it":  {Kind: "site"},
		", and there is no other backup":  {Kind: "backup"},
		", newest verified backup 3h ago": {Kind: "site", CopyAt: at(3)},
		", newest backup 2h ago, which is not verified":                         {Kind: "volume", UnverifiedAt: at(2)},
		", newest verified backup 3h ago; a newer one, 2h ago, is not verified": {CopyAt: at(3), UnverifiedAt: at(2)},
	} {
		require.Equal(t, want, d.copies(born))
	}
}

// TestForeignThingsAreCounted: callers read how many things of other orgs a change affects, and none of their names.
func TestForeignThingsAreCounted(t *testing.T) {
	t.Parallel()
	i := Impact{
		Affected:  []Thing{{Kind: "tenant", ID: "t-1", Name: "bakery", OrgID: "acme", Class: Interrupts}, {Kind: "tenant", ID: "t-2", Name: "secret", OrgID: "other", Class: Interrupts}},
		Destroyed: []Loss{{Kind: "site", ID: "t-3", Name: "secret.test", OrgID: "other"}},
	}
	of := func(org prego.OrgID) bool { return org == "acme" }
	require.Equal(t, []string{"interrupts tenant bakery (t-1) of acme", "It also affects 2 things of other orgs."}, i.Seen(of).Lines(born))
	require.Equal(t, "interrupts tenant bakery, affects 2 things of other orgs", i.Seen(of).Summary())
	require.NotContains(t, (&NotAccepted{i.Seen(of)}).Error(), "secret")
	only := Impact{Affected: i.Affected[1:]}
	require.Equal(t, []string{"It also affects 1 thing of other orgs."}, only.Seen(of).Lines(born))
}
