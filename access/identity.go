package access

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// Identity is what an issuer vouches for in a token, after the token was verified.
type Identity struct {
	Issuer  string
	Subject string
	// Name is for people. Only issuer and subject identify a principal.
	Name   string
	Groups []string // names at the issuer
	// TokenID is the token's jti, "" if it has none.
	TokenID string
	Expires time.Time
	// AuthTime is when the issuer last saw the person prove who they are; zero if the token does not state it.
	AuthTime time.Time
	// Claims are those of the token, decoded from JSON.
	Claims map[string]any
}

// Trust is what an external token must have to be exchanged for one of a service account.
type Trust struct {
	Issuer   string            `json:"issuer"`
	Audience string            `json:"audience"`
	Claims   map[string]string `json:"claims"` // by name; all must be equal
}

// Admits reports whether an identity has all claims of a trust. A claim that is a list, or another value than a text, a
// whole number or a boolean, equals nothing.
func (t Trust) Admits(i Identity) bool {
	if i.Issuer != t.Issuer || len(t.Claims) == 0 {
		return false
	}
	for name, want := range t.Claims {
		got, ok := claimText(i.Claims[name])
		if !ok || got != want || strings.TrimSpace(want) == "" {
			return false
		}
	}
	return true
}

func claimText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case json.Number:
		_, err := v.Int64()
		return v.String(), err == nil
	}
	return "", false
}
