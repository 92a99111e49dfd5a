package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
)

// Outcome is the result of a run, for people who open it in Temporal's UI. What it is about is in its rows; a run that
// fails has an error instead.
type Outcome struct {
	State    string         `json:"state"`            // what it came to: a state of the object, or done
	Reason   prego.Reason   `json:"reason,omitempty"` // why it is not the one that was wanted
	Message  string         `json:"message,omitempty"`
	OrgID    prego.OrgID    `json:"org_id,omitempty"`
	TenantID prego.TenantID `json:"tenant_id,omitempty"`
	ServerID prego.ServerID `json:"server_id,omitempty"`
	FleetID  prego.FleetID  `json:"fleet_id,omitempty"`
	Region   prego.Region   `json:"region,omitempty"`
	Role     prego.Role     `json:"role,omitempty"`
}

type outcomeKey struct{}

// WithOutcome gives a workflow its outcome as its result.
func WithOutcome[In any](run func(workflow.Context, In) error) func(workflow.Context, In) (Outcome, error) {
	return func(ctx workflow.Context, in In) (Outcome, error) {
		out := &Outcome{State: "done"}
		err := run(workflow.WithValue(ctx, outcomeKey{}, out), in)
		known := workflow.GetTypedSearchAttributes(ctx)
		org, _ := known.GetKeyword(AttrOrgID)
		tenant, _ := known.GetKeyword(AttrTenantID)
		server, _ := known.GetKeyword(AttrServerID)
		fleet, _ := known.GetKeyword(AttrFleetID)
		region, _ := known.GetKeyword(AttrRegion)
		role, _ := known.GetKeyword(AttrRole)
		out.OrgID, out.TenantID, out.ServerID = prego.OrgID(org), prego.TenantID(tenant), prego.ServerID(server)
		out.FleetID, out.Region, out.Role = prego.FleetID(fleet), prego.Region(region), prego.Role(role)
		return *out, err
	}
}

// setState sets a run's state in its result.
func setState(ctx workflow.Context, state string) {
	if out, ok := ctx.Value(outcomeKey{}).(*Outcome); ok {
		out.State = state
	}
}

// because adds to a run's result why its state is not the one that was wanted.
func because(ctx workflow.Context, reason prego.Reason, message string) {
	if out, ok := ctx.Value(outcomeKey{}).(*Outcome); ok {
		out.Reason, out.Message = reason, message
	}
}
