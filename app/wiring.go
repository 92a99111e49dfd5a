package app

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/agentgw"
	"github.com/prego/prego/internal/adviser"
	"github.com/prego/prego/internal/agentclient"
	"github.com/prego/prego/internal/cloudinit"
	"github.com/prego/prego/internal/config"
	"github.com/prego/prego/internal/edge"
	"github.com/prego/prego/internal/hetzner"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/placer"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workflows"
)

// agentBinary reads the agent binary for hosts.
func agentBinary(cfg config.Config) ([]byte, string, error) {
	b, err := os.ReadFile(cfg.Gateway.AgentBinary)
	if err != nil {
		return nil, "", fmt.Errorf("PREGO_AGENTGW_AGENT_BINARY: %w", err)
	}
	sum := sha256.Sum256(b)
	return b, hex.EncodeToString(sum[:]), nil
}

// agentDigest is the SHA-256 of the agent binary for hosts, read once: a process starts
// with one agent.
func (p *Process) agentDigest() (string, error) {
	p.agent.Do(func() { _, p.agent.digest, p.agent.err = agentBinary(p.cfg) })
	return p.agent.digest, p.agent.err
}

// bootRenderer renders user_data for this installation's hosts.
type bootRenderer struct {
	cfg         config.Config
	ca          *pki.Authority
	agentSHA256 string
}

func (r bootRenderer) RenderBoot(p activities.BootParams) (activities.Boot, error) {
	bundle, err := r.ca.Bundle(pki.Gateway)
	if err != nil {
		return activities.Boot{}, err
	}
	tags := p.Tags
	if tags == nil {
		tags = []string{}
	}
	out, err := cloudinit.Render(cloudinit.Input{
		Host: wire.HostConfig{
			ServerID: string(p.ServerID), Environment: r.cfg.Environment, Role: string(p.Role), Region: string(p.Region), Tags: tags,
			GatewayURL: r.cfg.Gateway.URL, GatewayServerName: gatewayName,
			AgentPort: server.AgentPort(p.Role, r.cfg.Worker.AgentPort), DockerPort: r.cfg.Worker.DockerPort, AgentSHA256: r.agentSHA256,
		},
		Token: p.Token, GatewayCAPEM: bundle, EgressCIDRs: r.cfg.Worker.EgressCIDRs, Volume: p.Volume,
		Issued: p.Issued.Unix(), Patience: int(r.cfg.Worker.BootPatience.Seconds()), Limit: r.cfg.Worker.UserDataLimit,
	})
	return activities.Boot{UserData: out.UserData, StageTwo: out.StageTwo, StageTwoSHA256: out.StageTwoSHA256}, err
}

// importer issues the bootstrap credentials of an existing server.
type importer struct {
	db     *store.Store
	tokens *token.Deriver
	boot   bootRenderer
	ttl    time.Duration
}

func (i importer) IssueImport(ctx context.Context, s server.Server) (string, error) {
	id := i.tokens.NewTokenID()
	issued, err := i.db.IssueToken(ctx, server.TokenIssue{
		TokenID: id, ServerID: s.ServerID, Attempt: s.Attempt, Purpose: server.PurposeImportExisting,
		Hash: i.tokens.Hash(i.tokens.Derive(id)), TTL: i.ttl,
	})
	if err != nil {
		return "", err
	}
	boot, err := i.boot.RenderBoot(activities.BootParams{
		ServerID: s.ServerID, Role: s.Role, Region: s.Region, Tags: s.Tags, Token: i.tokens.Derive(issued.TokenID), Issued: issued.IssuedAt,
	})
	return boot.UserData, err
}

func newImporter(p *Process, ca *pki.Authority) (importer, error) {
	deriver, err := token.NewDeriver(p.cfg.Worker.MasterKey)
	if err != nil {
		return importer{}, err
	}
	if err := ca.Need(nil, []pki.Purpose{pki.Gateway}); err != nil {
		return importer{}, err
	}
	digest, err := p.agentDigest()
	if err != nil {
		return importer{}, err
	}
	return importer{db: p.db, tokens: deriver, boot: bootRenderer{cfg: p.cfg, ca: ca, agentSHA256: digest}, ttl: p.cfg.Worker.BootstrapTokenTTL}, nil
}

const (
	freezePct = 20 // the share of servers falling silent together above which none is marked: the network fails, not they
	freezeMin = 10 // of a smaller fleet, two silent servers are that share

	orphanBreakerPct = 5 // the share of the fleet above which no unknown server is deleted: the database is the likelier error
	driftHosts       = 8 // servers whose containers a reconciliation checks: 100 servers within the hour
)

