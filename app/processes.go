package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/api"
	"github.com/prego/prego/console"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/oidc"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/relay"
	"github.com/prego/prego/internal/telemetry"
	"github.com/prego/prego/migrations"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/placement/pack"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/worker"
	"github.com/prego/prego/workflows"
)

// stopWithin is how long requests and steps that are under way have to end when a process stops. Docker Compose, systemd
// and Kubernetes wait for at least half a minute.
const stopWithin = 20 * time.Second

// metricsOrgs is the number of orgs that have metrics by name, those closest to a limit. Each is a series per limit.
const metricsOrgs = 50

// Limits of a release that is carried out.
const (
	releaseOrgSites    = 10               // of an org's sites are offline concurrently: a quarter of all orgs'
	releaseServerSites = 2                // of a server's sites are migrated concurrently: each needs a core
	releaseAnswer      = 2 * time.Minute  // until a site answers after an update: the bench's processes start with cold caches
	agentAnswers       = 15 * time.Minute // until a server with a new agent counts as silent, and the release stops
)

// startAgain is the pause before another try to start accepted requests while Temporal is away.
const startAgain = 2 * time.Second

// RunAPI serves callers and operators.
func RunAPI(ctx context.Context, o Options) error {
	return run(ctx, o, "api", serveAPI)
}

func serveAPI(ctx context.Context, p *Process, runs *workflows.Client) error {
	later := &api.Later{Every: startAgain, Failed: func(id string, err error) {
		p.log.Warn("Temporal does not accept a run; retrying", zap.String("what", id), zap.String("error", prego.Redact(err.Error())))
	}}
	runs.NotTaken = later.Keep
	go later.Run(ctx)
	p.trust = p.trusted(ctx).Refusal
	a, err := p.API(runs)
	if err != nil {
		return err
	}
	l, err := listen(ctx, p.cfg.API.Listen, "PREGO_API_LISTEN")
	if err != nil {
		return err
	}
	ready := func(ctx context.Context) error {
		if err := p.ready(runs)(ctx); err != nil {
			return err
		}
		return migrated(ctx, p.cfg.DatabaseURL)
	}
	p.log.Info("serving the API at " + l.Addr().String())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return telemetry.ServeOps(ctx, p.cfg.MetricsAddr, p.reg, ready) })
	g.Go(func() error { return a.Serve(ctx, l, stopWithin) })
	return g.Wait()
}

// API wires an API, with the console.
func (p *Process) API(runs *workflows.Client) (*api.API, error) {
	placer, err := newPlacer(p, runs)
	if err != nil {
		return nil, err
	}
	keyholder, err := newRelayClient(p)
	if err != nil {
		return nil, err
	}
	catalog, err := p.cfg.Worker.Catalog()
	if err != nil {
		return nil, err
	}
	stack, err := p.cfg.Worker.Stack()
	if err != nil {
		return nil, err
	}
	auth, people := api.Authenticate(p.db), newPeople(p.cfg.API)
	a := api.New(api.Deps{
		Store: p.db, Runs: runs, Auth: auth, People: people, Issuers: oidc.NewIssuers(p.cfg.Hetzner.Simulated), Importer: keyholder, Placer: placer, Shell: keyholder, Containers: keyholder,
		Registries: store.NewRegistries(p.db, keyholder), Trace: p.traces.Answer, Log: p.log, Registry: p.reg,
		Catalog: newCatalogDeps(p, catalog, stack),
		Usable:  pack.Usable{MemoryPct: placer.Policy.MemoryPctMax, DiskPct: placer.Policy.DBDiskPctMax, Tenants: pack.TenantsBelow(placer.Policy.MaxTenantsPerNode, p.cfg.Tenants.ThresholdPct)},
		Resources: api.ResourceDeps{
			Environment: p.cfg.Environment, SiteDomain: p.cfg.Tenants.SiteDomain, Locations: catalog.Locations,
			EdgePorts: []int{server.AgentPort(prego.RoleEdge, p.cfg.Worker.AgentPort), p.cfg.Worker.DockerPort},
		},
		Mode: placer.Policy.Mode, Periods: p.cfg.Tenants.Periods(), Attention: p.attentionLimits(),
		RatePerSecond: p.cfg.API.RatePerSecond, RateBurst: int(2 * p.cfg.API.RatePerSecond), Unavailable: store.Unavailable,
		Trusted: p.trust, Version: p.version,
		Checks: []api.Check{
			{Name: "database", Run: p.db.Writable},
			{Name: "migrations", Run: func(ctx context.Context) error { return migrated(ctx, p.cfg.DatabaseURL) }},
			{Name: "temporal", Run: runs.Ready},
		},
	})
	a.Mount("/console", console.New(console.Deps{
		API: a.Handler(), Allow: a.Allow, Refusal: a.Refusal, Auth: auth, People: people, Store: p.db, Feed: a.Subscribe, Watch: a.Watch, URL: p.cfg.API.PublicURL, Now: p.now, Log: p.log.Named("console"),
	}).Handler())
	return a, nil
}

