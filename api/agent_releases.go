package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// CreateAgentRelease keeps a signed release of the agent.
func (a *API) CreateAgentRelease(c echo.Context, _ CreateAgentReleaseParams) error {
	var in server.CreateAgentReleaseRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	said, err := in.Validate()
	if err != nil {
		return err
	}
	r, err := a.d.Store.CreateAgentRelease(c.Request().Context(), in, said, caller(c).Subject)
	return answer(c, http.StatusCreated, r, err, agentReleaseView)
}

// ListAgentReleases shows a page of releases of the agent, newest first.
func (a *API) ListAgentReleases(c echo.Context, _ ListAgentReleasesParams) error {
	return list(c, "agent_releases", store.AgentReleases.In(a.d.Store), agentReleaseView)
}

// GetAgentRelease shows a release of the agent with its servers.
func (a *API) GetAgentRelease(c echo.Context, version AgentVersion) error {
	r, err := a.d.Store.GetAgentRelease(c.Request().Context(), version)
	return a.showAgentRelease(c, r, err)
}

// StartAgentRelease offers a release of the agent to servers, ring by ring.
func (a *API) StartAgentRelease(c echo.Context, version AgentVersion, _ StartAgentReleaseParams) error {
	return a.turnAgentRelease(c, version, server.ReleaseRolling)
}

// PauseAgentRelease offers it to no more servers.
func (a *API) PauseAgentRelease(c echo.Context, version AgentVersion, _ PauseAgentReleaseParams) error {
	return a.turnAgentRelease(c, version, server.ReleasePaused)
}

// CancelAgentRelease ends it.
func (a *API) CancelAgentRelease(c echo.Context, version AgentVersion, _ CancelAgentReleaseParams) error {
	return a.turnAgentRelease(c, version, server.ReleaseCancelled)
}

func (a *API) turnAgentRelease(c echo.Context, version string, to server.ReleaseStatus) error {
	r, err := a.d.Store.SteerAgentRelease(c.Request().Context(), version, to, caller(c).Subject)
	return a.showAgentRelease(c, r, err)
}

func (a *API) showAgentRelease(c echo.Context, r server.AgentRelease, err error) error {
	if err != nil {
		return err
	}
	out := agentReleaseView(r)
	servers, err := a.d.Store.AgentReleaseServers(c.Request().Context(), r.Version)
	if err != nil {
		return err
	}
	for _, v := range servers {
		s := viewOf[AgentReleaseServer](v)
		s.Ring = r.Rings[v.Ring].Name
		out.Servers = append(out.Servers, s)
	}
	return c.JSON(http.StatusOK, out)
}

func agentReleaseView(r server.AgentRelease) AgentRelease {
	out := viewOf[AgentRelease](r)
	out.Servers = []AgentReleaseServer{}
	return out
}
