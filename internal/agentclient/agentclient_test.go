package agentclient_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/agent/exec"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/online"
	"github.com/prego/prego/agent/supervise"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/agentclient"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == supervise.Verb { // the agents of these tests start their own program
		os.Exit(supervise.Main(os.Args[2:]))
	}
	pgtest.Main(m)
}

// plane is a control plane's keys.
type plane struct {
	audit *store.Store
	ca    *pki.Authority
	exec  *token.Exec
	keys  map[string]string
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, pki.Init(dir, "test"))
	require.NoError(t, token.InitKeys(dir))
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by)
		SELECT 'app-' || i, '', 'app', 'eu', 'hetzner', '{}', 'active', 'w', 'x' FROM generate_series(1, 2) i`)
	require.NoError(t, err)
	ca, err := pki.Open(dir, "test")
	require.NoError(t, err)
	ring, err := token.OpenKeyring(dir, token.UseExec)
	require.NoError(t, err)
	keys, err := ring.PublicPEM()
	require.NoError(t, err)
	return &plane{audit: store.New(pool), ca: ca, exec: token.NewExec(ring, func() int64 { return 0 }), keys: keys}
}

func (p *plane) client(t *testing.T, port int) *agentclient.Client {
	t.Helper()
	c := agentclient.New(agentclient.Config{TLS: p.ca.ExecClientTLS(), Tokens: p.exec, Port: port, CheckAddr: func(addr string) error {
		if addr != "127.0.0.1" {
			return errors.New("no provider's address")
		}
		return nil
	}})
	t.Cleanup(c.Close)
	return c
}

// csr makes a key, keeps it at name and asks for a certificate.
func csr(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	der, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// host is a host with a real agent, whose bench is the script.
func (p *plane) host(t *testing.T, serverID prego.ServerID, script string) (port int, root string) {
	t.Helper()
	port = need.Port(t)
	root = t.TempDir()
	at := func(name string) string {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		return name
	}
	writeJSON := func(name string, v any) {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(at(name), b, 0o600))
	}
	writeJSON(wire.HostConfigPath, wire.HostConfig{
		ServerID: string(serverID), Environment: "test", GatewayURL: "https://127.0.0.1:1", GatewayServerName: "gateway", AgentPort: port,
	})
	certs, err := p.ca.SignCSRs(serverID, nil, wire.CSRs{
		AgentClient: csr(t, at(wire.IdentityDir+"/client.key")), AgentServer: csr(t, at(wire.IdentityDir+"/server.key")), DockerServer: csr(t, at(wire.IdentityDir+"/docker.key")),
	}, time.Hour)
	require.NoError(t, err)
	bundles, err := p.ca.Bundles(p.keys, nil)
	require.NoError(t, err)
	writeJSON(wire.IdentityDir+"/identity.json", wire.Identity{
		ServerID: string(serverID), Environment: "test", Token: "none", TokenExpires: time.Now().Add(time.Hour), Certificates: certs, Bundles: bundles, HeartbeatSeconds: 300,
	})
	require.NoError(t, os.MkdirAll(filepath.Join(root, wire.BenchDir), 0o755))
	require.NoError(t, os.WriteFile(at(wire.BenchBinary), []byte("#!/bin/sh\n"+script), 0o755))

	h, err := host.OpenHost(root)
	require.NoError(t, err)
	a, err := online.New(h, "127.0.0.1", "test", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	e, err := exec.New(h, "", nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	l, err := h.Listen(wire.ExecSocket)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- a.Run(ctx) }()
	go func() { done <- e.Run(ctx, l) }()
	t.Cleanup(func() { cancel(); require.NoError(t, errors.Join(<-done, <-done)) })
	require.Eventually(t, func() bool {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 10*time.Second, 5*time.Millisecond)
	return port, root
}

func failure(t *testing.T, err error) *server.CommandError {
	t.Helper()
	var ce *server.CommandError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, "bench", ce.Kind)
	return ce
}

// bench runs a command as workflows do.
func (p *plane) bench(ctx context.Context, c *agentclient.Client, serverID prego.ServerID, addr, workflowID, auditID string, timeout time.Duration, args ...string) (string, error) {
	commander := activities.Commander{Agents: c, Audit: p.audit}
	return commander.Bench(ctx, server.BenchCommand{ServerID: serverID, Addr: addr, WorkflowID: workflowID, AuditID: auditID, Timeout: timeout, Args: args})
}

func TestBenchOnARealAgent(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	port, root := p.host(t, "app-1", `echo "$@" | tee -a ran
case $1 in
list-sites) sleep 0.2 ;;
erase-site) echo "$(head -c 2000 /dev/zero | tr '\0' x) --db-password hunter2 no such site" >&2; exit 3 ;;
new-site) sleep 300 ;;
esac`)
	c := p.client(t, port)
	out, err := p.bench(t.Context(), c, "app-1", "127.0.0.1", "w", "a-1", time.Minute, "list-sites")
	require.NoError(t, err)
	require.Equal(t, "list-sites\n", out)
	out, err = p.bench(t.Context(), c, "app-1", "127.0.0.1", "w", "a-1", 0, "list-sites")
	require.NoError(t, err)
	require.Equal(t, "list-sites\n", out)
	ran, err := os.ReadFile(filepath.Join(root, wire.BenchDir, "ran"))
	require.NoError(t, err)
	require.Equal(t, "list-sites\n", string(ran), "it ran once")

	out, err = p.bench(t.Context(), c, "app-1", "127.0.0.1", "w", "a-2", time.Minute, "erase-site", "a.example.com", "--db-name", "pool_a")
	ce := failure(t, err)
	require.Equal(t, "erase-site a.example.com --db-name pool_a\n", out)
	require.Equal(t, []any{3, true, server.CommandFailed}, []any{ce.ExitCode, ce.Permanent, ce.Code})
	require.LessOrEqual(t, len(ce.Stderr), 1<<10)
	require.True(t, strings.HasSuffix(ce.Stderr, "no such site\n"))
	require.NotContains(t, err.Error(), "hunter2")

	_, err = p.bench(t.Context(), c, "app-1", "127.0.0.1", "w", "a-3", time.Second, "new-site", "a.example.com", "--db-name", "pool_a")
	ce = failure(t, err)
	require.Equal(t, []any{124, true, server.CommandTimeout}, []any{ce.ExitCode, ce.Permanent, ce.Code})

	_, err = p.bench(t.Context(), c, "app-1", "127.0.0.1", "w", "a-4", time.Minute, "console")
	ce = failure(t, err)
	require.Equal(t, []any{true, "command_not_allowed"}, []any{ce.Permanent, ce.Code})
	require.Contains(t, err.Error(), "args")

	_, err = p.bench(t.Context(), c, "app-1", "10.0.0.1", "w", "a-5", time.Minute, "list-sites")
	ce = failure(t, err)
	require.Equal(t, []any{true, server.CommandNotSent}, []any{ce.Permanent, ce.Code})

	_, err = p.bench(t.Context(), c, "app-2", "127.0.0.1", "w", "a-6", time.Minute, "list-sites")
	ce = failure(t, err)
	require.Equal(t, []any{true, server.CommandMistrusted}, []any{ce.Permanent, ce.Code}, "another host is at the address")

	stranger := newPlane(t)
	_, err = p.bench(t.Context(), agentclient.New(agentclient.Config{
		TLS: func(id prego.ServerID) *tls.Config { // it trusts the host, and the host not it
			cfg := p.ca.ExecClientTLS()(id)
			cfg.GetClientCertificate = stranger.ca.ExecClientTLS()(id).GetClientCertificate
			return cfg
		}, Tokens: p.exec, Port: port, CheckAddr: func(string) error { return nil },
	}), "app-1", "127.0.0.1", "w", "a-7", time.Minute, "list-sites")
	require.Contains(t, []string{server.CommandMistrusted, server.CommandUnreachable}, failure(t, err).Code)

	_, err = p.bench(t.Context(), agentclient.New(agentclient.Config{TLS: p.ca.ExecClientTLS(), Tokens: stranger.exec, Port: port, CheckAddr: func(string) error { return nil }}),
		"app-1", "127.0.0.1", "w", "a-8", time.Minute, "list-sites")
	ce = failure(t, err)
	require.Equal(t, []any{true, "unauthenticated"}, []any{ce.Permanent, ce.Code})

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = p.bench(ctx, c, "app-1", "127.0.0.1", "w", "a-9", time.Minute, "list-sites")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	out, err = p.bench(t.Context(), c, "app-1", "127.0.0.1", "w", "a-9", time.Minute, "list-sites")
	require.NoError(t, err, "a repeated request joins the running command")
	require.Equal(t, "list-sites\n", out)
}

// fake is a server with an agent's certificate whose answers are the test's.
func (p *plane) fake(t *testing.T, h http.HandlerFunc) (port int, conns *atomic.Int32) {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	request := csr(t, key)
	certs, err := p.ca.SignCSRs("app-1", nil, wire.CSRs{AgentClient: request, AgentServer: request, DockerServer: request}, time.Hour)
	require.NoError(t, err)
	keyPEM, err := os.ReadFile(key)
	require.NoError(t, err)
	pair, err := tls.X509KeyPair([]byte(certs.AgentServer), keyPEM)
	require.NoError(t, err)
	srv := httptest.NewUnstartedServer(h)
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert}
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	conns = new(atomic.Int32)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().(*net.TCPAddr).Port, conns
}

func TestRefusalsAreSorted(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	for name, tc := range map[string]struct {
		answer    http.HandlerFunc
		permanent bool
		code      string
	}{
		"busy":                {problem(429, "busy"), false, "busy"},
		"ending":              {problem(503, "agent_stopping"), false, "agent_stopping"},
		"no problem document": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", http.StatusBadGateway) }, false, "http_502"},
		"unauthenticated":     {problem(401, "unauthenticated"), true, "unauthenticated"},
		"forbidden":           {problem(403, "scope_missing"), true, "scope_missing"},
		"not allowed":         {problem(422, "command_not_allowed"), true, "command_not_allowed"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, true, "http_307"},
		"half an answer":        {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"exitCode":`)) }, false, server.CommandUnreachable},
		"a connection that was": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, server.CommandUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := atomic.Int32{}
			port, _ := p.fake(t, func(w http.ResponseWriter, r *http.Request) { calls.Add(1); tc.answer(w, r) })
			_, err := p.bench(t.Context(), p.client(t, port), "app-1", "127.0.0.1", "w", "a", time.Minute, "list-sites")
			ce := failure(t, err)
			require.Equal(t, []any{tc.permanent, tc.code}, []any{ce.Permanent, ce.Code})
			require.Equal(t, int32(1), calls.Load(), "whether to ask again is the caller's business")
		})
	}
	t.Run("no host there", func(t *testing.T) {
		t.Parallel()
		_, err := p.bench(t.Context(), p.client(t, 1), "app-1", "127.0.0.1", "w", "a", time.Minute, "list-sites")
		ce := failure(t, err)
		require.Equal(t, []any{false, server.CommandUnreachable}, []any{ce.Permanent, ce.Code})
	})
}

func problem(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(wire.Problem{Status: status, Code: code, Detail: "because"})
	}
}

func TestAConnectionIsUsedAgainWithAFreshToken(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	tokens := make(chan string, 10)
	port, conns := p.fake(t, func(w http.ResponseWriter, r *http.Request) {
		tokens <- r.Header.Get("Authorization")
		fmt.Fprint(w, `{"exitCode":0}`)
	})
	c := p.client(t, port)
	seen := map[string]bool{}
	for range cap(tokens) {
		_, err := p.bench(t.Context(), c, "app-1", "127.0.0.1", "w", "", time.Minute, "list-sites")
		require.NoError(t, err)
		seen[<-tokens] = true
	}
	require.Len(t, seen, cap(tokens))
	require.Equal(t, int32(1), conns.Load())
}
