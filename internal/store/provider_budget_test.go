package store

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/internal/pgtest"
)

func TestBudgetIsNeverOverdrawn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b, err := NewBudget(context.Background(), pool, "p", 100, 0.001)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for b.Acquire(ctx, "delete") == nil {
				granted.Add(1)
			}
		}()
	}
	wg.Wait()
	require.EqualValues(t, 100, granted.Load())
}

func TestBudgetLanesKeepReserves(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b, err := NewBudget(context.Background(), pool, "p", 100, 0.001)
	require.NoError(t, err)
	drain := func(lane string) (n int) {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		for b.Acquire(ctx, lane) == nil {
			n++
		}
		return n
	}
	require.Equal(t, 70, drain("poll"), "polling leaves 30 %")
	require.Equal(t, 20, drain("create"), "creating leaves 10 %")
	require.Equal(t, 10, drain("delete"), "deleting uses the rest")
	require.Error(t, b.Acquire(context.Background(), "browse"))
}

func TestBudgetObeysTheProvider(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := pgtest.Pool(t)
	b, err := NewBudget(ctx, pool, "p", 3600, 1)
	require.NoError(t, err)
	require.NoError(t, b.Observe(ctx, 3600, 5))
	require.NoError(t, b.Observe(ctx, 3600, 3000), "an older answer gives nothing back")
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	require.Error(t, b.Acquire(short, "poll"))
	require.NoError(t, b.Acquire(ctx, "delete"))

	require.NoError(t, b.Observe(ctx, 36000, 20000), "a new limit is learnt")
	require.NoError(t, b.Acquire(ctx, "poll"))
	require.NoError(t, b.Block(ctx, 400*time.Millisecond))
	blocked := time.Now()
	require.NoError(t, b.Acquire(ctx, "delete"))
	require.GreaterOrEqual(t, time.Since(blocked), 350*time.Millisecond)
}
