package impact

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
)

var shown = time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)

// of is an impact that moves or interrupts some tenants and destroys the sites of others.
func of(class Class, affected, destroyed string) Impact {
	i := Impact{Class: class}
	if class != Moves {
		class = Interrupts
	}
	for id := range strings.FieldsSeq(affected) {
		i.Affected = append(i.Affected, Thing{Kind: "tenant", ID: id, Name: "name of " + id, Class: class})
	}
	for id := range strings.FieldsSeq(destroyed) {
		i.Destroyed = append(i.Destroyed, Loss{Kind: "site", ID: id, Bytes: 7})
	}
	return i
}

// both moves a tenant and interrupts an instance.
var both = Impact{Affected: []Thing{
	{Kind: "tenant", ID: "t-1", Class: Moves}, {Kind: "instance", ID: "i-1", Class: Interrupts},
}}

func TestTheClassIsThatOfWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		declared            Class
		affected, destroyed string
		want                Class
		digest              bool
	}{
		{"destroys", "", "", "none", false},
		{"destroys", "t-1", "", "interrupts", true},
		{"destroys", "t-1", "t-1", "destroys", true},
		{"interrupts", "", "t-1", "destroys", true},
		{"interrupts", "", "", "none", false},
		{"interrupts", "t-1", "", "interrupts", true},
		{"moves", "t-1", "", "moves", false},
		{"moves", "", "", "none", false},
		{"reveals", "", "", "reveals", false},
		{"", "", "", "none", false},
	} {
		c := &Change{Operation: "DELETE /v1/servers/app-1", Bound: Destroys, At: shown, DryRun: true}
		require.NoError(t, Demand(With(context.Background(), c), of(tc.declared, tc.affected, tc.destroyed)))
		require.Equal(t, tc.want, c.Impact.Class, "%+v", tc)
		require.Equal(t, tc.digest, c.Impact.Digest != "", "%+v", tc)
	}
}

func TestNoChangeExceedsItsBound(t *testing.T) {
	t.Parallel()
	for _, bound := range []Class{None, Reveals, Moves, Interrupts} {
		ctx := With(context.Background(), &Change{Operation: "POST /x", Bound: bound, At: shown})
		require.ErrorContains(t, Demand(ctx, of(Destroys, "", "t-1")), "may do at most: "+string(bound))
	}
}

// TestAnAcceptanceIncludesAtMostWhatWasShown: everything that the impact contains now was in the accepted one, of the
// same operation on the same object, within 15 minutes.
func TestAnAcceptanceIncludesAtMostWhatWasShown(t *testing.T) {
	t.Parallel()
	const operation = "DELETE /v1/servers/app-1"
	for name, tc := range map[string]struct {
		now       Impact
		operation string
		later     time.Duration
		ok        bool
	}{
		"the same":            {of(Destroys, "t-1 t-2 t-3", "t-1 t-2"), operation, 0, true},
		"one tenant less":     {of(Destroys, "t-1 t-3", "t-1"), operation, 0, true},
		"nothing destroyed":   {of(Destroys, "t-1 t-2 t-3", ""), operation, 0, true},
		"other figures":       {Impact{Class: Destroys, Destroyed: []Loss{{Kind: "site", ID: "t-1", Name: "renamed", Bytes: 9}}}, operation, 0, true},
		"one tenant more":     {of(Destroys, "t-1 t-2 t-3 t-4", "t-1 t-2"), operation, 0, false},
		"one site more":       {of(Destroys, "t-1 t-2 t-3", "t-1 t-2 t-3"), operation, 0, false},
		"another tenant":      {of(Destroys, "t-9", ""), operation, 0, false},
		"another server":      {of(Destroys, "t-1", ""), "DELETE /v1/servers/app-2", 0, false},
		"another operation":   {of(Destroys, "t-1", ""), "POST /v1/servers/app-1/lost", 0, false},
		"after 15 minutes":    {of(Destroys, "t-1", ""), operation, 15 * time.Minute, true},
		"a second after them": {of(Destroys, "t-1", ""), operation, 15*time.Minute + time.Second, false},
		"from a clock ahead":  {of(Destroys, "t-1", ""), operation, -time.Minute, true},
		"from the next day":   {of(Destroys, "t-1", ""), operation, -24 * time.Hour, false},
	} {
		digest := of(Destroys, "t-1 t-2 t-3", "t-1 t-2").digest(operation, shown.Unix())
		c := &Change{Operation: tc.operation, Bound: Destroys, Accepted: digest, At: shown.Add(tc.later)}
		err := Demand(With(context.Background(), c), tc.now)
		require.Equal(t, tc.ok, err == nil, "%s: %v", name, err)
		if err != nil {
			require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(err), name)
		}
	}
}

func TestADigestIsRefusedUnlessItIsWhole(t *testing.T) {
	t.Parallel()
	i := of(Interrupts, "t-1 t-2", "")
	whole := i.digest("POST /x", shown.Unix())
	require.True(t, i.accepted("POST /x", whole, shown))
	later := strings.Replace(whole, whole[:10], "1795770001", 1)
	for _, digest := range []string{"", "-", "1", whole[:10] + "-", whole[:len(whole)-4], "x" + whole, whole + "=", later} {
		require.False(t, i.accepted("POST /x", digest, shown), digest)
	}
	require.LessOrEqual(t, len(of(Destroys, strings.Repeat("t-1 ", 9), "t-1").digest("POST /x", shown.Unix())), 24, "an id is in it once")
}

