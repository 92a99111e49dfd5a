package online

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/prego/prego/agent/gateway"
	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// settle is how long a container without a check must run to be healthy.
const settle = 3 * time.Second

// containers keeps the gateway informed of the instances' containers on this host: each change is sent immediately,
// changes during a report with the next one.
type containers struct {
	// source reports the present containers until ctx ends.
	source func(ctx context.Context, emit func(host.WatchFrame) error) error
	check  func(ctx context.Context, address string, c wire.HealthCheck) error

	mu     sync.Mutex
	of     map[string]*reported
	full   bool // everything must be reported
	stream string
	seq    int64
	due    chan struct{}
}

// reported is a container: what it is, and what the gateway knows of it.
type reported struct {
	seen host.WatchedContainer
	now  wire.Container
	told wire.Container
	stop context.CancelFunc // ends its checks
}

// WatchEngine makes the agent take from source what containers are. By default it listens to
// the process that holds the engine's socket.
func (a *Agent) WatchEngine(source func(ctx context.Context, emit func(host.WatchFrame) error) error) {
	a.containers.source = source
}

func newContainers(h *host.Host) *containers {
	source := func(ctx context.Context, emit func(host.WatchFrame) error) error { return readWatcher(ctx, h, emit) }
	return &containers{source: source, check: checkHealth, of: make(map[string]*reported), due: make(chan struct{}, 1)}
}

// readWatcher reads the reports of the process that watches the engine.
func readWatcher(ctx context.Context, h *host.Host, emit func(host.WatchFrame) error) error {
	conn, err := host.DialSocket(ctx, h.Path(wire.WatchSocket))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	for dec := json.NewDecoder(conn); ; {
		var f host.WatchFrame
		if err := dec.Decode(&f); err != nil {
			return err
		}
		if err := emit(f); err != nil {
			return err
		}
	}
}

// watchContainers watches and reports until ctx ends.
func (a *Agent) watchContainers(ctx context.Context, log *slog.Logger) error {
	c := a.containers
	var wg sync.WaitGroup
	wg.Go(func() { c.push(ctx, a, log) })
	wait := gateway.Backoff{Base: 200 * time.Millisecond, Cap: 15 * time.Second}
	for ctx.Err() == nil {
		c.read(ctx, &wait, log)
		if a.host.Pause(ctx, wait.Next(100*time.Millisecond)) != nil {
			break
		}
	}
	wg.Wait()
	return nil //nolint:nilerr // asked to stop
}

