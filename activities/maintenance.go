package activities

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// Rebooter restarts a host at its provider: by its button, which it may ignore, or by
// cutting its power.
type Rebooter interface {
	RebootServer(ctx context.Context, providerServerID prego.ServerID, hard bool) error
	// ResizeServer gives a host another type, and switches it off and on for that. A refusal leaves it
	// on and returns an InfraError that is permanent or suggests another type. It can be repeated at
	// any step.
	ResizeServer(ctx context.Context, providerServerID prego.ServerID, serverType string) error
}

// Maintenances are the steps that empty servers and work on them.
type Maintenances struct {
	Store  *store.Store
	Runs   Runs
	Limits server.MaintenanceLimits
	// Quiet is how long a maintenance's row may be unchanged before its run is looked for.
	Quiet time.Duration
	Log   *zap.Logger
	// Reboot restarts hosts, by provider.
	Reboot map[prego.InfraProviderID]Rebooter
	// Window is when servers are patched by themselves.
	Window server.PatchWindow
	// Hosts runs the agents' verbs; nil where no host has any.
	Hosts Bench
	// LeaveDNS takes an edge's addresses out of all records; nil if none are kept.
	LeaveDNS func(ctx context.Context, serverID prego.ServerID) error
	// Capacity is called when a server takes newcomers again; may be nil.
	Capacity func(ctx context.Context, serverID prego.ServerID)
	Hooks
	// NewMoveID makes the id of a move.
	NewMoveID func() prego.MoveID
}

// MaintenanceProgress is the next step of a maintenance's run.
type MaintenanceProgress struct {
	Status  server.MaintenanceStatus `json:"status"`
	Kind    server.MaintenanceKind   `json:"kind"`
	Role    prego.Role               `json:"role,omitempty"`
	Region  prego.Region             `json:"region,omitempty"`
	Message string                   `json:"message,omitempty"`
	Act     server.MaintenanceAct    `json:"act,omitempty"`
	// Changed is set if something was begun: the next look is soon.
	Changed bool `json:"changed,omitempty"`
}

// StepMaintenance decides the next step for a server that is being emptied, and wakes the groups
// whose instances must leave.
func (a *Maintenances) StepMaintenance(ctx context.Context, serverID prego.ServerID) (MaintenanceProgress, error) {
	a.hook("maintenance/step")
	st, err := a.Store.StepMaintenance(ctx, serverID, a.Limits)
	if err != nil {
		return MaintenanceProgress{}, permanentIfCoded(err)
	}
	a.hook("maintenance/stepped")
	for _, g := range st.Groups {
		if err := a.Runs.WakeGroup(ctx, g.GroupID, g.OrgID); err != nil {
			a.Log.Warn("process group not woken; the sweep does it", zap.String("group_id", string(g.GroupID)), zap.Error(err))
		}
	}
	a.moveTenants(ctx, serverID, st)
	if len(st.Runs) > 0 {
		if err := a.Runs.WakeRuns(ctx, st.Runs); err != nil {
			a.Log.Warn("other maintenances are not woken; they look by themselves", zap.Error(err))
		}
	}
	if st.Opened && a.Capacity != nil {
		a.Capacity(ctx, serverID)
	}
	return MaintenanceProgress{Status: st.Status, Kind: st.Kind, Role: st.Role, Region: st.Region, Message: st.Message, Act: st.Act, Changed: len(st.Groups)+len(st.Tenants) > 0}, nil
}

// moveTenants begins the moves of tenants, and undoes those of a maintenance that ended. The next
// check repeats failed ones.
func (a *Maintenances) moveTenants(ctx context.Context, serverID prego.ServerID, st server.MaintenanceStep) {
	for _, id := range st.Tenants {
		m, err := a.Store.RequestMove(ctx, tenant.MoveAsked{ID: a.NewMoveID(), TenantID: id, Why: string(st.Kind) + " of " + string(serverID), By: string(prego.ActorWorkflow), MaintenanceOf: serverID})
		if err == nil {
			a.hook("maintenance/move")
			_, err = a.Runs.EnsureMove(ctx, m.MoveID)
		}
		if err != nil {
			a.Log.Warn("a tenant's move did not begin", zap.String("tenant_id", string(id)), zap.Error(err))
		}
	}
	for _, id := range st.Cancelled {
		if err := a.Runs.CancelMove(ctx, id); err != nil {
			a.Log.Warn("a tenant's move is not cancelled yet; its run reads it from the row", zap.String("move_id", string(id)), zap.Error(err))
		}
	}
}

