package rooted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// pinPeersKeys keeps the keys that may sign peers documents, where only root writes.
func pinPeersKeys(h *host.Host, keys map[string]string) error {
	if len(keys) == 0 { // of a gateway that knows no peers
		return nil
	}
	b, err := json.Marshal(keys)
	if err != nil {
		return fmt.Errorf("keys of peers: %w", err)
	}
	return host.WriteFile(h.Path(wire.PeersKeysPath), b, 0o644)
}

// InstallServiceTLS gives the host's containers the certificate for services, and has the running ones load it. It is
// repeated whenever the agent has another one; containers that start later read the files by themselves.
func InstallServiceTLS(ctx context.Context, h *host.Host) error {
	if err := CopyServiceTLS(h); err != nil {
		return err
	}
	switch h.Config.Role {
	case host.RoleShard:
		return reloadMariaDB(ctx, h)
	case host.RolePool:
		return reloadRedisTLS(ctx, h)
	}
	return nil // clients read the files when they connect
}

// CopyServiceTLS gives the host's containers the certificate for services.
func CopyServiceTLS(h *host.Host) error {
	mount := host.ServiceMount(h.Config.Role)
	from := h.Path(wire.ServiceTLSDir)
	if mount == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(from, "cert.pem")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	into := h.Path(mount + "/" + wire.TLSDir)
	if err := os.MkdirAll(into, 0o755); err != nil {
		return fmt.Errorf("certificate for services: %w", err)
	}
	for _, name := range []string{"ca.pem", "key.pem", "cert.pem"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return fmt.Errorf("certificate for services: %w", err)
		}
		// Each image decides which user its program runs as; the directory above keeps all others out.
		if err := host.WriteFile(filepath.Join(into, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// reloadMariaDB makes the running server reload its certificate; connections stay.
func reloadMariaDB(ctx context.Context, h *host.Host) error {
	if !listens(h, wire.MariaDBSocket) {
		return nil
	}
	password, err := hostSecret(h, host.MariaDBRoot)
	if err != nil {
		return err
	}
	db, err := h.OpenMariaDB(wire.Service{Socket: wire.MariaDBSocket, User: "root", Password: password})
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
func reloadRedisTLS(ctx context.Context, h *host.Host) error {
	if !listens(h, wire.RedisSocket) {
		return nil
	}
	password, err := hostSecret(h, "redis-app")
	if err != nil {
		return err
	}
	r, done, err := h.OpenRedis(ctx, wire.Service{Socket: wire.RedisSocket, User: "default", Password: password})
	if err != nil {
		return fmt.Errorf("the certificate of Redis: %w", host.RedisError(err))
	}
	defer done()
	if err := setSame(r.Do); err != nil {
		return fmt.Errorf("the certificate of Redis: %w", host.RedisError(err))
	}
	return nil
}

func listens(h *host.Host, socket string) bool {
	_, err := os.Stat(h.Path(socket))
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
