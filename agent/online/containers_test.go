package online

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/rooted"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/lab/agenttest"
	"github.com/prego/prego/lab/need"
)

// testEngine stands in for dockerd: what a Watcher may call, and nothing else.
type testEngine struct {
	addr string

	mu         sync.Mutex
	containers map[string]map[string]any // inspect's answer, by id
	events     chan map[string]any
	refused    []string // calls outside the table
	filters    []string
}

func newTestEngine(t *testing.T) *testEngine {
	t.Helper()
	e := &testEngine{addr: filepath.Join(t.TempDir(), "d.sock"), containers: map[string]map[string]any{}, events: make(chan map[string]any, 16)}
	l, err := net.Listen("unix", e.addr)
	require.NoError(t, err)
	srv := &http.Server{Handler: e, ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return e
}

func (e *testEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/v1."); ok {
		path = rest[strings.IndexByte(rest, '/'):]
	}
	write := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	e.mu.Lock()
	if f := r.URL.Query().Get("filters"); f != "" {
		e.filters = append(e.filters, f)
	}
	e.mu.Unlock()
	id, of, _ := strings.Cut(strings.TrimPrefix(path, "/containers/"), "/")
	switch {
	case path == "/_ping":
		w.Header().Set("Api-Version", "1.41")
	case r.Method == http.MethodGet && path == "/events":
		w.WriteHeader(http.StatusOK)
		e.mu.Lock()
		events := e.events
		e.mu.Unlock()
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case ev, ok := <-events:
				if !ok {
					return
				}
				_ = json.NewEncoder(w).Encode(ev)
			case <-r.Context().Done():
				return
			}
		}
	case r.Method == http.MethodGet && path == "/containers/json":
		e.mu.Lock()
		defer e.mu.Unlock()
		list := []map[string]any{}
		for id, c := range e.containers {
			list = append(list, map[string]any{"Id": id, "Labels": c["Config"].(map[string]any)["Labels"]})
		}
		write(list)
	case r.Method == http.MethodGet && of == "json":
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.containers[id] == nil {
			w.WriteHeader(http.StatusNotFound)
			write(map[string]string{"message": "No such container"})
			return
		}
		write(e.containers[id])
	case r.Method == http.MethodGet && of == "logs":
		const text = "out of luck"
		w.Header().Set("Content-Type", "application/vnd.docker.raw-stream")
		_, _ = w.Write(append([]byte{1, 0, 0, 0, 0, 0, 0, byte(len(text))}, text...))
	default:
		e.mu.Lock()
		defer e.mu.Unlock()
		e.refused = append(e.refused, r.Method+" "+path)
		w.WriteHeader(http.StatusForbidden)
	}
}

func (e *testEngine) asked() (filters, refused []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.filters...), append([]string{}, e.refused...)
}

// is sets a container's state, and sends an event.
func (e *testEngine) is(id, event string, state map[string]any, labels map[string]string) {
	l := map[string]any{wire.LabelServer: agenttest.Server, wire.LabelInstance: "ins-" + id}
	for k, v := range labels {
		l[k] = v
	}
	e.mu.Lock()
	e.containers[id] = map[string]any{
		"Id": id, "State": state, "Config": map[string]any{"Labels": l, "Env": []string{"PASSWORD=hunter2"}},
		"NetworkSettings": map[string]any{"Networks": map[string]any{"bridge": map[string]any{"IPAddress": "127.0.0.1"}}},
	}
	e.mu.Unlock()
	if event != "" {
		e.events <- map[string]any{"Type": "container", "Action": event, "Actor": map[string]any{"ID": id, "Attributes": map[string]string{wire.LabelInstance: "ins-" + id}}}
	}
}

func running(since time.Time, health string) map[string]any {
	s := map[string]any{"Status": "running", "Running": true, "StartedAt": since.UTC().Format(time.RFC3339Nano)}
	if health != "" {
		s["Health"] = map[string]any{"Status": health, "Log": []any{map[string]any{"ExitCode": 1, "Output": "no answer\n"}}}
	}
	return s
}

