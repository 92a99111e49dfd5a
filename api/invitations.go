package api

import (
	"crypto/rand"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/store"
)

// InvitationLife is how long an unused invitation is good for: over a weekend.
const InvitationLife = 72 * time.Hour

func invitationView(l store.Invitation) Invitation {
	return Invitation{
		InvitationId: l.LinkID, Name: l.Name, AccessRole: l.AccessRole, OrgId: l.OrgID, CreatedBy: l.CreatedBy,
		CreatedAt: l.CreatedAt.UTC(), ExpiresAt: l.ExpiresAt.UTC(),
	}
}

// ListInvitations shows the open invitations.
func (a *API) ListInvitations(c echo.Context) error {
	return every(c, "invitations", a.d.Store.Invitations, invitationView)
}

// CreateInvitation makes a link that invites a person to at most what its caller has.
func (a *API) CreateInvitation(c echo.Context, _ CreateInvitationParams) error {
	var in struct {
		Name       string      `json:"name"`
		AccessRole string      `json:"access_role"`
		OrgID      prego.OrgID `json:"org_id"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if in.Name = strings.TrimSpace(in.Name); in.Name == "" {
		return prego.Invalid("name", "must not be blank")
	}
	p, ctx := caller(c), c.Request().Context()
	role, err := a.d.Store.AccessRole(ctx, "access_role", in.AccessRole)
	if err != nil {
		return err
	}
	if err := a.mayGrant(c)(access.Grant{Role: role.Name, Custom: role.Patterns, OrgID: in.OrgID}); err != nil {
		return err
	}
	code, err := access.NewSecret(access.Link, rand.Reader)
	if err != nil {
		return err
	}
	l := store.LoginLink{LinkID: newID("link-"), Kind: store.LinkJoin, Name: in.Name, AccessRole: role.Name, OrgID: in.OrgID, CreatedBy: p.By()}
	until, err := a.d.Store.CreateLoginLink(ctx, l, access.SecretHash(code), InvitationLife)
	if err != nil {
		return err
	}
	out := invitationView(store.Invitation{
		LinkID: l.LinkID, Name: l.Name, AccessRole: l.AccessRole, OrgID: l.OrgID, CreatedBy: l.CreatedBy, CreatedAt: until.Add(-InvitationLife), ExpiresAt: until,
	})
	out.Path = new("/console/join?code=" + code)
	return c.JSON(http.StatusCreated, out)
}

// DeleteInvitation revokes an open invitation.
func (a *API) DeleteInvitation(c echo.Context, id InvitationInPath, _ DeleteInvitationParams) error {
	return noContent(c, a.d.Store.DeleteInvitation(c.Request().Context(), id))
}
