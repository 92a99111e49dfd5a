package api

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// ListRegistries shows all registries.
func (a *API) ListRegistries(c echo.Context) error {
	return a.registries(c)
}

func (a *API) registries(c echo.Context) error {
	return every(c, "registries", a.d.Registries.ListRegistries, viewOf[Registry])
}

// GetRegistry shows a registry.
func (a *API) GetRegistry(c echo.Context, host RegistryInPath, _ GetRegistryParams) error {
	return a.showTagged(c, prego.ReplaceableRegistry, []any{host}, func() error { return show(c, a.d.Registries.GetRegistry, host, viewOf[Registry]) })
}

// PutRegistry stores the credentials of a registry.
func (a *API) PutRegistry(c echo.Context, host RegistryInPath, _ PutRegistryParams) error {
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
	r, err := a.d.Registries.PutRegistry(c.Request().Context(), host, in.Username, in.Password, caller(c).By(), ifMatch(c)...)
	return answer(c, http.StatusOK, r, err, viewOf[Registry])
}

// DeleteRegistry deletes the credentials of a registry.
func (a *API) DeleteRegistry(c echo.Context, host RegistryInPath, _ DeleteRegistryParams) error {
	return noContent(c, a.d.Registries.DeleteRegistry(c.Request().Context(), host))
}

// RotateRegistries re-encrypts all passwords with the current master key.
func (a *API) RotateRegistries(c echo.Context, _ RotateRegistriesParams) error {
	if err := a.d.Registries.RotateRegistries(c.Request().Context()); err != nil {
		return err
	}
	return a.registries(c)
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
