package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/workload"
)

// placedInstance is a group of one instance that has its place.
func (s *Store) placedInstance(t *testing.T, n int) (prego.GroupID, string) {
	t.Helper()
	id, err := s.testGroup(t, n, "acme", 1, specOf(16))
	require.NoError(t, err)
	_, err = s.PlanGroup(t.Context(), prego.GroupID(id), time.Second)
	require.NoError(t, err)
	got, err := s.Allocate(t.Context(), workload.InstancePlace{GroupID: prego.GroupID(id), ServerID: "node-1"}, time.Second)
	require.NoError(t, err)
	require.Equal(t, workload.Allocated, got.Outcome)
	return prego.GroupID(id), string(got.InstanceID)
}

// TestAStartedInstanceIsWatched: it is started once, and one that is not healthy in time
// has failed, whoever looks.
func TestAStartedInstanceIsWatched(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	ctx := t.Context()
	group, id := s.placedInstance(t, 1)
	p, err := s.PlanGroup(ctx, group, time.Hour)
	require.NoError(t, err)
	require.Equal(t, []string{id}, p.Boot)

	ok, err := s.InstanceStarted(ctx, id, time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = s.InstanceStarted(ctx, id, time.Minute)
	require.NoError(t, err)
	require.False(t, ok, "a start that is repeated gives it no more time")
	p, err = s.PlanGroup(ctx, group, time.Hour)
	require.NoError(t, err)
	require.Empty(t, p.Boot)
	require.False(t, p.Settled)
	require.InDelta(t, time.Minute, p.Wait, float64(10*time.Second), "it is looked at when its time is over")

	_, err = s.pool.Exec(ctx, `UPDATE instances SET healthy_by = now(), message = 'its health check ended with 1' WHERE instance_id = $1`, id)
	require.NoError(t, err)
	p, err = s.PlanGroup(ctx, group, time.Hour)
	require.NoError(t, err)
	require.Equal(t, 1, p.Late)
	require.Equal(t, []string{id}, p.Stop)
	i, err := s.GetInstance(ctx, id)
	require.NoError(t, err)
	require.Equal(t, workload.InstanceFailed, i.State)
	require.Equal(t, "it was not healthy in time: its health check ended with 1", i.Message)
	g, err := s.GetGroup(ctx, string(group))
	require.NoError(t, err)
	require.Equal(t, workload.ReasonInstanceFailed, g.StatusReason)
	require.NotNil(t, g.NextAttemptAt, "the next one waits")
}
