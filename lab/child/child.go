// Package child starts programs that die with their starting process, however that ends.
package child

import (
	"os/exec"
	"runtime"
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
// this process ends, the kernel sends the child the signal.
//
// The kernel regards the forking thread as the parent, and Go ends threads: so the fork
// happens on a thread that lives as long as the child, held by a goroutine locked to
// it.
func Start(cmd *exec.Cmd, death syscall.Signal) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid
	cmd.SysProcAttr.Pdeathsig = death
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
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
