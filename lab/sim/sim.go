// Package sim is a simulated Hetzner Cloud: an HTTP server with the endpoints that the control plane uses and their
// neighbours, and hosts that boot from their user_data and run the real agent. Faults are injected over HTTP, and a
// billing ledger shows leftovers. contributing/simulator.md describes it for users.
package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Config of a simulated cloud.
type Config struct {
	Listen   string // host:port; port 0 takes any
	StateDir string
	Token    string // the API token that is accepted
	// DNS is where the zones are served over DNS, host:port; "" means a free port of
	// 127.0.0.1.
	DNS string
	// Zones are made at the start, as by hand.
	Zones []string
	// AgentPort and DockerPort are the ports of hosts; every host has its own address.
	AgentPort, DockerPort int
	// RealDocker gives every host its own dockerd. It needs root and dockerd, and
	// StandIn: the static program that runs in the containers, this one if empty.
	RealDocker bool
	StandIn    string
	// Machines is the directory of machines' roots, as created by
	// tools/machine-root.sh. If set, hosts are machines, which need root; otherwise
	// they are processes.
	Machines string
	// Images is a directory of images that machines can pull besides the stand-in, as
	// built by make images; "" for none.
	Images string
	// MachineDiskGB is the size of a machine's disk; 0 means 10.
	MachineDiskGB int
	// LoopbackNetworks allows private networks in 127.0.0.0/8, so that the private addresses
	// of process hosts can be reached. It is not for machines.
	LoopbackNetworks bool
	Profile          Profile
	Limits           Limits
	// RunAgent runs a verb of the agent, instead of its program, for hosts that it returns a function for. The agent
	// itself fits into a process a thousand times.
	RunAgent func(name string) func(ctx context.Context, verb, root, addr string) error
	// Guest runs a host in this program until ctx ends, which cuts its power, instead of as
	// processes. It is for clouds that don't listen (Within).
	Guest func(ctx context.Context, g Guest)
	// Programs are programs of this machine, by the name of the image whose containers run
	// them on process hosts: caddy, haproxy. Containers of other images run nothing. With
	// programs, process hosts have no IPv6 address.
	Programs map[string]string
	// UpdateTrial is how long an agent that process hosts try has until it is heard of; 0: their
	// agents are not updated.
	UpdateTrial time.Duration
	// RatePerHour is the project's requests per hour, refilled evenly; 0 means 3600.
	RatePerHour int
	Log         *zap.Logger
}

// Profile has the durations of actions. The zero Profile takes no time.
type Profile struct {
	Action  time.Duration // an action
	Boot    time.Duration // running → the first cloud-init stage
	Stage   time.Duration // each cloud-init stage
	Restart time.Duration // before an agent that ended is restarted

	// Commands of bench. On a real host a new site takes 30 to 90 s and an app some
	// 10 to 60 s; a rename is a move of a directory, and then clear-cache.
	BenchNewSite, BenchRename, BenchInstallApp time.Duration
}

// DefaultProfile is slow enough for people to follow.
func DefaultProfile() Profile {
	return Profile{
		Action: 800 * time.Millisecond, Boot: time.Second, Stage: 300 * time.Millisecond, Restart: 5 * time.Second,
		BenchNewSite: 2 * time.Second, BenchRename: 150 * time.Millisecond, BenchInstallApp: time.Second,
	}
}

// Limits of the account; 0 means the default.
type Limits struct {
	Servers         int // 100
	DedicatedCores  int // 5000
	Volumes         int // 100
	PrimaryIPs      int // 100, of unassigned ones
	FloatingIPs     int // 100
	PlacementGroups int // 50
	Firewalls       int // 50
	Networks        int // 50
}

// Sim is a running cloud.
type Sim struct {
	cfg    Config
	log    *zap.Logger
	server *http.Server
	ln     net.Listener
	ctx    context.Context // of hosts; ends with Close
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	st     state
	hosts  map[int64]*slot // of the servers whose power is on
	last   map[int64]*slot // of the servers whose power ever was
	roots  []rootChoice
	faults []*Fault
	// benchSeq orders bench faults.
	benchSeq int
	rate     bucket
	calls    map[string]int // by route
	dirty    chan struct{}
	agents   *agentCache
	base     [2]byte  // of process hosts' addresses
	net      *network // of machines; nil when hosts are processes
	images   *registry
	dns      *zoneDNS

	benchOnce    sync.Once
	benchDir     string // of the stand-in for bench
	benchErr     error
	servicesOnce sync.Once
	services     *services
	servicesErr  error
}

