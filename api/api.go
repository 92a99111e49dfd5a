// Package api is the HTTP side for callers and operators. openapi.yaml is the source of
// truth; types and routes are generated from it. Requests are authenticated, checked,
// written in one transaction, and handed to the workflow engine: an accepted request is
// carried out even if everything dies right after.
package api

import (
	"context"
	_ "embed" // the contract and its page
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

//go:embed openapi.yaml
var spec []byte

// Store is the part of Postgres that the API uses.
type Store interface {
	CreateServer(ctx context.Context, r server.CreateRequest, by string) (server.Server, bool, error)
	ImportServer(ctx context.Context, r server.ImportRequest, by string) (server.Server, bool, error)
	GetServer(ctx context.Context, id prego.ServerID) (server.Server, error)
	Operation(ctx context.Context, id string) (ops.Operation, error)
	// Version returns the version of what a PUT replaces, "" if there is nothing.
	// Writes take the versions that they may replace: none means any, "*" any existing
	// one.
	Version(ctx context.Context, what prego.Replaceable, key ...any) (string, error)
	ServerEvents(ctx context.Context, id prego.ServerID) ([]server.Event, error)
	ServerUse(ctx context.Context, id prego.ServerID) (server.Use, error)
	// ServerSamples are those since a time, but at most of server.SampledFor, the oldest first.
	ServerSamples(ctx context.Context, id prego.ServerID, since time.Time) ([]server.Sample, error)
	PeersBehind(ctx context.Context, limit int) ([]server.PeersState, error)
	Egress(ctx context.Context) (server.Egress, error)
	ListServers(ctx context.Context, q prego.ListQuery) (page []server.Server, next string, err error)
	ActivationStats(ctx context.Context, within time.Duration) ([]server.ActivationStats, error)
	RequestRetry(ctx context.Context, id prego.ServerID, by string) (server.Server, error)
	RequestDecommission(ctx context.Context, id prego.ServerID, by string, force bool) (server.Server, error)
	CordonServer(ctx context.Context, id prego.ServerID, by, why string) (server.Server, error)
	LoseServer(ctx context.Context, id prego.ServerID, reason, by string) (server.Server, error)
	RequestMaintenance(ctx context.Context, id prego.ServerID, kind server.MaintenanceKind, r server.MaintenanceRequest, by string) (server.Maintenance, error)
	LastMaintenance(ctx context.Context, id prego.ServerID) (server.Maintenance, error)
	RemainingInstances(ctx context.Context, id prego.ServerID) ([]server.RemainingInstance, error)
	CancelMaintenance(ctx context.Context, id prego.ServerID) (server.Maintenance, error)
	UncordonServer(ctx context.Context, id prego.ServerID, by string) (server.Server, error)
	PatchWaveStore
	AuditStore
	CostStore
	AttentionStore
	QueueStore
}

// Orchestrator starts runs. If a start fails, the reconciler repeats it: the row is
// what counts.
type Orchestrator interface {
	StartProvision(ctx context.Context, s server.Server) error
	StartDecommission(ctx context.Context, serverID prego.ServerID) error
	WakeMaintenance(ctx context.Context, serverID prego.ServerID) error
	StartReconcile(ctx context.Context) (workflowID string, err error)
	RunURL(workflowID string) string
}

// Principal is an authenticated caller.
type Principal struct {
	Subject  string
	Operator bool      // may change things; others may only read
	Expires  time.Time // when its token does; zero if that is not known
	Key      string    // the id of the key that signed its token, "" if that is not ours
}

// Authenticator checks bearer tokens; its errors are coded.
type Authenticator interface {
	Authenticate(ctx context.Context, raw string) (Principal, error)
}

// Importer issues the credentials with which an existing server is enrolled.
type Importer interface {
	IssueImport(ctx context.Context, s server.Server) (bootstrap string, err error)
}

// Check is one condition of readiness. Anybody may read the answer, so it contains only
// the message of a coded error; anything else that Run returns is logged.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Deps are the dependencies of an API.
type Deps struct {
	Store        Store
	Orchestrator Orchestrator
	Auth         Authenticator
	Importer     Importer
	Checks       []Check
	// Unavailable reports whether an error says that the database cannot be used right now, as
	// in a failover; nil for never.
	Unavailable func(error) bool
	// Trace begins the span of a request, and returns what ends it; nil for no traces.
	Trace    func(*http.Request) (ctx context.Context, end func(method, route string, status int))
	Log      *zap.Logger
	Registry *prometheus.Registry
	// RatePerSecond and RateBurst limit each caller.
	RatePerSecond float64
	RateBurst     int

	// Logins are one-time codes for the console; nil without one.
	Logins LoginStore

	Keys       KeyStore
	Hosts      HostStore
	Shell      ServerShell
	Containers ServerContainers

	Catalog CatalogDeps

	Images    ImageStore
	ImageRuns ImageRuns
	// Certificates are those for host names.
	Certificates    CertificateStore
	CertificateRuns CertificateRuns

	Fleets    FleetStore
	FleetRuns FleetRuns
	// Rebalances are packing plans that are carried out.
	Rebalances RebalanceDeps

	// Events is the feed of what happens, and Search finds things.
	Events EventStore
	Search SearchStore
	// Attention says when what rows say needs attention.
	Attention attention.Limits

	Quotas QuotaStore
	// Registries holds registry credentials for hosts.
	Registries RegistryStore
	// Resources are what orgs own besides tenants.
	Resources ResourceDeps
	Groups    GroupStore
	GroupRuns GroupRuns
	// Releases are those of the stack.
	Releases    ReleaseStore
	ReleaseRuns ReleaseRuns
	// AgentReleases are those of the agent.
	AgentReleases AgentReleaseStore
	// NewGroupID makes ids; default random ones.
	NewGroupID func() string

	Tenants    TenantStore
	TenantRuns TenantRuns
	Placer     Placer
	// Mode is the placement policy of tenants that don't choose one; if empty, each
	// tenant gets its own server (placement-policy, "One tenant, one server").
	Mode tenant.PlacementMode
	// Periods are how long tenants stay in states with a timer.
	Periods tenant.LifecyclePeriods
	// NewTenantID makes ids; default random ones.
	NewTenantID func() string
}

// API serves callers.
type API struct {
	d        Deps
	echo     *echo.Echo
	contract *contract
	limiter  *callerLimiter
	seconds  *prometheus.HistogramVec
	refused  *prometheus.CounterVec // rejections by quota
	metrics  http.Handler
	// mounted are handlers by the prefix of their paths.
	mounted map[string]http.Handler
	// keys ends what could not be ended while the database was away.
	keys Later
	// streams has an entry for each long request; ending closes them with the process.
	streams chan struct{}
	feed    *eventFeed
	ending  context.Context // the process's, not a request's
	end     context.CancelFunc
}

// New creates an API.
func New(d Deps) *API {
	if d.NewTenantID == nil {
		d.NewTenantID = newTenantID
	}
	if d.NewGroupID == nil {
		d.NewGroupID = newGroupID
	}
	if d.Mode == "" {
		d.Mode = tenant.ModeOneTenantOneServer
	}
	a := &API{
		d: d, mounted: map[string]http.Handler{}, keys: Later{Every: endAgain}, limiter: newCallerLimiter(d.RatePerSecond, d.RateBurst), metrics: promhttp.HandlerFor(d.Registry, promhttp.HandlerOpts{}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prego_api_request_seconds", Help: "Seconds per request, by route, method and status.", Buckets: []float64{.002, .01, .05, .2, 1, 5},
		}, []string{"route", "method", "status"}),
	}
	a.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prego.MetricQuotaRejections, Help: "Requests that an org's quota refused, by endpoint and dimension.",
	}, []string{"endpoint", "dimension"})
	a.streams = make(chan struct{}, maxStreams)
	a.ending, a.end = context.WithCancel(context.Background())
	a.feed = &eventFeed{store: d.Events, log: d.Log, every: followEvery, buffer: feedBuffer, ending: a.ending, subs: map[*EventSubscription]bool{}}
	d.Registry.MustRegister(a.seconds, a.refused)
	a.contract = embedded()
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = a.refuse
	e.Pre(a.observe)
	e.Use(recoverPanics, a.authenticate, methods, a.check, a.once, a.audited)
	RegisterHandlers(e, a)
	serveDocs(e)
	a.echo = e
	return a
}

// Handler returns the API's HTTP handler, with what is mounted.
func (a *API) Handler() http.Handler {
	own := headAsGet(a.echo)
	if len(a.mounted) == 0 {
		return own
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for prefix, h := range a.mounted {
			if r.URL.Path == prefix || strings.HasPrefix(r.URL.Path, prefix+"/") {
				h.ServeHTTP(w, r)
				return
			}
		}
		own.ServeHTTP(w, r)
	})
}

// Serve serves on a listener until ctx ends, and then lets running requests finish for
// at most drain.
func (a *API) Serve(ctx context.Context, l net.Listener, drain time.Duration) error {
	srv := &http.Server{
		Handler: a.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 90 * time.Second, MaxHeaderBytes: 32 << 10, ErrorLog: zap.NewStdLog(a.d.Log.Named("http")),
	}
	srv.RegisterOnShutdown(a.end)
	go a.keys.Run(ctx)
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("api: %w", err)
	case <-ctx.Done():
	}
	shut, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	if err := srv.Shutdown(shut); err != nil {
		return fmt.Errorf("api: requests were cut off after %s: %w", drain, errors.Join(err, srv.Close()))
	}
	return nil
}
