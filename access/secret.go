package access

import (
	"crypto/sha256"
	"hash/crc32"
	"io"
	"math/big"
	"strings"
)

// CredentialKind is what a credential is.
type CredentialKind string

// The kinds of credentials.
const (
	Token CredentialKind = "token" // of a program
	Login CredentialKind = "login" // of a person
	Link  CredentialKind = "link"  // logs in, once
)

const (
	base62       = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	secretLength = 32 // 190 bits
	sumLength    = 6  // a CRC-32
)

// NewSecret makes the secret of a credential: prego_token_, 32 random characters and six of a checksum over all of it,
// so that scanners for leaked secrets recognize it without asking us.
func NewSecret(kind CredentialKind, random io.Reader) (string, error) {
	var b strings.Builder
	b.WriteString("prego_" + string(kind) + "_")
	one := make([]byte, 1)
	for n := 0; n < secretLength; {
		if _, err := io.ReadFull(random, one); err != nil {
			return "", err
		}
		if one[0] < 248 { // 4 × 62: all characters are equally likely
			b.WriteByte(base62[one[0]%62])
			n++
		}
	}
	return b.String() + sum(b.String()), nil
}

func sum(text string) string {
	const zeros = "000000"
	s := base62Of(int64(crc32.ChecksumIEEE([]byte(text))))
	return zeros[:sumLength-len(s)] + s
}

// base62Of writes digits, capital letters and small ones, unlike math/big, which has small letters first.
func base62Of(n int64) string {
	swap := func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return r - 'a' + 'A'
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return r
	}
	return strings.Map(swap, big.NewInt(n).Text(62))
}

// KindOfSecret is the kind of credential that a secret belongs to, false for what NewSecret never made.
func KindOfSecret(raw string) (CredentialKind, bool) {
	for _, k := range []CredentialKind{Token, Login, Link} {
		if rest, ok := strings.CutPrefix(raw, "prego_"+string(k)+"_"); ok {
			n := len(raw) - sumLength
			return k, len(rest) == secretLength+sumLength && sum(raw[:n]) == raw[n:]
		}
	}
	return "", false
}

// SecretHash is what the database has of a secret: its SHA-256. A secret is too long to be guessed, so that a slow hash
// would only cost time.
func SecretHash(secret string) []byte {
	h := sha256.Sum256([]byte(secret))
	return h[:]
}

// SecretPrefix is the beginning of a secret, by which people recognize it.
func SecretPrefix(secret string) string {
	at := strings.LastIndexByte(secret, '_') + 1 + 6
	return secret[:min(at, len(secret))]
}
