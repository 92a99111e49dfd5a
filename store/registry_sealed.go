package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

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

// boundTo is the context that a password is sealed for: it opens for no other registry or user.
func boundTo(r server.Registry) string { return "registry/" + r.Host + "/" + r.Username }

// Registries keep credentials of container registries. They take passwords and can't
// open them.
type Registries struct {
	*Store
	sealer Sealer
}

// NewRegistries seals with sealer.
func NewRegistries(s *Store, sealer Sealer) Registries { return Registries{Store: s, sealer: sealer} }

// PutRegistry keeps the credentials of a registry, instead of those before.
func (s Registries) PutRegistry(ctx context.Context, host, username, password, by string, match ...string) (server.Registry, error) {
	r := server.SealedRegistry{Registry: server.Registry{Host: host, Username: username}}
	var err error
	if r.Sealed, r.KeyID, err = s.sealer.Seal(ctx, boundTo(r.Registry), []byte(password)); err != nil {
		return server.Registry{}, err
	}
	return s.Store.PutRegistry(ctx, r, by, match...)
}

// RotateRegistries seals every password under the current master key.
func (s Registries) RotateRegistries(ctx context.Context) error {
	list, err := s.ListRegistries(ctx)
	if err != nil {
		return err
	}
	for _, r := range list {
		was, err := s.SealedRegistry(ctx, r.Host)
		if prego.CodeOf(err) == prego.CodeRegistryNotFound {
			continue
		}
		if err != nil {
			return err
		}
		now := was
		if now.Sealed, now.KeyID, err = s.sealer.Reseal(ctx, boundTo(was.Registry), was.KeyID, was.Sealed); err != nil {
			return ofRegistry(r.Host, err)
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

// RegistryAuth is the credential for pulling an image; it is not ok when none is kept for its
// registry.
func (s RegistryLogins) RegistryAuth(ctx context.Context, image string) (username, password string, ok bool, err error) {
	r, err := s.Store.SealedRegistry(ctx, server.RegistryOf(image))
	if prego.CodeOf(err) == prego.CodeRegistryNotFound {
		return "", "", false, nil
	}
	if err != nil {
		return "", "", false, err
	}
	secret, err := s.Opener.Open(boundTo(r.Registry), r.KeyID, r.Sealed)
	return r.Username, string(secret), err == nil, ofRegistry(r.Host, err)
}
