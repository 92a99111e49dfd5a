package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/workload"
)

// OrgInfra is the part of a cloud that orgs' resources use. Every error that it returns
// is a *server.InfraError.
type OrgInfra interface {
	EnsureFloatingIP(ctx context.Context, p server.FloatingIPParams) (id, address string, err error)
	// AssignFloatingIP has an address routed to a server, and to no other one.
	AssignFloatingIP(ctx context.Context, addressID string, serverID prego.ServerID) error
	EnsureVolume(ctx context.Context, p server.VolumeParams) (string, error)
	FindNamed(ctx context.Context, kind server.ResourceKind, name string) (id string, err error)
	AttachVolume(ctx context.Context, volumeID prego.VolumeID, serverID prego.ServerID) error
	DetachVolume(ctx context.Context, volumeID prego.VolumeID) error
	// VolumeOn is the provider's id of the server that has a volume, "" for none.
	VolumeOn(ctx context.Context, volumeID prego.VolumeID) (providerServerID string, err error)
	// ResizeVolume makes a volume at least so large.
	ResizeVolume(ctx context.Context, volumeID prego.VolumeID, gb int) error
	protection
}

// OrgResources are the steps in the lives of orgs' addresses and volumes.
type OrgResources struct {
	Store *store.Store
	Infra map[prego.InfraProviderID]OrgInfra
	Runs  Runs
	// Backups makes the last backup of a volume before it is destroyed; nil: there is none.
	Backups *Backups
	// Hosts mounts and unmounts volumes on servers; nil in tests of the provider's side.
	Hosts        Bench
	Environment  string
	CapacityWait time.Duration // how long to wait for the provider's capacity
	CapacityPoll time.Duration
	Log          *zap.Logger
	Hooks
}

// OrgResourceRef names a volume or an address, which is a floating_ip.
type OrgResourceRef struct {
	Kind server.ResourceKind `json:"kind"`
	ID   string              `json:"id"`
}

// orgResource is what addresses and volumes have in common.
type orgResource struct {
	kind                            server.ResourceKind // at the provider
	org, name, location, providerID string
	provider                        prego.InfraProviderID
	status                          workload.ResourceStatus
	address                         workload.IPv4Allocation
	volume                          workload.Volume
}

func (a *OrgResources) read(ctx context.Context, ref OrgResourceRef) (r orgResource, ok bool, err error) {
	switch ref.Kind {
	case server.ResourceFloatingIP:
		v, ok, err := a.Store.IPv4Record(ctx, ref.ID)
		return orgResource{kind: ref.Kind, org: string(v.OrgID), name: v.Name, location: v.Location, providerID: v.ProviderID, provider: v.Provider, status: v.Status, address: v}, ok, err
	case server.ResourceVolume:
		v, ok, err := a.Store.VolumeRecord(ctx, ref.ID)
		return orgResource{kind: ref.Kind, org: string(v.OrgID), name: v.ProviderName, location: v.Location, providerID: v.ProviderID, provider: v.Provider, status: v.Status, volume: v}, ok, err
	case server.ResourceServer, server.ResourceFirewall, server.ResourcePlacementGroup, server.ResourcePrimaryIP:
	}
	return r, false, permanentError(ErrTypePermanent, "orgs own no "+string(ref.Kind), nil)
}

func (a *OrgResources) infra(id prego.InfraProviderID) (OrgInfra, error) {
	p, ok := a.Infra[id]
	if !ok {
		return nil, permanentError(ErrTypePermanent, "this worker has no adapter for provider "+string(id), nil)
	}
	return p, nil
}

// OrgResourcePlan is the state of a resource, and the numbers that its run uses.
type OrgResourcePlan struct {
	OrgID  prego.OrgID             `json:"org_id,omitempty"`
	Status workload.ResourceStatus `json:"status,omitempty"` // "" once it is deleted
	Move   bool                    `json:"move,omitempty"`   // a ready address must go to another edge
	Grow   bool                    `json:"grow,omitempty"`   // a ready volume must grow
	// LastBackup: a released volume must be backed up first.
	LastBackup bool          `json:"last_backup,omitempty"`
	Kept       time.Duration `json:"kept,omitempty"` // for how long a released volume stays as it is
	Left       int           `json:"left,omitempty"` // ended attachments that are still to be detached
	Wait       time.Duration `json:"wait"`
	Poll       time.Duration `json:"poll"`
}

// Settled reports whether there is nothing to do.
func (p OrgResourcePlan) Settled() bool {
	return p.Left == 0 && !p.Move && !p.Grow && p.Status != workload.ResourcePending && p.Status != workload.ResourceReleasing
}