// buildActivities creates the steps with their adapters.
func buildActivities(ctx context.Context, p *Process, runs *workflows.Client) (*activities.Servers, *activities.Reconciler, error) {
	w := p.cfg.Worker
	catalog, err := w.Catalog()
	if err != nil {
		return nil, nil, err
	}
	if len(w.EgressCIDRs) == 0 {
		return nil, nil, fmt.Errorf("PREGO_EGRESS_CIDRS is required: the addresses from which hosts are called, for example 203.0.113.7/32")
	}
	deriver, err := token.NewDeriver(w.MasterKey)
	if err != nil {
		return nil, nil, err
	}
	ca, err := pki.Open(p.cfg.KeysDir, p.cfg.Environment)
	if err != nil {
		return nil, nil, err
	}
	if err := ca.Need(nil, []pki.Purpose{pki.Gateway}); err != nil {
		return nil, nil, err
	}
	digest, err := p.agentDigest()
	if err != nil {
		return nil, nil, err
	}
	project := sha256.Sum256([]byte(p.cfg.Hetzner.Token))
	budget, err := store.NewBudget(ctx, p.pool, "hetzner/"+hex.EncodeToString(project[:6]), 3600, 1)
	if err != nil {
		return nil, nil, err
	}
	h := p.cfg.Hetzner
	provider, err := hetzner.New(hetzner.Config{
		Endpoint: h.Endpoint, Token: h.Token, Environment: p.cfg.Environment, Timeout: h.Timeout, Poll: h.Poll, Simulated: h.Simulated,
		Budget: budget, Log: p.log.Named("hetzner"), Metrics: p.reg, Transport: p.provider,
		MayDelete: p.db.MayDelete, Org: orgOfStep,
	})
	if err != nil {
		return nil, nil, err
	}
	infra := map[prego.InfraProviderID]activities.Infra{provider.ID(): provider}
	metrics := activities.NewMetrics(p.reg)
	settings := activities.Settings{
		Environment: p.cfg.Environment, BootstrapTokenTTL: w.BootstrapTokenTTL, MaxRetries: w.MaxRetries,
		CapacityWait: w.CapacityWait, FleetWait: w.FleetWait, CapacityPoll: w.CapacityPoll, CreateBackoff: w.CreateBackoff, ContainerTimeout: w.ContainerTimeout,
		AmbiguousGrace: w.AmbiguousGrace, EgressCIDRs: w.EgressCIDRs, NetworkRange: w.Networks(), Ports: server.AgentPorts(w.AgentPort, w.DockerPort),
	}
	hosts, err := newContainers(p, ca)
	if err != nil {
		return nil, nil, err
	}
	servers := &activities.Servers{
		Store: p.db, Infra: infra, Catalog: catalog, Tokens: deriver, Boot: bootRenderer{cfg: p.cfg, ca: ca, agentSHA256: digest}.RenderBoot,
		Containers: hosts,
		Runs:       runs, Settings: settings, Metrics: metrics, Log: p.log, Hooks: p.hooks,
		Egress: p.db.Egress,
	}
	fleet := &activities.Reconciler{
		Store: p.db, Infra: infra, Runs: runs, Environment: p.cfg.Environment,
		Firewall: server.FirewallParams{Environment: p.cfg.Environment, Name: activities.FirewallName(p.cfg.Environment), CIDRs: w.EgressCIDRs, Ports: settings.Ports},
		Egress:   p.db.Egress,
		Rules:    activities.OrphanRules{MinAge: w.OrphanAge, MaxPerRun: w.OrphanMaxPerRun, BreakerPct: orphanBreakerPct, BreakerMin: 3},
		Grace:    w.AmbiguousGrace,
		Sweep:    server.SweepParams{DegradedAfter: w.DegradedAfter, FailedAfter: w.FailedAfter, FreezePct: freezePct, FreezeMin: freezeMin},
		Check:    servers.CheckContainers, DriftHosts: driftHosts,
		Org: &activities.OrgResources{
			Store: p.db, Infra: map[prego.InfraProviderID]activities.OrgInfra{provider.ID(): provider}, Runs: runs, Environment: p.cfg.Environment,
			CapacityWait: w.CapacityWait, CapacityPoll: w.CapacityPoll, Log: p.log.Named("fleet"), Hooks: p.hooks,
		},
		Metrics: metrics, Log: p.log.Named("fleet"),
	}
	return servers, fleet, nil
}

