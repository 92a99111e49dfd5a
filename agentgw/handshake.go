package agentgw

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

// handshake exchanges a bootstrap token for an identity. The connection's
// certificate is self-signed: that it was presented proves that the host holds
// the key, and the token is bound to that key.
func (g *Gateway) handshake(c echo.Context) error {
	return g.guarded(c, func() error {
		var in wire.HandshakeRequest
		if err := decode(c, &in); err != nil {
			return err
		}
		if err := prego.ValidateServerID(in.ServerID); err != nil {
			return err
		}
		if in.Token == "" || len(in.Token) > 128 || len(in.AgentVersion) > 64 || len(in.BootID) > 64 {
			return prego.Invalid("token", "is required, and no field may be longer than its kind")
		}
		cert := peer(c)
		if cert == nil {
			return prego.Errorf(prego.CodeCertificateInvalid, "a self-signed client certificate is required")
		}
		key, err := g.ca.KeySHA256(cert)
		if err != nil {
			return err
		}
		requested, err := g.ca.KeyOfCSR("csrs.agent_client", in.CSRs.AgentClient)
		if err != nil {
			return err
		}
		if !bytes.Equal(key, requested) {
			return prego.Invalid("csrs.agent_client", "must be of the key that the connection proved")
		}
		claim := Claim{TokenHash: g.tokens.HashBootstrap(in.Token), Key: key, ServerID: in.ServerID, AgentVersion: in.AgentVersion, BootID: in.BootID}
		if g.settings.CheckSource {
			claim.Source = source(c)
		}
		ctx := c.Request().Context()
		consumed, err := g.store.ConsumeToken(ctx, claim)
		var second *prego.SecondKeyError
		if errors.As(err, &second) {
			g.log.Error("a bootstrap token was presented by a second key", zap.String("server_id", second.ServerID), zap.String("source", source(c)))
			g.signal("bootstrap_refused", second.ServerID, func() error { return g.signals.BootstrapRefused(ctx, second.ServerID, second.Attempt) })
		}
		if err != nil {
			return err
		}
		identity, err := g.identity(consumed.ServerID, consumed.Host, consumed.IPv6, &in.CSRs, cert)
		if err != nil {
			return err
		}
		g.revoked.mu.Lock()
		delete(g.revoked.ids, consumed.ServerID) // a new attempt's agent; the set is read again soon
		g.revoked.mu.Unlock()
		g.signal("handshake", consumed.ServerID, func() error { return g.signals.AgentHandshook(ctx, consumed.ServerID, consumed.Attempt) })
		return c.JSON(http.StatusOK, identity)
	})
}

// signal sends a hint to a run. One that is lost heals: every heartbeat of a
// server that is still provisioning sends another.
func (g *Gateway) signal(kind, serverID string, send func() error) {
	if err := send(); err != nil {
		g.metrics.signals.WithLabelValues(kind, "failed").Inc()
		g.log.Warn("signal not sent", zap.String("kind", kind), zap.String("server_id", serverID), zap.Error(err))
		return
	}
	g.metrics.signals.WithLabelValues(kind, "sent").Inc()
}

// identity issues what a host needs from now on. Without requests for
// certificates only the JWT is new, bound to cert.
func (g *Gateway) identity(serverID, host, ipv6 string, csrs *wire.CSRs, cert *x509.Certificate) (wire.Identity, error) {
	out := wire.Identity{ServerID: serverID, Environment: g.settings.Environment, HeartbeatSeconds: int(g.settings.Heartbeat.Seconds())}
	var err error
	if out.Bundles, err = g.ca.Bundles(); err != nil {
		return out, err
	}
	if csrs != nil {
		if out.Certificates, err = g.ca.SignCSRs(serverID, addresses(host, ipv6), *csrs, g.settings.CertTTL); err != nil {
			return out, err
		}
		block, _ := pem.Decode([]byte(out.Certificates.AgentClient))
		if block == nil {
			return out, errors.New("issued certificate is not PEM")
		}
		if cert, err = x509.ParseCertificate(block.Bytes); err != nil {
			return out, err
		}
	}
	out.Token, out.TokenExpires, err = g.tokens.Issue(serverID, cert, g.settings.TokenTTL)
	return out, err
}

func addresses(host, ipv6 string) []net.IP {
	var out []net.IP
	if ip := net.ParseIP(host); ip != nil {
		out = append(out, ip)
	}
	if ip, _, err := net.ParseCIDR(ipv6); err == nil {
		out = append(out, ip)
	}
	return out
}

// rotate renews an agent's JWT and, when it asks, its certificates. The key that
// the server is bound to stays: a lost answer then costs nothing but another
// request.
func (g *Gateway) rotate(c echo.Context) error {
	var in wire.RotateRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	who := callerOf(c)
	key, err := g.ca.KeySHA256(who.cert)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	binding, err := g.store.CheckAgent(ctx, who.serverID, key)
	if err != nil {
		return err
	}
	if in.CSRs != nil {
		requested, err := g.ca.KeyOfCSR("csrs.agent_client", in.CSRs.AgentClient)
		if err != nil {
			return err
		}
		if !bytes.Equal(key, requested) {
			return prego.Invalid("csrs.agent_client", "must be of the key that the server is bound to")
		}
	}
	identity, err := g.identity(who.serverID, binding.Host, binding.IPv6, in.CSRs, who.cert)
	if err != nil {
		return err
	}
	if in.CSRs != nil {
		if err := g.store.AddEvent(ctx, prego.ServerEvent{ServerID: who.serverID, Step: prego.StepIdentityRotated, Actor: prego.ActorSystem}, ""); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, identity)
}
