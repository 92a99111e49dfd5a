package online

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
)

// ticks lets a test decide when pauses end.
type ticks struct {
	taken chan time.Duration
	end   chan struct{}
}

func stopTime(h *host.Host) ticks {
	k := ticks{taken: make(chan time.Duration), end: make(chan struct{})}
	h.Pause = func(ctx context.Context, d time.Duration) error {
		select {
		case k.taken <- d:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-k.end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return k
}

// next waits for the loop to pause, and returns how long it wants to pause.
func (k ticks) next(t *testing.T) time.Duration {
	t.Helper()
	select {
	case d := <-k.taken:
		return d
	case <-time.After(10 * time.Second):
		require.Fail(t, "the loop does not pause")
		return 0
	}
}

func (a *Agent) beating(ctx context.Context) error { return a.heartbeats(ctx, a.Logger()) }

func TestHeartbeatsComeAtOnceAndThenOncePerInterval(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	k := stopTime(a.host)
	agenttest.Loop(t, a.beating)
	var pauses []time.Duration
	for n := 1; n <= 10; n++ {
		pauses = append(pauses, k.next(t))
		require.Len(t, g.Seen().Beats, n, "one before each pause, the first before any")
		k.end <- struct{}{}
	}
	differ := false
	for _, d := range pauses {
		require.InDelta(t, 30, d.Seconds(), 3)
		differ = differ || d != pauses[0]
	}
	require.True(t, differ, "pauses are jittered")
	require.Equal(t, 1, g.Seen().MostAtOnce)

	got := g.Seen().Beats[0]
	require.Equal(t, "v-test", got.AgentVersion)
	require.NotEmpty(t, got.BootID)
	require.Equal(t, []string{"blue"}, got.Tags)
	require.Equal(t, wire.DockerUnavailable, got.DockerState)
	require.Greater(t, got.MemoryPct, 0.0)
	require.Less(t, got.MemoryPct, 100.0)
	require.Greater(t, got.DiskPct, 0.0)
	require.LessOrEqual(t, got.DiskPct, 100.0)
	require.Equal(t, "Bearer jwt-1", g.Seen().BeatTokens[0])
}

func TestHeartbeatsDoNotPileUpBehindASlowGateway(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	k := stopTime(a.host)
	release := make(chan struct{})
	g.Fault(wire.PathHeartbeat, func(n int, _ http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
		if n == 1 {
			<-release
		}
		return false
	})
	agenttest.Loop(t, a.beating)
	agenttest.Eventually(t, "the gateway holds the first", func() bool { return g.Seen().InFlight == 1 })
	select {
	case <-k.taken:
		require.Fail(t, "the loop continued during a heartbeat")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	for range 3 {
		k.next(t)
		k.end <- struct{}{}
	}
	require.Equal(t, 1, g.Seen().MostAtOnce)
}

func TestAfterAFailureTheNextHeartbeatComesSooner(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	k := stopTime(a.host)
	var mended atomic.Bool
	g.Fault(wire.PathHeartbeat, func(n int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
		switch {
		case mended.Load():
			return false
		case n%3 == 0:
			agenttest.Drop()
		case n%3 == 1:
			agenttest.Refuse(w, http.StatusServiceUnavailable, "not_ready")
		default:
			// A gateway with the wrong keys refuses the whole fleet: that is no revocation.
			agenttest.Refuse(w, http.StatusUnauthorized, "unauthenticated")
		}
		return true
	})
	agenttest.Loop(t, a.beating)
	for n := range 9 {
		bound := min(15*time.Second, time.Second<<n) + 100*time.Millisecond
		d := k.next(t)
		require.LessOrEqual(t, d, bound)
		require.GreaterOrEqual(t, d, 100*time.Millisecond, "no busy loop")
		mended.Store(n == 8)
		k.end <- struct{}{}
	}
	require.InDelta(t, 30, k.next(t).Seconds(), 3, "and then all is as before")
	require.GreaterOrEqual(t, g.Hit(wire.PathHeartbeat), 9)
	require.Len(t, g.Seen().Beats, 1)
}

func TestARevokedAgentAsksSeldom(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	k := stopTime(a.host)
	g.Fault(wire.PathHeartbeat, func(n int, w http.ResponseWriter, _ *http.Request, _ func(http.ResponseWriter)) bool {
		if n > 2 {
			return false
		}
		agenttest.Refuse(w, http.StatusForbidden, "identity_revoked")
		return true
	})
	agenttest.Loop(t, a.beating)
	for range 2 {
		require.Equal(t, 5*time.Minute, k.next(t))
		k.end <- struct{}{}
	}
	require.Equal(t, 2, g.Hit(wire.PathHeartbeat))
	require.InDelta(t, 30, k.next(t).Seconds(), 3, "a mistake that was mended is forgotten")
}

func TestTheGatewaySetsTheInterval(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	for seconds, want := range map[int]float64{5: 5, 60: 60, 0: 30, -7: 30, 100_000: 300, math.MaxInt64: 300} {
		g.Change(func() { g.Seconds = seconds })
		d, err := a.beat(t.Context(), agenttest.Quiet())
		require.NoError(t, err)
		require.InDelta(t, want, d.Seconds(), want/10, "asked for %d", seconds)
	}
}

// TestAConnectionThatDiedSilentlyIsReplaced cuts the wire without telling either
// side, as when a gateway's machine or a NAT in between is gone: the system would
// wait for a quarter of an hour.
func TestAConnectionThatDiedSilentlyIsReplaced(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	wireBetween := newCable(t, strings.TrimPrefix(g.HTTP.URL, "https://"))
	g.HTTP.URL = "https://" + wireBetween.addr
	a := enrolled(t, g)
	a.current.Load().Gateway.Client.Timeout = 3 * time.Second
	_, err := a.beat(t.Context(), agenttest.Quiet())
	require.NoError(t, err)
	wireBetween.cut()
	_, err = a.beat(t.Context(), agenttest.Quiet())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Positive(t, wireBetween.lost.Load(), "bytes went into the cut cable")
	_, err = a.beat(t.Context(), agenttest.Quiet())
	require.NoError(t, err)
}

// cable forwards connections. When it is cut, open connections stay open, but carry nothing any more.
type cable struct {
	addr string
	mu   sync.Mutex
	open []*atomic.Bool
	lost atomic.Int64
}

func newCable(t *testing.T, to string) *cable {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cable{addr: l.Addr().String()}
	var conns []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			dead := &atomic.Bool{}
			c.mu.Lock()
			c.open, conns = append(c.open, dead), append(conns, near, far)
			c.mu.Unlock()
			go c.carry(far, near, dead)
			go c.carry(near, far, dead)
		}
	}()
	return c
}

func (c *cable) carry(dst, src net.Conn, dead *atomic.Bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if dead.Load() {
			c.lost.Add(int64(n))
		} else if n > 0 {
			_, _ = dst.Write(buf[:n])
		}
		if err != nil {
			if !dead.Load() {
				_ = dst.Close()
			}
			return
		}
	}
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, dead := range c.open {
		dead.Store(true)
	}
}

