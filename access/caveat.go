package access

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
)

// Caveats limit what a token may do, below the access of its principal. An absent one limits nothing.
type Caveats struct {
	Operations      []string      `json:"operations,omitempty"`    // operationIds
	Orgs            []prego.OrgID `json:"orgs,omitempty"`          // these, not those below them
	MonthlyCents    *int64        `json:"monthly_cents,omitempty"` // at most so much more a month, over the token's life
	SecondsDown     *int64        `json:"seconds_down,omitempty"`  // at most so many seconds of unavailability, over the token's life
	DestroysNothing bool          `json:"destroys_nothing,omitempty"`
	RevealsNothing  bool          `json:"reveals_nothing,omitempty"`
	DryRunOnly      bool          `json:"dry_run_only,omitempty"`
	// ProgressOf is the only tenant whose progress it follows. Such a token may be in a URL.
	ProgressOf prego.TenantID `json:"progress_of,omitempty"`
}

// MostShared is how long a token with the caveat progress_of is valid at most: URLs are kept in histories and logs.
const MostShared = 2 * time.Hour

// ReadProgress is the capability that following a progress requires.
const ReadProgress Capability = "progress:read"

// The names of caveats.
const (
	CaveatOperations      = "operations"
	CaveatOrgs            = "orgs"
	CaveatMonthlyCents    = "monthly_cents"
	CaveatSecondsDown     = "seconds_down"
	CaveatDestroysNothing = "destroys_nothing"
	CaveatRevealsNothing  = "reveals_nothing"
	CaveatDryRunOnly      = "dry_run_only"
	CaveatProgressOf      = "progress_of"
)

// mostListed bounds the operations and orgs of a token: its row is read for each of its requests.
const mostListed = 200

// Names are those of the caveats that are set.
func (c Caveats) Names() (out []string) {
	for _, n := range []struct {
		name string
		set  bool
	}{
		{CaveatOperations, c.Operations != nil},
		{CaveatOrgs, c.Orgs != nil},
		{CaveatMonthlyCents, c.MonthlyCents != nil},
		{CaveatSecondsDown, c.SecondsDown != nil},
		{CaveatDestroysNothing, c.DestroysNothing},
		{CaveatRevealsNothing, c.RevealsNothing},
		{CaveatDryRunOnly, c.DryRunOnly},
		{CaveatProgressOf, c.ProgressOf != ""},
	} {
		if n.set {
			out = append(out, n.name)
		}
	}
	return out
}

// Normalize checks the caveats of a new token, and sorts their lists. Whether the orgs exist is for the caller to
// check. An empty list would be lost in JSON, and limit nothing.
func (c *Caveats) Normalize(isOperation func(id string) bool) error {
	for _, list := range []struct {
		field string
		n     int
		empty bool
	}{
		{"caveats.operations", len(c.Operations), c.Operations != nil && len(c.Operations) == 0},
		{"caveats.orgs", len(c.Orgs), c.Orgs != nil && len(c.Orgs) == 0},
	} {
		if list.empty || list.n > mostListed {
			return prego.Invalid(list.field, fmt.Sprintf("must have 1 to %d items", mostListed))
		}
	}
	for _, id := range c.Operations {
		if !isOperation(id) {
			return prego.Invalid("caveats.operations", strconv.Quote(id)+" is not an operation: the reference lists their ids")
		}
	}
	for field, most := range map[string]*int64{"caveats.monthly_cents": c.MonthlyCents, "caveats.seconds_down": c.SecondsDown} {
		if most != nil && *most < 0 {
			return prego.Invalid(field, "must be at least 0")
		}
	}
	slices.Sort(c.Operations)
	c.Operations = slices.Compact(c.Operations)
	slices.Sort(c.Orgs)
	c.Orgs = slices.Compact(c.Orgs)
	return nil
}

// Act is what a request does, as far as its operation states that.
type Act struct {
	Operation  string
	Capability Capability     // "" if it is about the caller
	Tenant     prego.TenantID // in the request's path, "" for none
	Bound      impact.Class   // the worst that it may do; "" if it changes nothing
	Spends     Spends
	// MovesLater reports that a policy may take something out of service later because of it: for how long is unknown.
	MovesLater bool
	DryRun     bool
}

// Spends is what is known of the monthly cost that an operation causes.
type Spends string

// What an operation spends.
const (
	SpendsUnknown Spends = ""        // what it orders, or makes others order, has no known price
	SpendsNothing Spends = "nothing" // it orders nothing
	SpendsPrice   Spends = "price"   // its impact states the price
)

func (a Act) verb() string {
	_, verb, _ := strings.Cut(string(a.Capability), ":")
	return verb
}