// newPeople is the issuer that people log in with, nil if none is set. It is called when it is needed: the API starts
// without it.
func newPeople(c config.API) api.People {
	if c.OIDC.Issuer == "" {
		return nil
	}
	return oidc.NewPeople(oidc.Config{
		Issuer: c.OIDC.Issuer, ClientID: c.OIDC.ClientID, ClientSecret: c.OIDC.ClientSecret, GroupsClaim: c.OIDC.GroupsClaim,
		RedirectURL: strings.TrimSuffix(c.PublicURL, "/") + "/console/login/oidc/callback",
	})
}

func migrated(ctx context.Context, url string) error {
	lacks, err := migrations.Check(ctx, url)
	if err == nil && lacks != "" {
		err = prego.Errorf(prego.CodeNotReady, "%s: run prego migrate", lacks)
	}
	return err
}

// RunGateway serves agents.
func RunGateway(ctx context.Context, o Options) error {
	return run(ctx, o, "agentgw", serveAgents)
}

func serveAgents(ctx context.Context, p *Process, runs *workflows.Client) error {
	p.trust = p.trusted(ctx).Refusal
	gw, tlsConfig, err := p.Gateway(runs)
	if err != nil {
		return err
	}
	l, err := listen(ctx, p.cfg.Gateway.Listen, "PREGO_AGENTGW_LISTEN")
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return telemetry.ServeOps(ctx, p.cfg.MetricsAddr, p.reg, p.ready(runs)) })
	g.Go(func() error { return gw.Serve(ctx, l, tlsConfig, stopWithin) })
	g.Go(func() error { return p.looker(p.selfLook(ops.ProcessGateway, runs)).Run(ctx) })
	p.log.Info("serving agents at " + l.Addr().String())
	return g.Wait()
}

// RunWorker runs the workflows and steps of task queues; of all without any.
func RunWorker(ctx context.Context, o Options, queues []string) error {
	return run(ctx, o, "worker", func(ctx context.Context, p *Process, runs *workflows.Client) error { return work(ctx, p, runs, queues) })
}

func work(ctx context.Context, p *Process, runs *workflows.Client, queues []string) error {
	served, err := workflows.ParseQueues(queues)
	if err != nil {
		return err
	}
	redo, err := p.redoLog()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	trusted, ready := p.trusted(ctx), p.ready(runs)
	g.Go(func() error {
		return telemetry.ServeOps(ctx, p.cfg.MetricsAddr, p.reg, func(ctx context.Context) error {
			return cmp.Or(trusted.Refusal(), ready(ctx))
		})
	})
	g.Go(func() error { return p.workTrusted(ctx, runs, served, redo) })
	return g.Wait()
}

