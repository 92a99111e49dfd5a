package store

import (
	"context"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
)

const registryColumns = `org_id, host, username, key_id, created_by, created_at, updated_by, updated_at`

func noSuchRegistry(host string) error {
	return prego.Errorf(prego.CodeRegistryNotFound, "no credentials are kept for registry %q", host)
}

const sqlPutRegistry = `
INSERT INTO registries (host, username, sealed, key_id, created_by, updated_by, org_id) VALUES ($1, $2, $3, $4, $5, $5, $6)
ON CONFLICT (org_id, host) DO UPDATE SET username = $2, sealed = $3, key_id = $4, updated_by = $5, updated_at = now()
RETURNING ` + registryColumns

// PutRegistry keeps the credentials of a registry, instead of those before. With match,
// see holdVersion.
func (s *Store) PutRegistry(ctx context.Context, r server.SealedRegistry, by string, match ...string) (v server.Registry, err error) {
	err = s.replacing(ctx, match, prego.ReplaceableRegistry, []any{r.OrgID, r.Host}, func(tx *txn) error {
		if r.OrgID != "" {
			tx.check(lockOrg(ctx, tx, r.OrgID))
		}
		v = oneIn[server.Registry](ctx, tx, sqlPutRegistry, r.Host, r.Username, r.Sealed, r.KeyID, by, r.OrgID)
		return nil
	})
	return v, err
}

const sqlListRegistries = `SELECT ` + registryColumns + ` FROM registries WHERE org_id = $1 ORDER BY host`

// ListRegistries are the registries of an org, "" for the installation, by host. There are few.
func (s *Store) ListRegistries(ctx context.Context, org prego.OrgID) ([]server.Registry, error) {
	return collect[server.Registry](ctx, s, "list registries", sqlListRegistries, org)
}

const sqlGetRegistry = `SELECT ` + registryColumns + ` FROM registries WHERE org_id = $1 AND host = $2`

// GetRegistry reads one registry, or CodeRegistryNotFound.
func (s *Store) GetRegistry(ctx context.Context, org prego.OrgID, host string) (server.Registry, error) {
	return get[server.Registry](ctx, s.pool, noSuchRegistry(host), sqlGetRegistry, org, host)
}

const sqlSealedRegistry = `SELECT ` + registryColumns + `, sealed FROM registries WHERE org_id = $1 AND host = $2`

// SealedRegistry reads one with its sealed password, or CodeRegistryNotFound.
func (s *Store) SealedRegistry(ctx context.Context, org prego.OrgID, host string) (server.SealedRegistry, error) {
	return get[server.SealedRegistry](ctx, s.pool, noSuchRegistry(host), sqlSealedRegistry, org, host)
}

const sqlSealedRegistries = `SELECT ` + registryColumns + `, sealed FROM registries ORDER BY org_id, host`

const sqlResealRegistry = `UPDATE registries SET sealed = $4, key_id = $5 WHERE org_id = $1 AND host = $2 AND sealed = $3`

// ResealRegistry keeps a resealed password, unless it was changed or deleted meanwhile.
func (s *Store) ResealRegistry(ctx context.Context, was, now server.SealedRegistry) error {
	return s.exec(ctx, "registry "+was.Host, sqlResealRegistry, was.OrgID, was.Host, was.Sealed, now.Sealed, now.KeyID)
}

const (
	sqlDeleteRegistry = `DELETE FROM registries WHERE org_id = $1 AND host = $2`

	sqlPulledImages = `SELECT DISTINCT COALESCE(i.spec ->> 'image', '') FROM instances i WHERE i.state <> 'stopped' AND i.org_id = $1`
)

// DeleteRegistry forgets the credentials of a registry, or CodeRegistryNotFound. Their users are the org's instances
// whose images come from there: they keep running, and new ones can't start.
func (s *Store) DeleteRegistry(ctx context.Context, org prego.OrgID, host string) error {
	return s.inTx(ctx, "registry "+host, func(tx *txn) error {
		tx.must(ctx, noSuchRegistry(host), sqlDeleteRegistry, org, host)
		images := slices.DeleteFunc(valuesIn[string](ctx, tx, sqlPulledImages, org), func(image string) bool {
			return server.RegistryOf(image) != host
		})
		tx.demand(ctx, host, impactOf(ctx, tx, impact.Impact{Undo: "set its credentials again"}, sqlOfImages, images, org))
		return nil
	})
}

const sqlImageDigest = `SELECT digest FROM image_digests WHERE image = $1`

// ImageDigest is an image's resolved digest, ok if there is one.
func (s *Store) ImageDigest(ctx context.Context, image string) (digest string, ok bool, err error) {
	err = s.pool.QueryRow(ctx, sqlImageDigest, image).Scan(&digest)
	if isNoRows(err) {
		return "", false, nil
	}
	return digest, true, failed("digest of "+image, err)
}

// The first host to resolve an image decides; the row stays as it is for all others.
const sqlPutImageDigest = `
INSERT INTO image_digests AS d (image, digest) VALUES ($1, $2)
ON CONFLICT (image) DO UPDATE SET digest = d.digest RETURNING digest`

