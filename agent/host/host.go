// Package host is what all processes of the agent on a host share: its configuration, its
// identity on disk, the sockets between its processes with the messages on them, and how its
// databases are reached. It has no port of the network.
package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/prego/prego/agent/wire"
)

// Host is the directory tree that the agent uses: "/" on a real host.
type Host struct {
	Root   string
	Config wire.HostConfig

	// Pause waits for a time, or until ctx ends; tests advance the time by it.
	Pause func(ctx context.Context, d time.Duration) error
}

// OpenHost reads the configuration written by cloud-init. It rejects a configuration that is unusable for any agent.
func OpenHost(root string) (*Host, error) {
	h := &Host{Root: root, Pause: Sleep}
	b, err := os.ReadFile(h.Path(wire.HostConfigPath))
	if err != nil {
		return nil, fmt.Errorf("host configuration: %w", err)
	}
	if err := json.Unmarshal(b, &h.Config); err != nil {
		return nil, fmt.Errorf("host configuration %s: %w", wire.HostConfigPath, err)
	}
	if err := h.checkConfig(); err != nil {
		return nil, fmt.Errorf("host configuration %s: %w", wire.HostConfigPath, err)
	}
	return h, nil
}

func (h *Host) checkConfig() error {
	c := h.Config
	switch u, err := url.Parse(c.GatewayURL); {
	case c.ServerID == "" || c.Environment == "" || c.GatewayServerName == "":
		return errors.New("server_id, environment and gateway_server_name are required")
	case err != nil || u.Scheme != "https" || u.Host == "":
		return errors.New("gateway_url must be an https URL: tokens travel to it")
	case c.AgentPort < 1 || c.AgentPort > 65535:
		return errors.New("agent_port must be 1 to 65535")
	}
	return nil
}

// Path is where a file of the host is.
func (h *Host) Path(p string) string { return filepath.Join(h.Root, p) }

// WriteFile replaces a file atomically and durably; unchanged content is left alone.
func WriteFile(name string, content []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(name); err == nil && bytes.Equal(old, content) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, werr := f.Write(content)
	err = errors.Join(werr, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", name, err)
	}
	if dir, err := os.Open(filepath.Dir(name)); err == nil {
		_ = dir.Sync()
		_ = dir.Close()
	}
	return nil
}

// Sleep waits for a time, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// OwnProgram is what this process runs, also when an update has put another file in its place.
// Tests put the agent as it is released here: they are larger, and slow to start.
var OwnProgram = "/proc/self/exe"

// bootFile identifies the boot; the kernel makes it.
const bootFile = "/proc/sys/kernel/random/boot_id"

// BootID differs after each boot of a host. A host that is a directory may have its own.
func BootID(root string) string {
	b, err := os.ReadFile(filepath.Join(root, bootFile))
	if err != nil {
		b, err = os.ReadFile(bootFile)
	}
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// Files of the package manager, relative to the host's root directory.
const (
	DpkgStatus     = "/var/lib/dpkg/status"
	RebootRequired = "/run/reboot-required"
)
