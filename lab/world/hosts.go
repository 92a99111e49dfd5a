package world

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
)

// hosts are the servers that were ever switched on: the agents' side of the wire, without their processes. The content
// of a host's disk survives reboots, and goes with the server.
type hosts struct {
	w  *World
	mu sync.Mutex
	by map[string]*host // by address
}

// host is one.
type host struct {
	w     *World
	guest sim.Guest
	cfg   wire.HostConfig
	boots int

	mu         sync.Mutex
	up         bool
	identity   *wire.Identity
	key        *ecdsa.PrivateKey
	cert       *x509.Certificate
	containers bool
	sites      map[string]*site
	databases  map[string]bool
	caches     map[string]bool
	results    map[string]wire.ExecResult
	ran        map[string]int         // how often each audit id really ran
	leases     map[string]*time.Timer // of commands that it undoes by itself (wire.Lease)
	edge       *edgeServer            // of an edge
	apart      time.Time              // until when it and the control plane don't reach each other
}

func newHosts(w *World) *hosts { return &hosts{w: w, by: map[string]*host{}} }

// run is the life of a host from power on to off.
func (hs *hosts) run(ctx context.Context, g sim.Guest) {
	hs.mu.Lock()
	h := hs.by[g.Addr]
	if h == nil || h.guest.ID != g.ID {
		h = &host{
			w: hs.w, guest: g, sites: map[string]*site{}, databases: map[string]bool{}, caches: map[string]bool{},
			results: map[string]wire.ExecResult{}, ran: map[string]int{},
			leases: map[string]*time.Timer{},
		}
		hs.by[g.Addr] = h
	}
	h.guest = g
	h.boots++
	hs.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.up = false
		h.mu.Unlock()
		if ctx.Err() != nil && !hs.w.Exists(g.ID) {
			hs.mu.Lock()
			if hs.by[g.Addr] == h {
				delete(hs.by, g.Addr)
			}
			hs.mu.Unlock()
		}
	}()
	if g.WithoutCloudInit {
		return
	}
	if err := hs.boot(ctx, h); err != nil {
		hs.w.Schedule.Sayf("host %s: %v", g.Name, err)
		return
	}
	hs.beat(ctx, h)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// boot does what cloud-init and the agent's bootstrap do.
func (hs *hosts) boot(ctx context.Context, h *host) error {
	if err := pause(ctx, 15*time.Second); err != nil {
		return err
	}
	if h.identity != nil { // its keys are on its disk
		return nil
	}
	files := maps.Clone(h.guest.Files)
	if err := json.Unmarshal([]byte(files[wire.HostConfigPath]), &h.cfg); err != nil {
		return fmt.Errorf("user_data leaves no %s: %w", wire.HostConfigPath, err)
	}
	token := strings.TrimSpace(files[wire.BootstrapTokenPath])
	if pin := files[wire.StageTwoPath]; pin != "" {
		var two wire.StageTwo
		if err := json.Unmarshal([]byte(pin), &two); err != nil {
			return err
		}
		if err := hs.patiently(ctx, h, two.Path, token, two.SHA256); err != nil {
			return fmt.Errorf("second stage: %w", err)
		}
	}
	stages := []wire.BootStage{wire.StageCloudInitStarted, wire.StageFirewallReady, wire.StageDockerInstalled}
	for _, stage := range stages {
		hs.report(ctx, h, token, stage)
		if err := pause(ctx, 8*time.Second); err != nil {
			return err
		}
	}
	if h.guest.WithoutAgent {
		hs.report(ctx, h, token, wire.StageFailed)
		return errors.New("no agent")
	}
	if err := hs.patiently(ctx, h, wire.PathAgentBinary+"?sha256="+h.cfg.AgentSHA256, token,
		h.cfg.AgentSHA256); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	hs.report(ctx, h, token, wire.StageAgentInstalled)
	return hs.bootstrap(ctx, h, token)
}

func (hs *hosts) report(ctx context.Context, h *host, token string, stage wire.BootStage) {
	_, _, _ = hs.ask(ctx, h, http.MethodPost, wire.PathBootStage, token,
		wire.BootStageRequest{ServerID: h.cfg.ServerID, Stage: stage})
}

