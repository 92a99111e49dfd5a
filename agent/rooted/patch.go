package rooted

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// Patcher is the process that installs Debian's security updates, as root. It takes requests from one user, and three
// verbs without arguments: only apt chooses the packages, from Debian's signed lists. A socket starts it, and it ends
// after a while without requests.
type Patcher struct {
	host *Machine
	log  *slog.Logger
}

// NewPatcher installs security updates on a host.
func NewPatcher(h *host.Host, log *slog.Logger) *Patcher {
	return &Patcher{host: &Machine{Host: h}, log: log}
}

const (
	// patchIdle is after how long without a request the process ends.
	patchIdle = time.Minute
	// aptPatience is how long apt waits for another one's lock.
	aptPatience = 2 * time.Minute
)

// Run serves until ctx ends or requests stop. A running verb is completed: a killed package manager leaves packages
// half installed.
func (p *Patcher) Run(caller string) func(context.Context, net.Listener) error {
	return func(ctx context.Context, l net.Listener) error {
		idle, end := context.WithCancel(ctx)
		defer end()
		quiet := time.AfterFunc(patchIdle, end)
		var one sync.Mutex
		return host.Serve(idle, l, caller, p.log, func(conn net.Conn) {
			quiet.Stop()
			defer quiet.Reset(patchIdle)
			one.Lock()
			defer one.Unlock()
			answer(conn, p.log, func(in host.DeviceRequest, _ io.Reader, to io.Writer) error {
				if in.Kind != wire.KindPatch {
					return errors.New("this is no request")
				}
				return p.host.Patch(context.WithoutCancel(ctx), in.Args, to)
			})
		})
	}
}

