package sim

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego/lab/child"
)

// machineHost is the real kind of host: a Debian with its own systemd, cloud-init, network and engine, in a container
// of systemd-nspawn. contributing/simulator.md describes how it works, and which parts are not real.
type machineHost struct {
	sim  *Sim
	id   int64
	name string // of all that is made for it
	k    int    // its number on the network
	dir  string
	root string // the root that its disk lies over
	plan hostFaults
	disk int // GB
	log  *zap.Logger

	mu      sync.Mutex
	phase   string
	volumes map[int64]string // file by id
	plugged map[int64]string // device by id, while it is on
	nics    map[int64]privateNIC
	space   string // the namespace that its interfaces are in, while it is on
}

// Files inside a machine but not of its root: the first program, and the configuration of private interfaces.
var (
	//go:embed machine-init.sh
	machineInit string
	//go:embed machine-net-scan.sh
	netScan string
	//go:embed machine-net-up.sh
	netUp string
)

// restartStatus is nspawn's exit status if the system in it wants to reboot.
const restartStatus = 133

func (s *Sim) newMachine(srv *server, plan hostFaults) *machineHost {
	k, _ := networkIndex(s.address(srv))
	m := &machineHost{
		sim: s, id: srv.ID, name: fmt.Sprintf("%s%d", s.net.prefix(), k), k: k, dir: s.hostDir(srv.ID), plan: plan,
		disk: s.cfg.MachineDiskGB, log: s.log.With(zap.String("host", srv.Name), zap.Int64("id", srv.ID)),
		phase: "booting", volumes: map[int64]string{}, plugged: map[int64]string{}, nics: map[int64]privateNIC{},
	}
	if srv.Image != nil {
		// The root that a snapshot lay over is noted beside its copy.
		name := srv.Image.OSFlavor + "-" + valueOf(srv.Image.OSVersion)
		if b, err := os.ReadFile(m.rootFile()); err == nil {
			name = string(b)
		} else if srv.Image.Name != nil {
			name = *srv.Image.Name
		}
		m.root = filepath.Join(s.cfg.Machines, s.rootOf(srv.Name, name))
	}
	for _, id := range srv.Volumes {
		m.volumes[id] = s.volumeFile(id)
	}
	for _, nic := range s.privateNICs(srv) {
		m.nics[nic.network.id] = nic
	}
	return m
}

// rootOf is the directory of a server's root: its image's, unless another was chosen.
func (s *Sim) rootOf(server, image string) string {
	for _, c := range slices.Backward(s.roots) {
		if ok, _ := filepath.Match(c.server, server); ok {
			return c.root
		}
	}
	return image
}

// SetRoot makes servers with matching names boot from another root than their image's,
// for example debian-12-minimal.
func (s *Sim) SetRoot(server, root string) error {
	if _, err := filepath.Match(server, ""); err != nil {
		return fmt.Errorf("bad pattern %q", server)
	}
	if s.net == nil {
		return errors.New("process hosts have no roots")
	}
	if _, err := os.Stat(filepath.Join(s.cfg.Machines, root, "etc/machine-image")); err != nil ||
		root != filepath.Base(root) {
		return fmt.Errorf("there is no root %q", root)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roots = append(s.roots, rootChoice{server, root})
	return nil
}

type rootChoice struct{ server, root string }

func (m *machineHost) setPhase(p string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase = p
}

func (m *machineHost) consoleFile() string { return filepath.Join(m.dir, consoleName) }

// Where the parts of a machine are, on its disk and beside it.
func (m *machineHost) image() string   { return filepath.Join(m.dir, "disk.img") }
func (m *machineHost) mount() string   { return filepath.Join(m.dir, "disk") }
func (m *machineHost) merged() string  { return filepath.Join(m.dir, "root") }
func (m *machineHost) machine() string { return filepath.Join(m.dir, "machine") }

// run runs the machine until its power is off.
func (m *machineHost) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, m.unmount()) }()
	if err := m.mountDisk(); err != nil {
		return err
	}
	for {
		sayTo(m.consoleFile(), "power on")
		status, err := m.power(ctx)
		m.setPhase("off")
		if err != nil {
			return err
		}
		sayTo(m.consoleFile(), fmt.Sprintf("power off (%d)", status))
		if status != restartStatus || ctx.Err() != nil {
			return nil
		}
	}
}

