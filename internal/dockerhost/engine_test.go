package dockerhost_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/dockerhost"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/lab/child"
	"github.com/prego/prego/lab/need"
)

const serverID = "app-1"

// engine is a dockerd of the tests' own, with certificates as a host's agent gets
// them.
type engine struct {
	dir     string
	config  string // daemon.json
	port    int
	space   string // a dedicated network namespace with dedicated networks; "" for neither
	addr    string // where it listens; 127.0.0.1 if empty
	ca      *pki.Authority
	agent   tls.Certificate // the agent's client certificate
	process *child.Process  // nil while it is stopped
}

var shared struct {
	sync.Once
	engine *engine
	err    error
}

func TestMain(m *testing.M) {
	if os.Getenv(engineAlone) != "" {
		runEngineAlone()
	}
	code := m.Run()
	if shared.engine != nil {
		shared.engine.close()
	}
	os.Exit(code)
}

// real is the engine that most tests share.
func real(t *testing.T) *engine {
	t.Helper()
	needEngine(t)
	shared.Do(func() { shared.engine, shared.err = newEngine("{}") })
	require.NoError(t, shared.err)
	return shared.engine
}

func needEngine(t *testing.T) {
	t.Helper()
	need.Program(t, "dockerd")
	need.Root(t, "it runs dockerd")
}

func newEngine(config string) (e *engine, err error) { return newEngineIn("", "", config) }

func newEngineIn(space, addr, config string) (e *engine, err error) {
	dir, err := os.MkdirTemp("", "prego-dockerd-")
	if err != nil {
		return nil, err
	}
	e = &engine{dir: dir, config: config, space: space, addr: addr}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if err := pki.Init(filepath.Join(dir, "keys"), "test"); err != nil {
		return e, err
	}
	if e.ca, err = pki.Open(filepath.Join(dir, "keys"), "test"); err != nil {
		return e, err
	}
	if err := e.certify(); err != nil {
		return e, err
	}
	if e.port, err = child.FreePort(); err != nil {
		return e, err
	}
	if err := e.start(); err != nil {
		return e, err
	}
	image, err := stubImage(dir)
	if err != nil {
		return e, err
	}
	c, err := e.local()
	if err != nil {
		return e, err
	}
	defer func() { _ = c.Close() }()
	for _, tag := range []string{"stub:1", "stub:2"} {
		r, err := c.ImageImport(context.Background(), client.ImageImportSource{Source: bytes.NewReader(image), SourceName: "-"}, tag,
			client.ImageImportOptions{Changes: []string{`CMD ["/stub","serve"]`}})
		if err != nil {
			return e, err
		}
		_, _ = io.Copy(io.Discard, r)
		_ = r.Close()
	}
	return e, nil
}

