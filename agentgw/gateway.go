// Package agentgw is the HTTP side for agents: handshake, heartbeat, telemetry and
// rotation over mTLS, and what a booting host fetches and reports before it has an
// identity. It turns requests into rows, and into signals for waiting workflow runs.
package agentgw

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/edge"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// PeersSigner signs peers documents.
type PeersSigner interface {
	Sign(doc wire.PeersDocument) (wire.SignedPeers, error)
	Keys() map[string]string // the public halves, PEM by key id
}

// Signaler signals provisioning runs about their agents and sites, and process groups' runs about their instances.
type Signaler interface {
	AgentHeartbeat(ctx context.Context, serverID prego.ServerID, attempt int) error
	BootstrapRefused(ctx context.Context, serverID prego.ServerID, attempt int) error
	BootFailed(ctx context.Context, serverID prego.ServerID, attempt int) error
	WakeGroup(ctx context.Context, groupID prego.GroupID, orgID prego.OrgID) error
	WakeTenant(ctx context.Context, tenantID prego.TenantID) error
}

// Authority issues and verifies certificates.
type Authority interface {
	VerifyAgent(cert *x509.Certificate) (serverID prego.ServerID, err error)
	SignCSRs(serverID prego.ServerID, ips []net.IP, csrs wire.CSRs, ttl time.Duration) (wire.Certificates, error)
	// SignService signs for a database or cache at the private address; nil signs for their client.
	SignService(serverID prego.ServerID, private net.IP, csr string, ttl time.Duration) (certificate string, notAfter time.Time, err error)
	KeyOfCSR(field, csr string) (sha256 []byte, err error)
	Bundles(execKeys, peersKeys map[string]string) (wire.Bundles, error)
	KeySHA256(cert *x509.Certificate) ([]byte, error)
}

// Tokens issues and checks agents' JWTs, and hashes bootstrap tokens.
type Tokens interface {
	Issue(
		serverID prego.ServerID, role prego.Role, cert *x509.Certificate, ttl time.Duration,
	) (raw string, expires time.Time, err error)
	Verify(raw string, cert *x509.Certificate, scope string) (serverID prego.ServerID, err error)
	HashBootstrap(raw string) []byte
}

// Settings of a gateway.
type Settings struct {
	Environment  string
	CheckSource  bool          // handshakes must come from the address assigned by the provider
	Heartbeat    time.Duration // sent to agents
	TokenTTL     time.Duration
	CertTTL      time.Duration
	Flush        time.Duration // how long heartbeats are batched
	FlushRows    int
	OTLPEndpoint string            // where metrics are forwarded; "" counts and drops them
	AgentBinary  []byte            // served to booting hosts
	AgentSHA256  string            // its SHA-256, in hex
	ExecKeys     map[string]string // the public keys that verify commands for hosts: PEM by key id
	// AgentReleases is a directory with other programs that hosts may fetch, named by their SHA-256; "" for none.
	AgentReleases string
	// ClockTolerance is how far a host's clock may differ from this one.
	ClockTolerance time.Duration
	Now            func() time.Time // default time.Now
	Edge           edge.Settings
	// Follow is how often changes by other processes are read: revoked servers, peers, releases of the agent and
	// edges' documents. 0 means every second or two, for edges every tenth of a second.
	Follow time.Duration
	// HostUnits is how much one host may report per second (hostUnits); 0 for what a host can have to report.
	HostUnits float64
}

// Gateway serves agents. Run must be running for heartbeats to reach the database.
type Gateway struct {
	store    *store.Store
	runs     Signaler
	ca       Authority
	tokens   Tokens
	epoch    func() int64
	signer   PeersSigner
	peers    perServer
	offers   perServer
	settings Settings
	log      *zap.Logger
	metrics  *metrics
	beats    *batcher
	reports  *reporter
	revoked  revokedSet
	signals  signals
	awaited  awaited
	limiter  *limiters // of failures, by source address
	hosts    *limiters // of requests, by host's key
	forward  *http.Client
	edges    *edges
	usage    *edgeUsage
	openKey  func(tenant.ServedCertificate) ([]byte, error)
	echo     *echo.Echo

	unavailable func(error) bool
}

