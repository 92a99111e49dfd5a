package store

import (
	"context"
	"fmt"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const sqlImageColumns = `image_id, provider, region, base_image, architecture, recipe_hash, agent_sha256, stack_sha256, containers, status, reason, message, current, attempt,
    server_type, location, COALESCE(provider_image_id, '') AS provider_image_id, size_gb, disk_gb, COALESCE(verify_server_id, '') AS verify_server_id, created_by, created_at, updated_at, verified_at, deleted_at,
    now() - updated_at AS idle`

const sqlNewImage = `
INSERT INTO golden_images (image_id, provider, region, base_image, architecture, created_by)
VALUES ($1, $2, $3, $4, $5, $6) RETURNING ` + sqlImageColumns

// CreateGoldenImage accepts the build of an image; CodeGoldenImageBuilding while another of its kind is being built.
func (s *Store) CreateGoldenImage(ctx context.Context, g server.GoldenImage) (out server.GoldenImage, err error) {
	err = s.inTx(ctx, "create image", func(tx *txn) error {
		tx.check(checkProvider(ctx, tx, g.Provider, g.Region))
		out = oneIn[server.GoldenImage](ctx, tx, sqlNewImage, g.ImageID, g.Provider, g.Region, g.BaseImage, g.Architecture, g.CreatedBy)
		return nil
	})
	if isViolation(err, "golden_images_building") {
		return out, prego.Errorf(prego.CodeGoldenImageBuilding, "an image of %s is being built; wait for it, or cancel it with prego image delete", g.BaseImage)
	}
	return out, err
}

const sqlSetRecipe = `
UPDATE golden_images SET recipe_hash = $2, agent_sha256 = $3, stack_sha256 = $4, containers = $5, updated_at = now()
WHERE image_id = $1 AND status = 'building' AND recipe_hash = ''`

// SetRecipe stores the recipe of an image, once.
func (s *Store) SetRecipe(ctx context.Context, imageID prego.ImageID, r server.ImageRecipe) error {
	return s.exec(ctx, string("recipe of image "+imageID), sqlSetRecipe, imageID, r.Hash, r.AgentSHA256, r.StackSHA256, filled(r.Containers))
}

const sqlGetImage = `SELECT ` + sqlImageColumns + ` FROM golden_images WHERE image_id = $1`

// GetGoldenImage reads an image, or CodeGoldenImageNotFound.
func (s *Store) GetGoldenImage(ctx context.Context, id prego.ImageID) (server.GoldenImage, error) {
	return imageIn(ctx, s.pool, id)
}

func imageIn(ctx context.Context, q querier, id prego.ImageID) (server.GoldenImage, error) {
	return get[server.GoldenImage](ctx, q, prego.Errorf(prego.CodeGoldenImageNotFound, "no image %s", id), sqlGetImage, id)
}

// Images is the list of golden images, without deleted ones.
var Images = Listing[server.GoldenImage]{
	what: "images", from: `SELECT ` + sqlImageColumns + ` FROM golden_images`,
	live: `status <> 'deleted'`, state: "status",
	filters: map[string]string{"image_id": "image_id", "region": "region", "base_image": "base_image", "status": "status"},
	sorts:   map[string]string{"created_at": "created_at"},
	id:      "image_id",
}

const sqlLiveImages = `SELECT ` + sqlImageColumns + ` FROM golden_images WHERE provider = $1 AND status <> 'deleted' ORDER BY image_id`

// LiveGoldenImages returns all images that may still have resources at a provider.
func (s *Store) LiveGoldenImages(ctx context.Context, provider prego.InfraProviderID) ([]server.GoldenImage, error) {
	return collect[server.GoldenImage](ctx, s, "live images", sqlLiveImages, provider)
}

const sqlCurrentImage = `SELECT ` + sqlImageColumns + ` FROM golden_images WHERE provider = $1 AND base_image = $2 AND architecture = $3 AND current`

// CurrentGoldenImage returns the verified image for new servers; false for none.
func (s *Store) CurrentGoldenImage(ctx context.Context, provider prego.InfraProviderID, baseImage, architecture string) (server.GoldenImage, bool, error) {
	g, err := find[server.GoldenImage](ctx, s.pool, sqlCurrentImage, provider, baseImage, architecture)
	if err != nil || g == nil {
		return server.GoldenImage{}, false, err
	}
	return *g, true, nil
}

const sqlBeginBuilder = `
UPDATE golden_images SET attempt = $2, server_type = $3, location = $4, message = $5, updated_at = now()
WHERE image_id = $1 AND status = 'building' AND attempt <= $2 AND provider_image_id IS NULL RETURNING provider`

// BeginBuilder records that a builder is about to be created, with an intent for each resource of it at the provider.
// ErrSuperseded if the image is not being built.
func (s *Store) BeginBuilder(ctx context.Context, imageID prego.ImageID, attempt int, c server.Candidate, intents []server.ResourceIntent) error {
	return s.inTx(ctx, "begin the builder of "+string(imageID), func(tx *txn) error {
		provider := valueOr[prego.InfraProviderID](ctx, tx, server.ErrSuperseded, sqlBeginBuilder, imageID, attempt, c.ServerType, c.Location, "making the builder, "+c.String())
		for _, r := range intents {
			tx.check(intend(ctx, tx, provider, "", attempt, r))
		}
		return nil
	})
}

const sqlImageNote = `UPDATE golden_images SET message = $2, updated_at = now() WHERE image_id = $1 AND status IN ('building', 'verifying', 'deleting')`

// NoteImage records the current step of an image in motion.
func (s *Store) NoteImage(ctx context.Context, imageID prego.ImageID, message string) error {
	return s.exec(ctx, string("note on image "+imageID), sqlImageNote, imageID, message)
}

const sqlReleaseNamed = `
UPDATE resources SET state = 'released', released_at = now()
WHERE provider = $1 AND server_id IS NULL AND name = ANY ($2) AND state <> 'released'`

// ReleaseNamed closes the ledger's lines of the environment's resources that the provider confirmed to be gone.
func (s *Store) ReleaseNamed(ctx context.Context, provider prego.InfraProviderID, names []string) error {
	return s.exec(ctx, fmt.Sprintf("release %v", names), sqlReleaseNamed, provider, names)
}

const sqlSnapshotTaken = `
UPDATE golden_images SET provider_image_id = $2, size_gb = $3, disk_gb = $4, message = 'the snapshot is made', updated_at = now()
WHERE image_id = $1 AND status = 'building' RETURNING provider`

// SnapshotTaken records the provider's id of an image. The ledger also has it when the row has moved on: it exists
// and is billed.
func (s *Store) SnapshotTaken(ctx context.Context, provider prego.InfraProviderID, imageID prego.ImageID, name string, h server.SnapshotHandle) error {
	superseded := false
	err := s.inTx(ctx, fmt.Sprintf("snapshot of %s", imageID), func(tx *txn) error {
		err := tx.QueryRow(ctx, sqlSnapshotTaken, imageID, h.ProviderImageID, h.SizeGB, h.DiskGB).Scan(new(string))
		if superseded = isNoRows(err); err != nil && !superseded {
			return err
		}
		return confirmCreated(ctx, tx, provider, "", 0, server.ResourceImage, name, h.ProviderImageID)
	})
	if err == nil && superseded {
		return server.ErrSuperseded
	}
	return err
}

const (
	sqlBeginVerify = `
UPDATE golden_images SET status = 'verifying', verify_server_id = $2, message = 'a server is booted from it', updated_at = now()
WHERE image_id = $1 AND status IN ('building', 'verifying') AND provider_image_id IS NOT NULL`
	sqlCordonVerifier = `UPDATE servers SET cordoned_at = COALESCE(cordoned_at, now()), closing = true WHERE server_id = $1`
)

// BeginVerify writes the row of the server that boots from an image. It is cordoned from the start, so it never gets
// tenants or instances.
func (s *Store) BeginVerify(ctx context.Context, imageID prego.ImageID, r server.CreateRequest) error {
	hash := r.Hash()
	return s.inTx(ctx, fmt.Sprintf("verify image %s", imageID), func(tx *txn) error {
		if _, _, err := insertServerIn(ctx, tx, newServer{
			id: string(r.ServerID), hash: hash[:], role: r.Role, region: r.Region, provider: r.InfraProvider, spec: r.Spec, by: string("image " + imageID),
			managedBy: prego.ManagedByWorkerDirect, purpose: server.PurposeAgentBootstrap, step: server.StepRequested,
		}); err != nil {
			return err
		}
		tx.run(ctx, sqlCordonVerifier, r.ServerID)
		return change(ctx, tx, server.ErrSuperseded, sqlBeginVerify, imageID, r.ServerID)
	})
}

const (
	sqlRetireCurrent = `
UPDATE golden_images o SET current = false, updated_at = now() FROM golden_images n
WHERE n.image_id = $1 AND n.status = 'verifying' AND o.current AND o.provider = n.provider AND o.base_image = n.base_image AND o.architecture = n.architecture`
	sqlPublish = `
UPDATE golden_images SET status = 'ready', current = true, message = '', verified_at = now(), updated_at = now() WHERE image_id = $1 AND status = 'verifying'`
	sqlIsReady = `SELECT EXISTS (SELECT FROM golden_images WHERE image_id = $1 AND status = 'ready')`
)

// PublishImage makes a verified image the current one for new servers. Repeating it succeeds without effect.
func (s *Store) PublishImage(ctx context.Context, imageID prego.ImageID) error {
	return s.inTx(ctx, fmt.Sprintf("publish image %s", imageID), func(tx *txn) error {
		tx.run(ctx, sqlRetireCurrent, imageID)
		if ok, err := changed(ctx, tx, sqlPublish, imageID); err != nil || ok {
			return err
		}
		return doneBefore(ctx, tx, server.ErrSuperseded, sqlIsReady, imageID)
	})
}

const sqlFailImage = `
UPDATE golden_images SET status = 'failed', reason = $2, message = $3, updated_at = now() WHERE image_id = $1 AND status IN ('building', 'verifying')`

// FailImage ends a build; it changes nothing when the row has moved on.
func (s *Store) FailImage(ctx context.Context, imageID prego.ImageID, reason prego.Reason, message string) error {
	return s.exec(ctx, string("fail image "+imageID), sqlFailImage, imageID, reason, message)
}

// imageInUse is whether a server is being created from an image. A running server needs its image no longer.
const imageInUse = `EXISTS (SELECT FROM servers s WHERE s.infra_provider = g.provider AND s.status = 'provisioning' AND s.image = g.provider_image_id)`

const sqlRotateImages = `
UPDATE golden_images g SET status = 'deleting', reason = 'rotated', message = 'newer images took its place', updated_at = now()
FROM (SELECT r.image_id FROM golden_images r JOIN golden_images n ON n.image_id = $1 AND r.provider = n.provider AND r.base_image = n.base_image AND r.architecture = n.architecture
      WHERE r.status = 'ready' ORDER BY r.current DESC, r.verified_at DESC, r.image_id OFFSET $2) old
WHERE g.image_id = old.image_id AND g.status = 'ready' AND NOT g.current AND NOT ` + imageInUse + `
RETURNING g.image_id`

// RotateImages deletes the oldest images of the same kind, so that keep remain, except the current image and images
// in use for new servers. It returns all images being deleted by rotation.
func (s *Store) RotateImages(ctx context.Context, imageID prego.ImageID, keep int) ([]string, error) {
	return collectValues[string](ctx, s, "rotate images", sqlRotateImages, imageID, keep)
}

const sqlHoldImage = `SELECT FROM golden_images WHERE image_id = $1 FOR NO KEY UPDATE`

const sqlDeleteImage = `
UPDATE golden_images g SET status = 'deleting', message = 'deleted by ' || $2, updated_at = now()
WHERE image_id = $1 AND status IN ('ready', 'failed') AND NOT current AND NOT ` + imageInUse + ` RETURNING status`

// RequestImageDelete accepts the deletion of an image. An image being built is returned as it is: the caller must
// cancel its run. The current image, and an image in use for a new server, are refused.
func (s *Store) RequestImageDelete(ctx context.Context, imageID prego.ImageID, by string) (g server.GoldenImage, err error) {
	err = s.inTx(ctx, fmt.Sprintf("delete image %s", imageID), func(tx *txn) error {
		// Held first, so that the others see a build that ends in the meantime.
		tx.run(ctx, sqlHoldImage, imageID)
		tx.demands(ctx, "build it again; it holds no data of a tenant", string(imageID), sqlOfImage)
		tx.run(ctx, sqlDeleteImage, imageID, by)
		g = got(imageIn(ctx, tx, imageID)).in(tx)
		return nil
	})
	switch {
	case err != nil:
		return g, err
	case g.Current:
		return g, prego.Errorf(prego.CodeGoldenImageCurrent, "image %s is the current one for new servers; build another image first", imageID)
	case g.Status == server.ImageReady || g.Status == server.ImageFailed:
		return g, prego.Errorf(prego.CodeGoldenImageInUse, "a server is being created from image %s; try again when it is active", imageID)
	}
	return g, nil
}

const sqlImageDeleted = `
UPDATE golden_images SET status = 'deleted', current = false, deleted_at = now(), updated_at = now() WHERE image_id = $1 AND status = 'deleting'`

// ImageIsDeleted ends an image's life. The row stays.
func (s *Store) ImageIsDeleted(ctx context.Context, imageID prego.ImageID) error {
	return s.exec(ctx, fmt.Sprintf("image %s is deleted", imageID), sqlImageDeleted, imageID)
}

const (
	sqlImageLost = `
UPDATE golden_images SET status = 'deleted', current = false, reason = 'gone_at_provider', message = $3, deleted_at = now(), updated_at = now()
WHERE provider = $1 AND provider_image_id = $2 AND status = 'ready'
RETURNING image_id, base_image, architecture`
	sqlReleaseImage = `
UPDATE resources SET state = 'released', released_at = now() WHERE provider = $1 AND kind = 'image' AND provider_id = $2 AND state <> 'released'`
	sqlNextBestImage = `
UPDATE golden_images SET current = true, updated_at = now()
WHERE image_id = (SELECT image_id FROM golden_images WHERE provider = $1 AND base_image = $2 AND architecture = $3 AND status = 'ready' ORDER BY verified_at DESC, image_id LIMIT 1)
  AND NOT EXISTS (SELECT FROM golden_images WHERE provider = $1 AND base_image = $2 AND architecture = $3 AND current)`
)

// ImageLost records that the provider no longer has an image; the newest remaining verified image takes its place.
func (s *Store) ImageLost(ctx context.Context, provider prego.InfraProviderID, providerImageID, message string) error {
	return s.inTx(ctx, fmt.Sprintf("image %s is lost", providerImageID), func(tx *txn) error {
		var id, base, architecture string
		if err := tx.QueryRow(ctx, sqlImageLost, provider, providerImageID, message).Scan(&id, &base, &architecture); err != nil {
			return ifNoRows(err, nil)
		}
		tx.run(ctx, sqlReleaseImage, provider, providerImageID)
		tx.run(ctx, sqlNextBestImage, provider, base, architecture)
		return nil
	})
}

const sqlForgetImage = `UPDATE servers SET image = '' WHERE server_id = $1 AND attempt = $2 AND status = 'provisioning'`

// ForgetAttemptImage lets an attempt choose its image again.
func (s *Store) ForgetAttemptImage(ctx context.Context, serverID prego.ServerID, attempt int) error {
	return s.exec(ctx, string("image of "+serverID), sqlForgetImage, serverID, attempt)
}

const sqlIsGolden = `SELECT EXISTS (SELECT FROM golden_images WHERE provider = $1 AND provider_image_id = $2 AND status = 'ready')`

// IsGoldenImage reports whether the provider's id is that of a verified image of ours: a new one enters the
// provider's catalog only when the catalog is read again.
func (s *Store) IsGoldenImage(ctx context.Context, provider prego.InfraProviderID, providerImageID string) (bool, error) {
	is, err := value[bool](ctx, s.pool, sqlIsGolden, provider, providerImageID)
	return is, failed("image "+providerImageID, err)
}
