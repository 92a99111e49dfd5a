package rooted

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/gateway"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// hurry makes a host's pauses end immediately; their lengths are returned.
func hurry(h *host.Host) *[]time.Duration {
	var taken []time.Duration
	h.Pause = func(ctx context.Context, d time.Duration) error {
		taken = append(taken, d)
		return ctx.Err()
	}
	return &taken
}

func exists(t testing.TB, h *host.Host, name string) bool {
	t.Helper()
	_, err := os.Stat(h.Path(name))
	return err == nil
}

func TestBootstrapLeavesAnIdentityAndNoToken(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	h := g.Host(t)
	var log bytes.Buffer
	require.NoError(t, Bootstrap(t.Context(), h, "127.0.0.9", "v-test", slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))

	require.False(t, exists(t, h, wire.BootstrapTokenPath))
	id, err := h.LoadIdentity()
	require.NoError(t, err)
	require.Equal(t, "jwt-1", id.Token)
	require.Equal(t, []string{"127.0.0.9", "127.0.0.9"}, g.Seen().Sources, "the calls come from --addr: that it started, and the handshake")

	in := g.Seen().Handshakes[0]
	require.Equal(t, agenttest.Server, in.ServerID)
	require.Equal(t, "raw-bootstrap-token", in.Token, "without the file's newline")
	require.Equal(t, []string{"blue"}, in.Tags)
	require.NotEmpty(t, in.BootID)
	block, _ := pem.Decode([]byte(in.CSRs.AgentClient))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	require.NoError(t, err)
	sum := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	require.Equal(t, g.Seen().Keys[0], hex.EncodeToString(sum[:]), "the connection proves the key that is asked for")

	for name, mode := range map[string]os.FileMode{
		wire.IdentityDir: 0o700 | os.ModeDir, wire.IdentityDir + "/identity.json": 0o600, wire.IdentityDir + "/client.key": 0o600,
		wire.IdentityDir + "/server.key": 0o600, wire.IdentityDir + "/docker.key": 0o600, wire.DockerTLSDir + "/key.pem": 0o600,
	} {
		st, err := os.Stat(h.Path(name))
		require.NoError(t, err)
		require.Equal(t, mode, st.Mode(), name)
	}
	_, err = tls.LoadX509KeyPair(h.Path(wire.DockerTLSDir+"/cert.pem"), h.Path(wire.DockerTLSDir+"/key.pem"))
	require.NoError(t, err, "dockerd can serve with its files")
	require.NotContains(t, log.String(), "raw-bootstrap-token")
	require.NotContains(t, log.String(), "jwt-")

	require.NoError(t, Bootstrap(t.Context(), h, "", "v-test", agenttest.Quiet()), "once more changes nothing")
	require.Len(t, g.Seen().Handshakes, 1)
}

func TestBootstrapAfterALostAnswerComesWithTheSameKey(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	g.Fault(wire.PathHandshake, func(n int, _ http.ResponseWriter, _ *http.Request, serve func(http.ResponseWriter)) bool {
		if n > 2 {
			return false
		}
		serve(httptest.NewRecorder())
		agenttest.Drop()
		return true
	})
	h := g.Host(t)
	hurry(h)
	require.NoError(t, Bootstrap(t.Context(), h, "", "v", agenttest.Quiet()))
	require.Equal(t, 2, g.Hit(wire.PathHandshake))
	require.Len(t, g.Seen().Keys, 3, "two answers were lost")
	require.Equal(t, g.Seen().Keys[0], g.Seen().Keys[1])
	require.Equal(t, g.Seen().Keys[0], g.Seen().Keys[2])
}

func TestBootstrapAfterAnInterruptionComesWithTheSameKey(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	h := g.Host(t)
	ctx, cancel := context.WithCancel(t.Context())
	g.Fault(wire.PathHandshake, func(n int, _ http.ResponseWriter, _ *http.Request, serve func(http.ResponseWriter)) bool {
		if n > 1 {
			return false
		}
		serve(httptest.NewRecorder())
		cancel()
		return true
	})
	require.ErrorIs(t, Bootstrap(ctx, h, "", "v", agenttest.Quiet()), context.Canceled)
	agenttest.Eventually(t, "the fault was hit", func() bool { return g.Hit(wire.PathHandshake) == 1 })
	require.True(t, exists(t, h, wire.BootstrapTokenPath))

	again, err := host.OpenHost(h.Root)
	require.NoError(t, err)
	require.NoError(t, Bootstrap(t.Context(), again, "", "v", agenttest.Quiet()))
	require.Len(t, g.Seen().Keys, 2)
	require.Equal(t, g.Seen().Keys[0], g.Seen().Keys[1])
}