// MakeReplacement asks for the server that takes a server's place, and starts its run.
func (a *Maintenances) MakeReplacement(ctx context.Context, serverID prego.ServerID) error {
	srv, err := a.Store.MakeReplacement(ctx, serverID)
	if err != nil {
		return permanentIfCoded(err)
	}
	a.hook("maintenance/replacement")
	if srv == nil || srv.Status != server.Provisioning {
		return nil
	}
	_, err = a.Runs.EnsureProvision(ctx, srv.ServerID, srv.Generation)
	return err
}

// LeaveMaintenanceDNS takes the addresses of an edge that is being emptied out of all records, and
// waits until no resolver has them.
func (a *Maintenances) LeaveMaintenanceDNS(ctx context.Context, serverID prego.ServerID) error {
	if a.LeaveDNS != nil {
		if err := a.LeaveDNS(ctx, serverID); err != nil {
			return err
		}
	}
	return a.Store.MaintenanceLeftDNS(ctx, serverID)
}

// ResizeServer gives a host its new type. How long it is away is counted from here.
func (a *Maintenances) ResizeServer(ctx context.Context, id prego.ServerID) error {
	srv, err := a.Store.GetServer(ctx, id)
	if err != nil {
		return fromStore(err)
	}
	d, err := a.Store.LastMaintenance(ctx, id)
	if err != nil {
		return permanentIfCoded(err)
	}
	if d.Kind != server.MaintenanceResize || d.Status != server.MaintenanceFinishing {
		return nil // it has ended meanwhile
	}
	infra, ok := a.Reboot[srv.InfraProvider]
	if !ok {
		return a.Store.ResizeRefused(ctx, id, "provider "+string(srv.InfraProvider)+" resizes no servers")
	}
	if err := a.Store.MaintenanceActed(ctx, id); err != nil {
		return err
	}
	a.hook("maintenance/resize")
	err = infra.ResizeServer(ctx, prego.ServerID(srv.ProviderServerID), d.ServerType)
	var refused *server.InfraError
	switch {
	case err == nil:
		a.hook("maintenance/resized")
		return a.Store.ServerResized(ctx, id, d.ServerType)
	case errors.As(err, &refused) && (refused.Class == server.InfraPermanent || refused.Class == server.InfraNext || refused.Class == server.InfraQuota):
		return a.Store.ResizeRefused(ctx, id, refused.Error())
	}
	return fromInfra(err)
}

// RebootInput names a server to restart.
type RebootInput struct {
	ServerID prego.ServerID `json:"server_id"`
	Hard     bool           `json:"hard,omitempty"` // by cutting its power
}

// RebootServer asks the provider to restart a host. Whether it did is seen by its agent's next
// boot id. A step that dies between the row and the call is repeated as a reset when the host
// does not come back; one that dies after the call is not.
func (a *Maintenances) RebootServer(ctx context.Context, in RebootInput) error {
	srv, err := a.Store.GetServer(ctx, in.ServerID)
	if err != nil {
		return fromStore(err)
	}
	infra, ok := a.Reboot[srv.InfraProvider]
	if !ok {
		return permanentError(ErrTypePermanent, "provider "+string(srv.InfraProvider)+" restarts no servers", nil)
	}
	if err := a.Store.MaintenanceActed(ctx, in.ServerID); err != nil {
		return err
	}
	a.hook("maintenance/reboot")
	if err := infra.RebootServer(ctx, prego.ServerID(srv.ProviderServerID), in.Hard); err != nil {
		return fromInfra(err)
	}
	a.hook("maintenance/rebooted")
	return nil
}

// DeleteReplaced decommissions a server that was replaced. If the server is in use again, the step
// fails and is repeated.
func (a *Maintenances) DeleteReplaced(ctx context.Context, serverID prego.ServerID) error {
	srv, err := a.Store.RequestDecommission(ctx, serverID, "its replacement")
	if err != nil {
		return fromStore(err)
	}
	a.hook("maintenance/deleting")
	if srv.Status == server.Decommissioning {
		_, err = a.Runs.EnsureDecommission(ctx, serverID)
	}
	return err
}