// workTrusted works once the database may be trusted, and for as long.
func (p *Process) workTrusted(
	ctx context.Context, runs *workflows.Client, served []workflows.Queue, redo *activities.RedoLog,
) error {
	if err := p.awaitTrust(ctx, redo); err != nil {
		return err
	}
	lost := make(chan struct{})
	p.lost = lost
	b, err := p.Worker(ctx, runs, served)
	if err != nil {
		return err
	}
	schedules := workflows.ScheduleSettings{
		ReconcileEvery: p.cfg.Worker.ReconcileEvery, CatalogEvery: p.cfg.Worker.CatalogEvery, NetEvery: p.cfg.Worker.NetEvery,
	}
	if err := ensureSchedules(ctx, p, runs, schedules); err != nil {
		return err
	}
	l, err := listen(ctx, p.cfg.Relay.Listen, "PREGO_RELAY_LISTEN")
	if err != nil {
		return err
	}
	b.Looker.Looks = append(b.Looker.Looks, p.selfLook(ops.ProcessWorker, runs), worker.Look{
		Name: "schedules", Every: p.cfg.Pace.Of(time.Minute),
		Do: worker.At(&worker.Schedules{Runs: runs, Settings: schedules, Now: p.now, Log: p.log.Named("schedules")},
			worker.LookAtSchedules),
	})
	watchCatalog(ctx, p, runs)
	p.exportRows(b.catalogs)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.relay.Serve(ctx, l, b.ca.RelayTLS(), stopWithin) })
	g.Go(func() error { return p.keepTrust(ctx, redo, func() { close(lost) }) })
	g.Go(func() error {
		if err := b.Worker.Start(); err != nil {
			return fmt.Errorf("worker: %w", err)
		}
		p.log.Info("working on task queue "+p.cfg.Temporal.TaskQueue, zap.Any("queues", served))
		_ = b.Looker.Run(ctx)
		b.Worker.Stop()
		return nil
	})
	return g.Wait()
}

// exportRows exports what a scrape of a worker reads from the database.
func (p *Process) exportRows(catalogs *activities.Catalogs) {
	e := worker.Exporter{Log: p.log, Now: p.now}
	p.reg.MustRegister(e.OrgUsage(metricsOrgs, p.db.UsageNearLimits), e.LookAge(p.db.Looks), e.Certificates(p.db.CertificateCounts), e.Cordoned(p.db.CordonedServers),
		e.Maintenances(p.db.OpenMaintenances), e.Patches(p.db.PatchCounts), e.AgentVersions(p.db.AgentVersions),
		e.CatalogAge(prego.ProviderHetzner, catalogs.Catalog, p.db.ProviderCatalog), e.Costs(p.db.CostNumbers))
}

// Worker is a worker that has not started, with the parts that tests replace.
type Worker struct {
	Worker  worker.Worker
	Looker  *worker.Looker
	Servers *activities.Servers
	Tenants *activities.Tenants
	Backups *activities.Backups
	Peers   *activities.Peers
	Edges   *activities.Edges

	relay    *relay.Server
	ca       *pki.Authority
	catalogs *activities.Catalogs
}

