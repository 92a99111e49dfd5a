package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/server"
)

// RegistryStore keeps credentials of container registries, sealed, and what images were
// resolved to. Passwords go in and never come out here.
type RegistryStore interface {
	PutRegistry(ctx context.Context, host, username, password, by string) (server.Registry, error)
	GetRegistry(ctx context.Context, host string) (server.Registry, error)
	ListRegistries(ctx context.Context) ([]server.Registry, error)
	DeleteRegistry(ctx context.Context, host string) error
	// RotateRegistries seals all passwords under the current master key.
	RotateRegistries(ctx context.Context) error
	ListImageDigests(ctx context.Context) ([]server.ImageDigest, error)
	DeleteImageDigest(ctx context.Context, image string) error
}

func registryView(r server.Registry) Registry {
	return Registry{
		Host: r.Host, Username: r.Username, KeyId: r.KeyID, CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt.UTC(), UpdatedBy: r.UpdatedBy, UpdatedAt: r.UpdatedAt.UTC(),
	}
}

func checkRegistryPath(c echo.Context, host string) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	return server.ValidateRegistryHost("host", host)
}

// ListRegistries shows all registries.
func (a *API) ListRegistries(c echo.Context) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	return a.registries(c)
}

func (a *API) registries(c echo.Context) error {
	list, err := a.d.Registries.ListRegistries(c.Request().Context())
	if err != nil {
		return err
	}
	out := RegistryList{Registries: []Registry{}}
	for _, r := range list {
		out.Registries = append(out.Registries, registryView(r))
	}
	return c.JSON(http.StatusOK, out)
}

// GetRegistry shows a registry.
func (a *API) GetRegistry(c echo.Context, host RegistryInPath) error {
	if err := checkRegistryPath(c, host); err != nil {
		return err
	}
	r, err := a.d.Registries.GetRegistry(c.Request().Context(), host)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, registryView(r))
}

// PutRegistry keeps the credentials of a registry.
func (a *API) PutRegistry(c echo.Context, host RegistryInPath) error {
	if err := checkRegistryPath(c, host); err != nil {
		return err
	}
	var in struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	if err := server.ValidateRegistryLogin(in.Username, in.Password); err != nil {
		return err
	}
	r, err := a.d.Registries.PutRegistry(c.Request().Context(), host, in.Username, in.Password, caller(c).Subject)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, registryView(r))
}

// DeleteRegistry forgets the credentials of a registry.
func (a *API) DeleteRegistry(c echo.Context, host RegistryInPath) error {
	if err := checkRegistryPath(c, host); err != nil {
		return err
	}
	if err := a.d.Registries.DeleteRegistry(c.Request().Context(), host); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// RotateRegistries seals all passwords under the current master key.
func (a *API) RotateRegistries(c echo.Context) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	if err := a.d.Registries.RotateRegistries(c.Request().Context()); err != nil {
		return err
	}
	return a.registries(c)
}

// ListImageDigests shows what images were resolved to.
func (a *API) ListImageDigests(c echo.Context) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	list, err := a.d.Registries.ListImageDigests(c.Request().Context())
	if err != nil {
		return err
	}
	out := ImageDigestList{Images: []ImageDigest{}}
	for _, v := range list {
		out.Images = append(out.Images, ImageDigest{Image: v.Image, Digest: v.Digest, ResolvedAt: v.ResolvedAt.UTC()})
	}
	return c.JSON(http.StatusOK, out)
}

// DeleteImageDigest has an image resolved anew.
func (a *API) DeleteImageDigest(c echo.Context, p DeleteImageDigestParams) error {
	if err := onlyParameters(c, "image"); err != nil {
		return err
	}
	image := strings.TrimSpace(p.Image)
	if err := server.ValidateImage("image", image); err != nil {
		return err
	}
	if err := a.d.Registries.DeleteImageDigest(c.Request().Context(), image); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