// read takes the source's reports until they end.
func (c *containers) read(ctx context.Context, wait *gateway.Backoff, log *slog.Logger) {
	err := c.source(ctx, func(f host.WatchFrame) error {
		wait.Reset()
		c.take(ctx, f)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		log.Debug("containers are not watched", "error", err.Error())
	}
}

// take notes what containers are.
func (c *containers) take(ctx context.Context, f host.WatchFrame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.Full {
		there := make(map[string]bool, len(f.Containers))
		for _, s := range f.Containers {
			there[s.Instance] = true
		}
		for id, r := range c.of {
			if !there[id] {
				r.end()
				delete(c.of, id)
			}
		}
		c.begin()
	}
	for _, s := range f.Containers {
		c.note(ctx, s)
	}
	c.wake()
}

// begin starts another stream of reports. c.mu is held.
func (c *containers) begin() { c.full, c.stream, c.seq = true, rand.Text(), 0 }

func (c *containers) wake() {
	select {
	case c.due <- struct{}{}:
	default:
	}
}

func (r *reported) end() {
	if r.stop != nil {
		r.stop()
		r.stop = nil
	}
}

// note notes what one container is, and begins its checks when it has started. c.mu is held.
func (c *containers) note(ctx context.Context, s host.WatchedContainer) {
	r := c.of[s.Instance]
	if r == nil {
		r = &reported{}
		c.of[s.Instance] = r
	}
	same := r.seen.Running && s.Running && r.seen.StartedAt.Equal(s.StartedAt) && r.seen.Check == s.Check && r.seen.Address == s.Address
	r.seen = s
	if !same {
		r.end()
	}
	switch {
	case !s.Running:
		r.now = wire.Container{Instance: s.Instance, Ended: true, Detail: s.Detail}
	case s.Health != "" && s.Check == "":
		r.now = wire.Container{Instance: s.Instance, Health: wire.ContainerHealth(s.Health), Detail: s.Detail}
	case same && r.stop != nil: // its checks continue
	default:
		r.now = wire.Container{Instance: s.Instance, Health: wire.HealthStarting}
		if s.StartedAt.IsZero() {
			return // it is still to start
		}
		checking, stop := context.WithCancel(ctx)
		r.stop = stop
		go c.follow(checking, s)
	}
}

// follow carries out the checks of a container that runs.
func (c *containers) follow(ctx context.Context, s host.WatchedContainer) {
	say := func(h wire.ContainerHealth, detail string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r := c.of[s.Instance]; r != nil && ctx.Err() == nil {
			r.now.Health, r.now.Detail = h, host.Clip(detail, wire.MaxContainerDetail)
			c.wake()
		}
	}
	if s.Check == "" {
		if host.Sleep(ctx, max(0, settle-time.Since(s.StartedAt))) == nil {
			say(wire.HealthHealthy, "")
		}
		return
	}
	var check wire.HealthCheck
	if err := json.Unmarshal([]byte(s.Check), &check); err != nil {
		say(wire.HealthUnhealthy, "its health check can't be read")
		return
	}
	followCheck(ctx, check, s.StartedAt, func(ctx context.Context) error { return c.check(ctx, s.Address, check) }, say)
}

// request is the next report; ok is false if there is nothing to report.
func (c *containers) request() (out wire.ContainersRequest, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out = wire.ContainersRequest{Stream: c.stream, Seq: c.seq + 1, Full: c.full, Containers: []wire.Container{}}
	for _, r := range c.of {
		if (c.full || r.now != r.told) && len(out.Containers) < wire.MaxContainers {
			out.Containers = append(out.Containers, r.now)
		}
	}
	if c.stream == "" || !c.full && len(out.Containers) == 0 {
		return out, false
	}
	c.seq++
	return out, true
}

// sent notes that a report was written, or asked for again from the start.
func (c *containers) sent(in wire.ContainersRequest, answer wire.ContainersResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if in.Stream != c.stream {
		return // another has begun meanwhile
	}
	if answer.Resync {
		c.begin()
		return
	}
	c.full = false
	for _, was := range in.Containers {
		r := c.of[was.Instance]
		if r == nil {
			continue
		}
		if r.told = was; r.now == was && was.Ended && r.seen.StartedAt.IsZero() { // it is gone
			delete(c.of, was.Instance)
		}
	}
}

// push sends the pending changes, one report at a time.
func (c *containers) push(ctx context.Context, a *Agent, log *slog.Logger) {
	wait := gateway.Backoff{Base: 250 * time.Millisecond, Cap: 5 * time.Second}
	for {
		in, ok := c.request()
		if !ok {
			select {
			case <-c.due:
				continue
			case <-ctx.Done():
				return
			}
		}
		s := a.current.Load()
		var answer wire.ContainersResponse
		err := s.Gateway.PostJSON(ctx, wire.PathContainers, s.ID.Token, in, &answer)
		var pause time.Duration
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			c.sent(in, answer)
			wait.Reset()
			if !answer.Resync {
				continue
			}
			pause = wait.Next(0)
		case isRevoked(err):
			pause = revokedRetry
		default:
			pause = wait.Next(0)
			log.Warn("containers not reported", "again_in", pause.String(), "error", err.Error())
		}
		if a.host.Pause(ctx, pause) != nil {
			return
		}
	}
}
