package agentgw_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/agentgw"
	"github.com/prego/prego/internal/pki"
	"github.com/prego/prego/store"
)

// enrolled is an agent with an identity.
type enrolled struct {
	b   *bundle
	key *ecdsa.PrivateKey

	mu       sync.Mutex
	identity wire.Identity
	client   *http.Client
}

func (b *bundle) enroll(id prego.ServerID) *enrolled {
	b.t.Helper()
	b.server(id)
	key := newKey(b.t)
	status, p, identity := b.handshake(string(id), key, nil)
	require.Equal(b.t, 200, status, "%v", p)
	return &enrolled{b: b, key: key, identity: identity, client: b.client(certificate(b.t, identity.Certificates.AgentClient, key))}
}

func (e *enrolled) beat() (int, wire.Problem) {
	status, p, _ := e.b.post(e.client, wire.PathHeartbeat, e.identity.Token, "application/json", []byte(beat))
	return status, p
}

func (b *bundle) heard() int {
	var n int
	require.NoError(b.t, b.pool.QueryRow(context.Background(), `SELECT count(*) FROM servers WHERE agent_last_heartbeat_at IS NOT NULL`).Scan(&n))
	return n
}

// TestAnEngineThatHangsHoldsUpNoAgent lets every signal hang: handshakes and heartbeats still succeed, and are
// written.
func TestAnEngineThatHangsHoldsUpNoAgent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.signals.hang = make(chan struct{})
	answer := sync.OnceFunc(func() { close(b.signals.hang) })
	t.Cleanup(answer)
	const agents = 80 // more than the signals that can hang in parallel
	fleet := make([]*enrolled, agents)
	for i := range fleet {
		fleet[i] = b.enroll(prego.ServerID(fmt.Sprintf("a%d", i)))
	}
	for _, e := range fleet {
		status, p := e.beat()
		require.Equal(t, 200, status, "%v", p)
	}
	require.Eventually(t, func() bool { return b.heard() == agents }, 10*time.Second, 20*time.Millisecond)
	require.EqualValues(t, 64, b.signals.hung.Load(), "as many hang as there is room for")

	// The engine is back: the next heartbeat replaces the skipped signals.
	answer()
	require.Eventually(t, func() bool {
		_, _ = fleet[agents-1].beat()
		return slices.Contains(b.signals.all(), fmt.Sprintf("heartbeat a%d", agents-1))
	}, 15*time.Second, 20*time.Millisecond)
}

func TestDrainWritesWhatWasAnswered(t *testing.T) {
	t.Parallel()
	b := setup(t, func(s *agentgw.Settings) { s.Flush, s.FlushRows = time.Hour, 1_000_000 })
	const agents = 20
	beat := func(f func(i int) *enrolled) {
		for i := range agents {
			status, p := f(i).beat()
			require.Equal(t, 200, status, "%v", p)
		}
	}
	fleet := make([]*enrolled, agents)
	beat(func(i int) *enrolled { fleet[i] = b.enroll(prego.ServerID(fmt.Sprintf("a%d", i))); return fleet[i] })
	require.Eventually(t, func() bool { return b.heard() == agents }, 10*time.Second, 10*time.Millisecond,
		"a run waits for each agent's first heartbeat")
	_, err := b.pool.Exec(t.Context(), `UPDATE servers SET agent_last_heartbeat_at = NULL`)
	require.NoError(t, err)
	beat(func(i int) *enrolled { return fleet[i] })
	require.Zero(t, b.heard(), "nothing is due to be written yet")
	b.stop()
	require.Equal(t, agents, b.heard())
	told := slices.DeleteFunc(b.signals.all(), func(s string) bool { return s != "heartbeat a7" })
	require.Len(t, told, 1, "its run was signalled once, and not by each heartbeat")
	_, err = net.DialTimeout("tcp", b.url[len("https://"):], time.Second)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "the listener is closed")
}

