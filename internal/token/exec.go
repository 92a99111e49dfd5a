package token

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

// MaxExecTTL is the longest life of a command's token (direct-provisioning §1,
// path D).
const MaxExecTTL = 5 * time.Minute

type execClaims struct {
	jwt.RegisteredClaims
	Scope string `json:"scope"`
	Body  string `json:"body"` // SHA-256 of the request's body, in hex
	Epoch int64  `json:"epoch,omitempty"`
}

// Exec issues the single-use tokens that prove to an agent that a command comes from
// the control plane.
type Exec struct {
	keys  *Keyring
	epoch func() int64
}

// NewExec signs with a ring of UseExec. epoch returns ops.RedoState.Epoch: a host refuses a token with a lower epoch
// than it has seen.
func NewExec(keys *Keyring, epoch func() int64) *Exec { return &Exec{keys: keys, epoch: epoch} }

// Issue issues a token for one request of one kind to one server: the one with this
// body digest.
func (e *Exec) Issue(serverID prego.ServerID, kind wire.CommandKind, body [sha256.Size]byte, ttl time.Duration) (string, error) {
	if (!kind.Valid() && kind != wire.KindPeers && kind != wire.KindTransfer) || ttl <= 0 || ttl > MaxExecTTL {
		return "", errors.New("an exec token needs a known kind and a life of at most 5 minutes")
	}
	return e.keys.issue(execClaims{
		RegisteredClaims: registered(Issuer, "control-plane", string(serverID), time.Now(), ttl),
		Scope:            wire.ScopeExecPrefix + string(kind),
		Body:             hex.EncodeToString(body[:]),
		Epoch:            e.epoch(),
	})
}