// PutImageDigest keeps an image's resolved digest, and returns the valid one: of
// two hosts that resolve it concurrently both get the first one's.
func (s *Store) PutImageDigest(ctx context.Context, image, digest string) (holds string, err error) {
	if err := server.ValidateDigest("digest", digest); err != nil {
		return "", err
	}
	err = s.pool.QueryRow(ctx, sqlPutImageDigest, image, digest).Scan(&holds)
	return holds, failed("digest of "+image, err)
}

const sqlListImageDigests = `SELECT image, digest, resolved_at FROM image_digests ORDER BY image`

// ListImageDigests are all images that were resolved, by name. There are few.
func (s *Store) ListImageDigests(ctx context.Context) ([]server.ImageDigest, error) {
	return collect[server.ImageDigest](ctx, s, "list image digests", sqlListImageDigests)
}

const sqlDeleteImageDigest = `DELETE FROM image_digests WHERE image = $1`

// DeleteImageDigest has an image resolved again by the next host that pulls it, or
// CodeImageNotFound.
func (s *Store) DeleteImageDigest(ctx context.Context, image string) error {
	return change(ctx, s.pool, prego.Errorf(prego.CodeImageNotFound, "no digest is kept for image %q", image), sqlDeleteImageDigest, image)
}

// Sealer makes secrets unreadable, each bound to what it belongs to; it need not be able
// to open them. See token.Box.
type Sealer interface {
	Seal(ctx context.Context, belongsTo string, secret []byte) (sealed []byte, keyID string, err error)
	// Reseal seals under the current master key what an earlier one sealed.
	Reseal(ctx context.Context, belongsTo, keyID string, sealed []byte) (sealedAnew []byte, newKeyID string, err error)
}

// Opener opens what a Sealer sealed.
type Opener interface {
	Open(belongsTo, keyID string, sealed []byte) ([]byte, error)
}

// boundTo is the context that a password is sealed for: it opens for no other org, registry or user.
func boundTo(r server.Registry) string {
	if r.OrgID != "" {
		return "registry/" + string(r.OrgID) + "/" + r.Host + "/" + r.Username
	}
	return "registry/" + r.Host + "/" + r.Username
}

// Registries keep credentials of container registries. They take passwords and can't
// open them.
type Registries struct {
	*Store
	sealer Sealer
}

// NewRegistries seals with sealer.
func NewRegistries(s *Store, sealer Sealer) Registries { return Registries{Store: s, sealer: sealer} }

// PutRegistry keeps the credentials of an org for a registry, "" for the installation's, instead of those before.
func (s Registries) PutRegistry(ctx context.Context, org prego.OrgID, host, username, password, by string, match ...string) (server.Registry, error) {
	r := server.SealedRegistry{Registry: server.Registry{OrgID: org, Host: host, Username: username}}
	var err error
	if r.Sealed, r.KeyID, err = s.sealer.Seal(ctx, boundTo(r.Registry), []byte(password)); err != nil {
		return server.Registry{}, err
	}
	return s.Store.PutRegistry(ctx, r, by, match...)
}

// RotateRegistries seals every password, also those of orgs, under the current master key.
func (s Registries) RotateRegistries(ctx context.Context) error {
	list, err := collect[server.SealedRegistry](ctx, s.Store, "sealed registries", sqlSealedRegistries)
	if err != nil {
		return err
	}
	for _, was := range list {
		now := was
		if now.Sealed, now.KeyID, err = s.sealer.Reseal(ctx, boundTo(was.Registry), was.KeyID, was.Sealed); err != nil {
			return ofRegistry(was.Host, err)
		}
		if err := s.ResealRegistry(ctx, was, now); err != nil {
			return err
		}
	}
	return nil
}

// ofRegistry names the registry whose password could not be opened.
func ofRegistry(host string, err error) error {
	if prego.CodeOf(err) == prego.CodeSealed {
		return prego.Errorf(prego.CodeSealed, "the password of registry %s was sealed under a master key that is not known here: add that one to PREGO_MASTER_KEY_EARLIER, or set the password again", host)
	}
	return err
}

// RegistryLogins open passwords for hosts that pull images.
type RegistryLogins struct {
	Store  *Store
	Opener Opener
}

// RegistryAuth is the credential of an org, "" for the installation, for pulling an image; it is not ok when the org
// has none for the image's registry. No other org's is used, and neither is the installation's.
func (s RegistryLogins) RegistryAuth(ctx context.Context, org prego.OrgID, image string) (username, password string, ok bool, err error) {
	r, err := s.Store.SealedRegistry(ctx, org, server.RegistryOf(image))
	if prego.CodeOf(err) == prego.CodeRegistryNotFound {
		return "", "", false, nil
	}
	if err != nil {
		return "", "", false, err
	}
	secret, err := s.Opener.Open(boundTo(r.Registry), r.KeyID, r.Sealed)
	return r.Username, string(secret), err == nil, ofRegistry(r.Host, err)
}
