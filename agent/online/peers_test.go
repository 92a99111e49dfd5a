package online

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

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/rooted"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// peersGateway answers for the peers document of the test server.
type peersGateway struct {
	*agenttest.Gateway
	mu    sync.Mutex
	keys  []agenttest.PeersKey
	doc   wire.PeersDocument
	asked []wire.PeersRequest
}

func newPeersGateway(t testing.TB) *peersGateway {
	t.Helper()
	g := &peersGateway{Gateway: agenttest.NewGateway(t), keys: []agenttest.PeersKey{agenttest.NewPeersKey(t, "k1")}}
	g.doc = wire.PeersDocument{Environment: agenttest.Environment, ServerID: agenttest.Server, Version: 5, Control: wire.PeersControl{CIDRs: []string{"127.0.0.1/32"}, Ports: []int{443}}}
	g.Bundles.PeersKeys = g.public()
	g.Fault(wire.PathPeers, func(_ int, w http.ResponseWriter, r *http.Request, _ func(http.ResponseWriter)) bool {
		var in wire.PeersRequest
		_ = json.NewDecoder(r.Body).Decode(&in)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.asked = append(g.asked, in)
		out := wire.PeersResponse{Version: g.doc.Version}
		if in.Applied != g.doc.Version || !slices.Equal(in.Keys, slices.Sorted(maps.Keys(g.public()))) {
			out.Signed = g.signed(t)
		}
		agenttest.WriteJSON(w, out)
		return true
	})
	return g
}

func (g *peersGateway) public() map[string]string {
	out := make(map[string]string)
	for _, k := range g.keys {
		out[k.ID] = k.Public
	}
	return out
}