// mountDisk mounts the machine's disk over its root, creating it if it is new.
func (m *machineHost) mountDisk() error {
	if _, err := os.Stat(filepath.Join(m.root, "etc/machine-image")); err != nil {
		return fmt.Errorf("no root for machines at %s: make machines builds them", m.root)
	}
	for _, d := range []string{m.mount(), m.merged(), m.machine()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if _, err := os.Stat(m.image()); errors.Is(err, os.ErrNotExist) {
		if err := makeDisk(m.image(), m.disk, "ext4"); err != nil {
			return err
		}
	}
	device, err := attachLoop(m.image())
	if err != nil {
		return err
	}
	// Without barriers, data is lost only when this machine loses its power.
	if err := run("mount", "-o", "noatime,barrier=0", device, m.mount()); err != nil {
		return err
	}
	upper, work, docker := filepath.Join(m.mount(), "upper"), filepath.Join(m.mount(), "work"),
		filepath.Join(m.mount(), "docker")
	for _, d := range []string{upper, work, docker} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if m.plan.noCloudInit {
		if err := errors.Join(os.MkdirAll(filepath.Join(upper, "etc/cloud"), 0o755),
			os.WriteFile(filepath.Join(upper, "etc/cloud/cloud-init.disabled"), nil, 0o600)); err != nil {
			return err
		}
	}
	// So its engine trusts the registry; Go takes every certificate that lies there.
	trust := filepath.Join(upper, "etc/ssl/certs")
	if err := errors.Join(os.MkdirAll(trust, 0o755),
		os.WriteFile(filepath.Join(trust, "cloud.example.pem"), m.sim.images.ca, 0o644)); err != nil {
		return err
	}
	return run("mount", "-t", "overlay", "overlay", "-o",
		fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", m.root, upper, work), m.merged())
}

// makeDisk creates a disk in a sparse file.
func makeDisk(file string, gigabytes int, format string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(int64(gigabytes)<<30), f.Close()); err != nil || format == "" {
		return err
	}
	args := []string{"-q", file}
	if format == "ext4" {
		args = []string{"-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", file}
	}
	return run("mkfs."+format, args...)
}

func (m *machineHost) unmount() error {
	return errors.Join(unmountBelow(m.merged()), unmountBelow(m.mount()), detachLoopsBelow(m.image()))
}

// power is one run of the machine's first process. It returns how that ended.
func (m *machineHost) power(ctx context.Context) (int, error) {
	space, err := m.sim.net.plug(m.k)
	if err != nil {
		return 0, err
	}
	defer m.sim.net.unplug(m.k)
	defer m.unplugNetworks()
	if err := m.plugNetworks(space); err != nil {
		return 0, err
	}
	if err := removeGroups(m.name); err != nil {
		return 0, err
	}
	groups, err := makeGroups(m.name, 0)
	if err != nil {
		return 0, err
	}
	if err := m.plugVolumes(); err != nil {
		return 0, err
	}
	defer m.unplugVolumes()
	if err := m.writeMachine(); err != nil {
		return 0, err
	}
	p, err := m.spawn(space, groups)
	if err != nil {
		return 0, err
	}
	m.setPhase("running")
	cut := ctx.Done()
	for {
		select {
		case <-p.Done():
			// The first process has ended, and all others with it; the kernel may take a moment.
			return p.ExitCode(), removeGroups(m.name)
		case <-cut:
			cut = nil
			// Killing nspawn would leave the machine running.
			if err := killGroups(m.name); err != nil {
				return 0, err
			}
		}
	}
}

// spawn starts the machine's first process.
func (m *machineHost) spawn(space string, groups []string) (*child.Process, error) {
	console, err := os.OpenFile(m.consoleFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = console.Close() }()
	// It enters its groups before there is anything else in them, and lets go of other
	// machines' disks: its copies of their mounts would keep the disks of deleted ones.
	script := `for g in ` + strings.Join(groups, " ") + `; do echo $$ >"$g/cgroup.procs" || exit 99; done
exec unshare --mount -- sh -c 'own=$1; shift
while read -r _ _ _ _ at _; do
	case $at in "$own"/*) ;; */hosts/*/disk | */hosts/*/root) umount --lazy "$at" ;; esac
done </proc/self/mountinfo
exec "$@"' sh "$@"`
	args := []string{
		"-c", script, "sh", m.dir, "nsenter", "--net=/run/netns/" + space, "systemd-nspawn", "--quiet",
		"--directory=" + m.merged(), "--machine=" + m.name, "--kill-signal=SIGRTMIN+3", "--register=no", "--keep-unit",
		"--capability=all", "--drop-capability=CAP_SYS_TIME,CAP_SYS_MODULE,CAP_SYS_RAWIO",
		"--system-call-filter=add_key keyctl bpf", "--bind=" + filepath.Join(m.mount(), "docker") + ":/var/lib/docker",
		"--bind=/dev/fuse", "--bind-ro=" + m.machine() + ":/run/machine", "--resolv-conf=off", "--timezone=off",
		"--link-journal=no", "--console=read-only", "/run/machine/init",
	}
	cmd := exec.Command("/bin/sh", args...) //nolint:noctx // ends with its machine
	cmd.Stdout, cmd.Stderr = console, console
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "SYSTEMD_NSPAWN_API_VFS_WRITABLE=network"}
	// It ends neither with this process (SweepMachines) nor by the terminal's Ctrl-C.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	return p, nil
}

