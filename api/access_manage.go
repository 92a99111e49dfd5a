package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/store"
)

// decidedByHandlers are capabilities that handlers require, besides or instead of their operations.
var decidedByHandlers = []access.Capability{
	"command:logs", "login:read", "login:revoke", "org:change", "org:create", "progress:share",
	"token:read", "token:revoke",
}

// capabilities are all that exist, sorted.
func (k *contract) capabilities() []access.Capability {
	all := slices.Clone(decidedByHandlers)
	for _, op := range k.ops {
		if op.capability != "" {
			all = append(all, op.capability)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// mayGrant decides what the caller may give to others.
func (a *API) mayGrant(c echo.Context) func(access.Grant) error {
	p, all := caller(c), a.contract.capabilities()
	return func(g access.Grant) error { return access.MayGrant(p, g, all) }
}

// ListServiceAccounts shows a page of service accounts.
func (a *API) ListServiceAccounts(c echo.Context, _ ListServiceAccountsParams) error {
	return list(c, "service_accounts", a.d.Store.ListAccounts, viewOf[ServiceAccount])
}

// CreateServiceAccount creates a service account.
func (a *API) CreateServiceAccount(c echo.Context, _ CreateServiceAccountParams) error {
	var in struct {
		Name  string      `json:"name"`
		OrgID prego.OrgID `json:"org_id"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := wholeInstallation(c, in.OrgID); err != nil {
		return err
	}
	out, created, err := a.d.Store.CreateAccount(c.Request().Context(), access.Account{
		PrincipalID: newID("sa-"), Name: in.Name, OrgID: in.OrgID, CreatedBy: caller(c).By(),
	})
	return answer(c, madeOrMet(created), out, err, viewOf[ServiceAccount])
}

// wholeInstallation refuses a body that names no org to callers without the capability on the installation.
func wholeInstallation(c echo.Context, org prego.OrgID) error {
	if reach, ok := access.ReachOf(c.Request().Context()); org == "" && ok && !reach.Everywhere {
		return &prego.Error{Code: prego.CodeForbidden, Field: "org_id", Message: "must name an org: without one this requires the capability on the installation"}
	}
	return nil
}

// GetServiceAccount shows a service account.
func (a *API) GetServiceAccount(c echo.Context, id ServiceAccountInPath) error {
	return show(c, a.d.Store.GetAccount, id, viewOf[ServiceAccount])
}

// DisableServiceAccount ends a service account.
func (a *API) DisableServiceAccount(c echo.Context, id ServiceAccountInPath, _ DisableServiceAccountParams) error {
	if err := a.d.Store.DisablePrincipal(c.Request().Context(), id, access.ServiceAccount); err != nil {
		return err
	}
	return a.GetServiceAccount(c, id)
}

func tokenView(t access.Issued) Token {
	out := viewOf[Token](t)
	out.TokenId = t.ID
	return out
}

// notOwn requires a capability, and what caveats allow of it, for what is not the caller's own.
func (a *API) notOwn(c echo.Context, required access.Capability) error {
	ctx := c.Request().Context()
	reach := caller(c).Reach(required)
	if reach.None() {
		return prego.Errorf(prego.CodeForbidden, "this requires the capability %s, which no grant of yours includes", required)
	}
	if l := access.LimitsOf(ctx); l != nil {
		l.Capability = required
		if err := l.RefuseAct(); err != nil {
			return err
		}
	}
	reach.ReadOnly = c.Request().Method == http.MethodGet
	inEach(c, func(ctx context.Context) context.Context { return access.WithReach(ctx, reach) })
	return nil
}

// ListTokens shows a page of tokens: those in reach or, without a capability, those below the caller's own.
func (a *API) ListTokens(c echo.Context, _ ListTokensParams) error {
	p, read := caller(c), a.d.Store.ListTokens
	if p.Reach("token:read").None() {
		read = func(ctx context.Context, q prego.ListQuery) ([]access.Issued, string, error) {
			return a.d.Store.ListTokensBelow(ctx, p.CredentialID, q)
		}
	} else if err := a.notOwn(c, "token:read"); err != nil {
		return err
	}
	return list(c, "tokens", read, tokenView)
}

// reachToken refuses a token that is neither below the caller's own nor where it has a capability.
func (a *API) reachToken(c echo.Context, id string, required access.Capability) error {
	ctx := c.Request().Context()
	below, err := a.d.Store.TokensBelow(ctx, caller(c).CredentialID)
	if err != nil || slices.Contains(below, id) {
		return err
	}
	if err := a.notOwn(c, required); err != nil {
		return err
	}
	org, err := a.d.Store.OrgOf(ctx, "token", id)
	if reach, _ := access.ReachOf(c.Request().Context()); err == nil && !reach.Includes(org) {
		err = store.NoSuch("token", id)
	}
	return err
}

// GetToken shows a token without its secret.
func (a *API) GetToken(c echo.Context, id TokenInPath) error {
	if err := a.reachToken(c, id, "token:read"); err != nil {
		return err
	}
	return show(c, a.d.Store.GetToken, id, tokenView)
}

// newToken is a token with a new secret.
func newToken(c echo.Context, lifeSeconds int64) (secret string, out store.Credential, err error) {
	secret, err = access.NewSecret(access.Token, rand.Reader)
	return secret, store.Credential{
		CredentialID: newID("token-"), Kind: access.Token, Hash: access.SecretHash(secret), Prefix: access.SecretPrefix(secret), CreatedBy: caller(c).By(),
		ExpiresAt: time.Now().Add(time.Duration(lifeSeconds) * time.Second),
	}, err
}

// issue answers with a new token and its secret, once.
func (a *API) issue(c echo.Context, lifeSeconds int64, write func(context.Context, store.Credential) (access.Issued, error)) error {
	secret, token, err := newToken(c, lifeSeconds)
	if err != nil {
		return err
	}
	out, err := write(c.Request().Context(), token)
	if err != nil {
		return err
	}
	view := viewOf[CreatedToken](out)
	view.TokenId, view.Secret = out.ID, secret
	if of := out.Caveats.ProgressOf; of != "" {
		view.ProgressUrl = new("/v1/tenants/" + string(of) + "/progress?" + tokenInURL + "=" + secret)
	}
	return c.JSON(http.StatusCreated, view)
}

// tokenIn is the body of a request for a token.
func (a *API) tokenIn(c echo.Context) (out store.Credential, lifeSeconds int64, err error) {
	var in struct {
		Name             string         `json:"name"`
		ExpiresInSeconds int64          `json:"expires_in_seconds"`
		Caveats          access.Caveats `json:"caveats"`
	}
	if err := decode(c, &in); err != nil {
		return out, 0, err
	}
	if err := a.caveats(c.Request().Context(), &in.Caveats, caller(c)); err != nil {
		return out, 0, err
	}
	return store.Credential{Name: in.Name, Caveats: in.Caveats}, in.ExpiresInSeconds, nil
}

// named finds an operation by its id.
func (k *contract) named(id string) *operation { return k.ids[id] }

// CreateToken makes a token of a service account.
func (a *API) CreateToken(c echo.Context, id ServiceAccountInPath, _ CreateTokenParams) error {
	in, life, err := a.tokenIn(c)
	if err != nil {
		return err
	}
	return a.issue(c, life, func(ctx context.Context, t store.Credential) (access.Issued, error) {
		t.PrincipalID, t.Name, t.Caveats = id, in.Name, in.Caveats
		return a.d.Store.CreateToken(ctx, t, a.mayGrant(c))
	})
}

// NarrowToken makes a token below the caller's own credential.
func (a *API) NarrowToken(c echo.Context, _ NarrowTokenParams) error {
	in, life, err := a.tokenIn(c)
	if err != nil {
		return err
	}
	p := caller(c)
	return a.issue(c, life, func(ctx context.Context, t store.Credential) (access.Issued, error) {
		t.PrincipalID, t.ParentID, t.Name, t.Caveats = p.PrincipalID, p.CredentialID, in.Name, in.Caveats
		return a.d.Store.NarrowToken(ctx, t)
	})
}

// RevokeToken ends a token and those that come from it.
func (a *API) RevokeToken(c echo.Context, id TokenInPath, _ RevokeTokenParams) error {
	if err := a.reachToken(c, id, "token:revoke"); err != nil {
		return err
	}
	return remove(c, a.d.Store.EndCredential, id)
}

// RotateToken replaces a token.
func (a *API) RotateToken(c echo.Context, id TokenInPath, _ RotateTokenParams) error {
	in := struct {
		ExpiresInSeconds int64  `json:"expires_in_seconds"`
		OverlapSeconds   *int64 `json:"overlap_seconds"`
	}{}
	if err := decode(c, &in); err != nil {
		return err
	}
	overlap := time.Hour
	if in.OverlapSeconds != nil {
		overlap = time.Duration(*in.OverlapSeconds) * time.Second
	}
	return a.issue(c, in.ExpiresInSeconds, func(ctx context.Context, t store.Credential) (access.Issued, error) {
		return a.d.Store.RotateToken(ctx, id, t, overlap, a.mayGrant(c))
	})
}

// ListGrants shows a page of grants.
func (a *API) ListGrants(c echo.Context, _ ListGrantsParams) error {
	return list(c, "grants", a.d.Store.ListGrants, viewOf[Grant])
}

// CreateGrant gives an access role to a principal.
func (a *API) CreateGrant(c echo.Context, _ CreateGrantParams) error {
	var in struct {
		AccessRole  string               `json:"access_role"`
		OrgID       prego.OrgID          `json:"org_id"`
		PrincipalID string               `json:"principal_id"`
		Kind        access.PrincipalKind `json:"kind"`
		Issuer      string               `json:"issuer"`
		Subject     string               `json:"subject"`
		Name        string               `json:"name"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := wholeInstallation(c, in.OrgID); err != nil {
		return err
	}
	n := store.NewGrant{
		GrantID: newID("grant-"), PrincipalID: in.PrincipalID, Kind: cmp.Or(in.Kind, access.User), Issuer: in.Issuer, Subject: in.Subject,
		Name: cmp.Or(in.Name, in.Subject), AccessRole: in.AccessRole, OrgID: in.OrgID, By: caller(c).By(),
	}
	switch {
	case in.PrincipalID == "" && (in.Issuer == "" || in.Subject == ""):
		return prego.Invalid("principal_id", "must name the principal, unless issuer and subject do")
	case in.PrincipalID != "" && in.Issuer+in.Subject+in.Name+string(in.Kind) != "":
		return prego.Invalid("principal_id", "must be absent if issuer and subject name the principal")
	case in.PrincipalID == "" && n.Kind == access.Group:
		n.PrincipalID = newID("people-")
	case in.PrincipalID == "":
		n.PrincipalID = newID("usr-")
	}
	out, created, err := a.d.Store.CreateGrant(c.Request().Context(), n, a.mayGrant(c))
	return answer(c, madeOrMet(created), out, err, viewOf[Grant])
}

// DeleteGrant takes a grant.
func (a *API) DeleteGrant(c echo.Context, id GrantInPath, _ DeleteGrantParams) error {
	return noContent(c, a.d.Store.DeleteGrant(c.Request().Context(), id))
}

// ListAccessRoles shows all access roles.
func (a *API) ListAccessRoles(c echo.Context) error {
	custom, err := a.d.Store.CustomRoles(c.Request().Context())
	if err != nil {
		return err
	}
	out := AccessRoleList{AccessRoles: []AccessRole{}}
	for _, r := range access.Roles() {
		shown := AccessRole{Name: r.Name, Description: r.Description, Capabilities: r.Patterns, BuiltIn: true}
		if len(r.Except) > 0 {
			shown.Except = &r.Except
		}
		out.AccessRoles = append(out.AccessRoles, shown)
	}
	for _, r := range custom {
		out.AccessRoles = append(out.AccessRoles, viewOf[AccessRole](r))
	}
	slices.SortFunc(out.AccessRoles, func(a, b AccessRole) int { return strings.Compare(a.Name, b.Name) })
	return c.JSON(http.StatusOK, out)
}

// PutAccessRole stores a custom access role. Its holders may be anywhere, so the caller must have all of it everywhere.
func (a *API) PutAccessRole(c echo.Context, name AccessRoleInPath, _ PutAccessRoleParams) error {
	var in struct {
		Description  string   `json:"description"`
		Capabilities []string `json:"capabilities"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := customRole(name); err != nil {
		return err
	}
	if err := access.CheckPatterns(in.Capabilities, a.contract.capabilities()); err != nil {
		return err
	}
	if err := a.mayGrant(c)(access.Grant{Role: name, Custom: in.Capabilities}); err != nil {
		return err
	}
	out, err := a.d.Store.PutCustomRole(c.Request().Context(), access.CustomRole{
		Name: name, Description: in.Description, Capabilities: in.Capabilities, UpdatedBy: caller(c).By(),
	})
	return answer(c, http.StatusOK, out, err, viewOf[AccessRole])
}

func customRole(name string) error {
	if _, builtIn := access.BuiltIn(name); builtIn {
		return prego.Invalid("access_role", "is built in: choose another name for a custom access role")
	}
	return nil
}

// DeleteAccessRole deletes a custom access role.
func (a *API) DeleteAccessRole(c echo.Context, name AccessRoleInPath, _ DeleteAccessRoleParams) error {
	if err := customRole(name); err != nil {
		return err
	}
	return noContent(c, a.d.Store.DeleteCustomRole(c.Request().Context(), name))
}

// ListUsers shows a page of users with their grants.
func (a *API) ListUsers(c echo.Context, _ ListUsersParams) error {
	return list(c, "users", func(ctx context.Context, q prego.ListQuery) ([]User, string, error) {
		page, next, err := store.Persons.In(a.d.Store)(ctx, q)
		if err != nil {
			return nil, "", err
		}
		out, err := a.users(ctx, page)
		return out, next, err
	}, func(u User) User { return u })
}

func (a *API) users(ctx context.Context, page []access.Person) ([]User, error) {
	ids := make([]string, len(page))
	for i, p := range page {
		ids[i] = p.PrincipalID
	}
	grants, err := a.d.Store.GrantsOf(ctx, ids)
	out := views(page, viewOf[User])
	for i := range out {
		out[i].Grants = []UserGrant{}
		for _, g := range grants {
			if g.PrincipalID == out[i].PrincipalId {
				out[i].Grants = append(out[i].Grants, UserGrant{AccessRole: g.AccessRole, OrgId: string(g.OrgID)})
			}
		}
	}
	return out, err
}

// GetUser shows a user.
func (a *API) GetUser(c echo.Context, id UserInPath) error {
	p, err := a.d.Store.GetPerson(c.Request().Context(), id)
	if err != nil {
		return err
	}
	out, err := a.users(c.Request().Context(), []access.Person{p})
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, out[0])
}

// DisableUser refuses everything of a user from now on.
func (a *API) DisableUser(c echo.Context, id UserInPath, _ DisableUserParams) error {
	if err := a.d.Store.DisablePrincipal(c.Request().Context(), id, access.User); err != nil {
		return err
	}
	return a.GetUser(c, id)
}

// EnableUser undoes DisableUser.
func (a *API) EnableUser(c echo.Context, id UserInPath, _ EnableUserParams) error {
	if err := a.d.Store.EnablePrincipal(c.Request().Context(), id, access.User); err != nil {
		return err
	}
	return a.GetUser(c, id)
}

func loginView(l access.Issued) LoginSession {
	out := viewOf[LoginSession](l)
	out.LoginId = l.ID
	return out
}

// ListLogins shows a page of logins: the caller's own, or all.
func (a *API) ListLogins(c echo.Context, _ ListLoginsParams) error {
	p := caller(c)
	return list(c, "logins", func(ctx context.Context, q prego.ListQuery) ([]access.Issued, string, error) {
		if !p.Reach("login:read").Everywhere {
			if of := q.Filters["principal_id"]; of != nil && !slices.Contains(of, p.PrincipalID) {
				return nil, "", nil
			}
			q = q.Of("principal_id", p.PrincipalID)
		}
		return a.d.Store.ListLogins(ctx, q)
	}, loginView)
}

// EndLogin ends a login.
func (a *API) EndLogin(c echo.Context, id LoginInPath, _ EndLoginParams) error {
	p := caller(c)
	of, err := a.d.Store.LoginOf(c.Request().Context(), id)
	if err == nil && of != p.PrincipalID && !p.Reach("login:revoke").Everywhere {
		err = store.NoSuch("login", id)
	}
	if err != nil {
		return err
	}
	if of != p.PrincipalID {
		if err := a.notOwn(c, "login:revoke"); err != nil {
			return err
		}
	}
	return remove(c, a.d.Store.EndCredential, id)
}

// ExplainAccess explains what access.Decide decides for a principal, an operation and an object.
func (a *API) ExplainAccess(c echo.Context, in ExplainAccessParams) error {
	ctx := c.Request().Context()
	op := a.contract.named(in.Operation)
	if op == nil || open[pathOf(op)] {
		return prego.Invalid("operation", "must be an operationId of the contract, such as createTenant")
	}
	who, disabled, err := a.d.Store.PrincipalLike(ctx, in.Principal)
	if err != nil {
		return err
	}
	reach, _ := access.ReachOf(ctx)
	scope, err := a.scopeOf(ctx, op, deref(in.Object), reach)
	if err != nil {
		return err
	}
	out := AccessDecision{PrincipalId: who.PrincipalID, Operation: in.Operation, Grants: []ShownGrant{}}
	if op.capability != "" {
		out.Capability = new(string(op.capability))
	}
	if scope.org != "" {
		out.OrgId = new(string(scope.org))
	}
	explain(&out, who, disabled, op, scope, reach)
	return c.JSON(http.StatusOK, out)
}

// scope is where an operation would act.
type scope struct {
	org      prego.OrgID // "" is the installation
	anywhere bool        // it shows what is in reach
}

func (s scope) text() string {
	switch {
	case s.anywhere:
		return "somewhere"
	case s.org == "":
		return "on the installation"
	}
	return "in " + string(s.org)
}

// scopeOf finds where an operation on an object acts, as inReach does for a request. What the caller does not see is
// refused like something absent.
func (a *API) scopeOf(ctx context.Context, op *operation, object string, reach access.Reach) (out scope, err error) {
	source := orgOfInstallation
	if len(op.orgOf) > 0 {
		source = op.orgOf[0]
	}
	field, inBody := strings.CutPrefix(source, orgOfBody)
	switch {
	case source == orgOfCaller:
		return scope{anywhere: true}, nil
	case source == orgOfReach && object == "":
		return scope{anywhere: true}, nil
	case source == orgOfInstallation, source == orgOfHandler, inBody && object == "" && !slices.Contains(op.body.Required, field):
		if !reach.Everywhere {
			return out, onInstallation("access:read")
		}
		return out, nil
	case object == "":
		return out, prego.Invalid("object", "must be given for this operation: an id of what it acts on")
	}
	kind, id := "org", object
	if source != orgOfReach && !inBody {
		if kind, id, err = ofOrg(op, source, object); err != nil {
			return out, err
		}
	}
	out.org, err = a.d.Store.OrgOf(ctx, kind, id)
	if err == nil && !reach.Includes(out.org) {
		err = store.NoSuch(kind, id)
	}
	return out, err
}

// pathOf is the path of an operation that needs no token, "" for others.
func pathOf(op *operation) string {
	if op.Security != nil && len(*op.Security) == 0 {
		return "/" + op.OperationID
	}
	return ""
}

// explain fills in the decision and its reason in words. Grants outside of the reach decide, and are not shown.
func explain(out *AccessDecision, who access.Principal, disabled bool, op *operation, at scope, reach access.Reach) {
	d := access.Decide(who, op.capability, at.org)
	if at.anywhere && op.capability != "" {
		d = anywhere(who, op.capability)
	}
	var shown []string
	for _, g := range d.Grants {
		if !reach.Includes(g.OrgID) {
			continue
		}
		out.Grants = append(out.Grants, ShownGrant{GrantId: g.GrantID, AccessRole: g.Role, OrgId: string(g.OrgID)})
		shown = append(shown, g.Role+" on "+cmp.Or(string(g.OrgID), "the installation"))
	}
	say := func(allowed bool, reason AccessDecisionReason, because string) {
		may := " may not "
		if allowed {
			may = " may "
		}
		where := " " + at.text()
		if op.capability == "" {
			where = ""
		}
		out.Allowed, out.Reason, out.Text = allowed, reason, who.Name+may+op.OperationID+where+": "+because
	}
	has, c := strings.Join(shown, " and "), string(op.capability)
	switch {
	case disabled:
		say(false, Disabled, "the principal is disabled, so nothing of it is accepted")
	case op.capability == "":
		say(true, Open, "it is about the caller, and requires no capability")
	case d.Allowed && has == "":
		say(true, Granted, "a grant outside of the orgs that you see includes "+c)
	case d.Allowed:
		say(true, Granted, "it has "+has+", which includes "+c)
	case d.Reason == access.ReasonOtherOrg && has != "":
		say(false, OtherOrg, "it has "+has+", which includes "+c+" only there")
	default:
		say(false, NoCapability, "this requires the capability "+c+", which none of its grants includes")
	}
}

// anywhere decides what needs a capability in any org.
func anywhere(who access.Principal, c access.Capability) access.Decision {
	d := access.Decision{Capability: c, Reason: access.ReasonNoCapability}
	for _, g := range who.Grants {
		if !g.Reach(c).None() {
			d.Allowed, d.Reason, d.Grants = true, access.ReasonGranted, append(d.Grants, g)
		}
	}
	return d
}