// patiently fetches something with a digest, as the boot script does.
func (hs *hosts) patiently(ctx context.Context, h *host, path, token, digest string) error {
	wait := 200 * time.Millisecond
	for {
		status, got, err := hs.ask(ctx, h, http.MethodGet, path, token, nil)
		if err == nil && status == http.StatusOK {
			if sum := sha256.Sum256(got); hex.EncodeToString(sum[:]) != digest {
				return errors.New("the digest is not the pinned one")
			}
			return nil
		}
		if err == nil && status/100 == 4 && status != http.StatusTooManyRequests {
			return fmt.Errorf("%s answered %d", path, status)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// bootstrap exchanges the token for an identity.
func (hs *hosts) bootstrap(ctx context.Context, h *host, token string) error {
	keys := make([]*ecdsa.PrivateKey, 4)
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return err
		}
	}
	own := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bootstrap"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, own, own, keys[0].Public(), keys[0])
	if err != nil {
		return err
	}
	if h.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	h.key = keys[0]
	request := func(k *ecdsa.PrivateKey) string {
		b, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, k)
		if err != nil {
			panic(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: b}))
	}
	in := wire.HandshakeRequest{
		ServerID: h.cfg.ServerID, Token: token, AgentVersion: "world",
		BootID: fmt.Sprintf("boot-%d-%d", h.guest.ID, h.boots), Hostname: h.guest.Name, Tags: h.cfg.Tags,
		CSRs: wire.CSRs{
			AgentClient: request(keys[0]), AgentServer: request(keys[1]), DockerServer: request(keys[2]),
			Service: request(keys[3]),
		},
	}
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		in.HostTime = time.Now()
		status, body, err := hs.ask(ctx, h, http.MethodPost, wire.PathHandshake, "", in)
		switch {
		case err == nil && status == http.StatusOK:
			return h.adopt(body)
		case err == nil && status/100 == 4 && status != http.StatusTooManyRequests &&
			status != http.StatusPreconditionFailed && status != http.StatusNotFound:
			return fmt.Errorf("handshake: %d %s", status, body)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// adopt takes an identity over.
func (h *host) adopt(body []byte) error {
	var id wire.Identity
	if err := json.Unmarshal(body, &id); err != nil {
		return err
	}
	if id.Certificates.AgentClient != "" {
		block, _ := pem.Decode([]byte(id.Certificates.AgentClient))
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		h.cert = cert
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.identity = &id
	return nil
}

func (h *host) isApart() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.apart)
}

// beat sends heartbeats until the power goes off.
func (hs *hosts) beat(ctx context.Context, h *host) {
	h.mu.Lock()
	h.up = true
	h.mu.Unlock()
	if h.guest.Silent {
		<-ctx.Done()
		return
	}
	if h.cfg.Role == string(prego.RoleEdge) {
		serving := make(chan struct{})
		go func() { defer close(serving); hs.serveEdge(ctx, h) }()
		defer func() { <-serving }()
	}
	for {
		if time.Until(h.identity.TokenExpires) < 20*time.Minute {
			if status, body, err := hs.ask(ctx, h, http.MethodPost, wire.PathRotateToken, h.identity.Token,
				wire.RotateRequest{}); err == nil && status == http.StatusOK {
				before := h.identity.Certificates
				if err := h.adopt(body); err == nil {
					h.identity.Certificates = before
				}
			}
		}
		status, _, err := hs.ask(ctx, h, http.MethodPost, wire.PathHeartbeat, h.identity.Token, wire.HeartbeatRequest{
			BootID: fmt.Sprintf("boot-%d-%d", h.guest.ID, h.boots), AgentVersion: "world", Load1: 0.1, MemoryPct: 20,
			DiskPct: 20, DockerState: wire.DockerRunning, Tags: h.cfg.Tags, HostTime: time.Now(),
		})
		wait := time.Duration(max(h.identity.HeartbeatSeconds, 1)) * time.Second
		if err != nil || status >= 500 {
			wait = 5 * time.Second
		}
		if pause(ctx, wait) != nil {
			return
		}
	}
}

var errNoGateway = errors.New("world: connection refused: there is no gateway")

// ask sends one request to the gateway, over a connection whose certificate is the host's.
func (hs *hosts) ask(ctx context.Context, h *host, method, path, token string, body any) (int, []byte, error) {
	actor := "host " + h.guest.Name
	hs.w.Schedule.yield(nil, actor, method+" "+path[:min(len(path), 40)])
	if ctx.Err() != nil {
		return 0, nil, ctx.Err()
	}
	where := actor + " " + path
	if h.isApart() || hs.w.Faults.hit("agent_cut", where) {
		return 0, nil, errCut
	}
	if hs.w.Faults.hit("partition", where) {
		h.mu.Lock()
		h.apart = time.Now().Add(3 * time.Minute)
		h.mu.Unlock()
		return 0, nil, errCut
	}
	l, handler := hs.w.gateway()
	if l == nil {
		return 0, nil, errNoGateway
	}
	var r io.Reader = http.NoBody
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		r = bytes.NewReader(b)
	}
	req := httptest.NewRequestWithContext(As(ctx, actor), method, "https://gateway"+path, r)
	req.RemoteAddr = h.guest.Addr + ":40000"
	req.TLS = &tls.ConnectionState{HandshakeComplete: true}
	if h.cert != nil {
		req.TLS.PeerCertificates = []*x509.Certificate{h.cert}
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, req)
	if strings.HasPrefix(path, wire.PathEdge+"?") { // edges wait together for news, and the seed picks the first
		hs.w.Schedule.yield(nil, actor, "has an answer")
	}
	switch {
	case l.dead.Load():
		return 0, nil, errDead
	case hs.w.Faults.hit("agent_lost", where):
		return 0, nil, errLost
	}
	return rec.Code, rec.Body.Bytes(), nil
}

