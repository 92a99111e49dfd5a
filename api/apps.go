package api

import (
	"crypto/rand"
	"encoding/base32"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/workload"
)

// idLen is how many characters of base32 an id has: 60 bits, so that ids are neither
// met twice nor guessed.
const idLen = 12

// newID makes an id: a prefix and 12 characters of lower-case base32.
func newID(prefix string) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the program ends instead
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(b[:])[:idLen])
}

const (
	appPrefix = "app-"
	envPrefix = "env-"
)

func checkIDPath(c echo.Context, field, prefix, id string) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	return prego.ValidateID(field, prefix, id)
}

// idempotencyKey is the key that a request has, "" for none.
func idempotencyKey(p *IdempotencyKey) (string, error) {
	if p == nil {
		return "", nil
	}
	return *p, prego.ValidateIdempotencyKey(*p)
}

func appView(v workload.App) App {
	return App{AppId: v.AppID, OrgId: v.OrgID, Name: v.Name, CreatedBy: v.CreatedBy, CreatedAt: v.CreatedAt.UTC()}
}

func envView(v workload.Env) Env {
	return Env{EnvId: v.EnvID, AppId: v.AppID, OrgId: v.OrgID, Name: v.Name, Region: Region(v.Region), CreatedBy: v.CreatedBy, CreatedAt: v.CreatedAt.UTC()}
}

// CreateApp makes an app of an org.
func (a *API) CreateApp(c echo.Context, p CreateAppParams) error {
	if err := onlyParameters(c); err != nil {
		return err
	}
	key, err := idempotencyKey(p.IdempotencyKey)
	if err != nil {
		return err
	}
	var in struct {
		OrgID string `json:"org_id"`
		Name  string `json:"name"`
	}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	if err := prego.ValidateOrgID("org_id", in.OrgID); err != nil {
		return err
	}
	if err := prego.ValidateName("name", in.Name, prego.MaxNameLen); err != nil {
		return err
	}
	app, created, err := a.d.Quotas.CreateApp(c.Request().Context(),
		workload.App{AppID: newID(appPrefix), OrgID: in.OrgID, Name: in.Name, CreatedBy: caller(c).Subject}, key)
	if err != nil {
		return err
	}
	return c.JSON(madeOrMet(created), appView(app))
}

// ListApps shows a page of apps, newest first.
func (a *API) ListApps(c echo.Context, p ListAppsParams) error {
	if err := onlyParameters(c, "org_id", "limit", "cursor"); err != nil {
		return err
	}
	var f prego.ListFilter
	if p.OrgId != nil {
		f.ID = *p.OrgId
		if err := prego.ValidateOrgID("org_id", f.ID); err != nil {
			return err
		}
	}
	if err := listed(&f, p.Limit, p.Cursor); err != nil {
		return err
	}
	apps, next, err := a.d.Quotas.ListApps(c.Request().Context(), f)
	if err != nil {
		return err
	}
	out := AppPage{Apps: make([]App, len(apps)), NextCursor: optional(next)}
	for i, v := range apps {
		out.Apps[i] = appView(v)
	}
	return c.JSON(http.StatusOK, out)
}

// listed fills in which part of a list is asked for.
func listed(f *prego.ListFilter, limit *int, cursor *string) (err error) {
	f.Limit, f.Cursor, err = paging(limit, cursor)
	return err
}

// GetApp shows an app.
func (a *API) GetApp(c echo.Context, id AppID) error {
	if err := checkIDPath(c, "app_id", appPrefix, id); err != nil {
		return err
	}
	app, err := a.d.Quotas.GetApp(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, appView(app))
}

// DeleteApp deletes an app that has no envs.
func (a *API) DeleteApp(c echo.Context, id AppID) error {
	if err := checkIDPath(c, "app_id", appPrefix, id); err != nil {
		return err
	}
	if err := a.d.Quotas.DeleteApp(c.Request().Context(), id, caller(c).Subject); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// CreateEnv makes an env of an app.
func (a *API) CreateEnv(c echo.Context, id AppID, p CreateEnvParams) error {
	if err := checkIDPath(c, "app_id", appPrefix, id); err != nil {
		return err
	}
	key, err := idempotencyKey(p.IdempotencyKey)
	if err != nil {
		return err
	}
	var in struct {
		Name   string       `json:"name"`
		Region prego.Region `json:"region"`
	}
	if err := decodeBody(c.Response(), c.Request(), &in); err != nil {
		return err
	}
	if err := prego.ValidateName("name", in.Name, prego.MaxNameLen); err != nil {
		return err
	}
	if !in.Region.Valid() {
		return prego.Invalid("region", "must be one of sg, eu, us")
	}
	env, created, err := a.d.Quotas.CreateEnv(c.Request().Context(),
		workload.Env{EnvID: newID(envPrefix), AppID: id, Name: in.Name, Region: in.Region, CreatedBy: caller(c).Subject}, key)
	if err != nil {
		return err
	}
	return c.JSON(madeOrMet(created), envView(env))
}

// ListEnvs shows a page of an app's envs, newest first.
func (a *API) ListEnvs(c echo.Context, id AppID, p ListEnvsParams) error {
	if err := onlyParameters(c, "limit", "cursor"); err != nil {
		return err
	}
	if err := prego.ValidateID("app_id", appPrefix, id); err != nil {
		return err
	}
	f := prego.ListFilter{ID: id}
	if err := listed(&f, p.Limit, p.Cursor); err != nil {
		return err
	}
	envs, next, err := a.d.Quotas.ListEnvs(c.Request().Context(), f)
	if err != nil {
		return err
	}
	out := EnvPage{Envs: make([]Env, len(envs)), NextCursor: optional(next)}
	for i, v := range envs {
		out.Envs[i] = envView(v)
	}
	return c.JSON(http.StatusOK, out)
}

// GetEnv shows an env.
func (a *API) GetEnv(c echo.Context, id EnvID) error {
	if err := checkIDPath(c, "env_id", envPrefix, id); err != nil {
		return err
	}
	env, err := a.d.Quotas.GetEnv(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, envView(env))
}

// DeleteEnv deletes an env that nothing is in.
func (a *API) DeleteEnv(c echo.Context, id EnvID) error {
	if err := checkIDPath(c, "env_id", envPrefix, id); err != nil {
		return err
	}
	if err := a.d.Quotas.DeleteEnv(c.Request().Context(), id, caller(c).Subject); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}
