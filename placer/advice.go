package placer

import (
	"context"
	"fmt"

	"github.com/prego/prego/placement"
)

// Adviser proposes a place for a tenant (placement-policy §1.2, ai_recommended). The engine and the reservation check
// every proposal against all rules. A late answer or a forbidden proposal changes nothing.
type Adviser interface {
	Advise(ctx context.Context, ask placement.AdviceRequest) (placement.Advice, error)
}

// maxCandidates is how many places are offered to an adviser.
const maxCandidates = 20

// advise asks the adviser, if there is one and there is something to choose from. It fails only if the snapshot can't
// be read.
func (p *Placer) advise(ctx context.Context, r placement.Request) (*placement.Advice, error) {
	if p.Adviser == nil || r.Override != nil {
		return nil, nil
	}
	ask, err := p.askFor(ctx, r)
	if err != nil || len(ask.Candidates) == 0 {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.AdviceWithin)
	defer cancel()
	type answer struct {
		advice placement.Advice
		err    error
	}
	answers := make(chan answer, 1) // a late answer blocks no goroutine
	go func() {
		var a answer
		defer func() {
			if v := recover(); v != nil {
				a.err = fmt.Errorf("the adviser panicked: %v", v)
			}
			answers <- a
		}()
		a.advice, a.err = p.Adviser.Advise(ctx, ask)
	}()
	select {
	case a := <-answers:
		if a.err == nil {
			return &a.advice, nil
		}
		p.Metrics.Advice.WithLabelValues("failed").Inc()
	case <-ctx.Done():
		p.Metrics.Advice.WithLabelValues("late").Inc()
	}
	return nil, nil
}

// askFor collects the candidates.
func (p *Placer) askFor(ctx context.Context, r placement.Request) (placement.AdviceRequest, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refresh(ctx, nil); err != nil {
		return placement.AdviceRequest{}, err
	}
	return p.fleet.AskFor(r, maxCandidates), nil
}

func (p *Placer) countAdvice(r placement.Request, d placement.Decision) {
	switch {
	case r.Advice == nil:
	case d.Algorithm == placement.AIRecommended:
		p.Metrics.Advice.WithLabelValues("taken").Inc()
	default:
		p.Metrics.Advice.WithLabelValues("ignored").Inc()
	}
}