func TestADatabaseThatIsAwayCostsHeartbeatsAndNothingElse(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	e := b.enroll("one")
	_, _ = e.beat()
	require.Eventually(t, func() bool { return b.heard() == 1 }, 10*time.Second, 10*time.Millisecond)
	b.pool.Close() // permanently
	require.Eventually(t, func() bool {
		status, p := e.beat()
		require.Equal(t, 200, status, "a heartbeat does not wait for its write: %v", p)
		return b.log.FilterMessage("heartbeats not written").Len() > 0
	}, 10*time.Second, 20*time.Millisecond)
	status, p, _ := b.handshake("two", newKey(t), nil)
	require.Equal(t, 500, status)
	require.Equal(t, "internal", p.Code)
	require.NotContains(t, p.Detail, "pool", "callers learn no internals")
}

// TestADatabaseThatFailsOverIsAskedForLater hands over to a gateway whose database takes no writes.
func TestADatabaseThatFailsOverIsAskedForLater(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.server("one")
	cfg := b.pool.Config().Copy()
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	readOnly, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(readOnly.Close)
	srv := httptest.NewUnstartedServer(agentgw.New(agentgw.Deps{
		Store: store.New(readOnly), Signals: b.signals, CA: b.ca, Tokens: b.agents, Peers: b.peers, Log: zap.NewNop(), Unavailable: store.Unavailable,
		Settings: agentgw.Settings{Environment: "test", Heartbeat: time.Second, TokenTTL: time.Hour, CertTTL: time.Hour, Flush: time.Hour, FlushRows: 500, ClockTolerance: time.Minute},
	}).Handler())
	srv.TLS = b.ca.GatewayTLS("gw.test")
	srv.StartTLS()
	t.Cleanup(srv.Close)
	before := b.url
	b.url = srv.URL
	key := newKey(t)
	status, p, _ := b.handshake("one", key, nil)
	require.Equal(t, http.StatusServiceUnavailable, status, "%v", p)
	require.Equal(t, "not_ready", p.Code)
	b.url = before
	status, p, _ = b.handshake("one", key, nil)
	require.Equal(t, 200, status, "the token is not burnt: %v", p)
}

// TestRevocationIsOfAnIdentityNotOfAServer revokes one attempt's agent and lets
// the next one's in before the gateway has read that there is another.
func TestRevocationIsOfAnIdentityNotOfAServer(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	old := b.enroll("one")
	b.exec(`UPDATE servers SET identity_revoked_at = now() WHERE server_id = 'one'`)
	require.Eventually(t, func() bool {
		status, p := old.beat()
		return status == 403 && p.Code == "identity_revoked"
	}, 10*time.Second, 20*time.Millisecond)
	b.exec(`UPDATE servers SET attempt = 2, identity_revoked_at = NULL, agent_key_sha256 = NULL WHERE server_id = 'one'`)
	b.exec(`UPDATE server_bootstrap_tokens SET attempt = 2, consumed_at = NULL, consumed_key = NULL WHERE server_id = 'one'`)
	key := newKey(t)
	status, p, identity := b.handshake("one", key, nil)
	require.Equal(t, 200, status, "%v", p)
	next := &enrolled{b: b, identity: identity, client: b.client(certificate(t, identity.Certificates.AgentClient, key))}
	for range 60 { // however often the set is read meanwhile
		_, _ = old.beat()
		status, p := next.beat()
		require.Equal(t, 200, status, "%v", p)
	}
	status, _, _ = b.post(old.client, wire.PathRotateToken, old.identity.Token, "application/json", []byte(`{}`))
	require.Equal(t, 403, status, "the old agent can't renew")
}

// TestAGatewayThatHasNotReadTheRevocationsAsks serves without ever reading them.
func TestAGatewayThatHasNotReadTheRevocationsAsks(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	good, bad := b.enroll("good"), b.enroll("bad")
	srv := httptest.NewUnstartedServer(agentgw.New(agentgw.Deps{
		Store: b.store, Signals: b.signals, CA: b.ca, Tokens: b.agents, Peers: b.peers, Log: zap.NewNop(),
		Settings: agentgw.Settings{Environment: "test", Heartbeat: time.Second, TokenTTL: time.Hour, CertTTL: time.Hour, Flush: time.Hour, FlushRows: 500},
	}).Handler())
	srv.TLS = b.ca.GatewayTLS("gw.test")
	srv.StartTLS()
	t.Cleanup(srv.Close)
	b.exec(`UPDATE servers SET identity_revoked_at = now() WHERE server_id = 'bad'`)
	b.url = srv.URL
	status, p := good.beat()
	require.Equal(t, 200, status, "%v", p)
	status, p = bad.beat()
	require.Equal(t, 403, status)
	require.Equal(t, "identity_revoked", p.Code)
}

