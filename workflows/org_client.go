package workflows

import (
	"context"

	"go.temporal.io/sdk/temporal"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// orgPriority shares a task queue among orgs.
func orgPriority(org string) temporal.Priority {
	return temporal.Priority{FairnessKey: org, FairnessWeight: 1}
}

// ofOrg is how an org's run is started.
func ofOrg(org, id, summary string) start {
	return start{id: id, summary: summary, priority: orgPriority(org), attributes: []temporal.SearchAttributeUpdate{AttrOrgID.ValueSet(org)}}
}

// startForOrg starts an org's run unless one with its id is running.
func (c *Client) startForOrg(ctx context.Context, org, id, summary string, workflow, in any) error {
	_, err := c.startFor(ctx, ofOrg(org, id, summary), workflow, in)
	return err
}

// StartAddress starts the run of an IPv4 address, or signals the running one to read
// its row again.
func (c *Client) StartAddress(ctx context.Context, org, id string) error {
	return c.startOrFollow(ctx, ofOrg(org, workload.AddressWorkflowID(id), "IPv4 address "+id), again, ReconcileAddress, OrgResourceInput{ID: id})
}

// EnsureAddress starts the run of an IPv4 address unless it is running.
func (c *Client) EnsureAddress(ctx context.Context, id string) (bool, error) {
	return c.start(ctx, workload.AddressWorkflowID(id), "IPv4 address "+id, ReconcileAddress, OrgResourceInput{ID: id})
}

// StartVolume starts the run of a volume, or signals the running one to read its row
// again.
func (c *Client) StartVolume(ctx context.Context, org, id string) error {
	return c.startOrFollow(ctx, ofOrg(org, workload.VolumeWorkflowID(prego.VolumeID(id)), "Volume "+id), again, ReconcileVolume, OrgResourceInput{ID: id})
}

// EnsureVolume starts the run of a volume unless it is running.
func (c *Client) EnsureVolume(ctx context.Context, id prego.VolumeID) (bool, error) {
	return c.start(ctx, workload.VolumeWorkflowID(id), string("Volume "+id), ReconcileVolume, OrgResourceInput{ID: string(id)})
}

// StartSnapshot starts the run of a snapshot; success if it is already running.
func (c *Client) StartSnapshot(ctx context.Context, org, id string) error {
	return c.startForOrg(ctx, org, tenant.SnapshotWorkflowID(prego.SnapshotID(id)), "Snapshot "+id, SnapshotTenant, SnapshotInput{SnapshotID: prego.SnapshotID(id)})
}

// EnsureSnapshot does the same and reports whether it started one.
func (c *Client) EnsureSnapshot(ctx context.Context, id prego.SnapshotID) (bool, error) {
	return c.start(ctx, tenant.SnapshotWorkflowID(id), string("Snapshot "+id), SnapshotTenant, SnapshotInput{SnapshotID: id})
}

// StartSnapshotErase starts the run that deletes the files of a snapshot; success if it
// is already running.
func (c *Client) StartSnapshotErase(ctx context.Context, org, id string) error {
	return c.startForOrg(ctx, org, tenant.SnapshotEraseWorkflowID(prego.SnapshotID(id)), "Delete snapshot "+id, EraseSnapshot, SnapshotInput{SnapshotID: prego.SnapshotID(id)})
}

// EnsureSnapshotErase does the same and reports whether it started one.
func (c *Client) EnsureSnapshotErase(ctx context.Context, id prego.SnapshotID) (bool, error) {
	return c.start(ctx, tenant.SnapshotEraseWorkflowID(id), string("Delete snapshot "+id), EraseSnapshot, SnapshotInput{SnapshotID: id})
}

// StartRestore starts the run of a restore; success if it is already running.
func (c *Client) StartRestore(ctx context.Context, org, id string) error {
	return c.startForOrg(ctx, org, tenant.RestoreWorkflowID(id), "Restore "+id, RestoreTenant, RestoreJobInput{JobID: id})
}

// EnsureRestore does the same and reports whether it started one.
func (c *Client) EnsureRestore(ctx context.Context, id string) (bool, error) {
	return c.start(ctx, tenant.RestoreWorkflowID(id), "Restore "+id, RestoreTenant, RestoreJobInput{JobID: id})
}
