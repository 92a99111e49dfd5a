package token

import (
	"bytes"
	"cmp"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Sealing encrypts what only some processes may open (HPKE, RFC 9180): keys of certificates,
// which a worker makes and can't read again, and the gateway can; and the identities of
// backups. Who only seals has the public halves. The key with the highest id seals; all that are private open.
type Sealing struct {
	info    string
	current string
	secrets map[string][]byte // for MACs, of the private keys
	public  map[string]hpke.PublicKey
	private map[string]hpke.PrivateKey
}

// SealUse is what a set of keys seals, each in a directory of its own below the keys'.
type SealUse string

const (
	// SealCertificates are for the keys of certificates: workers seal, the gateway opens.
	SealCertificates SealUse = "seal"
	// SealBackups are for what opens backups: workers seal and open, nobody else has them. The
	// original keys open every backup that there is, also without a database.
	SealBackups SealUse = "backup"
)

// info separates what is sealed here from other uses of the same key.
func (u SealUse) info() string {
	if u == SealBackups {
		return "prego backups v1\x00"
	}
	return "prego certificate keys v1\x00"
}

func sealSuite() (hpke.KDF, hpke.AEAD) { return hpke.HKDFSHA256(), hpke.AES256GCM() }

// InitSealing creates a key of a use below dir if there is none.
func InitSealing(dir string, use SealUse) error {
	if have, err := keyFiles(filepath.Join(dir, string(use))); err != nil || len(have) > 0 {
		return err
	}
	return AddSealing(dir, use)
}

// AddSealing creates another key, which seals from now on. The one before is needed until
// all that it sealed was replaced.
func AddSealing(dir string, use SealUse) error {
	d := filepath.Join(dir, string(use))
	have, err := keyFiles(d)
	if err != nil {
		return fmt.Errorf("sealing key: %w", err)
	}
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err == nil { // the newest sorts last, also of one day
		err = addKeyFile(filepath.Join(d, fmt.Sprintf("%s-%04d-%s.pem", time.Now().UTC().Format("20060102"), len(have)+1, uuid.NewString()[:8])), key)
	}
	if err != nil {
		return fmt.Errorf("sealing key: %w", err)
	}
	return nil
}

// SealingFiles are the files of a use's keys below dir; the last one seals.
func SealingFiles(dir string, use SealUse) ([]string, error) {
	files, err := keyFiles(filepath.Join(dir, string(use)))
	if err != nil {
		return nil, fmt.Errorf("sealing keys: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no keys for sealing in %s (prego keys init makes what is missing, prego keys share gives it to a process)", filepath.Join(dir, string(use)))
	}
	return files, nil
}

// SealingPublicHalf turns a file with a private key into one with its public half.
func SealingPublicHalf(text []byte) ([]byte, error) {
	_, public, err := parseKey[*ecdh.PrivateKey, *ecdh.PublicKey](text, "X25519")
	if err != nil {
		return nil, err
	}
	return encodePublic(public)
}

// OpenSealing reads a use's keys below dir, private ones and public halves.
func OpenSealing(dir string, use SealUse) (*Sealing, error) {
	files, err := SealingFiles(dir, use)
	if err != nil {
		return nil, err
	}
	s := &Sealing{info: use.info(), secrets: map[string][]byte{}, public: map[string]hpke.PublicKey{}, private: map[string]hpke.PrivateKey{}}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("sealing key: %w", err)
		}
		private, public, err := parseKey[*ecdh.PrivateKey, *ecdh.PublicKey](b, "X25519")
		if err != nil {
			return nil, fmt.Errorf("sealing key %s: %w", f, err)
		}
		id := strings.TrimSuffix(filepath.Base(f), ".pem")
		s.current = id
		if s.public[id], err = hpke.NewDHKEMPublicKey(public); err != nil {
			return nil, fmt.Errorf("sealing key %s: %w", f, err)
		}
		if private != nil {
			if s.private[id], err = hpke.NewDHKEMPrivateKey(private); err != nil {
				return nil, fmt.Errorf("sealing key %s: %w", f, err)
			}
			if s.secrets[id], err = hkdf.Key(sha256.New, private.Bytes(), nil, s.info+"mac", 32); err != nil {
				return nil, fmt.Errorf("sealing key %s: %w", f, err)
			}
		}
	}
	return s, nil
}

// Seal encrypts a secret and binds it to what it belongs to. keyID names the key.
func (s *Sealing) Seal(belongsTo string, secret []byte) (sealed []byte, keyID string, err error) {
	kdf, aead := sealSuite()
	sealed, err = hpke.Seal(s.public[s.current], kdf, aead, []byte(s.info+belongsTo), secret)
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
	secret, err := hpke.Open(key, kdf, aead, []byte(s.info+belongsTo), bytes.Clone(sealed))
	if err != nil {
		return nil, ErrSealed
	}
	return secret, nil
}

// MAC authenticates a text, for who has the private key. keyID is that of an earlier one to
// compare with, or "" for the current key.
func (s *Sealing) MAC(keyID string, text []byte) (mac []byte, err error) {
	secret, ok := s.secrets[cmp.Or(keyID, s.current)]
	if !ok {
		return nil, ErrSealed
	}
	h := hmac.New(sha256.New, secret)
	_, _ = h.Write(text)
	return h.Sum(nil), nil
}

// Known are the ids of the keys: what another one sealed can't be opened any more.
func (s *Sealing) Known() []string {
	return slices.Sorted(maps.Keys(s.public))
}