// follow is what an agent does about trust: it renews when the gateway's bundles
// are others than its own.
func (e *enrolled) follow() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	send := func(path string, in, out any) error {
		body, err := json.Marshal(in)
		if err != nil {
			return err
		}
		req, err := http.NewRequest(http.MethodPost, e.b.url+path, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+e.identity.Token)
		resp, err := e.client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answered %d", path, resp.StatusCode)
		}
		return json.NewDecoder(resp.Body).Decode(out)
	}
	var answer wire.HeartbeatResponse
	if err := send(wire.PathHeartbeat, json.RawMessage(beat), &answer); err != nil {
		return err
	}
	if answer.BundleVersion == e.identity.Bundles.Version {
		return nil
	}
	var next wire.Identity
	request := wire.RotateRequest{CSRs: &wire.CSRs{AgentClient: csr(e.b.t, e.key), AgentServer: csr(e.b.t, e.key), DockerServer: csr(e.b.t, e.key)}}
	if err := send(wire.PathRotateToken, request, &next); err != nil {
		return err
	}
	e.client.CloseIdleConnections()
	e.identity, e.client = next, clientFor(e.b.t, next.Bundles.Gateway, certificate(e.b.t, next.Certificates.AgentClient, e.key))
	return nil
}

func (e *enrolled) version() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.identity.Bundles.Version
}

// TestRotationDropsNoRequest rotates the CAs by which agents and gateway know each other while agents keep sending.
func TestRotationDropsNoRequest(t *testing.T) {
	t.Parallel()
	b := setup(t, func(s *agentgw.Settings) { s.HostUnits = 1e6 })
	fleet := make([]*enrolled, 6)
	for i := range fleet {
		fleet[i] = b.enroll(prego.ServerID(fmt.Sprintf("a%d", i)))
	}
	first := fleet[0].identity
	stop := make(chan struct{})
	var sent atomic.Int64
	var wg sync.WaitGroup
	for _, e := range fleet {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if !assert.NoError(t, e.follow()) {
					return
				}
				sent.Add(1)
			}
		}()
	}
	for _, p := range []pki.Purpose{pki.Gateway, pki.AgentClient} {
		before := fleet[0].version()
		for i, step := range []func() error{
			func() error { return pki.Add(b.keys, "test", p) },
			func() error { return pki.Activate(b.keys, p) },
			func() error { return pki.Retire(b.keys, p) },
		} {
			require.NoError(t, step())
			next := sent.Load() + int64(len(fleet))
			looked := time.Now().Add(1200 * time.Millisecond) // the gateway has looked at the files again
			require.Eventually(t, func() bool {
				bundles, err := b.ca.Bundles(nil, b.peers.Keys())
				require.NoError(t, err)
				return time.Now().After(looked) && sent.Load() > next &&
					!slices.ContainsFunc(fleet, func(e *enrolled) bool { return e.version() != bundles.Version })
			}, 20*time.Second, 10*time.Millisecond, "%s, step %d: every agent follows", p, i)
		}
		require.NotEqual(t, before, fleet[0].version())
	}
	close(stop)
	wg.Wait()
	require.Greater(t, sent.Load(), int64(100))
	// The retired CA's credentials are worthless now.
	old := &enrolled{b: b, identity: first, client: clientFor(t, fleet[0].identity.Bundles.Gateway, certificate(t, first.Certificates.AgentClient, fleet[0].key))}
	status, p := old.beat()
	require.Equal(t, 401, status)
	require.Equal(t, "certificate_invalid", p.Code)
}
