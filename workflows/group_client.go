package workflows

import (
	"context"
	"errors"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/workload"
)

// groupPriority is that of process groups: after tenants, shared among the orgs.
const groupPriority = 4

// WakeRuns signals runs that something changed for them. An ended run needs no signal.
func (c *Client) WakeRuns(ctx context.Context, runs []string) error {
	var errs []error
	for _, id := range runs {
		errs = append(errs, unlessEnded(c.Temporal.SignalWorkflow(ctx, id, "", SignalDemand, "turn"), "wake %s", id))
	}
	return errors.Join(errs...)
}

// WakeGroup signals a process group's run that something changed, starting it if
// necessary. The run reads from the rows what changed.
func (c *Client) WakeGroup(ctx context.Context, groupID prego.GroupID, orgID prego.OrgID) error {
	id := workload.GroupWorkflowID(groupID)
	return c.signalWithStart(ctx, id, SignalDemand, "changed", client.StartWorkflowOptions{
		StaticSummary: string("Process group " + groupID), Priority: temporal.Priority{PriorityKey: groupPriority, FairnessKey: string(orgID), FairnessWeight: 1},
	}, ReconcileGroup, ReconcileGroupInput{GroupID: groupID})
}
