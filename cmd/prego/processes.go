package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/api"
	"github.com/prego/prego/console"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/keyset"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/relay"
	"github.com/prego/prego/internal/telemetry"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/migrations"
	"github.com/prego/prego/placement/pack"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/worker"
	"github.com/prego/prego/workflows"
)

func newAPICommand() *cobra.Command {
	return &cobra.Command{
		Use: "api", Short: "Serve callers and operators", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAPI(cmd.Context()) },
	}
}

// startAgain is the time between two tries to start what was accepted while Temporal was away.
const startAgain = 2 * time.Second

func runAPI(ctx context.Context) error {
	p, err := newProcess(ctx, "api")
	if err != nil {
		return err
	}
	defer p.close()
	runs, err := p.runs()
	if err != nil {
		return err
	}
	defer runs.Temporal.Close()
	later := &api.Later{Every: startAgain, Failed: func(id string, err error) {
		p.log.Warn("Temporal does not take what was accepted; it is tried again", zap.String("what", id), zap.String("error", prego.Redact(err.Error())))
	}}
	runs.NotTaken = later.Keep
	go later.Run(ctx)
	a, err := buildAPI(p, runs)
	if err != nil {
		return err
	}
	tokens, err := newAPITokens(p.cfg)
	if err != nil {
		return err
	}
	a.Mount("/console", console.New(console.Deps{
		API: a.Handler(), Allow: a.Allow, Refusal: a.Refusal, Auth: apiAuth{tokens}, KnowsKey: tokens.Knows, Sessions: p.db, Feed: a.Subscribe, Now: time.Now, Log: p.log.Named("console"),
	}).Handler())
	l, err := listen(ctx, p.cfg.API.Listen, "PREGO_API_LISTEN")
	if err != nil {
		return err
	}
	p.log.Info("serving the API at " + l.Addr().String())
	return a.Serve(ctx, l, p.cfg.API.DrainTimeout)
}

// buildAPI wires an API.
func buildAPI(p *process, runs *workflows.Client) (*api.API, error) {
	tokens, err := newAPITokens(p.cfg)
	if err != nil {
		return nil, err
	}
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
	return api.New(api.Deps{
		Logins: p.db,
		Trace:  p.traces.Answer,
		Images: p.db, ImageRuns: runs, Certificates: p.db, CertificateRuns: runs,
		Catalog:    newCatalogDeps(p, runs, catalog, stack),
		Rebalances: api.RebalanceDeps{Store: p.db, Usable: pack.Usable{MemoryPct: placer.Policy.MemoryPctMax, DiskPct: placer.Policy.DBDiskPctMax, Tenants: pack.TenantsBelow(placer.Policy.MaxTenantsPerNode, p.cfg.Tenants.ThresholdPct)}},
		Events:     p.db, Search: p.db, Quotas: p.db, Registries: store.NewRegistries(p.db, keyholder),
		Resources: api.ResourceDeps{Store: p.db, Runs: runs, Environment: p.cfg.Environment, SiteDomain: p.cfg.Tenants.SiteDomain, Locations: catalog.Locations},
		Keys:      p.db, Hosts: p.db, Shell: keyholder, Containers: keyholder,
		Groups: p.db, GroupRuns: runs, Releases: p.db, ReleaseRuns: runs, AgentReleases: p.db, Fleets: p.db, FleetRuns: runs, Tenants: p.db, TenantRuns: runs, Placer: placer, Mode: placer.Policy.Mode, Periods: p.cfg.Tenants.Periods(),
		Store: p.db, Orchestrator: runs, Auth: apiAuth{tokens}, Importer: keyholder, Log: p.log, Registry: p.reg,
		RatePerSecond: p.cfg.API.RatePerSecond, RateBurst: p.cfg.API.RateBurst, Unavailable: store.Unavailable, Attention: p.attentionLimits(),
		Checks: []api.Check{
			{Name: "database", Run: p.db.Writable},
			{Name: "migrations", Run: func(ctx context.Context) error { return migrated(ctx, p.cfg.DatabaseURL) }},
			{Name: "temporal", Run: runs.Ready},
		},
	}), nil
}

func migrated(ctx context.Context, url string) error {
	lacks, err := migrations.Check(ctx, url)
	if err == nil && lacks != "" {
		err = prego.Errorf(prego.CodeNotReady, "%s: run prego migrate", lacks)
	}
	return err
}

