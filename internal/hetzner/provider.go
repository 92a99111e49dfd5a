// Package hetzner creates, finds and destroys servers and their resources through the Hetzner Cloud API
// (direct-provisioning §1, path A).
//
// Creates are not idempotent there, but names are unique per project: a server's name is derived from its id, so of
// all creates, repeated or late, at most one succeeds, and its server can be found again.
package hetzner

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Config names the project and configures how to reach it.
type Config struct {
	Endpoint    string
	Token       string
	Environment string
	Timeout     time.Duration // of one request
	Poll        time.Duration // of the shared action poller
	Simulated   bool          // allows plain HTTP and local addresses
	Budget      Budget
	// Org is the org that a request is sent for, "" for none. Those that wait for the budget have their turn by org. It
	// may be nil.
	Org     func(context.Context) string
	Log     *zap.Logger           // may be nil
	Metrics prometheus.Registerer // may be nil
	// Transport sends requests; nil for a separate pool of connections.
	Transport http.RoundTripper
	// MayDelete is asked before anything is deleted.
	MayDelete Gate
}

// Gate decides whether a resource may be deleted.
type Gate func(ctx context.Context, provider prego.InfraProviderID, kind server.ResourceKind, id string) error

// Provider is one Hetzner project. It is safe for concurrent use.
type Provider struct {
	token       string
	environment string
	// read retries failed requests; write never does, since the library would send six POSTs for one create.
	read, write *hcloud.Client
	// deletions are polled apart from the other actions: they must complete even when the budget has nothing left for
	// polling.
	actions, deletions *actionPoller
	poll               time.Duration
	log                *zap.Logger
	gate               Gate
}

// New checks the configuration; it sends nothing.
func New(cfg Config) (*Provider, error) {
	u, err := url.Parse(cfg.Endpoint)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("HCLOUD_ENDPOINT %q is not a URL", cfg.Endpoint)
	}
	if u.Scheme != "https" && !cfg.Simulated {
		return nil, fmt.Errorf("HCLOUD_ENDPOINT %q must be https", cfg.Endpoint)
	}
	if cfg.Token == "" {
		return nil, fmt.Errorf("HCLOUD_TOKEN is required")
	}
	if cfg.Budget == nil {
		return nil, fmt.Errorf("hetzner: a request budget is required")
	}
	if cfg.MayDelete == nil {
		return nil, fmt.Errorf("hetzner: a gate before deletions is required")
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 32
	base.DialContext = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	var next http.RoundTripper = base
	if cfg.Transport != nil {
		next = cfg.Transport
	}
	client := &http.Client{
		Transport: newTransport(cfg, buffered{next: next, timeout: cfg.Timeout}),
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the API never redirects; the token goes nowhere else
		},
	}
	connect := func(retries int) *hcloud.Client {
		return hcloud.NewClient(
			hcloud.WithEndpoint(cfg.Endpoint), hcloud.WithToken(cfg.Token), hcloud.WithApplication("prego", ""),
			hcloud.WithHTTPClient(client),
			hcloud.WithRetryOpts(hcloud.RetryOpts{MaxRetries: retries, BackoffFunc: hcloud.ExponentialBackoffWithOpts(
				hcloud.ExponentialBackoffOpts{Base: 200 * time.Millisecond, Multiplier: 2, Cap: 5 * time.Second, Jitter: true})}),
		)
	}
	p := &Provider{
		token: cfg.Token, environment: cfg.Environment, read: connect(3), write: connect(0), log: cfg.Log,
		poll: cmp.Or(max(cfg.Poll, 0), time.Second), gate: cfg.MayDelete,
	}
	p.actions, p.deletions = newActionPoller(p, LanePoll), newActionPoller(p, LaneDelete)
	return p, nil
}

// ID is the provider's id.
func (p *Provider) ID() prego.InfraProviderID { return prego.ProviderHetzner }

func (p *Provider) mayDelete(ctx context.Context, kind server.ResourceKind, id string) error {
	return p.gate(ctx, p.ID(), kind, id)
}

// simulatedMachines is the network of the simulator's machines; its light hosts are on loopback.
var simulatedMachines = netip.MustParsePrefix("10.99.0.0/16")

// CheckHostAddr rejects addresses that a provider's server can't have. Otherwise a forged address could make the
// control plane call into its own network.
func CheckHostAddr(addr string, simulated bool) error {
	if simulated {
		ip, err := netip.ParseAddr(addr)
		if err != nil {
			return fmt.Errorf("host address %q is not an IP address", addr)
		}
		ip = ip.Unmap()
		if !ip.IsLoopback() && !simulatedMachines.Contains(ip) {
			return fmt.Errorf("host address %s: simulated hosts are on loopback or in %s", ip, simulatedMachines)
		}
		return nil
	}
	if err := prego.CheckPublicAddress(addr); err != nil {
		return fmt.Errorf("host address %w", err)
	}
	return nil
}

func parseID(id string) (int64, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil || n <= 0 {
		return 0, infraError(server.InfraPermanent, "invalid_input", "%q is not a provider id", id)
	}
	return n, nil
}