// Patch runs a verb on security updates: report describes the host, check first fetches the lists of packages, apply
// also installs the pending packages.
func (h *Machine) Patch(ctx context.Context, args []string, out io.Writer) error {
	p := policy.Permitted(wire.KindPatch, args)
	if p == nil {
		return fmt.Errorf("%s may not be called like this", wire.KindPatch)
	}
	if p.Verb == "apply" {
		result, err := h.applyPatches(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(result)
	}
	report, err := h.patchReport(ctx, p.Verb == "check")
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(report)
}

// aptPins makes apt see security updates only: installed packages stay (their own priority is 100) unless Debian's
// security archive has a higher version, and new dependencies of such an update may come from anywhere. The first
// record that matches counts; only by its site is every archive matched.
const aptPins = `Package: *
Pin: release o=Debian,l=Debian-Security
Pin-Priority: 990

Package: *
Pin: origin "*"
Pin-Priority: 50
`

// aptConfig holds back reboots of Debian's own unattended-upgrades, which images may have: a host is rebooted
// when it is empty.
const aptConfig = "// Written by prego-agent: hosts are rebooted by the control plane alone.\nUnattended-Upgrade::Automatic-Reboot \"false\";\n"

// Files of this process, relative to the host's root directory.
const (
	aptPinsFile   = "/run/prego-agent-patch.pins"
	aptConfigFile = "/etc/apt/apt.conf.d/90prego"
	aptBinary     = "/usr/bin/apt-get"
	dpkgBinary    = "/usr/bin/dpkg"
	aptListsStamp = "/var/lib/prego/patch-checked"
)

// aptGet is a command of apt's with what all of them have. The arguments are fixed.
func (h *Machine) aptGet(ctx context.Context, args ...string) (string, error) {
	return h.packages(ctx, aptBinary, append([]string{
		"--quiet", "--option=DPkg::Lock::Timeout=" + strconv.Itoa(int(aptPatience.Seconds())), "--option=APT::Update::Error-Mode=any",
		"--option=Acquire::Retries=2", "--option=Acquire::http::Timeout=30", "--option=Acquire::https::Timeout=30",
		"--option=Dir::Etc::Preferences=" + h.Path(aptPinsFile), "--option=Dir::Etc::PreferencesParts=/dev/null",
		"--option=Dpkg::Options::=--force-confdef", "--option=Dpkg::Options::=--force-confold",
	}, args...)...)
}

// packages runs a program of the package manager and returns what it prints.
func (h *Machine) packages(ctx context.Context, program string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, h.Path(program), args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1", "PREGO_ROOT=" + h.Root}
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(errs.String())
		said = cmp.Or(said, strings.TrimSpace(out.String()))
		return "", fmt.Errorf("%s: %w: %s", filepath.Base(program), err, host.Clip(host.Printable(lastLines(said, 4)), wire.MaxPatchText))
	}
	return out.String(), nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// readyForApt reports whether this host has a package manager, and writes its configuration.
func (h *Machine) readyForApt() error {
	if _, err := os.Stat(h.Path(aptBinary)); err != nil {
		return fmt.Errorf("%w: this host has no apt", host.ErrUnavailable)
	}
	for name, text := range map[string]string{aptPinsFile: aptPins, aptConfigFile: aptConfig} {
		if b, err := os.ReadFile(h.Path(name)); err == nil && string(b) == text {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(h.Path(name)), 0o755); err != nil {
			return err
		}
		if err := host.WriteFile(h.Path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fetchLists fetches the lists of packages. Another apt may be doing so: its lock on the lists can't be waited for.
func (h *Machine) fetchLists(ctx context.Context) (err error) {
	for end := time.Now().Add(aptPatience); ; {
		if _, err = h.aptGet(ctx, "update"); err == nil || !strings.Contains(err.Error(), "lock") || time.Now().After(end) {
			break
		}
		if h.Pause(ctx, 2*time.Second) != nil {
			return ctx.Err()
		}
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(h.Path(aptListsStamp)), 0o755)
	}
	if err == nil {
		err = host.WriteFile(h.Path(aptListsStamp), nil, 0o644)
	}
	return err
}

// patchReport describes the host. A failure to fetch the lists is part of it.
func (h *Machine) patchReport(ctx context.Context, fetch bool) (r wire.PatchReport, err error) {
	if err := h.readyForApt(); err != nil {
		return r, err
	}
	if fetch {
		if err := h.fetchLists(ctx); err != nil {
			r.Failed = host.Clip(err.Error(), wire.MaxPatchText)
		}
	}
	pending, err := h.pendingPatches(ctx)
	if err != nil {
		return r, err
	}
	r.Pending, r.Packages = len(pending), pending[:min(len(pending), wire.MaxPatchPackages)]
	if info, err := os.Stat(h.Path(aptListsStamp)); err == nil {
		r.CheckedAt = info.ModTime().UTC()
	}
	r.RebootSince, r.RebootFor = h.needsReboot()
	return r, nil
}

// upgrade installs higher versions of installed packages, and their new dependencies (a kernel's packages have its
// version in their name); it removes nothing.
var upgrade = []string{"--with-new-pkgs", "--no-remove", "--no-install-recommends", "upgrade"}

// simulated is a line of what apt would do: Inst NAME [FROM] (TO ORIGIN [ARCH]).
var simulated = regexp.MustCompile(`(?m)^Inst (\S+) (?:\[(\S+)\] )?\((\S+) `)

func (h *Machine) pendingPatches(ctx context.Context) ([]wire.PackageUpdate, error) {
	out, err := h.aptGet(ctx, append([]string{"--simulate"}, upgrade...)...)
	if err != nil {
		return nil, err
	}
	var list []wire.PackageUpdate
	for _, m := range simulated.FindAllStringSubmatch(out, -1) {
		list = append(list, wire.PackageUpdate{Name: m[1], From: m[2], To: m[3]})
	}
	slices.SortFunc(list, func(a, b wire.PackageUpdate) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// applyPatches installs the pending packages. It can be repeated, even after a power cut.
func (h *Machine) applyPatches(ctx context.Context) (result wire.PatchResult, err error) {
	if err := h.readyForApt(); err != nil {
		return result, err
	}
	if _, err := h.packages(ctx, dpkgBinary, "--force-confdef", "--force-confold", "--configure", "--pending"); err != nil {
		return result, err
	}
	if err := h.fetchLists(ctx); err != nil {
		return result, err
	}
	before, err := h.pendingPatches(ctx)
	if err != nil {
		return result, err
	}
	if len(before) > 0 {
		if _, err := h.aptGet(ctx, append([]string{"--assume-yes"}, upgrade...)...); err != nil {
			return result, err
		}
	}
	if result.Now, err = h.patchReport(ctx, false); err != nil {
		return result, err
	}
	if result.Now.Pending > 0 {
		return result, fmt.Errorf("%d security updates are still pending after apt was done, %s among them", result.Now.Pending, result.Now.Packages[0].Name)
	}
	result.Installed, result.Packages = len(before), before[:min(len(before), wire.MaxPatchPackages)]
	return result, nil
}

// needsReboot returns since when the host needs a reboot, and why: a package asked for one, a kernel is newer than
// this boot, or processes run libraries that were replaced.
func (h *Machine) needsReboot() (since time.Time, why string) {
	if info, err := os.Stat(h.Path(host.RebootRequired)); err == nil {
		why = "a package asks for it"
		if b, err := os.ReadFile(h.Path(host.RebootRequired + ".pkgs")); err == nil {
			names := strings.Fields(string(b))
			slices.Sort(names)
			why = strings.Join(slices.Compact(names), ", ")
		}
		return info.ModTime().UTC(), host.Clip(host.Printable(why), wire.MaxPatchText)
	}
	if booted, ok := h.bootedAt(); ok {
		kernels, _ := filepath.Glob(h.Path("/boot/vmlinuz-*"))
		for _, name := range kernels {
			if info, err := os.Stat(name); err == nil && info.ModTime().After(booted) {
				return info.ModTime().UTC(), "kernel " + strings.TrimPrefix(filepath.Base(name), "vmlinuz-")
			}
		}
	}
	if h.Root != "/" {
		return since, ""
	}
	if stale := staleLibraries(); len(stale) > 0 {
		if info, err := os.Stat(h.Path(host.DpkgStatus)); err == nil {
			since = info.ModTime().UTC()
		}
		return since, host.Clip("processes run replaced programs: "+strings.Join(stale, ", "), wire.MaxPatchText)
	}
	return since, ""
}

// bootedAt is when the host's first process was started, which of a machine among others is later
// than the kernel was.
func (h *Machine) bootedAt() (at time.Time, ok bool) {
	const ticks = 100 // of a second, the unit of Linux's interface
	process, err := os.ReadFile(h.Path("/proc/1/stat"))
	if err != nil {
		return at, false
	}
	kernel, err := os.ReadFile(h.Path("/proc/stat"))
	if err != nil {
		return at, false
	}
	fields := strings.Fields(string(process[bytes.LastIndexByte(process, ')')+1:]))
	for line := range strings.Lines(string(kernel)) {
		if text, found := strings.CutPrefix(line, "btime "); found && len(fields) > 19 {
			began, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			after, err2 := strconv.ParseInt(fields[19], 10, 64)
			return time.Unix(began+after/ticks, 0), err == nil && err2 == nil
		}
	}
	return at, false
}

// staleLibraries are libraries that processes of the host run although they were replaced on disk. Processes of
// containers have other libraries.
func staleLibraries() []string {
	ours, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil
	}
	found := map[string]bool{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		if space, err := os.Readlink(dir + "/ns/pid"); err != nil || space != ours {
			continue
		}
		mapped, err := os.ReadFile(dir + "/maps")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(mapped)) {
			name, gone := strings.CutSuffix(strings.TrimSpace(line), " (deleted)")
			if i := strings.Index(name, " /"); gone && i > 0 {
				name = strings.TrimSuffix(name[i+1:], ".dpkg-new")
				if strings.Contains(filepath.Base(name), ".so") && (strings.HasPrefix(name, "/usr/") || strings.HasPrefix(name, "/lib")) {
					found[filepath.Base(name)] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}
