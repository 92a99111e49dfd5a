package production

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// boxed is a process as an engine would start it: what runs, as whom, and what it sees.
type boxed struct {
	Name    string
	Lower   string            // its image, as a directory; "/" stands for a missing one
	Scratch string            // a directory for mounts, of this container alone
	Files   map[string]string // written into the image by the engine: hosts, resolv.conf
	Binds   []bind
	Tmpfs   []string // path[:options]
	Netns   string   // file
	UID     int
	GID     int
	Groups  []int
	Env     []string
	Args    []string
}

type bind struct {
	Source, Target string
	ReadOnly       bool
}

// box is a started container.
type box struct {
	boxed
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
	stop sync.Once
}

const initVariable = "PREGO_TEST_CONTAINER"

// startBox starts a process as the first process of separate namespaces. This program starts again as its init
// (runInit), and is replaced by it.
func startBox(b boxed, log string) (*box, error) {
	spec := filepath.Join(b.Scratch, "spec.json")
	text, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(b.Scratch, 0o755), os.WriteFile(spec, text, 0o600)); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	x := &box{boxed: b, log: log, done: make(chan struct{})}
	x.cmd = exec.Command("/proc/self/exe")
	x.cmd.Env = []string{initVariable + "=" + spec}
	x.cmd.Stdout, x.cmd.Stderr = out, out
	x.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS, Pdeathsig: syscall.SIGKILL,
	}
	started := make(chan error, 1)
	go func() { // the death signal comes when the thread that forked ends
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := x.cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		x.err = x.cmd.Wait()
		close(x.done)
	}()
	return x, <-started
}

func (x *box) pid() int { return x.cmd.Process.Pid }

// signal sends a signal and waits for the end.
func (x *box) signal(sig syscall.Signal, wait time.Duration) error {
	if err := x.cmd.Process.Signal(sig); err != nil {
		return err
	}
	select {
	case <-x.done:
		return nil
	case <-time.After(wait):
		return fmt.Errorf("%s runs on %s after %s", x.Name, wait, sig)
	}
}

func (x *box) kill() {
	x.stop.Do(func() {
		_ = x.cmd.Process.Kill()
		<-x.done
	})
}

func (x *box) running() bool {
	select {
	case <-x.done:
		return false
	default:
		return true
	}
}

// exec runs a command in a container that runs, as its user: what health checks do.
func (x *box) exec(command []string) ([]byte, error) {
	args := append([]string{"-t", fmt.Sprint(x.pid()), "-m", "-n", "-p", "-r", "-w", "-G", fmt.Sprint(x.GID), "-S", fmt.Sprint(x.UID), "--"}, command...)
	cmd := exec.Command("nsenter", args...)
	cmd.Env = x.Env
	return cmd.CombinedOutput()
}

// runInit makes the container that a file describes and becomes what runs in it.
func runInit(spec string) error {
	runtime.LockOSThread()
	text, err := os.ReadFile(spec)
	if err != nil {
		return err
	}
	var b boxed
	if err := json.Unmarshal(text, &b); err != nil {
		return err
	}
	ns, err := os.Open(b.Netns)
	if err != nil {
		return err
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	root, err := b.mountAll()
	if err != nil {
		return err
	}
	if err := errors.Join(os.Chdir(root), syscall.PivotRoot(".", "."), syscall.Unmount(".", syscall.MNT_DETACH), os.Chdir("/")); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	path := b.Args[0]
	if !strings.Contains(path, "/") {
		for _, v := range b.Env {
			if dirs, ok := strings.CutPrefix(v, "PATH="); ok {
				for _, d := range filepath.SplitList(dirs) {
					if _, err := os.Stat(filepath.Join(d, path)); err == nil && !strings.Contains(path, "/") {
						path = filepath.Join(d, path)
					}
				}
			}
		}
	}
	if err := unix.Sethostname([]byte(b.Name)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	if err := b.giveUp(); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", path, syscall.Exec(path, b.Args, b.Env))
}

// mountAll makes the root file system: the image with a layer for an engine's additions, read-only, and only the
// declared mounts on top.
func (b boxed) mountAll() (root string, err error) {
	fail := func(what string, err error) error { return fmt.Errorf("%s: %w", what, err) }
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", fail("private", err)
	}
	layers := filepath.Join(b.Scratch, "layers")
	root = filepath.Join(b.Scratch, "root")
	if err := errors.Join(os.MkdirAll(layers, 0o755), os.MkdirAll(root, 0o755)); err != nil {
		return "", err
	}
	if err := unix.Mount("tmpfs", layers, "tmpfs", 0, "mode=0755"); err != nil {
		return "", fail("layer", err)
	}
	upper, work := filepath.Join(layers, "upper"), filepath.Join(layers, "work")
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
		return "", err
	}
	if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+b.Lower+",upperdir="+upper+",workdir="+work); err != nil {
		return "", fail("root", err)
	}
	for name, text := range b.Files {
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644), os.Chmod(file, 0o644)); err != nil {
			return "", err
		}
	}
	// Every place for a mount is made before the root is closed.
	type one struct {
		source, target, kind, options string
		flags                         uintptr
		file                          bool
	}
	mounts := []one{{source: "proc", target: "/proc", kind: "proc"}, {source: "tmpfs", target: "/dev", kind: "tmpfs", options: "mode=0755"}}
	for _, d := range []string{"null", "zero", "random", "urandom", "full"} {
		mounts = append(mounts, one{source: "/dev/" + d, target: "/dev/" + d, flags: unix.MS_BIND, file: true})
	}
	mounts = append(mounts, one{source: "tmpfs", target: "/dev/shm", kind: "tmpfs", options: "mode=1777"})
	for _, t := range b.Tmpfs {
		target, options, _ := strings.Cut(t, ":")
		mounts = append(mounts, one{source: "tmpfs", target: target, kind: "tmpfs", options: options})
	}
	for _, m := range b.Binds {
		info, err := os.Stat(m.Source)
		if err != nil {
			return "", err
		}
		mounts = append(mounts, one{source: m.Source, target: m.Target, flags: unix.MS_BIND, file: !info.IsDir()})
	}
	for _, m := range mounts {
		if strings.HasPrefix(m.target, "/dev/") {
			continue // made in the new /dev
		}
		if err := place(filepath.Join(root, m.target), m.file); err != nil {
			return "", err
		}
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return "", fail("read-only root", err)
	}
	for _, m := range mounts {
		target := filepath.Join(root, m.target)
		if strings.HasPrefix(m.target, "/dev/") {
			if err := place(target, m.file); err != nil {
				return "", err
			}
		}
		if err := unix.Mount(m.source, target, m.kind, m.flags, m.options); err != nil {
			return "", fail("mount "+m.target, err)
		}
	}
	for _, m := range b.Binds {
		if !m.ReadOnly {
			continue
		}
		if err := unix.Mount("", filepath.Join(root, m.Target), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return "", fail("read-only "+m.Target, err)
		}
	}
	return root, unix.Mount("", filepath.Join(root, "dev"), "", unix.MS_REMOUNT|unix.MS_RDONLY, "mode=0755")
}

func place(target string, file bool) error {
	if !file {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// giveUp drops every capability permanently, and becomes the user.
func (b boxed) giveUp() error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("capabilities: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	if err := errors.Join(syscall.Setgroups(b.Groups), syscall.Setgid(b.GID), syscall.Setuid(b.UID)); err != nil {
		return fmt.Errorf("user: %w", err)
	}
	// A change of the user forgets it.
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}
