package access

import (
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
)

// Account is a service account: a program that calls the API with tokens.
type Account struct {
	PrincipalID string
	Name        string
	OrgID       prego.OrgID // "" is the installation's
	CreatedBy   string
	CreatedAt   time.Time
	DisabledAt  *time.Time // from then on nothing of it is accepted
}

// Person is a user, as an issuer names them.
type Person struct {
	PrincipalID string
	Issuer      string
	Subject     string
	Name        string
	CreatedBy   string
	CreatedAt   time.Time
	DisabledAt  *time.Time
}

// Granted is a grant with its principal, for lists.
type Granted struct {
	GrantID     string
	PrincipalID string
	Kind        PrincipalKind
	Issuer      string
	Subject     string
	Name        string // of the principal
	AccessRole  string
	OrgID       prego.OrgID // "" is the installation
	CreatedBy   string
	CreatedAt   time.Time
}

// Issued is a token or a login without its secret, for lists.
type Issued struct {
	ID            string
	Name          string
	Prefix        string // the beginning of the secret
	PrincipalID   string
	PrincipalName string
	OrgID         prego.OrgID // of the principal
	ParentID      string      // what it was narrowed from; of a login, what it was made with
	Caveats       Caveats
	Address       string // of a login: where it was made
	CreatedBy     string
	CreatedAt     time.Time
	ExpiresAt     time.Time
	LastUsedAt    *time.Time // to the minute
	RevokedAt     *time.Time
	RevokedBy     string
}

// CustomRole is an access role that operators made.
type CustomRole struct {
	Name         string
	Description  string
	Capabilities []string // patterns
	UpdatedBy    string
	UpdatedAt    time.Time
}

// OwnerRole is the access role whose last grant to an enabled user or service account can't be taken: without it
// no caller could grant anything on the org or, for "", on the installation.
func OwnerRole(org prego.OrgID) string {
	if org == "" {
		return "operator"
	}
	return "org_owner"
}

// covers reports whether the principal has a capability in an org, "" for the installation, and with below in all orgs
// below it, also in those that don't exist yet.
func (p Principal) covers(c Capability, org prego.OrgID, below bool) bool {
	return slices.ContainsFunc(p.Grants, func(g Grant) bool {
		return g.Reach(c).Includes(org) && (!below || g.OrgID != org || g.role().allowsAbove(c))
	})
}

// MayGrant refuses a grant, or what has the access of one such as a token of its principal, to callers without all that
// it gives: each capability of its access role, where the grant has it. A limited token gives nothing to others,
// because they would not have its limits. all are the capabilities that exist.
func MayGrant(p Principal, g Grant, all []Capability) error {
	if err := p.MayGiveAccess(); err != nil {
		return err
	}
	r := g.role()
	var missing []string
	for _, c := range slices.Concat(all, []Capability{Everything}) {
		below := r.allowsAbove(c)
		if (r.allows(c) || below) && !p.covers(c, g.OrgID, below) {
			missing = append(missing, string(c))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	const few = 3
	text := strings.Join(missing[:min(few, len(missing))], ", ")
	if len(missing) > few {
		text += ", …"
	}
	return prego.Errorf(prego.CodeForbidden, "the access role %s includes capabilities that you do not have there yourself: %s", g.Role, text)
}

// MayGiveAccess refuses whatever gives access to others if the principal acts with less than its grants allow.
func (p Principal) MayGiveAccess() error {
	if p.Narrowed || len(p.Caveats) > 0 {
		return prego.Errorf(prego.CodeForbidden, "this token is limited by caveats or narrowed from another one: it can't give access to others")
	}
	return nil
}

// Heirs are the access roles that the principal gets on an org that it creates below a parent, "" for none: those
// of its grants that let it create the org, and that allow less above an org than in it.
func (p Principal) Heirs(parent prego.OrgID) (names []string) {
	for _, g := range p.Grants {
		if r := g.role(); r.Above != nil && g.Reach("org:create").Includes(parent) {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// CheckPatterns refuses patterns of a custom access role that include no capability that exists.
func CheckPatterns(patterns []string, all []Capability) error {
	for _, p := range patterns {
		if p != Everything && !slices.ContainsFunc(all, func(c Capability) bool { return includes(p, c) }) {
			return prego.Invalid("capabilities", "has "+p+", which includes no capability: the page Access of the reference lists them all")
		}
	}
	return nil
}
