// Package child starts programs that die with their starting process, however that ends.
package child

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// Process is a running program.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start starts a command in its own process group, or in a new session on request. When
// this process ends, the child gets the signal, once.
//
// The kernel regards the forking thread as the parent, and Go ends threads: so the fork
// happens on a thread that lives as long as the child, held by a goroutine locked to
// it. When a whole process is killed, the kernel signals a child again for each thread
// that it was handed to. That makes no difference to SIGKILL; another signal is sent by
// a shell that waits for the end of this process, since some programs (dockerd) count
// signals and give up their orderly end after the third.
func Start(cmd *exec.Cmd, death syscall.Signal) (*Process, error) { return start(cmd, death, "") }

// StartDaemon is Start for a daemon that starts others, with a separate directory. When
// this process ends, the daemon gets a SIGTERM, and once it has ended, what it has left
// is killed: the processes whose command line names a path below the directory.
func StartDaemon(cmd *exec.Cmd, dir string) (*Process, error) {
	return start(cmd, syscall.SIGTERM, dir)
}

func start(cmd *exec.Cmd, death syscall.Signal, rest string) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid
	if death == syscall.SIGKILL {
		cmd.SysProcAttr.Pdeathsig = death
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var w *watcher
		var err error
		if death != syscall.SIGKILL {
			w, err = newWatcher(death, rest)
		}
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			err = w.signals(cmd.Process.Pid)
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
		w.release()
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// watch has its arguments in its environment: what it looks for must not be in its own command line.
const watch = `read -r pid || exit
read -r _
kill -s "$signal" "$pid"
[ -n "$rest" ] || exit
while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
for file in $(grep -laF "$rest/" /proc/[0-9]*/cmdline); do
	file=${file%/cmdline}
	kill -s KILL "${file#/proc/}"
done`

// watcher is a shell that sends a process a signal when this process has ended. A nil one does nothing.
type watcher struct {
	shell *exec.Cmd
	pipe  *os.File // only this process has an end to write to
}

func newWatcher(sig syscall.Signal, rest string) (*watcher, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	sh := exec.Command("sh", "-c", watch) //nolint:noctx // ends with the pipe
	sh.Env = append(os.Environ(), "signal="+strconv.Itoa(int(sig)), "rest="+rest)
	sh.Stdin, sh.SysProcAttr = r, &syscall.SysProcAttr{Setpgid: true}
	if err := sh.Start(); err != nil {
		_ = w.Close()
		return nil, err
	}
	return &watcher{sh, w}, nil
}

func (m *watcher) signals(pid int) error {
	if m == nil {
		return nil
	}
	_, err := fmt.Fprintln(m.pipe, pid)
	return err
}

func (m *watcher) release() {
	if m != nil {
		_ = m.shell.Process.Kill()
		_ = m.shell.Wait()
		_ = m.pipe.Close()
	}
}

// PID is its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits until it has ended, and returns what exec.Cmd's Wait returns.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// ExitCode is its exit code, -1 before it has ended or if a signal ended it.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Signal sends it a signal, unless it has ended.
func (p *Process) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// Stop asks it to end with a signal, and kills the rest of its process group once it
// has ended, or when the time is over.
func (p *Process) Stop(sig syscall.Signal, wait time.Duration) {
	p.Signal(sig)
	select {
	case <-p.done:
	case <-time.After(wait):
	}
	p.Kill()
}

// Kill kills it and its process group, and waits until it has ended.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.done
}
