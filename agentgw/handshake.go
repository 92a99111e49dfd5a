package agentgw

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// handshake exchanges a bootstrap token for an identity. The connection's certificate is self-signed: presenting it
// proves that the host holds the key, and the token is bound to that key.
func (g *Gateway) handshake(c echo.Context) error {
	return g.guarded(c, func() error {
		var in wire.HandshakeRequest
		if err := decode(c, &in); err != nil {
			return err
		}
		if err := prego.ValidateServerID(in.ServerID); err != nil {
			return err
		}
		if in.Token == "" || len(in.Token) > 128 {
			return prego.Invalid("token", "is required, at most 128 characters")
		}
		if err := errors.Join(checkWord("agent_version", in.AgentVersion), checkWord("boot_id", in.BootID)); err != nil {
			return err
		}
		tags, err := reportedTags(in.Tags)
		if err != nil {
			return err
		}
		cert := peerCertificate(c)
		if cert == nil {
			return prego.Errorf(prego.CodeCertificateInvalid, "a self-signed client certificate is required")
		}
		key, err := g.ca.KeySHA256(cert)
		if err != nil {
			return err
		}
		if err := g.checkCSRs(in.CSRs, key); err != nil {
			return err
		}
		claim := server.TokenClaim{
			TokenHash: g.tokens.HashBootstrap(in.Token), Key: key, ServerID: prego.ServerID(in.ServerID),
			AgentVersion: in.AgentVersion, BootID: in.BootID, Tags: tags,
		}
		if g.settings.CheckSource {
			claim.Source = sourceAddress(c)
		}
		ctx := c.Request().Context()
		if ahead, skewed := g.ahead(in.HostTime); skewed {
			if err := g.refuseClock(ctx, claim.TokenHash, prego.ServerID(in.ServerID), *ahead); err != nil {
				return err
			}
		}
		consumed, err := g.store.ConsumeToken(ctx, claim)
		var second *server.SecondKeyError
		if errors.As(err, &second) {
			g.log.Error("a bootstrap token was presented by a second key",
				zap.String("server_id", string(second.ServerID)), zap.String("source", sourceAddress(c)))
			g.signal(ctx, handshakeSlotTimeout, "bootstrap_refused", second.ServerID, second.Attempt, g.runs.BootstrapRefused)
		}
		if err != nil {
			return err
		}
		binding := server.AgentBinding{Host: consumed.Host, IPv6: consumed.IPv6, Role: consumed.Role}
		if in.CSRs.Service != "" {
			if binding, err = g.store.CheckAgent(ctx, consumed.ServerID, key); err != nil {
				return err
			}
		}
		identity, err := g.identity(consumed.ServerID, binding, &in.CSRs, cert)
		if err != nil {
			return err
		}
		g.awaited.expect(consumed.ServerID)
		return c.JSON(http.StatusOK, identity)
	})
}

// checkCSRs checks the requests before anything is consumed for them. The client's request must use the key that the
// connection proved: the server is bound to that key.
func (g *Gateway) checkCSRs(csrs wire.CSRs, key []byte) error {
	requested, err := g.ca.KeyOfCSR("csrs.agent_client", csrs.AgentClient)
	if err != nil {
		return err
	}
	if !bytes.Equal(key, requested) {
		return prego.Invalid("csrs.agent_client", "must use the key that the connection proved")
	}
	if _, err := g.ca.KeyOfCSR("csrs.agent_server", csrs.AgentServer); err != nil {
		return err
	}
	if _, err = g.ca.KeyOfCSR("csrs.docker_server", csrs.DockerServer); err != nil || csrs.Service == "" {
		return err
	}
	_, err = g.ca.KeyOfCSR("csrs.service", csrs.Service)
	return err
}

// identity issues an agent's credentials. Without certificate requests only the JWT is new, bound to cert.
func (g *Gateway) identity(
	serverID prego.ServerID, b server.AgentBinding, csrs *wire.CSRs, cert *x509.Certificate,
) (wire.Identity, error) {
	out := wire.Identity{
		ServerID: string(serverID), Environment: g.settings.Environment,
		HeartbeatSeconds: int(g.settings.Heartbeat.Seconds()),
	}
	var err error
	if out.Bundles, err = g.ca.Bundles(g.settings.ExecKeys, g.signer.Keys()); err != nil {
		return out, err
	}
	if csrs != nil {
		out.Certificates, err = g.ca.SignCSRs(serverID, hostAddresses(b.Host, b.IPv6), *csrs, g.settings.CertTTL)
		if err != nil {
			return out, err
		}
		if err = g.service(serverID, b, csrs.Service, &out.Certificates); err != nil {
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
	out.Token, out.TokenExpires, err = g.tokens.Issue(serverID, b.Role, cert, g.settings.TokenTTL)
	return out, err
}

// service issues the certificate that a host's role needs: a server certificate with a private address on shards and
// pools, a client certificate on benches.
func (g *Gateway) service(serverID prego.ServerID, b server.AgentBinding, csr string, into *wire.Certificates) error {
	private := net.ParseIP(b.PrivateAddress)
	switch {
	case csr == "":
		return nil
	case b.Role == prego.RoleDBShard || b.Role == prego.RoleRedisPool:
		if private == nil {
			return nil // requested again once there is an address
		}
	case b.Role == prego.RoleApp:
		private = nil
	default:
		return nil
	}
	certificate, notAfter, err := g.ca.SignService(serverID, private, csr, g.settings.CertTTL)
	if err != nil {
		return err
	}
	into.Service = certificate
	if notAfter.Before(into.NotAfter) {
		into.NotAfter = notAfter
	}
	return nil
}

func hostAddresses(host, ipv6 string) []net.IP {
	var out []net.IP
	if ip := net.ParseIP(host); ip != nil {
		out = append(out, ip)
	}
	if ip, _, err := net.ParseCIDR(ipv6); err == nil {
		out = append(out, ip)
	}
	return out
}

// rotate renews an agent's JWT and, on request, its certificates. The server stays bound to the same key, so a lost
// answer costs only another request.
func (g *Gateway) rotate(ctx context.Context, who caller, in wire.RotateRequest) (any, error) {
	binding, err := g.store.CheckAgent(ctx, who.serverID, who.key)
	if err != nil {
		return nil, err
	}
	if in.CSRs != nil {
		if err := g.checkCSRs(*in.CSRs, who.key); err != nil {
			return nil, err
		}
	}
	identity, err := g.identity(who.serverID, binding, in.CSRs, who.cert)
	if err != nil {
		return nil, err
	}
	if in.CSRs != nil {
		// At most hourly, so that an agent that keeps renewing can't fill the timeline.
		hour := fmt.Sprintf("%s/%s", server.StepIdentityRotated, time.Now().UTC().Format("2006-01-02T15"))
		rotated := server.Event{ServerID: who.serverID, Step: server.StepIdentityRotated, Actor: prego.ActorSystem}
		if err := g.store.AddEvent(ctx, rotated, hour); err != nil {
			return nil, err
		}
	}
	return identity, nil
}
