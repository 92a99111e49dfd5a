package agentgw

import (
	"context"
	"fmt"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// ahead returns how many seconds a host's clock is ahead of this one: negative if it is behind, nil if unknown; the
// request's latency is included. skewed means that tokens and certificates do not tolerate the difference.
func (g *Gateway) ahead(hostTime time.Time) (seconds *float64, skewed bool) {
	if hostTime.IsZero() {
		return nil, false
	}
	s := hostTime.Sub(g.settings.Now()).Seconds() // a few centuries at most
	return &s, s > g.settings.ClockTolerance.Seconds() || -s > g.settings.ClockTolerance.Seconds()
}

// clockSkew is the message for a clock that is ahead by some seconds.
func clockSkew(ahead float64) string {
	d := time.Duration(ahead * float64(time.Second)).Round(time.Second)
	if d < 0 {
		return fmt.Sprintf("the host's clock is %s behind the control plane's", -d)
	}
	return fmt.Sprintf("the host's clock is %s ahead of the control plane's", d)
}

// refuseClock rejects a handshake of a host whose clock is wrong, and records it. The token stays valid, since the
// host may still set its clock. A host without a valid token gets that error instead.
func (g *Gateway) refuseClock(ctx context.Context, tokenHash []byte, serverID prego.ServerID, ahead float64) error {
	who, err := g.store.BootIdentity(ctx, tokenHash)
	switch code := prego.CodeOf(err); {
	case code == prego.CodeTokenUnknown, code == prego.CodeBootstrapExpired, err == nil && who.ServerID != serverID:
		return nil
	case err != nil:
		return err
	}
	g.metrics.ailing.WithLabelValues("clock").Inc()
	event := server.Event{
		ServerID: who.ServerID, Step: server.StepHandshakeRefused, Attempt: who.Attempt, Reason: prego.ReasonClockSkew,
		Message: clockSkew(ahead), Actor: prego.ActorSystem,
	}
	minute := fmt.Sprintf("%s/%d/clock/%s", event.Step, event.Attempt, time.Now().UTC().Format("2006-01-02T15:04"))
	if err := g.store.AddEvent(ctx, event, minute); err != nil {
		return err
	}
	return prego.Errorf(prego.CodeClockSkew, "%s; at most %s are accepted", event.Message, g.settings.ClockTolerance)
}