func TestBootstrapTellsRefusalsFromTroubles(t *testing.T) {
	t.Parallel()
	for status, definite := range map[int]bool{
		401: true, 409: true, 410: true,
		307: false, 400: false, 403: false, 404: false, 422: false, 429: false, 500: false, 502: false, 503: false,
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			g := agenttest.NewGateway(t)
			h := g.Host(t)
			hurry(h)
			g.Fault(wire.PathHandshake, func(n int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
				if n > 3 {
					return false
				}
				if !exists(t, h, wire.BootstrapTokenPath) {
					t.Error("the token is gone before the end")
				}
				agenttest.Refuse(w, status, "some_code")
				return true
			})
			err := Bootstrap(t.Context(), h, "", "v", agenttest.Quiet())
			require.False(t, exists(t, h, wire.BootstrapTokenPath))
			if definite {
				require.ErrorIs(t, err, ErrRefused)
				require.ErrorContains(t, err, "some_code")
				require.Equal(t, 1, g.Hit(wire.PathHandshake))
				require.False(t, exists(t, h, wire.IdentityDir+"/identity.json"))
				return
			}
			require.NoError(t, err)
			require.Equal(t, 3, g.Hit(wire.PathHandshake))
		})
	}
}

func TestBootstrapKeepsNoAnswerThatItCantUse(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(g *agenttest.Gateway, id *wire.Identity){
		"of another server":      func(_ *agenttest.Gateway, id *wire.Identity) { id.ServerID = "app-2" },
		"of another environment": func(_ *agenttest.Gateway, id *wire.Identity) { id.Environment = "prod" },
		"no token":               func(_ *agenttest.Gateway, id *wire.Identity) { id.Token = "" },
		"no certificates":        func(_ *agenttest.Gateway, id *wire.Identity) { id.Certificates = wire.Certificates{} },
		"another key's certificate": func(g *agenttest.Gateway, id *wire.Identity) {
			id.Certificates.AgentClient = agenttest.CertPEM(g.ClientCA.Pair(g.TB, agenttest.Leaf{Usage: x509.ExtKeyUsageClientAuth}).Certificate[0])
		},
		"swapped certificates": func(_ *agenttest.Gateway, id *wire.Identity) {
			id.Certificates.AgentServer, id.Certificates.DockerServer = id.Certificates.DockerServer, id.Certificates.AgentServer
		},
		"no gateway bundle": func(_ *agenttest.Gateway, id *wire.Identity) { id.Bundles.Gateway = "" },
		"no exec bundle":    func(_ *agenttest.Gateway, id *wire.Identity) { id.Bundles.ExecClient = "" },
		"no Docker bundle":  func(_ *agenttest.Gateway, id *wire.Identity) { id.Bundles.DockerClient = "" },
		"broken exec key":   func(_ *agenttest.Gateway, id *wire.Identity) { id.Bundles.ExecKeys = map[string]string{"k1": "?"} },
		"exec key of another kind": func(g *agenttest.Gateway, id *wire.Identity) {
			der, err := x509.MarshalPKIXPublicKey(g.GatewayCA.Key.Public())
			require.NoError(g.TB, err)
			id.Bundles.ExecKeys = map[string]string{"k1": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := agenttest.NewGateway(t)
			h := g.Host(t)
			h.Pause = func(context.Context, time.Duration) error {
				require.True(t, exists(t, h, wire.BootstrapTokenPath))
				require.False(t, exists(t, h, wire.IdentityDir+"/identity.json"))
				return nil
			}
			g.Fault(wire.PathHandshake, func(n int, w http.ResponseWriter, _ *http.Request, serve func(http.ResponseWriter)) bool {
				if n > 1 {
					return false
				}
				answer := httptest.NewRecorder()
				serve(answer)
				var id wire.Identity
				if err := json.Unmarshal(answer.Body.Bytes(), &id); err != nil {
					t.Error(err)
				}
				spoil(g, &id)
				agenttest.WriteJSON(w, id)
				return true
			})
			require.NoError(t, Bootstrap(t.Context(), h, "", "v", agenttest.Quiet()))
			require.Equal(t, 1, g.Hit(wire.PathHandshake))
			id, err := h.LoadIdentity()
			require.NoError(t, err)
			k, err := h.LoadKeys()
			require.NoError(t, err)
			_, err = gateway.Open(h, id, k, "")
			require.NoError(t, err, "the stored identity is usable")
		})
	}
}