// listening is an agent whose gateway keeps the reports, and the engine that it hears of.
func listening(t *testing.T) (*testEngine, *reportLog) {
	t.Helper()
	g := agenttest.NewGateway(t)
	log := &reportLog{last: map[string]wire.Container{}}
	g.Fault(wire.PathContainers, log.serve)
	a := enrolled(t, g)
	e := newTestEngine(t)
	w, err := rooted.NewWatcher(a.host, "", "unix://"+e.addr, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	l, err := a.host.Listen(wire.WatchSocket)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.Run(ctx, l) })
	wg.Go(func() { _ = a.watchContainers(ctx, slog.New(slog.DiscardHandler)) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return e, log
}

// reportLog is the reports that a gateway got.
type reportLog struct {
	mu     sync.Mutex
	fails  int // of the next reports
	resync bool
	all    []wire.ContainersRequest
	last   map[string]wire.Container
}

func (l *reportLog) serve(_ int, w http.ResponseWriter, r *http.Request, _ func(http.ResponseWriter)) bool {
	var in wire.ContainersRequest
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &in)
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(string(body), "hunter2") {
		panic("a container's secrets were sent")
	}
	if l.fails > 0 {
		l.fails--
		agenttest.Refuse(w, http.StatusServiceUnavailable, "not_ready")
		return true
	}
	l.all = append(l.all, in)
	if in.Full {
		l.last = map[string]wire.Container{}
	}
	for _, c := range in.Containers {
		l.last[c.Instance] = c
	}
	agenttest.WriteJSON(w, wire.ContainersResponse{Resync: l.resync})
	l.resync = false
	return true
}

func (l *reportLog) of(instance string) wire.Container {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[instance]
}

func (l *reportLog) requests() []wire.ContainersRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]wire.ContainersRequest{}, l.all...)
}

// TestContainersAreReported: all at first, then each change, in order and once, over
// failures of the gateway and of the engine.
func TestContainersAreReported(t *testing.T) {
	t.Parallel()
	e, log := listening(t)
	agenttest.Eventually(t, "a full report", func() bool {
		r := log.requests()
		return len(r) == 1 && r[0].Full && r[0].Seq == 1 && r[0].Containers != nil
	})
	health := func(id string) func() bool {
		return func() bool { return log.of("ins-"+id).Health == wire.HealthHealthy }
	}
	now := time.Now()
	e.is("a", "start", running(now, "starting"), nil)
	agenttest.Eventually(t, "a start", func() bool { return log.of("ins-a").Health == wire.HealthStarting })
	log.mu.Lock()
	log.fails = 2
	log.mu.Unlock()
	e.is("a", "health_status: healthy", running(now, "healthy"), nil)
	agenttest.Eventually(t, "health, though the gateway was away", health("a"))
	e.is("a", "health_status: unhealthy", running(now, "unhealthy"), nil)
	agenttest.Eventually(t, "a failing check", func() bool {
		return log.of("ins-a") == wire.Container{Instance: "ins-a", Health: wire.HealthUnhealthy, Detail: "its health check ended with 1: no answer; its last lines: out of luck"}
	})
	e.is("b", "start", running(now.Add(-settle), ""), nil)
	agenttest.Eventually(t, "that one without a check keeps running", health("b"))
	e.is("b", "die", map[string]any{"Status": "exited", "ExitCode": 137, "OOMKilled": true, "StartedAt": now.Format(time.RFC3339Nano)}, nil)
	agenttest.Eventually(t, "an end", func() bool {
		return log.of("ins-b") == wire.Container{Instance: "ins-b", Ended: true, Detail: "it ended with status 137 (out of memory); its last lines: out of luck"}
	})

	// Each report follows the previous one, and repeats nothing.
	seen, seq := map[wire.Container]bool{}, int64(0)
	for _, r := range log.requests() {
		require.Equal(t, log.requests()[0].Stream, r.Stream)
		require.Greater(t, r.Seq, seq)
		seq = r.Seq
		for _, c := range r.Containers {
			require.False(t, seen[c], "%+v is there twice", c)
			seen[c] = true
		}
	}
	before := len(log.requests())

	// A gateway that does not know the stream, and a restarted engine, cause a full report.
	log.mu.Lock()
	log.resync = true
	log.mu.Unlock()
	e.is("a", "health_status: healthy", running(now, "healthy"), nil)
	agenttest.Eventually(t, "another stream", func() bool {
		r := log.requests()
		return len(r) > before+1 && r[len(r)-1].Full && len(r[len(r)-1].Containers) == 2 && r[len(r)-1].Stream != r[0].Stream
	})
	old := e.events
	e.mu.Lock()
	delete(e.containers, "b")
	e.events = make(chan map[string]any, 16)
	e.mu.Unlock()
	close(old)
	agenttest.Eventually(t, "all after the engine was away", func() bool {
		r := log.requests()
		return r[len(r)-1].Full && len(r[len(r)-1].Containers) == 1
	})
	filters, refused := e.asked()
	require.Empty(t, refused, "nothing but the closed table")
	for _, f := range filters {
		require.Contains(t, f, `"prego.server_id=app-1":true`)
		require.Contains(t, f, `"prego.instance_id":true`)
	}
}