// Agents is how a process reaches hosts: commands and containers.
type Agents struct{ l *Life }

// Agents reaches the hosts from this process.
func (l *Life) Agents() *Agents { return &Agents{l} }

func (a *Agents) reach(ctx context.Context, what string, serverID prego.ServerID, addr string) (*host, error) {
	if err := a.l.step(ctx, what); err != nil {
		return nil, err
	}
	hs := a.l.w.hosts
	hs.mu.Lock()
	h := hs.by[addr]
	hs.mu.Unlock()
	if h == nil || h.isApart() || a.l.w.Faults.hit("exec_refused", what) {
		return nil, errors.New("connection refused")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.up || h.identity == nil || h.identity.ServerID != string(serverID) {
		return nil, errors.New("connection refused")
	}
	return h, nil
}

// Exec runs a command, once per audit id.
func (a *Agents) Exec(ctx context.Context, serverID prego.ServerID, addr string, in wire.ExecRequest) (wire.ExecResult,
	error,
) {
	what := fmt.Sprintf("exec %s %s on %s", in.Kind, strings.Join(in.Args[:min(len(in.Args), 3)], " "), serverID)
	unreachable := func(err error) error {
		if ctx.Err() != nil {
			return fmt.Errorf("%s on %s: %w", in.Kind, serverID, ctx.Err())
		}
		return &server.CommandError{Kind: string(in.Kind), Code: server.CommandUnreachable, Message: err.Error()}
	}
	h, err := a.reach(ctx, what, serverID, addr)
	if err != nil {
		return wire.ExecResult{}, unreachable(err)
	}
	h.mu.Lock()
	result, known := h.results[in.AuditID]
	if !known || in.AuditID == "" {
		var out string
		var err error
		if full, ok := fills(in.Args); ok && a.l.w.Faults.hit("host_full", what) {
			err = errors.New(full)
			h.filled(in.Args)
		} else {
			out, err = h.executeLeased(in)
		}
		result = wire.ExecResult{StdoutTruncated: out, AuditID: in.AuditID, DurationMs: 1}
		if err != nil {
			result.ExitCode, result.StderrTruncated = 1, err.Error()
		}
		h.results[in.AuditID] = result
		h.ran[in.AuditID]++
	} else {
		a.l.w.Met("a command was asked for twice, and ran once")
	}
	h.mu.Unlock()
	if err := pause(ctx, took(in.Args)); err != nil {
		return wire.ExecResult{}, unreachable(err)
	}
	if err := a.l.step(ctx, what+" answers"); err != nil {
		return wire.ExecResult{}, unreachable(err)
	}
	if a.l.w.Faults.hit("exec_lost", what) {
		return wire.ExecResult{}, unreachable(errLost)
	}
	return result, nil
}

// fills reports whether a command writes much, and its error for a full disk.
func fills(args []string) (string, bool) {
	if slices.ContainsFunc(args,
		func(a string) bool { return slices.Contains([]string{"new-site", "install-app", "backup"}, a) }) {
		return "OSError: [Errno 28] No space left on device", true
	}
	// The undo of a restore is exempt: its failure needs a person.
	if len(args) > 3 && args[0] == "--site" &&
		slices.Contains([]string{
			"seal-backup", "open-backup", "restore", "pack-site", "unpack-site", "pack-data",
			"load-data",
		}, args[2]) && !strings.HasSuffix(args[3], "-before") {
		return "site: " + wire.FailedDiskFull + ": no space left on device", true // agent/site/sealed.go, noRoom
	}
	return "", false
}

// took is how long a command takes.
func took(args []string) time.Duration {
	switch {
	case slices.Contains(args, "new-site"):
		return 40 * time.Second
	case slices.Contains(args, "install-app"), slices.Contains(args, "restore"):
		return 20 * time.Second
	case slices.Contains(args, "backup"), slices.Contains(args, "seal-backup"):
		return 5 * time.Second
	case slices.Contains(args, "pack-site"), slices.Contains(args, "pack-data"), slices.Contains(args, "load-data"):
		return 2 * time.Second
	}
	return 300 * time.Millisecond
}

// executeLeased executes a command, and undoes it when its lease ends (agent/exec/leases.go).
func (h *host) executeLeased(in wire.ExecRequest) (string, error) {
	end := func(key string) bool {
		t := h.leases[key]
		delete(h.leases, key)
		return t != nil && t.Stop()
	}
	if l := in.Lease; l != nil {
		key := string(in.Kind) + strings.Join(l.Undo, " ")
		switch {
		case l.Seconds == 0 && !end(key):
			return "", errors.New(wire.CodeLeaseEnded + ": the host has undone the command: its lease has ended")
		case l.Seconds == 0:
			return "", nil
		case h.leases[key] == nil:
			h.leases[key] = time.AfterFunc(time.Duration(l.Seconds)*time.Second, func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.w.Met("a host ends a lease")
				_, _ = h.execute(wire.ExecRequest{Kind: in.Kind, Args: l.Undo, TenantID: in.TenantID})
				delete(h.leases, key)
			})
		}
	}
	out, err := h.execute(in)
	if err == nil {
		end(string(in.Kind) + strings.Join(in.Args, " "))
	}
	return out, err
}

