package sim

import (
	"crypto/md5" //nolint:gosec // the provider's fingerprints are of this kind; nothing relies on them
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

func (s *Sim) sshKeys() *kind[schema.SSHKey] {
	return &kind[schema.SSHKey]{
		sim: s, one: "ssh_key", many: "ssh_keys", title: "SSH key", all: s.st.SSHKeys,
		show: func(k *schema.SSHKey) item {
			return item{id: k.ID, name: k.Name, labels: k.Labels, created: k.Created, filters: map[string]string{"fingerprint": k.Fingerprint}, body: k}
		},
		name:   func(k *schema.SSHKey) *string { return &k.Name },
		labels: func(k *schema.SSHKey) *map[string]string { return &k.Labels },
		create: s.createSSHKey,
		remove: func(k *schema.SSHKey) (any, error) { delete(s.st.SSHKeys, k.ID); return nil, nil },
	}
}

// fingerprint is what the provider shows of a public key: MD5, in pairs.
func fingerprint(publicKey string) (string, error) {
	fields := strings.Fields(publicKey)
	if len(fields) < 2 || !strings.HasPrefix(fields[0], "ssh-") && !strings.HasPrefix(fields[0], "ecdsa-") && !strings.HasPrefix(fields[0], "sk-") {
		return "", invalid("invalid SSH key", "public_key")
	}
	blob, err := base64.StdEncoding.DecodeString(fields[1])
	// The blob begins with the name of its type, after four bytes of its length.
	if err != nil || len(blob) < 4+len(fields[0]) || string(blob[4:4+len(fields[0])]) != fields[0] {
		return "", invalid("invalid SSH key", "public_key")
	}
	pairs := make([]string, 0, md5.Size)
	for _, b := range md5.Sum(blob) { //nolint:gosec // see above
		pairs = append(pairs, fmt.Sprintf("%02x", b))
	}
	return strings.Join(pairs, ":"), nil
}

func (s *Sim) createSSHKey(r *http.Request) (any, error) {
	var req schema.SSHKeyCreateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := s.sshKeys().free(req.Name, 0); err != nil {
		return nil, err
	}
	sum, err := fingerprint(req.PublicKey)
	if err != nil {
		return nil, err
	}
	for _, k := range s.st.SSHKeys {
		if k.Fingerprint == sum {
			return nil, &apiError{status: 409, code: "uniqueness_error", message: "SSH key with the same fingerprint already exists"}
		}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return nil, err
	}
	k := &schema.SSHKey{ID: s.st.id(), Name: req.Name, Fingerprint: sum, PublicKey: strings.TrimSpace(req.PublicKey), Labels: labels, Created: time.Now().UTC()}
	s.st.SSHKeys[k.ID] = k
	return map[string]any{"ssh_key": k}, nil
}

// haveKeys refuses SSH keys that are not there.
func (s *Sim) haveKeys(ids []int64) error {
	for _, id := range ids {
		if _, ok := s.st.SSHKeys[id]; !ok {
			return invalid("SSH key not found", "ssh_keys")
		}
	}
	return nil
}
