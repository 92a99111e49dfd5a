package rooted

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// Updater is the process that replaces the agent's program, and restores the previous one if the new one does not
// report in time. It is root's: it has no access to the network, takes requests from one user, and trusts only
// releases that are signed with a key that was built into its program. It runs a copy of the last program that proved
// good, so that a broken release cannot break the updater.
type Updater struct {
	host  *host.Host
	keys  []ed25519.PublicKey
	trial time.Duration // how long a new agent has until it is heard of
	log   *slog.Logger

	mu    sync.Mutex
	state updateState
}

// updateState is the state on disk.
type updateState struct {
	wire.UpdateReport
	Version string    `json:"version,omitempty"` // of the release that was tried last
	Until   time.Time `json:"until,omitzero"`    // when it has to be heard of
}

// oldAgent is where the program before is kept.
const oldAgent = wire.AgentBinary + ".old"

// NewUpdater replaces the agent's program by releases that are signed with one of the keys, each the base64 of an
// Ed25519 public key.
func NewUpdater(h *host.Host, keys []string, trial time.Duration, log *slog.Logger) (*Updater, error) {
	u := &Updater{host: h, trial: trial, log: log}
	for _, text := range keys {
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(b) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("updates: %q is no public key", text)
		}
		u.keys = append(u.keys, b)
	}
	b, err := os.ReadFile(h.Path(wire.UpdateState))
	if err == nil {
		err = json.Unmarshal(b, &u.state)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		// A trial in progress is over: the present program stays.
		log.Error("the last trial is unknown", "error", err.Error())
		u.state = updateState{}
	}
	return u, nil
}

// Run serves until ctx ends. Only the named user may ask; "" is its own.
func (u *Updater) Run(caller string) func(context.Context, net.Listener) error {
	return func(ctx context.Context, l net.Listener) error {
		var watch sync.WaitGroup
		watch.Go(func() { u.watch(ctx) })
		defer watch.Wait()
		return host.Serve(ctx, l, caller, u.log, func(conn net.Conn) {
			_ = conn.SetDeadline(time.Now().Add(host.SwapTime))
			r := bufio.NewReader(conn)
			line, err := r.ReadBytes('\n')
			var in host.UpdateRequest
			if err != nil || len(line) > wire.MaxPeersDocument || json.Unmarshal(line, &in) != nil {
				return
			}
			_ = json.NewEncoder(conn).Encode(u.answer(ctx, in, r))
		})
	}
}

func (u *Updater) answer(ctx context.Context, in host.UpdateRequest, program io.Reader) host.UpdateAnswer {
	u.mu.Lock()
	defer u.mu.Unlock()
	var swapped bool
	switch {
	case in.Offer != nil:
		serial, err := u.try(ctx, *in.Offer, program)
		swapped = err == nil
		if err != nil {
			u.log.Warn("a release of the agent was refused", "error", err.Error())
			report := wire.UpdateReport{Serial: serial, Status: wire.UpdateRefused, Reason: host.Clip(host.Printable(err.Error()), wire.MaxUpdateReason)}
			if u.state.Status == wire.UpdateTrying {
				return host.UpdateAnswer{UpdateReport: report} // the trial continues
			}
			if serial > u.state.Serial {
				// Another of this serial may still be tried: it was not this one.
				u.keep(updateState{UpdateReport: wire.UpdateReport{Serial: serial, Status: report.Status, Reason: report.Reason}})
			}
			return host.UpdateAnswer{UpdateReport: report}
		}
	case in.Heard != "" && u.state.Status == wire.UpdateTrying && in.Heard == u.state.Version:
		u.good(ctx)
	}
	return host.UpdateAnswer{UpdateReport: u.state.UpdateReport, Swapped: swapped}
}

// keep writes the state down.
func (u *Updater) keep(s updateState) {
	u.state = s
	b, err := json.Marshal(s)
	if err == nil {
		if err = os.MkdirAll(filepath.Dir(u.host.Path(wire.UpdateState)), 0o755); err == nil {
			err = host.WriteFile(u.host.Path(wire.UpdateState), b, 0o600)
		}
	}
	if err != nil {
		u.log.Error("the trial could not be recorded", "error", err.Error())
	}
}

// try puts a release in the place of the agent's program. Whoever runs that starts again by
// itself. The serial is that of the release, also if it is refused.
func (u *Updater) try(ctx context.Context, signed wire.SignedAgentUpdate, program io.Reader) (serial int64, err error) {
	said, err := signed.Read()
	if err != nil {
		return 0, err
	}
	release, err := signed.Open(u.keys)
	switch {
	case err != nil:
		return said.Serial, err
	case u.state.Status == wire.UpdateTrying:
		return said.Serial, fmt.Errorf("version %s is being tried", u.state.Version)
	case release.Serial < u.state.Serial:
		return said.Serial, fmt.Errorf("it was signed before %d, which was tried last", u.state.Serial)
	case release.Arch != runtime.GOARCH:
		return said.Serial, fmt.Errorf("it is for %s", release.Arch)
	}
	now, next := u.host.Path(wire.AgentBinary), u.host.Path(wire.AgentBinary+".new")
	if err := fetchProgram(next, release, program); err != nil {
		return said.Serial, err
	}
	defer func() { _ = os.Remove(next) }()
	asking, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	printed, err := exec.CommandContext(asking, next, "version").Output()
	if err != nil {
		return said.Serial, fmt.Errorf("it does not report its version: %w", err)
	}
	if got := strings.TrimSpace(string(printed)); got != release.Version {
		return said.Serial, fmt.Errorf("it reports version %.60q instead of %s", got, release.Version)
	}
	old := u.host.Path(oldAgent)
	if err := errors.Join(removeIfThere(old), os.Link(now, old)); err != nil {
		return said.Serial, err
	}
	// Before the program is there: this process watches it even if it is restarted.
	u.keep(updateState{UpdateReport: wire.UpdateReport{Serial: release.Serial, Status: wire.UpdateTrying}, Version: release.Version, Until: time.Now().Add(u.trial)})
	if err := os.Rename(next, now); err != nil {
		u.keep(updateState{})
		return said.Serial, err
	}
	u.log.Info("a release of the agent is tried", "version", release.Version, "until", u.state.Until)
	return said.Serial, nil
}

