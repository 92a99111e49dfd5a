// Package online is the process that faces the network: it sends heartbeats, renews the identity,
// and takes the control plane's commands from the network to the process that runs them. It runs
// nothing itself, and has neither root nor the passwords of databases.
package online

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prego/prego/agent/gateway"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// ErrNoIdentity means that the host was not bootstrapped.
var ErrNoIdentity = errors.New("the host has no identity: run prego-agent bootstrap")

// Agent is the long-lived process that faces the network. It runs nothing itself.
type Agent struct {
	host    *host.Host
	addr    string
	version string
	log     *slog.Logger
	keys    host.Keys
	// renewing is held while the identity is renewed.
	renewing sync.Mutex
	used     *seen
	epoch    *epoch
	sensors  sensors
	meter    *meter
	ship     *shipper
	// executor calls the process that runs commands; forwarded limits waiting requests.
	executor  *http.Client
	forwarded chan struct{}
	current   atomic.Pointer[gateway.Session]
	// containers are the containers of instances on this host.
	containers *containers
	peers      *peersSync
	// install gives the host's containers their certificate, where no other process does.
	install func() error
	updates *updates
	// storage calls object storage; transfers limits the concurrent requests.
	storage   *http.Client
	transfers chan struct{}
}

// maxTransfers is how many transfers a host runs concurrently: each holds a piece in memory.
const maxTransfers = 2

// New loads the identity of a host. addr is where to listen and to call from; "" is every address.
func New(h *host.Host, addr, version string, log *slog.Logger) (*Agent, error) {
	id, err := h.LoadIdentity()
	if err != nil {
		return nil, err
	}
	if id == nil {
		return nil, ErrNoIdentity
	}
	k, err := h.LoadKeys()
	if err != nil {
		return nil, err
	}
	s, err := gateway.Open(h, id, k, addr)
	if err != nil {
		return nil, err
	}
	used, err := openSeen(h.Path(wire.UsedTokensPath))
	if err != nil {
		return nil, err
	}
	current, err := openEpoch(h.Path(wire.EpochPath))
	if err != nil {
		return nil, err
	}
	a := &Agent{
		epoch: current,
		host:  h, addr: addr, version: version, log: log, keys: k, used: used, sensors: sensors{root: h.Root}, ship: &shipper{},
		executor: executorClient(h), forwarded: make(chan struct{}, maxForwarded), containers: newContainers(h), peers: newPeersSync(h), updates: newUpdates(h),
		storage: newStorage(), transfers: make(chan struct{}, maxTransfers),
	}
	a.meter = &meter{host: h, executor: a.executor, now: time.Now}
	a.current.Store(s)
	return a, nil
}

// Logger is a logger whose lines are also sent to the gateway.
func (a *Agent) Logger() *slog.Logger { return slog.New(a.ship.handler(a.log.Handler())) }

