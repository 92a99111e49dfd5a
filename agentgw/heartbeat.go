package agentgw

import (
	"context"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
)

// heartbeat takes a sign of life. It is answered at once and written with the
// next batch: one that is lost with this process is made up for in 30 s.
func (g *Gateway) heartbeat(c echo.Context) error {
	var in wire.HeartbeatRequest
	if err := decode(c, &in); err != nil {
		return err
	}
	if err := checkHeartbeat(in); err != nil {
		return err
	}
	who := callerOf(c)
	key, err := g.ca.KeySHA256(who.cert)
	if err != nil {
		return err
	}
	if !g.beats.add(Heartbeat{
		ServerID: who.serverID, Key: key, BootID: in.BootID, AgentVersion: in.AgentVersion,
		Load1: in.Load1, MemoryPct: in.MemoryPct, DiskPct: in.DiskPct, DockerState: in.DockerState,
	}) {
		return prego.Errorf(prego.CodeNotReady, "heartbeats can't be written right now")
	}
	bundles, err := g.ca.Bundles()
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, wire.HeartbeatResponse{BundleVersion: bundles.Version, HeartbeatSeconds: int(g.settings.Heartbeat.Seconds())})
}

func checkHeartbeat(in wire.HeartbeatRequest) error {
	for _, f := range []struct {
		field  string
		v, max float64
	}{{"load1", in.Load1, 1e6}, {"memory_pct", in.MemoryPct, 100}, {"disk_pct", in.DiskPct, 100}} {
		if math.IsNaN(f.v) || f.v < 0 || f.v > f.max {
			return prego.Invalid(f.field, "is out of range")
		}
	}
	for _, f := range []struct{ field, v string }{{"boot_id", in.BootID}, {"agent_version", in.AgentVersion}, {"docker_state", in.DockerState}} {
		if len(f.v) > 64 {
			return prego.Invalid(f.field, "must be at most 64 characters")
		}
	}
	return nil
}

// batcher gathers heartbeats for one write.
type batcher struct {
	every time.Duration
	rows  int
	flush func(ctx context.Context, batch []Heartbeat)

	mu   sync.Mutex
	buf  []Heartbeat
	full chan struct{}
}

func newBatcher(every time.Duration, rows int, flush func(context.Context, []Heartbeat)) *batcher {
	return &batcher{every: every, rows: rows, flush: flush, full: make(chan struct{}, 1)}
}

// maxPending bounds what is gathered while the database is away.
const maxPending = 200_000

func (b *batcher) add(h Heartbeat) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.buf) >= maxPending {
		return false
	}
	b.buf = append(b.buf, h)
	if len(b.buf) >= b.rows {
		select {
		case b.full <- struct{}{}:
		default:
		}
	}
	return true
}

func (b *batcher) take() []Heartbeat {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.buf
	b.buf = make([]Heartbeat, 0, min(cap(out), b.rows))
	return out
}

func (b *batcher) run(ctx context.Context) {
	t := time.NewTicker(b.every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-b.full:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if batch := b.take(); len(batch) > 0 {
				b.flush(last, batch)
			}
			return
		}
		if batch := b.take(); len(batch) > 0 {
			b.flush(ctx, batch)
		}
	}
}

// flush writes a batch and signals the runs of servers that are still being
// provisioned.
func (g *Gateway) flush(ctx context.Context, batch []Heartbeat) {
	began := time.Now()
	outcomes, err := g.store.FlushHeartbeats(ctx, batch)
	if err != nil {
		g.metrics.flushes.WithLabelValues("failed").Observe(time.Since(began).Seconds())
		g.log.Error("heartbeats not written", zap.Int("heartbeats", len(batch)), zap.Error(err))
		return
	}
	g.metrics.flushes.WithLabelValues("written").Observe(time.Since(began).Seconds())
	g.metrics.flushed.Add(float64(len(batch)))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, o := range outcomes {
		if o.Status != prego.ServerProvisioning {
			continue
		}
		wg.Add(1)
		slots <- struct{}{}
		go func() {
			defer func() { <-slots; wg.Done() }()
			g.signal("heartbeat", o.ServerID, func() error { return g.signals.AgentHeartbeat(ctx, o.ServerID, o.Attempt) })
		}()
	}
	wg.Wait()
}
