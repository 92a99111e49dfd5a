package agent

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

// aged makes an agent's token look as old as d.
func aged(a *Agent, d time.Duration) {
	s := *a.current.Load()
	s.since = s.since.Add(-d)
	a.current.Store(&s)
}

func TestTheTokenIsRenewedAtHalfOfItsLife(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	a := enrolled(t, g)
	before := a.current.Load()
	require.NoError(t, a.renewIfDue(t.Context(), "", quiet()))
	require.Empty(t, g.seen().rotations, "not before")
	aged(a, 61*time.Minute)
	require.NoError(t, a.renewIfDue(t.Context(), "", quiet()))
	require.NoError(t, a.renewIfDue(t.Context(), "", quiet()), "and once only")
	require.Len(t, g.seen().rotations, 1)
	require.Nil(t, g.seen().rotations[0].CSRs)
	after := a.current.Load()
	require.Equal(t, "jwt-2", after.id.Token)
	require.Equal(t, before.id.Certificates, after.id.Certificates)
	_, err := a.beat(t.Context(), quiet())
	require.NoError(t, err)
	require.Equal(t, []string{"Bearer jwt-2"}, g.seen().beatTokens)

	restarted, err := New(a.host, "127.0.0.1", "v", quiet())
	require.NoError(t, err)
	require.Equal(t, "jwt-2", restarted.current.Load().id.Token, "it is on disk")
}

func TestCertificatesAreRenewedAtHalfOfTheirLife(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	g.certAge = 40 * time.Minute
	a := enrolled(t, g)
	g.change(func() { g.certAge = 0 })
	k := stopTime(a.host)
	run(t, a.beating)
	k.next(t)
	require.Len(t, g.seen().rotations, 1)
	require.NotNil(t, g.seen().rotations[0].CSRs)
	require.Equal(t, []string{"Bearer jwt-2"}, g.seen().beatTokens, "renewed before the first heartbeat")
	cert, err := os.ReadFile(a.host.path(wire.DockerTLSDir + "/cert.pem"))
	require.NoError(t, err)
	require.Equal(t, a.current.Load().id.Certificates.DockerServer, string(cert), "dockerd's is renewed too")
}

func TestARenewalThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(w http.ResponseWriter, serve func(http.ResponseWriter)){
		"refused": func(w http.ResponseWriter, _ func(http.ResponseWriter)) {
			refuse(w, http.StatusServiceUnavailable, "not_ready")
		},
		"lost": func(_ http.ResponseWriter, serve func(http.ResponseWriter)) { serve(httptest.NewRecorder()); drop() },
		"of another server": func(w http.ResponseWriter, serve func(http.ResponseWriter)) {
			answer := httptest.NewRecorder()
			serve(answer)
			var id wire.Identity
			_ = json.Unmarshal(answer.Body.Bytes(), &id)
			id.ServerID = "app-2"
			writeJSON(w, id)
		},
		"empty":   func(w http.ResponseWriter, _ func(http.ResponseWriter)) { writeJSON(w, wire.Identity{}) },
		"garbage": func(w http.ResponseWriter, _ func(http.ResponseWriter)) { _, _ = w.Write([]byte("<html>")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newTestGateway(t)
			a := enrolled(t, g)
			disk, err := os.ReadFile(a.host.path(wire.IdentityDir + "/identity.json"))
			require.NoError(t, err)
			g.fault(wire.PathRotateToken, func(n int, w http.ResponseWriter, _ *http.Request, serve func(http.ResponseWriter)) bool {
				if n > 1 {
					return false
				}
				fault(w, serve)
				return true
			})
			before := a.current.Load()
			require.ErrorContains(t, a.renewIfDue(t.Context(), "v2", quiet()), map[string]string{
				"refused":           "the gateway answered 503 not_ready",
				"lost":              "EOF",
				"of another server": `the identity is of server "app-2"`,
				"empty":             `the identity is of server ""`,
				"garbage":           "the gateway's answer: invalid character",
			}[name])
			require.Equal(t, 1, g.hit(wire.PathRotateToken))
			require.Same(t, before, a.current.Load())
			now, err := os.ReadFile(a.host.path(wire.IdentityDir + "/identity.json"))
			require.NoError(t, err)
			require.Equal(t, disk, now)
			_, err = a.beat(t.Context(), quiet())
			require.NoError(t, err)
			require.NoError(t, a.renewIfDue(t.Context(), "v2", quiet()), "the next try is free to succeed")
			require.NotSame(t, before, a.current.Load())
		})
	}
}