// Run sends heartbeats, renews the identity, pushes metrics, reports containers and
// serves the exec endpoint, until ctx ends.
func (a *Agent) Run(ctx context.Context) error {
	log := a.Logger()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, loop := range []func(context.Context, *slog.Logger) error{a.heartbeats, a.serve, a.push, a.watchContainers, a.serveEdge, a.followPeers, a.followUpdates, a.followPatches} {
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

// revokedRetry is how often an agent with a revoked identity tries again: the revocation may be a mistake that gets
// fixed. It does not exit, since it would only be restarted.
const revokedRetry = 5 * time.Minute

// heartbeats sends one immediately and then one per interval, and renews the identity in between. After a failure it
// retries sooner, but never concurrently.
func (a *Agent) heartbeats(ctx context.Context, log *slog.Logger) error {
	wait := gateway.Backoff{Base: time.Second, Cap: 15 * time.Second}
	for {
		if err := a.renewIfDue(ctx, "", log); err != nil && ctx.Err() == nil {
			log.Warn("identity not renewed", "error", err.Error())
		}
		d, err := a.beat(ctx, log)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // asked to stop
		case err == nil:
			wait.Reset()
		case isRevoked(err):
			a.confirm(false, log)
			log.Error("the identity was revoked", "again_in", revokedRetry.String(), "error", err.Error())
			// Its data is old: no other host reaches it any more.
			if _, err := a.fetchPeers(ctx, "", log); err != nil && ctx.Err() == nil {
				log.Warn("the host's ports are open as before", "error", err.Error())
			}
			d = revokedRetry
		default:
			d = min(d, wait.Next(0)+100*time.Millisecond)
			log.Warn("heartbeat failed", "again_in", d.String(), "error", err.Error())
		}
		if a.host.Pause(ctx, d) != nil {
			return nil //nolint:nilerr // asked to stop
		}
	}
}

// isRevoked distinguishes a refusal of this server from the refusals that a gateway with wrong keys or a wrong clock
// would give to all.
func isRevoked(err error) bool {
	var r *gateway.Refusal
	return errors.As(err, &r) && r.Code == "identity_revoked"
}

// maxInterval bounds what a gateway can ask for: an agent that is silent for longer
// counts as disconnected (direct-provisioning §3).
const maxInterval = 5 * time.Minute

// heartbeatInterval is the time between heartbeats, plus or minus a tenth, so that a fleet does not synchronize.
func heartbeatInterval(seconds int) time.Duration {
	d := maxInterval
	if seconds < int(maxInterval/time.Second) {
		d = time.Duration(max(1, seconds)) * time.Second
	}
	return d + time.Duration((rand.Float64()-0.5)*0.2*float64(d))
}

// beat sends one heartbeat and returns how long to wait for the next.
func (a *Agent) beat(ctx context.Context, log *slog.Logger) (time.Duration, error) {
	s := a.current.Load()
	reading := a.sensors.read(ctx)
	request := wire.HeartbeatRequest{
		BootID: reading.bootID, AgentVersion: a.version, Load1: reading.load1, MemoryPct: reading.memoryPct, DiskPct: reading.diskPct,
		DockerState: reading.dockerState, Tags: a.host.Config.Tags, PrivateAddresses: privateAddresses(),
	}
	a.meter.measure(ctx, &request)
	request.HostTime = time.Now()
	var answer wire.HeartbeatResponse
	err := s.Gateway.PostJSON(ctx, wire.PathHeartbeat, s.ID.Token, request, &answer)
	if err != nil {
		return heartbeatInterval(s.ID.HeartbeatSeconds), err
	}
	a.confirm(true, log)
	if err := a.renewIfDue(ctx, answer.BundleVersion, log); err != nil && ctx.Err() == nil {
		log.Warn("identity not renewed", "error", err.Error())
	}
	if _, err := a.epoch.raise(answer.Epoch); err != nil {
		log.Warn("the control plane's epoch is not recorded", "error", err.Error())
	}
	a.updates.told(answer.UpdateSerial)
	a.peers.told(answer.PeersVersion, a.current.Load().ID.Bundles.PeersKeys)
	return heartbeatInterval(cmp.Or(max(0, answer.HeartbeatSeconds), s.ID.HeartbeatSeconds)), nil
}

// renewIfDue renews at half the life of the JWT and of the certificates, and immediately if the gateway's bundles
// have another version ("" if unknown).
//
// The keys stay the same: the gateway binds a server to its client key, so a lost answer costs only another request.
func (a *Agent) renewIfDue(ctx context.Context, bundleVersion string, log *slog.Logger) error {
	a.renewing.Lock()
	defer a.renewing.Unlock()
	s, now := a.current.Load(), time.Now()
	trustDue := bundleVersion != "" && bundleVersion != s.ID.Bundles.Version
	certificatesDue := trustDue || s.CertificatesDue(now)
	if !certificatesDue && !s.TokenDue(now) {
		return nil
	}
	return a.renew(ctx, certificatesDue, log)
}

// renewForAddress renews the certificates if the one for the host's databases and caches is
// not for its private address.
func (a *Agent) renewForAddress(ctx context.Context, address string, log *slog.Logger) error {
	a.renewing.Lock()
	defer a.renewing.Unlock()
	if address == "" || !host.ServesOthers(a.host.Config.Role) || servesAt(a.current.Load().ID, address) {
		return nil
	}
	return a.renew(ctx, true, log)
}

func (a *Agent) renew(ctx context.Context, certificatesDue bool, log *slog.Logger) error {
	s := a.current.Load()
	var request wire.RotateRequest
	if certificatesDue {
		csrs, err := a.keys.CSRs(a.host.Config)
		if err != nil {
			return err
		}
		request.CSRs = &csrs
	}
	var id wire.Identity
	if err := s.Gateway.PostJSON(ctx, wire.PathRotateToken, s.ID.Token, request, &id); err != nil {
		return err
	}
	if request.CSRs == nil {
		id.Certificates = s.ID.Certificates
	}
	next, err := gateway.Open(a.host, &id, a.keys, a.addr)
	if err != nil {
		return fmt.Errorf("the gateway's answer can't be used: %w", err)
	}
	err = a.host.SaveIdentity(&id, a.keys)
	if err == nil && a.install != nil {
		err = a.install()
	}
	if err != nil {
		// The one in memory is sufficient; the one on disk stays valid until it expires.
		log.Error("the renewed identity is not on disk", "error", err.Error())
	}
	a.current.Store(next)
	s.Gateway.Close()
	log.Info("identity renewed", "certificates", request.CSRs != nil, "token_until", id.TokenExpires, "bundles", id.Bundles.Version)
	return nil
}

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
