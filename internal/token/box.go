package token

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/prego/prego"
)

// Box encrypts stored secrets with AES-256-GCM, with a key derived from the master key.
// It can decrypt with earlier master keys as long as it has them, so that a rotation
// can re-encrypt everything.
type Box struct {
	current string // id of the encrypting key
	keys    map[string]cipher.AEAD
}

// boxInfo separates this key from others derived from the same master key.
const boxInfo = "prego sealed secrets v1"

// NewBox takes the current and earlier master keys, each in hex, of 32 bytes or more.
func NewBox(masterKeyHex string, earlier ...string) (*Box, error) {
	b := &Box{keys: make(map[string]cipher.AEAD, 1+len(earlier))}
	for i, text := range append([]string{masterKeyHex}, earlier...) {
		master, err := hex.DecodeString(text)
		if err != nil || len(master) < 32 {
			if i == 0 {
				return nil, errors.New("PREGO_MASTER_KEY must be at least 32 bytes, written as hex")
			}
			return nil, errors.New("PREGO_MASTER_KEY_EARLIER must be keys of at least 32 bytes each, written as hex, with commas between them")
		}
		key, err := hkdf.Key(sha256.New, master, nil, boxInfo, 32)
		if err != nil {
			return nil, fmt.Errorf("derive the key of sealed secrets: %w", err)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("sealed secrets: %w", err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, fmt.Errorf("sealed secrets: %w", err)
		}
		id := sha256.Sum256(append([]byte(boxInfo+" id\x00"), key...))
		name := hex.EncodeToString(id[:4])
		if i == 0 {
			b.current = name
		}
		b.keys[name] = aead
	}
	return b, nil
}

// Seal encrypts a secret and binds it to what it belongs to: decryption must name the
// same. keyID names the key.
func (b *Box) Seal(_ context.Context, belongsTo string, secret []byte) (sealed []byte, keyID string, err error) {
	aead := b.keys[b.current]
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return aead.Seal(nonce, nonce, secret, []byte(belongsTo)), b.current, nil
}

// Reseal re-encrypts a secret with the current key, if its key is known here.
func (b *Box) Reseal(ctx context.Context, belongsTo, keyID string, sealed []byte) ([]byte, string, error) {
	secret, err := b.Open(belongsTo, keyID, sealed)
	if err != nil {
		return nil, "", err
	}
	return b.Seal(ctx, belongsTo, secret)
}

// ErrSealed says that a secret cannot be decrypted: its key is not known here, it
// belongs to something else, or it is damaged.
var ErrSealed = &prego.Error{
	Code:    prego.CodeSealed,
	Message: "the secret was sealed under a master key that is not known here: add that one to PREGO_MASTER_KEY_EARLIER, or give the secret again",
}

// Open is the inverse of Seal.
func (b *Box) Open(belongsTo, keyID string, sealed []byte) ([]byte, error) {
	aead, ok := b.keys[keyID]
	if !ok || len(sealed) < aead.NonceSize() {
		return nil, ErrSealed
	}
	secret, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], []byte(belongsTo))
	if err != nil {
		return nil, ErrSealed
	}
	return secret, nil
}
