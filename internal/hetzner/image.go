package hetzner

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// isImageGone recognizes a refused create because of its image. The provider has no specific code for it.
func isImageGone(code hcloud.ErrorCode, message string) bool {
	text := strings.ToLower(message)
	return (code == hcloud.ErrorCodeInvalidInput || code == hcloud.ErrorCodeNotFound) && strings.Contains(text, "image") &&
		(strings.Contains(text, "not found") || strings.Contains(text, "deleted") || strings.Contains(text, "unavailable"))
}

// imageRef names an image in a create: snapshots only have an id.
func imageRef(nameOrID string) *hcloud.Image {
	if id, err := strconv.ParseInt(nameOrID, 10, 64); err == nil {
		return &hcloud.Image{ID: id}
	}
	return &hcloud.Image{Name: nameOrID}
}

// EnsureSnapshot takes a snapshot of a powered-off server, or finds the snapshot of an earlier call. Snapshots have
// no unique name, so it is found by its labels. If lost answers left several, the oldest is kept. It returns once the
// provider can create servers from it.
func (p *Provider) EnsureSnapshot(ctx context.Context, in server.SnapshotParams) (server.SnapshotHandle, error) {
	ctx = WithLane(ctx, LaneCreate)
	labels := merge(in.Labels, ownerLabels(in.Environment))
	labels[server.LabelImageID] = string(in.ImageID)
	find := func() (*hcloud.Image, error) { return p.oldestSnapshot(ctx, in.ImageID) }
	image, err := findOrCreate(p, find, func() (*hcloud.Image, error) {
		id, err := parseID(in.ProviderServerID)
		if err != nil {
			return nil, err
		}
		opts := &hcloud.ServerCreateImageOpts{
			Type: hcloud.ImageTypeSnapshot, Description: &in.Description, Labels: labels,
		}
		result, _, err := p.write.Server.CreateImage(ctx, &hcloud.Server{ID: id}, opts)
		if err != nil {
			return nil, err
		}
		if err := p.actions.wait(ctx, actionIDs(result.Action, nil)); err != nil {
			return nil, err
		}
		return result.Image, nil
	})
	if err != nil {
		return server.SnapshotHandle{}, err
	}
	for image.Status != hcloud.ImageStatusAvailable {
		if image.Status != hcloud.ImageStatusCreating {
			return server.SnapshotHandle{}, infraError(server.InfraRetry, "image_"+string(image.Status),
				"snapshot %d is %s", image.ID, image.Status)
		}
		if err := prego.Sleep(ctx, p.poll); err != nil {
			return server.SnapshotHandle{}, err
		}
		now, _, err := p.read.Image.GetByID(WithLane(ctx, LanePoll), image.ID)
		if err != nil {
			return server.SnapshotHandle{}, p.classify(err)
		}
		if now == nil {
			return server.SnapshotHandle{}, infraError(server.InfraRetry, server.InfraImageGone,
				"snapshot %d disappeared during its creation", image.ID)
		}
		image = now
	}
	return server.SnapshotHandle{
		ProviderImageID: strconv.FormatInt(image.ID, 10),
		SizeGB:          float64(image.ImageSize), DiskGB: float64(image.DiskSize),
	}, nil
}

func (p *Provider) oldestSnapshot(ctx context.Context, imageID prego.ImageID) (*hcloud.Image, error) {
	images, err := p.snapshotsOf(ctx, imageID)
	if err != nil {
		return nil, err
	}
	for _, i := range images {
		if i.Status == hcloud.ImageStatusAvailable || i.Status == hcloud.ImageStatusCreating { // otherwise it failed
			return i, nil
		}
	}
	return nil, nil
}

// snapshotsOf lists the snapshots of an image of ours, oldest first.
func (p *Provider) snapshotsOf(ctx context.Context, imageID prego.ImageID) ([]*hcloud.Image, error) {
	selector := server.OwnerSelector(p.environment) + "," + server.LabelImageID + "=" + string(imageID)
	images, err := p.read.Image.AllWithOpts(ctx, hcloud.ImageListOpts{
		ListOpts: hcloud.ListOpts{LabelSelector: selector, PerPage: 50},
		Type:     []hcloud.ImageType{hcloud.ImageTypeSnapshot},
	})
	slices.SortFunc(images, func(a, b *hcloud.Image) int { return int(a.ID - b.ID) })
	return images, err
}

// DeleteSnapshots deletes every snapshot of one of our images; none is success.
func (p *Provider) DeleteSnapshots(ctx context.Context, imageID prego.ImageID) error {
	ctx = WithLane(ctx, LaneDelete)
	images, err := p.snapshotsOf(ctx, imageID)
	if err != nil {
		return p.classify(err)
	}
	for _, i := range images {
		if err := p.DeleteResource(ctx, server.ResourceImage, prego.ServerID(strconv.FormatInt(i.ID, 10))); err != nil {
			return err
		}
	}
	return nil
}