// adviceWithin is how long a placement waits for its adviser; without advice it decides by itself.
const adviceWithin = 500 * time.Millisecond

// reserveFor is how long a claimed site is reserved without a sign of its workflow, whose longest step takes less.
func reserveFor(p *Process) time.Duration { return p.cfg.Pace.Of(30 * time.Minute) }

// newPlacer creates the placer, for worker and API.
func newPlacer(p *Process, runs *workflows.Client) (*placer.Placer, error) {
	policy, err := p.cfg.Placement.Policy()
	if err != nil {
		return nil, err
	}
	var adviserOf placer.Adviser
	if a := p.cfg.Placement; a.AdviserURL != "" {
		adviserOf = adviser.HTTP{URL: a.AdviserURL, Token: a.AdviserToken, Client: &http.Client{}}
	}
	return &placer.Placer{
		Adviser: adviserOf, AdviceWithin: adviceWithin,
		Store: p.db, Policy: policy, SiteDomain: p.cfg.Tenants.SiteDomain, ReserveFor: reserveFor(p), Metrics: placer.NewMetrics(p.reg), Version: p.version,
		Wake: func(ctx context.Context, t tenant.Tenant) {
			if err := runs.ResumeTenant(ctx, t); err != nil {
				p.log.Warn("the run of a placed tenant is not started; the sweep starts it", zap.String("tenant_id",
					string(t.TenantID)), zap.Error(err))
			}
		},
	}, nil
}

// agentPorts finds the port of a server's agent by the server's role, which never changes.
func agentPorts(p *Process) func(ctx context.Context, serverID prego.ServerID) int {
	configured := p.cfg.Worker.AgentPort
	if server.AgentPort(prego.RoleEdge, configured) == configured {
		return nil
	}
	var known sync.Map
	return func(ctx context.Context, serverID prego.ServerID) int {
		if port, ok := known.Load(serverID); ok {
			return port.(int)
		}
		role, err := p.db.ServerRole(ctx, serverID)
		if err != nil {
			return configured
		}
		port := server.AgentPort(role, configured)
		known.Store(serverID, port)
		return port
	}
}

// newAgents reaches the agents on hosts.
func newAgents(p *Process, ca *pki.Authority) (*agentclient.Client, error) {
	cfg := p.cfg
	if err := ca.Need([]pki.Purpose{pki.ExecClient}, []pki.Purpose{pki.AgentServer}); err != nil {
		return nil, err
	}
	keys, err := token.OpenSigner(cfg.KeysDir, token.UseExec)
	if err != nil {
		return nil, err
	}
	return agentclient.New(agentclient.Config{
		Trace: p.traces.Call,
		TLS:   ca.ExecClientTLS(), Tokens: token.NewExec(keys, p.epoch.Load), Port: cfg.Worker.AgentPort, PortOf: agentPorts(p),
		CheckAddr: func(addr string) error { return hetzner.CheckHostAddr(addr, cfg.Hetzner.Simulated) },
	}), nil
}

// newPeers creates what keeps who may reach which server.
func newPeers(p *Process, servers *activities.Servers, ca *pki.Authority) (*activities.Peers, error) {
	agents, err := newAgents(p, ca)
	if err != nil {
		return nil, err
	}
	w := p.cfg.Worker
	return &activities.Peers{
		Store: p.db, Agents: agents, Egress: w.EgressCIDRs, Grace: p.cfg.Pace.Of(10 * time.Minute), Firewalls: activities.Firewalls(servers), Log: p.log.Named("peers"),
		Ports: func(role prego.Role) (agent, docker int) { return server.AgentPort(role, w.AgentPort), w.DockerPort },
	}, nil
}

