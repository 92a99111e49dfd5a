package api

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// CreateServer accepts a request for a server.
func (a *API) CreateServer(c echo.Context, _ CreateServerParams) error {
	var in server.CreateRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	ctx := c.Request().Context()
	if refused := a.checkSpec(ctx, in.InfraProvider, in.Region, in.Spec); refused != nil {
		// A request that was accepted once is accepted again, even if something was retired
		// since.
		if _, err := a.d.Store.GetServer(ctx, in.ServerID); err != nil {
			return refused
		}
	}
	first := a.d.Catalog.Configured.Candidates(in.Role, in.Region, in.Spec)
	server, _, err := a.d.Store.CreateServer(ctx, in, caller(c).By(), first...)
	if err != nil {
		return err
	}
	a.startProvision(c, server)
	return c.JSON(http.StatusAccepted, a.accepted(c, server, server.WorkflowID))
}

// startProvision starts the run of an accepted row. If that fails, the request stays
// accepted: the reconciler starts the run later.
func (a *API) startProvision(c echo.Context, s server.Server) {
	if s.Status != server.Provisioning {
		return
	}
	a.started(c, s.WorkflowID, func(ctx context.Context) error { return a.d.Runs.StartProvision(ctx, s) })
}

func (a *API) accepted(c echo.Context, s server.Server, workflowID string) Accepted {
	return Accepted{Operation: a.operation(c, workflowID), WorkflowId: workflowID, ServerId: string(s.ServerID), StatusUrl: string("/v1/servers/" + s.ServerID)}
}

// ImportServer accepts the import of an existing server.
func (a *API) ImportServer(c echo.Context, _ ImportServerParams) error {
	var in server.ImportRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	ctx := c.Request().Context()
	srv, _, err := a.d.Store.ImportServer(ctx, in, caller(c).By())
	if err != nil {
		return err
	}
	if srv.Status != server.Provisioning {
		hint := "there is nothing left to bootstrap"
		if srv.Status == server.Failed {
			hint = "retry it, and then ask for this again"
		}
		return prego.Errorf(prego.CodeInvalidTransition, "server %s is %s: %s", srv.ServerID, srv.Status, hint)
	}
	bootstrap, err := a.d.Importer.IssueImport(ctx, srv)
	if err != nil {
		return err
	}
	a.startProvision(c, srv)
	return c.JSON(http.StatusAccepted, ImportAccepted{
		WorkflowId: srv.WorkflowID, ServerId: string(srv.ServerID), StatusUrl: string("/v1/servers/" + srv.ServerID), Bootstrap: bootstrap,
		Operation: a.operation(c, srv.WorkflowID),
	})
}

// RetryServer provisions a failed server again.
func (a *API) RetryServer(c echo.Context, id ServerID, _ RetryServerParams) error {
	server, err := a.d.Store.RequestRetry(c.Request().Context(), id, caller(c).By())
	if err != nil {
		return err
	}
	a.startProvision(c, server)
	return c.JSON(http.StatusAccepted, a.accepted(c, server, server.WorkflowID))
}

// DeleteServer decommissions a server.
func (a *API) DeleteServer(c echo.Context, id ServerID, _ DeleteServerParams) error {
	srv, err := a.d.Store.DeleteServer(c.Request().Context(), id, caller(c).By())
	if err != nil {
		return err
	}
	return a.decommission(c, srv)
}

// decommission starts the run that destroys a server.
func (a *API) decommission(c echo.Context, srv server.Server) error {
	if srv.Status == server.Decommissioning {
		a.started(c, server.DecommissionWorkflowID(srv.ServerID), func(ctx context.Context) error {
			return a.d.Runs.StartDecommission(ctx, srv.ServerID)
		})
	}
	return c.JSON(http.StatusAccepted, a.accepted(c, srv, server.DecommissionWorkflowID(srv.ServerID)))
}

// CordonServer closes a server to newcomers.
func (a *API) CordonServer(c echo.Context, id ServerID, _ CordonServerParams) error {
	var in server.CordonRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	srv, err := a.d.Store.CordonServer(c.Request().Context(), id, caller(c).By(), in.Reason)
	return answer(c, http.StatusOK, srv, err, viewOf[ServerSummary])
}

// LoseServer declares a server lost: its tenants are restored elsewhere, its remains are
// destroyed.
func (a *API) LoseServer(c echo.Context, id ServerID, _ LoseServerParams) error {
	var in server.CordonRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	srv, err := a.d.Store.LoseServer(c.Request().Context(), id, in.Reason, caller(c).By())
	if err != nil {
		return err
	}
	return a.decommission(c, srv)
}

// UncordonServer opens a server to newcomers again.
func (a *API) UncordonServer(c echo.Context, id ServerID, _ UncordonServerParams) error {
	srv, err := a.d.Store.UncordonServer(c.Request().Context(), id, caller(c).By())
	return answer(c, http.StatusOK, srv, err, viewOf[ServerSummary])
}

