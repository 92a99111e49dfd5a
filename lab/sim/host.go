package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// host is what a server runs on. Between two runs it is off; its disk persists.
type host interface {
	// run boots the host, and returns when it is off: it was shut down, or ctx ended, which cuts its power. An error is
	// the reason why it could not be turned on.
	run(ctx context.Context) error
	// shutdown and restart ask the host's system, like pressed buttons.
	shutdown() error
	restart() error
	// signal sends a signal to a process of the host: agent, exec, or others that this
	// kind of host has.
	signal(what string, sig syscall.Signal) error
	info() HostInfo
	// attach and detach plug volumes, by id and file, into a host that may be running.
	attach(id int64, file string) error
	detach(id int64) error
	// connect, disconnect and readdress plug, unplug and change the addresses of an
	// interface in a private network, of a host that may be running.
	connect(nic privateNIC) error
	disconnect(network int64) error
	readdress(network int64, addresses []string) error
	consoleFile() string
	// erase deletes the disk of a host that is off.
	erase() error
	// snapshot copies the disk of a host that is off into dir, which is empty.
	snapshot(dir string) error
	// restore puts such a copy on the disk of a host that has never been on.
	restore(dir string) error
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

// slot is a host whose power is on, or was the last time.
type slot struct {
	host
	id   int64
	name string
	addr string
	cut  context.CancelFunc
	done chan struct{} // closed when it is off
}

const consoleName = "console.log"

func (s *Sim) hostDir(id int64) string {
	return filepath.Join(s.cfg.StateDir, "hosts", fmt.Sprint(id))
}

// newHost creates a server's host. Call it with the lock held.
func (s *Sim) newHost(srv *server, plan hostFaults) host {
	if s.net != nil {
		return s.newMachine(srv, plan)
	}
	if s.cfg.Guest != nil {
		return s.newGuestHost(srv, plan)
	}
	return s.newProcessHost(srv, plan)
}

// hostFaults are decided once, at boot.
type hostFaults struct {
	buildFails, noCloudInit, withoutAgent, stopHeartbeats, duplicate, containersFail bool
}

// planFaults decides which faults a boot has. Call it with the lock held.
func (s *Sim) planFaults(name string) hostFaults {
	has := func(kind string) bool { _, ok := s.hostFault(kind, name); return ok }
	return hostFaults{
		buildFails: has("image_build_fails"), noCloudInit: has("no_cloud_init"),
		withoutAgent: has("boot_without_agent"), stopHeartbeats: has("stop_heartbeats"),
		duplicate: has("duplicate_bootstrap"), containersFail: has("container_start_fail"),
	}
}

// Hosts lists the running hosts.
func (s *Sim) Hosts() []HostInfo {
	s.mu.Lock()
	slots := make([]*slot, 0, len(s.hosts))
	for _, h := range s.hosts {
		slots = append(slots, h)
	}
	s.mu.Unlock()
	out := make([]HostInfo, 0, len(slots))
	for _, h := range slots {
		info := h.info()
		info.ID, info.Name, info.Addr = h.id, h.name, h.addr
		out = append(out, info)
	}
	return out
}

func (s *Sim) slot(id int64) (*slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.hosts[id]
	if !ok {
		return nil, fmt.Errorf("there is no host %d", id)
	}
	return h, nil
}

// HostAction acts on a process of a host: kill-agent (it is restarted), stop-agent (it
// hangs), resume-agent; kill-exec, stop-exec and resume-exec do the same to the process
// that runs commands, and on machines -docker to dockerd.
func (s *Sim) HostAction(id int64, verb string) error {
	do, what, _ := strings.Cut(verb, "-")
	sig, known := map[string]syscall.Signal{
		"kill": syscall.SIGKILL, "stop": syscall.SIGSTOP,
		"resume": syscall.SIGCONT,
	}[do]
	if !known || (what != "agent" && what != "exec" && what != "docker") {
		return errors.New("verb must be kill, stop or resume, and -agent, -exec or -docker")
	}
	h, err := s.slot(id)
	if err != nil {
		return err
	}
	return h.signal(what, sig)
}

// Console is the host's console output since its server was created, also of hosts that
// are off.
func (s *Sim) Console(id int64) ([]byte, error) {
	s.mu.Lock()
	_, ok := s.st.Servers[id]
	s.mu.Unlock()
	b, err := os.ReadFile(filepath.Join(s.hostDir(id), consoleName))
	if ok && errors.Is(err, os.ErrNotExist) {
		return nil, nil // it has never been on
	}
	if err != nil {
		return nil, fmt.Errorf("console of host %d: %w", id, err)
	}
	return b, nil
}

// sayTo adds a line of the simulator's own to a console.
func sayTo(file, line string) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return // the host's directory is gone
	}
	defer func() { _ = f.Close() }()
	_, _ = fmt.Fprintf(f, "[sim %s] %s\n", time.Now().UTC().Format(time.RFC3339), line)
}

// boot turns a server's host on. Call it with the lock held.
func (s *Sim) boot(srv *server) {
	if _, running := s.hosts[srv.ID]; running {
		return
	}
	if err := os.MkdirAll(s.hostDir(srv.ID), 0o755); err != nil {
		s.log.Error("host has no directory", zap.Int64("id", srv.ID), zap.Error(err))
	}
	before := s.last[srv.ID]
	ctx, cut := context.WithCancel(s.ctx)
	h := &slot{
		host: s.newHost(srv, s.planFaults(srv.Name)), id: srv.ID, name: srv.Name, addr: s.address(srv), cut: cut,
		done: make(chan struct{}),
	}
	srv.Booted = true
	s.hosts[srv.ID], s.last[srv.ID] = h, h
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		defer close(h.done)
		defer cut()
		if before != nil {
			<-before.done // its disk and its address are in use until then
		}
		err := s.restoreDisk(srv, h)
		if err == nil {
			err = h.run(ctx)
		}
		if err != nil {
			s.log.Error("host failed", zap.String("host", h.name), zap.Int64("id", h.id), zap.Error(err))
			sayTo(filepath.Join(s.hostDir(h.id), consoleName), "failed: "+err.Error())
		}
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.hosts[h.id] == h { // it turned itself off
			delete(s.hosts, h.id)
			srv.Status = "off"
			s.changed()
		}
	}()
}

// resume boots a host of an earlier run again.
func (s *Sim) resume(srv *server) {
	switch srv.Status {
	case "running":
		s.boot(srv)
	case "initializing", "starting", "rebuilding":
		srv.Status = "running"
		s.boot(srv)
	}
}

// halt cuts a host's power. Call it with the lock held.
func (s *Sim) halt(srv *server) {
	if h, ok := s.hosts[srv.ID]; ok {
		delete(s.hosts, srv.ID)
		h.cut()
	}
}

// scrap deletes a host with its disk; then runs after, if given. Call it with the lock held.
func (s *Sim) scrap(srv *server, after func()) {
	s.halt(srv)
	before := s.last[srv.ID]
	gone := &slot{host: s.newHost(srv, hostFaults{}), id: srv.ID, cut: func() {}, done: make(chan struct{})}
	if after != nil {
		s.last[srv.ID] = gone
	} else {
		delete(s.last, srv.ID)
	}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		if before != nil {
			<-before.done
		}
		if err := gone.erase(); err != nil {
			s.log.Error("host not erased", zap.Int64("id", srv.ID), zap.Error(err))
		}
		close(gone.done)
		if after != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			after()
		}
	}()
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
