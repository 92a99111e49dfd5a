package sim

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego/agent/wire"
)

// host is a machine that runs: a directory for its disk, an address of its own,
// and the agent as processes: the one that faces the network, and the one that runs
// commands.
type host struct {
	sim   *Sim
	id    int64
	name  string
	addr  string
	dir   string
	user  string // user_data
	fresh bool   // cloud-init has not run yet
	plan  hostFaults
	log   *zap.Logger

	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	procs  map[string]*exec.Cmd // by verb of the agent's program
	exits  int
	phase  string
	docker *docker
}

// hostFaults are decided once, at boot.
type hostFaults struct {
	noCloudInit, withoutAgent, stopHeartbeats, duplicate, containersFail bool
}

// HostInfo is what /_sim/hosts shows.
type HostInfo struct {
	ID       int64  `json:"id"`
	Name     string `json:"name"`
	Addr     string `json:"addr"`
	Phase    string `json:"phase"`
	AgentPID int    `json:"agent_pid"` // 0 when there is none
	ExecPID  int    `json:"exec_pid"`  // of the process that runs commands
	Exits    int    `json:"agent_exits"`
	Root     string `json:"root"`
}

// Hosts lists the machines that run.
func (s *Sim) Hosts() []HostInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []HostInfo{}
	for _, h := range s.hosts {
		h.mu.Lock()
		info := HostInfo{ID: h.id, Name: h.name, Addr: h.addr, Phase: h.phase, Exits: h.exits, Root: h.root()}
		for verb, cmd := range h.procs {
			switch verb {
			case "exec":
				info.ExecPID = cmd.Process.Pid
			default:
				info.AgentPID = cmd.Process.Pid
			}
		}
		h.mu.Unlock()
		out = append(out, info)
	}
	return out
}

// HostAction does something to a machine's agent: kill-agent (it is started
// again), stop-agent (it hangs), resume-agent; kill-exec, stop-exec and resume-exec
// do so to the process that runs commands.
func (s *Sim) HostAction(id int64, verb string) error {
	s.mu.Lock()
	h, ok := s.hosts[id]
	s.mu.Unlock()
	if !ok {
		return fmt.Errorf("there is no host %d", id)
	}
	do, what, _ := strings.Cut(verb, "-")
	sig, known := map[string]syscall.Signal{"kill": syscall.SIGKILL, "stop": syscall.SIGSTOP, "resume": syscall.SIGCONT}[do]
	if !known || (what != "agent" && what != "exec") {
		return errors.New("verb must be kill, stop or resume, and -agent or -exec")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	cmd := h.procs["exec"]
	if what == "agent" {
		if cmd = h.procs["run"]; cmd == nil {
			cmd = h.procs["bootstrap"]
		}
	}
	if cmd == nil {
		return fmt.Errorf("host %d has no %s running", id, what)
	}
	return cmd.Process.Signal(sig)
}

// boot starts a machine. Call it with the lock held.
func (s *Sim) boot(srv *server) {
	if _, running := s.hosts[srv.ID]; running {
		return
	}
	h := &host{
		sim: s, id: srv.ID, name: srv.Name, addr: srv.PublicNet.IPv4.IP, user: srv.UserData, fresh: !srv.Booted, phase: "booting", procs: make(map[string]*exec.Cmd),
		dir: filepath.Join(s.cfg.StateDir, "hosts", fmt.Sprint(srv.ID)), done: make(chan struct{}),
		log: s.log.With(zap.String("host", srv.Name), zap.Int64("id", srv.ID)),
	}
	has := func(kind string) bool { _, ok := s.hostFault(kind, srv.Name); return ok }
	h.plan = hostFaults{
		noCloudInit: has("no_cloud_init"), withoutAgent: has("boot_without_agent"), stopHeartbeats: has("stop_heartbeats"),
		duplicate: has("duplicate_bootstrap"), containersFail: has("container_start_fail"),
	}
	srv.Booted = true
	s.hosts[srv.ID] = h
	ctx, cancel := context.WithCancel(s.ctx)
	h.cancel = cancel
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		defer close(h.done)
		if err := h.live(ctx); err != nil && ctx.Err() == nil {
			h.log.Warn("host ended its boot", zap.Error(err))
			h.setPhase("failed: " + err.Error())
		}
		<-ctx.Done()
	}()
}

// resume brings a machine of an earlier run up again.
func (s *Sim) resume(srv *server) {
	switch srv.Status {
	case "running":
		s.boot(srv)
	case "initializing", "starting":
		srv.Status = "running"
		s.boot(srv)
	}
}

// halt turns a machine off. Call it with the lock held.
func (s *Sim) halt(srv *server) {
	if h, ok := s.hosts[srv.ID]; ok {
		delete(s.hosts, srv.ID)
		s.work.Add(1)
		go func() { defer s.work.Done(); h.shutdown() }()
	}
}

