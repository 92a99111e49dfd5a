package activities

import (
	"context"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/scale"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// FleetActions are the steps of fleet actions.
type FleetActions struct {
	Store *store.Store
	Runs  Runs
	// Parallel is how many servers of one action are created or removed concurrently.
	Parallel int
	Poll     time.Duration // how often a draining server is checked
	Hooks
	// TenantsMove is set if there is object storage, through which tenants move.
	TenantsMove bool
	// Capacity is called when a server becomes usable again; may be nil.
	Capacity func(ctx context.Context, serverID prego.ServerID)
}

// FleetRef names a fleet's action.
type FleetRef struct {
	FleetID prego.FleetID `json:"fleet_id"`
	Seq     int           `json:"seq"`
}

// FleetActionTaken is the action to run next.
type FleetActionTaken struct {
	Seq     int                      `json:"seq"` // 0 if there is none
	Action  server.FleetActionKind   `json:"action,omitempty"`
	Status  server.FleetActionStatus `json:"status,omitempty"`
	Message string                   `json:"message,omitempty"`
	Poll    time.Duration            `json:"poll,omitempty"`
}

// BeginFleetAction takes the oldest queued action of a fleet, evaluates the policies,
// and records the plan. A repeated step returns the action it took.
func (a *FleetActions) BeginFleetAction(ctx context.Context, fleetID prego.FleetID) (FleetActionTaken, error) {
	act, err := a.Store.BeginFleetAction(ctx, fleetID, scale.Plan)
	if err != nil {
		return FleetActionTaken{}, permanentIfCoded(err)
	}
	if act == nil {
		return FleetActionTaken{}, nil
	}
	a.hook("fleet/planned")
	return FleetActionTaken{Seq: act.Seq, Action: act.Action, Status: act.Status, Message: act.Message, Poll: a.Poll}, nil
}

// FleetBatch is the next batch of steps, either all creates or all deletes.
type FleetBatch struct {
	Creates []ServerRef              `json:"creates,omitempty"`
	Deletes []string                 `json:"deletes,omitempty"`
	Refused []server.FleetStepResult `json:"refused,omitempty"` // steps whose server could not be requested
}

// NextFleetBatch requests the servers to create next, or closes the servers to delete
// to new tenants.
func (a *FleetActions) NextFleetBatch(ctx context.Context, in FleetRef) (FleetBatch, error) {
	b, err := a.Store.NextFleetBatch(ctx, in.FleetID, in.Seq, a.Parallel)
	if err != nil {
		return FleetBatch{}, permanentIfCoded(err)
	}
	a.hook("fleet/requested")
	var out FleetBatch
	for _, s := range b.Steps {
		switch {
		case s.State == server.FleetStepFailed:
			out.Refused = append(out.Refused, server.FleetStepResult{ServerID: s.ServerID, Op: s.Op, State: s.State, Message: s.Message})
		case s.Op == server.StepOpCreate:
			srv, err := a.Store.GetServer(ctx, s.ServerID)
			if err != nil {
				return out, fromStore(err)
			}
			out.Creates = append(out.Creates, ServerRef{ServerID: srv.ServerID, Generation: srv.Generation})
		default:
			out.Deletes = append(out.Deletes, string(s.ServerID))
		}
	}
	return out, nil
}

// FleetResults are the outcomes of steps.
type FleetResults struct {
	Fleet   FleetRef                 `json:"fleet"`
	Results []server.FleetStepResult `json:"results"`
}

// RecordFleetSteps records the outcomes of steps, cleans up after servers that failed, and replans
// missing servers over the remaining regions.
func (a *FleetActions) RecordFleetSteps(ctx context.Context, in FleetResults) error {
	for i, r := range in.Results {
		if r.Op != server.StepOpCreate || r.State != server.FleetStepFailed {
			continue
		}
		srv, err := a.Store.GetServer(ctx, r.ServerID)
		if prego.CodeOf(err) == prego.CodeServerNotFound {
			continue // it was refused
		}
		if err != nil {
			return fromStore(err)
		}
		// The row decides, not how the run ended: a run stopped by hand leaves a server
		// behind. A server whose containers failed is kept for debugging and stays a
		// member.
		switch {
		case srv.Status == server.Active:
			in.Results[i].State, in.Results[i].Message = server.FleetStepDone, ""
		case srv.Status == server.Provisioning, srv.Status == server.Failed && srv.StatusReason != prego.ReasonFailedContainer:
			status, err := a.drain(ctx, r.ServerID, in.Fleet)
			if err != nil {
				return err
			}
			if status == server.Decommissioning {
				if _, err := a.Runs.EnsureDecommission(ctx, r.ServerID); err != nil {
					return err
				}
			}
		}
	}
	return permanentIfCoded(a.Store.RecordFleetSteps(ctx, in.Fleet.FleetID, in.Fleet.Seq, in.Results, scale.Replan))
}

func (a *FleetActions) drain(ctx context.Context, serverID prego.ServerID, by FleetRef) (server.Status, error) {
	srv, err := a.Store.DecommissionMember(ctx, serverID, fmt.Sprintf("%s action %d", by.FleetID, by.Seq))
	if err != nil {
		return "", err
	}
	return srv.Status, nil
}

// RemoveServerInput names a server to remove.
type RemoveServerInput struct {
	Fleet    FleetRef       `json:"fleet"`
	ServerID prego.ServerID `json:"server_id"`
}

// RemoveServerResult reports the progress of a drain.
type RemoveServerResult struct {
	Occupied bool `json:"occupied,omitempty"` // tenants are on it
	Gone     bool `json:"gone,omitempty"`
	// Why is the reason for keeping an occupied server.
	Why string `json:"why,omitempty"`
	// Left is the remaining grace period of an occupied server.
	Left time.Duration `json:"left,omitempty"`
	// Cancelled is set if the action was cancelled: an occupied server then stays.
	Cancelled bool `json:"cancelled,omitempty"`
}

// RemoveFleetServer sets a server without tenants to draining; its decommissioning does
// the rest.
func (a *FleetActions) RemoveFleetServer(ctx context.Context, in RemoveServerInput) (RemoveServerResult, error) {
	status, err := a.drain(ctx, in.ServerID, in.Fleet)
	switch prego.CodeOf(err) {
	case prego.CodeServerHasTenants:
		return a.occupied(ctx, in)
	case prego.CodeServerNotFound:
		return RemoveServerResult{Gone: true}, nil
	}
	if err != nil {
		return RemoveServerResult{}, err
	}
	a.hook("fleet/draining")
	return RemoveServerResult{Gone: status == server.Terminated}, nil
}

// The least time that a fleet waits for a server's instances, and its moving tenants, to leave. A
// shorter grace period for tenants does not reduce it.
const (
	instancesLeave = 30 * time.Minute
	tenantsLeave   = 6 * time.Hour
)

// occupied returns how much longer to wait for a server that has tenants. What can move from it
// does so meanwhile.
func (a *FleetActions) occupied(ctx context.Context, in RemoveServerInput) (RemoveServerResult, error) {
	act, err := a.Store.GetFleetAction(ctx, in.Fleet.FleetID, in.Fleet.Seq)
	if err != nil {
		return RemoveServerResult{}, permanentIfCoded(err)
	}
	grace, moving := scale.GracePeriod(act), time.Duration(0)
	by := fmt.Sprintf("%s action %d", in.Fleet.FleetID, in.Fleet.Seq)
	if !act.CancelRequested {
		within := max(grace, instancesLeave)
		if a.TenantsMove {
			within = max(grace, tenantsLeave)
		}
		left, begun, err := a.Store.EmptyFleetMember(ctx, in.ServerID, by, within, a.TenantsMove)
		if err != nil {
			return RemoveServerResult{}, err
		}
		if begun {
			if err := a.Runs.WakeMaintenance(ctx, in.ServerID); err != nil {
				return RemoveServerResult{}, err
			}
		}
		moving = left
	}
	// By the database's clock, since it was closed to new tenants: a later run
	// continues the same period.
	closed, err := a.Store.CordonedFor(ctx, in.ServerID)
	if err != nil {
		return RemoveServerResult{}, err
	}
	out := RemoveServerResult{Occupied: true, Cancelled: act.CancelRequested, Left: max(0, grace-closed, moving)}
	if out.Left == 0 {
		out.Why, err = a.Store.WhyOccupied(ctx, in.ServerID, by, a.TenantsMove)
	}
	return out, err
}

// KeepFleetServer opens a server that could not be drained to placement again.
func (a *FleetActions) KeepFleetServer(ctx context.Context, serverID prego.ServerID) error {
	ended, err := a.Store.KeepFleetMember(ctx, serverID)
	if err == nil && ended {
		err = a.Runs.WakeMaintenance(ctx, serverID)
	}
	if err == nil {
		err = a.Store.Uncordon(ctx, serverID)
	}
	if err == nil && a.Capacity != nil {
		a.Capacity(ctx, serverID)
	}
	return err
}

// FleetServerState is the state of a server.
type FleetServerState struct {
	Status  server.Status `json:"status"`
	Reason  prego.Reason  `json:"reason,omitempty"`
	Message string        `json:"message,omitempty"`
}

// ReadFleetServer reads the state of a server.
func (a *FleetActions) ReadFleetServer(ctx context.Context, serverID prego.ServerID) (FleetServerState, error) {
	srv, err := a.Store.GetServer(ctx, serverID)
	return FleetServerState{Status: srv.Status, Reason: srv.StatusReason, Message: srv.StatusMessage}, fromStore(err)
}

// FleetActionResult is the outcome of an action.
type FleetActionResult struct {
	Status  server.FleetActionStatus `json:"status"`
	Message string                   `json:"message,omitempty"`
}

// FinishFleetAction closes an action with the outcome of its steps.
func (a *FleetActions) FinishFleetAction(ctx context.Context, in FleetRef) (FleetActionResult, error) {
	act, err := a.Store.FinishFleetAction(ctx, in.FleetID, in.Seq)
	return FleetActionResult{Status: act.Status, Message: act.Message}, permanentIfCoded(err)
}