func newGatewayCommand() *cobra.Command {
	return &cobra.Command{
		Use: "agentgw", Short: "Serve agents", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runGateway(cmd.Context()) },
	}
}

// gatewayGC replaces Go's 100: most of the gateway's heap is the TLS state of idle
// connections, so a garbage as large as that would be many requests'.
const gatewayGC = 50

func runGateway(ctx context.Context) error {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gatewayGC)
	}
	p, err := newProcess(ctx, "agentgw")
	if err != nil {
		return err
	}
	defer p.close()
	runs, err := p.runs()
	if err != nil {
		return err
	}
	defer runs.Temporal.Close()
	gw, tlsConfig, err := newGateway(p, runs)
	if err != nil {
		return err
	}
	l, err := listen(ctx, p.cfg.Gateway.Listen, "PREGO_AGENTGW_LISTEN")
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return telemetry.ServeOps(ctx, p.cfg.MetricsAddr, p.reg, p.ready(runs)) })
	g.Go(func() error { return gw.Serve(ctx, l, tlsConfig, p.cfg.Gateway.DrainTimeout) })
	p.log.Info("serving agents at " + l.Addr().String())
	return g.Wait()
}

func newWorkerCommand() *cobra.Command {
	var queues []string
	cmd := &cobra.Command{
		Use: "worker", Short: "Run workflows and their steps", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runWorker(cmd.Context(), queues) },
	}
	cmd.Flags().StringSliceVar(&queues, "queues", nil, "task queues to serve: main, long, periodic (default PREGO_WORKER_QUEUES, or all)")
	return cmd
}

func runWorker(ctx context.Context, queues []string) error {
	p, err := newProcess(ctx, "worker")
	if err != nil {
		return err
	}
	defer p.close()
	if len(queues) == 0 {
		queues = p.cfg.Worker.Queues
	}
	served, err := workflows.ParseQueues(queues)
	if err != nil {
		return err
	}
	runs, err := p.runs()
	if err != nil {
		return err
	}
	defer runs.Temporal.Close()
	b, err := buildWorker(ctx, p, runs, served)
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
	watchCatalog(ctx, p, runs)
	exportRows(p, b.catalogs)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return telemetry.ServeOps(ctx, p.cfg.MetricsAddr, p.reg, p.ready(runs)) })
	g.Go(func() error { return b.relay.Serve(ctx, l, b.ca.RelayTLS(), p.cfg.Worker.StopTimeout) })
	g.Go(func() error {
		if err := b.worker.Start(); err != nil {
			return fmt.Errorf("worker: %w", err)
		}
		p.log.Info("working on task queue "+p.cfg.Temporal.TaskQueue, zap.Any("queues", served))
		_ = b.looker.Run(ctx)
		b.worker.Stop()
		return nil
	})
	return g.Wait()
}

// exportRows exports what a scrape of a worker reads from the database.
func exportRows(p *process, catalogs *activities.Catalogs) {
	p.reg.MustRegister(worker.NewOrgUsage(p.db, p.cfg.Quotas.MetricsOrgs, p.log, time.Now), worker.NewLookAge(p.db, p.log, time.Now), worker.NewCertificates(p.db, p.log, time.Now),
		worker.NewCordoned(p.db, p.log, time.Now), worker.NewAgentVersions(p.db, p.log, time.Now), worker.NewCatalogAge(p.db, prego.ProviderHetzner, catalogs.Catalog, p.log, time.Now), worker.NewCosts(p.db, p.log, time.Now))
}

// builtWorker is a worker that has not started, with what it is made of.
type builtWorker struct {
	worker   worker.Worker
	looker   *worker.Looker
	relay    *relay.Server
	ca       *pki.Authority
	catalogs *activities.Catalogs
	servers  *activities.Servers
	fleet    *activities.Reconciler
	tenants  *activities.Tenants
	backups  *activities.StoredBackups
	groups   *activities.Groups
	peers    *activities.Peers
	edges    *activities.Edges
}

