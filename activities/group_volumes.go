package activities

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// HostCommands runs a command on a host and returns what it printed. Commander is one.
type HostCommands interface {
	Bench(ctx context.Context, c server.BenchCommand) (stdout string, err error)
}

// hostVerbTime is how long a verb on a volume or an address may take: checking a file
// system after a power cut takes the longest.
const hostVerbTime = 5 * time.Minute

// codeKindUnknown is how an agent of a version before refuses a kind.
const codeKindUnknown = "kind_unknown"

// onHost runs a verb of a kind on a server. Verbs can be repeated, so each call has an
// audit id of its own.
func onHost(ctx context.Context, hosts HostCommands, srv server.Server, kind wire.CommandKind, args ...string) (string, error) {
	c := server.BenchCommand{
		Kind: string(kind), ServerID: srv.ServerID, Addr: srv.Host, AuditID: string(kind) + "-" + rand.Text(), Timeout: hostVerbTime, Args: args,
	}
	if activity.IsActivity(ctx) {
		c.WorkflowID = activity.GetInfo(ctx).WorkflowExecution.ID
	}
	return hosts.Bench(ctx, c)
}

// mountVolume mounts an attached volume on its server.
func (a *OrgResources) mountVolume(ctx context.Context, srv server.Server, v workload.Volume) (wire.VolumeReport, error) {
	var report wire.VolumeReport
	if a.Hosts == nil {
		return report, nil
	}
	out, err := onHost(ctx, a.Hosts, srv, wire.KindVolume, "mount", v.ProviderID)
	var ce *server.CommandError
	switch {
	case errors.As(err, &ce) && ce.Code == codeKindUnknown:
		return report, &server.ContainerError{Container: string(v.VolumeID), Message: fmt.Sprintf("the agent of server %s is of an earlier version, which mounts no volumes: rebuild the server", srv.ServerID)}
	case errors.As(err, &ce) && ce.ExitCode > 0:
		return report, &server.ContainerError{Container: string(v.VolumeID), Message: fmt.Sprintf("volume %s on server %s: %s", v.VolumeID, srv.ServerID, strings.TrimSpace(ce.Stderr))}
	case err != nil:
		return report, err
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Path != server.VolumeHostPath(v.ProviderID) {
		return report, fmt.Errorf("server %s mounted volume %s elsewhere: %s", srv.ServerID, v.VolumeID, out)
	}
	return report, nil
}

// unmountVolume unmounts a volume before it is detached. While its server is active this
// must succeed: what is in use stays attached. A server that is given up and does not
// answer loses the volume: detaching it keeps the server from writing to it.
func (a *OrgResources) unmountVolume(ctx context.Context, serverID prego.ServerID, v workload.Volume) error {
	if a.Hosts == nil || serverID == "" {
		return nil
	}
	srv, err := a.Store.GetServer(ctx, serverID)
	if err != nil {
		return fromStore(err)
	}
	if srv.Status == server.Terminated {
		return nil
	}
	asking := ctx
	if srv.Status != server.Active {
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(ctx, lastContact)
		defer cancel()
	}
	_, err = onHost(asking, a.Hosts, srv, wire.KindVolume, "unmount", v.ProviderID)
	var ce *server.CommandError
	switch {
	case err == nil, errors.As(err, &ce) && ce.Code == codeKindUnknown:
		return nil
	case errors.As(err, &ce) && ce.ExitCode > 0:
		return fmt.Errorf("volume %s on server %s: %s", v.VolumeID, serverID, strings.TrimSpace(ce.Stderr))
	case srv.Status != server.Active && ctx.Err() == nil:
		return nil
	}
	return err
}

// DetachIdleVolumes detaches the volumes of a process group that runs nothing, and is not
// to, from their server.
func (a *OrgResources) DetachIdleVolumes(ctx context.Context, groupID prego.GroupID) error {
	has, err := a.Store.GroupAttachments(ctx, groupID)
	if err != nil || len(has) == 0 {
		return err
	}
	idle, err := a.Store.GroupIdle(ctx, groupID)
	if err != nil || !idle {
		return err
	}
	return a.DetachGroupVolumes(ctx, GroupVolumesInput{GroupID: groupID})
}

// withVolumes runs f while nobody else moves the group's volumes.
func (a *OrgResources) withVolumes(ctx context.Context, groupID prego.GroupID, f func(context.Context) error) error {
	done, err := a.Store.WithGroupVolumes(ctx, groupID, f)
	if err == nil && !done {
		return fmt.Errorf("the volumes of %s are being moved by another step", groupID)
	}
	return err
}