// fetchProgram writes a release's program to a file, whose digest is the release's.
func fetchProgram(name string, release wire.AgentUpdate, program io.Reader) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(program, release.Bytes))
	err = errors.Join(err, f.Chmod(0o755), f.Sync(), f.Close())
	switch {
	case err != nil:
	case n != release.Bytes:
		err = fmt.Errorf("only %d of %d bytes came", n, release.Bytes)
	case hex.EncodeToString(sum.Sum(nil)) != release.SHA256:
		err = errors.New("the program differs from the signed one")
	}
	if err != nil {
		return errors.Join(err, removeIfThere(name))
	}
	return nil
}

func removeIfThere(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// good ends a trial: the release was heard of. The copies of the program follow, and the
// agent's other processes start again with it when no command runs.
func (u *Updater) good(ctx context.Context) {
	u.log.Info("the agent is heard of", "version", u.state.Version)
	u.keep(updateState{UpdateReport: wire.UpdateReport{Serial: u.state.Serial, Status: wire.UpdateGood}, Version: u.state.Version})
	b, err := os.ReadFile(u.host.Path(wire.AgentBinary))
	for _, name := range []string{wire.UpdateProgram, wire.ProgramsDir + "/" + filepath.Base(wire.ContainerAgent)} {
		if _, there := os.Stat(u.host.Path(name)); err == nil && there == nil {
			err = host.WriteFile(u.host.Path(name), b, 0o755)
		}
	}
	if err != nil {
		u.log.Error("a copy of the agent is still the previous program", "error", err.Error())
	}
	go u.restartOthers(ctx)
}

// benchLock is held while a command runs in bench's container.
const benchLock = "/run/prego-agent-bench/lock"

// restartOthers has the processes start again that still run the program before, this one
// too. It waits for a moment without commands, for as long as one may take.
func (u *Updater) restartOthers(ctx context.Context) {
	end := time.Now().Add(16 * time.Minute)
	f, err := os.Open(u.host.Path(benchLock))
	if err == nil {
		defer func() { _ = f.Close() }()
		for syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil && time.Now().Before(end) {
			if u.host.Pause(ctx, time.Second) != nil {
				return
			}
		}
	}
	now, err := os.Stat(u.host.Path(wire.AgentBinary))
	if err != nil {
		u.log.Error("processes still run the previous agent", "error", err.Error())
		return
	}
	u.signal(syscall.SIGTERM, func(program os.FileInfo) bool { return !os.SameFile(program, now) })
	_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
}

// signal sends a signal to the agent's processes on this host whose program is wanted, even if the program was
// replaced since.
func (u *Updater) signal(sig syscall.Signal, wanted func(program os.FileInfo) bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		u.log.Error("processes are not listed", "error", err.Error())
		return
	}
	ours := u.host.Path(wire.AgentBinary)
	if dir, err := filepath.EvalSymlinks(filepath.Dir(ours)); err == nil {
		ours = filepath.Join(dir, filepath.Base(ours))
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		exe := filepath.Join("/proc", e.Name(), "exe")
		name, err := os.Readlink(exe)
		if name = strings.TrimSuffix(strings.TrimSuffix(name, " (deleted)"), filepath.Ext(oldAgent)); err != nil || name != ours {
			continue
		}
		if program, err := os.Stat(exe); err == nil && wanted(program) {
			_ = syscall.Kill(pid, sig)
		}
	}
}

// watch brings the program before back if a release is not heard of in time.
func (u *Updater) watch(ctx context.Context) {
	for u.host.Pause(ctx, time.Second) == nil {
		u.mu.Lock()
		if u.state.Status == wire.UpdateTrying && time.Now().After(u.state.Until) {
			u.back(fmt.Sprintf("version %s was not heard of within %s", u.state.Version, u.trial))
		}
		u.mu.Unlock()
	}
}

// Undo brings the program before back if the host was started again while a release was tried.
// It comes before all that runs the program at boot, which would never end with a bad one.
func (u *Updater) Undo() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.state.Status == wire.UpdateTrying {
		u.back(fmt.Sprintf("the host was started again while version %s was tried", u.state.Version))
	}
}

func (u *Updater) back(reason string) {
	u.log.Warn("the agent before is back", "version", u.state.Version, "reason", reason)
	now, old := u.host.Path(wire.AgentBinary), u.host.Path(oldAgent)
	bad, err := os.Stat(now)
	if err == nil {
		err = os.Rename(old, now)
	}
	if err != nil {
		u.log.Error("the agent before is not back", "error", err.Error()) // it is tried again
		return
	}
	u.keep(updateState{
		UpdateReport: wire.UpdateReport{Serial: u.state.Serial, Status: wire.UpdateBack, Reason: reason},
		Version:      u.state.Version,
	})
	u.signal(syscall.SIGKILL, func(program os.FileInfo) bool { return os.SameFile(program, bad) })
}
