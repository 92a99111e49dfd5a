// Package dockerhost runs containers on hosts over the Docker Remote API with mTLS (direct-provisioning §1, path C).
// Every call may be repeated: a container has a deterministic name and a label with the hash of its spec, so an
// existing one is adopted if it matches, and replaced if it does not.
package dockerhost

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/moby/moby/client"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// Config configures how to reach hosts.
type Config struct {
	TLS  func(serverID prego.ServerID) *tls.Config // the server's id is verified, not its address
	Port int
	// CheckAddr rejects addresses that a provider's server can't have.
	CheckAddr func(addr string) error
	// Login finds the credentials of an org, "" for the installation, for an image's registry; nil for none. A host
	// gets them for the pull only, and stores them nowhere.
	Login Login
}

// Login finds an org's credentials for an image's registry.
type Login func(ctx context.Context, org prego.OrgID, image string) (user, password string, ok bool, err error)

// Hosts reaches the engines of hosts.
type Hosts struct {
	cfg Config
}

// New creates Hosts.
func New(cfg Config) *Hosts { return &Hosts{cfg: cfg} }

// Host is the engine of one server. Permanent errors are *server.ContainerError.
type Host struct {
	serverID  prego.ServerID
	login     Login
	c         *client.Client
	transport *http.Transport
}

// Host returns a server's engine; nothing is sent until the first call. Close it.
func (h *Hosts) Host(serverID prego.ServerID, addr string) (*Host, error) {
	if err := h.cfg.CheckAddr(addr); err != nil {
		return nil, &server.ContainerError{Container: "all", Message: err.Error()}
	}
	transport := &http.Transport{
		TLSClientConfig: h.cfg.TLS(serverID), DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 2 * time.Minute,
	}
	// The version is negotiated at the first call, down to 1.41 and below.
	c, err := client.New(
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithHost("tcp://"+net.JoinHostPort(addr, strconv.Itoa(h.cfg.Port))), client.WithScheme("https"))
	if err != nil {
		return nil, fmt.Errorf("docker client: %w", err)
	}
	return &Host{serverID: serverID, login: h.cfg.Login, c: c, transport: transport}, nil
}

// Close ends the connections.
func (h *Host) Close() {
	_ = h.c.Close()
	h.transport.CloseIdleConnections()
}

// name is the name of a container on the host.
func (h *Host) name(container string) string {
	return wire.ContainerName(string(h.serverID), container)
}