// runsCommands reports whether it runs what its caller writes: that may destroy and reveal anything there.
func (a Act) runsCommands() bool { return a.verb() == "exec" }

// reveals reports whether its answer, or what it makes, shows secrets or what customers wrote. A secret for the
// caller's own access, which keeps its caveats, reveals nothing to it.
func (a Act) reveals() bool {
	return a.Bound == impact.Reveals && a.Capability != "" || slices.Contains([]string{"reveal", "exec", "logs", "clone", "download"}, a.verb())
}

// GivesAccess reports whether it makes a credential or a grant that would not have the caller's caveats. A token is
// narrowed without a capability, and what is narrowed keeps them.
func (a Act) GivesAccess() bool {
	thing, verb, _ := strings.Cut(string(a.Capability), ":")
	things := []string{"access", "access_role", "service_account", "token", "invitation", "user"}
	return a.Bound != "" && slices.Contains(things, thing) &&
		!slices.Contains([]string{"revoke", "delete", "disable", "end"}, verb)
}

// Refusal is a request that a caveat of its token refuses.
type Refusal struct {
	Caveat string
	Text   string
	Impact *impact.Impact // if the impact is the reason
}

func refuse(caveat, format string, args ...any) *Refusal {
	return &Refusal{Caveat: caveat, Text: "the token's caveat " + caveat + ": " + fmt.Sprintf(format, args...)}
}

func (r *Refusal) Error() string { return string(prego.CodeCaveat) + ": " + r.Text }

// Unwrap makes it a coded error.
func (r *Refusal) Unwrap() error { return prego.Errorf(prego.CodeCaveat, "%s", r.Text) }

// RefuseAct refuses what needs no look at rows, nil if nothing does.
func (c Caveats) RefuseAct(a Act) *Refusal {
	asksAboutItself := a.Bound == "" && a.Capability == ""
	switch {
	case c.ProgressOf != "" && (a.Capability != ReadProgress || a.Tenant != c.ProgressOf):
		return refuse(CaveatProgressOf, "%s is not the progress of %s", a.Operation, c.ProgressOf)
	case c.Operations != nil && !asksAboutItself && !slices.Contains(c.Operations, a.Operation):
		return refuse(CaveatOperations, "%s is not one of its operations: %s", a.Operation, listed(c.Operations))
	case c.DryRunOnly && a.Bound != "" && a.Capability != "" && !a.DryRun: // its own access may be narrowed
		return refuse(CaveatDryRunOnly, "%s would be carried out; request it with dry_run", a.Operation)
	case c.RevealsNothing && a.reveals():
		return refuse(CaveatRevealsNothing, "%s shows secrets, or what customers wrote", a.Operation)
	case c.DestroysNothing && a.runsCommands():
		return refuse(CaveatDestroysNothing, "%s runs a command, which may destroy anything", a.Operation)
	case c.SecondsDown != nil && a.runsCommands():
		return refuse(CaveatSecondsDown, "%s runs a command, which may stop anything", a.Operation)
	case c.SecondsDown != nil && a.MovesLater:
		return refuse(CaveatSecondsDown, "for how long a policy takes something out of service because of %s is unknown", a.Operation)
	case c.MonthlyCents != nil && a.Bound != "" && a.Spends == SpendsUnknown:
		return refuse(CaveatMonthlyCents, "what %s costs a month is unknown", a.Operation)
	case a.GivesAccess() && len(c.Names()) > 0:
		return refuse(c.Names()[0], "%s gives access without the caveat; a token with caveats can only be narrowed", a.Operation)
	}
	return nil
}

// RefuseImpact refuses a change by its impact, nil if nothing does. Budgets are compared when they are spent.
func (c Caveats) RefuseImpact(a Act, i impact.Impact) *Refusal {
	switch {
	case c.DestroysNothing && len(i.Destroyed) > 0:
		return of(CaveatDestroysNothing, i)
	case c.SecondsDown != nil && len(i.Affected) > 0 && i.Seconds == 0:
		return of(CaveatSecondsDown, i)
	case c.MonthlyCents != nil && a.Spends == SpendsPrice && i.MonthlyCents == 0:
		return of(CaveatMonthlyCents, i)
	}
	return nil
}

// of is a refusal because of an impact.
func of(caveat string, i impact.Impact) (r *Refusal) {
	switch caveat {
	case CaveatDestroysNothing:
		r = refuse(caveat, "this destroys %s", i.Lost())
	case CaveatSecondsDown:
		r = refuse(caveat, "this %s, and for how long is unknown", i.Summary())
	default:
		r = refuse(caveat, "what this costs a month is unknown")
	}
	r.Impact = &i
	return r
}

