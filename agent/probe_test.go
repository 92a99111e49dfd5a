package agent

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"encoding/json"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

func TestProbeUnusableAnswerIsNotKept(t *testing.T) {
	g := newTestGateway(t)
	g.fault(wire.PathHandshake, func(n int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
		if n == 1 { writeJSON(w, wire.Identity{ServerID: "other"}) ; return true }
		return false
	})
	h := g.host(t)
	require.NoError(t, h.Bootstrap(t.Context(), "", "v", quiet()))
	require.Equal(t, 1, g.hit(wire.PathHandshake))
	_, err := New(h, "127.0.0.1", "v", quiet())
	require.NoError(t, err)
}

func TestProbePlainHTTPRefused(t *testing.T) {
	g := newTestGateway(t)
	root := g.plant(t, 0)
	p := root + wire.HostConfigPath
	b, _ := os.ReadFile(p)
	require.NoError(t, os.WriteFile(p, []byte(strings.Replace(string(b), "https://", "http://", 1)), 0o644))
	_, err := OpenHost(root)
	require.Error(t, err)
}

func TestProbeCleanStopIsNil(t *testing.T) {
	g := newTestGateway(t)
	a := g.enrolled(t)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGUSR1)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	eventually(t, "beat", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.beats) > 0 })
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	require.NoError(t, <-done)
}

func TestProbeIntervalFollowsAnswer(t *testing.T) {
	g := newTestGateway(t)
	a := g.enrolled(t)
	g.mu.Lock(); g.seconds = 5; g.mu.Unlock()
	d, err := a.beat(t.Context(), quiet())
	require.NoError(t, err)
	require.Less(t, d, 6*time.Second)
}

func TestProbeHugeInterval(t *testing.T) {
	g := newTestGateway(t)
	g.seconds = 1 << 40
	a := g.enrolled(t)
	d, err := a.beat(t.Context(), quiet())
	require.NoError(t, err)
	require.Greater(t, d, time.Second)
	require.Less(t, d, time.Hour)
}

func TestProbe401OtherIsNotRevoked(t *testing.T) {
	require.False(t, revoked(&Refusal{Problem: wire.Problem{Status: 401, Code: "unauthenticated"}}))
}

func TestProbeForeignIdentity(t *testing.T) {
	g := newTestGateway(t)
	h := g.host(t)
	require.NoError(t, h.Bootstrap(t.Context(), "", "v", quiet()))
	id, _ := h.LoadIdentity(); id.ServerID = "another"
	b, _ := json.Marshal(id)
	require.NoError(t, os.WriteFile(h.identityPath(), b, 0o600))
	_, err := New(h, "127.0.0.1", "v", quiet())
	require.Error(t, err)
}

func TestProbeBlackHole(t *testing.T) {
	g := newTestGateway(t)
	target := strings.TrimPrefix(g.srv.URL, "https://")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var mu sync.Mutex
	hole := map[net.Conn]*bool{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil { return }
			up, _ := net.Dial("tcp", target)
			dead := false
			mu.Lock(); hole[c] = &dead; mu.Unlock()
			cp := func(dst, src net.Conn) {
				buf := make([]byte, 32<<10)
				for {
					n, err := src.Read(buf)
					if err != nil { return }
					mu.Lock(); d := dead; mu.Unlock()
					if !d { _, _ = dst.Write(buf[:n]) }
				}
			}
			go cp(up, c); go cp(c, up)
		}
	}()
	g.srv.URL = "https://" + l.Addr().String()
	a := g.enrolled(t)
	a.gw.client.Timeout = 300 * time.Millisecond
	_, err = a.beat(t.Context(), quiet())
	require.NoError(t, err)
	mu.Lock(); for _, d := range hole { *d = true }; mu.Unlock()
	_, err = a.beat(t.Context(), quiet())
	require.Error(t, err)
	_, err = a.beat(t.Context(), quiet())
	require.NoError(t, err)
}
var _ = io.Discard