// Worker wires a worker.
func (p *Process) Worker(ctx context.Context, runs *workflows.Client, served []workflows.Queue) (*Worker, error) {
	p.db.LimitWork(p.cfg.Worker.OrgWork)
	servers, fleet, err := buildActivities(ctx, p, runs)
	if err != nil {
		return nil, err
	}
	tenants, err := buildTenants(p, runs)
	if err != nil {
		return nil, err
	}
	ca, err := pki.Open(p.cfg.KeysDir, p.cfg.Environment)
	if err != nil {
		return nil, err
	}
	engine, err := newContainers(p, ca)
	if err != nil {
		return nil, err
	}
	relayed, err := newRelay(p, ca, engine)
	if err != nil {
		return nil, err
	}
	catalogs := newCatalogs(p, servers)
	images, err := newImages(p, servers, runs)
	if err != nil {
		return nil, err
	}
	fleet.Images = images
	groups := buildGroups(p, runs, engine)
	fleet.Org.Hosts = tenants.Bench
	groups.Volumes, groups.Idle = mountVolumes(fleet.Org), fleet.Org.DetachIdleVolumes
	servers.Capacity = activities.ServerFree(groups)
	if p.cfg.Worker.Networks() != "" {
		tenants.Networks = servers.OpenNetwork
	}
	peers, err := newPeers(p, servers, ca)
	if err != nil {
		return nil, err
	}
	tenants.AwaitPeers = peers.AwaitPeers
	edges := newEdges(p)
	groups.Drained, tenants.Drained = activities.DrainEdges(edges), activities.DrainEdges(edges)
	certificates, err := newCertificates(p, runs, edges)
	if err != nil {
		return nil, err
	}
	if p.version != dev {
		worker.Identify(p.version)
	}
	names, err := newNames(p, servers, runs)
	if err != nil {
		return nil, err
	}
	if names.Zone != "" {
		certificates.DNS = names
	}
	maintenances := buildMaintenances(p, runs, servers)
	maintenances.Hosts = tenants.Bench
	if maintenances.Window, err = server.NewPatchWindow(p.cfg.Workloads.PatchCron, p.cfg.Workloads.PatchFor); err != nil {
		return nil, err
	}
	backups, err := newBackups(p, runs, tenants, ca)
	if err != nil {
		return nil, err
	}
	backups.Volumes, fleet.Org.Backups = fleet.Org, backups
	releases := &activities.StackReleases{
		Store: p.db, Tenants: tenants, Containers: engine, Runs: runs, Limits: server.StackReleaseLimits{Sites: p.cfg.Releases.Sites, OrgSites: releaseOrgSites},
		Parallel: releaseServerSites, AnswerFor: releaseAnswer, Quiet: p.cfg.Workloads.Quiet,
		Ended: activities.NewBenchUpdates(p.reg), Log: p.log.Named("releases"), Hooks: p.hooks,
	}
	redo, err := p.redoLog()
	if err != nil {
		return nil, err
	}
	moves := newMoves(p, runs, tenants, backups)
	moves.Edges = edges
	drilled := newDrills(p, runs, backups)
	w, err := worker.New(runs.Temporal, worker.Options{
		TaskQueue: p.cfg.Temporal.TaskQueue, Queues: served, StopTimeout: stopWithin, Lost: p.lost,
		Slots: worker.Slots{Main: p.cfg.Worker.Concurrency, Long: p.cfg.Worker.LongConcurrency, Periodic: 4},
	}, servers, fleet, tenants, &activities.FleetActions{
		Store: p.db, Runs: runs, Parallel: p.cfg.Worker.FleetParallel, Poll: p.cfg.Worker.FleetPoll, Hooks: p.hooks, Capacity: activities.ServerFree(groups), TenantsMove: backups.Objects != nil,
	}, fleet.Org, &activities.Snapshots{Store: p.db, Tenants: tenants, Runs: runs, FetchFor: p.cfg.Backups.UploadFor}, groups, catalogs, images, edges, peers, certificates, names, maintenances, backups, drilled, releases, moves)
	if err != nil {
		return nil, err
	}
	storagePrice, currency := p.cfg.Costs.BackupGBMonth()
	looker := newLooker(p, servers, fleet, tenants, groups, peers, certificates, maintenances, &worker.Rebalances{Store: p.db, Runs: runs, Log: p.log.Named("rebalances"), Hook: p.hooks.Hook})
	looker.Looks = append(looker.Looks, lookAtNames(p, names)...)
	looker.Looks = append(looker.Looks,
		worker.Look{Name: "agent releases", Every: p.cfg.Workloads.SweepEvery, Do: worker.At(&worker.AgentReleases{Store: p.db, Limits: server.AgentReleaseLimits{Servers: p.cfg.Releases.Agents, Within: agentAnswers}}, worker.LookAtAgentReleases)},
		worker.Look{Name: "releases", Every: p.cfg.Workloads.SweepEvery, Do: worker.At(releases, worker.LookAtStackReleases)},
		worker.Look{Name: "moves", Every: p.cfg.Workloads.SweepEvery, Do: worker.At(moves, worker.LookAtMoves)},
		worker.Look{Name: "backups", Every: p.cfg.Backups.SweepEvery, Do: worker.At(backups, worker.LookAtBackups)},
		worker.Look{Name: "backup schedules", Every: 6 * p.cfg.Backups.SweepEvery, Do: worker.At(backups, worker.LookAtBackupSchedules)},
		worker.Look{Name: "drills", Every: 6 * p.cfg.Backups.SweepEvery, Do: worker.At(drilled, worker.LookAtDrills)},
		worker.Look{Name: "lost tenants", Every: p.cfg.Backups.SweepEvery, Do: worker.At(tenants, worker.LookAtLost)},
		worker.Look{Name: "age", Every: p.cfg.Pace.Of(time.Minute), Do: worker.At(&worker.Pruning{Store: p.db, Keep: p.cfg.Keep.Of(), Batch: 1000, Rows: worker.NewPrunedRows(p.reg)}, worker.LookAtAge)},
		worker.Look{
			Name: "attention", Every: p.cfg.Pace.Of(30 * time.Second),
			Do: worker.At(&worker.Attention{Store: p.db, Limits: p.attentionLimits()}, worker.LookAtAttention),
		},
		worker.Look{Name: "samples", Every: server.SampleEvery / 5, Do: worker.At(p.db, worker.LookAtSamples)},
		// The owner of an hour is sampled four times.
		worker.Look{Name: "costs", Every: p.cfg.Pace.Of(15 * time.Minute), Do: worker.At(&worker.CostCounting{Store: p.db, StoragePrice: storagePrice, StorageCurrency: currency, Now: p.now}, worker.LookAtCosts)},
		worker.Look{Name: "audit", Every: p.cfg.Pace.Of(10 * time.Second), Do: worker.At(&worker.Audit{Store: p.db, Log: p.log.Named("audit")}, worker.LookAtAudit)},
		worker.Look{Name: "commands", Every: p.cfg.Pace.Of(time.Minute), Do: worker.At(p.db, worker.LookAtCommands)},
		worker.Look{Name: "redo log", Every: p.cfg.Pace.Of(redoEvery), Do: worker.At(redo, worker.LookAtRedo)},
		worker.Look{Name: "old redo log", Every: p.cfg.Pace.Of(time.Hour), Do: worker.At(redo, worker.LookAtOldRedo)},
		worker.Look{Name: "backup storage", Every: p.cfg.Pace.Of(time.Hour), Do: worker.At(backups, worker.LookAtBackupStorage)},
	)
	for i := range looker.Looks { // more looks than that would only load Postgres, at any pace
		looker.Looks[i].Every = max(looker.Looks[i].Every, 500*time.Millisecond)
	}
	if !slices.Contains(served, workflows.QueuePeriodic) {
		looker.Looks = nil
	}
	return &Worker{Worker: w, Looker: looker, Servers: servers, Tenants: tenants, Backups: backups, Peers: peers, Edges: edges, relay: relayed, ca: ca, catalogs: catalogs}, nil
}

// ensureSchedules retries while Temporal is away or slow: a worker that exited would
// only be restarted, and ask as much of it.
func ensureSchedules(ctx context.Context, p *Process, runs *workflows.Client, s workflows.ScheduleSettings) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := runs.EnsureSchedules(ctx, s)
		if err == nil {
			return nil
		}
		p.log.Warn("schedules are not made yet", zap.Error(err), zap.Duration("again_in", pause))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// Migrate brings the database of the environment to the newest schema.
func Migrate(ctx context.Context) error {
	cfg, err := config.FromEnvironment()
	if err != nil {
		return err
	}
	if cfg.DatabaseURL == "" {
		return fmt.Errorf("DATABASE_URL is required")
	}
	return migrations.Up(ctx, cfg.DatabaseURL)
}