// Seen is a refusal as a caller may see it: its text names only what the caller may see (impact.Seen).
func (r *Refusal) Seen(by func(prego.OrgID) bool) *Refusal {
	if r.Impact == nil {
		return r
	}
	return of(r.Caveat, r.Impact.Seen(by))
}

// RefuseBound refuses a change whose impact was not computed by the worst that its operation may do.
func (c Caveats) RefuseBound(a Act) *Refusal {
	switch {
	case c.DestroysNothing && a.Bound == impact.Destroys:
		return refuse(CaveatDestroysNothing, "%s may destroy", a.Operation)
	case c.SecondsDown != nil && a.Bound.Exceeds(impact.Reveals):
		return refuse(CaveatSecondsDown, "for how long %s takes something out of service is unknown", a.Operation)
	case c.MonthlyCents != nil && a.Spends == SpendsPrice:
		return refuse(CaveatMonthlyCents, "what %s costs a month is unknown", a.Operation)
	}
	return nil
}

// OtherOrgs refuses an operation of which nothing is in the orgs of caveats.
func OtherOrgs(operation string, all []Caveats) *Refusal {
	var orgs []string
	for _, c := range all {
		for _, org := range c.Orgs {
			orgs = append(orgs, string(org))
		}
	}
	return refuse(CaveatOrgs, "%s is about nothing that belongs to its orgs: %s", operation, listed(orgs))
}

// Overspent refuses what is more than the rest of a budget.
func Overspent(caveat string, wanted, spent, most int64) *Refusal {
	rest := max(0, most-spent)
	if caveat == CaveatMonthlyCents {
		return refuse(caveat, "this costs %s a month, and %s of %s are left", money(wanted), money(rest), money(most))
	}
	return refuse(caveat, "this takes something out of service for %d seconds, and %d of %d are left", wanted, rest, most)
}

func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

// SecondsDown is what an impact takes of the budget for unavailability.
func SecondsDown(i impact.Impact) int64 {
	if len(i.Affected) == 0 {
		return 0
	}
	return int64(i.Seconds)
}

func listed(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Narrow is a reach within the orgs of caveats.
func (c Caveats) Narrow(r Reach) Reach {
	if c.Orgs == nil {
		return r
	}
	out := Reach{ReadOnly: r.ReadOnly}
	for _, org := range c.Orgs {
		if r.Includes(org) {
			out.Orgs = append(out.Orgs, org)
		}
	}
	slices.Sort(out.Orgs)
	out.Orgs = slices.Compact(out.Orgs)
	return out
}

// Limits are the caveats that a request is subject to: those of its credential and of all that it was narrowed from.
type Limits struct {
	Act

	CredentialID string
	Caveats      []Caveats
	// Refused is what refuses the change that a dry run has shown.
	Refused *Refusal
}

// first applies a rule to all caveats. A dry run only notes what is refused.
func (l *Limits) first(rule func(Caveats) *Refusal) error {
	for _, c := range l.Caveats {
		if r := rule(c); r != nil {
			return l.Refuse(r)
		}
	}
	return nil
}

// Refuse returns a refusal as an error, or notes it for the answer of a dry run.
func (l *Limits) Refuse(r *Refusal) error {
	if !l.DryRun {
		return r
	}
	if l.Refused == nil {
		l.Refused = r
	}
	return nil
}

// RefuseAct refuses the request by what it asks for. A dry run is limited to the same operations.
func (l *Limits) RefuseAct() error {
	for _, c := range l.Caveats {
		if r := c.RefuseAct(l.Act); r != nil && (r.Caveat == CaveatOperations || r.Caveat == CaveatProgressOf) {
			return r
		}
	}
	return l.first(func(c Caveats) *Refusal { return c.RefuseAct(l.Act) })
}

// RefuseImpact refuses the request by the impact of its change.
func (l *Limits) RefuseImpact(i impact.Impact) error {
	return l.first(func(c Caveats) *Refusal { return c.RefuseImpact(l.Act, i) })
}

// RefuseBound refuses the request by the worst that its operation may do.
func (l *Limits) RefuseBound() error {
	return l.first(func(c Caveats) *Refusal { return c.RefuseBound(l.Act) })
}

// Budgets reports whether a caveat counts what is spent.
func (l *Limits) Budgets() bool {
	return slices.ContainsFunc(l.Caveats, func(c Caveats) bool { return c.MonthlyCents != nil || c.SecondsDown != nil })
}

type limitsKey struct{}

// WithLimits returns a context whose changes are compared with caveats.
func WithLimits(ctx context.Context, l *Limits) context.Context {
	return context.WithValue(ctx, limitsKey{}, l)
}

// LimitsOf returns the limits of a context, nil if there are none.
func LimitsOf(ctx context.Context) *Limits {
	l, _ := ctx.Value(limitsKey{}).(*Limits)
	return l
}
