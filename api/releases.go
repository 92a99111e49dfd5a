package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// CreateRelease stores a release to roll out.
func (a *API) CreateRelease(c echo.Context, _ CreateReleaseParams) error {
	var in server.CreateStackReleaseRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	r, err := a.d.Store.CreateStackRelease(c.Request().Context(), in, caller(c).By())
	return answer(c, http.StatusCreated, r, err, a.releaseView)
}

// ListReleases shows a page of releases, newest first.
func (a *API) ListReleases(c echo.Context, _ ListReleasesParams) error {
	return list(c, "releases", store.StackReleases.In(a.d.Store), a.releaseView)
}

// GetRelease shows a release with its servers.
func (a *API) GetRelease(c echo.Context, name StackReleaseName) error {
	r, err := a.d.Store.GetStackRelease(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return a.showRelease(c, r, http.StatusOK)
}

// StartRelease rolls a release out.
func (a *API) StartRelease(c echo.Context, name StackReleaseName, _ StartReleaseParams) error {
	return a.steerRelease(c, name, a.d.Store.StartStackRelease)
}

// PauseRelease lets no more servers begin.
func (a *API) PauseRelease(c echo.Context, name StackReleaseName, _ PauseReleaseParams) error {
	return a.steerRelease(c, name, a.d.Store.PauseStackRelease)
}

// ResumeRelease resumes a release.
func (a *API) ResumeRelease(c echo.Context, name StackReleaseName, _ ResumeReleaseParams) error {
	return a.steerRelease(c, name, a.d.Store.ResumeStackRelease)
}

// CancelRelease ends a release.
func (a *API) CancelRelease(c echo.Context, name StackReleaseName, _ CancelReleaseParams) error {
	return a.steerRelease(c, name, a.d.Store.CancelStackRelease)
}

func (a *API) steerRelease(c echo.Context, name server.StackReleaseName, turn func(context.Context, server.StackReleaseName, string) (server.StackRelease, error)) error {
	r, err := turn(c.Request().Context(), name, caller(c).By())
	if err != nil {
		return err
	}
	a.started(c, server.StackReleaseWorkflowID(name), func(ctx context.Context) error {
		return a.d.Runs.WakeStackRelease(ctx, name)
	})
	return a.showRelease(c, r, http.StatusAccepted)
}

func (a *API) showRelease(c echo.Context, r server.StackRelease, status int) error {
	out := a.releaseView(r)
	servers, err := a.d.Store.StackReleaseServers(c.Request().Context(), r.Name)
	if err != nil {
		return err
	}
	for _, v := range servers {
		s := viewOf[ReleaseServer](v)
		s.Ring, s.Sites, s.OfflineSeconds = r.Rings[v.Ring].Name, v.SiteCount, v.Offline
		out.Servers = append(out.Servers, s)
	}
	if r.Status != server.ReleaseCreated {
		out.Operation = a.operation(c, out.WorkflowId)
	}
	return c.JSON(status, out)
}

func (a *API) releaseView(r server.StackRelease) StackRelease {
	out := viewOf[StackRelease](r)
	out.Servers, out.RunUrl = []ReleaseServer{}, optional(a.d.Runs.RunURL(out.WorkflowId))
	return out
}
