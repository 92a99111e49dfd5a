package hetzner

import (
	"context"
	"errors"
	"strconv"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// FindNamed looks up one of our volumes or addresses by its name; "" if there is none.
func (p *Provider) FindNamed(ctx context.Context, kind server.ResourceKind, name string) (id string, err error) {
	ctx = WithLane(ctx, LaneDelete)
	switch kind {
	case server.ResourceVolume:
		return findOwn(ctx, p, "volume", name, p.read.Volume.GetByName)
	case server.ResourceFloatingIP:
		return findOwn(ctx, p, "floating IP", name, p.read.FloatingIP.GetByName)
	case server.ResourceServer, server.ResourcePrimaryIP, server.ResourceFirewall, server.ResourcePlacementGroup:
	}
	return "", infraError(server.InfraPermanent, "invalid_input", "no lookup for kind %s", kind)
}

func findOwn[T any](ctx context.Context, p *Provider, kind, name string, find byName[T]) (string, error) {
	v, _, err := find(ctx, name)
	if err != nil || v == nil {
		return "", p.classify(err)
	}
	o := owned(v)
	return o.ProviderID, checkOwner(kind, name, o.Labels, p.environment)
}

// AttachVolume attaches a volume to a server and waits for it. A volume already on that server is success; on another
// server it is an error: the caller has to detach it once nothing writes to it any more.
func (p *Provider) AttachVolume(ctx context.Context, volumeID prego.VolumeID, serverID prego.ServerID) error {
	srv, err := parseID(string(serverID))
	if err != nil {
		return err
	}
	v, err := get(ctx, p, string(volumeID), p.read.Volume.GetByID, "volume %s does not exist")
	switch {
	case err != nil:
		return err
	case v.Server != nil && v.Server.ID == srv:
		return nil
	case v.Server != nil:
		return infraError(server.InfraRetry, "volume_already_attached",
			"volume %s is on server %d", volumeID, v.Server.ID)
	}
	opts := hcloud.VolumeAttachOpts{Server: &hcloud.Server{ID: srv}, Automount: new(false)}
	return raced(p.done(ctx)(p.write.Volume.AttachWithOpts(ctx, v, opts)), hcloud.ErrorCodeVolumeAlreadyAttached)
}

// raced has a call repeated that a concurrent one was faster than, which the provider refuses with a code: the next
// attempt reads where the resource is.
func raced(err error, code hcloud.ErrorCode) error {
	if ie, ok := errors.AsType[*server.InfraError](err); ok && ie.Code == string(code) {
		ie.Class = server.InfraRetry
	}
	return err
}

// ResizeVolume grows a volume to at least gb GB, and waits for it. It may be attached and in use; the provider
// shrinks no volume.
func (p *Provider) ResizeVolume(ctx context.Context, volumeID prego.VolumeID, gb int) error {
	v, err := get(ctx, p, string(volumeID), p.read.Volume.GetByID, "volume %s does not exist")
	if err != nil || v.Size >= gb {
		return err
	}
	return p.done(ctx)(p.write.Volume.Resize(ctx, v, gb))
}

// VolumeOn returns the server that a volume is attached to, "" for none.
func (p *Provider) VolumeOn(ctx context.Context, volumeID prego.VolumeID) (string, error) {
	v, err := get(ctx, p, string(volumeID), p.read.Volume.GetByID, "volume %s does not exist")
	if err != nil || v.Server == nil {
		return "", err
	}
	return strconv.FormatInt(v.Server.ID, 10), nil
}

// DetachVolume detaches a volume from its server, and waits for it. A deleted volume counts as detached.
func (p *Provider) DetachVolume(ctx context.Context, volumeID prego.VolumeID) error {
	id, err := parseID(string(volumeID))
	if err != nil {
		return err
	}
	ctx = WithLane(ctx, LaneDelete)
	v, _, err := p.read.Volume.GetByID(ctx, id)
	if err != nil || v == nil || v.Server == nil {
		return p.classify(err)
	}
	return p.detach(ctx, v)
}