// buildTenants creates the steps of tenants.
func buildTenants(p *Process, runs *workflows.Client) (*activities.Tenants, error) {
	placer, err := newPlacer(p, runs)
	if err != nil {
		return nil, err
	}
	ca, err := pki.Open(p.cfg.KeysDir, p.cfg.Environment)
	if err != nil {
		return nil, err
	}
	agents, err := newAgents(p, ca)
	if err != nil {
		return nil, err
	}
	catalog, err := p.cfg.Worker.Catalog()
	if err != nil {
		return nil, err
	}
	passwords, err := token.NewDeriver(p.cfg.Worker.MasterKey)
	if err != nil {
		return nil, err
	}
	t := p.cfg.Tenants
	lost, err := p.cfg.Backups.LostPlans()
	if err != nil {
		return nil, err
	}
	stepFor := 2 * t.SiteTimeout // a step on a host, with a second try
	return &activities.Tenants{
		Passwords: passwords,
		Store:     p.db, FleetTags: p.db.FleetTags, Placer: placer, Runs: runs, Metrics: activities.NewTenantMetrics(p.reg), Log: p.log.Named("tenants"), Hooks: p.hooks,
		Bench: &activities.Commander{Agents: agents, Audit: p.db, Hooks: p.hooks},
		Settings: activities.TenantSettings{
			Environment: p.cfg.Environment, SiteDomain: t.SiteDomain, Image: catalog.ImageFor(server.Spec{}), Periods: t.Periods(),
			CapacityWait: t.CapacityWait, CapacityPoll: t.CapacityPoll, SiteTimeout: t.SiteTimeout, CommandTimeout: t.CommandTimeout, AppTimeout: t.SiteTimeout,
			StepTimeout: stepFor, ReserveFor: reserveFor(p), FailureMemory: t.FailureMemory,
			RefillParallel:  2,  // builds of a host; each needs a core
			ScaleOutMaxRun:  10, // servers of a round: a wrong demand is seen before the next one
			ScaleOutMaxRole: t.ScaleOutMaxRole, ThresholdPct: t.ThresholdPct, OrphanQuiet: t.OrphanQuiet,
			Storage: t.Storage(), StorageEvery: t.StorageEvery,
			StorageBatch: 500, StorageHosts: 8, // 30,000 sites an hour, and 8 connections
			Losses: activities.LossSettings{Plans: lost, AtOnce: 16, For: p.cfg.Backups.UploadFor + stepFor}, // 16 restores fill the long queue by a quarter
		},
	}, nil
}

// buildGroups creates the steps of process groups.
func buildGroups(p *Process, runs *workflows.Client, engine activities.InstanceEngine) *activities.Groups {
	w := p.cfg.Workloads
	return &activities.Groups{
		Store: p.db, Engine: engine, Runs: runs, Metrics: activities.NewGroupMetrics(p.reg), Log: p.log.Named("groups"), Hooks: p.hooks,
		Settings: activities.GroupSettings{Retry: w.Retry, Quiet: w.Quiet, Hosts: 8}, /* whose instances a sweep checks: all of a large region within ten minutes */
	}
}

// buildMaintenances creates the steps that empty servers.
func buildMaintenances(p *Process, runs *workflows.Client, servers *activities.Servers) *activities.Maintenances {
	w := p.cfg.Workloads
	d := &activities.Maintenances{
		Store: p.db, Runs: runs, Limits: server.MaintenanceLimits{Servers: w.DrainServers, Instances: 10, Tenants: p.cfg.Moves.Tenants}, Quiet: w.Quiet,
		Reboot: map[prego.InfraProviderID]activities.Rebooter{}, LeaveDNS: servers.LeaveDNS, Capacity: servers.Capacity,
		Log: p.log.Named("maintenances"), Hooks: p.hooks,
		NewMoveID: func() prego.MoveID {
			return prego.MoveID("mov-" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12])
		},
	}
	for _, infra := range servers.Infra {
		if r, ok := infra.(activities.Rebooter); ok {
			d.Reboot[infra.ID()] = r
		}
	}
	return d
}

// newMoves creates the steps that move tenants.
func newMoves(p *Process, runs *workflows.Client, tenants *activities.Tenants, backups *activities.Backups) *activities.Moves {
	m := p.cfg.Moves
	return &activities.Moves{
		Store: p.db, Tenants: tenants, Backups: backups, Runs: runs, Metrics: activities.NewMoveMetrics(p.reg), Log: p.log.Named("moves"),
		Settings: activities.MoveSettings{CopyFor: p.cfg.Backups.UploadFor, FreezeFor: m.FreezeFor, FreezeSlack: p.cfg.Pace.Of(10 * time.Minute), Settle: edgeSettle, Grace: m.Grace, PassOn: m.PassOn, Quiet: p.cfg.Workloads.Quiet},
	}
}

// mountVolumes attaches a group's volumes to the server of its instance.
func mountVolumes(org *activities.OrgResources) activities.VolumeAttacher {
	return func(ctx context.Context, groupID prego.GroupID, serverID prego.ServerID) ([]string, error) {
		mounts, err := org.AttachGroupVolumes(ctx, activities.GroupVolumesInput{GroupID: groupID, ServerID: serverID})
		binds := make([]string, 0, len(mounts))
		for _, m := range mounts {
			binds = append(binds, m.HostPath+":"+m.MountPath)
		}
		return binds, err
	}
}