// writeMachine writes the machine's /run/machine: its first program and its firmware's data.
func (m *machineHost) writeMachine() error {
	bin := filepath.Join(m.machine(), "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	var volumes strings.Builder
	volumes.WriteString("#!/bin/sh\n")
	m.mu.Lock()
	for i, id := range slices.Sorted(maps.Keys(m.plugged)) {
		volumes.WriteString(nodeScript(i, id, m.plugged[id]))
	}
	m.mu.Unlock()
	for name, content := range map[string]string{
		"init": machineInit, "volumes": volumes.String(), "net-scan": netScan, "net-up": netUp,
		"bin/systemd-detect-virt": "#!/bin/sh\ncase \"$*\" in *--container*) exit 1 ;; esac\necho kvm\n",
		"bin/dmidecode":           fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *manufacturer*) echo Hetzner ;; *serial*) echo %d ;; *product-name*) echo vServer ;; *) exit 1 ;; esac\n", m.id),
	} {
		if err := os.WriteFile(filepath.Join(m.machine(), name), []byte(content), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Volumes.

func (s *Sim) volumeFile(id int64) string {
	return filepath.Join(s.cfg.StateDir, "volumes", fmt.Sprintf("%d.img", id))
}

// nodeScript makes a volume's device as the n-th disk of a machine.
func nodeScript(n int, id int64, device string) string {
	return fmt.Sprintf("mkdir -p /dev/disk/by-id && rm -f /dev/sd%[1]c && mknod -m 660 /dev/sd%[1]c b 7 %[2]s && ln -sfn ../../sd%[1]c /dev/disk/by-id/scsi-0HC_Volume_%[3]d\n",
		'b'+rune(n), strings.TrimPrefix(device, "/dev/loop"), id)
}

func (m *machineHost) plugVolumes() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, file := range m.volumes {
		device, err := attachLoop(file)
		if err != nil {
			return err
		}
		m.plugged[id] = device
	}
	return nil
}

func (m *machineHost) unplugVolumes() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.plugged {
		if err := detachLoopsBelow(m.volumes[id]); err != nil {
			m.log.Warn("volume not unplugged", zap.Error(err))
		}
		delete(m.plugged, id)
	}
}

func (m *machineHost) attach(id int64, file string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.volumes[id] = file
	if initOf(m.name) == 0 {
		return nil
	}
	device, err := attachLoop(file)
	if err != nil {
		return err
	}
	m.plugged[id] = device
	n := slices.Index(slices.Sorted(maps.Keys(m.plugged)), id)
	_, err = m.execute(context.Background(), nil, "sh", "-c", nodeScript(n, id, device))
	return err
}

