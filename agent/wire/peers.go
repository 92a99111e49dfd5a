package wire

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
)

// PathPeers is the gateway's path for the peers document. It needs ScopeHeartbeat.
const PathPeers = "/internal/agent/peers"

// KindPeers makes an agent fetch its document immediately; nothing is run. The one argument is the version that must
// at least be active, and the answer is a PeersNowResponse.
const KindPeers CommandKind = "peers"

// PeersDocument defines which peers may reach a host, and where. It is complete: everything else is dropped,
// regardless of earlier documents. A host applies only documents of its server and environment, and never one with a
// lower version than it has applied.
type PeersDocument struct {
	Environment string `json:"environment"`
	ServerID    string `json:"server_id"`
	// Version grows with each change of this server's document.
	Version int64 `json:"version"`
	// Address is the server's private address. Access by Access goes to it; with "" only ports for everyone are open.
	Address string `json:"address,omitempty"`
	// Control is who may reach the agent and Docker.
	Control PeersControl  `json:"control"`
	Access  []PeersAccess `json:"access,omitempty"`
	// Keys are the Ed25519 public keys, PEM by key id, that may sign the next documents.
	Keys map[string]string `json:"keys"`
}

// PeersControl opens the ports of the agent and of Docker to the control plane.
type PeersControl struct {
	CIDRs []string `json:"cidrs"`
	Ports []int    `json:"ports"`
}

// PeersAccess opens TCP ports of a host. A port is the one that a peer calls; the host may have published it for a
// container.
type PeersAccess struct {
	Ports []int `json:"ports"`
	// From are private addresses. PeersEveryone, alone, is everyone at any address of the host.
	From []string `json:"from"`
}

// PeersEveryone is a From that stands for all addresses.
const PeersEveryone = "*"

// SignedPeers is a PeersDocument with its signatures. Document is signed as it is, byte
// for byte. While keys are replaced, both the old and the new one sign.
type SignedPeers struct {
	Document   []byte            `json:"document"`
	Signatures map[string][]byte `json:"signatures"` // by key id
}

// PeersRequest asks for the document, and reports the active one.
type PeersRequest struct {
	// Applied is the active version, 0 for none.
	Applied int64 `json:"applied"`
	// Refused is why the host does not apply the document that it was last given, or which parts of the active one it
	// leaves out and why, at most MaxPeersRefused bytes of text; "" is neither.
	Refused string `json:"refused,omitempty"`
	// Keys are the ids of the keys that the host trusts: it gets the active document again if there are others.
	Keys []string `json:"keys,omitempty"`
}

// PeersResponse has the document unless it is already active.
type PeersResponse struct {
	Version int64        `json:"version"`
	Signed  *SignedPeers `json:"signed,omitempty"`
}

// PeersNowResponse answers a command of KindPeers with the active version.
type PeersNowResponse struct {
	Applied int64 `json:"applied"`
}

// Limits of peers documents.
const (
	MaxPeersDocument = 1 << 20 // bytes
	MaxPeersRefused  = 512
)

// peersContext is signed with each document, so that no other use of a key makes one.
const peersContext = "prego peers document v1\x00"

// SignPeers signs a document with each of the keys, by key id.
func SignPeers(doc PeersDocument, keys map[string]ed25519.PrivateKey) (SignedPeers, error) {
	if len(keys) == 0 {
		return SignedPeers{}, errors.New("peers document: there is no key to sign it with")
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return SignedPeers{}, fmt.Errorf("peers document: %w", err)
	}
	out := SignedPeers{Document: b, Signatures: make(map[string][]byte, len(keys))}
	message := append([]byte(peersContext), b...)
	for id, key := range keys {
		out.Signatures[id] = ed25519.Sign(key, message)
	}
	return out, nil
}

// Open returns the document if it is signed with a trusted key, PEM by key id.
func (s SignedPeers) Open(trusted map[string]string) (PeersDocument, error) {
	var doc PeersDocument
	if len(s.Document) > MaxPeersDocument {
		return doc, errors.New("peers document: it is too large")
	}
	message := append([]byte(peersContext), s.Document...)
	signed := false
	for id, signature := range s.Signatures {
		text, ok := trusted[id]
		if !ok {
			continue
		}
		key, err := ParsePeersKey(text)
		if err != nil {
			return doc, fmt.Errorf("peers document: key %s: %w", id, err)
		}
		signed = signed || ed25519.Verify(key, message, signature)
	}
	if !signed {
		return doc, errors.New("peers document: no trusted key signed it")
	}
	if err := json.Unmarshal(s.Document, &doc); err != nil {
		return doc, fmt.Errorf("peers document: %w", err)
	}
	return doc, nil
}

// ParsePeersKey reads a public key of Keys.
func ParsePeersKey(text string) (ed25519.PublicKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("it is not PEM")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("it is not Ed25519")
	}
	return key, nil
}

// Files of the process that applies peers documents, relative to the host's root directory.
const (
	// PeersSocket is where it listens for the process that faces the network.
	PeersSocket = "/run/prego-agent-peers.sock"
	// PeersDir holds the last good document, as it was signed, and the keys that may sign
	// the next ones. Only root can enter it.
	PeersDir = "/var/lib/prego-peers"
	// PeersKeysPath has the keys that the host was enrolled with, JSON of PEM by key id.
	PeersKeysPath = "/etc/prego-agent/peers-keys.json"
	// FirewallPath is the ruleset of the first boot.
	FirewallPath = "/etc/prego-agent/firewall.nft"
)

// Files of the certificates that databases and caches use among each other, relative to the host's root directory:
// ca.pem, cert.pem and key.pem in a directory TLSDir of the directory that a container mounts (MariaDBMount,
// RedisMount, BenchMount). On the side of a server, ca.pem has the CAs of clients, and the other way round.
const (
	TLSDir = "tls"
	// ServiceTLSDir is where the agent keeps them.
	ServiceTLSDir = "/var/lib/prego-agent/service"
)
