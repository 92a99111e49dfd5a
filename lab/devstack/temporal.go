package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"go.temporal.io/sdk/client"

	"github.com/prego/prego/lab/child"
)

// Temporal is a dev server.
type Temporal struct {
	*Process
	Port, UIPort int
}

// TemporalConfig configures it.
type TemporalConfig struct {
	Binary   string // "" looks on PATH and in Dir
	Dir      string // holds the database; also searched for bin/temporal
	Port     int    // 0 for any free one
	UIPort   int    // 0 for no UI
	LogFile  string
	NoSync   bool     // leave it to the system when data reaches the disk, for tests
	Keywords []string // search attributes to register
	Env      []string // in addition to this process's
}

// ErrNoTemporal names the missing program.
var ErrNoTemporal = errors.New("no temporal binary found: run make tools, or put Temporal's CLI on PATH")

// FindTemporal finds the CLI: on PATH, or in the directories.
func FindTemporal(dirs ...string) (string, error) {
	if p, err := exec.LookPath("temporal"); err == nil {
		return p, nil
	}
	for _, d := range dirs {
		p := filepath.Join(d, "temporal")
		if info, err := os.Stat(p); err == nil && !info.IsDir() {
			return filepath.Abs(p) // it is started in another directory
		}
	}
	return "", ErrNoTemporal
}

// StartTemporal starts a dev server and waits until it answers.
func StartTemporal(ctx context.Context, cfg TemporalConfig) (*Temporal, error) {
	if cfg.Port == 0 {
		port, err := child.FreePort()
		if err != nil {
			return nil, err
		}
		cfg.Port = port
	}
	sync := "1"
	if cfg.NoSync {
		sync = "0"
	}
	args := []string{
		"server", "start-dev", "--ip", "127.0.0.1", "--port", strconv.Itoa(cfg.Port), "--log-level", "warn",
		// By default the dev server polls its queues 20 times a second; with these
		// settings a workflow of six activities takes 90 ms instead of 650.
		"--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=" + sync,
		// Never in memory: such a database is gone when the driver gives up its one connection, as it does when a
		// request ends within a transaction, and the server continues without its namespaces (temporalio/temporal#8017,
		// #10427).
		"--db-filename", filepath.Join(cfg.Dir, "temporal.db"),
		"--dynamic-config-value", "history.transferProcessorMaxPollRPS=5000",
		"--dynamic-config-value", "history.timerProcessorMaxPollRPS=5000",
		"--dynamic-config-value", "history.visibilityProcessorMaxPollRPS=5000",
		"--dynamic-config-value", "matching.enableFairness=true",
		// As production's server does by default: a worker that schedules an activity gets it
		// with the answer.
		"--dynamic-config-value", "system.enableActivityEagerExecution=true",
	}
	for _, k := range cfg.Keywords {
		args = append(args, "--search-attribute", k+"=Keyword")
	}
	if cfg.UIPort > 0 {
		args = append(args, "--ui-port", strconv.Itoa(cfg.UIPort))
	} else {
		args = append(args, "--headless")
	}
	p, err := Start(Spec{
		Name: "temporal", Path: cfg.Binary, Args: args, Env: append(os.Environ(), cfg.Env...),
		Dir: cfg.Dir, LogFile: cfg.LogFile,
	})
	if err != nil {
		return nil, err
	}
	t := &Temporal{Process: p, Port: cfg.Port, UIPort: cfg.UIPort}
	ready, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	if err := p.await(ready, func(ctx context.Context) error {
		c, err := client.DialContext(ctx,
			client.Options{
				HostPort: t.Address(), Logger: silent{},
				ConnectionOptions: client.ConnectionOptions{GetSystemInfoTimeout: time.Second},
			})
		if err != nil {
			return err
		}
		c.Close()
		return nil
	}); err != nil {
		p.Stop(5 * time.Second)
		return nil, err
	}
	// It creates world-readable files, and histories are private.
	for _, name := range []string{"temporal.db", "temporal.db-wal", "temporal.db-shm"} {
		if err := os.Chmod(filepath.Join(cfg.Dir, name), 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
			p.Stop(5 * time.Second)
			return nil, fmt.Errorf("temporal's files: %w", err)
		}
	}
	return t, nil
}

// Address is where clients connect.
func (t *Temporal) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(t.Port)) }

type silent struct{}

func (silent) Debug(string, ...any) {}
func (silent) Info(string, ...any)  {}
func (silent) Warn(string, ...any)  {}
func (silent) Error(string, ...any) {}

// PortFree explains why a port can't be used, if it can't.
func PortFree(port int, flag, what string) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // closed immediately
	if err != nil {
		return fmt.Errorf("port %d for %s is in use: stop what uses it, or choose another with %s", port, what, flag)
	}
	return l.Close()
}
