package api

import (
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
	if err := in.Validate(); err != nil {
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
	server, _, err := a.d.Store.CreateServer(ctx, in, caller(c).Subject)
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
	ctx, cancel := startContext(c)
	defer cancel()
	if err := a.d.Runs.StartProvision(ctx, s); err != nil {
		a.notStarted(c, s.WorkflowID, err)
	}
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
	if err := in.Validate(); err != nil {
		return err
	}
	ctx := c.Request().Context()
	srv, _, err := a.d.Store.ImportServer(ctx, in, caller(c).Subject)
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
	server, err := a.d.Store.RequestRetry(c.Request().Context(), id, caller(c).Subject)
	if err != nil {
		return err
	}
	a.startProvision(c, server)
	return c.JSON(http.StatusAccepted, a.accepted(c, server, server.WorkflowID))
}

// DeleteServer decommissions a server.
func (a *API) DeleteServer(c echo.Context, id ServerID, p DeleteServerParams) error {
	srv, err := a.d.Store.RequestDecommission(c.Request().Context(), id, caller(c).Subject, p.Force != nil && *p.Force)
	if err != nil {
		return err
	}
	return a.decommission(c, srv)
}

// decommission starts the run that destroys a server.
func (a *API) decommission(c echo.Context, srv server.Server) error {
	if srv.Status == server.Decommissioning {
		ctx, cancel := startContext(c)
		defer cancel()
		if err := a.d.Runs.StartDecommission(ctx, srv.ServerID); err != nil {
			a.notStarted(c, server.DecommissionWorkflowID(srv.ServerID), err)
		}
	}
	return c.JSON(http.StatusAccepted, a.accepted(c, srv, server.DecommissionWorkflowID(srv.ServerID)))
}

// CordonServer closes a server to newcomers.
func (a *API) CordonServer(c echo.Context, id ServerID, _ CordonServerParams) error {
	var in server.CordonRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := in.Validate(); err != nil {
		return err
	}
	srv, err := a.d.Store.CordonServer(c.Request().Context(), id, caller(c).Subject, in.Reason)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, summary(srv))
}

// LoseServer declares a server lost: its tenants are restored elsewhere, its remains are
// destroyed.
func (a *API) LoseServer(c echo.Context, id ServerID, _ LoseServerParams) error {
	var in server.CordonRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := in.Validate(); err != nil {
		return err
	}
	srv, err := a.d.Store.LoseServer(c.Request().Context(), id, in.Reason, caller(c).Subject)
	if err != nil {
		return err
	}
	return a.decommission(c, srv)
}

// UncordonServer opens a server to newcomers again.
func (a *API) UncordonServer(c echo.Context, id ServerID, _ UncordonServerParams) error {
	srv, err := a.d.Store.UncordonServer(c.Request().Context(), id, caller(c).Subject)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, summary(srv))
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
	use, err := a.d.Store.ServerUse(ctx, id)
	if err != nil {
		return err
	}
	out := a.view(server, events)
	out.Cost = a.costView(ctx, server)
	if use.Any() {
		out.Holds = &ServerUse{Tenants: use.Tenants, Instances: use.Instances, Volumes: use.Volumes}
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
	return c.JSON(http.StatusOK, ServerSampleList{EverySeconds: int(server.SampleEvery.Seconds()), Samples: views(samples, sampleView)})
}

func sampleView(s server.Sample) ServerSample {
	return ServerSample{
		At: s.At.UTC(), Load1: s.Load1, MemoryPct: s.MemoryPct, DiskPct: s.DiskPct,
		CpuPct: s.CPUPct, WorkerSlotsPct: s.WorkerSlotsPct, DbDiskPct: s.DBDiskPct, RedisMemoryPct: s.RedisMemoryPct,
	}
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
	out := ServerPeers{Epoch: e.Epoch, Cidrs: e.CIDRs, Leaving: e.Leaving, Servers: []PeersBehind{}}
	for _, s := range behind {
		out.Servers = append(out.Servers, PeersBehind{
			ServerId: string(s.ServerID), Role: s.Role, Status: s.Status, AgentStatus: s.AgentStatus, Version: s.Version, AppliedVersion: s.AppliedVersion,
			ChangedAt: utc(s.ChangedAt), AppliedAt: utc(s.AppliedAt), Refused: optional(s.Refused),
		})
	}
	return c.JSON(http.StatusOK, out)
}

// ListServers shows a page of servers.
func (a *API) ListServers(c echo.Context, _ ListServersParams) error {
	return list(c, "servers", a.d.Store.ListServers, summary)
}

func summary(s server.Server) ServerSummary {
	return ServerSummary{
		ServerId: string(s.ServerID), Role: s.Role, Region: s.Region, InfraProvider: string(s.InfraProvider),
		Status: s.Status, StatusReason: optional(string(s.StatusReason)), StatusMessage: optional(s.StatusMessage),
		AgentStatus: s.AgentStatus, Host: optional(s.Host), Tags: s.Tags, CreatedAt: s.CreatedAt.UTC(),
		FleetId: optional(string(s.FleetID)), CordonedAt: utc(s.CordonedAt), CordonedBy: optional(s.CordonedBy), CordonReason: optional(s.CordonReason),
		PatchState: &s.PatchState,
	}
}

