package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/server"
)

// CreateRelease stores a release to roll out.
func (a *API) CreateRelease(c echo.Context, _ CreateReleaseParams) error {
	var in server.CreateStackReleaseRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := in.Validate(); err != nil {
		return err
	}
	r, err := a.d.Store.CreateStackRelease(c.Request().Context(), in, caller(c).Subject)
	return answer(c, http.StatusCreated, r, err, a.releaseView)
}

// ListReleases shows a page of releases, newest first.
func (a *API) ListReleases(c echo.Context, _ ListReleasesParams) error {
	return list(c, "releases", a.d.Store.ListStackReleases, a.releaseView)
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
	r, err := turn(c.Request().Context(), name, caller(c).Subject)
	if err != nil {
		return err
	}
	ctx, cancel := startContext(c)
	defer cancel()
	if err := a.d.Runs.WakeStackRelease(ctx, name); err != nil {
		a.notStarted(c, server.StackReleaseWorkflowID(name), err)
	}
	return a.showRelease(c, r, http.StatusAccepted)
}

func (a *API) showRelease(c echo.Context, r server.StackRelease, status int) error {
	out := a.releaseView(r)
	servers, err := a.d.Store.StackReleaseServers(c.Request().Context(), r.Name)
	if err != nil {
		return err
	}
	for _, v := range servers {
		out.Servers = append(out.Servers, ReleaseServer{
			ServerId: string(v.ServerID), Ring: r.Rings[v.Ring].Name, Status: string(v.Status), Phase: optional(v.Phase), Reason: optional(string(v.Reason)), Message: optional(v.Message),
			FromImage: optional(v.FromImage), Sites: v.SiteCount, OfflineSeconds: v.Offline, StartedAt: utc(v.StartedAt), FinishedAt: utc(v.FinishedAt),
		})
	}
	if r.Status != server.ReleaseCreated {
		out.Operation = a.operation(c, out.WorkflowId)
	}
	return c.JSON(status, out)
}

func (a *API) releaseView(r server.StackRelease) StackRelease {
	run := server.StackReleaseWorkflowID(r.Name)
	out := StackRelease{
		Name: r.Name, Image: r.Image, Apps: r.Apps, Status: string(r.Status), Reason: optional(string(r.Reason)), Message: optional(r.Message), Current: r.Current,
		Servers: []ReleaseServer{}, WorkflowId: run, RunUrl: optional(a.d.Runs.RunURL(run)), CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt.UTC(),
		StartedAt: utc(r.StartedAt), FinishedAt: utc(r.FinishedAt),
	}
	out.Rings = ringViews(r.Rings)
	return out
}

func ringViews(rings []server.ReleaseRing) (out []ReleaseRing) {
	for _, ring := range rings {
		v := ReleaseRing{Name: ring.Name}
		if len(ring.Tenants) > 0 {
			v.Tenants = &ring.Tenants
		}
		if ring.Percent > 0 {
			v.Percent = &ring.Percent
		}
		if ring.SoakSeconds > 0 {
			v.SoakSeconds = &ring.SoakSeconds
		}
		out = append(out, v)
	}
	return out
}