// Deps are the dependencies of a gateway.
type Deps struct {
	Store    *store.Store
	Signals  Signaler
	CA       Authority
	Tokens   Tokens
	Peers    PeersSigner
	Settings Settings
	Log      *zap.Logger
	Metrics  prometheus.Registerer
	// Unavailable reports whether an error means that the database cannot be used right now, as in a failover; nil
	// for never.
	Unavailable func(error) bool
	// Trusted is why nothing may be changed by the database, as after it was restored; nil is never. Hosts go on as
	// they are meanwhile, and repeat what they report.
	Trusted func() error
	// Epoch is ops.RedoState.Epoch; nil is always 0.
	Epoch func() int64
	// OpenKey opens a certificate's sealed private key, PEM; nil if there are none.
	OpenKey func(tenant.ServedCertificate) ([]byte, error)
}

// Limits on bodies, in bytes.
const (
	maxBody      = 64 << 10
	maxReport    = 2 << 20
	maxTelemetry = 4 << 20
)

// New makes a gateway.
func New(d Deps) *Gateway {
	if d.Settings.Now == nil {
		d.Settings.Now = time.Now
	}
	if d.Epoch == nil {
		d.Epoch = func() int64 { return 0 }
	}
	g := &Gateway{
		store: d.Store, runs: d.Signals, ca: d.CA, tokens: d.Tokens, signer: d.Peers, settings: d.Settings, log: d.Log,
		limiter: newLimiters(2, 20, maxSources), forward: &http.Client{Timeout: 5 * time.Second},
		epoch: d.Epoch, signals: signals{slots: make(chan struct{}, maxSignals)}, awaited: newAwaited(), unavailable: d.Unavailable,
	}
	g.hosts = newLimiters(rate.Limit(cmp.Or(d.Settings.HostUnits, hostUnits)), hostBurst, maxPending)
	g.beats = newBatcher(d.Settings.Flush, d.Settings.FlushRows, g.flush)
	g.reports = &reporter{store: d.Store.ReportInstances, wake: g.wakeGroups, count: g.reported, due: make(chan struct{}, 1)}
	g.metrics = newMetrics(d.Metrics, g.beats.pending)
	g.edges = newEdges(d.Store, d.Settings.Edge, d.Settings.Follow, d.Log.Named("edges"))
	g.usage, g.openKey = newEdgeUsage(d.Settings.Now), d.OpenKey
	if d.Metrics != nil {
		d.Metrics.MustRegister(g.usage)
	}

	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = g.refuse
	e.Use(g.observe, g.recoverPanics)
	if d.Trusted != nil {
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				if err := d.Trusted(); err != nil {
					return err
				}
				return next(c)
			}
		})
	}
	e.POST(wire.PathHandshake, g.handshake, limitBody(maxBody))
	e.POST(wire.PathBootStage, g.bootStage, limitBody(maxBody))
	e.GET(wire.PathStageTwo, g.stageTwo)
	e.GET(wire.PathAgentBinary, g.agentBinary)
	e.POST(wire.PathHeartbeat, report(g.heartbeat), limitBody(maxBody), g.authenticated(wire.ScopeHeartbeat))
	e.POST(wire.PathContainers, report(g.containers), limitBody(maxReport), g.authenticated(wire.ScopeHeartbeat))
	e.POST(wire.PathMetrics, g.takeMetrics, limitBody(maxTelemetry), g.authenticated(wire.ScopeMetrics))
	e.POST(wire.PathLogs, g.takeLogs, limitBody(maxTelemetry), g.authenticated(wire.ScopeLogs))
	e.POST(wire.PathBackupReport, report(g.backupReport), limitBody(maxBody), g.authenticated(wire.ScopeBackupReport))
	e.POST(wire.PathPeers, report(g.peersDocument), limitBody(maxBody), g.admitted(wire.ScopeHeartbeat, true))
	e.POST(wire.PathPatches, report(g.patches), limitBody(maxBody), g.authenticated(wire.ScopeHeartbeat))
	e.POST(wire.PathUpdate, report(g.agentUpdate), limitBody(maxBody), g.authenticated(wire.ScopeHeartbeat))
	e.GET(wire.PathUpdateBinary, g.updateBinary, g.authenticated(wire.ScopeHeartbeat))
	e.POST(wire.PathRotateToken, report(g.rotate), limitBody(maxBody), g.authenticated(""))
	e.GET(wire.PathEdge, g.edgeDocument, g.authenticated(wire.ScopeEdge))
	e.POST(wire.PathEdgeCertificates, report(g.edgeCertificates), limitBody(maxBody), g.authenticated(wire.ScopeEdge))
	e.POST(wire.PathEdgeApplied, report(g.edgeApplied), limitBody(maxReport), g.authenticated(wire.ScopeEdge))
	e.POST(wire.PathEdgeUsage, report(g.edgeUsage), limitBody(maxReport), g.authenticated(wire.ScopeEdge))
	e.POST(wire.PathEdgeProbes, report(g.edgeProbes), limitBody(maxReport), g.authenticated(wire.ScopeEdge))
	g.echo = e
	return g
}