func (a *API) view(s server.Server, events []server.Event) Server {
	run := s.WorkflowID
	if s.DecommissionRequestedAt != nil {
		run = server.DecommissionWorkflowID(s.ServerID)
	}
	out := Server{
		ServerId: string(s.ServerID), Role: s.Role, Region: s.Region, InfraProvider: string(s.InfraProvider),
		Spec: specView(s.Spec), Tags: s.Tags, Status: s.Status, StatusReason: optional(string(s.StatusReason)),
		StatusMessage: optional(s.StatusMessage), ManagedBy: ServerManagedBy(s.ManagedBy), WorkflowId: run,
		RunUrl: optional(a.d.Runs.RunURL(run)), Generation: s.Generation, Attempt: s.Attempt, CreatedBy: optional(s.CreatedBy),
		CreatedAt: s.CreatedAt.UTC(), ActiveAt: utc(s.ActiveAt), TerminatedAt: utc(s.TerminatedAt), DecommissionRequestedAt: utc(s.DecommissionRequestedAt),
		ImportedFromPulumiAt: utc(s.ImportedFromPulumiAt), Timeline: []Event{},
		FleetId: optional(string(s.FleetID)), CordonedAt: utc(s.CordonedAt), CordonedBy: optional(s.CordonedBy), CordonReason: optional(s.CordonReason),
		Agent: Agent{
			Status: s.AgentStatus, Version: optional(s.AgentVersion), FirstSeenAt: utc(s.AgentFirstSeenAt), LastHeartbeatAt: utc(s.AgentLastHeartbeatAt),
			Load1: s.Load1, MemoryPct: s.MemoryPct, DiskPct: s.DiskPct,
			CpuPct: s.CPUPct, WorkerSlotsPct: s.WorkerSlotsPct, DbDiskPct: s.DBDiskPct, RedisMemoryPct: s.RedisMemoryPct, DockerState: optional(s.DockerState),
			ClockAheadSeconds: s.ClockAheadSeconds, ClockSkewed: clockSkewed(s),
			Tags: agentTags(s), TagsDiffer: tagsDiffer(s),
		},
		Provider: ProviderServer{
			ProviderServerId: optional(s.ProviderServerID), ServerType: optional(s.ServerType), Location: optional(s.Location),
			Image: optional(s.Image), Ipv4: optional(s.Host), Ipv6: optional(s.IPv6),
			Network: optional(string(s.NetworkID)), PrivateAddress: optional(s.PrivateAddress),
		},
	}
	if p := s.Patches; p != nil && s.PatchesAt != nil {
		out.Patches = &Patches{
			State: s.PatchState, Pending: p.Pending, Packages: packageUpdates(p.Packages), Since: utc(s.PatchesSince), RebootFor: optional(p.RebootFor), Failed: optional(p.Failed), ToldAt: s.PatchesAt.UTC(),
			RebootSince: atOrNil(p.RebootSince), CheckedAt: atOrNil(p.CheckedAt),
		}
	}
	for _, e := range events {
		ev := Event{Id: e.EventID, At: e.At.UTC(), Step: string(e.Step), Status: e.Status, Reason: optional(string(e.Reason)), Message: optional(e.Message), Actor: EventActor(e.Actor)}
		if e.Attempt > 0 {
			ev.Attempt = &e.Attempt
		}
		out.Timeline = append(out.Timeline, ev)
	}
	return out
}

func packageUpdates(list []server.PackageUpdate) []PackageUpdate {
	out := make([]PackageUpdate, len(list))
	for i, u := range list {
		out[i] = PackageUpdate{Name: u.Name, From: optional(u.From), To: u.To}
	}
	return out
}

// atOrNil is nil for a time that is not known.
func atOrNil(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	at = at.UTC()
	return &at
}

// agentTags are the tags that the host reports, nil before it has.
func agentTags(s server.Server) *[]string {
	if s.AgentTags == nil {
		return nil
	}
	return &s.AgentTags
}

func tagsDiffer(s server.Server) *bool {
	if s.AgentTags == nil {
		return nil
	}
	differ := !prego.SameTags(s.Tags, s.AgentTags)
	return &differ
}

func clockSkewed(s server.Server) *bool {
	if s.ClockAheadSeconds == nil {
		return nil
	}
	return &s.ClockSkewed
}

// PatchServer refuses to change a server: its tags are fixed while it lives
// (placement-pools, "Are Placement Pools dynamic?").
func (a *API) PatchServer(c echo.Context, id ServerID) error {
	if _, err := a.d.Store.GetServer(c.Request().Context(), id); err != nil {
		return err
	}
	return &prego.Error{Code: prego.CodeTagsImmutable, Field: "tags", Message: `are fixed while the server lives; replace it by servers that have them: ` +
		`POST /v1/fleets/{id}/actions {"action":"CLUSTER_REPLACE"} does that for a fleet, one after the other`}
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

func specView(s server.Spec) ServerSpec {
	out := ServerSpec{ServerType: optional(s.ServerType), Location: optional(s.Location), Image: optional(s.Image), Network: optional(string(s.Network))}
	if s.VolumeGB > 0 {
		out.VolumeGb = &s.VolumeGB
	}
	if len(s.Tags) > 0 {
		out.Tags = &s.Tags
	}
	return out
}
