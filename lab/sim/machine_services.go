package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"
)

// What machines find on their network: the provider's metadata, a mirror of packages, and
// on other ports names and addresses (machine_dns.go, machine_dhcp.go).

// MirrorName is the mirror that the roots' apt is set up for.
const MirrorName = "mirror.cloud.example"

// startMachines brings up what machines hang on.
func (s *Sim) startMachines() error {
	if os.Getuid() != 0 {
		return errors.New("sim: machines need root")
	}
	var err error
	for _, dir := range []*string{&s.cfg.StateDir, &s.cfg.Machines} { // as in the lists of mounts
		if *dir, err = filepath.Abs(*dir); err != nil {
			return fmt.Errorf("sim: %w", err)
		}
		if *dir, err = filepath.EvalSymlinks(*dir); err != nil {
			return fmt.Errorf("sim: %w", err)
		}
	}
	if s.net, err = openNetwork(s.cfg.StateDir); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	if err := s.routeAllFloating(); err != nil {
		return errors.Join(fmt.Errorf("sim: %w", err), s.net.close())
	}
	if err := s.serveMachines(); err != nil {
		return errors.Join(fmt.Errorf("sim: %w", err), s.net.close())
	}
	return nil
}

// serveMachines starts what serves machines; all of it ends with Close.
func (s *Sim) serveMachines() error {
	mirror, err := s.net.listenTCP(s.ctx, s.net.gateway()+":80")
	if err != nil {
		return err
	}
	metadata, err := s.net.listenTCP(s.ctx, metadataAddr+":80")
	if err != nil {
		return errors.Join(err, mirror.Close())
	}
	s.serve(mirror, http.HandlerFunc(s.serveMirror))
	s.serve(metadata, s.metadataRoutes())
	return errors.Join(s.serveNames(), s.serveAddresses(), s.serveImages(s.ctx))
}

func (s *Sim) serve(l net.Listener, h http.Handler) {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	s.work.Add(2)
	go func() { defer s.work.Done(); _ = server.Serve(l) }()
	go func() { defer s.work.Done(); <-s.ctx.Done(); _ = server.Close() }()
}

// onBridge binds sockets to the bridge: other clouds on this machine serve the same
// addresses on theirs.
func (w *network) onBridge() net.ListenConfig { return onDevice(w.bridge()) }

// onDevice binds sockets to an interface.
func onDevice(device string) net.ListenConfig {
	return net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) {
			err = errors.Join(syscall.SetsockoptString(int(fd), syscall.SOL_SOCKET, syscall.SO_BINDTODEVICE, device),
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 1))
		})
		return errors.Join(cerr, err)
	}}
}

func (w *network) listenTCP(ctx context.Context, addr string) (net.Listener, error) {
	lc := w.onBridge()
	return lc.Listen(ctx, "tcp4", addr)
}

// serverAt finds the server with an address. Call it with the lock held.
func (s *Sim) serverAt(remote string) (*server, bool) {
	addr, _, err := net.SplitHostPort(remote)
	if err != nil {
		addr = remote
	}
	for _, srv := range s.st.Servers {
		if s.address(srv) == addr {
			return srv, true
		}
	}
	return nil, false
}

// metadataRoutes are the routes of the provider's metadata service, as cloud-init's DataSourceHetzner and the
// provider's documentation of it read them.
func (s *Sim) metadataRoutes() http.Handler {
	mux := http.NewServeMux()
	text := func(pattern string, answer func(srv *server) string) {
		mux.HandleFunc("GET /hetzner/v1/"+pattern, func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			srv, ok := s.serverAt(r.RemoteAddr)
			var body string
			if ok {
				body = answer(srv)
			}
			s.mu.Unlock()
			if !ok {
				http.Error(w, "not found", http.StatusNotFound)
				return
			}
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = w.Write([]byte(body))
		})
	}
	text("metadata", s.metadata)
	text("metadata/instance-id", func(srv *server) string { return strconv.FormatInt(srv.ID, 10) })
	text("metadata/hostname", func(srv *server) string { return srv.Name })
	text("metadata/public-ipv4", func(srv *server) string { return srv.PublicNet.IPv4.IP })
	text("metadata/local-ipv4", func(*server) string { return "" })
	text("metadata/region", func(srv *server) string { return srv.Location.NetworkZone })
	text("metadata/availability-zone", func(srv *server) string { return srv.Location.Name + "-dc1" })
	text("metadata/private-networks", func(srv *server) string { return asYAML(s.privateNetworks(srv)) })
	text("userdata", func(srv *server) string { return srv.UserData })
	return mux
}

func (s *Sim) metadata(srv *server) string {
	k, _ := networkIndex(s.address(srv))
	return asYAML(map[string]any{
		"instance-id": srv.ID, "hostname": srv.Name, "local-ipv4": "", "public-ipv4": srv.PublicNet.IPv4.IP,
		"public-keys": []string{}, "region": srv.Location.NetworkZone, "availability-zone": srv.Location.Name + "-dc1",
		"network-config": map[string]any{"version": 1, "config": []any{map[string]any{
			"type": "physical", "name": "eth0", "mac_address": s.net.mac(k),
			"subnets": []any{map[string]any{"type": "dhcp", "ipv4": true}},
		}}},
	})
}

func asYAML(v any) string {
	b, err := yaml.Marshal(v)
	if err != nil {
		panic("sim: metadata: " + err.Error())
	}
	return string(b)
}

// serveMirror serves packages, unless a fault of kind "mirror" applies.
func (s *Sim) serveMirror(w http.ResponseWriter, r *http.Request) {
	f := s.machineFault("mirror", r.RemoteAddr, r.URL.Path)
	file := filepath.Join(s.cfg.Machines, "mirror", filepath.FromSlash(path.Clean("/"+r.URL.Path)))
	if f == nil {
		http.ServeFile(w, r, file)
		return
	}
	if f.DelayMS > 0 && sleep(r.Context(), time.Duration(f.DelayMS)*time.Millisecond) != nil {
		return
	}
	switch f.Action {
	case "respond":
		http.Error(w, "injected fault", f.Status)
	case "reset":
		panic(http.ErrAbortHandler)
	case "truncate": // half of it, and then the connection is cut
		info, err := os.Stat(file)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		b, err := os.ReadFile(file)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
		_, _ = w.Write(b[:len(b)/2])
		panic(http.ErrAbortHandler)
	default: // delay
		http.ServeFile(w, r, file)
	}
}

// machineFault finds a fault that meets a request of a machine for something, or nil.
func (s *Sim) machineFault(kind, remote, what string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := ""
	if srv, ok := s.serverAt(remote); ok {
		name = srv.Name
	}
	for _, f := range s.faults {
		onServer, _ := path.Match(f.Server, name)
		ofPath, _ := path.Match(f.Path, what)
		if f.Kind == kind && (f.Server == "" || onServer) && (f.Path == "" || ofPath) && f.fires() {
			c := *f
			return &c
		}
	}
	return nil
}

func (s *Sim) logMachines(what string, err error) {
	if err != nil && s.ctx.Err() == nil {
		s.log.Warn(what, zap.Error(err))
	}
}

// NetworkInfo describes how machines reach this machine's services, and where calls to them come from.
type NetworkInfo struct {
	Hosts   string `json:"hosts"`             // process or machine
	Gateway string `json:"gateway,omitempty"` // this machine's address on the bridge
}

// Network is what /_sim/network shows.
func (s *Sim) Network() NetworkInfo {
	if s.net == nil {
		return NetworkInfo{Hosts: "process"}
	}
	return NetworkInfo{Hosts: "machine", Gateway: s.net.gateway()}
}