// PlanOrgResource reads the resource's row.
func (a *OrgResources) PlanOrgResource(ctx context.Context, ref OrgResourceRef) (OrgResourcePlan, error) {
	out := OrgResourcePlan{Wait: a.CapacityWait, Poll: a.CapacityPoll}
	r, ok, err := a.read(ctx, ref)
	if err != nil || !ok {
		return out, err
	}
	out.OrgID, out.Status = prego.OrgID(r.org), r.status
	if ref.Kind == server.ResourceFloatingIP && r.status == workload.ResourceReady {
		home, err := a.Store.AddressHome(ctx, ref.ID)
		if err != nil {
			return out, err
		}
		out.Move = home.Moves()
	}
	if ref.Kind == server.ResourceVolume {
		left, err := a.Store.LeftAttached(ctx, prego.VolumeID(ref.ID))
		if err != nil {
			return out, err
		}
		out.Left = len(left)
		at, err := a.Store.VolumeServer(ctx, prego.VolumeID(ref.ID))
		if err != nil {
			return out, err
		}
		out.Grow = r.volume.Grows(at != "")
		if until := r.volume.KeptUntil; until != nil {
			out.Kept = max(time.Until(*until), 0) + time.Second // by the database's clock it is over then
		}
		if a.Backups != nil && r.status == workload.ResourceReleasing {
			if out.LastBackup, err = a.Backups.WantsFinalOf(ctx, prego.VolumeID(ref.ID)); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// MakeOrgResource creates what a row asks for. The provider-side name comes from the
// row, so of all calls, repeated or late, one creates it and the others find it.
func (a *OrgResources) MakeOrgResource(ctx context.Context, ref OrgResourceRef) error {
	r, ok, err := a.read(ctx, ref)
	if err != nil || !ok || r.status != workload.ResourcePending {
		return err
	}
	infra, err := a.infra(r.provider)
	if err != nil {
		return err
	}
	a.hook("org_resource/start")
	if err := a.Store.Intend(ctx, r.provider, "", 0, server.ResourceIntent{Kind: r.kind, Name: r.name}); err != nil {
		return err
	}
	a.hook("org_resource/intended")
	var id, address string
	if ref.Kind == server.ResourceFloatingIP {
		id, address, err = infra.EnsureFloatingIP(ctx, server.FloatingIPParams{Environment: a.Environment, OrgID: prego.OrgID(r.org), Name: r.name, Location: r.location})
	} else {
		id, err = infra.EnsureVolume(ctx, server.VolumeParams{Environment: a.Environment, OrgID: prego.OrgID(r.org), Name: r.name, Location: r.location, GB: r.volume.GB()})
	}
	if err != nil {
		if refusal, ok := errors.AsType[*server.InfraError](err); ok && isDefinite(refusal.Class) {
			if err := a.Store.IntentWithdrawn(ctx, r.provider, r.kind, r.name); err != nil {
				return err
			}
		}
		return fromInfra(err)
	}
	a.hook("org_resource/called")
	if ref.Kind == server.ResourceFloatingIP {
		err = a.Store.IPv4Made(ctx, r.address, id, address)
	} else {
		err = a.Store.VolumeMade(ctx, r.volume, id)
	}
	a.hook("org_resource/recorded")
	return err
}

// isDefinite reports whether certainly nothing was created.
func isDefinite(c server.InfraClass) bool {
	return c == server.InfraQuota || c == server.InfraNext || c == server.InfraPermanent || c == server.InfraForeign
}

// OrgResourceWait is the reason why a resource is not ready.
type OrgResourceWait struct {
	Ref     OrgResourceRef `json:"ref"`
	Reason  prego.Reason   `json:"reason"`
	Message string         `json:"message"`
	Failed  bool           `json:"failed,omitempty"` // and never will be
}

// OrgResourceWaits records why a resource is not ready.
func (a *OrgResources) OrgResourceWaits(ctx context.Context, in OrgResourceWait) error {
	if in.Ref.Kind == server.ResourceFloatingIP {
		return a.Store.IPv4Waits(ctx, in.Ref.ID, in.Reason, in.Message, in.Failed)
	}
	return a.Store.VolumeWaits(ctx, in.Ref.ID, in.Reason, in.Message, in.Failed)
}

// refused records on a resource's row that the provider refuses to change, move or delete it.
func (a *OrgResources) refused(ctx context.Context, ref OrgResourceRef, err error) {
	noteRefusal(ctx, a.Log, err, func(ctx context.Context, why string) error {
		if ref.Kind == server.ResourceFloatingIP {
			return a.Store.IPv4Refused(ctx, ref.ID, why)
		}
		return a.Store.VolumeRefused(ctx, prego.VolumeID(ref.ID), why)
	})
}

// ReleaseOrgResource deletes a released resource at the provider and closes the row.
func (a *OrgResources) ReleaseOrgResource(ctx context.Context, ref OrgResourceRef) (err error) {
	defer func() { a.refused(ctx, ref, err) }()
	r, ok, err := a.read(ctx, ref)
	if err != nil || !ok || r.status != workload.ResourceReleasing || r.volume.KeptUntil != nil {
		return err
	}
	infra, err := a.infra(r.provider)
	if err != nil {
		return err
	}
	if err := a.Store.ReleasingNamed(ctx, r.provider, r.kind, r.name); err != nil {
		return err
	}
	a.hook("org_release/start")
	if s := r.address.ServerID; s != "" {
		if err := a.Store.AddressLeaves(ctx, ref.ID); err != nil {
			return err
		}
		if err := a.leaveEdge(ctx, s, r.address); err != nil {
			return err
		}
	}
	if r.providerID == "" { // the create call may have been cut off
		if r.providerID, err = infra.FindNamed(ctx, r.kind, r.name); err != nil {
			return fromInfra(err)
		}
	}
	if r.providerID != "" {
		if err := (protected{a.Store, infra, r.provider, r.kind, r.providerID}).destroy(ctx); err != nil {
			return fromInfra(err)
		}
	}
	a.hook("org_release/deleted")
	if ref.Kind == server.ResourceFloatingIP {
		return a.Store.IPv4Gone(ctx, r.address)
	}
	if a.Backups != nil {
		if err := a.Backups.LetGoOf(ctx, r.volume.VolumeID); err != nil {
			return err
		}
	}
	return a.Store.VolumeGone(ctx, r.volume)
}

// DetachLeftVolume detaches a volume from the server of a group that no longer uses it.
// Until then no other group can attach it.
func (a *OrgResources) DetachLeftVolume(ctx context.Context, volumeID prego.VolumeID) (err error) {
	defer func() { a.refused(ctx, OrgResourceRef{Kind: server.ResourceVolume, ID: string(volumeID)}, err) }()
	left, err := a.Store.LeftAttached(ctx, volumeID)
	if err != nil {
		return err
	}
	v, ok, err := a.Store.VolumeRecord(ctx, string(volumeID))
	if err != nil {
		return err
	}
	for _, t := range left {
		if ok {
			if err := a.detach(ctx, t.ServerID, v); err != nil {
				return err
			}
		}
		if err := a.Store.AttachedTo(ctx, t.AttachmentID, ""); err != nil {
			return err
		}
	}
	return nil
}

// detach unmounts a volume on its server and detaches it.
func (a *OrgResources) detach(ctx context.Context, serverID prego.ServerID, v workload.Volume) error {
	if v.ProviderID == "" {
		return nil
	}
	a.hook("detach/start")
	if err := a.unmountVolume(ctx, serverID, v); err != nil {
		return err
	}
	a.hook("detach/unmounted")
	infra, err := a.infra(v.Provider)
	if err != nil {
		return err
	}
	return fromInfra(infra.DetachVolume(ctx, prego.VolumeID(v.ProviderID)))
}

// GroupVolumesInput names a process group and the server of its instance.
type GroupVolumesInput struct {
	GroupID  prego.GroupID  `json:"group_id"`
	ServerID prego.ServerID `json:"server_id,omitempty"`
}

// GroupMount is a volume attached to the instance's server: HostPath is mounted at MountPath.
type GroupMount struct {
	VolumeID  prego.VolumeID `json:"volume_id"`
	HostPath  string         `json:"host_path"`
	MountPath string         `json:"mount_path"`
}

// AttachGroupVolumes attaches the volumes of a process group to a server before its
// instance starts there. The caller has made sure that no instance of the group runs
// anywhere else: a volume on another server is detached from it.
func (a *OrgResources) AttachGroupVolumes(ctx context.Context, in GroupVolumesInput) (mounts []GroupMount, err error) {
	has, err := a.Store.GroupAttachments(ctx, in.GroupID)
	if err != nil || len(has) == 0 {
		return []GroupMount{}, err
	}
	err = a.withVolumes(ctx, in.GroupID, func(ctx context.Context) error {
		mounts, err = a.attachGroupVolumes(ctx, in)
		return err
	})
	return mounts, err
}

func (a *OrgResources) attachGroupVolumes(ctx context.Context, in GroupVolumesInput) ([]GroupMount, error) {
	srv, err := a.Store.GetServer(ctx, in.ServerID)
	if err != nil {
		return nil, fromStore(err)
	}
	attachments, err := a.Store.GroupAttachments(ctx, in.GroupID)
	if err != nil {
		return nil, err
	}
	mounts := []GroupMount{}
	for _, t := range attachments {
		v, ok, err := a.Store.VolumeRecord(ctx, string(t.VolumeID))
		if err != nil {
			return nil, err
		}
		if !ok || v.Status != workload.ResourceReady {
			return nil, fmt.Errorf("volume %s is not ready", t.VolumeID) // it may become ready soon
		}
		infra, err := a.infra(v.Provider)
		if err != nil {
			return nil, err
		}
		if t.ServerID != "" && t.ServerID != in.ServerID {
			if err := a.detach(ctx, t.ServerID, v); err != nil {
				return nil, err
			}
		}
		if err := a.Store.AttachedTo(ctx, t.AttachmentID, in.ServerID); err != nil {
			return nil, err
		}
		a.hook("attach/intended")
		if err := infra.AttachVolume(ctx, prego.VolumeID(v.ProviderID), prego.ServerID(srv.ProviderServerID)); err != nil {
			return nil, fromInfra(err)
		}
		a.hook("attach/done")
		// It may have been detached from the group meanwhile: then no other process knows that it is
		// attached here.
		if err := a.Store.AttachedTo(ctx, t.AttachmentID, in.ServerID); err != nil {
			if prego.CodeOf(err) != prego.CodeAttachmentNotFound {
				return nil, err
			}
			if err := infra.DetachVolume(ctx, prego.VolumeID(v.ProviderID)); err != nil {
				return nil, fromInfra(err)
			}
			return nil, fmt.Errorf("volume %s was taken from the group", t.VolumeID)
		}
		report, err := a.mountAttached(ctx, infra, srv, v)
		if err != nil {
			return nil, err
		}
		if err := a.mounted(ctx, v, report); err != nil {
			return nil, err
		}
		a.hook("attach/mounted")
		mounts = append(mounts, GroupMount{VolumeID: v.VolumeID, HostPath: server.VolumeHostPath(v.ProviderID), MountPath: t.MountPath})
	}
	return mounts, nil
}

// DetachGroupVolumes detaches the volumes of a process group from their server once
// none of its instances runs any more.
func (a *OrgResources) DetachGroupVolumes(ctx context.Context, in GroupVolumesInput) error {
	return a.withVolumes(ctx, in.GroupID, func(ctx context.Context) error { return a.detachGroupVolumes(ctx, in) })
}

func (a *OrgResources) detachGroupVolumes(ctx context.Context, in GroupVolumesInput) error {
	attachments, err := a.Store.GroupAttachments(ctx, in.GroupID)
	if err != nil {
		return err
	}
	for _, t := range attachments {
		v, ok, err := a.Store.VolumeRecord(ctx, string(t.VolumeID))
		if err != nil {
			return err
		}
		if !ok || t.ServerID == "" {
			continue
		}
		if err := a.detach(ctx, t.ServerID, v); err != nil {
			return err
		}
		if err := a.Store.AttachedTo(ctx, t.AttachmentID, ""); err != nil {
			return err
		}
	}
	return nil
}

// byID adapts a function of ids of one kind to plain strings.
func byID[T ~string](f func(context.Context, T) (bool, error)) func(context.Context, string) (bool, error) {
	return func(ctx context.Context, id string) (bool, error) { return f(ctx, T(id)) }
}

// startLost starts the runs of rows that have been unchanged for too long, unless they
// have one.
func (a *OrgResources) startLost(ctx context.Context, quiet time.Duration) (started int, err error) {
	work, err := a.Store.OrgWork(ctx, quiet)
	if err != nil {
		return 0, err
	}
	var try Attempts
	for _, w := range []struct {
		ids    []string
		ensure func(context.Context, string) (bool, error)
	}{{work.Addresses, a.Runs.EnsureAddress}, {work.Volumes, byID(a.Runs.EnsureVolume)}, {work.Snapshots, byID(a.Runs.EnsureSnapshot)}, {work.Restores, a.Runs.EnsureRestore}, {work.Erasures, byID(a.Runs.EnsureSnapshotErase)}} {
		for id := range Each(&try, w.ids) {
			ok, err := w.ensure(ctx, id)
			if try.OK(err) && ok {
				started++
			}
		}
	}
	return started, try.Err()
}
