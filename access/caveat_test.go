package access_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops/impact"
)

var (
	restore = access.Act{Operation: "createRestore", Capability: "backup:restore", Bound: impact.Destroys, Spends: access.SpendsNothing}
	read    = access.Act{Operation: "getTenant", Capability: "tenant:read"}
	bakery  = impact.Impact{
		Class:     impact.Destroys,
		Affected:  []impact.Thing{{Kind: "tenant", ID: "t-1", Name: "bakery", Class: impact.Interrupts}},
		Destroyed: []impact.Loss{{Kind: "site", ID: "t-1", Name: "acme.example.com", Bytes: 3328599654}},
	}
)

// TestCaveatsRefuseByNameWithTheImpact: each by what it is about, and nothing else.
func TestCaveatsRefuseByNameWithTheImpact(t *testing.T) {
	t.Parallel()
	exec := access.Act{Operation: "execOnServer", Capability: "server:exec", Bound: impact.Destroys, Spends: access.SpendsUnknown}
	volume := access.Act{Operation: "createVolume", Capability: "volume:create", Bound: impact.None, Spends: access.SpendsPrice}
	grant := access.Act{Operation: "createGrant", Capability: "access:grant", Bound: impact.None, Spends: access.SpendsNothing}
	reveal := access.Act{Operation: "setAdminPassword", Capability: "tenant:reveal", Bound: impact.Reveals, Spends: access.SpendsNothing}
	dry := restore
	dry.DryRun = true
	with := func(seconds int, cents int64) impact.Impact {
		i := bakery
		i.Destroyed, i.Seconds, i.MonthlyCents = nil, seconds, cents
		return i
	}
	act := func(c access.Caveats, a access.Act) *access.Refusal { return c.RefuseAct(a) }
	of := func(i impact.Impact) func(access.Caveats, access.Act) *access.Refusal {
		return func(c access.Caveats, a access.Act) *access.Refusal { return c.RefuseImpact(a, i) }
	}
	bound := func(c access.Caveats, a access.Act) *access.Refusal { return c.RefuseBound(a) }
	for _, tc := range []struct {
		caveats access.Caveats
		refuse  func(access.Caveats, access.Act) *access.Refusal
		act     access.Act
		text    string // behind the name of the caveat; "" is allowed
	}{
		{access.Caveats{}, act, exec, ""},
		{access.Caveats{}, of(bakery), restore, ""},
		{access.Caveats{}, bound, restore, ""},
		{access.Caveats{Operations: []string{"getTenant", "listTenants"}}, act, read, ""},
		{access.Caveats{Operations: []string{"getTenant"}}, act, access.Act{Operation: "whoami"}, ""},
		{access.Caveats{Operations: []string{"getTenant"}}, act, restore, "operations: createRestore is not one of its operations: getTenant"},
		{access.Caveats{DryRunOnly: true}, act, read, ""},
		{access.Caveats{DryRunOnly: true}, act, dry, ""},
		{access.Caveats{ProgressOf: "t-1"}, act, access.Act{Operation: "getTenantProgress", Capability: access.ReadProgress, Tenant: "t-1"}, ""},
		{access.Caveats{ProgressOf: "t-1"}, act, access.Act{Operation: "getTenantProgress", Capability: access.ReadProgress, Tenant: "t-2"}, "progress_of: getTenantProgress is not the progress of t-1"},
		{access.Caveats{ProgressOf: "t-1"}, act, access.Act{Operation: "listProgress", Capability: access.ReadProgress}, "progress_of: listProgress is not the progress of t-1"},
		{access.Caveats{ProgressOf: "t-1"}, act, access.Act{Operation: "whoami"}, "progress_of: whoami is not the progress of t-1"},
		{access.Caveats{DryRunOnly: true}, act, restore, "dry_run_only: createRestore would be carried out; request it with dry_run"},
		{access.Caveats{RevealsNothing: true}, act, restore, ""},
		{access.Caveats{RevealsNothing: true}, act, reveal, "reveals_nothing: setAdminPassword shows secrets, or what customers wrote"},
		{access.Caveats{RevealsNothing: true}, act, exec, "reveals_nothing: execOnServer shows secrets, or what customers wrote"},
		{
			access.Caveats{RevealsNothing: true},
			act,
			access.Act{Operation: "instanceLogs", Capability: "instance:logs"},
			"reveals_nothing: instanceLogs shows secrets, or what customers wrote",
		},
		{
			access.Caveats{RevealsNothing: true},
			act,
			access.Act{Operation: "cloneTenant", Capability: "tenant:clone", Bound: impact.None},
			"reveals_nothing: cloneTenant shows secrets, or what customers wrote",
		},
		{
			access.Caveats{RevealsNothing: true, MonthlyCents: new(int64(0))},
			act,
			access.Act{Operation: "createConsoleLogin", Bound: impact.Reveals, Spends: access.SpendsNothing},
			"",
		},
		{access.Caveats{DestroysNothing: true}, act, restore, ""},
		{access.Caveats{DestroysNothing: true}, act, exec, "destroys_nothing: execOnServer runs a command, which may destroy anything"},
		{access.Caveats{DestroysNothing: true}, of(bakery), restore, "destroys_nothing: this destroys 1 site, acme.example.com, 3.1 GiB"},
		{access.Caveats{DestroysNothing: true}, of(with(0, 0)), restore, ""},
		{access.Caveats{DestroysNothing: true}, bound, restore, "destroys_nothing: createRestore may destroy"},
		{access.Caveats{DestroysNothing: true}, bound, volume, ""},
		{access.Caveats{SecondsDown: new(int64(60))}, act, restore, ""},
		{access.Caveats{SecondsDown: new(int64(60))}, of(with(30, 0)), restore, ""},
		{
			access.Caveats{SecondsDown: new(int64(60))},
			of(with(0, 0)), restore,
			"seconds_down: this interrupts tenant bakery, and for how long is unknown",
		},
		{
			access.Caveats{SecondsDown: new(int64(60))},
			bound, restore,
			"seconds_down: for how long createRestore takes something out of service is unknown",
		},
		{
			access.Caveats{SecondsDown: new(int64(60))},
			act,
			access.Act{Operation: "putPolicy", Bound: impact.None, MovesLater: true},
			"seconds_down: for how long a policy takes something out of service because of putPolicy is unknown",
		},
		{access.Caveats{MonthlyCents: new(int64(0))}, act, read, ""},
		{access.Caveats{MonthlyCents: new(int64(0))}, act, restore, ""},
		{access.Caveats{MonthlyCents: new(int64(0))}, act, exec, "monthly_cents: what execOnServer costs a month is unknown"},
		{access.Caveats{MonthlyCents: new(int64(500))}, of(with(0, 440)), volume, ""},
		{access.Caveats{MonthlyCents: new(int64(500))}, of(with(0, 0)), volume, "monthly_cents: what this costs a month is unknown"},
		{access.Caveats{MonthlyCents: new(int64(500))}, bound, volume, "monthly_cents: what createVolume costs a month is unknown"},
		{access.Caveats{}, act, grant, ""},
		{
			access.Caveats{Orgs: []prego.OrgID{"acme"}, DestroysNothing: true},
			act, grant,
			"orgs: createGrant gives access without the caveat; a token with caveats can only be narrowed",
		},
	} {
		r := tc.refuse(tc.caveats, tc.act)
		if tc.text == "" {
			require.Nil(t, r, "%+v %+v", tc.caveats, tc.act)
			continue
		}
		require.NotNil(t, r, "%s", tc.text)
		require.Equal(t, "the token's caveat "+tc.text, r.Text)
		require.Equal(t, prego.CodeCaveat, prego.CodeOf(r))
	}
	require.Equal(t, &bakery, access.Caveats{DestroysNothing: true}.RefuseImpact(restore, bakery).Impact)
}

