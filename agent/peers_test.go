package agent

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// peersGateway answers for the peers document of the test server.
type peersGateway struct {
	*testGateway
	mu    sync.Mutex
	keys  []peersKey
	doc   wire.PeersDocument
	asked []wire.PeersRequest
}

func newPeersGateway(t testing.TB) *peersGateway {
	t.Helper()
	g := &peersGateway{testGateway: newTestGateway(t), keys: []peersKey{newPeersKey(t, "k1")}}
	g.doc = wire.PeersDocument{Environment: testEnvironment, ServerID: testServer, Version: 5, Control: wire.PeersControl{CIDRs: []string{"127.0.0.1/32"}, Ports: []int{443}}}
	g.bundles.PeersKeys = g.public()
	g.fault(wire.PathPeers, func(_ int, w http.ResponseWriter, r *http.Request, _ func(http.ResponseWriter)) bool {
		var in wire.PeersRequest
		_ = json.NewDecoder(r.Body).Decode(&in)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.asked = append(g.asked, in)
		out := wire.PeersResponse{Version: g.doc.Version}
		if in.Applied != g.doc.Version || !slices.Equal(in.Keys, slices.Sorted(maps.Keys(g.public()))) {
			out.Signed = g.signed(t)
		}
		writeJSON(w, out)
		return true
	})
	return g
}

func (g *peersGateway) public() map[string]string {
	out := make(map[string]string)
	for _, k := range g.keys {
		out[k.id] = k.public
	}
	return out
}

// signed is the document, signed by every key.
func (g *peersGateway) signed(t testing.TB) *wire.SignedPeers {
	doc := g.doc
	doc.Keys = g.public()
	out := g.keys[0].sign(t, doc)
	for _, k := range g.keys[1:] {
		out.Signatures[k.id] = k.sign(t, doc).Signatures[k.id]
	}
	return out
}

func (g *peersGateway) set(change func(g *peersGateway)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
}

func (g *peersGateway) last() wire.PeersRequest {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked[len(g.asked)-1]
}

// keeping runs the process that puts documents in force, without nft.
func keeping(t testing.TB, h *Host) *PeersKeeper {
	t.Helper()
	k := NewPeersKeeper(h, false, quiet())
	l, err := h.Listen(wire.PeersSocket)
	require.NoError(t, err)
	run(t, func(ctx context.Context) error { return k.Run("")(ctx, l) })
	return k
}

func TestPeersAreFetchedAndAcknowledged(t *testing.T) {
	t.Parallel()
	g := newPeersGateway(t)
	a := enrolled(t, g.testGateway)
	_, err := a.fetchPeers(t.Context(), "", quiet())
	require.Error(t, err)
	require.Contains(t, g.last().Refused, "did not answer", "the control plane is told that nobody applies documents")

	k := keeping(t, a.host)
	applied, err := a.fetchPeers(t.Context(), "", quiet())
	require.NoError(t, err)
	require.Equal(t, int64(5), applied)
	require.Equal(t, wire.PeersRequest{Applied: 5, Keys: []string{"k1"}}, g.last())

	g.set(func(g *peersGateway) { g.doc.Version = 4 })
	_, err = a.fetchPeers(t.Context(), "", quiet())
	require.ErrorContains(t, err, "version 4 is older than 5")
	require.Equal(t, int64(5), g.last().Applied)
	require.Contains(t, g.last().Refused, "version 4 is older")

	// The second key is told by a document that the first signed; then the first can go.
	g.set(func(g *peersGateway) { g.doc.Version, g.keys = 5, append(g.keys, newPeersKey(t, "k2")) })
	_, err = a.fetchPeers(t.Context(), "", quiet())
	require.NoError(t, err)
	require.Equal(t, []string{"k1", "k2"}, g.last().Keys)
	g.set(func(g *peersGateway) { g.keys, g.doc.Version = g.keys[1:], 6 })
	_, err = a.fetchPeers(t.Context(), "", quiet())
	require.NoError(t, err)
	require.Equal(t, wire.PeersRequest{Applied: 6, Keys: []string{"k2"}}, g.last())

	// A stranger's key is none, whatever the process that faces the network has in its files.
	stranger := newPeersKey(t, "k9")
	g.set(func(g *peersGateway) { g.keys, g.doc.Version = []peersKey{stranger}, 7 })
	_, err = a.fetchPeers(t.Context(), "", quiet())
	require.ErrorContains(t, err, "no trusted key signed it")

	require.NoError(t, k.Restore(t.Context()))
	again := NewPeersKeeper(a.host, false, quiet())
	require.Equal(t, peersAnswer{Applied: 6, Keys: []string{"k2"}}, again.Apply(t.Context(), peersRequest{}))
}

