package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prego/prego/agent/wire"
)

// ErrRefused says that the gateway will never take the token: it is expired,
// revoked or consumed. There is no use in trying again.
var ErrRefused = errors.New("the bootstrap token was refused for good")

// Bootstrap exchanges the bootstrap token for an identity, unless the host has
// one. It goes on trying until ctx ends, and gives up at once on a definite
// refusal.
//
// The token is unlinked once the identity is durable, or the refusal definite. A
// crash in between is healed by the same key presenting the token again.
func (h *Host) Bootstrap(ctx context.Context, addr, version string, log *slog.Logger) error {
	if id, err := h.LoadIdentity(); err != nil {
		return err
	} else if id != nil {
		return h.unlinkToken()
	}
	raw, err := os.ReadFile(h.path(wire.BootstrapTokenPath))
	if err != nil {
		return fmt.Errorf("bootstrap token: %w", err)
	}
	bundle, err := os.ReadFile(h.path(wire.GatewayCAPath))
	if err != nil {
		return fmt.Errorf("gateway CA: %w", err)
	}
	k, err := h.loadKeys()
	if err != nil {
		return err
	}
	cert, err := k.selfSigned(h.Config.ServerID)
	if err != nil {
		return err
	}
	csrs, err := k.csrs(h.Config.ServerID)
	if err != nil {
		return err
	}
	gw, err := newGateway(h, string(bundle), func() (*tls.Certificate, error) { return &cert, nil }, addr)
	if err != nil {
		return err
	}
	defer gw.close()
	hostname, _ := os.Hostname()
	request := wire.HandshakeRequest{
		ServerID: h.Config.ServerID, Token: strings.TrimSpace(string(raw)), CSRs: csrs,
		AgentVersion: version, BootID: bootID(), Hostname: hostname, Tags: h.Config.Tags,
	}
	wait := backoff{base: 500 * time.Millisecond, cap: 10 * time.Second}
	for {
		var id wire.Identity
		err := gw.postJSON(ctx, wire.PathHandshake, "", request, &id)
		if err == nil {
			if err := h.saveIdentity(&id, k); err != nil {
				return err
			}
			log.Info("bootstrapped", "server_id", id.ServerID, "certificates_until", id.Certificates.NotAfter)
			return h.unlinkToken()
		}
		var refusal *Refusal
		var after time.Duration
		if errors.As(err, &refusal) {
			if definite(refusal.Status) {
				return errors.Join(fmt.Errorf("%w: %w", ErrRefused, err), h.unlinkToken())
			}
			after = refusal.RetryAfter
		}
		d := wait.next(after)
		log.Warn("handshake failed, trying again", "in", d.String(), "error", err.Error())
		if err := pause(ctx, d); err != nil {
			return err
		}
	}
}

func definite(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusConflict, http.StatusGone, http.StatusUnprocessableEntity, http.StatusBadRequest:
		return true
	}
	return false
}

func (h *Host) unlinkToken() error {
	if err := os.Remove(h.path(wire.BootstrapTokenPath)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unlink the bootstrap token: %w", err)
	}
	return nil
}
