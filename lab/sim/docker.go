package sim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prego/prego/agent/wire"
)

// docker answers a subset of the Docker Engine API, version 1.41, over mTLS with the
// certificates that the agent got for dockerd: everything that the control plane calls
// on path C. The containers exist in name only: they are healthy as soon as they are
// started, and every probe in them passes.
type docker struct {
	host   *processHost
	server *http.Server
	local  *http.Server // for the host's own processes, as the engine's socket
	real   *dockerd     // a real engine instead

	mu         sync.Mutex
	images     map[string]bool
	networks   map[string]bool
	containers map[string]*container
	execs      map[string]string // id to the container's id
	watching   map[*dockerWatch]bool
}

// container keeps the create request as sent, for inspect.
type container struct {
	ID      string         `json:"id"`
	Name    string         `json:"name"`
	Image   string         `json:"image"`
	Config  map[string]any `json:"config"`
	Host    map[string]any `json:"host"`
	Status  string         `json:"status"`
	Created time.Time      `json:"created"`
	Started time.Time      `json:"started"`
	Exit    int            `json:"exit"`
	Fault   string         `json:"fault,omitempty"` // its fault, see Fault

	addr string // while its ports are open
	open []net.Listener
	stop context.CancelFunc // ends what it really runs
}

func (h *processHost) startDocker() error {
	d := &docker{
		host: h, images: make(map[string]bool), networks: make(map[string]bool),
		containers: make(map[string]*container), execs: make(map[string]string), watching: make(map[*dockerWatch]bool),
	}
	if h.sim.cfg.RealDocker {
		var err error
		d.real, err = h.startRealDocker(h.sim.ctx)
		h.docker = d
		return err
	}
	if b, err := os.ReadFile(d.statePath()); err == nil {
		if err := json.Unmarshal(b, &d.containers); err != nil {
			return fmt.Errorf("docker state: %w", err)
		}
		for _, c := range d.containers {
			d.images[c.Image] = true
			if c.Status == "running" {
				d.listen(c)
				d.run(c)
			}
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(h.addr, fmt.Sprint(h.sim.cfg.DockerPort))) //nolint:noctx // ends with close
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	d.server = &http.Server{Handler: d.routes(), ReadHeaderTimeout: 5 * time.Second, TLSConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config,
			error,
		) {
			return d.tls()
		},
	}, ErrorLog: nil}
	own, err := net.Listen("unix", h.dockerSocket()) //nolint:noctx // ends with close
	if err != nil {
		_ = l.Close()
		return fmt.Errorf("docker: %w", err)
	}
	d.local = &http.Server{Handler: d.routes(), ReadHeaderTimeout: 5 * time.Second}
	h.docker = d
	go func() { _ = d.server.ServeTLS(l, "", "") }()
	go func() { _ = d.local.Serve(own) }()
	return nil
}

// dockerSocket is where the host's own processes reach its engine: a name without a file,
// since a host's directory may be too long for one.
func (h *processHost) dockerSocket() string {
	if d := h.docker; d != nil && d.real != nil {
		return filepath.Join(d.real.run, "sock")
	}
	return fmt.Sprintf("@prego-sim/%d/%s/docker", os.Getpid(), h.addr)
}

// tls reads the certificates at each connection, since the agent renews them.
func (d *docker) tls() (*tls.Config, error) {
	dir := filepath.Join(d.host.root(), wire.DockerTLSDir)
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("ca.pem holds no certificate")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}, nil
}

func (d *docker) close() {
	if d.real != nil {
		d.real.close()
		return
	}
	_ = d.server.Close()
	_ = d.local.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.containers {
		c.silence()
	}
}

func (d *docker) statePath() string { return filepath.Join(d.host.dir, "docker.json") }

func (d *docker) save() {
	if b, err := json.Marshal(d.containers); err == nil {
		_ = os.WriteFile(d.statePath(), b, 0o600)
	}
}
