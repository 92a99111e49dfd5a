package token

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Sealing encrypts keys of certificates so that a worker, which makes them, can't read
// them again, and the gateway, which hands them to edges, can (HPKE, RFC 9180). A worker
// has the public halves. The key with the highest id seals; all that are private open.
type Sealing struct {
	current string
	public  map[string]hpke.PublicKey
	private map[string]hpke.PrivateKey
}

// sealInfo separates what is sealed here from other uses of the same key.
const sealInfo = "prego certificate keys v1\x00"

func sealSuite() (hpke.KDF, hpke.AEAD) { return hpke.HKDFSHA256(), hpke.AES256GCM() }

// InitSealing creates a key in dir/seal if there is none.
func InitSealing(dir string) error {
	have, err := filepath.Glob(filepath.Join(dir, "seal", "*.pem"))
	if err != nil || len(have) > 0 {
		return err
	}
	return AddSealing(dir)
}

// AddSealing creates another key, which seals from now on. The one before is needed until
// all that it sealed was replaced.
func AddSealing(dir string) error {
	d := filepath.Join(dir, "seal")
	if err := os.MkdirAll(d, 0o700); err != nil {
		return fmt.Errorf("sealing key: %w", err)
	}
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("sealing key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("sealing key: %w", err)
	}
	have, err := filepath.Glob(filepath.Join(d, "*.pem"))
	if err != nil {
		return fmt.Errorf("sealing key: %w", err)
	}
	// The newest sorts last, also of one day.
	name := filepath.Join(d, fmt.Sprintf("%s-%04d-%s.pem", time.Now().UTC().Format("20060102"), len(have)+1, uuid.NewString()[:8]))
	if err := os.WriteFile(name+".tmp", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("sealing key: %w", err)
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		return fmt.Errorf("sealing key: %w", err)
	}
	return nil
}

// SealingFiles are the files of the keys below dir; the last one seals.
func SealingFiles(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "seal", "*.pem"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no keys for sealing in %s (prego keys init makes what is missing, prego keys share gives it to a process)", dir)
	}
	sort.Strings(files)
	return files, nil
}

// SealingPublicHalf turns a file with a private key into one with its public half.
func SealingPublicHalf(text []byte) ([]byte, error) {
	key, err := parseSealing(text)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(key.public)
	if err != nil {
		return nil, fmt.Errorf("sealing key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicPEM, Bytes: der}), nil
}

type sealingKey struct {
	public  *ecdh.PublicKey
	private *ecdh.PrivateKey // nil for a public half
}

func parseSealing(text []byte) (k sealingKey, err error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return k, errors.New("the file is not PEM")
	}
	var key any
	if block.Type == publicPEM {
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	} else {
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	if err != nil {
		return k, err
	}
	switch key := key.(type) {
	case *ecdh.PrivateKey:
		return sealingKey{key.PublicKey(), key}, nil
	case *ecdh.PublicKey:
		return sealingKey{key, nil}, nil
	}
	return k, errors.New("the key is not X25519")
}

// OpenSealing reads the keys below dir, private ones and public halves.
func OpenSealing(dir string) (*Sealing, error) {
	files, err := SealingFiles(dir)
	if err != nil {
		return nil, err
	}
	s := &Sealing{public: map[string]hpke.PublicKey{}, private: map[string]hpke.PrivateKey{}}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("sealing key: %w", err)
		}
		key, err := parseSealing(b)
		if err != nil {
			return nil, fmt.Errorf("sealing key %s: %w", f, err)
		}
		id := strings.TrimSuffix(filepath.Base(f), ".pem")
		s.current = id
		if s.public[id], err = hpke.NewDHKEMPublicKey(key.public); err != nil {
			return nil, fmt.Errorf("sealing key %s: %w", f, err)
		}
		if key.private != nil {
			if s.private[id], err = hpke.NewDHKEMPrivateKey(key.private); err != nil {
				return nil, fmt.Errorf("sealing key %s: %w", f, err)
			}
		}
	}
	return s, nil
}

// Seal encrypts a secret and binds it to what it belongs to. keyID names the key.
func (s *Sealing) Seal(belongsTo string, secret []byte) (sealed []byte, keyID string, err error) {
	kdf, aead := sealSuite()
	sealed, err = hpke.Seal(s.public[s.current], kdf, aead, []byte(sealInfo+belongsTo), secret)
	if err != nil {
		return nil, "", fmt.Errorf("seal %s: %w", belongsTo, err)
	}
	return sealed, s.current, nil
}

// Open is the inverse of Seal, for who has the private key.
func (s *Sealing) Open(belongsTo, keyID string, sealed []byte) ([]byte, error) {
	key, ok := s.private[keyID]
	if !ok {
		return nil, ErrSealed
	}
	kdf, aead := sealSuite()
	secret, err := hpke.Open(key, kdf, aead, []byte(sealInfo+belongsTo), bytes.Clone(sealed))
	if err != nil {
		return nil, ErrSealed
	}
	return secret, nil
}

// Known are the ids of the keys: what another one sealed can't be opened any more.
func (s *Sealing) Known() []string {
	ids := make([]string, 0, len(s.public))
	for id := range s.public {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
