package cli

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/impact"
)

// TestWhatIsLostIsAccepted: the verb shows the impact and asks, or takes the acceptance from its flags. Interrupting
// needs --yes, destroying --accept destroys.
func TestWhatIsLostIsAccepted(t *testing.T) {
	t.Parallel()
	tenant := impact.Thing{Kind: "tenant", ID: "t-1", Name: "bakery", OrgID: "acme", Class: impact.Interrupts}
	copied := born.Add(33 * time.Hour)
	destroys := impact.Impact{
		Class: impact.Destroys, Digest: "1-abcd", Affected: []impact.Thing{tenant},
		Destroyed: []impact.Loss{
			{Kind: "site", ID: "t-1", Name: "bakery.example.com", OrgID: "acme", Bytes: 3 << 30, CopyAt: &copied},
			{Kind: "volume", ID: "vol-1"},
		},
		Undo: "restore it",
	}
	interrupts := impact.Impact{Class: impact.Interrupts, Digest: "1-abcd", Affected: []impact.Thing{tenant}}
	const inWords = "destroys site bakery.example.com (t-1) of acme, 3 GiB, newest verified backup 3h ago\n" +
		"destroys volume vol-1, and there is no backup of it\n" +
		"interrupts tenant bakery (t-1) of acme\n" +
		"To undo it: restore it.\n"
	for name, tc := range map[string]struct {
		impact impact.Impact
		around
		args []string
		sent int
		errs string
	}{
		"in a pipe":         {destroys, around{}, nil, 1, inWords + "prego: without a terminal to ask at, accept it with --accept destroys\n"},
		"--yes":             {destroys, around{}, []string{"--yes"}, 1, inWords + "prego: without a terminal to ask at, accept it with --accept destroys\n"},
		"accept less":       {destroys, around{}, []string{"--accept", "interrupts"}, 1, inWords + "prego: without a terminal to ask at, accept it with --accept destroys\n"},
		"accept it":         {destroys, around{}, []string{"--accept", "destroys"}, 2, ""},
		"typed":             {destroys, around{width: 80, stdin: "app-7\n"}, nil, 2, inWords + "Type app-7 to accept that: "},
		"another name":      {destroys, around{width: 80, stdin: "y\n"}, nil, 1, inWords + "Type app-7 to accept that: prego: not confirmed; nothing was done\n"},
		"interrupts, --yes": {interrupts, around{}, []string{"--yes"}, 2, ""},
		"interrupts, more":  {interrupts, around{}, []string{"--accept", "destroys"}, 2, ""},
		"interrupts":        {interrupts, around{}, nil, 1, "interrupts tenant bakery (t-1) of acme\nprego: without a terminal to ask at, accept it with --accept interrupts\n"},
	} {
		refused := api.Problem{Title: "Conflict", Status: 409, Code: "impact_not_accepted", Impact: &tc.impact}
		tc.say = map[string][]func(http.ResponseWriter){"DELETE /v1/servers/app-7": {say(409, refused), say(202, api.Accepted{ServerId: "app-7"})}}
		r := run(t, tc.around, append([]string{"server", "delete", "app-7"}, tc.args...)...)
		require.Len(t, r.asked, tc.sent, name)
		require.Equal(t, tc.errs, r.errs, name)
		require.Equal(t, tc.sent == 2, r.code == 0, name)
		if tc.sent == 2 {
			require.Equal(t, "1-abcd", r.headers["DELETE /v1/servers/app-7"].Get("Impact-Accepted"), name)
		}
	}
	r := run(t, around{}, "server", "delete", "app-7", "--accept", "everything")
	require.Equal(t, ExitUsage, r.code)
	require.Equal(t, "prego: --accept must be interrupts or destroys\n", r.errs)
}

func TestADryRunShowsTheImpact(t *testing.T) {
	t.Parallel()
	on := always(map[string]any{"DELETE /v1/servers/app-7?dry_run=true": map[string]any{"impact": impact.Impact{
		Class: impact.Moves, Affected: []impact.Thing{{Kind: "instance", ID: "i-1", Class: impact.Moves}},
	}}})
	r := run(t, around{say: on}, "server", "delete", "app-7", "--dry-run")
	require.Zero(t, r.code, r.errs)
	require.Equal(t, "moves instance i-1\nIt was a dry run: nothing has changed.\n", r.out)
	r = run(t, around{say: on}, "server", "delete", "app-7", "--dry-run", "-o", "json")
	require.JSONEq(t, `{"impact":{"class":"moves","affected":[{"kind":"instance","id":"i-1","class":"moves"}],
		"destroyed":null}}`, r.out)
	on = always(map[string]any{"DELETE /v1/fleets/a?dry_run=true": map[string]any{"impact": impact.Impact{Class: impact.None}}})
	r = run(t, around{say: on}, "fleet", "delete", "a", "--dry-run")
	require.Equal(t, "It affects nothing else.\nIt was a dry run: nothing has changed.\n", r.out, "it asks for no confirmation")
}

func TestTheAgeOfBackupsIsShown(t *testing.T) {
	t.Parallel()
	at := func(hours int) *time.Time { return new(born.Add(-time.Duration(hours) * time.Hour)) }
	for want, d := range map[string]impact.Loss{
		"":                                {Kind: "image"},
		", and there is no backup of it":  {Kind: "site"},
		", and there is no other backup":  {Kind: "backup"},
		", newest verified backup 3h ago": {Kind: "site", CopyAt: at(3)},
		", newest backup 2h ago, which is not verified":                         {Kind: "volume", UnverifiedAt: at(2)},
		", newest verified backup 3h ago; a newer one, 2h ago, is not verified": {CopyAt: at(3), UnverifiedAt: at(2)},
	} {
		require.Equal(t, want, copies(d, born))
	}
}
