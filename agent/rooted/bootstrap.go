package rooted

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

	"github.com/prego/prego/agent/gateway"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// ErrRefused means that the gateway will never accept the token: it has expired, or was revoked or consumed. Retrying
// is pointless.
var ErrRefused = errors.New("the bootstrap token was refused permanently")

// Bootstrap exchanges the bootstrap token for an identity, unless the host has one. It retries until ctx ends, and
// gives up immediately on a definite refusal: an unreachable gateway may come back, and the token's expiry is checked
// there.
//
// The token is deleted once the identity is durable, or the refusal definite. After a crash in between, the same key
// presents the token again.
func Bootstrap(ctx context.Context, h *host.Host, addr, version string, log *slog.Logger) error {
	if id, err := h.LoadIdentity(); err != nil {
		return err
	} else if id != nil {
		return unlinkToken(h)
	}
	raw, err := os.ReadFile(h.Path(wire.BootstrapTokenPath))
	if err != nil {
		return fmt.Errorf("bootstrap token: %w", err)
	}
	bundle, err := os.ReadFile(h.Path(wire.GatewayCAPath))
	if err != nil {
		return fmt.Errorf("gateway CA: %w", err)
	}
	k, err := h.LoadKeys()
	if err != nil {
		return err
	}
	cert, err := k.SelfSigned(h.Config.ServerID)
	if err != nil {
		return err
	}
	csrs, err := k.CSRs(h.Config)
	if err != nil {
		return err
	}
	gw, err := gateway.New(h, string(bundle), func() (*tls.Certificate, error) { return &cert, nil }, addr)
	if err != nil {
		return err
	}
	defer gw.Close()
	hostname, _ := os.Hostname()
	request := wire.HandshakeRequest{
		ServerID: h.Config.ServerID, Token: strings.TrimSpace(string(raw)), CSRs: csrs,
		AgentVersion: version, BootID: host.BootID(h.Root), Hostname: hostname, Tags: h.Config.Tags,
	}
	// A milestone: failing to report it stops nothing.
	if err := gw.PostJSON(ctx, wire.PathBootStage, request.Token, wire.BootStageRequest{ServerID: h.Config.ServerID, Stage: wire.StageAgentStarted}, nil); err != nil {
		log.Info("boot stage not reported", "error", err.Error())
	}
	wait := gateway.Backoff{Base: 500 * time.Millisecond, Cap: 10 * time.Second}
	for {
		var id wire.Identity
		request.HostTime = time.Now()
		err := gw.PostJSON(ctx, wire.PathHandshake, "", request, &id)
		if err == nil {
			err = keep(h, &id, k, addr)
		}
		if err == nil {
			log.Info("bootstrapped", "server_id", id.ServerID, "certificates_until", id.Certificates.NotAfter)
			return unlinkToken(h)
		}
		var refusal *gateway.Refusal
		var after time.Duration
		if errors.As(err, &refusal) {
			if isDefinite(refusal.Status) {
				return errors.Join(fmt.Errorf("%w: %w", ErrRefused, err), unlinkToken(h))
			}
			after = refusal.RetryAfter
		}
		d := wait.Next(after)
		log.Warn("handshake failed, trying again", "in", d.String(), "error", err.Error())
		if err := h.Pause(ctx, d); err != nil {
			return err
		}
	}
}

// keep stores an identity durably, if it is usable.
func keep(h *host.Host, id *wire.Identity, k host.Keys, addr string) error {
	s, err := gateway.Open(h, id, k, addr)
	if err != nil {
		return fmt.Errorf("the gateway's answer can't be used: %w", err)
	}
	s.Gateway.Close()
	if err := pinPeersKeys(h, id.Bundles.PeersKeys); err != nil {
		return err
	}
	return h.SaveIdentity(id, k)
}

// isDefinite reports whether an answer is about the token itself: unknown or superseded, consumed by another key, or
// expired (direct-provisioning §4). Anything else may be the gateway's fault, and must not cost the host its token.
func isDefinite(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusConflict || status == http.StatusGone
}

func unlinkToken(h *host.Host) error {
	if err := os.Remove(h.Path(wire.BootstrapTokenPath)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unlink the bootstrap token: %w", err)
	}
	return nil
}
