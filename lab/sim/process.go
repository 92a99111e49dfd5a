package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/child"
)

// processHost is the light kind of host: a directory for its disk, an address on loopback, and the agent as processes
// of this machine: the network process and the executor. cloud-init and systemd are imitated.
type processHost struct {
	sim   *Sim
	id    int64
	name  string
	addr  string
	dir   string
	user  string // user_data
	fresh bool   // cloud-init has not run yet
	plan  hostFaults
	log   *zap.Logger
	// volumes are attached when the power comes on.
	volumes map[int64]string

	dataMu sync.Mutex
	data   *dataServer // of a shard or a pool

	mu      sync.Mutex
	private string                    // its address in a private network, "" for none
	press   context.CancelCauseFunc   // ends this boot
	procs   map[string]*child.Process // by verb of the agent's program
	exits   int
	phase   string
	docker  *docker
}

func (s *Sim) newProcessHost(srv *server, plan hostFaults) *processHost {
	volumes := map[int64]string{}
	for _, id := range srv.Volumes {
		volumes[id] = s.volumeFile(id)
	}
	return &processHost{
		volumes: volumes, private: firstPrivate(srv),
		sim: s, id: srv.ID, name: srv.Name, addr: s.address(srv), user: srv.UserData, fresh: !srv.Booted,
		phase: "booting", procs: make(map[string]*child.Process), dir: s.hostDir(srv.ID),
		log: s.log.With(zap.String("host", srv.Name), zap.Int64("id", srv.ID)), plan: plan,
	}
}

func (h *processHost) info() HostInfo {
	h.mu.Lock()
	defer h.mu.Unlock()
	info := HostInfo{Phase: h.phase, Exits: h.exits, Root: h.root()}
	for verb, p := range h.procs {
		switch verb {
		case "exec":
			info.ExecPID = p.PID()
		case "update":
		default:
			info.AgentPID = p.PID()
		}
	}
	return info
}

func (h *processHost) signal(what string, sig syscall.Signal) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.procs["exec"]
	if what == "agent" {
		if p = h.procs["run"]; p == nil {
			p = h.procs["bootstrap"]
		}
	}
	if p == nil || (what != "agent" && what != "exec") {
		return fmt.Errorf("host %d has no %s running", h.id, what)
	}
	p.Signal(sig)
	return nil
}

// phaseRunning is that of a host with all its processes.
const phaseRunning = "running"

// errRestart is why a boot ends that another one follows.
var errRestart = errors.New("restart")

// run is the host with its power on. A restart is a boot that another one follows.
func (h *processHost) run(ctx context.Context) error {
	for {
		boot, end := context.WithCancelCause(ctx)
		h.mu.Lock()
		h.press = end
		h.mu.Unlock()
		h.say("power on")
		err := h.live(boot)
		if err != nil && boot.Err() == nil {
			h.log.Warn("host ended its boot", zap.Error(err))
			h.setPhase("failed: " + err.Error())
		}
		<-boot.Done()
		end(nil)
		h.say("power off")
		if !errors.Is(context.Cause(boot), errRestart) {
			return nil
		}
		h.fresh = false
	}
}

func (h *processHost) shutdown() error { return h.endBoot(nil) }
func (h *processHost) restart() error  { return h.endBoot(errRestart) }

func (h *processHost) endBoot(why error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.press == nil {
		return fmt.Errorf("host %d is off", h.id)
	}
	h.press(why)
	return nil
}

// say writes a line to the console.
func (h *processHost) say(line string) { sayTo(h.consoleFile(), line) }

func (h *processHost) consoleFile() string { return filepath.Join(h.dir, consoleName) }

