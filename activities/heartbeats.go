package activities

import (
	"context"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
)

// Heartbeats has every step with a heartbeat timeout send heartbeats while it runs, so that the death of its process is
// noticed within that time. Each repeats the progress that the step reported last, or an earlier attempt of it.
type Heartbeats struct {
	interceptor.WorkerInterceptorBase
}

// InterceptActivity implements interceptor.WorkerInterceptor.
func (*Heartbeats) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &beating{ActivityInboundInterceptorBase: interceptor.ActivityInboundInterceptorBase{Next: next}}
}

// beating is a step that runs.
type beating struct {
	interceptor.ActivityInboundInterceptorBase
	beats
}

// beats are its heartbeats.
type beats struct {
	interceptor.ActivityOutboundInterceptorBase
	progress atomic.Pointer[[]any]
}

// Init implements interceptor.ActivityInboundInterceptor.
func (b *beating) Init(out interceptor.ActivityOutboundInterceptor) error {
	b.beats.Next = out
	return b.ActivityInboundInterceptorBase.Init(&b.beats)
}

// RecordHeartbeat implements interceptor.ActivityOutboundInterceptor.
func (b *beats) RecordHeartbeat(ctx context.Context, details ...any) {
	b.progress.Store(&details)
	b.Next.RecordHeartbeat(ctx, details...)
}

// ExecuteActivity implements interceptor.ActivityInboundInterceptor.
func (b *beating) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	if activity.GetInfo(ctx).HeartbeatTimeout > 0 {
		done := make(chan struct{})
		defer close(done)
		go b.repeat(ctx, done)
	}
	return b.ActivityInboundInterceptorBase.ExecuteActivity(ctx, in)
}

func (b *beats) repeat(ctx context.Context, done <-chan struct{}) {
	var earlier converter.RawValue
	if activity.HasHeartbeatDetails(ctx) && activity.GetHeartbeatDetails(ctx, &earlier) == nil {
		b.progress.CompareAndSwap(nil, &[]any{earlier})
	}
	b.progress.CompareAndSwap(nil, new([]any))
	t := time.NewTicker(2 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			b.Next.RecordHeartbeat(ctx, *b.progress.Load()...)
		case <-done:
			return
		case <-ctx.Done():
			return
		}
	}
}
