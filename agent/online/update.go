package online

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// ErrUpdated means that the agent's program was replaced: the process must start again.
var ErrUpdated = errors.New("the agent was updated")

// heardAfter is after how many heartbeats in a row an agent counts as heard of.
const heardAfter = 2

// updates follows the releases of the agent's program that the gateway has for this host. To
// replace it is the work of another process.
type updates struct {
	host  *host.Host
	wake  chan struct{}
	heard atomic.Int64 // heartbeats that the gateway took
	// known is the serial of the last tried release, once its outcome was reported; settled means that this process
	// was reported.
	known   atomic.Int64
	settled atomic.Bool
}

func newUpdates(h *host.Host) *updates {
	return &updates{host: h, wake: make(chan struct{}, 1)}
}

// told takes the serial in a heartbeat's answer: the wanted release, 0 for any.
func (s *updates) told(serial int64) {
	if n := s.heard.Add(1); n < heardAfter || s.settled.Load() && (serial == 0 || serial == s.known.Load()) {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ask hands a request to the process that replaces the program, and then the program, if any.
func (s *updates) ask(ctx context.Context, in host.UpdateRequest, program io.Reader) (out host.UpdateAnswer, err error) {
	err = host.Ask(ctx, s.host.Path(wire.UpdateSocket), host.SwapTime+10*time.Second, in, program, &out)
	return out, err
}

// followUpdates reports this process to the updater as alive and the last release's outcome to the gateway, and has
// the next release tried.
func (a *Agent) followUpdates(ctx context.Context, log *slog.Logger) error {
	for {
		select {
		case <-a.updates.wake:
		case <-ctx.Done():
			return nil
		}
		err := a.update(ctx, log)
		if errors.Is(err, ErrUpdated) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("releases of the agent are not followed", "error", err.Error())
		}
	}
}

func (a *Agent) update(ctx context.Context, log *slog.Logger) error {
	now, err := a.updates.ask(ctx, host.UpdateRequest{Heard: a.version}, nil)
	if err != nil {
		a.updates.settled.Store(true) // nothing replaces the agent here
		return err
	}
	s := a.current.Load()
	var got wire.UpdateResponse
	if err := s.Gateway.PostJSON(ctx, wire.PathUpdate, s.ID.Token, now.UpdateReport, &got); err != nil {
		return err
	}
	a.updates.settled.Store(true)
	if a.updates.known.Store(now.Serial); got.Signed == nil {
		return nil
	}
	release, err := got.Signed.Read()
	if err != nil {
		return err
	}
	program, err := s.Gateway.Download(ctx, wire.PathUpdateBinary+"?sha256="+release.SHA256, s.ID.Token)
	if err != nil {
		return err
	}
	defer func() { _ = program.Close() }()
	tried, err := a.updates.ask(ctx, host.UpdateRequest{Offer: got.Signed}, io.LimitReader(program, release.Bytes))
	if err != nil {
		return err
	}
	if tried.Swapped {
		log.Info("the agent is replaced", "version", release.Version)
		return ErrUpdated
	}
	if err := s.Gateway.PostJSON(ctx, wire.PathUpdate, s.ID.Token, tried.UpdateReport, nil); err != nil {
		return err
	}
	a.updates.known.Store(tried.Serial)
	return fmt.Errorf("release %s was refused: %s", release.Version, tried.Reason)
}
