package hetzner

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// FindNamed looks up one of our volumes or addresses by its name; "" if there is
// none.
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
	return "", &server.InfraError{Class: server.InfraPermanent, Code: "invalid_input", Message: "no lookup for kind " + string(kind)}
}

// AttachVolume attaches a volume to a server and waits for it. A volume already on that
// server is success; one on another server is an error: the caller has to detach it
// once nothing writes to it any more.
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
		return &server.InfraError{Class: server.InfraNotFound, Code: "not_found", Message: string("volume " + volumeID + " is not there")}
	case v.Server != nil && v.Server.ID == srv:
		return nil
	case v.Server != nil:
		return &server.InfraError{Class: server.InfraRetry, Code: "volume_already_attached", Message: fmt.Sprintf("volume %s is on server %d", volumeID, v.Server.ID)}
	}
	action, _, err := p.write.Volume.AttachWithOpts(ctx, v, hcloud.VolumeAttachOpts{Server: &hcloud.Server{ID: srv}, Automount: new(false)})
	if err != nil {
		err = p.classify(err)
		var ie *server.InfraError
		if errors.As(err, &ie) && ie.Code == string(hcloud.ErrorCodeVolumeAlreadyAttached) {
			ie.Class = server.InfraRetry // by another call meanwhile: the next look tells where
		}
		return err
	}
	return p.actions.wait(ctx, actionIDs(action, nil))
}

// ResizeVolume makes a volume at least so many GB large, and waits for it. It may be attached
// and in use; the provider makes no volume smaller.
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
		return &server.InfraError{Class: server.InfraNotFound, Code: "not_found", Message: string("volume " + volumeID + " is not there")}
	case v.Size >= gb:
		return nil
	}
	action, _, err := p.write.Volume.Resize(ctx, v, gb)
	if err != nil {
		return p.classify(err)
	}
	return p.actions.wait(ctx, actionIDs(action, nil))
}

// DetachVolume detaches a volume from whatever server it is on, and waits for it. A
// deleted volume counts as detached.
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