func TestChangesWithoutACallerHaveNoAcceptance(t *testing.T) {
	t.Parallel()
	require.NoError(t, Demand(By(context.Background(), "retention"), of(Destroys, "t-1", "t-1")), "a policy accepted it")
	require.NoError(t, Demand(context.Background(), of(Destroys, "", "")))
	err := Demand(context.Background(), of(Destroys, "t-1", ""))
	require.Equal(t, prego.CodeImpactNotAccepted, prego.CodeOf(err))
}

func TestADryRunNeedsNoAcceptance(t *testing.T) {
	t.Parallel()
	c := &Change{Operation: "POST /x", Bound: Destroys, At: shown, DryRun: true}
	ctx := With(context.Background(), c)
	require.NoError(t, Demand(ctx, of(Destroys, "t-1", "t-1")))
	require.NotEmpty(t, c.Impact.Digest)
	require.True(t, Trying(ctx))
	require.False(t, Trying(context.Background()))
}

func TestASummaryNamesWhatIsAffected(t *testing.T) {
	t.Parallel()
	for want, i := range map[string]Impact{
		"affects nothing": {},
		"destroys site t-1, interrupts 2 tenants (name of t-1, name of t-2)":                      of(Destroys, "t-1 t-2", "t-1"),
		"interrupts 6 tenants (name of a, name of b, name of c, name of d, name of e and 1 more)": of(Interrupts, "a b c d e f", ""),
		"moves tenant name of t-1": of(Moves, "t-1", ""),
		"interrupts 2 addresses (192.0.2.1, 192.0.2.2)": {Affected: []Thing{
			{Kind: "address", ID: "192.0.2.1", Class: Interrupts},
			{Kind: "address", ID: "192.0.2.2", Class: Interrupts},
		}},
		"interrupts instance i-1, moves tenant t-1": both,
	} {
		require.Equal(t, want, i.Summary())
	}
}

// TestWhatMovesNeedsNoAcceptance: of a server that is emptied, only what stops is accepted.
func TestWhatMovesNeedsNoAcceptance(t *testing.T) {
	t.Parallel()
	both := Impact{Affected: slices.Clone(both.Affected)}
	require.Equal(t, Interrupts, both.class())
	digest := both.digest("POST /x", shown.Unix())
	require.Equal(t, of(Interrupts, "i-1", "").digest("POST /x", shown.Unix()), digest)
	both.Affected[0].ID = "t-2"
	require.True(t, both.accepted("POST /x", digest, shown), "another tenant moves")
	both.Affected[0].Class = Interrupts
	require.False(t, both.accepted("POST /x", digest, shown), "it is interrupted")
}

// TestALargeImpactHasOneSum, since it would not fit into a header. It is accepted as a whole.
func TestALargeImpactHasOneSum(t *testing.T) {
	t.Parallel()
	var ids strings.Builder
	for n := range mostSums {
		fmt.Fprintf(&ids, "t-%d ", n)
	}
	most, more := of(Interrupts, ids.String(), ""), of(Interrupts, ids.String()+"one", "")
	require.Less(t, len(most.digest("POST /x", shown.Unix())), 6<<10)
	digest := more.digest("POST /x", shown.Unix())
	require.Less(t, len(digest), 24)
	require.True(t, more.accepted("POST /x", digest, shown))
	require.False(t, most.accepted("POST /x", digest, shown))
	require.False(t, of(Interrupts, ids.String()+"two", "").accepted("POST /x", digest, shown))
	require.False(t, more.accepted("POST /x", digest, shown.Add(time.Hour)))
}

// TestBeyondIsWhatNobodyAccepted: ids and what happens to them, and the number of a group's instances; no figures.
func TestBeyondIsWhatNobodyAccepted(t *testing.T) {
	t.Parallel()
	instances := func(ids ...string) (i Impact) {
		for _, id := range ids {
			i.Affected = append(i.Affected, Thing{Kind: "instance", ID: id, Name: "web", OrgID: "acme", Class: Interrupts})
		}
		return i
	}
	other := instances("i-1")
	other.Affected[0].OrgID = "other"
	for name, tc := range map[string]struct {
		now, accepted Impact
		beyond        string
	}{
		"the same":                      {of(Destroys, "t-1 t-2", "t-1"), of(Destroys, "t-1 t-2", "t-1"), "affects nothing"},
		"less":                          {of(Interrupts, "t-2", ""), of(Destroys, "t-1 t-2", "t-1"), "affects nothing"},
		"what moves needs no agreement": {of(Moves, "t-1", ""), Impact{}, "affects nothing"},
		"destroying includes the rest":  {of(Interrupts, "t-1", ""), of(Destroys, "", "t-1"), "affects nothing"},
		"a tenant more":                 {of(Interrupts, "t-1 t-2", ""), of(Interrupts, "t-1", ""), "interrupts tenant name of t-2"},
		"moving is not interrupting":    {of(Interrupts, "t-1", ""), of(Moves, "t-1", ""), "interrupts tenant name of t-1"},
		"nor interrupting destroying":   {of(Destroys, "t-1", "t-1"), of(Interrupts, "t-1", ""), "destroys site t-1"},
		"another instance of a group":   {instances("i-2"), instances("i-1"), "affects nothing"},
		"one more instance":             {instances("i-2", "i-3"), instances("i-1"), "interrupts instance web"},
		"a group of another org":        {instances("i-1"), other, "interrupts instance web"},
	} {
		require.Equal(t, tc.beyond, tc.now.Beyond(tc.accepted).Summary(), name)
	}
}