// A volume of a light host is a directory beside the file that is the volume of a machine;
// its agent takes a directory for a device, on hosts that are directories themselves.
func (h *processHost) attach(id int64, file string) error {
	dir, err := filepath.Abs(strings.TrimSuffix(file, ".img"))
	if err != nil {
		return err
	}
	link := h.volumeLink(id)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(filepath.Dir(link), 0o755)); err != nil {
		return err
	}
	if err := os.Symlink(dir, link); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func (h *processHost) detach(id int64) error {
	if err := os.Remove(h.volumeLink(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// plugVolumes makes the devices match the attached volumes.
func (h *processHost) plugVolumes() error {
	if err := os.RemoveAll(filepath.Dir(h.volumeLink(0))); err != nil {
		return err
	}
	for id, file := range h.volumes {
		if err := h.attach(id, file); err != nil {
			return err
		}
	}
	return nil
}

func (h *processHost) volumeLink(id int64) string {
	return filepath.Join(h.root(), wire.VolumeDevice(fmt.Sprint(id)))
}

// Its address stands for the public one. Private ones are in the provider's answers, and
// those on loopback are where shards and pools take connections.
func (h *processHost) connect(nic privateNIC) error {
	h.mu.Lock()
	running := h.phase == phaseRunning
	if h.private == "" && len(nic.addresses) > 0 {
		h.private = nic.addresses[0]
	}
	h.mu.Unlock()
	if !running {
		return nil // its boot does it
	}
	return h.startData(context.Background())
}

func (h *processHost) disconnect(int64) error {
	h.mu.Lock()
	h.private = ""
	h.mu.Unlock()
	h.stopData()
	return nil
}

// firstPrivate is a server's first private address.
func firstPrivate(srv *server) string {
	if len(srv.PrivateNet) == 0 {
		return ""
	}
	return srv.PrivateNet[0].IP
}

func (*processHost) readdress(int64, []string) error { return nil }

func (h *processHost) erase() error { return os.RemoveAll(h.dir) }

func (h *processHost) snapshot(dir string) error {
	return copyTree(h.root(), filepath.Join(dir, "root"))
}

func (h *processHost) restore(dir string) error {
	return copyTree(filepath.Join(dir, "root"), h.root())
}

func (h *processHost) root() string { return filepath.Join(h.dir, "root") }

func (h *processHost) setPhase(p string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.phase = p
	sayTo(filepath.Join(h.dir, consoleName), p)
}

// nextBoot gives the host the id of another boot, which a kernel would.
func (h *processHost) nextBoot() error {
	file := filepath.Join(h.root(), "proc/sys/kernel/random/boot_id")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	// As /run is in memory: what asked for this boot is gone.
	if err := os.RemoveAll(filepath.Join(h.root(), "run/reboot-required")); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(uuid.NewString()+"\n"), 0o600)
}

// live is a machine's life: cloud-init once, then the agent for as long as the
// machine runs.
func (h *processHost) live(ctx context.Context) error {
	if err := errors.Join(h.plugVolumes(), h.nextBoot()); err != nil {
		return err
	}
	if h.plan.noCloudInit {
		h.setPhase("running without cloud-init")
		return nil
	}
	if h.fresh {
		if err := sleep(ctx, h.sim.cfg.Profile.Boot); err != nil {
			return err
		}
		if isBuilder(h.user) {
			return h.buildImage(ctx)
		}
		if err := h.cloudInit(ctx); err != nil {
			return err
		}
	}
	if err := h.installServices(ctx); err != nil {
		return err
	}
	defer h.stopData()
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
	for { // its unit restarts it on failure
		err := h.runAgent(ctx, "bootstrap")
		if err == nil {
			break
		}
		h.setPhase("bootstrapping again: " + err.Error())
		if err := h.restartDelay(ctx); err != nil {
			return err
		}
	}
	if err := h.startDocker(); err != nil {
		return err
	}
	defer h.docker.close()
	certificates, stopCertificates := context.WithCancel(ctx)
	var installs sync.WaitGroup
	installs.Go(func() { h.installCertificates(certificates) })
	defer func() { stopCertificates(); installs.Wait() }()
	if h.plan.stopHeartbeats {
		h.setPhase("running with a silent agent")
		<-ctx.Done()
		return nil
	}
	h.setPhase(phaseRunning)
	if err := h.startData(ctx); err != nil { // it may have joined a network meanwhile
		return err
	}
	var executor sync.WaitGroup
	if h.sim.cfg.UpdateTrial > 0 {
		if err := h.installUpdater(); err != nil {
			return err
		}
		executor.Go(func() { h.keepRunning(ctx, "update", func() {}) })
	}
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
func (h *processHost) keepRunning(ctx context.Context, verb string, ended func()) {
	for ctx.Err() == nil {
		if err := h.runAgent(ctx, verb); err != nil && ctx.Err() == nil {
			h.log.Info("agent ended, starting it again", zap.String("verb", verb), zap.Error(err))
		}
		ended()
		if h.restartDelay(ctx) != nil {
			return
		}
	}
}

// restartDelay is the pause before systemd starts a unit again.
func (h *processHost) restartDelay(ctx context.Context) error {
	return sleep(ctx, max(h.sim.cfg.Profile.Restart, 50*time.Millisecond))
}

// runAgent runs the real agent binary until it ends or the machine does.
func (h *processHost) runAgent(ctx context.Context, verb string) error {
	if h.sim.cfg.RunAgent != nil {
		if run := h.sim.cfg.RunAgent(h.name); run != nil {
			return run(ctx, verb, h.root(), h.addr)
		}
	}
	logFile, err := os.OpenFile(filepath.Join(h.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }()
	root := h.root()
	if h.role() == "edge" {
		root = h.shortRoot()
	}
	args := []string{verb, "--root", root, "--addr", h.addr}
	if verb == "run" { // one process less for each host: it reads the engine's events itself
		args = append(args, "--docker", "unix://"+h.dockerSocket(), "--no-firewall")
	}
	program := wire.AgentBinary
	if verb == "update" {
		program, args = wire.UpdateProgram, []string{verb, "--root", root, "--trial", h.sim.cfg.UpdateTrial.String()}
	}
	cmd := exec.Command(filepath.Join(h.root(), program), args...) //nolint:noctx // the host's own agent; ended below
	cmd.Stdout, cmd.Stderr, cmd.Dir = logFile, logFile, h.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "GOMAXPROCS=1"}
	p, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	h.mu.Lock()
	h.procs[verb] = p
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.procs, verb)
		h.mu.Unlock()
	}()
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Kill() // the power goes off
		return ctx.Err()
	}
	if err := p.Wait(); err != nil {
		return fmt.Errorf("prego-agent %s: %w", verb, err)
	}
	return nil
}

// installUpdater copies the agent once, as "prego-agent prepare" does.
func (h *processHost) installUpdater() error {
	target := filepath.Join(h.root(), wire.UpdateProgram)
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(h.root(), wire.AgentBinary))
	if err != nil {
		return err
	}
	return h.write(wire.UpdateProgram, string(b), 0o755)
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