func TestRunEndsCleanly(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	stop := agenttest.Loop(t, a.Run)
	agenttest.Eventually(t, "a heartbeat", func() bool { return len(g.Seen().Beats) == 1 })
	stop()
}

func TestRunFailsWhereItCantListen(t *testing.T) {
	t.Parallel()
	g := agenttest.NewGateway(t)
	a := enrolled(t, g)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(a.host.Config.AgentPort)))
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	require.ErrorContains(t, a.Run(t.Context()), "exec endpoint")
}

func TestDockerState(t *testing.T) {
	t.Parallel()
	root := func(t *testing.T) (string, string) {
		dir, err := os.MkdirTemp("", "sock") // a socket's path must be short
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		require.NoError(t, os.Mkdir(filepath.Join(dir, "run"), 0o755))
		return dir, filepath.Join(dir, dockerSocket)
	}
	serve := func(t *testing.T, socket string, status int) {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
		require.NoError(t, err)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/_ping" {
				t.Errorf("the agent asks for %s", r.URL.Path)
			}
			w.WriteHeader(status)
		}))
		srv.Listener = l
		srv.Start()
		t.Cleanup(srv.Close)
	}
	t.Run("running", func(t *testing.T) {
		t.Parallel()
		dir, socket := root(t)
		serve(t, socket, http.StatusOK)
		require.Equal(t, wire.DockerRunning, sensors{root: dir}.read(t.Context()).dockerState)
	})
	t.Run("ill", func(t *testing.T) {
		t.Parallel()
		dir, socket := root(t)
		serve(t, socket, http.StatusInternalServerError)
		require.Equal(t, wire.DockerStopped, sensors{root: dir}.read(t.Context()).dockerState)
	})
	t.Run("gone", func(t *testing.T) {
		t.Parallel()
		dir, socket := root(t)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
		require.NoError(t, err)
		l.SetUnlinkOnClose(false)
		require.NoError(t, l.Close())
		require.Equal(t, wire.DockerStopped, sensors{root: dir}.read(t.Context()).dockerState)
	})
	t.Run("hanging", func(t *testing.T) {
		t.Parallel()
		dir, socket := root(t)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
		require.Equal(t, wire.DockerStopped, sensors{root: dir}.read(t.Context()).dockerState)
	})
	t.Run("by its pid, where its socket is closed to others", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "docker.pid")
		require.False(t, isAlive(file))
		cmd := exec.Command("sleep", "60")
		require.NoError(t, cmd.Start())
		require.NoError(t, os.WriteFile(file, fmt.Appendln(nil, cmd.Process.Pid), 0o600))
		require.True(t, isAlive(file))
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.False(t, isAlive(file))
		for _, nonsense := range []string{"", "0", "-1", "x"} {
			require.NoError(t, os.WriteFile(file, []byte(nonsense), 0o600))
			require.False(t, isAlive(file), nonsense)
		}
	})
	t.Run("not installed", func(t *testing.T) {
		t.Parallel()
		dir, _ := root(t)
		require.Equal(t, wire.DockerUnavailable, sensors{root: dir}.read(t.Context()).dockerState)
	})
}
