// Package activities holds the steps that workflows call, a file per concern. Each step
// may run twice, or die after its effect: everything it does is either a conditional
// write or finds what it already did.
//
// The interfaces here are for the outside world; app injects the adapters.
package activities

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// Infra is a cloud (direct-provisioning §7). Every error that it returns is a
// *server.InfraError.
type Infra interface {
	ID() prego.InfraProviderID
	CreateServer(ctx context.Context, p server.CreateParams) (server.Handle, error)
	LabelPrimaryIPs(ctx context.Context, h server.Handle, labels map[string]string) error
	AwaitRunning(ctx context.Context, h server.Handle, beat func(status string)) (server.Handle, error)
	FindServers(ctx context.Context, serverID prego.ServerID) ([]server.Handle, error)
	GetServer(ctx context.Context, providerServerID prego.ServerID) (server.Handle, error)
	LabelServer(ctx context.Context, providerServerID string, labels map[string]string) error
	DestroyServer(ctx context.Context, providerServerID prego.ServerID) error
	PowerOff(ctx context.Context, providerServerID prego.ServerID) error
	EnsureFirewall(ctx context.Context, p server.FirewallParams) (string, error)
	EnsurePlacementGroup(ctx context.Context, environment, name string, role prego.Role) (string, error)
	EnsureNetwork(ctx context.Context, p server.NetworkParams) (id, ipRange string, err error)
	AttachServer(ctx context.Context, providerServerID, providerNetworkID string) (address string, err error)
	EnsureVolume(ctx context.Context, p server.VolumeParams) (string, error)
	ListOwned(ctx context.Context) ([]server.OwnedResource, error)
	protection
}

// TokenSource makes reproducible bootstrap tokens: the same id gives the same token.
type TokenSource interface {
	NewTokenID() string
	Derive(tokenID string) (raw string)
	Hash(raw string) []byte
}

// BootParams are the inputs of a host's user_data. Token is secret.
type BootParams struct {
	ServerID prego.ServerID
	Role     prego.Role
	Region   prego.Region
	Tags     []string
	Token    string
	Issued   time.Time // when Token was
	Volume   bool      // a data volume is attached
}

// Boot is a rendered user_data and, if that alone would be too large, the archive that
// the host fetches as its second stage.
type Boot struct {
	UserData       string
	StageTwo       []byte
	StageTwoSHA256 string
}

// Settings are the numbers that the steps and workflows of servers use.
type Settings struct {
	Environment       string
	BootstrapTokenTTL time.Duration
	MaxRetries        int // new servers after the first one failed
	CapacityWait      time.Duration
	FleetWait         time.Duration // CapacityWait of a fleet's server, which is then planned in another region
	CapacityPoll      time.Duration
	CreateBackoff     time.Duration // delay before the second of three create calls; doubles
	ContainerTimeout  time.Duration
	AmbiguousGrace    time.Duration // how long a create of unknown outcome may still complete
	EgressCIDRs       []string
	NetworkRange      string // source of private networks; "" for none
	Ports             []int  // that the firewall opens to EgressCIDRs
}

// Servers are the steps in the life of a server.
type Servers struct {
	Store   *store.Store
	Infra   map[prego.InfraProviderID]Infra
	Catalog server.Catalog
	Tokens  TokenSource
	// Boot renders what a new host runs at its first boot.
	Boot       func(BootParams) (Boot, error)
	Containers Containers
	Runs       Runs
	Settings   Settings
	Metrics    *Metrics
	Log        *zap.Logger
	// Capacity is called when a server becomes usable; may be nil.
	Capacity func(ctx context.Context, serverID prego.ServerID)
	// Egress is the control plane's addresses, including processes with other settings; nil takes
	// Settings.EgressCIDRs alone.
	Egress func(ctx context.Context) (server.Egress, error)
	// LeaveDNS takes a server's addresses out of the DNS before they are given back to the
	// provider, and fails until no resolver can have them; nil does nothing.
	LeaveDNS func(ctx context.Context, serverID prego.ServerID) error
	Hooks
}

