package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// ListRegistries shows all registries.
func (a *API) ListRegistries(c echo.Context) error {
	return a.registries(c, "")
}

// ListOrgRegistries shows the registries of an org.
func (a *API) ListOrgRegistries(c echo.Context, org OrgID) error {
	if _, err := a.d.Store.OrgOf(c.Request().Context(), "org", string(org)); err != nil {
		return err
	}
	return a.registries(c, org)
}

func (a *API) registries(c echo.Context, org OrgID) error {
	return every(c, "registries", func(ctx context.Context) ([]server.Registry, error) { return a.d.Registries.ListRegistries(ctx, org) }, viewOf[Registry])
}

// GetRegistry shows a registry.
func (a *API) GetRegistry(c echo.Context, host RegistryInPath, _ GetRegistryParams) error {
	return a.registry(c, "", host)
}

// GetOrgRegistry shows a registry of an org.
func (a *API) GetOrgRegistry(c echo.Context, org OrgID, host RegistryInPath, _ GetOrgRegistryParams) error {
	if _, err := a.d.Store.OrgOf(c.Request().Context(), "org", string(org)); err != nil {
		return err
	}
	return a.registry(c, org, host)
}

func (a *API) registry(c echo.Context, org OrgID, host RegistryInPath) error {
	get := func(ctx context.Context, host string) (server.Registry, error) {
		return a.d.Registries.GetRegistry(ctx, org, host)
	}
	return a.showTagged(c, prego.ReplaceableRegistry, []any{org, host}, func() error { return show(c, get, host, viewOf[Registry]) })
}

// PutRegistry stores the credentials of a registry.
func (a *API) PutRegistry(c echo.Context, host RegistryInPath, _ PutRegistryParams) error {
	return a.putRegistry(c, "", host)
}

// PutOrgRegistry stores an org's credentials of a registry.
func (a *API) PutOrgRegistry(c echo.Context, org OrgID, host RegistryInPath, _ PutOrgRegistryParams) error {
	return a.putRegistry(c, org, host)
}

func (a *API) putRegistry(c echo.Context, org OrgID, host RegistryInPath) error {
	var in struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := server.ValidateRegistryLogin(in.Username, in.Password); err != nil {
		return err
	}
	r, err := a.d.Registries.PutRegistry(c.Request().Context(), org, host, in.Username, in.Password, caller(c).By(), ifMatch(c)...)
	return answer(c, http.StatusOK, r, err, viewOf[Registry])
}

// DeleteRegistry deletes the credentials of a registry.
func (a *API) DeleteRegistry(c echo.Context, host RegistryInPath, _ DeleteRegistryParams) error {
	return noContent(c, a.d.Registries.DeleteRegistry(c.Request().Context(), "", host))
}

// DeleteOrgRegistry deletes an org's credentials of a registry.
func (a *API) DeleteOrgRegistry(c echo.Context, org OrgID, host RegistryInPath, _ DeleteOrgRegistryParams) error {
	return noContent(c, a.d.Registries.DeleteRegistry(c.Request().Context(), org, host))
}

// RotateRegistries re-encrypts all passwords with the current master key.
func (a *API) RotateRegistries(c echo.Context, _ RotateRegistriesParams) error {
	if err := a.d.Registries.RotateRegistries(c.Request().Context()); err != nil {
		return err
	}
	return a.registries(c, "")
}

// ListImageDigests shows the digests of resolved images.
func (a *API) ListImageDigests(c echo.Context) error {
	return every(c, "images", a.d.Registries.ListImageDigests, viewOf[ImageDigest])
}

// DeleteImageDigest makes an image be resolved again.
func (a *API) DeleteImageDigest(c echo.Context, p DeleteImageDigestParams) error {
	image := strings.TrimSpace(p.Image)
	if err := server.ValidateImage("image", image); err != nil {
		return err
	}
	if err := a.d.Registries.DeleteImageDigest(c.Request().Context(), image); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
