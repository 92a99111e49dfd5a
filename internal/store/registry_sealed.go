package store

import (
	"context"

	"github.com/prego/prego"
)

// Box seals secrets under the master key, see token.Box.
type Box interface {
	KeyID() string
	Seal(secret []byte, belongsTo string) []byte
	Open(sealed []byte, keyID, belongsTo string) ([]byte, error)
}

// Registries are credentials of container registries: sealed in the database, in clear
// only on their way to a host's engine.
type Registries struct {
	*Store
	box Box
}

// NewRegistries seals with box.
func NewRegistries(s *Store, box Box) Registries { return Registries{Store: s, box: box} }

// boundTo is what a password is sealed for: it opens for no other registry or user.
func boundTo(r prego.Registry) string { return "registry/" + r.Host + "/" + r.Username }

// PutRegistry keeps the credentials of a registry, instead of those before.
func (s Registries) PutRegistry(ctx context.Context, host, username, password, by string) (prego.Registry, error) {
	r := prego.Registry{Host: host, Username: username, KeyID: s.box.KeyID()}
	return s.Store.PutRegistry(ctx, prego.SealedRegistry{Registry: r, Sealed: s.box.Seal([]byte(password), boundTo(r))}, by)
}

// RotateRegistries seals anew what is sealed under an earlier master key. Repeated, it
// goes on where it stopped.
func (s Registries) RotateRegistries(ctx context.Context) error {
	list, err := s.ListRegistries(ctx)
	if err != nil {
		return err
	}
	for _, r := range list {
		if r.KeyID == s.box.KeyID() {
			continue
		}
		was, err := s.SealedRegistry(ctx, r.Host)
		if prego.CodeOf(err) == prego.CodeRegistryNotFound {
			continue
		}
		if err != nil {
			return err
		}
		secret, err := s.open(was)
		if err != nil {
			return err
		}
		now := was
		now.KeyID, now.Sealed = s.box.KeyID(), s.box.Seal(secret, boundTo(was.Registry))
		if err := s.ResealRegistry(ctx, was, now); err != nil {
			return err
		}
	}
	return nil
}

func (s Registries) open(r prego.SealedRegistry) ([]byte, error) {
	secret, err := s.box.Open(r.Sealed, r.KeyID, boundTo(r.Registry))
	if err != nil {
		return nil, prego.Errorf(prego.CodeNotReady, "the password of registry %s is sealed under master key %s, which is not known here: add it to PREGO_MASTER_KEY_EARLIER, or put the password again", r.Host, r.KeyID)
	}
	return secret, nil
}

// RegistryAuth is what an image is pulled with; it is not ok when none is kept for its
// registry.
func (s Registries) RegistryAuth(ctx context.Context, image string) (username, password string, ok bool, err error) {
	r, err := s.SealedRegistry(ctx, prego.RegistryOf(image))
	if prego.CodeOf(err) == prego.CodeRegistryNotFound {
		return "", "", false, nil
	}
	if err != nil {
		return "", "", false, err
	}
	secret, err := s.open(r)
	return r.Username, string(secret), err == nil, err
}