// execute does what the command of a bench, a database or a cache does to its host.
func (h *host) execute(in wire.ExecRequest) (string, error) {
	args := in.Args
	switch in.Kind {
	case wire.KindBench:
		return h.bench(in.TenantID, args, in.Secrets)
	case wire.KindMariaDB:
		switch args[0] {
		case "grant-database":
			h.databases[args[1]] = true
			return "", nil
		case "drop-database", "erase-database":
			delete(h.databases, args[1])
			return "", nil
		}
	case wire.KindRedisCLI:
		switch args[0] {
		case "create-user":
			h.caches[args[1]] = true
			return "", nil
		case "erase-user":
			delete(h.caches, args[1])
			return "", nil
		}
	}
	return "", fmt.Errorf("world: unknown command %s %v", in.Kind, args)
}

// StartContainers starts a role's containers.
func (a *Agents) StartContainers(ctx context.Context, serverID prego.ServerID, addr string, role prego.Role) error {
	h, err := a.reach(ctx, fmt.Sprintf("docker start containers of %s on %s", role, serverID), serverID, addr)
	if err != nil {
		return fmt.Errorf("docker on %s: %w", serverID, err)
	}
	if err := pause(ctx, 30*time.Second); err != nil {
		return err
	}
	h.mu.Lock()
	h.containers = true
	h.mu.Unlock()
	return a.l.step(ctx, fmt.Sprintf("docker started containers of %s on %s", role, serverID))
}

// CheckContainers finds missing containers.
func (a *Agents) CheckContainers(ctx context.Context, serverID prego.ServerID, addr string,
	role prego.Role,
) ([]server.ContainerDrift, error) {
	_, err := a.reach(ctx, fmt.Sprintf("docker check containers of %s on %s", role, serverID), serverID, addr)
	if err != nil {
		return nil, fmt.Errorf("docker on %s: %w", serverID, err)
	}
	return nil, nil
}

// RepairContainers is CheckContainers: nothing drifts here.
func (a *Agents) RepairContainers(ctx context.Context, serverID prego.ServerID, addr string,
	role prego.Role,
) ([]server.ContainerDrift, error) {
	return a.CheckContainers(ctx, serverID, addr, role)
}

// PeersNow asks a host to fetch its document.
func (a *Agents) PeersNow(ctx context.Context, serverID prego.ServerID, addr string, version int64) (int64, error) {
	_, err := a.reach(ctx, fmt.Sprintf("peers %d to %s", version, serverID), serverID, addr)
	return version, err
}

// all are the hosts that have power or had it, by address.
func (hs *hosts) all() map[string]*host {
	hs.mu.Lock()
	out := maps.Clone(hs.by)
	hs.mu.Unlock()
	// A host that was off when it was deleted has not noticed.
	maps.DeleteFunc(out, func(_ string, h *host) bool { return !hs.w.Exists(h.guest.ID) })
	return out
}

// sitesOf are those on a host, by name, for invariants: nil if there is no such host.
func (hs *hosts) sitesOf(addr string) map[string]site {
	hs.mu.Lock()
	h := hs.by[addr]
	hs.mu.Unlock()
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]site{}
	for name, s := range h.sites {
		out[name] = *s
	}
	return out
}
