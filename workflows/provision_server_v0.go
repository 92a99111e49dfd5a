package workflows

// Provisionings that began before ProvisionServerInput had a Format. This file, and each
// "Format == 0" in the files of ProvisionServer, may be deleted once no run that such a
// version started is open: a day after the last worker and API of such a version stopped
// (PREGO_CAPACITY_WAIT bounds how long a run takes), together with the histories
// provision-*.json without a format in testdata.

import (
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

func (p *provisionServer) searchableV0(ctx workflow.Context) error {
	return workflow.UpsertTypedSearchAttributes(ctx,
		AttrServerID.ValueSet(string(p.in.ServerID)), AttrRegion.ValueSet(string(p.plan.Region)), AttrRole.ValueSet(string(p.plan.Role)),
		AttrOutcome.ValueSet("provisioning"))
}

// createFromV0 tries one candidate, in two steps.
func (p *provisionServer) createFromV0(ctx workflow.Context, c server.Candidate, f *activities.FoundationInput) error {
	p.attempt++
	p.details(ctx, fmt.Sprintf("creating %s (attempt %d)", c, p.attempt))
	var foundation activities.Foundation
	if err := workflow.ExecuteActivity(call(ctx, "firewall and placement group", callTotal), p.steps.PrepareFoundation, f).Get(ctx, &foundation); err != nil {
		return err
	}
	err := workflow.ExecuteActivity(call(ctx, fmt.Sprintf("create %s (attempt %d)", c, p.attempt), callTotal), p.steps.CreateServer,
		activities.CreateServerInput{ServerID: p.in.ServerID, Generation: p.in.Generation, Attempt: p.attempt, Candidate: c, Foundation: foundation},
	).Get(ctx, &p.handle)
	if errType(err) == activities.ErrTypeGroup {
		f.FullGroups = append(f.FullGroups, foundation.GroupName)
	}
	return err
}

func (p *provisionServer) awaitAgentV0(ctx workflow.Context, t server.BootTimeouts) error {
	if err := p.awaitHandshake(ctx, t); err != nil {
		return err
	}
	return p.await(ctx, t.Heartbeat.D(), 0, heartbeatWait())
}

// finishV0 starts the containers and makes the server active, in two steps.
func (p *provisionServer) finishV0(ctx workflow.Context) error {
	ref := serverRef(p.in, p.attempt)
	if !p.plan.Import && p.startsContainersV0(ctx) {
		p.details(ctx, "starting containers")
		err := workflow.ExecuteActivity(long(call(ctx, "start the containers of role "+string(p.plan.Role), p.plan.ContainerTimeout)),
			p.steps.StartContainers, ref).Get(ctx, nil)
		if err != nil {
			if isSuperseded(err) || temporal.IsCanceledError(err) {
				return err
			}
			return &stepError{reason: prego.ReasonFailedContainer, text: errorMessage(err), keep: true}
		}
	}
	return workflow.ExecuteActivity(write(ctx, "make the server active"), p.steps.ActivateServer, ref).Get(ctx, nil)
}

// startsContainersV0 keeps the behaviour of runs of shards and pools that began before
// those had containers.
func (p *provisionServer) startsContainersV0(ctx workflow.Context) bool {
	switch p.plan.Role {
	case prego.RoleApp, prego.RoleNode:
		return true
	case prego.RoleDBShard, prego.RoleRedisPool:
		return workflow.GetVersion(ctx, "containers-of-shards-and-pools", workflow.DefaultVersion, 1) == 1
	}
	return p.plan.Role.StartsContainers()
}