func (h *host) root() string { return filepath.Join(h.dir, "root") }

func (h *host) setPhase(p string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.phase = p
}

func (h *host) shutdown() {
	h.cancel()
	<-h.done
}

func (h *host) destroy() {
	h.shutdown()
	_ = os.RemoveAll(h.dir)
}

// live is a machine's life: cloud-init once, then the agent for as long as the
// machine runs.
func (h *host) live(ctx context.Context) error {
	if h.plan.noCloudInit {
		h.setPhase("running without cloud-init")
		return nil
	}
	if h.fresh {
		if err := sleep(ctx, h.sim.cfg.Profile.Boot); err != nil {
			return err
		}
		if err := h.cloudInit(ctx); err != nil {
			return err
		}
	}
	if err := h.installBench(); err != nil {
		return err
	}
	if h.plan.withoutAgent {
		h.setPhase("running without agent")
		return nil
	}
	if h.plan.duplicate {
		if err := h.stealToken(ctx); err != nil {
			return fmt.Errorf("duplicate bootstrap: %w", err)
		}
	}
	h.setPhase("bootstrapping")
	if err := h.runAgent(ctx, "bootstrap"); err != nil {
		return err
	}
	if err := h.startDocker(); err != nil {
		return err
	}
	defer h.docker.close()
	if h.plan.stopHeartbeats {
		h.setPhase("running with a silent agent")
		<-ctx.Done()
		return nil
	}
	h.setPhase("running")
	var executor sync.WaitGroup
	executor.Add(1)
	go func() {
		defer executor.Done()
		h.keepRunning(ctx, "exec", func() {})
	}()
	h.keepRunning(ctx, "run", func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.exits++
	})
	executor.Wait()
	return nil
}

// keepRunning starts a process of the agent again whenever it ends, as its unit
// does on a real host.
func (h *host) keepRunning(ctx context.Context, verb string, ended func()) {
	for ctx.Err() == nil {
		if err := h.runAgent(ctx, verb); err != nil && ctx.Err() == nil {
			h.log.Info("agent ended, starting it again", zap.String("verb", verb), zap.Error(err))
		}
		ended()
		if sleep(ctx, max(h.sim.cfg.Profile.Restart, 50*time.Millisecond)) != nil {
			return
		}
	}
}

// runAgent runs the real agent binary until it ends or the machine does.
func (h *host) runAgent(ctx context.Context, verb string) error {
	logFile, err := os.OpenFile(filepath.Join(h.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }()
	cmd := exec.Command(filepath.Join(h.root(), wire.AgentBinary), verb, "--root", h.root(), "--addr", h.addr) //nolint:gosec,noctx // the host's own agent; ended below
	cmd.Stdout, cmd.Stderr, cmd.Dir = logFile, logFile, h.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "GOMAXPROCS=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	ended := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent-death signal is bound to the thread
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		ended <- cmd.Wait()
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	h.mu.Lock()
	h.procs[verb] = cmd
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.procs, verb)
		h.mu.Unlock()
	}()
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the power goes off
		<-ended
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("prego-agent %s: %w", verb, err)
	}
	return nil
}

// Addresses: every host has one of its own on loopback, which stands for its
// public one.

func randomBase() [2]byte {
	var b [2]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("sim: no randomness: " + err.Error())
	}
	return [2]byte{16 + b[0]%230, b[1]}
}

// freeAddress finds an address whose ports are free: other clouds may be
// simulated on this machine.
func (s *Sim) freeAddress() string {
	used := make(map[string]bool, len(s.st.Servers))
	for _, srv := range s.st.Servers {
		used[srv.PublicNet.IPv4.IP] = true
	}
	for n := 0; ; n++ {
		k := int(s.st.NextID) + n
		addr := fmt.Sprintf("127.%d.%d.%d", s.base[0], (int(s.base[1])+k/250)%256, 1+k%250)
		if !used[addr] && portFree(addr, s.cfg.AgentPort) && portFree(addr, s.cfg.DockerPort) {
			return addr
		}
	}
}

func portFree(addr string, port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, fmt.Sprint(port))) //nolint:noctx // closed at once
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// agentCache keeps agents by digest, so that a hundred hosts fetch one once.
type agentCache struct {
	mu  sync.Mutex
	dir string
}

// install puts the agent with the given digest at target, fetching it when it is
// not here yet.
func (c *agentCache) install(target, digest string, fetch func() (io.ReadCloser, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	cached := filepath.Join(c.dir, digest)
	if _, err := os.Stat(cached); err != nil {
		if err := os.MkdirAll(c.dir, 0o755); err != nil {
			return err
		}
		body, err := fetch()
		if err != nil {
			return err
		}
		defer func() { _ = body.Close() }()
		if err := saveVerified(cached, digest, body); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	_ = os.Remove(target)
	return os.Link(cached, target)
}
