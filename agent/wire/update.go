package wire

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// AgentUpdate is a release of the agent's program, signed by its builder. It holds for every host: the control plane
// only decides which hosts get it, and when.
type AgentUpdate struct {
	Version string `json:"version"` // as the program prints it
	// Serial is when it was signed, in seconds since 1970. A host never goes to a lower one: to return to an old
	// release, sign it again.
	Serial int64  `json:"serial"`
	SHA256 string `json:"sha256"` // of the program, hex
	Bytes  int64  `json:"bytes"`
	Arch   string `json:"arch"` // GOARCH
}

// SignedAgentUpdate is an AgentUpdate with its signature; Document is signed as it is, byte for byte.
type SignedAgentUpdate struct {
	Document  []byte `json:"document"`
	Signature []byte `json:"signature"`
}

// MaxAgentBytes bounds an agent's program.
const MaxAgentBytes = 128 << 20

// updateContext is signed with each release, so that no other use of a key makes one.
const updateContext = "prego agent update v1\x00"

var (
	updateVersion = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$`)
	updateDigest  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// SignAgentUpdate signs a release.
func SignAgentUpdate(u AgentUpdate, key ed25519.PrivateKey) (SignedAgentUpdate, error) {
	if err := u.check(); err != nil {
		return SignedAgentUpdate{}, err
	}
	b, err := json.Marshal(u)
	if err != nil {
		return SignedAgentUpdate{}, fmt.Errorf("agent update: %w", err)
	}
	return SignedAgentUpdate{Document: b, Signature: ed25519.Sign(key, append([]byte(updateContext), b...))}, nil
}

// Open returns the release if it is signed with one of the keys.
func (s SignedAgentUpdate) Open(keys []ed25519.PublicKey) (AgentUpdate, error) {
	for _, key := range keys {
		if ed25519.Verify(key, append([]byte(updateContext), s.Document...), s.Signature) {
			return s.Read()
		}
	}
	return AgentUpdate{}, errors.New("no key that is trusted here signed this release of the agent")
}

// Read returns the release without checking its signature.
func (s SignedAgentUpdate) Read() (u AgentUpdate, err error) {
	if err := json.Unmarshal(s.Document, &u); err != nil {
		return u, fmt.Errorf("agent update: %w", err)
	}
	return u, u.check()
}

func (u AgentUpdate) check() error {
	if !updateVersion.MatchString(u.Version) || u.Serial < 1 || !updateDigest.MatchString(u.SHA256) || u.Bytes < 1 || u.Bytes > MaxAgentBytes || u.Arch == "" {
		return errors.New("agent update: version, serial, digest, size and architecture are required")
	}
	return nil
}

// UpdateStatus is how a host stands to the release of the agent that it tried last.
type UpdateStatus string

// How a host stands to a release of the agent.
const (
	UpdateTrying  UpdateStatus = "trying"  // it runs, and has not been heard of for long enough
	UpdateGood    UpdateStatus = "good"    // it runs
	UpdateBack    UpdateStatus = "back"    // the host went back to the agent before
	UpdateRefused UpdateStatus = "refused" // it was never run
)

// UpdateReport is a host's report about the last release that it tried, 0 for none.
type UpdateReport struct {
	Serial int64        `json:"serial,omitempty"`
	Status UpdateStatus `json:"status,omitempty"`
	// Reason is why it went back or was refused, at most MaxUpdateReason bytes.
	Reason string `json:"reason,omitempty"`
}

// MaxUpdateReason bounds a report's reason.
const MaxUpdateReason = 512

// UpdateResponse has the release that the host is to run, if that is another.
type UpdateResponse struct {
	Signed *SignedAgentUpdate `json:"signed,omitempty"`
}

// Paths of the gateway for releases of the agent. They need ScopeHeartbeat.
const (
	// PathUpdate takes an UpdateReport and answers with an UpdateResponse.
	PathUpdate = "/internal/agent/update"
	// PathUpdateBinary is a program by its digest, ?sha256=.
	PathUpdateBinary = "/internal/agent/update/binary"
)

// Files of the process that updates the agent, relative to the host's root directory.
const (
	// UpdateSocket is where it listens for the process that faces the network.
	UpdateSocket = "/run/prego-agent-update.sock"
	// UpdateProgram is what it runs: the last agent that proved good.
	UpdateProgram = "/var/lib/prego/updater"
	// UpdateState is what it remembers.
	UpdateState = "/var/lib/prego/update.json"
)
