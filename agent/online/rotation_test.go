package online

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
	"github.com/prego/prego/lab/agenttest"
)

// aged makes an agent's token look as old as d.
func aged(a *Agent, d time.Duration) {
	s := *a.current.Load()
	s.Since = s.Since.Add(-d)
	a.current.Store(&s)
}

func TestTheTokenIsRenewedAtHalfOfItsLife(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	before := a.current.Load()
	require.NoError(t, a.renewIfDue(t.Context(), "", agenttest.Quiet()))
	require.Empty(t, g.Seen().Rotations, "not before")
	aged(a, 61*time.Minute)
	require.NoError(t, a.renewIfDue(t.Context(), "", agenttest.Quiet()))
	require.NoError(t, a.renewIfDue(t.Context(), "", agenttest.Quiet()), "and once only")
	require.Len(t, g.Seen().Rotations, 1)
	require.Nil(t, g.Seen().Rotations[0].CSRs)
	after := a.current.Load()
	require.Equal(t, "jwt-2", after.ID.Token)
	require.Equal(t, before.ID.Certificates, after.ID.Certificates)
	_, err := a.beat(t.Context(), agenttest.Quiet())
	require.NoError(t, err)
	require.Equal(t, []string{"Bearer jwt-2"}, g.Seen().BeatTokens)

	restarted, err := New(a.host, "127.0.0.1", "v", agenttest.Quiet())
	require.NoError(t, err)
	require.Equal(t, "jwt-2", restarted.current.Load().ID.Token, "it is on disk")
}

func TestCertificatesAreRenewedAtHalfOfTheirLife(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	g.CertAge = 40 * time.Minute
	a := enrolled(t, g)
	g.Change(func() { g.CertAge = 0 })
	k := stopTime(a.host)
	agenttest.Loop(t, a.beating)
	k.next(t)
	require.Len(t, g.Seen().Rotations, 1)
	require.NotNil(t, g.Seen().Rotations[0].CSRs)
	require.Equal(t, []string{"Bearer jwt-2"}, g.Seen().BeatTokens, "renewed before the first heartbeat")
	cert, err := os.ReadFile(a.host.Path(wire.DockerTLSDir + "/cert.pem"))
	require.NoError(t, err)
	require.Equal(t, a.current.Load().ID.Certificates.DockerServer, string(cert), "dockerd's is renewed too")
}

func TestARenewalThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(w http.ResponseWriter, serve func(http.ResponseWriter)){
		"refused": func(w http.ResponseWriter, _ func(http.ResponseWriter)) {
			agenttest.Refuse(w, http.StatusServiceUnavailable, "not_ready")
		},
		"lost": func(_ http.ResponseWriter, serve func(http.ResponseWriter)) {
			serve(httptest.NewRecorder())
			agenttest.Drop()
		},
		"of another server": func(w http.ResponseWriter, serve func(http.ResponseWriter)) {
			answer := httptest.NewRecorder()
			serve(answer)
			var id wire.Identity
			_ = json.Unmarshal(answer.Body.Bytes(), &id)
			id.ServerID = "app-2"
			agenttest.WriteJSON(w, id)
		},
		"empty":   func(w http.ResponseWriter, _ func(http.ResponseWriter)) { agenttest.WriteJSON(w, wire.Identity{}) },
		"garbage": func(w http.ResponseWriter, _ func(http.ResponseWriter)) { _, _ = w.Write([]byte("<html>")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := agenttest.NewGateway(t)
			a := enrolled(t, g)
			disk, err := os.ReadFile(a.host.Path(wire.IdentityDir + "/identity.json"))
			require.NoError(t, err)
			g.Fault(wire.PathRotateToken, func(n int, w http.ResponseWriter, _ *http.Request, serve func(http.ResponseWriter)) bool {
				if n > 1 {
					return false
				}
				fault(w, serve)
				return true
			})
			before := a.current.Load()
			require.ErrorContains(t, a.renewIfDue(t.Context(), "v2", agenttest.Quiet()), map[string]string{
				"refused":           "the gateway answered 503 not_ready",
				"lost":              "EOF",
				"of another server": `the identity is of server "app-2"`,
				"empty":             `the identity is of server ""`,
				"garbage":           "the gateway's answer: invalid character",
			}[name])
			require.Equal(t, 1, g.Hit(wire.PathRotateToken))
			require.Same(t, before, a.current.Load())
			now, err := os.ReadFile(a.host.Path(wire.IdentityDir + "/identity.json"))
			require.NoError(t, err)
			require.Equal(t, disk, now)
			_, err = a.beat(t.Context(), agenttest.Quiet())
			require.NoError(t, err)
			require.NoError(t, a.renewIfDue(t.Context(), "v2", agenttest.Quiet()), "the next try is free to succeed")
			require.NotSame(t, before, a.current.Load())
		})
	}
}

