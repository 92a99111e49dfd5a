package agentgw

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
)

// signals are the signals being sent.
type signals struct {
	slots   chan struct{}
	sending sync.WaitGroup
}

const (
	maxSignals    = 64 // in parallel
	signalTimeout = 5 * time.Second
	// How long to wait for a free slot: for the signal of a refused handshake or a failed boot, and for all signals
	// of a batch of heartbeats together.
	handshakeSlotTimeout = 50 * time.Millisecond
	batchSlotTimeout     = time.Second
)

func (s *signals) enter(ctx context.Context, within time.Duration) bool {
	select {
	case s.slots <- struct{}{}:
		return true
	default:
	}
	if within <= 0 {
		return false
	}
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case s.slots <- struct{}{}:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return false
}

// signal sends a hint to a run if a slot becomes free in time, which it reports, and does not wait until it is sent:
// neither agents nor heartbeats depend on the workflow engine. Failed and skipped signals heal with the server's next
// heartbeat, lost ones within a minute (tellAgain); and the run reads the row at its deadlines.
func (g *Gateway) signal(
	ctx context.Context, within time.Duration, kind string, serverID prego.ServerID, attempt int,
	send func(ctx context.Context, serverID prego.ServerID, attempt int) error,
) bool {
	return g.send(ctx, within, kind, zap.String("server_id", string(serverID)), func(ctx context.Context) error {
		return send(ctx, serverID, attempt)
	})
}

// send sends a hint like signal, to any run; what names the run in the log.
func (g *Gateway) send(
	ctx context.Context, within time.Duration, kind string, what zap.Field, send func(ctx context.Context) error,
) bool {
	count := func(outcome string) { g.metrics.signals.WithLabelValues(kind, outcome).Inc() }
	if !g.signals.enter(ctx, within) {
		count("left_out")
		return false
	}
	g.signals.sending.Add(1)
	go func() {
		defer func() { <-g.signals.slots; g.signals.sending.Done() }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalTimeout)
		defer cancel()
		if err := send(ctx); err != nil {
			count("failed")
			g.log.Warn("signal not sent", zap.String("kind", kind), what, zap.Error(err))
			return
		}
		count("sent")
	}()
	return true
}
