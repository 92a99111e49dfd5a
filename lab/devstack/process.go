// Package devstack starts the control plane's dependencies on one machine: a private Postgres, Temporal's dev server,
// the simulated cloud, and the project's own processes. All of them die with it, however it ends.
package devstack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prego/prego/lab/child"
)

// Spec configures a child process.
type Spec struct {
	Name    string
	Path    string
	Args    []string
	Env     []string // replaces the environment when not nil
	Dir     string
	LogFile string // gets stdout and stderr, appended
	UID     uint32 // run as this user; 0 is the caller
	GID     uint32
	Stop    syscall.Signal // asks it to stop; SIGTERM when 0
}

// Process is a running child. It is killed when this process dies.
type Process struct {
	*child.Process
	spec Spec
	stop sync.Once
}

// Start starts a child in its own process group.
func Start(spec Spec) (*Process, error) {
	p := &Process{spec: spec}
	cmd := exec.Command(spec.Path, spec.Args...) //nolint:noctx // stopped by Stop, not by a context
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	if spec.UID != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: spec.UID, Gid: spec.GID}}
	}
	if spec.LogFile != "" {
		if err := os.MkdirAll(filepath.Dir(spec.LogFile), 0o755); err != nil {
			return nil, fmt.Errorf("log directory: %w", err)
		}
		f, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("log of %s: %w", spec.Name, err)
		}
		defer func() { _ = f.Close() }()
		cmd.Stdout, cmd.Stderr = f, f
	}
	var err error
	if p.Process, err = child.Start(cmd, syscall.SIGKILL); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	return p, nil
}

// Again starts the same child once more.
func (p *Process) Again() (*Process, error) { return Start(p.spec) }

// Err describes how the child ended, with the last lines of its log. Call it after Done is closed.
func (p *Process) Err() error {
	how := "exit status 0"
	if err := p.Wait(); err != nil {
		how = err.Error()
	}
	return fmt.Errorf("%s ended (%s)%s", p.spec.Name, how, tail(p.spec.LogFile))
}

// Stop asks the child to stop, and kills its group after wait.
func (p *Process) Stop(wait time.Duration) {
	p.stop.Do(func() { p.Process.Stop(cmp.Or(p.spec.Stop, syscall.SIGTERM), wait) })
}

// tail returns the end of a log for an error message.
func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) > 12 {
		lines = lines[len(lines)-12:]
	}
	return ":\n  " + strings.Join(lines, "\n  ")
}

// await polls until ready returns nil, the process ends, or the context does.
func (p *Process) await(ctx context.Context, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return p.Err()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready in time: %w%s", p.spec.Name, errors.Join(err, ctx.Err()),
				tail(p.spec.LogFile))
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// AwaitHTTP waits until a URL answers 200.
func (p *Process) AwaitHTTP(ctx context.Context, url string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return p.await(ctx, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
			return fmt.Errorf("%s answered %d: %s", url, resp.StatusCode, bytes.TrimSpace(body))
		}
		return nil
	})
}