func TestARenewalThatCantBeWrittenIsUsedAllTheSame(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	require.NoError(t, os.Remove(a.host.Path(wire.IdentityDir+"/identity.json")))
	require.NoError(t, os.Mkdir(a.host.Path(wire.IdentityDir+"/identity.json"), 0o700)) // nothing can be renamed onto it
	require.NoError(t, a.renewIfDue(t.Context(), "v2", agenttest.Quiet()))
	require.Equal(t, "jwt-2", a.current.Load().ID.Token)
}

// TestCARotationDropsNoRequest changes the gateway's CA and the exec CA under
// load, by way of bundles that hold the old and the new one.
func TestCARotationDropsNoRequest(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	agenttest.Loop(t, func(ctx context.Context) error { return a.serve(ctx, agenttest.Quiet()) })
	oldPlane, newCA, newExec := agenttest.ControlPlane(t, g.ExecCA), agenttest.NewAuthority(t, "gateway"), agenttest.NewAuthority(t, "exec-client")
	newPlane := agenttest.ControlPlane(t, newExec)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var beats, commands atomic.Int64
	var plane atomic.Pointer[http.Client]
	plane.Store(g.Caller(t, oldPlane))
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				s := a.current.Load()
				if err := s.Gateway.PostJSON(ctx, wire.PathHeartbeat, s.ID.Token, wire.HeartbeatRequest{BootID: "b"}, nil); err != nil && ctx.Err() == nil {
					t.Errorf("a heartbeat was dropped: %v", err)
				}
				beats.Add(1)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				if status, _ := a.call(t, plane.Load(), g.Token(t, nil), agenttest.Body); status != http.StatusUnprocessableEntity {
					t.Errorf("a command was dropped: %d", status)
				}
				commands.Add(1)
			}
		})
	}
	step := func(version string, change func()) {
		g.Change(func() {
			g.Bundles.Version, g.Bundles.ExecKeys = version, maps.Clone(g.Bundles.ExecKeys)
			change()
		})
		_, err := a.beat(ctx, agenttest.Quiet())
		require.NoError(t, err)
		require.Equal(t, version, a.current.Load().ID.Bundles.Version, "the agent rotates immediately")
		n, m := beats.Load(), commands.Load()
		agenttest.Eventually(t, "load", func() bool { return beats.Load() > n+20 && commands.Load() > m+20 })
	}
	step("overlap", func() {
		g.Bundles.Gateway += newCA.PEM
		g.Bundles.ExecClient += newExec.PEM
		g.ClientCA = newAuthorityBeside(g, agenttest.NewAuthority(t, "agent-client"))
	})
	g.Show(newCA)
	plane.Store(g.Caller(t, newPlane))
	status, _ := a.call(t, g.Caller(t, oldPlane), g.Token(t, nil), agenttest.Body)
	require.Equal(t, http.StatusUnprocessableEntity, status, "the old one is still good")
	step("new", func() { g.Bundles.Gateway, g.Bundles.ExecClient = newCA.PEM, newExec.PEM })
	cancel()
	wg.Wait()

	_, err := a.try(g.Caller(t, oldPlane), g.Token(t, nil), agenttest.Body)
	require.ErrorContains(t, err, "tls: bad certificate", "the old one is no longer good")
	g.Show(g.GatewayCA)
	a.current.Load().Gateway.Close()
	_, err = a.beat(t.Context(), agenttest.Quiet())
	require.ErrorContains(t, err, "certificate", "nor is the old gateway")
}

// newAuthorityBeside makes the gateway sign agents with another CA; certificates of the old CA stay valid.
func newAuthorityBeside(g *agenttest.Gateway, next *agenttest.Authority) *agenttest.Authority {
	g.AlsoTrusted = append(g.AlsoTrusted, g.ClientCA)
	return next
}

func TestTheExecEndpointShowsTheNewestCertificate(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	agenttest.Loop(t, func(ctx context.Context) error { return a.serve(ctx, agenttest.Quiet()) })
	shown := func(c *http.Client) string {
		resp, err := a.try(c, g.Token(t, nil), agenttest.Body)
		require.NoError(t, err)
		return resp.TLS.PeerCertificates[0].SerialNumber.String()
	}
	kept := g.Caller(t, agenttest.ControlPlane(t, g.ExecCA))
	first := shown(kept)
	require.NoError(t, a.renewIfDue(t.Context(), "v2", agenttest.Quiet()))
	require.Equal(t, first, shown(kept), "a connection keeps its certificate")
	second := shown(g.Caller(t, agenttest.ControlPlane(t, g.ExecCA)))
	require.NotEqual(t, first, second)
	require.Equal(t, a.current.Load().Server.Leaf.SerialNumber.String(), second)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, a.current.Load().Server.Leaf.ExtKeyUsage)
}