// TestHealthIsProbed carries out a check over HTTP of a container whose service comes up,
// fails and ends.
func TestHealthIsProbed(t *testing.T) {
	t.Parallel()
	e, log := listening(t)
	status := make(chan int, 1)
	status <- http.StatusServiceUnavailable
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code := <-status
		status <- code
		if r.URL.Path != "/up" {
			code = http.StatusTeapot
		}
		w.WriteHeader(code)
	}))
	defer service.Close()
	_, port, err := net.SplitHostPort(service.Listener.Addr().String())
	require.NoError(t, err)
	check := map[string]string{wire.LabelHealth: fmt.Sprintf(`{"kind":"http","port":%s,"path":"/up","interval_seconds":1,"timeout_seconds":1,"retries":2}`, port)}
	e.is("a", "start", running(time.Now(), ""), check)
	agenttest.Eventually(t, "a start", func() bool { return log.of("ins-a").Health == wire.HealthStarting })
	agenttest.Eventually(t, "failures", func() bool {
		return log.of("ins-a") == wire.Container{Instance: "ins-a", Health: wire.HealthUnhealthy, Detail: "its health check failed: it answered 503"}
	})
	<-status
	status <- http.StatusFound
	agenttest.Eventually(t, "health", func() bool { return log.of("ins-a").Health == wire.HealthHealthy })
	e.is("a", "die", map[string]any{"Status": "exited"}, check)
	agenttest.Eventually(t, "an end", func() bool { return log.of("ins-a").Ended })
}

func TestChecks(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	tcp := wire.HealthCheck{Kind: wire.HealthTCP, Port: port}
	require.NoError(t, checkHealth(t.Context(), "127.0.0.1", tcp))
	require.NoError(t, l.Close())
	require.Error(t, checkHealth(t.Context(), "127.0.0.1", wire.HealthCheck{Kind: wire.HealthTCP, Port: need.ClosedPort(t)}))
	require.Error(t, checkHealth(t.Context(), "", tcp))
	require.Error(t, checkHealth(t.Context(), "127.0.0.1", wire.HealthCheck{Kind: "shell", Port: port}))

	// Failures in the start period don't count, and one success is enough.
	var said []wire.ContainerHealth
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	followCheck(ctx, wire.HealthCheck{IntervalSeconds: 1, TimeoutSeconds: 1, Retries: 1, StartPeriodSeconds: 600}, time.Now(), func(context.Context) error {
		if tries++; tries == 2 {
			return nil
		}
		if tries == 3 {
			defer cancel()
		}
		return errors.New("not yet")
	}, func(h wire.ContainerHealth, _ string) { said = append(said, h) })
	require.Equal(t, []wire.ContainerHealth{wire.HealthHealthy}, said)
}
