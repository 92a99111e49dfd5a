package token

import (
	"github.com/prego/prego/agent/wire"
)

// Peers signs peers documents. All private keys sign, so that a host that trusts one of them
// learns of the others; when every host has, the oldest key can go.
type Peers struct {
	keys   *Keyring
	public map[string]string
}

// NewPeers signs with a ring of UsePeers.
func NewPeers(keys *Keyring) (*Peers, error) {
	public, err := keys.PublicPEM()
	return &Peers{keys: keys, public: public}, err
}

// Keys are the public halves, PEM by key id.
func (p *Peers) Keys() map[string]string { return p.public }

// Sign signs a document, which then names the keys.
func (p *Peers) Sign(doc wire.PeersDocument) (wire.SignedPeers, error) {
	doc.Keys = p.public
	return wire.SignPeers(doc, p.keys.signers)
}