// TestADryRunNotesWhatWouldBeRefused, and needs the operations of the act itself.
func TestADryRunNotesWhatWouldBeRefused(t *testing.T) {
	t.Parallel()
	l := &access.Limits{Act: restore, Caveats: []access.Caveats{{}, {DestroysNothing: true}}}
	require.NoError(t, l.RefuseAct())
	require.Equal(t, prego.CodeCaveat, prego.CodeOf(l.RefuseImpact(bakery)), "the second one applies")
	l.DryRun = true
	require.NoError(t, l.RefuseImpact(bakery))
	require.Equal(t, "destroys_nothing", l.Refused.Caveat)
	l.Caveats = append(l.Caveats, access.Caveats{Operations: []string{"getTenant"}})
	require.Equal(t, prego.CodeCaveat, prego.CodeOf(l.RefuseAct()))
}

func TestOverspentNamesWhatIsLeft(t *testing.T) {
	t.Parallel()
	require.Equal(t, "the token's caveat monthly_cents: this costs 4.40 a month, and 1.05 of 10.00 are left",
		access.Overspent("monthly_cents", 440, 895, 1000).Text)
	require.Equal(t, "the token's caveat seconds_down: this takes something out of service for 40 seconds, and 0 of 60 are left",
		access.Overspent("seconds_down", 40, 70, 60).Text)
}

