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

// hostVerbTime is how long a verb on a volume or an address may take: checking a file
// system after a power cut takes the longest.
const hostVerbTime = 5 * time.Minute

// onHost runs a verb of a kind on a server. Verbs can be repeated, so each call has a separate
// audit id.
func onHost(ctx context.Context, hosts Bench, srv server.Server, kind wire.CommandKind, args ...string) (string, error) {
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

// mounted records that a file system has the size of its volume: mounting grows it.
func (a *OrgResources) mounted(ctx context.Context, v workload.Volume, report wire.VolumeReport) error {
	if v.GrownBytes >= v.MadeBytes || !follows(report, v) {
		return nil
	}
	return a.Store.VolumeGrown(ctx, v.VolumeID, v.MadeBytes, v.MadeBytes)
}

// follows reports whether a file system fills its volume except for its own overhead, which is less
// than a twentieth. A report without a size stands for a host that is a directory.
func follows(report wire.VolumeReport, v workload.Volume) bool {
	return report.SizeBytes == 0 || report.SizeBytes >= v.MadeBytes-v.MadeBytes/20
}

// GrowVolume makes a volume at the provider as large as its row asks, and grows the file system
// where it is mounted. A volume on no server grows at its next mount.
func (a *OrgResources) GrowVolume(ctx context.Context, id prego.VolumeID) error {
	v, ok, err := a.Store.VolumeRecord(ctx, string(id))
	if err != nil || !ok || v.Status != workload.ResourceReady {
		return err
	}
	infra, err := a.infra(v.Provider)
	if err != nil {
		return err
	}
	a.hook("volume_grow/start")
	if err := infra.ResizeVolume(ctx, prego.VolumeID(v.ProviderID), v.GB()); err != nil {
		return fromInfra(err)
	}
	a.hook("volume_grow/resized")
	v.MadeBytes = v.SizeBytes
	if err := a.Store.VolumeGrown(ctx, id, v.MadeBytes, 0); err != nil {
		return err
	}
	at, err := a.Store.VolumeServer(ctx, id)
	if err != nil || at == "" || a.Hosts == nil {
		return err
	}
	srv, err := a.Store.GetServer(ctx, at)
	if err != nil {
		return fromStore(err)
	}
	out, err := onHost(ctx, a.Hosts, srv, wire.KindVolume, "grow", v.ProviderID)
	if err != nil {
		return err
	}
	var report wire.VolumeReport
	if err := json.Unmarshal([]byte(out), &report); err != nil || !follows(report, v) {
		return fmt.Errorf("the file system of volume %s on server %s does not follow yet: %s", id, at, out)
	}
	a.hook("volume_grow/grown")
	return a.Store.VolumeGrown(ctx, id, v.MadeBytes, v.MadeBytes)
}

// unmountVolume unmounts a volume before it is detached. While its server is active this must
// succeed: a volume in use stays attached. A server that is given up and does not answer loses the
// volume: detaching it keeps the server from writing to it.
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
	case err == nil:
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

// withVolumes runs f while holding the lock on the group's volumes.
func (a *OrgResources) withVolumes(ctx context.Context, groupID prego.GroupID, f func(context.Context) error) error {
	done, err := a.Store.WithGroupVolumes(ctx, groupID, f)
	if err == nil && !done {
		return fmt.Errorf("the volumes of %s are being moved by another step", groupID)
	}
	return err
}
