package api

import (
	"context"
	"encoding/hex"
	"net/http"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/store"
	"github.com/prego/prego/workload"
)

func newGroupID() string {
	id := uuid.New()
	return workload.NewGroupID(hex.EncodeToString(id[10:]))
}

// wake starts or signals a group's run after a change.
func (a *API) wake(c echo.Context, groupID prego.GroupID, orgID prego.OrgID) {
	a.started(c, string(groupID), func(ctx context.Context) error { return a.d.Runs.WakeGroup(ctx, groupID, orgID) })
}

// CreateGroup creates a process group.
func (a *API) CreateGroup(c echo.Context, envID prego.EnvID, _ CreateGroupParams) error {
	var in workload.CreateGroupRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	g, created, err := a.d.Store.CreateGroup(c.Request().Context(), prego.GroupID(a.d.NewGroupID()), envID, in, caller(c).By())
	if err != nil {
		return err
	}
	a.wake(c, g.GroupID, g.OrgID)
	return c.JSON(madeOrMet(created), a.groupView(g))
}

// ListGroups shows a page of an environment's groups.
func (a *API) ListGroups(c echo.Context, env EnvInPath, _ ListGroupsParams) error {
	return within(c, a.d.Store.GetEnv, "groups", store.Groups.In(a.d.Store), a.groupView, "env_id", string(env))
}

// ListAllGroups shows a page of the process groups of all envs.
func (a *API) ListAllGroups(c echo.Context, _ ListAllGroupsParams) error {
	return list(c, "groups", store.Groups.In(a.d.Store), a.groupView)
}

// GetGroup shows a process group.
func (a *API) GetGroup(c echo.Context, id GroupID) error {
	return show(c, a.d.Store.GetGroup, string(id), a.groupView)
}

// ScaleGroup sets a group's number of instances.
func (a *API) ScaleGroup(c echo.Context, id GroupID, _ ScaleGroupParams) error {
	var in ScaleGroup
	if err := decode(c, &in); err != nil {
		return err
	}
	g, err := a.d.Store.ScaleGroup(c.Request().Context(), id, in.Replicas, caller(c).By())
	return a.groupChanged(c, g, err)
}

// groupChanged wakes a changed group's run, and answers with the operation.
func (a *API) groupChanged(c echo.Context, g workload.Group, err error) error {
	if err != nil {
		return err
	}
	a.wake(c, g.GroupID, g.OrgID)
	return accepted(a, c, g, a.groupView)
}

// DeployGroup deploys another release of a group.
func (a *API) DeployGroup(c echo.Context, id GroupID, _ DeployGroupParams) error {
	var in DeployGroup
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := in.Spec.Validate("spec"); err != nil {
		return err
	}
	g, err := a.d.Store.DeployGroup(c.Request().Context(), id, in.Spec, in.RolloutPolicy, caller(c).By())
	return a.groupChanged(c, g, err)
}

// RollBackGroup goes back to an earlier release of a group.
func (a *API) RollBackGroup(c echo.Context, id GroupID, p RollBackGroupParams) error {
	var in RollBackGroup
	if err := decode(c, &in); err != nil {
		return err
	}
	g, err := a.d.Store.RollBackGroup(c.Request().Context(), id, deref(in.Release), caller(c).By(), deref(p.IdempotencyKey))
	return a.groupChanged(c, g, err)
}

// RestartGroup replaces all instances of a group.
func (a *API) RestartGroup(c echo.Context, id GroupID, p RestartGroupParams) error {
	g, err := a.d.Store.RestartGroup(c.Request().Context(), id, caller(c).By(), deref(p.IdempotencyKey))
	return a.groupChanged(c, g, err)
}

// PauseGroup holds up a group's rollouts.
func (a *API) PauseGroup(c echo.Context, id GroupID, _ PauseGroupParams) error {
	g, err := a.d.Store.PauseGroup(c.Request().Context(), id, true, caller(c).By())
	return a.groupChanged(c, g, err)
}

// ResumeGroup resumes a group's rollouts.
func (a *API) ResumeGroup(c echo.Context, id GroupID, _ ResumeGroupParams) error {
	g, err := a.d.Store.PauseGroup(c.Request().Context(), id, false, caller(c).By())
	return a.groupChanged(c, g, err)
}

// ListRollouts shows a page of a group's rollouts.
func (a *API) ListRollouts(c echo.Context, id GroupID, _ ListRolloutsParams) error {
	return within(c, a.d.Store.GetGroup, "rollouts", store.Rollouts.In(a.d.Store), rolloutView, "group_id", string(id))
}

// DeleteGroup deletes a group.
func (a *API) DeleteGroup(c echo.Context, id GroupID, _ DeleteGroupParams) error {
	g, err := a.d.Store.DeleteGroup(c.Request().Context(), id, caller(c).By())
	if err != nil {
		return err
	}
	a.wake(c, g.GroupID, g.OrgID)
	return c.NoContent(http.StatusNoContent)
}

// ListInstances shows a page of a group's instances.
func (a *API) ListInstances(c echo.Context, id GroupID, _ ListInstancesParams) error {
	return within(c, a.d.Store.GetGroup, "instances", store.Instances.In(a.d.Store), instanceView, "group_id", string(id))
}

// ListAllInstances shows a page of the instances of all groups.
func (a *API) ListAllInstances(c echo.Context, _ ListAllInstancesParams) error {
	return list(c, "instances", store.AllInstances.In(a.d.Store), instanceView)
}

// GetInstance shows an instance.
func (a *API) GetInstance(c echo.Context, id InstanceID) error {
	return show(c, a.d.Store.GetInstance, string(id), instanceView)
}

// InstanceLogs streams an instance's log: its container has the instance's name.
func (a *API) InstanceLogs(c echo.Context, id InstanceID, p InstanceLogsParams) error {
	i, err := a.d.Store.GetInstance(c.Request().Context(), string(id))
	if err != nil {
		return err
	}
	if i.State == workload.InstanceStopped {
		return prego.Errorf(prego.CodeContainerNotFound, "instance %s is stopped: its container is gone", id)
	}
	return a.containerLogs(c, i.ServerID, string(id), org.SessionOf{InstanceID: id}, p.Tail, p.Follow)
}

func (a *API) groupView(g workload.Group) ProcessGroup {
	out := viewOf[ProcessGroup](g)
	out.RunUrl = optional(a.d.Runs.RunURL(out.WorkflowId))
	return out
}

func instanceView(i workload.Instance) Instance {
	out := viewOf[Instance](i)
	out.Image, out.MemoryLimitBytes, out.CpuRequest = i.Spec.Image, i.Spec.MemoryLimitBytes, i.Spec.CPURequest
	if i.Spec.DiskRequestBytes > 0 {
		out.DiskRequestBytes = &i.Spec.DiskRequestBytes
	}
	return out
}

func rolloutView(r workload.Rollout) Rollout {
	out := viewOf[Rollout](r)
	out.SpecDigest = r.Spec.Digest()
	return out
}