func (m *machineHost) detach(id int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	file := m.volumes[id]
	delete(m.volumes, id)
	if _, ok := m.plugged[id]; !ok {
		return nil
	}
	delete(m.plugged, id)
	link := fmt.Sprintf("/dev/disk/by-id/scsi-0HC_Volume_%d", id)
	_, err := m.execute(context.Background(), nil, "sh", "-c", `rm -f "$(readlink -f `+link+`)" `+link)
	return errors.Join(err, detachLoopsBelow(file))
}

// Buttons and processes.

func (m *machineHost) tell(sig syscall.Signal) error {
	pid := initOf(m.name)
	if pid == 0 {
		return fmt.Errorf("host %d is off", m.id)
	}
	return syscall.Kill(pid, sig)
}

// What systemd takes for the buttons: SIGRTMIN+4 is power off, SIGINT is Ctrl-Alt-Del.
func (m *machineHost) shutdown() error { return m.tell(syscall.Signal(34 + 4)) }
func (m *machineHost) restart() error  { return m.tell(syscall.SIGINT) }

// units of the processes that can be signalled.
var units = map[string]string{
	"agent": "prego-agent.service", "exec": "prego-agent-exec.service",
	"docker": "docker.service",
}

func (m *machineHost) unitProcesses(what string) []int {
	// nspawn puts the machine's own groups in a group named payload.
	return processesIn(filepath.Join(groupRoot, "systemd", m.name, "payload/system.slice", units[what]))
}

func (m *machineHost) signal(what string, sig syscall.Signal) error {
	pids := m.unitProcesses(what)
	if len(pids) == 0 {
		return fmt.Errorf("host %d has no %s running", m.id, what)
	}
	var all error
	for _, pid := range pids {
		all = errors.Join(all, syscall.Kill(pid, sig))
	}
	return all
}

func (m *machineHost) info() HostInfo {
	info := HostInfo{Root: m.merged()}
	if pids := m.unitProcesses("agent"); len(pids) > 0 {
		info.AgentPID = pids[0]
	}
	if pids := m.unitProcesses("exec"); len(pids) > 0 {
		info.ExecPID = pids[0]
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	info.Phase = m.phase
	return info
}

func (m *machineHost) erase() error {
	if err := errors.Join(removeGroups(m.name), m.unmount()); err != nil {
		return err
	}
	return os.RemoveAll(m.dir)
}

// HostExec runs a command on a machine, as root there, and returns its output.
func (s *Sim) HostExec(ctx context.Context, id int64, stdin io.Reader, argv ...string) ([]byte, error) {
	h, err := s.slot(id)
	if err != nil {
		return nil, err
	}
	m, ok := h.host.(*machineHost)
	if !ok {
		return nil, errors.New("only machines run commands")
	}
	return m.execute(ctx, stdin, argv...)
}

// execute runs a command inside, in the machine's groups, and with no more rights than
// its own processes have: none to set the clock, which is this machine's.
func (m *machineHost) execute(ctx context.Context, stdin io.Reader, argv ...string) ([]byte, error) {
	pid := initOf(m.name)
	if pid == 0 {
		return nil, fmt.Errorf("host %d is off", m.id)
	}
	// nsenter, waiting for its child, would stop permanently when that is stopped: a system that shuts down stops all
	// its processes for a moment (SIGSTOP), and then waits for one whose end is never noticed.
	script := `for g in ` + groupRoot + `/*/` + m.name + `; do echo $$ >"$g/cgroup.procs" || exit 99; done
exec setpriv --bounding-set=-sys_time,-sys_module,-sys_rawio nsenter --no-fork --target "$1" --mount --uts --ipc --net --pid --cgroup -- /bin/sh -c '"$@"; exit $?' sh /usr/bin/env -i --chdir=/ PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "${@:2}"`
	cmd := exec.CommandContext(ctx, "/bin/bash", append([]string{"-c", script, "bash", fmt.Sprint(pid)}, argv...)...)
	cmd.Stdin = stdin
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(),
			fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}
