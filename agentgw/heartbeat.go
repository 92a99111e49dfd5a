package agentgw

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
)

// heartbeat accepts a heartbeat. It is answered immediately and written with the next batch. If this process dies
// before that, the next heartbeat replaces it after 30 s.
func (g *Gateway) heartbeat(ctx context.Context, who caller, in wire.HeartbeatRequest) (any, error) {
	if err := checkHeartbeat(in); err != nil {
		return nil, err
	}
	tags, err := reportedTags(in.Tags)
	if err != nil {
		return nil, err
	}
	private, err := reportedAddresses(in.PrivateAddresses)
	if err != nil {
		return nil, err
	}
	ahead, skewed := g.ahead(in.HostTime)
	if skewed {
		g.metrics.ailing.WithLabelValues("clock").Inc()
	}
	if in.DockerState == wire.DockerStopped {
		g.metrics.ailing.WithLabelValues("docker").Inc()
	}
	if !g.beats.add(server.Heartbeat{
		ServerID: who.serverID, Key: who.key, BootID: in.BootID, AgentVersion: in.AgentVersion,
		Load1: in.Load1, MemoryPct: in.MemoryPct, DiskPct: in.DiskPct, DockerState: in.DockerState, Tags: tags,
		CPUPct: in.CPUPct, WorkerSlotsPct: in.WorkerSlotsPct, DBDiskPct: in.DBDiskPct,
		RedisMemoryPct: in.RedisMemoryPct, ClockAhead: ahead, ClockSkewed: skewed, PrivateAddresses: private,
	}) {
		return nil, prego.Errorf(prego.CodeNotReady, "heartbeats can't be written right now")
	}
	if g.awaited.arrived(who.serverID) { // a run waits for this heartbeat
		g.beats.flushNow()
	}
	bundles, err := g.ca.Bundles(g.settings.ExecKeys, g.signer.Keys())
	if err != nil {
		return nil, err
	}
	return wire.HeartbeatResponse{
		BundleVersion: bundles.Version, HeartbeatSeconds: int(g.settings.Heartbeat.Seconds()),
		PeersVersion: g.peers.of(who.serverID), UpdateSerial: g.offers.of(who.serverID), Epoch: g.epoch(),
	}, nil
}

func checkHeartbeat(in wire.HeartbeatRequest) error {
	for _, f := range []struct {
		field string
		v     *float64
		max   float64
	}{
		{"load1", &in.Load1, 1e6},
		{"memory_pct", &in.MemoryPct, 100},
		{"disk_pct", &in.DiskPct, 100},
		{"cpu_pct", in.CPUPct, 100},
		{"worker_slots_pct", in.WorkerSlotsPct, 100},
		{"db_disk_pct", in.DBDiskPct, 100},
		{"redis_memory_pct", in.RedisMemoryPct, 100},
	} {
		if f.v != nil && !(*f.v >= 0 && *f.v <= f.max) { // NaN is in no range
			return prego.Invalid(f.field, "is out of range")
		}
	}
	switch in.DockerState {
	case "", wire.DockerRunning, wire.DockerStopped, wire.DockerUnavailable:
	default:
		return prego.Invalid("docker_state", "must be running, stopped or unavailable")
	}
	return errors.Join(checkWord("boot_id", in.BootID), checkWord("agent_version", in.AgentVersion))
}

// reportedAddresses are the private addresses that a host reports.
func reportedAddresses(said []string) ([]string, error) {
	if len(said) > wire.MaxPrivateAddresses {
		return nil, prego.Invalid("private_addresses", fmt.Sprintf("must be at most %d", wire.MaxPrivateAddresses))
	}
	for _, s := range said {
		if ip, err := netip.ParseAddr(s); err != nil || !ip.Is4() || ip.String() != s {
			return nil, prego.Invalid("private_addresses", "must be IPv4 addresses")
		}
	}
	return said, nil
}

// reportedTags are the tags that a host reports, in a stable order.
func reportedTags(said []string) ([]string, error) {
	tags, err := prego.NormalizeTags(said)
	var invalid *prego.Error
	if errors.As(err, &invalid) {
		return nil, prego.Invalid("tags", invalid.Message)
	}
	slices.Sort(tags)
	return tags, err
}

// checkWord rejects text that Postgres does not accept, such as a NUL: it would fail the whole batch.
func checkWord(field, v string) error {
	if len(v) > 64 || strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return prego.Invalid(field, "must be at most 64 printable ASCII characters without spaces")
	}
	return nil
}

// batcher collects heartbeats for one write.
type batcher struct {
	every time.Duration
	rows  int
	flush func(ctx context.Context, batch []server.Heartbeat)

	mu   sync.Mutex
	buf  []server.Heartbeat
	full chan struct{} // write now
}

func newBatcher(every time.Duration, rows int, flush func(context.Context, []server.Heartbeat)) *batcher {
	return &batcher{every: every, rows: rows, flush: flush, full: make(chan struct{}, 1)}
}

func (b *batcher) pending() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.buf)
}

// maxPending bounds the batch while the database is unavailable.
const maxPending = 200_000

func (b *batcher) add(h server.Heartbeat) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.buf) >= maxPending {
		return false
	}
	b.buf = append(b.buf, h)
	if len(b.buf) >= b.rows {
		b.flushNow()
	}
	return true
}

// flushNow writes the batch before it is full and before its time is over.
func (b *batcher) flushNow() {
	select {
	case b.full <- struct{}{}:
	default:
	}
}

func (b *batcher) drain() []server.Heartbeat {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.buf
	b.buf = make([]server.Heartbeat, 0, min(cap(out), b.rows))
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
			b.write(ctx)
			return
		}
		b.write(ctx)
	}
}

// flushTimeout bounds one write. A batch being written when ctx ends is still written, because its heartbeats were
// answered.
const flushTimeout = 10 * time.Second

func (b *batcher) write(ctx context.Context) {
	batch := b.drain()
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	b.flush(ctx, batch)
}

// tellHeartbeat signals a run once. If that fails, the next heartbeat tries again.
func (g *Gateway) tellHeartbeat(ctx context.Context, serverID prego.ServerID, attempt int) error {
	err := g.runs.AgentHeartbeat(ctx, serverID, attempt)
	if err != nil {
		g.awaited.forget(serverID)
	}
	return err
}

// flush writes a batch and signals the runs of servers that are still provisioning.
func (g *Gateway) flush(ctx context.Context, batch []server.Heartbeat) {
	began := time.Now()
	outcomes, err := g.store.FlushHeartbeats(ctx, batch)
	if err != nil {
		g.metrics.flushes.WithLabelValues("failed").Observe(time.Since(began).Seconds())
		g.log.Error("heartbeats not written", zap.Int("heartbeats", len(batch)), zap.Error(err))
		return
	}
	g.metrics.flushes.WithLabelValues("written").Observe(time.Since(began).Seconds())
	g.metrics.flushed.Add(float64(len(batch)))
	deadline := time.Now().Add(batchSlotTimeout)
	for _, o := range outcomes {
		if o.Status != server.Provisioning {
			g.awaited.forget(o.ServerID)
		} else if g.awaited.tell(o.ServerID, o.Attempt, g.settings.Now()) &&
			!g.signal(ctx, time.Until(deadline), "heartbeat", o.ServerID, o.Attempt, g.tellHeartbeat) {
			g.awaited.forget(o.ServerID)
		}
	}
}
