package token

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
)

// Use is what a ring's keys sign. A token of one use is never accepted for
// another: rings share no keys.
type Use string

// The uses of signing keys.
const (
	UseAPI   Use = "api"
	UseAgent Use = "agent"
	UseExec  Use = "exec"
)

// Uses lists them.
func Uses() []Use { return []Use{UseAPI, UseAgent, UseExec} }

// Keyring holds the Ed25519 keys of one use by key id. The last id in order
// signs; all verify.
type Keyring struct {
	keys map[string]ed25519.PrivateKey
	sign string
}

// InitKeys makes one key per use where there is none yet, below dir/jwt.
func InitKeys(dir string) error {
	for _, use := range Uses() {
		d := filepath.Join(dir, "jwt", string(use))
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("keys: %w", err)
		}
		have, err := filepath.Glob(filepath.Join(d, "*.pem"))
		if err != nil || len(have) > 0 {
			continue
		}
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return fmt.Errorf("keys: %w", err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return fmt.Errorf("keys: %w", err)
		}
		// Written whole and then named, so that no process ever reads half a key.
		name := filepath.Join(d, time.Now().UTC().Format("20060102")+"-"+uuid.NewString()[:8]+".pem") // the newest sorts last, and signs
		if err := os.WriteFile(name+".tmp", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
			return fmt.Errorf("keys: %w", err)
		}
		if err := os.Rename(name+".tmp", name); err != nil {
			return fmt.Errorf("keys: %w", err)
		}
	}
	return nil
}

// OpenKeyring reads the keys of one use.
func OpenKeyring(dir string, use Use) (*Keyring, error) {
	files, err := filepath.Glob(filepath.Join(dir, "jwt", string(use), "*.pem"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no signing keys for %s in %s: run prego keys init", use, dir)
	}
	sort.Strings(files)
	r := &Keyring{keys: make(map[string]ed25519.PrivateKey)}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("signing key: %w", err)
		}
		block, _ := pem.Decode(b)
		if block == nil {
			return nil, fmt.Errorf("signing key %s is not PEM", f)
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("signing key %s: %w", f, err)
		}
		ed, ok := key.(ed25519.PrivateKey)
		if !ok {
			return nil, fmt.Errorf("signing key %s is not Ed25519", f)
		}
		r.sign = strings.TrimSuffix(filepath.Base(f), ".pem")
		r.keys[r.sign] = ed
	}
	return r, nil
}

// PublicPEM are the public keys by id, PEM.
func (r *Keyring) PublicPEM() (map[string]string, error) {
	out := make(map[string]string, len(r.keys))
	for kid, key := range r.keys {
		der, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			return nil, fmt.Errorf("public key %s: %w", kid, err)
		}
		out[kid] = string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	}
	return out, nil
}

func (r *Keyring) issue(claims jwt.Claims) (string, error) {
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
	t.Header["kid"] = r.sign
	s, err := t.SignedString(r.keys[r.sign])
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return s, nil
}

var errKey = errors.New("signed by an unknown key")

// key finds the key of a token by its id alone: no key, certificate or address
// that the token brings along is looked at.
func (r *Keyring) key(t *jwt.Token) (any, error) {
	kid, _ := t.Header["kid"].(string)
	key, ok := r.keys[kid]
	if !ok {
		return nil, errKey
	}
	return key.Public(), nil
}