// New creates a cloud with the state in StateDir, if any.
func New(cfg Config) (*Sim, error) {
	if cfg.StateDir == "" || cfg.Token == "" {
		return nil, errors.New("sim: StateDir and Token are required")
	}
	if cfg.LoopbackNetworks && cfg.Machines != "" {
		return nil, errors.New("sim: machines have separate networks: LoopbackNetworks is for process hosts")
	}
	if cfg.RatePerHour == 0 {
		cfg.RatePerHour = 3600
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&cfg.Limits.Servers, 100)
	def(&cfg.Limits.DedicatedCores, 5000)
	def(&cfg.Limits.Volumes, 100)
	def(&cfg.Limits.PrimaryIPs, 100)
	def(&cfg.Limits.FloatingIPs, 100)
	def(&cfg.Limits.PlacementGroups, 50)
	def(&cfg.Limits.Firewalls, 50)
	def(&cfg.Limits.Networks, 50)
	if cfg.DNS == "" {
		cfg.DNS = "127.0.0.1:0"
	}
	def(&cfg.AgentPort, 8443)
	def(&cfg.DockerPort, 2376)
	def(&cfg.MachineDiskGB, 10)
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	for _, dir := range []string{"hosts", "volumes"} {
		if err := os.MkdirAll(filepath.Join(cfg.StateDir, dir), 0o755); err != nil {
			return nil, fmt.Errorf("sim: %w", err)
		}
	}
	s := &Sim{cfg: cfg, log: cfg.Log, hosts: make(map[int64]*slot), last: make(map[int64]*slot), calls: make(map[string]int), dirty: make(chan struct{}, 1)}
	s.rate = bucket{capacity: float64(cfg.RatePerHour), tokens: float64(cfg.RatePerHour), at: time.Now()}
	s.agents = &agentCache{dir: filepath.Join(cfg.StateDir, "agents")}
	s.base = randomBase()
	if err := s.withdraw(); err != nil { // faults end with the process
		return nil, fmt.Errorf("sim: %w", err)
	}
	if err := s.st.load(s.statePath()); err != nil {
		return nil, err
	}
	return s, nil
}

// Start listens and boots the hosts of an earlier run again.
func (s *Sim) Start() error {
	ln, err := net.Listen("tcp", s.cfg.Listen) //nolint:noctx // ends with Close
	if err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	s.ln = ln
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := errors.Join(s.haveZones(), s.serveZones()); err != nil {
		s.stop()
		return errors.Join(err, ln.Close())
	}
	if s.cfg.Machines != "" {
		if err := s.startMachines(); err != nil {
			s.stop()
			s.dns.close()
			return errors.Join(err, ln.Close())
		}
	}
	s.server = &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
	s.work.Add(2)
	go func() { defer s.work.Done(); _ = s.server.Serve(ln) }()
	go func() { defer s.work.Done(); s.saveLoop() }()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, srv := range s.st.Servers {
		s.resume(srv)
	}
	return nil
}

// Close stops everything that runs here, and saves the state.
func (s *Sim) Close() {
	s.stop()
	_ = s.server.Close()
	s.dns.close()
	s.work.Wait() // hosts are off then
	if s.net != nil {
		if err := s.net.close(); err != nil {
			s.log.Error("machines left something behind", zap.Error(err))
		}
	}
	if s.services != nil {
		s.services.close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.st.save(s.statePath()); err != nil {
		s.log.Error("state not saved", zap.Error(err))
	}
}

// URL is the base of the API.
func (s *Sim) URL() string { return "http://" + s.ln.Addr().String() + "/v1" }

// ControlURL is the base of the control endpoints.
func (s *Sim) ControlURL() string { return "http://" + s.ln.Addr().String() + "/_sim" }

func (s *Sim) statePath() string { return filepath.Join(s.cfg.StateDir, "state.json") }

// changed asks for a save. Call it with the lock held.
func (s *Sim) changed() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// saveLoop writes the state soon after it changed.
func (s *Sim) saveLoop() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.dirty:
		}
		s.mu.Lock()
		err := s.st.save(s.statePath())
		s.mu.Unlock()
		if err != nil {
			s.log.Error("state not saved", zap.Error(err))
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(25 * time.Millisecond):
		}
	}
}

// after runs f with the lock held once d has passed, unless the cloud is closed
// before.
func (s *Sim) after(d time.Duration, f func()) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		if d > 0 {
			t := time.NewTimer(d)
			defer t.Stop()
			select {
			case <-t.C:
			case <-s.ctx.Done():
				return
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ctx.Err() == nil {
			f()
		}
	}()
}

// pause waits; false when the cloud is closed before.
func (s *Sim) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
