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

// mountAttached mounts a volume that the provider has attached to a server. If the host can't, because it has no
// device of that volume or a mount whose device is gone, the volume is attached once more. That is safe: nothing has
// it mounted then, and a host refuses to unmount what a container uses. If it still can't, the volume's row has the
// reason.
func (a *OrgResources) mountAttached(ctx context.Context, infra OrgInfra, srv server.Server,
	v workload.Volume,
) (report wire.VolumeReport, err error) {
	if v.Reason == prego.ReasonNotAttached { // a mount of the device that it was may be left
		err = a.attachAgain(ctx, infra, srv, v)
	}
	var unable *server.ContainerError
	if err == nil {
		if report, err = a.mountVolume(ctx, srv, v); errors.As(err, &unable) {
			if again := a.attachAgain(ctx, infra, srv, v); again == nil {
				report, err = a.mountVolume(ctx, srv, v)
			}
		}
	}
	switch {
	case err == nil && v.Reason == prego.ReasonNotAttached:
		return report, a.Store.VolumeAttached(ctx, v.VolumeID)
	case errors.As(err, &unable):
		return report, errors.Join(err, a.Store.VolumeNotAttached(ctx, v.VolumeID, unable.Message))
	}
	return report, err
}

// attachAgain detaches a volume from its server, where nothing uses it, and attaches it to the same one.
func (a *OrgResources) attachAgain(ctx context.Context, infra OrgInfra, srv server.Server, v workload.Volume) error {
	if err := a.detach(ctx, srv.ServerID, v); err != nil {
		return err
	}
	return fromInfra(infra.AttachVolume(ctx, prego.VolumeID(v.ProviderID), prego.ServerID(srv.ProviderServerID)))
}

// checkAttached compares what is attached in the rows with what the provider listed. A volume may be detached there by
// hand: its group then runs without it. had are the rows from before the list was made.
func (a *OrgResources) checkAttached(ctx context.Context, had []workload.AttachedVolume,
	listed []server.OwnedResource,
) (astray int, err error) {
	on := make(map[string]string, len(had))
	for _, o := range listed {
		if o.Kind == server.ResourceVolume {
			on[o.ProviderID] = o.AttachedTo
		}
	}
	for _, v := range had {
		if at, exists := on[v.ProviderID]; !exists || at == v.ProviderServerID {
			continue
		}
		_, lockErr := a.Store.WithGroupVolumes(ctx, v.GroupID, func(ctx context.Context) error {
			found, err := a.attachedElsewhere(ctx, v)
			if found {
				astray++
			}
			return err
		})
		err = errors.Join(err, lockErr)
	}
	return astray, err
}

// attachedElsewhere records that a volume is not attached where its row has it, and has its group's instance start
// again if the host agrees: what starts it attaches the volume. No other step of the group moves volumes meanwhile.
func (a *OrgResources) attachedElsewhere(ctx context.Context, was workload.AttachedVolume) (found bool, err error) {
	now, err := a.Store.AttachedVolumes(ctx, was.Provider, was.VolumeID)
	if err != nil || len(now) == 0 || now[0].ServerID != was.ServerID {
		return false, err
	}
	infra, err := a.infra(was.Provider)
	if err != nil {
		return false, err
	}
	at, err := infra.VolumeOn(ctx, prego.VolumeID(was.ProviderID))
	if err != nil || at == was.ProviderServerID {
		return false, fromInfra(err)
	}
	why := fmt.Sprintf("the provider has it attached to no server, instead of %s", was.ServerID)
	if at != "" {
		why = fmt.Sprintf("the provider has it attached to its server %s, instead of %s: detach it there", at,
			was.ServerID)
	}
	if err := a.Store.VolumeNotAttached(ctx, was.VolumeID, why); err != nil || at != "" || a.Hosts == nil {
		return true, err
	}
	srv, err := a.Store.GetServer(ctx, was.ServerID)
	if err != nil || srv.Status != server.Active {
		return true, err
	}
	v, ok, err := a.Store.VolumeRecord(ctx, string(was.VolumeID))
	if err != nil || !ok {
		return true, err
	}
	_, err = a.mountVolume(ctx, srv, v)
	if _, gone := errors.AsType[*server.ContainerError](err); !gone {
		return true, err // the host still has it, or can't be asked
	}
	for _, id := range now[0].Instances {
		if _, err := a.Store.InstanceFailed(ctx, id, fmt.Sprintf("volume %s was detached from its server",
			was.VolumeID)); err != nil {
			return true, err
		}
	}
	return true, a.Runs.WakeGroup(ctx, was.GroupID, was.OrgID)
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
func (a *OrgResources) GrowVolume(ctx context.Context, id prego.VolumeID) (err error) {
	defer func() { a.refused(ctx, OrgResourceRef{Kind: server.ResourceVolume, ID: string(id)}, err) }()
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
