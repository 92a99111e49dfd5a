package api

import (
	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
	"github.com/prego/prego/workload"
)

var newID = prego.NewID

const (
	appPrefix = "app-"
	envPrefix = "env-"
)

// CreateApp creates an app of an org.
func (a *API) CreateApp(c echo.Context, p CreateAppParams) error {
	var in CreateApp
	if err := decode(c, &in); err != nil {
		return err
	}
	app, created, err := a.d.Store.CreateApp(c.Request().Context(),
		workload.App{AppID: prego.AppID(newID(appPrefix)), OrgID: in.OrgId, Name: in.Name, CreatedBy: caller(c).By()}, deref(p.IdempotencyKey))
	return answer(c, madeOrMet(created), app, err, viewOf[App])
}

// ListApps shows a page of apps, newest first.
func (a *API) ListApps(c echo.Context, _ ListAppsParams) error {
	return list(c, "apps", store.Apps.In(a.d.Store), viewOf[App])
}

// GetApp shows an app.
func (a *API) GetApp(c echo.Context, id AppID) error {
	return show(c, a.d.Store.GetApp, string(id), viewOf[App])
}

// DeleteApp deletes an app without envs.
func (a *API) DeleteApp(c echo.Context, id AppID, _ DeleteAppParams) error {
	return remove(c, a.d.Store.DeleteApp, string(id))
}

// CreateEnv creates an env of an app.
func (a *API) CreateEnv(c echo.Context, id AppID, p CreateEnvParams) error {
	var in CreateEnv
	if err := decode(c, &in); err != nil {
		return err
	}
	env, created, err := a.d.Store.CreateEnv(c.Request().Context(),
		workload.Env{EnvID: prego.EnvID(newID(envPrefix)), AppID: id, Name: in.Name, Region: in.Region, CreatedBy: caller(c).By()}, deref(p.IdempotencyKey))
	return answer(c, madeOrMet(created), env, err, viewOf[Env])
}

// ListEnvs shows a page of an app's envs, newest first.
func (a *API) ListEnvs(c echo.Context, id AppID, _ ListEnvsParams) error {
	return within(c, a.d.Store.GetApp, "envs", store.Envs.In(a.d.Store), viewOf[Env], "app_id", string(id))
}

// ListAllEnvs shows a page of the envs of all apps.
func (a *API) ListAllEnvs(c echo.Context, _ ListAllEnvsParams) error {
	return list(c, "envs", store.Envs.In(a.d.Store), viewOf[Env])
}

// GetEnv shows an env.
func (a *API) GetEnv(c echo.Context, id EnvID) error {
	return show(c, a.d.Store.GetEnv, string(id), viewOf[Env])
}

// DeleteEnv deletes an empty env.
func (a *API) DeleteEnv(c echo.Context, id EnvID, _ DeleteEnvParams) error {
	return remove(c, a.d.Store.DeleteEnv, string(id))
}
