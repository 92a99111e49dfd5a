// Package child starts programs that die with the process that started them, however
// that ends.
package child

import (
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a program that runs.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start starts a command in a process group of its own, or in the session that it asks
// for. When this process ends, the kernel sends it the signal.
//
// The kernel takes the thread that forked for the parent, and Go ends threads: so the
// fork is on one that lives as long as the child, with a goroutine locked to it that
// waits.
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

// Done is closed when it has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits until it has ended, and says how, as exec.Cmd's Wait does.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// ExitCode is that of its end, -1 before it and when a signal ended it.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Signal sends it a signal; one that has ended gets none.
func (p *Process) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// Stop asks it to end with a signal, and kills what is left of its process group when it
// has ended, or has not after so long.
func (p *Process) Stop(sig syscall.Signal, wait time.Duration) {
	p.Signal(sig)
	select {
	case <-p.done:
	case <-time.After(wait):
	}
	p.Kill()
}

// Kill ends it and its whole process group at once, and waits until it has ended.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.done
}