// Handler serves agents. It must be behind TLS that requests client certificates.
func (g *Gateway) Handler() http.Handler { return g.echo }

// Serve serves on a listener until ctx ends, then drains: running requests are answered and batched heartbeats
// written.
func (g *Gateway) Serve(ctx context.Context, l net.Listener, tlsConfig *tls.Config, drain time.Duration) error {
	flushing, stopFlushing := context.WithCancel(context.Background())
	defer stopFlushing()
	done := make(chan struct{})
	go func() { defer close(done); g.Run(flushing) }()
	const idle = 90 * time.Second
	srv := &http.Server{
		Handler: g.Handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 60 * time.Second,
		WriteTimeout: 120 * time.Second, IdleTimeout: idle, MaxHeaderBytes: 32 << 10,
		ErrorLog: zap.NewStdLog(g.log.Named("http")), ConnState: followState,
	}
	timeouts := idleTimeouts{handshake: 10 * time.Second, linger: time.Second, idle: idle}
	agents := newIdleListener(l, tlsConfig, timeouts, g.log.Named("tls"))
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(agents) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	g.edges.stop()
	shut, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	err := srv.Shutdown(shut)
	if err != nil {
		_ = srv.Close() // connections still open after the drain have had their time
	}
	stopFlushing()
	<-done
	return err
}

// Run writes heartbeats and reports and follows revocations until ctx ends. It then writes the batched heartbeats and
// waits for the signals being sent.
func (g *Gateway) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { g.followRevocations(ctx) })
	wg.Go(func() { g.followPeers(ctx) })
	wg.Go(func() { g.followOffers(ctx) })
	wg.Go(func() { g.reports.run(ctx) })
	wg.Go(func() { g.edges.run(ctx) })
	g.beats.run(ctx)
	wg.Wait()
	g.signals.sending.Wait()
}

// peerCertificate is the certificate whose key the connection proved to hold.
func peerCertificate(c echo.Context) *x509.Certificate {
	state := c.Request().TLS
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

type caller struct {
	serverID prego.ServerID
	cert     *x509.Certificate
	key      []byte // SHA-256 of the certificate's public key
	revoked  bool   // its identity was: see admitted
}

const callerKey = "agentgw.caller"

func callerOf(c echo.Context) caller { return c.Get(callerKey).(caller) }

// authenticated admits agents with a certificate of ours, a token bound to it whose subject is the certificate's
// server, and the scope.
func (g *Gateway) authenticated(scope string) echo.MiddlewareFunc { return g.admitted(scope, false) }

// admitted also admits a host whose identity was revoked, if lost is true, and with a token that has expired meanwhile.
func (g *Gateway) admitted(scope string, lost bool) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			cert := peerCertificate(c)
			if cert == nil {
				return prego.Errorf(prego.CodeCertificateInvalid, "a client certificate is required")
			}
			id, err := g.ca.VerifyAgent(cert)
			if err != nil {
				return err
			}
			raw, ok := bearerToken(c)
			if !ok {
				return prego.Errorf(prego.CodeUnauthenticated, "a bearer token is required")
			}
			subject, tokenErr := g.tokens.Verify(raw, cert, scope)
			expired := prego.CodeOf(tokenErr) == prego.CodeTokenExpired
			if tokenErr != nil && !expired {
				return tokenErr
			}
			key, err := g.ca.KeySHA256(cert)
			if err != nil {
				return err
			}
			if !expired && subject != id {
				return prego.Errorf(prego.CodeCertificateSubject,
					"the token and the certificate belong to different servers")
			}
			if !expired || lost {
				if err := g.afford(c, key); err != nil {
					return err
				}
			}
			// A host that was given up learns that whenever it returns.
			revoked := g.checkRevoked(c.Request().Context(), id, key)
			if revoked != nil && (!lost || prego.CodeOf(revoked) != prego.CodeIdentityRevoked) {
				return revoked
			}
			if expired && revoked == nil {
				return tokenErr
			}
			c.Set(callerKey, caller{serverID: id, cert: cert, key: key, revoked: revoked != nil})
			return next(c)
		}
	}
}

