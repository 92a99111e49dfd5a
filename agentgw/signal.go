package agentgw

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
)

// signals are those under way.
type signals struct {
	slots   chan struct{}
	sending sync.WaitGroup
}

const (
	maxSignals    = 64 // at once
	signalTimeout = 5 * time.Second
	// For how long signals wait for one of those under way to end: that of a
	// handshake, and those of a whole batch of heartbeats together.
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

// signal sends a hint to a run when there is room for it within a time, and does
// not wait until it is sent: neither an agent nor the heartbeats of a fleet depend
// on the workflow engine. One that is lost or left out heals, since every heartbeat
// of a server that is still provisioning sends another, and the run reads the row
// at its deadlines.
func (g *Gateway) signal(ctx context.Context, within time.Duration, kind string, serverID prego.ServerID, attempt int, send func(ctx context.Context, serverID prego.ServerID, attempt int) error) {
	count := func(outcome string) { g.metrics.signals.WithLabelValues(kind, outcome).Inc() }
	if !g.signals.enter(ctx, within) {
		count("left_out")
		return
	}
	g.signals.sending.Add(1)
	go func() {
		defer func() { <-g.signals.slots; g.signals.sending.Done() }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalTimeout)
		defer cancel()
		if err := send(ctx, serverID, attempt); err != nil {
			count("failed")
			g.log.Warn("signal not sent", zap.String("kind", kind), zap.String("server_id", string(serverID)), zap.Error(err))
			return
		}
		count("sent")
	}()
}