// buildWorker wires a worker.
func buildWorker(ctx context.Context, p *process, runs *workflows.Client, served []workflows.Queue) (*builtWorker, error) {
	if p.cfg.Worker.OrgWork < 1 {
		return nil, fmt.Errorf("PREGO_ORG_WORK_LIMIT must be at least 1")
	}
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
	tenants.Peers = peers
	edges := newEdges(p)
	groups.Drained, tenants.Drained = activities.DrainEdges(edges), activities.DrainEdges(edges)
	certificates, err := newCertificates(p, runs, edges)
	if err != nil {
		return nil, err
	}
	if version != "dev" {
		worker.Identify(version)
	}
	names, err := newNames(p, servers, runs)
	if err != nil {
		return nil, err
	}
	if names.Zone != "" {
		certificates.DNS = names
	}
	drains := buildDrains(p, runs, servers)
	drains.Hosts = tenants.Bench
	if drains.Window, err = server.NewPatchWindow(p.cfg.Workloads.PatchCron, p.cfg.Workloads.PatchFor); err != nil {
		return nil, err
	}
	backups, err := newBackups(p, runs, tenants, ca)
	if err != nil {
		return nil, err
	}
	backups.Volumes, fleet.Org.Backups = fleet.Org, backups
	releases := &activities.StackReleases{
		Store: p.db, Tenants: tenants, Containers: engine, Runs: runs, Limits: server.ReleaseLimits{Sites: p.cfg.Releases.Sites, OrgSites: p.cfg.Releases.OrgSites},
		Parallel: p.cfg.Releases.ServerSites, AnswerFor: p.cfg.Releases.AnswerFor, Quiet: p.cfg.Workloads.Quiet,
		Ended: activities.NewBenchUpdates(p.reg), Log: p.log.Named("releases"), Hook: crashHook(),
	}
	moves := newMoves(p, runs, tenants, backups)
	moves.Edges = edges
	drilled := newDrills(p, runs, backups)
	w, err := worker.New(runs.Temporal, worker.Options{
		TaskQueue: p.cfg.Temporal.TaskQueue, Queues: served, StopTimeout: p.cfg.Worker.StopTimeout,
		Slots: worker.Slots{Main: p.cfg.Worker.Concurrency, Long: p.cfg.Worker.LongConcurrency, Periodic: p.cfg.Worker.SweepConcurrency},
	}, servers, fleet, tenants, &activities.FleetActions{
		Store: p.db, Runs: runs, Parallel: p.cfg.Worker.FleetParallel, Poll: p.cfg.Worker.FleetPoll, Hook: crashHook(), Capacity: activities.ServerFree(groups), TenantsMove: backups.Objects != nil,
	}, fleet.Org, &activities.Backups{Store: p.db, Tenants: tenants, Runs: runs, FetchFor: p.cfg.Backups.UploadFor}, groups, catalogs, images, edges, peers, certificates, names, drains, backups, drilled, releases, moves)
	if err != nil {
		return nil, err
	}
	looker := newLooker(p, servers, fleet, tenants, groups, peers, certificates, drains, &activities.Rebalances{Store: p.db, Runs: runs, Log: p.log.Named("rebalances"), Hook: crashHook()})
	looker.Looks = append(looker.Looks, lookAtNames(p, names)...)
	looker.Looks = append(looker.Looks,
		worker.Look{Name: "agent releases", Every: p.cfg.Workloads.SweepEvery, Do: activities.LookAtAgentReleases(&activities.AgentReleases{Store: p.db, Limits: server.AgentReleaseLimits{Servers: p.cfg.Releases.Agents, Within: p.cfg.Releases.AgentWithin}})},
		worker.Look{Name: "releases", Every: p.cfg.Workloads.SweepEvery, Do: activities.LookAtReleases(releases)},
		worker.Look{Name: "moves", Every: p.cfg.Workloads.SweepEvery, Do: activities.LookAtMoves(moves)},
		worker.Look{Name: "backups", Every: p.cfg.Backups.SweepEvery, Do: activities.LookAtBackups(backups)},
		worker.Look{Name: "backup turns", Every: 6 * p.cfg.Backups.SweepEvery, Do: activities.LookAtBackupTurns(backups)},
		worker.Look{Name: "drills", Every: 6 * p.cfg.Backups.SweepEvery, Do: activities.LookAtDrills(drilled)},
		worker.Look{Name: "lost tenants", Every: p.cfg.Backups.SweepEvery, Do: activities.LookAtLost(tenants)},
		worker.Look{Name: "age", Every: p.cfg.Keep.Every, Do: activities.LookAtAge(&activities.Pruning{Store: p.db, Keep: p.cfg.Keep.Of(), Batch: p.cfg.Keep.Batch, Rows: activities.NewPrunedRows(p.reg)})},
		worker.Look{Name: "samples", Every: server.SampleEvery / 5, Do: activities.LookAtSamples(&activities.Samples{Store: p.db})},
		worker.Look{Name: "costs", Every: p.cfg.Costs.Every, Do: activities.LookAtCosts(&activities.Costs{Store: p.db, StoragePrice: p.cfg.Costs.BackupGBMonth, StorageCurrency: p.cfg.Costs.BackupCurrency, Now: time.Now})},
		worker.Look{Name: "audit", Every: p.cfg.Keep.SealAudit, Do: activities.LookAtAudit(&activities.Audit{Store: p.db, Log: p.log.Named("audit")})},
		worker.Look{Name: "backup storage", Every: p.cfg.Backups.CheckEvery, Do: activities.LookAtBackupStorage(backups)},
	)
	if !slices.Contains(served, workflows.QueuePeriodic) {
		looker.Looks = nil
	}
	return &builtWorker{worker: w, looker: looker, relay: relayed, ca: ca, catalogs: catalogs, servers: servers, fleet: fleet, tenants: tenants, backups: backups, groups: groups, peers: peers, edges: edges}, nil
}