// signed is the document, signed by every key.
func (g *peersGateway) signed(t testing.TB) *wire.SignedPeers {
	doc := g.doc
	doc.Keys = g.public()
	out := g.keys[0].Sign(t, doc)
	for _, k := range g.keys[1:] {
		out.Signatures[k.ID] = k.Sign(t, doc).Signatures[k.ID]
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

// keeping runs the process that applies documents, without nft.
func keeping(t testing.TB, h *host.Host) *rooted.PeersFirewall {
	t.Helper()
	k := rooted.NewPeersFirewall(h, false, agenttest.Quiet())
	l, err := h.Listen(wire.PeersSocket)
	require.NoError(t, err)
	agenttest.Loop(t, func(ctx context.Context) error { return k.Run("")(ctx, l) })
	return k
}

func TestPeersAreFetchedAndAcknowledged(t *testing.T) {
	t.Parallel()
	g := newPeersGateway(t)
	a := enrolled(t, g.Gateway)
	_, err := a.fetchPeers(t.Context(), "", agenttest.Quiet())
	require.Error(t, err)
	require.Contains(t, g.last().Refused, "did not answer", "the control plane learns that documents are not applied")

	k := keeping(t, a.host)
	applied, err := a.fetchPeers(t.Context(), "", agenttest.Quiet())
	require.NoError(t, err)
	require.Equal(t, int64(5), applied)
	require.Equal(t, wire.PeersRequest{Applied: 5, Keys: []string{"k1"}}, g.last())

	g.set(func(g *peersGateway) { g.doc.Version = 4 })
	_, err = a.fetchPeers(t.Context(), "", agenttest.Quiet())
	require.ErrorContains(t, err, "version 4 is older than the active version 5")
	require.Equal(t, int64(5), g.last().Applied)
	require.Contains(t, g.last().Refused, "version 4 is older")

	// The second key is in a document that the first signed; then the first can go.
	g.set(func(g *peersGateway) { g.doc.Version, g.keys = 5, append(g.keys, agenttest.NewPeersKey(t, "k2")) })
	_, err = a.fetchPeers(t.Context(), "", agenttest.Quiet())
	require.NoError(t, err)
	require.Equal(t, []string{"k1", "k2"}, g.last().Keys)
	g.set(func(g *peersGateway) { g.keys, g.doc.Version = g.keys[1:], 6 })
	_, err = a.fetchPeers(t.Context(), "", agenttest.Quiet())
	require.NoError(t, err)
	require.Equal(t, wire.PeersRequest{Applied: 6, Keys: []string{"k2"}}, g.last())

	// A stranger's key does not count, even in the files of the process that faces the network.
	stranger := agenttest.NewPeersKey(t, "k9")
	second := g.keys
	g.set(func(g *peersGateway) { g.keys, g.doc.Version = []agenttest.PeersKey{stranger}, 7 })
	_, err = a.fetchPeers(t.Context(), "", agenttest.Quiet())
	require.ErrorContains(t, err, "no trusted key signed it")

	require.NoError(t, k.Restore(t.Context()))
	again := rooted.NewPeersFirewall(a.host, false, agenttest.Quiet())
	require.Equal(t, host.PeersAnswer{Applied: 6, Keys: []string{"k2"}}, again.Apply(t.Context(), host.PeersRequest{}))

	// A bad part costs itself: the document is active, and the control plane learns of the part with each fetch.
	g.set(func(g *peersGateway) {
		g.keys, g.doc.Version = second, 8
		g.doc.Access = []wire.PeersAccess{{Ports: []int{0}, From: []string{wire.PeersEveryone}}}
	})
	for range 2 {
		applied, err = a.fetchPeers(t.Context(), "", agenttest.Quiet())
		require.NoError(t, err)
		require.Equal(t, int64(8), applied)
		leftOut := "left out: port 0: there is no such port"
		require.Equal(t, wire.PeersRequest{Applied: 8, Keys: []string{"k2"}, Refused: leftOut}, g.last())
	}
}

func TestHeartbeatsTellOfPeers(t *testing.T) {
	t.Parallel()
	g := newPeersGateway(t)
	a := enrolled(t, g.Gateway)
	keeping(t, a.host)
	g.Fault(wire.PathHeartbeat, func(_ int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		agenttest.WriteJSON(w, wire.HeartbeatResponse{BundleVersion: "v1", HeartbeatSeconds: 1, PeersVersion: g.doc.Version})
		return true
	})
	agenttest.Loop(t, func(ctx context.Context) error { return a.followPeers(ctx, agenttest.Quiet()) })
	agenttest.Loop(t, func(ctx context.Context) error { return a.heartbeats(ctx, agenttest.Quiet()) })
	agenttest.Eventually(t, "the first", func() bool { return a.peers.inForce.Load().Applied == 5 })
	g.set(func(g *peersGateway) { g.doc.Version = 6 })
	agenttest.Eventually(t, "the next", func() bool { return a.peers.inForce.Load().Applied == 6 && g.last().Applied == 6 })
	g.mu.Lock()
	asked := len(g.asked)
	g.mu.Unlock()
	beats := g.Seen().Calls[wire.PathHeartbeat]
	agenttest.Eventually(t, "more heartbeats", func() bool { return g.Seen().Calls[wire.PathHeartbeat] >= beats+2 })
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Len(t, g.asked, asked, "the active document is not fetched")
}

// TestALostHostClosesItsPorts: a host that was given up, and returns, applies the document that no longer names others.
func TestALostHostClosesItsPorts(t *testing.T) {
	t.Parallel()
	g := newPeersGateway(t)
	a := enrolled(t, g.Gateway)
	keeping(t, a.host)
	g.set(func(g *peersGateway) {
		g.doc.Address = "10.64.0.2"
		g.doc.Access = []wire.PeersAccess{{Ports: []int{3306}, From: []string{"10.64.0.10"}}}
	})
	_, err := a.fetchPeers(t.Context(), "", agenttest.Quiet())
	require.NoError(t, err)
	g.set(func(g *peersGateway) { g.doc.Version, g.doc.Access = 6, nil })
	g.Fault(wire.PathHeartbeat, func(_ int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
		agenttest.Refuse(w, http.StatusForbidden, "identity_revoked")
		return true
	})
	agenttest.Loop(t, func(ctx context.Context) error { return a.heartbeats(ctx, agenttest.Quiet()) })
	agenttest.Eventually(t, "it is closed", func() bool { return a.peers.inForce.Load().Applied == 6 })
}

func TestPeersNow(t *testing.T) {
	t.Parallel()
	g := newPeersGateway(t)
	a := enrolled(t, g.Gateway)
	keeping(t, a.host)
	agenttest.Loop(t, func(ctx context.Context) error { return a.serve(ctx, agenttest.Quiet()) })
	client := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	agenttest.Eventually(t, "it listens", func() bool {
		resp, err := client.Get(a.url("/"))
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil
	})
	ask := func(serverID, version string, change func(c jwt.MapClaims)) (int, string) {
		body, err := json.Marshal(wire.ExecRequest{ServerID: serverID, Kind: wire.KindPeers, Args: []string{version}})
		require.NoError(t, err)
		token := g.Token(t, func(c jwt.MapClaims) {
			c["scope"], c["body"] = wire.ScopeExecPrefix+string(wire.KindPeers), policy.Digest(body)
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
	status, answer := ask(agenttest.Server, "5", nil)
	require.Equal(t, 200, status, answer)
	require.JSONEq(t, `{"applied":5}`, answer)
	status, answer = ask(agenttest.Server, "6", nil)
	require.Equal(t, 503, status, "the gateway has none")
	require.Contains(t, answer, "peers_not_applied")
	status, answer = ask("app-2", "5", nil)
	require.Equal(t, 422, status, answer)
	status, answer = ask(agenttest.Server, "5", func(c jwt.MapClaims) { c["scope"] = "exec.bench" })
	require.Equal(t, 403, status, answer)
	status, answer = ask(agenttest.Server, "5", func(c jwt.MapClaims) { c["body"] = policy.Digest([]byte("other")) })
	require.Equal(t, 401, status, answer)

	g.set(func(g *peersGateway) { g.doc.Version, g.doc.Control.CIDRs = 7, []string{"203.0.113.7/32"} })
	status, answer = ask(agenttest.Server, "7", nil)
	require.Equal(t, 503, status)
	require.Contains(t, answer, "it would shut out the control plane, which calls from 127.0.0.1")
	require.Equal(t, int64(5), a.peers.inForce.Load().Applied)
}

// The keys are pinned where the process that faces the network can't write.
func TestPeersKeysArePinnedAtEnrolment(t *testing.T) {
	t.Parallel()
	g := newPeersGateway(t)
	a := enrolled(t, g.Gateway)
	b, err := os.ReadFile(a.host.Path(wire.PeersKeysPath))
	require.NoError(t, err)
	var pinned map[string]string
	require.NoError(t, json.Unmarshal(b, &pinned))
	require.Equal(t, g.Bundles.PeersKeys, pinned)
}
