package agent

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/prego/prego/agent/wire"
)

// serviceMount is the directory of a role's containers that gets the certificate for
// databases and caches, "" if the role has no use for one. A node keeps both to itself.
func serviceMount(role string) string {
	switch role {
	case roleShard:
		return wire.MariaDBMount
	case rolePool:
		return wire.RedisMount
	case "app":
		return wire.BenchMount
	}
	return ""
}

// servesOthers reports whether hosts of a role have databases or caches of others' tenants.
func servesOthers(role string) bool { return role == roleShard || role == rolePool }

// servesAt reports whether the certificate for services is for an address.
func servesAt(id *wire.Identity, address string) bool {
	block, _ := pem.Decode([]byte(id.Certificates.Service))
	if block == nil {
		return false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	ip := net.ParseIP(address)
	return err == nil && ip != nil && slices.ContainsFunc(cert.IPAddresses, ip.Equal)
}

// pinPeersKeys keeps the keys that may sign peers documents, where only root writes.
func (h *Host) pinPeersKeys(keys map[string]string) error {
	if len(keys) == 0 { // of a gateway that knows no peers
		return nil
	}
	b, err := json.Marshal(keys)
	if err != nil {
		return fmt.Errorf("keys of peers: %w", err)
	}
	return writeFile(h.path(wire.PeersKeysPath), b, 0o644)
}

// saveService stores the certificate for services with its key and the CAs of the other
// side. The key never changes, so the files match each other, whichever a reader sees
// renewed; the certificate comes last, since whoever installs them waits for it.
func (h *Host) saveService(id *wire.Identity, k keys) error {
	if id.Certificates.Service == "" {
		return nil
	}
	trusted := id.Bundles.ServiceServer
	if servesOthers(h.Config.Role) {
		trusted = id.Bundles.ServiceClient
	}
	key, err := encodeKey(k.service)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(h.path(wire.ServiceTLSDir), 0o700); err != nil {
		return fmt.Errorf("certificate for services: %w", err)
	}
	for name, content := range map[string][]byte{"ca.pem": []byte(trusted), "key.pem": key} {
		if err := writeFile(h.path(wire.ServiceTLSDir+"/"+name), content, 0o600); err != nil {
			return err
		}
	}
	return writeFile(h.path(wire.ServiceTLSDir+"/cert.pem"), []byte(id.Certificates.Service), 0o600)
}

// InstallServiceTLS gives the host's containers the certificate for services, and has the
// running ones load it. It is done again whenever the agent has another one; what has not
// started yet reads the files by itself.
func (h *Host) InstallServiceTLS(ctx context.Context) error {
	if err := h.copyServiceTLS(); err != nil {
		return err
	}
	switch h.Config.Role {
	case roleShard:
		return h.reloadMariaDB(ctx)
	case rolePool:
		return h.reloadRedisTLS(ctx)
	}
	return nil // clients read the files when they connect
}

func (h *Host) copyServiceTLS() error {
	mount := serviceMount(h.Config.Role)
	from := h.path(wire.ServiceTLSDir)
	if mount == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(from, "cert.pem")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	into := h.path(mount + "/" + wire.TLSDir)
	if err := os.MkdirAll(into, 0o755); err != nil {
		return fmt.Errorf("certificate for services: %w", err)
	}
	for _, name := range []string{"ca.pem", "key.pem", "cert.pem"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return fmt.Errorf("certificate for services: %w", err)
		}
		// Each image decides which user its program runs as; the directory above keeps
		// everybody else out.
		if err := writeFile(filepath.Join(into, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// reloadMariaDB makes the running server take its certificate anew; connections stay.
func (h *Host) reloadMariaDB(ctx context.Context) error {
	if !h.listens(wire.MariaDBSocket) {
		return nil
	}
	password, err := h.hostSecret(mariadbRoot)
	if err != nil {
		return err
	}
	db, err := h.openMariaDB(wire.Service{Socket: wire.MariaDBSocket, User: "root", Password: password})
	if err != nil {
		return fmt.Errorf("MariaDB's certificate: %w", err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, "FLUSH LOCAL SSL"); err != nil {
		return fmt.Errorf("MariaDB's certificate: %w", err)
	}
	return nil
}

// reloadRedisTLS does the same for Redis.
func (h *Host) reloadRedisTLS(ctx context.Context) error {
	if !h.listens(wire.RedisSocket) {
		return nil
	}
	password, err := h.hostSecret("redis-app")
	if err != nil {
		return err
	}
	r, done, err := h.openRedis(ctx, wire.Service{Socket: wire.RedisSocket, User: "default", Password: password})
	if err != nil {
		return fmt.Errorf("the certificate of Redis: %w", redisError(err))
	}
	defer done()
	if err := setSame(r.Do); err != nil {
		return fmt.Errorf("the certificate of Redis: %w", redisError(err))
	}
	return nil
}

func (h *Host) listens(socket string) bool {
	_, err := os.Stat(h.path(socket))
	return err == nil
}

// setSame sets the options that name the files to what they are: Redis then reads them again,
// whether a value changes or not, and its connections stay.
func setSame(do func(args ...string) (any, error)) error {
	reply, err := do("CONFIG", "GET", "tls-cert-file", "tls-key-file", "tls-ca-cert-file")
	if err != nil {
		return err
	}
	options, _ := reply.([]any)
	set := []string{"CONFIG", "SET"}
	for _, v := range options {
		set = append(set, fmt.Sprint(v))
	}
	if len(set) == 2 { // a server without TLS
		return nil
	}
	_, err = do(set...)
	return err
}
