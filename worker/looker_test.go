package worker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/store"
	"github.com/prego/prego/worker"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestWhenTheWorkerThatLooksDiesAnotherOneLooks(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pool := pgtest.Pool(t)
	db := store.New(pool)
	var dead atomic.Bool // from then on nothing of the first worker arrives
	killed := store.New(pgtest.Tapped(t, pool, func(string, []any) error {
		if dead.Load() {
			return errors.New("dead")
		}
		return nil
	}))
	const lease = time.Second
	looking, looked := make(chan struct{}), make(chan time.Time, 100)
	first := &worker.Looker{Store: killed, Holder: "first", Lease: lease, Log: zaptest.NewLogger(t), Looks: []worker.Look{
		{Name: "tenants", Every: time.Millisecond, Do: func(ctx context.Context) (ops.LookResult, error) {
			close(looking)
			<-ctx.Done()
			return ops.LookResult{}, ctx.Err()
		}},
	}}
	second := &worker.Looker{Store: db, Holder: "second", Lease: lease, Log: zaptest.NewLogger(t), Looks: []worker.Look{
		{Name: "tenants", Every: time.Millisecond, Do: func(context.Context) (ops.LookResult, error) {
			looked <- time.Now()
			return ops.LookResult{Found: true, Pause: time.Hour}, nil
		}},
	}}
	done := make(chan error, 2)
	go func() { done <- first.Run(ctx) }()
	<-looking
	go func() { done <- second.Run(ctx) }()
	select {
	case <-looked:
		t.Fatal("two look at once, while the first keeps its lease")
	case <-time.After(2 * lease):
	}
	dead.Store(true)
	died := time.Now()
	select {
	case at := <-looked:
		require.Less(t, at.Sub(died), 10*lease)
	case <-time.After(30 * time.Second):
		t.Fatal("nobody looks")
	}
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	looks, err := db.Looks(t.Context())
	require.NoError(t, err)
	require.Equal(t, "second", looks[0].Holder)
	require.Empty(t, looked, "it pauses")

	reg := prometheus.NewRegistry()
	reg.MustRegister(worker.Exporter{Log: zaptest.NewLogger(t), Now: time.Now}.LookAge(db.Looks))
	families, err := reg.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	require.InDelta(t, time.Now().Unix(), values["prego_look_timestamp_seconds"], 60)
	require.InDelta(t, time.Now().Unix(), values["prego_look_found_timestamp_seconds"], 60)
	require.Zero(t, values["prego_look_failing"])
	require.InDelta(t, 3600, values["prego_look_interval_seconds"], 0.1)
}

func TestALookThatPanicsFails(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	db := store.New(pgtest.Pool(t))
	n := 0
	l := &worker.Looker{Store: db, Holder: "a", Lease: time.Minute, Log: zaptest.NewLogger(t), Looks: []worker.Look{
		{Name: "tenants", Every: time.Millisecond, Do: func(context.Context) (ops.LookResult, error) {
			if n++; n == 2 {
				cancel()
			}
			panic("no")
		}},
	}}
	require.NoError(t, l.Run(ctx))
	looks, err := db.Looks(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, "panic: no", looks[0].Error)
}
