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
		v, _, err := p.read.Volume.GetByName(ctx, name)
		if err != nil || v == nil {
			return "", p.classify(err)
		}
		return strconv.FormatInt(v.ID, 10), checkOwner("volume", name, v.Labels, p.environment)
	case server.ResourceFloatingIP:
		ip, _, err := p.read.FloatingIP.GetByName(ctx, name)
		if err != nil || ip == nil {
			return "", p.classify(err)
		}
		return strconv.FormatInt(ip.ID, 10), checkOwner("floating IP", name, ip.Labels, p.environment)
	case server.ResourceServer, server.ResourcePrimaryIP, server.ResourceFirewall, server.ResourcePlacementGroup:
	}
	return "", infraError(server.InfraPermanent, "invalid_input", "no lookup for kind %s", kind)
}

// AttachVolume attaches a volume to a server and waits for it. A volume already on that server is success; on another
// server it is an error: the caller has to detach it once nothing writes to it any more.
func (p *Provider) AttachVolume(ctx context.Context, volumeID prego.VolumeID, serverID prego.ServerID) error {
	volume, err := parseID(string(volumeID))
	if err != nil {
		return err
	}
	srv, err := parseID(string(serverID))
	if err != nil {
		return err
	}
	v, _, err := p.read.Volume.GetByID(ctx, volume)
	switch {
	case err != nil:
		return p.classify(err)
	case v == nil:
		return infraError(server.InfraNotFound, "not_found", "volume %s does not exist", volumeID)
	case v.Server != nil && v.Server.ID == srv:
		return nil
	case v.Server != nil:
		return infraError(server.InfraRetry, "volume_already_attached",
			"volume %s is on server %d", volumeID, v.Server.ID)
	}
	opts := hcloud.VolumeAttachOpts{Server: &hcloud.Server{ID: srv}, Automount: new(false)}
	action, _, err := p.write.Volume.AttachWithOpts(ctx, v, opts)
	if err != nil {
		err = p.classify(err)
		var ie *server.InfraError
		if errors.As(err, &ie) && ie.Code == string(hcloud.ErrorCodeVolumeAlreadyAttached) {
			ie.Class = server.InfraRetry // a concurrent call attached it: the next attempt reads where
		}
		return err
	}
	return p.actions.wait(ctx, actionIDs(action, nil))
}

// ResizeVolume grows a volume to at least gb GB, and waits for it. It may be attached and in use; the provider
// shrinks no volume.
func (p *Provider) ResizeVolume(ctx context.Context, volumeID prego.VolumeID, gb int) error {
	id, err := parseID(string(volumeID))
	if err != nil {
		return err
	}
	v, _, err := p.read.Volume.GetByID(ctx, id)
	switch {
	case err != nil:
		return p.classify(err)
	case v == nil:
		return infraError(server.InfraNotFound, "not_found", "volume %s does not exist", volumeID)
	case v.Size >= gb:
		return nil
	}
	return p.done(ctx)(p.write.Volume.Resize(ctx, v, gb))
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