// checkRevoked refuses a server whose identity was revoked. The set of them can be older than the server's newest
// attempt, whose agent must not be rejected for its predecessor's revocation.
func (g *Gateway) checkRevoked(ctx context.Context, id prego.ServerID, key []byte) error {
	if !g.revoked.has(id) {
		return nil
	}
	_, err := g.store.CheckAgent(ctx, id, key)
	return err
}

func bearerToken(c echo.Context) (string, bool) {
	scheme, raw, ok := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " ")
	return raw, ok && strings.EqualFold(scheme, "bearer") && raw != ""
}

// statuses maps codes to HTTP.
var statuses = map[prego.Code]int{
	prego.CodeInvalidField: http.StatusUnprocessableEntity, prego.CodeInvalidJSON: http.StatusBadRequest,
	prego.CodeUnknownField: http.StatusBadRequest, prego.CodeBodyTooLarge: http.StatusRequestEntityTooLarge,
	prego.CodeUnsupportedMedia: http.StatusUnsupportedMediaType,
	prego.CodeUnauthenticated:  http.StatusUnauthorized, prego.CodeTokenExpired: http.StatusUnauthorized,
	prego.CodeTokenUnknown: http.StatusUnauthorized, prego.CodeTokenSuperseded: http.StatusUnauthorized,
	prego.CodeCertificateInvalid: http.StatusUnauthorized,
	prego.CodeForbidden:          http.StatusForbidden, prego.CodeSourceMismatch: http.StatusForbidden,
	prego.CodeCertificateSubject: http.StatusForbidden, prego.CodeScopeMissing: http.StatusForbidden,
	prego.CodeIdentityRevoked: http.StatusForbidden,
	prego.CodeNotFound:        http.StatusNotFound, prego.CodeMethodNotAllowed: http.StatusMethodNotAllowed,
	// Not a status that makes an agent give up: the clock may still be set.
	prego.CodeClockSkew:     http.StatusPreconditionFailed,
	prego.CodeTokenConsumed: http.StatusConflict, prego.CodeBootstrapExpired: http.StatusGone,
	prego.CodeRateLimited: http.StatusTooManyRequests, prego.CodeNotReady: http.StatusServiceUnavailable,
}

// refuse writes an error as a problem document.
func (g *Gateway) refuse(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	var coded *prego.Error
	var routed *echo.HTTPError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &coded):
	case errors.As(err, &tooLarge):
		coded = prego.Errorf(prego.CodeBodyTooLarge, "the body may hold at most %d bytes", tooLarge.Limit)
	case errors.As(err, &routed) && routed.Code == http.StatusNotFound:
		coded = prego.Errorf(prego.CodeNotFound, "there is nothing at this path")
	case errors.As(err, &routed) && routed.Code == http.StatusMethodNotAllowed:
		coded = prego.Errorf(prego.CodeMethodNotAllowed, "this path does not support %s", c.Request().Method)
	case g.unavailable != nil && g.unavailable(err), errors.Is(err, context.DeadlineExceeded):
		g.log.Error("the database cannot be used right now", zap.String("path", c.Path()), zap.Error(err))
		coded = prego.Errorf(prego.CodeNotReady, "the control plane cannot use its database right now; try again")
	default:
		g.log.Error("request failed", zap.String("path", c.Path()), zap.Error(err))
		coded = prego.Errorf(prego.CodeInternal, "internal error; try again")
	}
	status, ok := statuses[coded.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	if coded.Code == prego.CodeNotReady || coded.Code == prego.CodeRateLimited {
		c.Response().Header().Set(echo.HeaderRetryAfter, "1")
	}
	g.metrics.refusals.WithLabelValues(c.Path(), string(coded.Code)).Inc()
	c.Response().Header().Set(echo.HeaderContentType, "application/problem+json")
	if e := c.JSON(status, wire.Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Code: string(coded.Code), Detail: coded.Message, Field: coded.Field,
	}); e != nil {
		g.log.Debug("answer not delivered", zap.Error(e))
	}
}
