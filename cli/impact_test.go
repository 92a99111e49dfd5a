package cli

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/placement"
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
	on = always(map[string]any{"DELETE /v1/servers/app-7?dry_run=true": map[string]any{
		"impact": impact.Impact{Class: impact.None}, "refusal": map[string]any{"code": "caveat", "detail": "the token's caveat x: y"},
	}})
	r = run(t, around{say: on}, "server", "delete", "app-7", "--dry-run")
	require.Equal(t, "It affects nothing else.\nThe request itself would be refused: the token's caveat x: y.\n"+
		"It was a dry run: nothing has changed.\n", r.out)
	on = always(map[string]any{"DELETE /v1/fleets/a?dry_run=true": map[string]any{"impact": impact.Impact{Class: impact.None}}})
	r = run(t, around{say: on}, "fleet", "delete", "a", "--dry-run")
	require.Equal(t, "It affects nothing else.\nIt was a dry run: nothing has changed.\n", r.out, "it asks for no confirmation")
}

// TestACancellationIsConfirmed: on a terminal the impact is shown and the name asked for, also if nothing else is
// affected. Flags accept it, and a script is not asked.
func TestACancellationIsConfirmed(t *testing.T) {
	t.Parallel()
	const cancel = "POST /v1/tenants/t-aaaabbbbcccc/cancel"
	nothing := impact.Impact{Class: impact.None, Digest: "1-none"}
	lost := []impact.Loss{{Kind: "site", ID: "t-1", Name: "bakery.test"}}
	site := impact.Impact{Class: impact.Destroys, Digest: "1-site", Destroyed: lost}
	for name, tc := range map[string]struct {
		around
		impact   impact.Impact
		args     []string
		sent     []string
		accepted string
		errs     string
	}{
		"typed": {
			around{width: 80, stdin: "t-aaaabbbbcccc\n"},
			nothing, nil,
			[]string{cancel + "?dry_run=true", cancel},
			"",
			"It affects nothing else.\nType t-aaaabbbbcccc to confirm: ",
		},
		"another name": {
			around{width: 80, stdin: "yes\n"},
			nothing, nil,
			[]string{cancel + "?dry_run=true"},
			"",
			"It affects nothing else.\nType t-aaaabbbbcccc to confirm: prego: not confirmed; nothing was done\n",
		},
		"with a site": {
			around{width: 80, stdin: "t-aaaabbbbcccc\n"},
			site, nil,
			[]string{cancel + "?dry_run=true", cancel},
			"1-site",
			"destroys site bakery.test (t-1), and there is no backup of it\nType t-aaaabbbbcccc to confirm: ",
		},
		"--yes":  {around{width: 80}, nothing, []string{"--yes"}, []string{cancel}, "", ""},
		"script": {around{}, nothing, nil, []string{cancel}, "", ""},
	} {
		tc.say = map[string][]func(http.ResponseWriter){
			cancel + "?dry_run=true": {say(200, map[string]any{"impact": tc.impact})},
			cancel: {say(202, api.TenantAccepted{
				TenantId: "t-aaaabbbbcccc", State: "provisioning", WorkflowId: "w",
			})},
		}
		r := run(t, tc.around, append([]string{"tenant", "cancel", "t-aaaabbbbcccc"}, tc.args...)...)
		require.Equal(t, tc.sent, r.asked, name)
		require.Equal(t, tc.errs, r.errs, name)
		if len(tc.sent) > 0 && tc.sent[len(tc.sent)-1] == cancel {
			require.Equal(t, tc.accepted, r.headers[cancel].Get("Impact-Accepted"), name)
		}
	}
}

// TestADryRunOfADrainShowsWhatGoesWhere: each tenant's place, as if the server took no more.
func TestADryRunOfADrainShowsWhatGoesWhere(t *testing.T) {
	t.Parallel()
	moves := impact.Impact{Class: impact.Moves, Affected: []impact.Thing{
		{Kind: "tenant", ID: "t-1", Name: "bakery", OrgID: "acme", Class: impact.Moves},
		{Kind: "instance", ID: "ins-1", Class: impact.Moves},
	}}
	place := api.WhatIfResult{Changed: api.WhatIfAnswer{Line: placement.Line{
		Outcome: "placed", AppServerID: "app-2", DBShardID: "db-1", RedisPoolID: "redis-1",
	}}}
	r := run(t, around{say: always(map[string]any{
		"POST /v1/servers/app-7/drain?dry_run=true": map[string]any{"impact": moves},
		"POST /v1/placements/what-if":               place,
	})}, "server", "drain", "app-7", "--dry-run")
	require.Zero(t, r.code, r.errs)
	require.Equal(t, "moves tenant bakery (t-1) of acme\nmoves instance ins-1\n"+
		"tenant bakery would go: placed: app-2, shard db-1, pool redis-1\n"+
		"It was a dry run: nothing has changed.\n", r.out)
	require.JSONEq(t, `{"tenant_id":"t-1","change":{"cordon":["app-7"]}}`, r.bodies["POST /v1/placements/what-if"])
}