func TestARenewalThatCantBeWrittenIsUsedAllTheSame(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	a := enrolled(t, g)
	require.NoError(t, os.Remove(a.host.path(wire.IdentityDir+"/identity.json")))
	require.NoError(t, os.Mkdir(a.host.path(wire.IdentityDir+"/identity.json"), 0o700)) // nothing can be renamed onto it
	require.NoError(t, a.renewIfDue(t.Context(), "v2", quiet()))
	require.Equal(t, "jwt-2", a.current.Load().id.Token)
}

// TestCARotationDropsNoRequest changes the gateway's CA and the exec CA under
// load, by way of bundles that hold the old and the new one.
func TestCARotationDropsNoRequest(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	a := enrolled(t, g)
	run(t, func(ctx context.Context) error { return a.serve(ctx, quiet()) })
	oldPlane, newCA, newExec := controlPlane(t, g.execCA), newAuthority(t, "gateway"), newAuthority(t, "exec-client")
	newPlane := controlPlane(t, newExec)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var beats, commands atomic.Int64
	var plane atomic.Pointer[http.Client]
	plane.Store(g.caller(t, oldPlane))
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				s := a.current.Load()
				if err := s.gw.postJSON(ctx, wire.PathHeartbeat, s.id.Token, wire.HeartbeatRequest{BootID: "b"}, nil); err != nil && ctx.Err() == nil {
					t.Errorf("a heartbeat was dropped: %v", err)
				}
				beats.Add(1)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				if status, _ := a.call(t, plane.Load(), g.token(t, nil), execBody); status != http.StatusUnprocessableEntity {
					t.Errorf("a command was dropped: %d", status)
				}
				commands.Add(1)
			}
		})
	}
	step := func(version string, change func()) {
		g.change(func() {
			g.bundles.Version, g.bundles.ExecKeys = version, maps.Clone(g.bundles.ExecKeys)
			change()
		})
		_, err := a.beat(ctx, quiet())
		require.NoError(t, err)
		require.Equal(t, version, a.current.Load().id.Bundles.Version, "the agent rotates at once")
		n, m := beats.Load(), commands.Load()
		eventually(t, "load", func() bool { return beats.Load() > n+20 && commands.Load() > m+20 })
	}
	step("overlap", func() {
		g.bundles.Gateway += newCA.pem
		g.bundles.ExecClient += newExec.pem
		g.client = newAuthorityBeside(g, newAuthority(t, "agent-client"))
	})
	g.show(newCA)
	plane.Store(g.caller(t, newPlane))
	status, _ := a.call(t, g.caller(t, oldPlane), g.token(t, nil), execBody)
	require.Equal(t, http.StatusUnprocessableEntity, status, "the old one is still good")
	step("new", func() { g.bundles.Gateway, g.bundles.ExecClient = newCA.pem, newExec.pem })
	cancel()
	wg.Wait()

	_, err := a.try(g.caller(t, oldPlane), g.token(t, nil), execBody)
	require.ErrorContains(t, err, "tls: bad certificate", "the old one is no longer good")
	g.show(g.gwCA)
	a.current.Load().gw.close()
	_, err = a.beat(t.Context(), quiet())
	require.ErrorContains(t, err, "certificate", "nor is the old gateway")
}

// newAuthorityBeside makes the gateway sign agents with another CA; those of the
// old one stay good.
func newAuthorityBeside(g *testGateway, next *authority) *authority {
	g.alsoTrusted = append(g.alsoTrusted, g.client)
	return next
}

func TestTheExecEndpointShowsTheNewestCertificate(t *testing.T) {
	t.Parallel()
	g := newTestGateway(t)
	a := enrolled(t, g)
	run(t, func(ctx context.Context) error { return a.serve(ctx, quiet()) })
	shown := func(c *http.Client) string {
		resp, err := a.try(c, g.token(t, nil), execBody)
		require.NoError(t, err)
		return resp.TLS.PeerCertificates[0].SerialNumber.String()
	}
	kept := g.caller(t, controlPlane(t, g.execCA))
	first := shown(kept)
	require.NoError(t, a.renewIfDue(t.Context(), "v2", quiet()))
	require.Equal(t, first, shown(kept), "a connection goes on as it began")
	second := shown(g.caller(t, controlPlane(t, g.execCA)))
	require.NotEqual(t, first, second)
	require.Equal(t, a.current.Load().server.Leaf.SerialNumber.String(), second)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, a.current.Load().server.Leaf.ExtKeyUsage)
}
