// Package access is who may do what: capabilities, access roles, grants and the decision from them. It is pure.
package access

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
)

// Capability is what an operation requires, a thing and a verb: "tenant:create". The contract declares one for each
// operation (x-capability).
type Capability string

// Everything is the pattern of every capability.
const Everything = "*"

// includes reports whether a pattern of an access role includes a capability: it is the capability itself, "*", all
// verbs of a thing ("tenant:*") or a verb of all things ("*:read").
func includes(pattern string, c Capability) bool {
	if c == Everything {
		return pattern == Everything
	}
	if pattern == Everything || pattern == string(c) {
		return true
	}
	thing, verb, ok := strings.Cut(pattern, ":")
	of, what, _ := strings.Cut(string(c), ":")
	return ok && (thing == "*" || thing == of) && (verb == "*" || verb == what)
}

// PrincipalKind is what a principal is.
type PrincipalKind string

// The kinds of principals.
const (
	User           PrincipalKind = "user"
	ServiceAccount PrincipalKind = "service_account"
	Group          PrincipalKind = "group" // of an issuer; it has grants and no credentials
)

// Grant gives an access role to a principal: on the installation, or on an org and all orgs below it.
type Grant struct {
	GrantID string
	Role    string        // the name of the access role
	Custom  []string      // the patterns of a custom access role; nil for a built-in one
	OrgID   prego.OrgID   // "" is the installation
	Orgs    []prego.OrgID // the org and all below it
}

// role is the access role that the grant gives.
func (g Grant) role() Role {
	if r, ok := roles[g.Role]; ok {
		return r
	}
	return Role{Name: g.Role, Patterns: g.Custom}
}

// Principal is an authenticated caller.
type Principal struct {
	PrincipalID string
	Kind        PrincipalKind
	Issuer      string // who vouches for a user, and the user's name there
	Subject     string
	Name        string // for people; not unique
	// CredentialID is the token or login that the request was made with.
	CredentialID   string
	CredentialName string
	Login          bool      // the credential is a login
	Expires        time.Time // the credential's end
	FreshUntil     time.Time // of a login: until then, destructive operations need no new one
	Narrowed       bool      // the credential, or one that it comes from, is a token that was narrowed
	Grants         []Grant
	Caveats        []Caveats // of the credential and of those that it was narrowed from; all apply
}

// Operator reports whether the principal may do everything everywhere.
func (p Principal) Operator() bool { return p.Reach(Everything).Everywhere }

// SharesProgress reports whether the credential only follows the progress of a tenant, so that it may be in a URL.
func (p Principal) SharesProgress() bool {
	return slices.ContainsFunc(p.Caveats, func(c Caveats) bool { return c.ProgressOf != "" })
}

// Roles are the names of the access roles that it was granted, sorted.
func (p Principal) Roles() (names []string) {
	for _, g := range p.Grants {
		names = append(names, g.Role)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// By names the principal in texts and records for operators. Only its id is unique.
func (p Principal) By() string { return p.Name }

// Reach is where a caller may do what a request asks for: everywhere, or in some orgs.
type Reach struct {
	Everywhere bool
	Orgs       []prego.OrgID // sorted, without duplicates
	// ReadOnly is that of a request that changes nothing.
	ReadOnly bool
}

// Includes reports whether an org is in reach. "" is the installation.
func (r Reach) Includes(org prego.OrgID) bool {
	if r.Everywhere {
		return true
	}
	_, found := slices.BinarySearch(r.Orgs, org)
	return found && org != ""
}

// None reports whether nothing is in reach.
func (r Reach) None() bool { return !r.Everywhere && len(r.Orgs) == 0 }

type reachKey struct{}

// WithReach returns a context whose statements see and change only what is in reach.
func WithReach(ctx context.Context, r Reach) context.Context {
	return context.WithValue(ctx, reachKey{}, r)
}

// ReachOf returns the reach of a request, false for the control plane's own work.
func ReachOf(ctx context.Context) (Reach, bool) {
	r, ok := ctx.Value(reachKey{}).(Reach)
	return r, ok
}

// OfCustomer reports whether a request may see and change only what belongs to some orgs.
func OfCustomer(ctx context.Context) bool {
	r, ok := ReachOf(ctx)
	return ok && !r.Everywhere
}

// Reach is where the principal has a capability, within the orgs of its credential's caveats.
func (p Principal) Reach(c Capability) Reach {
	out := p.granted(c)
	for _, limit := range p.Caveats {
		out = limit.Narrow(out)
	}
	return out
}

// Reveals reports whether the principal sees, everywhere, what a capability shows of secrets or of what customers
// wrote.
func (p Principal) Reveals(c Capability) bool {
	return p.Reach(c).Everywhere && !slices.ContainsFunc(p.Caveats, func(c Caveats) bool { return c.RevealsNothing })
}

// Reach is where the grant gives a capability.
func (g Grant) Reach(c Capability) (out Reach) {
	r := g.role()
	if g.OrgID == "" {
		return Reach{Everywhere: r.allowsAbove(c)}
	}
	for _, org := range g.Orgs {
		if org == g.OrgID && r.allows(c) || org != g.OrgID && r.allowsAbove(c) {
			out.Orgs = append(out.Orgs, org)
		}
	}
	slices.Sort(out.Orgs)
	return out
}

// granted is where the principal's grants give it a capability.
func (p Principal) granted(c Capability) Reach {
	var out Reach
	for _, g := range p.Grants {
		one := g.Reach(c)
		out.Everywhere, out.Orgs = out.Everywhere || one.Everywhere, append(out.Orgs, one.Orgs...)
	}
	slices.Sort(out.Orgs)
	out.Orgs = slices.Compact(out.Orgs)
	if out.Everywhere {
		out.Orgs = nil
	}
	return out
}

// Reason is what a decision follows from.
type Reason string

// The reasons of decisions.
const (
	ReasonGranted      Reason = "granted"
	ReasonNoCapability Reason = "no_capability" // no grant includes the capability
	ReasonOtherOrg     Reason = "other_org"     // a grant includes it, for other orgs
	ReasonCaveat       Reason = "caveat"        // the token is limited
)

// Decision is whether a principal may do something, and why.
type Decision struct {
	Allowed    bool
	Reason     Reason
	Capability Capability
	OrgID      prego.OrgID
	// Grants are those that allow it or, if none does, those that include the capability elsewhere.
	Grants []Grant
}

// Decide decides whether a principal may do what needs a capability in an org, "" for the installation.
func Decide(p Principal, c Capability, org prego.OrgID) Decision {
	d := Decision{Capability: c, OrgID: org, Reason: ReasonNoCapability}
	var elsewhere []Grant
	for _, g := range p.Grants {
		one := g.Reach(c)
		switch {
		case one.Includes(org):
			d.Grants = append(d.Grants, g)
		case !one.None():
			elsewhere = append(elsewhere, g)
		}
	}
	switch {
	case len(d.Grants) > 0 && !p.Reach(c).Includes(org):
		d.Reason = ReasonCaveat
	case len(d.Grants) > 0:
		d.Allowed, d.Reason = true, ReasonGranted
	case len(elsewhere) > 0:
		d.Reason, d.Grants = ReasonOtherOrg, elsewhere
	}
	return d
}