func TestHeartbeatsTellOfPeers(t *testing.T) {
	t.Parallel()
	g := newPeersGateway(t)
	a := enrolled(t, g.testGateway)
	keeping(t, a.host)
	g.fault(wire.PathHeartbeat, func(_ int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		writeJSON(w, wire.HeartbeatResponse{BundleVersion: "v1", HeartbeatSeconds: 1, PeersVersion: g.doc.Version})
		return true
	})
	run(t, func(ctx context.Context) error { return a.followPeers(ctx, quiet()) })
	run(t, func(ctx context.Context) error { return a.heartbeats(ctx, quiet()) })
	eventually(t, "the first", func() bool { return a.peers.inForce.Load().Applied == 5 })
	g.set(func(g *peersGateway) { g.doc.Version = 6 })
	eventually(t, "the next", func() bool { return a.peers.inForce.Load().Applied == 6 && g.last().Applied == 6 })
	g.mu.Lock()
	asked := len(g.asked)
	g.mu.Unlock()
	beats := g.seen().calls[wire.PathHeartbeat]
	eventually(t, "more heartbeats", func() bool { return g.seen().calls[wire.PathHeartbeat] >= beats+2 })
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Len(t, g.asked, asked, "what is in force is not asked for")
}

func TestPeersNow(t *testing.T) {
	t.Parallel()
	g := newPeersGateway(t)
	a := enrolled(t, g.testGateway)
	keeping(t, a.host)
	run(t, func(ctx context.Context) error { return a.serve(ctx, quiet()) })
	client := g.caller(t, controlPlane(t, g.execCA))
	eventually(t, "it listens", func() bool {
		resp, err := client.Get(a.url("/"))
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil
	})
	ask := func(serverID, version string, change func(c jwt.MapClaims)) (int, string) {
		body, err := json.Marshal(wire.ExecRequest{ServerID: serverID, Kind: wire.KindPeers, Args: []string{version}})
		require.NoError(t, err)
		token := g.token(t, func(c jwt.MapClaims) {
			c["scope"], c["body"] = wire.ScopeExecPrefix+string(wire.KindPeers), digest(body)
			if change != nil {
				change(c)
			}
		})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url(wire.PathExec), strings.NewReader(string(body)))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(answer)
	}
	status, answer := ask(testServer, "5", nil)
	require.Equal(t, 200, status, answer)
	require.JSONEq(t, `{"applied":5}`, answer)
	status, answer = ask(testServer, "6", nil)
	require.Equal(t, 503, status, "the gateway has none")
	require.Contains(t, answer, "peers_not_applied")
	status, answer = ask("app-2", "5", nil)
	require.Equal(t, 422, status, answer)
	status, answer = ask(testServer, "5", func(c jwt.MapClaims) { c["scope"] = "exec.bench" })
	require.Equal(t, 403, status, answer)
	status, answer = ask(testServer, "5", func(c jwt.MapClaims) { c["body"] = digest([]byte("other")) })
	require.Equal(t, 401, status, answer)

	g.set(func(g *peersGateway) { g.doc.Version, g.doc.Control.CIDRs = 7, []string{"203.0.113.7/32"} })
	status, answer = ask(testServer, "7", nil)
	require.Equal(t, 503, status)
	require.Contains(t, answer, "it would shut out the control plane, which calls from 127.0.0.1")
	require.Equal(t, int64(5), a.peers.inForce.Load().Applied)
}

// The keys are pinned where the process that faces the network can't write.
func TestPeersKeysArePinnedAtEnrolment(t *testing.T) {
	t.Parallel()
	g := newPeersGateway(t)
	a := enrolled(t, g.testGateway)
	b, err := os.ReadFile(a.host.path(wire.PeersKeysPath))
	require.NoError(t, err)
	var pinned map[string]string
	require.NoError(t, json.Unmarshal(b, &pinned))
	require.Equal(t, g.bundles.PeersKeys, pinned)
}
