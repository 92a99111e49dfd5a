package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/prego/prego/agent/wire"
)

// ErrNoIdentity says that the host was not bootstrapped.
var ErrNoIdentity = errors.New("the host has no identity: run prego-agent bootstrap")

// Agent is the long-lived part.
type Agent struct {
	host    *Host
	addr    string
	version string
	log     *slog.Logger
	keys    keys
	jtis    *seen
	sensors sensors
	ship    *shipper

	mu sync.RWMutex
	id *wire.Identity
	gw *gateway
	// leaves of the current certificates
	client, server *tls.Certificate
	trustExec      *x509.CertPool
	execKeys       map[string]any
	tokenFrom      time.Time // when the JWT was issued
}

// New loads the identity of a host.
func New(h *Host, addr, version string, log *slog.Logger) (*Agent, error) {
	id, err := h.LoadIdentity()
	if err != nil {
		return nil, err
	}
	if id == nil {
		return nil, ErrNoIdentity
	}
	k, err := h.loadKeys()
	if err != nil {
		return nil, err
	}
	a := &Agent{host: h, addr: addr, version: version, log: log, keys: k, jtis: newSeen(), sensors: sensors{root: h.Root}}
	if err := a.adopt(id); err != nil {
		return nil, err
	}
	a.ship = newShipper(a)
	return a, nil
}

// Logger is a logger whose lines are also sent to the gateway.
func (a *Agent) Logger() *slog.Logger { return slog.New(a.ship.handler(a.log.Handler())) }

// adopt switches to an identity. Requests under way end on the old one.
func (a *Agent) adopt(id *wire.Identity) error {
	client, err := certificate(id.Certificates.AgentClient, a.keys.client)
	if err != nil {
		return fmt.Errorf("client certificate: %w", err)
	}
	server, err := certificate(id.Certificates.AgentServer, a.keys.server)
	if err != nil {
		return fmt.Errorf("server certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(id.Bundles.ExecClient)) {
		return errors.New("the bundle of exec clients holds no certificate")
	}
	execKeys, err := parseExecKeys(id.Bundles.ExecKeys)
	if err != nil {
		return err
	}
	gw, err := newGateway(a.host, id.Bundles.Gateway, func() (*tls.Certificate, error) { return client, nil }, a.addr)
	if err != nil {
		return err
	}
	a.mu.Lock()
	old := a.gw
	a.id, a.gw, a.client, a.server, a.trustExec, a.execKeys = id, gw, client, server, pool, execKeys
	a.tokenFrom = time.Now()
	a.mu.Unlock()
	if old != nil {
		old.close()
	}
	return nil
}

func certificate(text string, key any) (*tls.Certificate, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("not PEM")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key, Leaf: leaf}, nil
}

func (a *Agent) current() (*wire.Identity, *gateway) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.id, a.gw
}

// Run sends heartbeats, renews the identity, pushes metrics and serves the exec
// endpoint, until ctx ends.
func (a *Agent) Run(ctx context.Context) error {
	log := a.Logger()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, loop := range []func(context.Context, *slog.Logger) error{a.heartbeats, a.serve, a.push} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := loop(ctx, log); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		}()
	}
	log.Info("agent running", "server_id", a.host.Config.ServerID, "version", a.version)
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// revokedRetry is how often an agent whose identity was revoked asks again: a
// mistake may be mended, and there is nothing else it could do.
const revokedRetry = 5 * time.Minute

// heartbeats sends one at once and then one per interval, and renews the identity
// in between. After a failure it tries again sooner, but never twice at once.
func (a *Agent) heartbeats(ctx context.Context, log *slog.Logger) error {
	wait := backoff{base: time.Second, cap: 15 * time.Second}
	for {
		if err := a.renewIfDue(ctx, "", log); err != nil {
			log.Warn("identity not renewed", "error", err.Error())
		}
		d, err := a.beat(ctx, log)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // asked to stop
		case err == nil:
			wait.reset()
		case revoked(err):
			log.Error("the identity was revoked", "error", err.Error())
			d = revokedRetry
		default:
			d = min(d, wait.next(0)+100*time.Millisecond)
			log.Warn("heartbeat failed", "again_in", d.String(), "error", err.Error())
		}
		if pause(ctx, d) != nil {
			return nil //nolint:nilerr // asked to stop
		}
	}
}

func revoked(err error) bool {
	var r *Refusal
	return errors.As(err, &r) && (r.Status == http.StatusForbidden || (r.Status == http.StatusUnauthorized && r.Code != "token_expired"))
}

// beat sends one heartbeat and returns how long to wait for the next: the
// interval, give or take a tenth, so that a fleet does not fall into step.
func (a *Agent) beat(ctx context.Context, log *slog.Logger) (time.Duration, error) {
	id, gw := a.current()
	interval := time.Duration(max(1, id.HeartbeatSeconds)) * time.Second
	interval += time.Duration((rand.Float64() - 0.5) * 0.2 * float64(interval)) //nolint:gosec // spreads load
	reading := a.sensors.read(ctx)
	var answer wire.HeartbeatResponse
	err := gw.postJSON(ctx, wire.PathHeartbeat, id.Token, wire.HeartbeatRequest{
		BootID: reading.bootID, AgentVersion: a.version, Load1: reading.load1, MemoryPct: reading.memoryPct, DiskPct: reading.diskPct,
		DockerState: reading.dockerState, Tags: a.host.Config.Tags,
	}, &answer)
	if err != nil {
		return interval, err
	}
	if answer.BundleVersion != "" && answer.BundleVersion != id.Bundles.Version {
		if err := a.renewIfDue(ctx, answer.BundleVersion, log); err != nil {
			log.Warn("identity not renewed", "error", err.Error())
		}
	}
	return interval, nil
}

// renewIfDue renews at half of the life of the JWT and of the certificates, and
// at once when the gateway's bundles have another version.
func (a *Agent) renewIfDue(ctx context.Context, bundleVersion string, log *slog.Logger) error {
	id, gw := a.current()
	a.mu.RLock()
	leaf, from := a.client.Leaf, a.tokenFrom
	a.mu.RUnlock()
	now := time.Now()
	certDue := now.After(leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2))
	tokenDue := now.After(from.Add(id.TokenExpires.Sub(from) / 2))
	trustDue := bundleVersion != "" && bundleVersion != id.Bundles.Version
	if !certDue && !tokenDue && !trustDue {
		return nil
	}
	var request wire.RotateRequest
	if certDue || trustDue {
		csrs, err := a.keys.csrs(a.host.Config.ServerID)
		if err != nil {
			return err
		}
		request.CSRs = &csrs
	}
	var next wire.Identity
	if err := gw.postJSON(ctx, wire.PathRotateToken, id.Token, request, &next); err != nil {
		return err
	}
	if request.CSRs == nil {
		next.Certificates = id.Certificates
	}
	// What could not be used is not kept.
	if err := a.adopt(&next); err != nil {
		return err
	}
	if err := a.host.saveIdentity(&next, a.keys); err != nil {
		return err
	}
	log.Info("identity renewed", "certificates", request.CSRs != nil, "token_until", next.TokenExpires, "bundles", next.Bundles.Version)
	return nil
}