// certificateKeys opens the private keys of certificates for edges.
func certificateKeys(p *Process) (func(tenant.ServedCertificate) ([]byte, error), error) {
	sealing, err := token.OpenSealing(p.cfg.KeysDir, token.SealCertificates)
	if err != nil {
		return nil, err
	}
	return func(c tenant.ServedCertificate) ([]byte, error) {
		return sealing.Open(tenant.CertificateKeyFor(c.CertificateID), c.KeyID, c.SealedKey)
	}, nil
}

// edgeSettle is how long requests that were under way have to end after an edge has left a host out. For half of it an
// edge keeps connections that still carry requests to former places.
const edgeSettle = time.Second

// newEdges creates the steps that wait for edges.
func newEdges(p *Process) *activities.Edges {
	return &activities.Edges{Store: p.db, Within: p.cfg.Edge.Within, Settle: edgeSettle, Log: p.log.Named("edges")}
}

// gatewayName is the name in the gateway's certificate, at every address.
const gatewayName = "agentgw.prego.internal"

// leastTokenTTL is the shortest life of an agent's token: agents renew at half of it, with a heartbeat.
const leastTokenTTL = 2 * time.Minute

// Gateway wires an agent gateway, with the TLS that it serves.
func (p *Process) Gateway(runs *workflows.Client) (*agentgw.Gateway, *tls.Config, error) {
	ca, err := pki.Open(p.cfg.KeysDir, p.cfg.Environment)
	if err != nil {
		return nil, nil, err
	}
	if err := ca.Need([]pki.Purpose{pki.Gateway, pki.AgentClient, pki.AgentServer, pki.DockerServer, pki.ServiceServer, pki.ServiceClient},
		[]pki.Purpose{pki.Gateway, pki.AgentClient, pki.ExecClient, pki.DockerClient, pki.ServiceServer, pki.ServiceClient}); err != nil {
		return nil, nil, err
	}
	agentKeys, err := token.OpenSigner(p.cfg.KeysDir, token.UseAgent)
	if err != nil {
		return nil, nil, err
	}
	execRing, err := token.OpenKeyring(p.cfg.KeysDir, token.UseExec)
	if err != nil {
		return nil, nil, err
	}
	execKeys, err := execRing.PublicPEM()
	if err != nil {
		return nil, nil, err
	}
	peersRing, err := token.OpenSigner(p.cfg.KeysDir, token.UsePeers)
	if err != nil {
		return nil, nil, err
	}
	peers, err := token.NewPeers(peersRing)
	if err != nil {
		return nil, nil, err
	}
	binary, digest, err := agentBinary(p.cfg)
	if err != nil {
		return nil, nil, err
	}
	openKey, err := certificateKeys(p)
	if err != nil {
		return nil, nil, err
	}
	g := p.cfg.Gateway
	gw := agentgw.New(agentgw.Deps{
		Store: p.db, Signals: runs, CA: ca, Trusted: p.trust, Epoch: p.epoch.Load, Tokens: token.NewAgents(agentKeys), Peers: peers,
		Settings: agentgw.Settings{
			Environment: p.cfg.Environment, CheckSource: g.CheckSource, Heartbeat: g.Heartbeat, TokenTTL: max(leastTokenTTL, p.cfg.Pace.Of(time.Hour)), CertTTL: g.CertTTL,
			Flush: g.Flush, FlushRows: 500, OTLPEndpoint: g.OTLPEndpoint, AgentBinary: binary, AgentSHA256: digest, ExecKeys: execKeys, AgentReleases: g.AgentReleases,
			ClockTolerance: 20 * time.Second, // below the 30 s that tokens tolerate
			Edge:           edge.Settings{MaxBody: p.cfg.Edge.MaxBody, HSTS: int(p.cfg.Edge.HSTS.Seconds())}, Follow: p.follow,
		},
		Log: p.log, Metrics: p.reg, OpenKey: openKey, Unavailable: store.Unavailable,
	})
	return gw, ca.GatewayTLS(gatewayName), nil
}

// orgOfStep is the fairness key of a step's run (workflows.Client gives each run of an org its key).
func orgOfStep(ctx context.Context) string {
	if !activity.IsActivity(ctx) {
		return ""
	}
	return activity.GetInfo(ctx).Priority.FairnessKey
}
