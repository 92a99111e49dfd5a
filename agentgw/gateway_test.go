package agentgw_test

import (
	"bytes"
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
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/agentgw"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type signals struct {
	mu   sync.Mutex
	sent []string
	hang chan struct{} // until it is closed the workflow engine answers nothing; nil: it answers
	hung atomic.Int64
}

func (s *signals) add(kind string, id prego.ServerID) error {
	if s.hang != nil {
		s.hung.Add(1)
		<-s.hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, kind+" "+string(id))
	return nil
}

func (s *signals) AgentHeartbeat(_ context.Context, id prego.ServerID, _ int) error {
	return s.add("heartbeat", id)
}

func (s *signals) BootstrapRefused(_ context.Context, id prego.ServerID, _ int) error {
	return s.add("refused", id)
}

func (s *signals) BootFailed(_ context.Context, id prego.ServerID, _ int) error {
	return s.add("boot failed", id)
}

func (s *signals) WakeGroup(_ context.Context, id prego.GroupID, _ prego.OrgID) error {
	return s.add("group", prego.ServerID(id))
}

func (s *signals) WakeTenant(_ context.Context, id prego.TenantID) error {
	return s.add("tenant", prego.ServerID(id))
}

func (s *signals) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.sent...)
}

type bundle struct {
	t       testing.TB
	keys    string // directory
	url     string
	pool    *pgxpool.Pool
	log     *observer.ObservedLogs
	reg     *prometheus.Registry
	stop    func() // and wait until everything is drained
	store   *store.Store
	ca      *pki.Authority
	peers   *token.Peers
	agents  *token.Agents
	signals *signals
	exec    func(sql string, args ...any)
	serving *agentgw.Gateway
	openKey func(tenant.ServedCertificate) ([]byte, error)
}

func setup(t testing.TB, change func(*agentgw.Settings)) *bundle {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, pki.Init(dir, "test"))
	require.NoError(t, token.InitKeys(dir))
	ca, err := pki.Open(dir, "test")
	require.NoError(t, err)
	ring, err := token.OpenKeyring(dir, token.UseAgent)
	require.NoError(t, err)
	peersRing, err := token.OpenSigner(dir, token.UsePeers)
	require.NoError(t, err)
	peers, err := token.NewPeers(peersRing)
	require.NoError(t, err)
	pool := pgtest.Pool(t)
	core, logged := observer.New(zap.InfoLevel)
	b := &bundle{t: t, keys: dir, pool: pool, log: logged, reg: prometheus.NewRegistry(), store: store.New(pool), ca: ca, peers: peers, agents: token.NewAgents(ring), signals: &signals{}}
	b.exec = func(sql string, args ...any) {
		_, err := pool.Exec(context.Background(), sql, args...)
		require.NoError(t, err)
	}
	settings := agentgw.Settings{
		Environment: "test", Heartbeat: 30 * time.Second, TokenTTL: time.Hour, CertTTL: 24 * time.Hour, Flush: 10 * time.Millisecond, FlushRows: 500,
		AgentBinary: []byte("agent"), AgentSHA256: "d1", ClockTolerance: 20 * time.Second,
	}
	if change != nil {
		change(&settings)
	}
	b.openKey = func(tenant.ServedCertificate) ([]byte, error) { return nil, errors.New("no key") }
	b.serving = agentgw.New(agentgw.Deps{
		Store: b.store, Signals: b.signals, CA: b.ca, Tokens: b.agents, Peers: peers, Settings: settings, Log: zap.New(core),
		OpenKey: func(c tenant.ServedCertificate) ([]byte, error) { return b.openKey(c) }, Metrics: b.reg,
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b.url = "https://" + l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.serving.Serve(ctx, l, ca.GatewayTLS("gw.test"), 5*time.Second) }()
	b.stop = sync.OnceFunc(func() { cancel(); require.NoError(t, <-done) })
	t.Cleanup(b.stop)
	return b
}

// server is a row at attempt 1 whose token is "raw-<id>-0123456789".
func (b *bundle) server(id prego.ServerID) {
	b.exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, attempt, host)