func (a *Servers) infra(id prego.InfraProviderID) (Infra, error) {
	p, ok := a.Infra[id]
	if !ok {
		return nil, permanentError(ErrTypePermanent, "this worker has no adapter for provider "+string(id), nil)
	}
	return p, nil
}

// Metrics of the steps of servers.
type Metrics struct {
	Outcomes *prometheus.CounterVec   // by role and outcome
	Seconds  *prometheus.HistogramVec // request to active, by role, location and image
	Cleanup  prometheus.Counter       // clean-ups that gave up, left to the reconciler
	Orphans  *prometheus.CounterVec   // orphans destroyed, by kind
	Breaker  prometheus.Gauge         // 1 while the reconciler refuses to destroy
	Frozen   prometheus.Gauge         // 1 while the sweep refuses to mark agents
	Awaiting prometheus.Counter       // servers that had to wait for capacity
	Silent   *prometheus.CounterVec   // agents marked, by new status
	Drift    *prometheus.CounterVec   // containers that differ from their declaration, by kind
	Usage    prometheus.Gauge         // orgs whose quota counters were wrong when last compared
	// ImageFallbacks counts golden images that the provider did not have; may be nil.
	ImageFallbacks prometheus.Counter
}

// NewMetrics registers the metrics of the steps.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		Outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_provisionings_total", Help: "Provisionings ended, by outcome."}, []string{"role", "outcome"}),
		Seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prego_provision_seconds", Help: "Seconds from the request to an active server, first generation.",
			Buckets: []float64{1, 2, 5, 10, 20, 30, 45, 60, 75, 90, 105, 120, 150, 180, 300, 600, 1800},
		}, []string{"role", "location", "image"}),
		Cleanup:  prometheus.NewCounter(prometheus.CounterOpts{Name: "prego_cleanups_incomplete_total", Help: "Clean-ups given up and left to the reconciler."}),
		Orphans:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_orphans_destroyed_total", Help: "Things without an owner destroyed, by kind."}, []string{"kind"}),
		Breaker:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "prego_reconcile_breaker_open", Help: "1 while the reconciler refuses to destroy."}),
		Frozen:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "prego_sweep_frozen", Help: "1 while too many agents are silent at the same time, so that none is marked."}),
		Awaiting: prometheus.NewCounter(prometheus.CounterOpts{Name: "prego_awaiting_capacity_total", Help: "Servers that had to wait for stock or quota."}),
		Silent:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_agents_silent_total", Help: "Agents marked as silent, by new status."}, []string{"status"}),
		Drift:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prego_container_drift_total", Help: "Containers found not to be as declared, by kind."}, []string{"kind"}),
		Usage:    prometheus.NewGauge(prometheus.GaugeOpts{Name: prego.MetricOrgQuotaDrift, Help: "Orgs whose quota counters differed from their rows when they were last compared."}),
	}
	reg.MustRegister(m.Outcomes, m.Seconds, m.Cleanup, m.Orphans, m.Breaker, m.Frozen, m.Awaiting, m.Silent, m.Drift, m.Usage)
	// A series that starts at 1 has not increased, so the first one would raise no
	// alert.
	for _, role := range prego.Roles() {
		for _, reason := range []prego.Reason{
			prego.ReasonFailedCreate, prego.ReasonFailedBoot, prego.ReasonFailedHandshake, prego.ReasonClockSkew, prego.ReasonFailedBootstrap,
			prego.ReasonFailedNoHeartbeat, prego.ReasonFailedContainer, prego.ReasonFailedCapacity, prego.ReasonFailedInternal,
		} {
			m.Outcomes.WithLabelValues(string(role), string(reason))
		}
	}
	for _, kind := range server.ResourceKinds() {
		m.Orphans.WithLabelValues(string(kind))
	}
	for _, status := range []server.AgentStatus{server.AgentDegraded, server.AgentDisconnected} {
		m.Silent.WithLabelValues(string(status))
	}
	return m
}
