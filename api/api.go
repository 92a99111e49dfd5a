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
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/placement/pack"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

//go:embed openapi.yaml
var spec []byte

// Runs starts what Temporal carries out. If a start fails, a look or the reconciler repeats it: the row is what
// counts.
type Runs interface {
	StartProvision(ctx context.Context, s server.Server) error
	StartDecommission(ctx context.Context, serverID prego.ServerID) error
	WakeMaintenance(ctx context.Context, serverID prego.ServerID) error
	StartReconcile(ctx context.Context) (workflowID string, err error)
	RunURL(workflowID string) string

	StartTenantProvision(ctx context.Context, t tenant.Tenant) error
	CancelTenantProvision(ctx context.Context, tenantID prego.TenantID) error
	StartTenantChange(ctx context.Context, tenantID prego.TenantID) error
	StartRefill(ctx context.Context, appServerID prego.ServerID) (workflowID string, err error)
	StartWarmPool(ctx context.Context, region prego.Region, plan prego.Plan) (workflowID string, err error)

	FleetRunID(fleetID prego.FleetID) string
	EnsureScaleFleet(ctx context.Context, fleetID prego.FleetID) error

	WakeGroup(ctx context.Context, groupID prego.GroupID, orgID prego.OrgID) error

	WakeStackRelease(ctx context.Context, name server.StackReleaseName) error

	EnsureImageBuild(ctx context.Context, imageID prego.ImageID) (started bool, err error)
	EnsureImageDelete(ctx context.Context, imageID prego.ImageID) (started bool, err error)
	CancelImageBuild(ctx context.Context, imageID prego.ImageID) error

	EnsureCertificate(ctx context.Context, id prego.CertificateID) (started bool, err error)

	StartCatalogRefresh(ctx context.Context) (workflowID string, err error)

	StartAddress(ctx context.Context, org, id string) error
	StartVolume(ctx context.Context, org, id string) error
	StartSnapshot(ctx context.Context, org, id string) error
	StartSnapshotErase(ctx context.Context, org, id string) error
	StartRestore(ctx context.Context, org, id string) error
	StartMove(ctx context.Context, org, id string) error
	StartVolumeRestore(ctx context.Context, org, id string) error
	CancelMove(ctx context.Context, id prego.MoveID) error
}

// Authenticator finds the principal of a token or a login; its errors are coded.
type Authenticator func(ctx context.Context, raw string) (access.Principal, error)

// Importer issues the credentials that enrol an existing server.
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
	Store    *store.Store
	Runs     Runs
	Auth     Authenticator
	People   People // nil without an issuer that people log in with
	Issuers  Issuers
	Importer Importer
	Checks   []Check
	// Unavailable reports whether an error means that the database cannot be used right now, as
	// in a failover; nil for never.
	Unavailable func(error) bool
	// Trusted is why nothing may be changed by the database, as after it was restored; nil is never.
	Trusted func() error
	// Trace begins the span of a request, and returns what ends it; nil for no traces.
	Trace    func(*http.Request) (ctx context.Context, end func(method, route string, status int))
	Log      *zap.Logger
	Registry *prometheus.Registry
	// Version is the program's, for callers.
	Version string
	// RatePerSecond and RateBurst limit each caller.
	RatePerSecond float64
	RateBurst     int

	Shell      ServerShell
	Containers ServerContainers

	Catalog CatalogDeps

	// Usable is how much of a server tenants may take when a packing is planned.
	Usable pack.Usable

	// Attention decides what needs attention, from stored rows.
	Attention attention.Limits

	// Registries holds registry credentials for hosts.
	Registries store.Registries
	// Resources are what orgs own besides tenants.
	Resources ResourceDeps
	// NewGroupID makes ids; default random ones.
	NewGroupID func() string

	Placer *placer.Placer
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
	// mounted are handlers by the prefix of their paths.
	mounted map[string]http.Handler
	// keys ends what could not be ended while the database was away.
	keys Later
	// streams are the long requests, which ending closes with the process.
	streams, simulations, exports *admission
	visitors                      *admission // who follow the progress of a tenant
	expectations                  expectations
	feed                          *eventFeed
	refusals                      *refusals
	watches                       *watches
	ending                        context.Context // the process's, not a request's
	end                           context.CancelFunc
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
		d: d, mounted: map[string]http.Handler{}, keys: Later{Every: endAgain}, limiter: newCallerLimiter(d.RatePerSecond, d.RateBurst),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prego_api_request_seconds", Help: "Seconds per request, by route, method and status.", Buckets: []float64{.002, .01, .05, .2, 1, 5},
		}, []string{"route", "method", "status"}),
	}
	a.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prego.MetricQuotaRejections, Help: "Requests that an org's quota refused, by endpoint and dimension.",
	}, []string{"endpoint", "dimension"})
	a.streams = &admission{
		most: maxStreams, each: maxStreamsOfOne, forOperators: streamsForOperators,
		code: prego.CodeTooManyStreams, what: "streams", of: map[string]int{},
	}
	a.simulations = &admission{
		most: maxSimulations, each: maxSimulationsOfOne, forOperators: simulationsForOperators,
		code: prego.CodeBusy, what: "simulations", of: map[string]int{},
	}
	a.exports = &admission{
		most: maxExports, each: maxExportsOfOne, forOperators: exportsForOperators,
		code: prego.CodeBusy, what: "exports", of: map[string]int{},
	}
	a.visitors = &admission{
		most: maxVisitors, each: maxVisitorsOfOne, code: prego.CodeTooManyStreams, what: "streams", of: map[string]int{},
	}
	if d.Store != nil {
		a.limiter.lease = d.Store.LeaseRates
	}
	a.ending, a.end = context.WithCancel(context.Background())
	a.feed = &eventFeed{read: d.Store.Events, log: d.Log, every: followEvery, buffer: feedBuffer, ending: a.ending, subs: map[*EventSubscription]bool{}}
	a.watches = &watches{read: d.Store.Principals, log: d.Log, ending: a.ending, open: map[*watch]bool{}}
	a.refusals = &refusals{write: d.Store.NoteRefusal, log: d.Log, ending: a.ending, of: map[refusalKey]*counted{}}
	d.Registry.MustRegister(a.seconds, a.refused)
	a.contract = embedded()
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = a.refuse
	e.Pre(a.observe)
	e.Use(recoverPanics, a.noteRefusals, a.authenticate, methods, a.check, a.within, a.once, a.audited, a.settled)
	RegisterHandlers(e, a)
	serveDocs(e)
	a.echo = e
	return a
}

// Handler returns the API's HTTP handler with everything mounted.
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
	err := srv.Shutdown(shut)
	a.refusals.flush(context.WithoutCancel(ctx), true)
	if err != nil {
		return fmt.Errorf("api: requests were cut off after %s: %w", drain, errors.Join(err, srv.Close()))
	}
	return nil
}
