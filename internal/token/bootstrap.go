// Package token issues and verifies the secrets by which parties authenticate:
// bootstrap tokens, and the JWTs of callers, agents and commands.
package token

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// Deriver makes bootstrap tokens: 256 bits, derived from a random id with the master
// key, so that a repeated step makes the same token although only its hash is stored
// (direct-provisioning §4).
type Deriver struct {
	key []byte
}

// NewDeriver takes the master key: hex, of 32 bytes or more.
func NewDeriver(masterKeyHex string) (*Deriver, error) {
	key, err := hex.DecodeString(masterKeyHex)
	if err != nil || len(key) < 32 {
		return nil, errors.New("PREGO_MASTER_KEY must be at least 32 bytes, written as hex")
	}
	return &Deriver{key: key}, nil
}

// NewTokenID makes a random id.
func (d *Deriver) NewTokenID() string { return uuid.NewString() }

// Derive makes the raw token of an id: 43 characters of base64url.
func (d *Deriver) Derive(tokenID string) string {
	mac := hmac.New(sha256.New, d.key)
	mac.Write([]byte("prego bootstrap token v1\x00" + tokenID))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Password makes the password of a use of a database, by the database's name: 43 characters
// of base64url. Each version is another.
func (d *Deriver) Password(use, name string, version int) string {
	mac := hmac.New(sha256.New, d.key)
	mac.Write(fmt.Appendf(nil, "prego password v1\x00%s\x00%s\x00%d", use, name, version))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Hash is what is stored of a raw token.
func (d *Deriver) Hash(raw string) []byte { return Hash(raw) }

// Hash is the SHA-256 of a raw token.
func Hash(raw string) []byte {
	sum := sha256.Sum256([]byte(raw))
	return sum[:]
}