func TestBootstrapWaitsAsLongAsItIsTold(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	h := g.Host(t)
	taken := hurry(h)
	g.Fault(wire.PathHandshake, func(n int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
		answers := map[int]string{1: "7", 2: "86400", 3: "soon"}
		if n > 3 {
			return false
		}
		w.Header().Set("Retry-After", answers[n])
		agenttest.Refuse(w, http.StatusServiceUnavailable, "not_ready")
		return true
	})
	require.NoError(t, Bootstrap(t.Context(), h, "", "v", agenttest.Quiet()))
	require.Equal(t, 3, g.Hit(wire.PathHandshake))
	require.GreaterOrEqual(t, (*taken)[0], 7*time.Second)
	require.Equal(t, 300*time.Second, (*taken)[1], "the wait is limited")
	require.LessOrEqual(t, (*taken)[2], 10*time.Second)
}

func TestBootstrapTellsTheTokenToNobodyElse(t *testing.T) {
	t.Parallel()
	stop := func(h *host.Host) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		h.Pause = func(ctx context.Context, _ time.Duration) error {
			if n++; n == 3 {
				cancel()
			}
			return ctx.Err()
		}
		return ctx
	}
	t.Run("a gateway of another CA", func(t *testing.T) {
		t.Parallel()
		g := agenttest.NewGateway(t)
		h := g.Host(t)
		require.NoError(t, os.WriteFile(h.Path(wire.GatewayCAPath), []byte(agenttest.NewAuthority(t, "gateway").PEM), 0o600))
		require.ErrorIs(t, Bootstrap(stop(h), h, "", "v", agenttest.Quiet()), context.Canceled)
		require.Empty(t, g.Seen().Calls)
	})
	t.Run("a gateway of another name", func(t *testing.T) {
		t.Parallel()
		g := agenttest.NewGateway(t)
		h := g.Host(t)
		h.Config.GatewayServerName = "elsewhere.prego.internal"
		require.ErrorIs(t, Bootstrap(stop(h), h, "", "v", agenttest.Quiet()), context.Canceled)
		require.Empty(t, g.Seen().Calls)
	})
	t.Run("a gateway without TLS 1.3", func(t *testing.T) {
		t.Parallel()
		g := agenttest.NewGateway(t)
		old := httptest.NewUnstartedServer(http.HandlerFunc(g.Serve))
		old.TLS = g.HTTP.TLS.Clone()
		old.TLS.MinVersion, old.TLS.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		old.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
		old.StartTLS()
		t.Cleanup(old.Close)
		h := g.Host(t)
		h.Config.GatewayURL = old.URL
		require.ErrorIs(t, Bootstrap(stop(h), h, "", "v", agenttest.Quiet()), context.Canceled)
		require.Empty(t, g.Seen().Calls)
	})
	t.Run("where a redirect points to", func(t *testing.T) {
		t.Parallel()
		g := agenttest.NewGateway(t)
		var reached atomic.Int32
		other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
		t.Cleanup(other.Close)
		g.Fault(wire.PathHandshake, func(_ int, w http.ResponseWriter, r *http.Request, _ func(http.ResponseWriter)) bool {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
			return true
		})
		h := g.Host(t)
		require.ErrorIs(t, Bootstrap(stop(h), h, "", "v", agenttest.Quiet()), context.Canceled)
		require.Equal(t, 3, g.Hit(wire.PathHandshake))
		require.Zero(t, reached.Load())
	})
}
