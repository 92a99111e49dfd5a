package agentgw

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/workload"
)

// containers accepts a report of instances' containers. It answers once the report is written: then the agent sends
// the next one, otherwise it repeats the report.
func (g *Gateway) containers(ctx context.Context, who caller, in wire.ContainersRequest) (any, error) {
	r, err := instanceReport(in)
	if err != nil {
		return nil, err
	}
	r.ServerID, r.Key = who.serverID, who.key
	resync, err := g.reports.write(ctx, r)
	if err != nil {
		return nil, err
	}
	return wire.ContainersResponse{Resync: resync}, nil
}

func instanceReport(in wire.ContainersRequest) (r workload.InstanceReport, err error) {
	if err := checkWord("stream", in.Stream); err != nil {
		return r, err
	}
	if in.Stream == "" || in.Seq < 1 {
		return r, prego.Invalid("seq", "must be 1 or more, in a stream")
	}
	if len(in.Containers) > wire.MaxContainers {
		return r, prego.Invalid("containers", "must be at most 4096")
	}
	r = workload.InstanceReport{
		Stream: in.Stream, Seq: in.Seq, Full: in.Full, Seen: make([]workload.InstanceSight, 0, len(in.Containers)),
	}
	there := make(map[string]bool, len(in.Containers))
	for _, c := range in.Containers {
		if err := workload.ValidateInstanceID(c.Instance); err != nil {
			return r, err
		}
		if there[c.Instance] {
			return r, prego.Invalid("containers", "has an instance twice")
		}
		there[c.Instance] = true
		switch {
		case c.Ended:
		case c.Health == wire.HealthStarting, c.Health == wire.HealthHealthy, c.Health == wire.HealthUnhealthy:
		default:
			return r, prego.Invalid("health", "must be starting, healthy or unhealthy")
		}
		r.Seen = append(r.Seen, workload.InstanceSight{
			InstanceID: prego.InstanceID(c.Instance), Ended: c.Ended,
			Health: workload.InstanceHealth(c.Health), Detail: printable(c.Detail),
		})
	}
	return r, nil
}

// printable is a host's text without what Postgres rejects.
func printable(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), wire.MaxContainerDetail)], "?")
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, s)
}

// reporter writes reports in batches: while one is written, the next ones gather.
type reporter struct {
	store func(ctx context.Context, batch []workload.InstanceReport) (workload.ReportOutcome, error)
	wake  func(ctx context.Context, groups []workload.GroupRef)
	count func(outcome workload.ReportOutcome, reports int, err error)

	mu      sync.Mutex
	waiting []*waitingReport
	due     chan struct{}
}

type waitingReport struct {
	workload.InstanceReport
	done chan reportAnswer // buffered
	ctx  context.Context   //nolint:containedctx // of the waiting request: a report without one is not written
}

type reportAnswer struct {
	resync bool
	err    error
}

const (
	// maxReports bounds one write, and maxSeen the containers in it.
	maxReports = 100
	maxSeen    = 5000
	// maxWaitingReports bounds the waiting reports while the database is unavailable.
	maxWaitingReports = 20_000
)

func (r *reporter) write(ctx context.Context, report workload.InstanceReport) (resync bool, err error) {
	w := &waitingReport{InstanceReport: report, done: make(chan reportAnswer, 1), ctx: ctx}
	r.mu.Lock()
	if len(r.waiting) >= maxWaitingReports {
		r.mu.Unlock()
		return false, prego.Errorf(prego.CodeNotReady, "reports can't be written right now")
	}
	r.waiting = append(r.waiting, w)
	r.mu.Unlock()
	select {
	case r.due <- struct{}{}:
	default:
	}
	select {
	case a := <-w.done:
		return a.resync, a.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// take returns the next batch: at most one report of each server.
func (r *reporter) take() (batch []*waitingReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	servers, seen := make(map[prego.ServerID]bool), 0
	left := r.waiting[:0]
	for _, w := range r.waiting {
		switch {
		case w.ctx.Err() != nil:
		case len(batch) == maxReports || servers[w.ServerID] || len(batch) > 0 && seen+len(w.Seen) > maxSeen:
			left = append(left, w)
		default:
			batch, seen = append(batch, w), seen+len(w.Seen)
			servers[w.ServerID] = true
		}
	}
	clear(r.waiting[len(left):])
	r.waiting = left
	return batch
}

func (r *reporter) run(ctx context.Context) {
	for {
		select {
		case <-r.due:
		case <-ctx.Done():
		}
		for batch := r.take(); len(batch) > 0; batch = r.take() {
			r.flush(ctx, batch)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func (r *reporter) flush(ctx context.Context, batch []*waitingReport) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	reports := make([]workload.InstanceReport, len(batch))
	for i, w := range batch {
		reports[i] = w.InstanceReport
	}
	outcome, err := r.store(ctx, reports)
	r.count(outcome, len(batch), err)
	if err != nil {
		err = prego.Errorf(prego.CodeNotReady, "reports can't be written right now")
	}
	for _, w := range batch {
		answer := reportAnswer{resync: slices.Contains(outcome.Resync, w.ServerID), err: err}
		if err == nil && slices.Contains(outcome.Rejected, w.ServerID) {
			answer.err = prego.Errorf(prego.CodeNotReady, "this report can't be written")
		}
		w.done <- answer
	}
	r.wake(ctx, outcome.Groups)
}

// reported counts a write of reports.
func (g *Gateway) reported(o workload.ReportOutcome, reports int, err error) {
	if err != nil {
		g.metrics.reports.WithLabelValues("failed").Add(float64(reports))
		g.log.Error("containers' reports not written", zap.Int("reports", reports), zap.Error(err))
		return
	}
	g.metrics.reports.WithLabelValues("written").Add(float64(reports))
	g.metrics.instances.WithLabelValues("failed").Add(float64(o.Failed))
	g.metrics.instances.WithLabelValues("healthy").Add(float64(o.Ran))
}

// wakeGroups signals the runs of groups whose instances became healthy or failed. A lost signal heals: the run reads
// its rows at its deadlines.
func (g *Gateway) wakeGroups(ctx context.Context, groups []workload.GroupRef) {
	deadline := time.Now().Add(batchSlotTimeout)
	for _, ref := range groups {
		group := zap.String("group_id", string(ref.GroupID))
		g.send(ctx, time.Until(deadline), "containers", group, func(ctx context.Context) error {
			return g.runs.WakeGroup(ctx, ref.GroupID, ref.OrgID)
		})
	}
}
