package token

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
)

// Use is what a ring's keys sign. A token of one use is never accepted for another:
// rings share no keys.
type Use string

// The uses of signing keys.
const (
	UseAgent Use = "agent"
	UseExec  Use = "exec"
	UsePeers Use = "peers" // peers documents
)

// Uses lists them.
func Uses() []Use { return []Use{UseAgent, UseExec, UsePeers} }

// Keyring holds the Ed25519 keys of one use by key id. The private key with the highest
// id signs; all verify.
type Keyring struct {
	keys   map[string]ed25519.PublicKey
	sign   string             // id of the signing key
	signer ed25519.PrivateKey // nil if this process may only verify
	// signers are all private keys by key id.
	signers map[string]ed25519.PrivateKey
}

// InitKeys creates a key in dir/jwt for every use that has none, and one in dir/seal.
func InitKeys(dir string) error {
	for _, use := range Uses() {
		d := filepath.Join(dir, "jwt", string(use))
		files, err := keyFiles(d)
		if err != nil {
			return fmt.Errorf("keys: %w", err)
		}
		if len(files) > 0 {
			continue
		}
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err == nil { // the newest sorts last, and signs
			err = addKeyFile(filepath.Join(d, time.Now().UTC().Format("20060102")+"-"+uuid.NewString()[:8]+".pem"), key)
		}
		if err != nil {
			return fmt.Errorf("keys: %w", err)
		}
	}
	if err := InitSealing(dir, SealBackups); err != nil {
		return err
	}
	return InitSealing(dir, SealCertificates)
}

// keyFiles are the files of the keys in a directory, by name.
func keyFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var files []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".pem") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, err
}

// addKeyFile writes a private key. It is written completely and then renamed, so that no process reads half a key.
func addKeyFile(name string, key any) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := os.WriteFile(name+".tmp", text, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".tmp", name)
}

// KeyFiles are the files of one use's keys below dir; the last one signs.
func KeyFiles(dir string, use Use) ([]string, error) {
	files, err := keyFiles(filepath.Join(dir, "jwt", string(use)))
	if err != nil {
		return nil, fmt.Errorf("signing keys: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no signing keys for %s in %s (prego keys init makes what is missing, prego keys share gives it to a process)", use, dir)
	}
	return files, nil
}

// OpenKeyring reads the keys of one use, private ones and public halves.
func OpenKeyring(dir string, use Use) (*Keyring, error) {
	files, err := KeyFiles(dir, use)
	if err != nil {
		return nil, err
	}
	r := &Keyring{keys: make(map[string]ed25519.PublicKey), signers: make(map[string]ed25519.PrivateKey)}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("signing key: %w", err)
		}
		id := strings.TrimSuffix(filepath.Base(f), ".pem")
		private, public, err := parseKey[ed25519.PrivateKey, ed25519.PublicKey](b, "Ed25519")
		if err != nil {
			return nil, fmt.Errorf("signing key %s: %w", f, err)
		}
		r.keys[id] = public
		if private != nil {
			r.sign, r.signer, r.signers[id] = id, private, private
		}
	}
	return r, nil
}

// OpenSigner is OpenKeyring for a process that issues tokens.
func OpenSigner(dir string, use Use) (*Keyring, error) {
	r, err := OpenKeyring(dir, use)
	if err == nil && r.signer == nil {
		return nil, fmt.Errorf("the keys for %s in %s are public halves: none can sign", use, dir)
	}
	return r, err
}

// parseKey reads a private or public key of a kind; private is the zero value if there is only the public one.
func parseKey[Private interface{ Public() crypto.PublicKey }, Public any](
	text []byte, kind string,
) (private Private, public Public, err error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return private, public, errors.New("the file is not PEM")
	}
	var key any
	if block.Type == publicPEM {
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	} else {
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	if err != nil {
		return private, public, err
	}
	switch key := key.(type) {
	case Private:
		return key, key.Public().(Public), nil
	case Public:
		return private, key, nil
	}
	return private, public, errors.New("the key is not " + kind)
}

const publicPEM = "PUBLIC KEY"

// PublicHalf is the public half of a key, PEM.
func PublicHalf(text []byte) ([]byte, error) {
	_, public, err := parseKey[ed25519.PrivateKey, ed25519.PublicKey](text, "Ed25519")
	if err != nil {
		return nil, err
	}
	return encodePublic(public)
}

func encodePublic(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: publicPEM, Bytes: der}), nil
}

// PublicPEM are the public keys by id, PEM.
func (r *Keyring) PublicPEM() (map[string]string, error) {
	out := make(map[string]string, len(r.keys))
	for kid, key := range r.keys {
		text, err := encodePublic(key)
		if err != nil {
			return nil, err
		}
		out[kid] = string(text)
	}
	return out, nil
}

func (r *Keyring) issue(claims jwt.Claims) (string, error) {
	if r.signer == nil {
		return "", errors.New("this process has only the public halves of these keys")
	}
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims)
	t.Header["kid"] = r.sign
	s, err := t.SignedString(r.signer)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return s, nil
}

var errKey = errors.New("signed by an unknown key")

// key finds a token's key by its id alone, ignoring any key, certificate or address in
// the token.
func (r *Keyring) key(t *jwt.Token) (any, error) {
	kid, _ := t.Header["kid"].(string)
	key, ok := r.keys[kid]
	if !ok {
		return nil, errKey
	}
	return key, nil
}