// GetServer shows a server.
func (a *API) GetServer(c echo.Context, id ServerID) error {
	ctx := c.Request().Context()
	server, err := a.d.Store.GetServer(ctx, id)
	if err != nil {
		return err
	}
	events, err := a.d.Store.ServerEvents(ctx, id)
	if err != nil {
		return err
	}
	use, maintenance, err := a.d.Store.ServerUse(ctx, id)
	if err != nil {
		return err
	}
	out := a.view(server, events)
	out.Cost = a.costView(ctx, server)
	if maintenance != "" {
		out.Maintenance = &maintenance
	}
	if use.Any() {
		out.Holds = new(viewOf[ServerUse](use))
	}
	return c.JSON(http.StatusOK, out)
}

// ListServerSamples shows what a server's host reported over the last day.
func (a *API) ListServerSamples(c echo.Context, id ServerID, p ListServerSamplesParams) error {
	ctx := c.Request().Context()
	if _, err := a.d.Store.ProvisionState(ctx, id); err != nil {
		return err
	}
	samples, err := a.d.Store.ServerSamples(ctx, id, deref(p.Since))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, ServerSampleList{EverySeconds: int(server.SampleEvery.Seconds()), Samples: views(samples, viewOf[ServerSample])})
}

// ServerStats shows how long servers took to become active.
func (a *API) ServerStats(c echo.Context, p ServerStatsParams) error {
	days := 30
	if p.Days != nil {
		days = *p.Days
	}
	stats, err := a.d.Store.ActivationStats(c.Request().Context(), time.Duration(days)*24*time.Hour)
	if err != nil {
		return err
	}
	out := ServerStats{TargetSeconds: server.ActivationTarget.Seconds(), Days: days, Activations: []ActivationStats{}}
	for _, s := range stats {
		out.Activations = append(out.Activations, ActivationStats{
			Role: s.Role, Location: s.Location, Image: s.Image, Servers: s.Servers, InTime: s.InTime,
			P50Seconds: s.P50, P95Seconds: s.P95, P99Seconds: s.P99, MaxSeconds: s.Max,
		})
	}
	return c.JSON(http.StatusOK, out)
}

// maxPeersBehind bounds a list that is read when something is wrong with few.
const maxPeersBehind = 500

// ServerPeers shows which hosts' firewalls are not as they should be.
func (a *API) ServerPeers(c echo.Context) error {
	ctx := c.Request().Context()
	e, err := a.d.Store.Egress(ctx)
	if err != nil {
		return err
	}
	behind, err := a.d.Store.PeersBehind(ctx, maxPeersBehind)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, ServerPeers{Epoch: e.Epoch, Cidrs: e.CIDRs, Leaving: e.Leaving, Servers: views(behind, viewOf[PeersBehind])})
}

// ListServers shows a page of servers.
func (a *API) ListServers(c echo.Context, _ ListServersParams) error {
	return list(c, "servers", a.d.Store.ListServers, viewOf[ServerSummary])
}

func (a *API) view(s server.Server, events []server.Event) Server {
	run := s.WorkflowID
	if s.DecommissionRequestedAt != nil {
		run = server.DecommissionWorkflowID(s.ServerID)
	}
	out := viewOf[Server](s)
	out.WorkflowId, out.RunUrl, out.Timeline = run, optional(a.d.Runs.RunURL(run)), views(events, viewOf[Event])
	out.Agent, out.Provider = viewOf[Agent](s), viewOf[ProviderServer](s)
	out.Agent.Status, out.Agent.Version, out.Agent.FirstSeenAt, out.Agent.LastHeartbeatAt = s.AgentStatus, optional(s.AgentVersion), utc(s.AgentFirstSeenAt), utc(s.AgentLastHeartbeatAt)
	out.Agent.Tags, out.Agent.ClockSkewed = nil, nil
	if s.AgentTags != nil { // else its host has reported none yet
		out.Agent.Tags, out.Agent.TagsDiffer = &s.AgentTags, new(!prego.SameTags(s.Tags, s.AgentTags))
	}
	if s.ClockAheadSeconds != nil {
		out.Agent.ClockSkewed = &s.ClockSkewed
	}
	out.Provider.Ipv4, out.Provider.Network = optional(s.Host), optional(string(s.NetworkID))
	if s.PatchesAt == nil {
		out.Patches = nil
	} else if out.Patches != nil {
		out.Patches.State, out.Patches.Since, out.Patches.ToldAt = s.PatchState, utc(s.PatchesSince), s.PatchesAt.UTC()
	}
	return out
}

// PatchServer changes which tenants a server takes. Its tags are fixed while it lives
// (placement-pools, "Are Placement Pools dynamic?").
func (a *API) PatchServer(c echo.Context, id ServerID, _ PatchServerParams) error {
	var in server.PlacementChange
	if err := decode(c, &in); err != nil {
		return err
	}
	srv, err := a.d.Store.ChangePlacement(c.Request().Context(), id, in, caller(c).By())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, a.view(srv, nil))
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}
