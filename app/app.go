// Package app is the control plane's wiring: what an API, an agent gateway and a worker consist of. Commands run
// them as processes, and tests in theirs.
package app

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/client"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/prego/prego/activities"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/dns"
	"github.com/prego/prego/internal/telemetry"
	"github.com/prego/prego/store"
	"github.com/prego/prego/workflows"
)

// dev is the version of a program that was built without one.
const dev = "dev"

// Options are the parts of a process. The configuration creates the parts that are nil.
type Options struct {
	Config  config.Config
	Name    string // in logs and traces
	Version string // of the program; "" is dev

	Log      *zap.Logger
	Pool     *pgxpool.Pool // stays open
	Temporal client.Client
	Metrics  *prometheus.Registry
	Now      func() time.Time
	// Provider sends requests to the provider, Storage to object storage, and Outside to a certificate authority
	// and to names that it is going to look at. Nil is over connections.
	Provider, Storage, Outside http.RoundTripper
	// Resolve asks a name server; nil is over connections.
	Resolve dns.Exchange
	// Follow is how often a gateway reads what others changed; 0 is its default.
	Follow time.Duration
	// Hook is called at named points of a worker's steps, where tests stop it. It may be nil.
	Hook func(point string)
}

// FromEnvironment is what the environment makes of a process.
func FromEnvironment(version string) (Options, error) {
	cfg, err := config.FromEnvironment()
	if err != nil {
		return Options{}, err
	}
	crash := os.Getenv("PREGO_TEST_CRASH") //nolint:forbidigo // a setting of tests
	return Options{Config: cfg, Version: version, Hook: crashHook(crash)}, nil
}

// Process is what every process of the control plane has in common.
type Process struct {
	cfg     config.Config
	version string
	log     *zap.Logger
	pool    *pgxpool.Pool
	db      *store.Store
	reg     *prometheus.Registry
	now     func() time.Time
	// traces are nil unless they are configured.
	traces *telemetry.Traces
	// What follows is as in Options.
	temporal                   client.Client
	provider, storage, outside http.RoundTripper
	resolve                    dns.Exchange
	follow                     time.Duration
	hooks                      activities.Hooks

	epoch  atomic.Int64    // ops.RedoState.Epoch, as last read
	trust  func() error    // why nothing may be changed by the database; a nil func is never
	lost   <-chan struct{} // closed when the database is not trusted any more
	opened bool            // the pool is this process's own
	agent  struct {
		sync.Once
		digest string
		err    error
	}
}

// New makes a process.
func New(ctx context.Context, o Options) (*Process, error) {
	cfg := o.Config
	p := &Process{
		cfg: cfg, version: cmp.Or(o.Version, dev), log: o.Log, pool: o.Pool, reg: o.Metrics, now: o.Now, temporal: o.Temporal,
		provider: o.Provider, storage: o.Storage, outside: o.Outside, resolve: o.Resolve, follow: o.Follow,
		hooks: activities.Hooks{Hook: o.Hook},
	}
	if p.log == nil {
		log, err := telemetry.Logger(os.Stderr, cfg.LogLevel, cfg.LogFormat)
		if err != nil {
			return nil, err
		}
		p.log = log
	}
	p.log = p.log.Named(o.Name)
	if len(cfg.Unknown) > 0 {
		p.log.Warn("these variables are no settings and have no effect; docs/reference/settings.md lists the settings",
			zap.Strings("variables", cfg.Unknown))
	}
	if p.now == nil {
		p.now = time.Now
	}
	if p.reg == nil {
		p.reg = telemetry.Registry()
	}
	if cfg.DatabaseURL == "" && p.pool == nil {
		return nil, fmt.Errorf("DATABASE_URL is required")
	}
	tiers, err := cfg.Quotas.Tiers()
	if err != nil {
		return nil, err
	}
	machines, err := cfg.Worker.Catalog()
	if err != nil {
		return nil, err
	}
	if p.traces, err = telemetry.NewTraces(ctx, telemetry.TraceConfig{Endpoint: cfg.Traces.Endpoint, Ratio: cfg.Traces.Ratio, Process: o.Name, Environment: cfg.Environment, Version: p.version}); err != nil {
		return nil, err
	}
	if p.pool == nil {
		if p.pool, err = store.Open(ctx, cfg.DatabaseURL, cfg.MaxDBConns, p.traces.Statements()); err != nil {
			p.traces.Close()
			return nil, err
		}
		p.opened = true
	}
	p.db = store.NewWithTiers(p.pool, tiers, cfg.Quotas.DefaultTier)
	p.db.Orders(machines)
	return p, nil
}

// run calls f with a process, and ends it.
func run(ctx context.Context, o Options, name string, f func(context.Context, *Process, *workflows.Client) error) error {
	o.Name = name
	p, err := New(ctx, o)
	if err != nil {
		return err
	}
	defer p.Close()
	runs, err := p.Runs()
	if err != nil {
		return err
	}
	if o.Temporal == nil {
		defer runs.Temporal.Close()
	}
	return f(ctx, p, runs)
}

// Close ends what New started.
func (p *Process) Close() {
	if p.opened {
		p.pool.Close()
	}
	p.traces.Close()
	_ = p.log.Sync()
}

// Runs connects to Temporal on first use, so that a process starts, and reports that it
// is not ready, while Temporal is away.
func (p *Process) Runs() (*workflows.Client, error) {
	t := p.cfg.Temporal
	out := &workflows.Client{
		Temporal: p.temporal, TaskQueue: t.TaskQueue, Namespace: t.Namespace, Environment: p.cfg.Environment,
		UIURL: t.UIURL, About: p.db.AboutRun,
	}
	if out.Temporal != nil {
		return out, nil
	}
	// Connections are tried again soon: by default gRPC waits for up to two minutes, with Temporal back long before.
	again := backoff.DefaultConfig
	again.MaxDelay = 2 * time.Second
	interceptors, err := p.traces.Interceptors()
	if err != nil {
		return nil, err
	}
	out.Temporal, err = client.NewLazyClient(client.Options{
		Interceptors: interceptors,
		HostPort:     t.Address, Namespace: t.Namespace, Logger: temporalLog{p.log.Named("temporal").Sugar()},
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: 2 * time.Second}),
			grpc.WithChainUnaryInterceptor(workflows.Untried),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("temporal at %s: %w", t.Address, err)
	}
	return out, nil
}

type temporalLog struct{ s *zap.SugaredLogger }

func (l temporalLog) Debug(msg string, kv ...any) { l.s.Debugw(msg, kv...) }
func (l temporalLog) Info(msg string, kv ...any)  { l.s.Infow(msg, kv...) }
func (l temporalLog) Warn(msg string, kv ...any)  { l.s.Warnw(msg, kv...) }
func (l temporalLog) Error(msg string, kv ...any) { l.s.Errorw(msg, kv...) }

// ready reports whether the database takes writes and Temporal answers.
func (p *Process) ready(runs *workflows.Client) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := p.db.Writable(ctx); err != nil {
			return fmt.Errorf("database: %w", err)
		}
		return runs.Ready(ctx)
	}
}

func listen(ctx context.Context, addr, variable string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s=%s: %w", variable, addr, err)
	}
	return l, nil
}