// ensureSchedules retries while Temporal is away or slow: a worker that exited would
// only be restarted, and ask as much of it.
func ensureSchedules(ctx context.Context, p *process, runs *workflows.Client, s workflows.ScheduleSettings) error {
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

func newMigrateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "migrate", Short: "Bring the database to the newest schema", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.FromEnvironment()
			if err != nil {
				return err
			}
			if cfg.DatabaseURL == "" {
				return fmt.Errorf("DATABASE_URL is required")
			}
			return migrations.Up(cmd.Context(), cfg.DatabaseURL)
		},
	}
}

func newKeysCommand() *cobra.Command {
	keys := &cobra.Command{Use: "keys", Short: "Create and rotate the keys and certificate authorities in PREGO_KEYS_DIR"}
	keys.AddCommand(&cobra.Command{
		Use: "init", Short: "Create missing keys and certificate authorities", Args: cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			cfg, err := config.FromEnvironment()
			if err != nil {
				return err
			}
			if err := pki.Init(cfg.KeysDir, cfg.Environment); err != nil {
				return err
			}
			return token.InitKeys(cfg.KeysDir)
		},
	})
	keys.AddCommand(newSignAgentCommand())
	keys.AddCommand(&cobra.Command{
		Use: "seal", Short: "Make another key that seals keys of certificates from now on", Args: cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			cfg, err := config.FromEnvironment()
			if err != nil {
				return err
			}
			return token.AddSealing(cfg.KeysDir, token.SealCertificates)
		},
	})
	rotate := func(use, short string, f func(cfg config.Config, p pki.Purpose) error) *cobra.Command {
		return &cobra.Command{
			Use: use + " PURPOSE", Short: short, Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				cfg, err := config.FromEnvironment()
				if err != nil {
					return err
				}
				for _, p := range pki.Purposes() {
					if string(p) == args[0] {
						return f(cfg, p)
					}
				}
				return fmt.Errorf("unknown purpose %q; there are %v", args[0], pki.Purposes())
			},
		}
	}
	keys.AddCommand(
		newKeysShareCommand(),
		rotate("add", "First step of a rotation: trust a new CA", func(c config.Config, p pki.Purpose) error { return pki.Add(c.KeysDir, c.Environment, p) }),
		rotate("activate", "Second step: let the new CA issue", func(c config.Config, p pki.Purpose) error { return pki.Activate(c.KeysDir, p) }),
		rotate("retire", "Last step: trust only the CA that issues", func(c config.Config, p pki.Purpose) error { return pki.Retire(c.KeysDir, p) }),
	)
	return keys
}

func newKeysShareCommand() *cobra.Command {
	var group int
	cmd := &cobra.Command{
		Use: "share PROCESS DIR", Short: "Write the keys that a process needs to DIR, and remove all others",
		Long: "Make DIR hold the keys that a process needs, out of those in PREGO_KEYS_DIR, and no others.\n\nThe processes are " + strings.Join(keyset.Processes(), ", ") + ".",
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := config.FromEnvironment()
			if err != nil {
				return err
			}
			return keyset.Share(cfg.KeysDir, args[0], args[1], group)
		},
	}
	cmd.Flags().IntVar(&group, "group", -1, "number of the group that the files are for")
	return cmd
}