VALUES ($1, '\x00', 'app', 'eu', 'hetzner', '{}', 'provisioning', 'server-provision/' || $1, 'test', 1, '127.0.0.1')`, id)
	_, err := b.store.IssueToken(context.Background(), server.TokenIssue{TokenID: string("t-" + id), ServerID: id, Attempt: 1, Purpose: server.PurposeAgentBootstrap, Hash: token.Hash(raw(string(id))), TTL: time.Minute})
	require.NoError(b.t, err)
}

func raw(id string) string { return "raw-" + id + "-0123456789" }

func newKey(t testing.TB) *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return k
}

func csr(t testing.TB, k *ecdsa.PrivateKey) string {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, k)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func selfSigned(t testing.TB, k *ecdsa.PrivateKey) *tls.Certificate {
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	require.NoError(t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k}
}

func (b *bundle) client(cert *tls.Certificate) *http.Client {
	ca, err := b.ca.Bundle(pki.Gateway)
	require.NoError(b.t, err)
	return clientFor(b.t, ca, cert)
}

func clientFor(t testing.TB, gatewayCA string, cert *tls.Certificate) *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(gatewayCA))
	cfg := &tls.Config{RootCAs: pool, ServerName: "gw.test", MinVersion: tls.VersionTLS13}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (b *bundle) post(c *http.Client, path, bearer, contentType string, body []byte) (int, wire.Problem, []byte) {
	b.t.Helper()
	req, err := http.NewRequest(http.MethodPost, b.url+path, bytes.NewReader(body))
	require.NoError(b.t, err)
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := c.Do(req)
	require.NoError(b.t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	var p wire.Problem
	if resp.StatusCode >= 400 {
		require.Equal(b.t, "application/problem+json", resp.Header.Get("Content-Type"))
		require.NoError(b.t, json.Unmarshal(answer, &p))
	}
	return resp.StatusCode, p, answer
}

func (b *bundle) handshake(id string, key *ecdsa.PrivateKey, change func(*wire.HandshakeRequest)) (int, wire.Problem, wire.Identity) {
	b.t.Helper()
	in := wire.HandshakeRequest{ServerID: id, Token: raw(id), AgentVersion: "v1", CSRs: wire.CSRs{AgentClient: csr(b.t, key), AgentServer: csr(b.t, newKey(b.t)), DockerServer: csr(b.t, newKey(b.t))}}
	if change != nil {
		change(&in)
	}
	body, err := json.Marshal(in)
	require.NoError(b.t, err)
	status, p, answer := b.post(b.client(selfSigned(b.t, key)), wire.PathHandshake, "", "application/json", body)
	var out wire.Identity
	if status == 200 {
		require.NoError(b.t, json.Unmarshal(answer, &out))
	}
	return status, p, out
}

func certificate(t testing.TB, text string, key *ecdsa.PrivateKey) *tls.Certificate {
	block, _ := pem.Decode([]byte(text))
	require.NotNil(t, block)
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}
}

// metricsOf is one point that claims to come from a server.
func metricsOf(t testing.TB, serverID prego.ServerID) []byte {
	t.Helper()
	text := func(k, v string) *commonpb.KeyValue {
		return &commonpb.KeyValue{Key: k, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}}
	}
	b, err := proto.Marshal(&colmetrics.ExportMetricsServiceRequest{ResourceMetrics: []*metricspb.ResourceMetrics{{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{text("host.id", string(serverID)), text("service.name", "prego-agent")}},
		ScopeMetrics: []*metricspb.ScopeMetrics{{Metrics: []*metricspb.Metric{{
			Name: "m", Data: &metricspb.Metric_Gauge{Gauge: &metricspb.Gauge{DataPoints: []*metricspb.NumberDataPoint{{}}}},
		}}}},
	}}})
	require.NoError(t, err)
	return b
}

const beat = `{"boot_id":"b","agent_version":"v1","load1":0.5,"memory_pct":10,"disk_pct":20,"docker_state":"running"}`

func TestHandshake(t *testing.T) {
	t.Parallel()
	b := setup(t, func(s *agentgw.Settings) { s.CheckSource = true })
	for name, tc := range map[string]struct {
		change func(*wire.HandshakeRequest)
		code   string
		status int
	}{
		"unknown token":          {func(r *wire.HandshakeRequest) { r.Token = "nonsense" }, "token_unknown", 401},
		"truncated token":        {func(r *wire.HandshakeRequest) { r.Token = r.Token[:10] }, "token_unknown", 401},
		"another server's":       {func(r *wire.HandshakeRequest) { r.ServerID = "other" }, "token_unknown", 401},
		"hostile id":             {func(r *wire.HandshakeRequest) { r.ServerID = "../x" }, "invalid_field", 422},
		"request of another key": {func(r *wire.HandshakeRequest) { r.CSRs.AgentClient = csr(t, newKey(t)) }, "invalid_field", 422},
		"no requests":            {func(r *wire.HandshakeRequest) { r.CSRs = wire.CSRs{} }, "invalid_field", 422},
		"no server request":      {func(r *wire.HandshakeRequest) { r.CSRs.AgentServer = "" }, "invalid_field", 422},
		"broken docker request":  {func(r *wire.HandshakeRequest) { r.CSRs.DockerServer = r.CSRs.DockerServer[:80] }, "invalid_field", 422},
		"text no column takes":   {func(r *wire.HandshakeRequest) { r.BootID = "a\x00b" }, "invalid_field", 422},
	} {
		id := "h-" + strings.NewReplacer(" ", "-", "'", "").Replace(name)
		b.server(prego.ServerID(id))
		status, p, _ := b.handshake(id, newKey(t), tc.change)
		require.Equal(t, tc.status, status, name)
		require.Equal(t, tc.code, p.Code, name)
		status, _, _ = b.handshake(id, newKey(t), nil)
		require.Equal(t, 200, status, "%s: the refusal did not burn the token", name)
	}
	b.server("elsewhere")
	b.exec(`UPDATE servers SET host = '192.0.2.1' WHERE server_id = 'elsewhere'`)
	status, p, _ := b.handshake("elsewhere", newKey(t), nil)
	require.Equal(t, 403, status)
	require.Equal(t, "source_mismatch", p.Code)

	b.server("expired")
	b.exec(`UPDATE server_bootstrap_tokens SET expires_at = now() WHERE server_id = 'expired'`)
	status, p, _ = b.handshake("expired", newKey(t), nil)
	require.Equal(t, 410, status)
	require.Equal(t, "bootstrap_token_expired", p.Code)
	status, p, _ = b.handshake("expired", newKey(t), nil)
	require.Equal(t, 410, status, "each time")
	require.Equal(t, "bootstrap_token_expired", p.Code)

	b.server("twice")
	key := newKey(t)
	for range 2 { // the answer was lost: the same key gets the same outcome
		status, _, id := b.handshake("twice", key, nil)
		require.Equal(t, 200, status)
		require.Equal(t, "twice", id.ServerID)
		require.Equal(t, 30, id.HeartbeatSeconds)
	}
	status, p, _ = b.handshake("twice", newKey(t), nil)
	require.Equal(t, 409, status)
	require.Equal(t, "token_consumed", p.Code)
	require.Eventually(t, func() bool { return slices.Contains(b.signals.all(), "refused twice") }, 5*time.Second, time.Millisecond)

	status, p, _ = b.post(b.client(nil), wire.PathHandshake, "", "application/json", []byte(`{"server_id":"twice","token":"x"}`))
	require.Equal(t, 401, status, "a handshake without a key")
	require.Equal(t, "certificate_invalid", p.Code)
	status, p, _ = b.post(b.client(nil), wire.PathHandshake, "", "application/json", bytes.Repeat([]byte("x"), 70_000))
	require.Equal(t, 400, status, "%v", p)
	status, p, _ = b.post(b.client(nil), wire.PathHandshake, "", "application/json", []byte(`{"server_id":"`+strings.Repeat("x", 70_000)+`"}`))
	require.Equal(t, 413, status)
	require.Equal(t, "body_too_large", p.Code)
}

// TestSwapMatrix shows every certificate with every token: only a server's own
// pair, of the right purpose and scope, is let in.
func TestSwapMatrix(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	stranger := setup(t, nil)
	type identity struct {
		key  *ecdsa.PrivateKey
		id   wire.Identity
		cert *tls.Certificate
	}
	enroll := func(b *bundle, id prego.ServerID) identity {
		b.server(id)
		key := newKey(t)
		status, _, out := b.handshake(string(id), key, nil)
		require.Equal(t, 200, status)
		return identity{key, out, certificate(t, out.Certificates.AgentClient, key)}
	}
	one, two, other := enroll(b, "one"), enroll(b, "two"), enroll(stranger, "one")
	serverKey := newKey(t)
	certs, err := b.ca.SignCSRs("one", nil, wire.CSRs{AgentClient: csr(t, one.key), AgentServer: csr(t, serverKey), DockerServer: csr(t, serverKey)}, time.Hour)
	require.NoError(t, err)
	expiredCerts, err := b.ca.SignCSRs("one", nil, wire.CSRs{AgentClient: csr(t, one.key), AgentServer: csr(t, serverKey), DockerServer: csr(t, serverKey)}, -time.Minute)
	require.NoError(t, err)
	certificates := map[string]*tls.Certificate{
		"one": one.cert, "two": two.cert, "another CA's": other.cert, "self-signed": selfSigned(t, one.key), "none": nil,
		"server certificate": certificate(t, certs.AgentServer, serverKey), "docker certificate": certificate(t, certs.DockerServer, serverKey),
		"renewed": certificate(t, certs.AgentClient, one.key), "expired": certificate(t, expiredCerts.AgentClient, one.key),
	}
	jwts := map[string]string{"one": one.id.Token, "two": two.id.Token, "another CA's": other.id.Token, "none": "", "bootstrap": raw("one"), "truncated": one.id.Token[:60]}
	for cn, cert := range certificates {
		c := b.client(cert)
		for jn, j := range jwts {
			status, p, _ := b.post(c, wire.PathHeartbeat, j, "application/json", []byte(beat))
			if cn == jn && (cn == "one" || cn == "two") {
				require.Equal(t, 200, status, "%s with %s: %v", cn, jn, p)
			} else {
				require.Contains(t, []int{401, 403}, status, "certificate %s with token %s", cn, jn)
			}
		}
	}
	require.Eventually(t, func() bool {
		n := 0
		for _, s := range b.signals.all() {
			if strings.HasPrefix(s, "heartbeat") {
				n++
			}
		}
		return n >= 2
	}, 10*time.Second, 10*time.Millisecond, "a server that is provisioning is signalled")

	b.exec(`UPDATE servers SET identity_revoked_at = now() WHERE server_id = 'two'`)
	require.Eventually(t, func() bool {
		status, p, _ := b.post(b.client(two.cert), wire.PathHeartbeat, two.id.Token, "application/json", []byte(beat))
		return status == 403 && p.Code == "identity_revoked"
	}, 10*time.Second, 50*time.Millisecond)
	status, p, _ := b.post(b.client(two.cert), wire.PathRotateToken, two.id.Token, "application/json", []byte(`{}`))
	require.Equal(t, 403, status, "%v", p)
	// A host holds its jobs for this answer, whenever it returns: also when its token has expired.
	for code, who := range map[string]identity{"identity_revoked": two, "token_expired": one} {
		cert, err := x509.ParseCertificate(who.cert.Certificate[0])
		require.NoError(t, err)
		late, _, err := b.agents.Issue(prego.ServerID(who.id.ServerID), prego.RoleApp, cert, -time.Hour)
		require.NoError(t, err)
		_, p, _ = b.post(b.client(who.cert), wire.PathHeartbeat, late, "application/json", []byte(beat))
		require.Equal(t, code, p.Code)
	}
}

// TestAHostReportsNoMoreThanAHostCan: requests of one identity are limited, large ones sooner, and other hosts are
// not concerned.
func TestAHostReportsNoMoreThanAHostCan(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64 // seconds
	began := time.Now()
	b := setup(t, func(s *agentgw.Settings) {
		s.Now = func() time.Time { return began.Add(time.Duration(ahead.Load()) * time.Second) }
	})
	send := map[string]func(path, body string) (int, wire.Problem){}
	for _, id := range []string{"one", "two"} {
		b.server(prego.ServerID(id))
		key := newKey(t)
		_, _, identity := b.handshake(id, key, nil)
		c := b.client(certificate(t, identity.Certificates.AgentClient, key))
		send[id] = func(path, body string) (int, wire.Problem) {
			status, p, _ := b.post(c, path, identity.Token, "application/json", []byte(body))
			return status, p
		}
	}
	accepted := func(path, body string) (n int) {
		for range 300 {
			status, p := send["one"](path, body)
			if status == http.StatusTooManyRequests {
				require.Equal(t, "rate_limited", p.Code)
				return n
			}
			n++
		}
		return n
	}
	require.Equal(t, 200, accepted(wire.PathHeartbeat, beat))
	status, p := send["two"](wire.PathHeartbeat, beat)
	require.Equal(t, 200, status, "%v", p)
	ahead.Store(5)
	require.Equal(t, 50, accepted(wire.PathHeartbeat, beat))
	ahead.Store(3600)
	require.Equal(t, 6, accepted(wire.PathContainers, strings.Repeat(" ", 2<<20)), "33 each")
}

func TestTelemetryAndRotation(t *testing.T) {
	t.Parallel()
	var forwarded atomic.Pointer[colmetrics.ExportMetricsServiceRequest]
	var answer atomic.Int64
	answer.Store(http.StatusOK)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var got colmetrics.ExportMetricsServiceRequest
		if proto.Unmarshal(body, &got) == nil && r.URL.Path == "/v1/metrics" {
			forwarded.Store(&got)
		}
		w.WriteHeader(int(answer.Load()))
	}))
	t.Cleanup(backend.Close)
	b := setup(t, func(s *agentgw.Settings) { s.OTLPEndpoint = backend.URL })
	b.server("one")
	key := newKey(t)
	_, _, id := b.handshake("one", key, nil)
	c := b.client(certificate(t, id.Certificates.AgentClient, key))
	otlp := metricsOf(t, "two") // claims another server
	texts := func(reason, failure int) string {
		return `{"reboot_for":"` + strings.Repeat("a", reason) + `","failed":"` + strings.Repeat("b", failure) + `"}`
	}
	for name, tc := range map[string]struct {
		path, contentType string
		body              string
		status            int
	}{
		"heartbeat":         {wire.PathHeartbeat, "application/json", beat, 200},
		"load negative":     {wire.PathHeartbeat, "application/json", `{"load1":-1}`, 422},
		"memory above 100":  {wire.PathHeartbeat, "application/json", `{"memory_pct":101}`, 422},
		"measures":          {wire.PathHeartbeat, "application/json", `{"cpu_pct":0,"worker_slots_pct":100,"db_disk_pct":null,"redis_memory_pct":1.5}`, 200},
		"CPU above 100":     {wire.PathHeartbeat, "application/json", `{"cpu_pct":100.1}`, 422},
		"negative slots":    {wire.PathHeartbeat, "application/json", `{"worker_slots_pct":-1}`, 422},
		"disk above 100":    {wire.PathHeartbeat, "application/json", `{"db_disk_pct":101}`, 422},
		"Redis above 100":   {wire.PathHeartbeat, "application/json", `{"redis_memory_pct":101}`, 422},
		"unknown field":     {wire.PathHeartbeat, "application/json", `{"cpu":1}`, 400},
		"a NUL":             {wire.PathHeartbeat, "application/json", `{"boot_id":"a\u0000"}`, 422},
		"tags":              {wire.PathHeartbeat, "application/json", `{"tags":["blue","stack:a"]}`, 200},
		"tag with a space":  {wire.PathHeartbeat, "application/json", `{"tags":["a b"]}`, 422},
		"tag of 64":         {wire.PathHeartbeat, "application/json", `{"tags":["` + strings.Repeat("a", 64) + `"]}`, 422},
		"updates":           {wire.PathPatches, "application/json", `{"pending":1,"packages":[{"name":"a","from":"0","to":"1"}],"checked_at":"2026-01-02T03:04:05Z"}`, 204},
		"more than pending": {wire.PathPatches, "application/json", `{"pending":1,"packages":[{"name":"a","to":"1"},{"name":"b","to":"1"}]}`, 422},
		"no package's name": {wire.PathPatches, "application/json", `{"pending":1,"packages":[{"name":"a\u0000","to":"1"}]}`, 422},
		"negative pending":  {wire.PathPatches, "application/json", `{"pending":-1}`, 422},
		"texts of updates":  {wire.PathPatches, "application/json", texts(512, 512), 204},
		"a long reason":     {wire.PathPatches, "application/json", texts(513, 0), 422},
		"a long failure":    {wire.PathPatches, "application/json", texts(0, 513), 422},
		"unknown state":     {wire.PathHeartbeat, "application/json", `{"docker_state":"party"}`, 422},
		"two documents":     {wire.PathHeartbeat, "application/json", beat + beat, 400},
		"metrics":           {wire.PathMetrics, "application/x-protobuf", string(otlp), 200},
		"metrics as JSON":   {wire.PathMetrics, "application/json", "{}", 415},
		"metrics broken":    {wire.PathMetrics, "application/x-protobuf", "\xff\xff", 422},
		"logs":              {wire.PathLogs, "application/x-ndjson", `{"unit":"prego-agent.service","level":"warn","message":"password=hunter2"}` + "\n\n" + `{"message":"b"}`, 204},
		"logs broken":       {wire.PathLogs, "application/x-ndjson", "hello", 400},
		"log line too long": {wire.PathLogs, "application/x-ndjson", `{"message":"` + strings.Repeat("x", 9000) + `"}`, 413},
		"backup":            {wire.PathBackupReport, "application/json", `{"site":"a.example.com","status":"succeeded"}`, 204},
		"too many lines":    {wire.PathLogs, "application/x-ndjson", strings.Repeat("{}\n", 1001), 413},
		"backup negative":   {wire.PathBackupReport, "application/json", `{"site":"a.example.com","status":"failed","bytes":-1}`, 422},
		"backup half done":  {wire.PathBackupReport, "application/json", `{"site":"a.example.com","status":"maybe"}`, 422},
	} {
		status, p, _ := b.post(c, tc.path, id.Token, tc.contentType, []byte(tc.body))
		require.Equal(t, tc.status, status, "%s: %v", name, p)
	}
	require.Equal(t, map[string]float64{"succeeded": 1}, b.counters("prego_agentgw_backup_reports_total"))
	require.NotContains(t, fmt.Sprint(b.log.All()), "hunter2")
	var lines []map[string]any
	for _, e := range b.log.FilterMessage("host log").All() {
		m := e.ContextMap()
		delete(m, "at")
		lines = append(lines, m)
	}
	require.Equal(t, []map[string]any{
		{"server_id": "one", "unit": "prego-agent.service", "level": "warn", "message": "password=[redacted]"},
		{"server_id": "one", "unit": "", "level": "", "message": "b"},
	}, lines, "no refused line, and no secret in clear text")
	require.Len(t, forwarded.Load().GetResourceMetrics(), 1)
	attributes := forwarded.Load().GetResourceMetrics()[0].GetResource().GetAttributes()
	require.Len(t, attributes, 2)
	for _, a := range attributes {
		want := map[string]string{"service.name": "prego-agent", "host.id": "one"}[a.GetKey()]
		require.Equal(t, want, a.GetValue().GetStringValue(),
			"metrics belong to the server that sent them, regardless of their claim")
	}
	for code, want := range map[int]int{500: 503, 429: 503, 400: 200} {
		answer.Store(int64(code))
		status, _, _ := b.post(c, wire.PathMetrics, id.Token, "application/x-protobuf", otlp)
		require.Equal(t, want, status, "the backend answers %d", code)
	}
	backend.Close()
	status, _, _ := b.post(c, wire.PathMetrics, id.Token, "application/x-protobuf", otlp)
	require.Equal(t, 503, status, "the agent learns that the metrics were not accepted")

	status, _, renewal := b.post(c, wire.PathRotateToken, id.Token, "application/json", []byte(`{}`))
	require.Equal(t, 200, status)
	var next wire.Identity
	require.NoError(t, json.Unmarshal(renewal, &next))
	require.NotEqual(t, id.Token, next.Token)
	require.Empty(t, next.Certificates.AgentClient)
	body, err := json.Marshal(wire.RotateRequest{CSRs: &wire.CSRs{AgentClient: csr(t, key), AgentServer: csr(t, newKey(t)), DockerServer: csr(t, newKey(t))}})
	require.NoError(t, err)
	status, _, renewal = b.post(c, wire.PathRotateToken, next.Token, "application/json", body)
	require.Equal(t, 200, status)
	require.NoError(t, json.Unmarshal(renewal, &next))
	renewed := b.client(certificate(t, next.Certificates.AgentClient, key))
	status, _, _ = b.post(renewed, wire.PathHeartbeat, next.Token, "application/json", []byte(beat))
	require.Equal(t, 200, status)
	status, _, _ = b.post(c, wire.PathHeartbeat, id.Token, "application/json", []byte(beat))
	require.Equal(t, 200, status, "the old pair is good until it expires: nothing under way is dropped")
	body, err = json.Marshal(wire.RotateRequest{CSRs: &wire.CSRs{AgentClient: csr(t, newKey(t)), AgentServer: csr(t, newKey(t)), DockerServer: csr(t, newKey(t))}})
	require.NoError(t, err)
	status, _, _ = b.post(c, wire.PathRotateToken, id.Token, "application/json", body)
	require.Equal(t, 422, status, "the bound key stays")
}

func TestBootEndpointsTakeTheTokenAndKeepIt(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.server("boots")
	b.server("other")
	b.server("late")
	b.exec(`UPDATE server_bootstrap_tokens SET expires_at = now() WHERE server_id = 'late'`)
	c := b.client(nil)
	stage := func(bearer, body string) (int, string) {
		status, p, _ := b.post(c, wire.PathBootStage, bearer, "application/json", []byte(body))
		return status, p.Code
	}
	for range 2 {
		status, _ := stage(raw("boots"), `{"server_id":"boots","stage":"docker_installed","detail":"x\u0007y"}`)
		require.Equal(t, 204, status)
	}
	events, err := b.store.ServerEvents(context.Background(), "boots")
	require.NoError(t, err)
	require.Equal(t, "docker_installed: x y", events[len(events)-1].Message, "once, and printable")
	for name, tc := range map[string]struct{ bearer, body, code string }{
		"no token":       {"", `{}`, "token_unknown"},
		"wrong token":    {"nonsense", `{}`, "token_unknown"},
		"another server": {raw("other"), `{"server_id":"boots","stage":"failed"}`, "token_unknown"},
		"expired token":  {raw("late"), `{"server_id":"late","stage":"failed"}`, "bootstrap_token_expired"},
		"unknown stage":  {raw("boots"), `{"server_id":"boots","stage":"party"}`, "invalid_field"},
		"long detail":    {raw("boots"), fmt.Sprintf(`{"server_id":"boots","stage":"failed","detail":%q}`, strings.Repeat("x", 600)), "invalid_field"},
	} {
		_, code := stage(tc.bearer, tc.body)
		require.Equal(t, tc.code, code, name)
	}
	get := func(path string) int {
		req, err := http.NewRequest(http.MethodGet, b.url+path, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+raw("boots"))
		resp, err := c.Do(req)
		require.NoError(t, err)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	status, _ := stage(raw("boots"), `{"server_id":"boots","stage":"retrying","detail":"packages: no mirror"}`)
	require.Equal(t, 204, status)
	require.Empty(t, b.signals.all(), "what may still end well ends no waiting")
	status, _ = stage(raw("boots"), `{"server_id":"boots","stage":"failed","detail":"packages: --password hunter2"}`)
	require.Equal(t, 204, status)
	require.Eventually(t, func() bool { return slices.Equal([]string{"boot failed boots"}, b.signals.all()) }, time.Second, time.Millisecond)
	state, err := b.store.ProvisionState(context.Background(), "boots")
	require.NoError(t, err)
	require.Equal(t, "packages: --password [redacted]", state.BootFailure,
		"it is in the row before the run is signalled")
	require.Equal(t, "failed: packages: --password [redacted]", state.BootSign)
	require.NotNil(t, state.BootSignAt)
	require.Equal(t, 200, get(wire.PathAgentBinary+"?sha256=d1"))
	require.Equal(t, 404, get(wire.PathAgentBinary+"?sha256=d2"))
	sum, err := b.store.PutBootArtifact(context.Background(), []byte("stage two"))
	require.NoError(t, err)
	require.Equal(t, 200, get(wire.PathStageTwo+"?sha256="+sum))
	require.Equal(t, 422, get(wire.PathStageTwo+"?sha256=zz"))
	require.Equal(t, 404, get("/internal/agent/nonsense"))
	status, _, _ = b.handshake("boots", newKey(t), nil)
	require.Equal(t, 200, status, "the token is not consumed by any of it")

	var limited bool
	for range 40 {
		status, _ := stage("guess", `{}`)
		limited = limited || status == 429
	}
	require.True(t, limited, "guessing is slowed down")
}

// TestHostilePathsMakeNoMetrics requests unforeseen paths: each label has a closed set of values.
func TestHostilePathsMakeNoMetrics(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	c := b.client(nil)
	for i := range 30 {
		for _, path := range []string{"/x%d", wire.PathHeartbeat + "/%d", "/internal/agent/%%2e%%2e/%d"} {
			for _, method := range []string{http.MethodGet, http.MethodPost, "BREW"} {
				req, err := http.NewRequest(method, b.url+fmt.Sprintf(path, i), nil)
				require.NoError(t, err)
				resp, err := c.Do(req)
				require.NoError(t, err)
				_ = resp.Body.Close()
				require.Contains(t, []int{404, 405}, resp.StatusCode)
			}
		}
	}
	families, err := b.reg.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
	for _, f := range families {
		require.Less(t, len(f.GetMetric()), 10, f.GetName())
	}
}