// TestOrgsOfCaveatsNarrowTheReach of each capability, and never widen it.
func TestOrgsOfCaveatsNarrowTheReach(t *testing.T) {
	t.Parallel()
	p := access.Principal{
		Grants:  []access.Grant{{Role: "operator"}},
		Caveats: []access.Caveats{{Orgs: []prego.OrgID{"b", "a"}}, {DestroysNothing: true}, {Orgs: []prego.OrgID{"b", "c"}}},
	}
	require.Equal(t, access.Reach{Orgs: []prego.OrgID{"b"}}, p.Reach("tenant:read"))
	require.False(t, p.Operator())
	require.Equal(t, access.ReasonCaveat, access.Decide(p, "tenant:read", "a").Reason)
	require.Equal(t, access.ReasonCaveat, access.Decide(p, "server:read", "").Reason)
	require.True(t, access.Decide(p, "tenant:read", "b").Allowed)
	p.Grants = []access.Grant{{Role: "org_owner", OrgID: "c", Orgs: []prego.OrgID{"c"}}}
	require.True(t, p.Reach("tenant:read").None())
}

func TestCaveatsAreChecked(t *testing.T) {
	t.Parallel()
	known := func(id string) bool { return id != "createTenat" }
	c := access.Caveats{Operations: []string{"b", "a", "b"}, Orgs: []prego.OrgID{"z", "y", "z"}, MonthlyCents: new(int64(0))}
	require.NoError(t, c.Normalize(known))
	require.Equal(t, []string{"a", "b"}, c.Operations)
	require.Equal(t, []prego.OrgID{"y", "z"}, c.Orgs)
	for field, wrong := range map[string]access.Caveats{
		"caveats.operations":    {Operations: []string{"createTenat"}},
		"caveats.orgs":          {Orgs: []prego.OrgID{}},
		"caveats.monthly_cents": {MonthlyCents: new(int64(-1))},
		"caveats.seconds_down":  {SecondsDown: new(int64(-1))},
	} {
		var refused *prego.Error
		require.ErrorAs(t, wrong.Normalize(known), &refused)
		require.Equal(t, field, refused.Field)
	}
}

// TestARefusalNamesOnlyWhatItsCallerSees: things of other orgs are a count, and what a caller sees is named.
func TestARefusalNamesOnlyWhatItsCallerSees(t *testing.T) {
	t.Parallel()
	i := impact.Impact{Destroyed: []impact.Loss{
		{Kind: "site", ID: "t-1", Name: "bakery", OrgID: "acme"}, {Kind: "site", ID: "t-2", Name: "rival", OrgID: "other"},
	}}
	all := access.Caveats{DestroysNothing: true}.RefuseImpact(access.Act{}, i)
	require.Equal(t, "the token's caveat destroys_nothing: this destroys 2 sites (bakery, rival)", all.Text)
	only := func(orgs ...prego.OrgID) func(prego.OrgID) bool {
		return func(org prego.OrgID) bool { return slices.Contains(orgs, org) }
	}
	require.Equal(t, "the token's caveat destroys_nothing: this destroys 1 site, bakery", all.Seen(only("acme")).Text)
	require.Equal(t, 1, all.Seen(only("acme")).Impact.Others)
	require.Equal(t, "the token's caveat destroys_nothing: this destroys 2 things of other orgs", all.Seen(only()).Text)
}