// certify issues what the agent of serverID would get, and writes dockerd's part.
func (e *engine) certify() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	request := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	certs, err := e.ca.SignCSRs(serverID, []net.IP{net.IPv4(127, 0, 0, 1)}, wire.CSRs{AgentClient: request, AgentServer: request, DockerServer: request}, time.Hour)
	if err != nil {
		return err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	if e.agent, err = tls.X509KeyPair([]byte(certs.AgentClient), keyPEM); err != nil {
		return err
	}
	bundle, err := e.ca.Bundle(pki.DockerClient)
	if err != nil {
		return err
	}
	for name, content := range map[string]string{"ca.pem": bundle, "cert.pem": certs.DockerServer, "key.pem": string(keyPEM)} {
		if err := os.WriteFile(filepath.Join(e.dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// start runs dockerd until it answers. The storage driver is its own choice:
// overlay2 where that works, else vfs.
func (e *engine) start() error {
	in := func(name string) string { return filepath.Join(e.dir, name) }
	log, err := os.OpenFile(in("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command("dockerd", "--config-file", in("none.json"), "--data-root", in("data"), "--exec-root", in("exec"), "--pidfile", in("pid"),
		"--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false", "-H", "unix://"+in("sock"), "-H", "tcp://127.0.0.1:"+strconv.Itoa(e.port),
		"--tlsverify", "--tlscacert", in("ca.pem"), "--tlscert", in("cert.pem"), "--tlskey", in("key.pem"))
	if e.space != "" {
		cmd = exec.Command("nsenter", "--net=/run/netns/"+e.space, "dockerd", "--config-file", in("none.json"), "--data-root", in("data"), "--exec-root", in("exec"), "--pidfile", in("pid"),
			"--bridge=none", "--userland-proxy=false", "-H", "unix://"+in("sock"), "-H", "tcp://"+net.JoinHostPort(e.addr, strconv.Itoa(e.port)),
			"--tlsverify", "--tlscacert", in("ca.pem"), "--tlscert", in("cert.pem"), "--tlskey", in("key.pem"))
	}
	if err := os.WriteFile(in("none.json"), []byte(e.config), 0o600); err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	// When the tests are killed it stops, and containerd and the containers with it.
	if e.process, err = child.StartDaemon(cmd, e.dir); err != nil {
		return err
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if c, err := e.local(); err == nil {
			_, err = c.Ping(context.Background(), client.PingOptions{})
			_ = c.Close()
			if err == nil {
				return nil
			}
		}
		select {
		case <-e.process.Done():
			text, _ := os.ReadFile(in("log"))
			return fmt.Errorf("dockerd ended: %s", text[max(0, len(text)-2000):])
		default:
		}
	}
	return fmt.Errorf("dockerd does not answer; see %s", in("log"))
}

func (e *engine) stop(sig syscall.Signal) {
	if e.process == nil {
		return
	}
	e.process.Stop(sig, 30*time.Second)
	e.process = nil
	if sig == syscall.SIGKILL {
		e.killContainerd()
	}
}

// killContainerd ends the containerd that a killed dockerd leaves behind, and removes its pid file: where orphans are
// not reaped, the next dockerd would wait for it.
func (e *engine) killContainerd() {
	file := filepath.Join(e.dir, "exec/containerd/containerd.pid")
	b, err := os.ReadFile(file)
	if err != nil {
		return
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
		if cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && bytes.Contains(cmdline, []byte(e.dir)) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	_ = os.Remove(file)
}

func (e *engine) close() {
	if c, err := e.local(); err == nil && e.process != nil {
		if list, err := c.ContainerList(context.Background(), client.ContainerListOptions{All: true}); err == nil {
			for _, i := range list.Items {
				_, _ = c.ContainerRemove(context.Background(), i.ID, client.ContainerRemoveOptions{Force: true})
			}
		}
		if list, err := c.NetworkList(context.Background(), client.NetworkListOptions{}); err == nil {
			for _, n := range list.Items { // their bridges would outlive the engine
				if n.Driver == "bridge" {
					_, _ = c.NetworkRemove(context.Background(), n.ID, client.NetworkRemoveOptions{})
				}
			}
		}
		_ = c.Close()
	}
	e.stop(syscall.SIGTERM)
	e.killContainerd()
	e.sweep()
	_ = os.RemoveAll(e.dir)
}

// sweep ends the shims and mounts that a killed engine leaves. The directory, which only this engine uses, identifies
// them.
func (e *engine) sweep() {
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range procs {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if cmdline, readErr := os.ReadFile(f); err == nil && readErr == nil && bytes.Contains(cmdline, []byte(e.dir+"/exec/")) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for _, line := range slices.Backward(strings.Split(string(mounts), "\n")) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], e.dir+"/") {
			_ = syscall.Unmount(f[1], 2) // MNT_DETACH
		}
	}
}

// local is a client over the unix socket, like a process on the host.
func (e *engine) local() (*client.Client, error) {
	return client.New(client.WithHost("unix://" + filepath.Join(e.dir, "sock")))
}

// hosts reaches engines on a port with our certificates, or with cfg's.
func (e *engine) hosts(port int, tlsFor func(prego.ServerID) *tls.Config) *dockerhost.Hosts {
	if tlsFor == nil {
		tlsFor = e.ca.DockerClientTLS()
	}
	return dockerhost.New(dockerhost.Config{TLS: tlsFor, Port: port, CheckAddr: func(string) error { return nil }})
}

func (e *engine) host(t *testing.T) *dockerhost.Host {
	t.Helper()
	h, err := e.hosts(e.port, nil).Host(serverID, cmp.Or(e.addr, "127.0.0.1"))
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h
}

// hostWith is the host for who logs in to registries.
func (e *engine) hostWith(t *testing.T, login dockerhost.Login) *dockerhost.Host {
	t.Helper()
	h, err := dockerhost.New(dockerhost.Config{
		TLS: e.ca.DockerClientTLS(), Port: e.port, CheckAddr: func(string) error { return nil }, Login: login,
	}).Host(serverID, "127.0.0.1")
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h
}

// stubImage is a root directory with nothing but the tests' own static program.
func stubImage(dir string) ([]byte, error) {
	bin := filepath.Join(dir, "stub")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", bin, "./testdata/stub")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the stub: %w: %s", err, out)
	}
	content, err := os.ReadFile(bin)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"stub", "probe"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// registry serves one image, stub, in as many tags as are asked for. Its layer is
// held back while gate is closed to it.
type registry struct {
	addr string
	mu   sync.Mutex
	user string        // and password, that it asks for
	gate chan struct{} // nil: open
	held chan struct{} // gets a value when a request waits for the layer
}

func (r *registry) hold() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gate := make(chan struct{})
	r.gate = gate
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.gate == gate {
			close(gate)
			r.gate = nil
		}
	}
}

func newRegistry(t *testing.T, e *engine) *registry {
	t.Helper()
	layer, err := stubImage(e.dir)
	require.NoError(t, err)
	digest := func(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Cmd": []string{"/stub", "serve"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	require.NoError(t, err)
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
		"config": map[string]any{"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": digest(config)},
		"layers": []any{map[string]any{"mediaType": "application/vnd.docker.image.rootfs.diff.tar", "size": len(layer), "digest": digest(layer)}},
	})
	require.NoError(t, err)
	r := &registry{held: make(chan struct{}, 64)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		send := func(b []byte, kind string) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Docker-Content-Digest", digest(b))
			w.Header().Set("Content-Length", strconv.Itoa(len(b)))
			if q.Method != http.MethodHead {
				_, _ = w.Write(b)
			}
		}
		r.mu.Lock()
		want := r.user
		r.mu.Unlock()
		if user, password, _ := q.BasicAuth(); want != "" && (user != want || password != want) {
			w.Header().Set("WWW-Authenticate", `Basic realm="stub"`)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`))
			return
		}
		switch p := q.URL.Path; {
		case p == "/v2/":
		case strings.HasPrefix(p, "/v2/stub/manifests/") && !strings.HasSuffix(p, "/absent"):
			send(manifest, "application/vnd.docker.distribution.manifest.v2+json")
		case strings.HasSuffix(p, digest(config)):
			send(config, "application/octet-stream")
		case strings.HasSuffix(p, digest(layer)):
			r.mu.Lock()
			gate := r.gate
			r.mu.Unlock()
			if gate != nil {
				w.Header().Set("Content-Length", strconv.Itoa(len(layer)))
				_, _ = w.Write(layer[:len(layer)/2])
				_ = http.NewResponseController(w).Flush()
				r.held <- struct{}{}
				select {
				case <-gate:
				case <-q.Context().Done():
					return
				}
				_, _ = w.Write(layer[len(layer)/2:])
				return
			}
			send(layer, "application/octet-stream")
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`))
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { r.hold()() })
	r.addr = strings.TrimPrefix(srv.URL, "http://")
	return r
}

// proxy passes connections on until it is cut.
type proxy struct {
	port  int
	mu    sync.Mutex
	conns []net.Conn
	cuts  int
	end   func()
}

func newProxy(t *testing.T, to int) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{port: l.Addr().(*net.TCPAddr).Port}
	p.end = func() { _ = l.Close(); p.cut() }
	t.Cleanup(p.end)
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(to))
			if err != nil {
				_ = in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
			go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
		}
	}()
	return p
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts += len(p.conns) / 2
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}
