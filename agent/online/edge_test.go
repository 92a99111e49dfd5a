package online

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/edge"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// TestAnEdgeAsksAgainForKeys: a key that no gateway can open is reported, and requested again without a new document.
func TestAnEdgeAsksAgainForKeys(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	leaf := agenttest.Leaf{DNS: []string{"a.org"}, Usage: x509.ExtKeyUsageServerAuth}
	pair := agenttest.NewAuthority(t, "acme").Pair(t, leaf)
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	ref := wire.EdgeCertificateRef{ID: "crt-1", Names: []string{"a.org"}, SHA256: "d"}
	good := wire.EdgeCertificate{
		EdgeCertificateRef: ref,
		Chain:              string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		Key:                string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
	}
	answers := func(path string, f func(n int, r *http.Request) any) {
		g.Fault(path, func(n int, w http.ResponseWriter, r *http.Request, _ func(http.ResponseWriter)) bool {
			if out := f(n, r); out != nil {
				agenttest.WriteJSON(w, out)
			} else {
				w.WriteHeader(http.StatusNotModified)
			}
			return true
		})
	}
	answers(wire.PathEdge, func(_ int, r *http.Request) any {
		if r.URL.Query().Get("version") == "0" {
			return wire.EdgeDocument{Version: 1, Certificates: []wire.EdgeCertificateRef{ref}}
		}
		return nil
	})
	answers(wire.PathEdgeCertificates, func(n int, _ *http.Request) any {
		if n < 3 {
			refused := wire.EdgeCertificate{EdgeCertificateRef: ref, Refused: "no gateway can open its key"}
			return wire.EdgeCertificates{Certificates: []wire.EdgeCertificate{refused}}
		}
		return wire.EdgeCertificates{Certificates: []wire.EdgeCertificate{good}}
	})
	told := make(chan wire.EdgeApplied, 10)
	answers(wire.PathEdgeApplied, func(_ int, r *http.Request) any {
		var in wire.EdgeApplied
		_ = json.NewDecoder(r.Body).Decode(&in)
		told <- in
		return wire.EdgeReleased{Version: in.Version}
	})

	// A Caddy that takes everything.
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "caddy.sock"))
	require.NoError(t, err)
	caddy := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the connection closes under a large document
	})}
	go func() { _ = caddy.Serve(l) }()
	t.Cleanup(func() { _ = caddy.Close() })
	e, err := edge.Open(filepath.Join(dir, "state"), edge.Settings{RunDir: dir})
	require.NoError(t, err)
	f := &edgeFollower{
		agent: a, edge: e, log: agenttest.Quiet(), counter: edge.NewCounter(dir), prober: edge.NewProber(),
	}
	refused := []wire.EdgeLeftOut{
		{Kind: wire.EdgeCertificatePart, Name: "crt-1", Reason: "no gateway can open its key"},
	}
	for _, want := range []wire.EdgeApplied{{Version: 1, LeftOut: refused}, {Version: 1}} {
		for n := 0; n < 4 && len(told) == 0; n++ {
			require.NoError(t, f.step(t.Context()))
		}
		require.Len(t, told, 1)
		require.Equal(t, want, <-told)
	}
	require.Equal(t, 3, g.Seen().Calls[wire.PathEdgeCertificates])
	require.Empty(t, e.Missing(e.Document()))
}
