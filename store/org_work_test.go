package store

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
	"github.com/prego/prego/workload"
)

// TestTurnsOfLongWork: at most so many of an org, in the order of their requests;
// an end passes the turn on, and other orgs don't notice.
func TestTurnsOfLongWork(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	s.LimitWork(2)
	ask := func(orgID prego.OrgID, run string, ids ...string) org.Turn {
		got, err := s.BeginWork(t.Context(), org.LongWork{OrgID: orgID, Kind: org.WorkSnapshot, Run: run, IDs: ids})
		require.NoError(t, err)
		return got
	}
	end := func(id string) []string {
		wake, err := s.EndWork(t.Context(), id)
		require.NoError(t, err)
		return wake
	}
	require.Equal(t, org.Turn{Begun: []string{"a1", "a2"}, Most: 2}, ask("acme", "a", "a1", "a2", "a3"))
	require.Empty(t, ask("acme", "b", "b1").Begun)
	require.Equal(t, []string{"a1", "a2"}, ask("acme", "a", "a1", "a2", "a3").Begun, "asking again changes nothing")
	require.Equal(t, []string{"x1"}, ask("other", "x", "x1").Begun)
	require.Equal(t, []string{"a"}, end("a1"), "a3 is next, and b1 after it")
	require.Empty(t, end("a1"), "a repeated end changes nothing")
	require.Empty(t, ask("acme", "b", "b1").Begun)
	require.Equal(t, []string{"b"}, end("a2"))
	require.Equal(t, []string{"b1"}, ask("acme", "b", "b1").Begun)
	require.Empty(t, end("c1"), "what never began")

	// Work that no run mentions any more is forgotten.
	require.Empty(t, ask("acme", "c", "c1").Begun)
	_, err := s.pool.Exec(t.Context(), `UPDATE org_work SET until = now() WHERE work_id = 'a3'`)
	require.NoError(t, err)
	require.Equal(t, org.Turn{Begun: []string{"d1"}, Wake: nil, Most: 2}, func() org.Turn { end("c1"); return ask("acme", "d", "d1") }())
}

// TestTurnsAreNeverTooMany has many concurrent writers request, take and end turns.
func TestTurnsAreNeverTooMany(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	const most = 3
	s.LimitWork(most)
	var mu sync.Mutex
	under, worst, done := 0, 0, 0
	var wg sync.WaitGroup
	for w := range 12 {
		wg.Go(func() {
			id := fmt.Sprintf("w%d", w)
			for {
				got, err := s.BeginWork(t.Context(), org.LongWork{OrgID: "acme", Kind: org.WorkRestore, Run: id, IDs: []string{id}})
				if err != nil {
					t.Errorf("begin: %v", err)
					return
				}
				if len(got.Begun) == 1 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			mu.Lock()
			under++
			worst = max(worst, under)
			mu.Unlock()
			time.Sleep(2 * time.Millisecond)
			mu.Lock()
			under--
			done++
			mu.Unlock()
			if _, err := s.EndWork(t.Context(), id); err != nil {
				t.Errorf("end: %v", err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 12, done)
	require.LessOrEqual(t, worst, most)
	require.Positive(t, worst)
}

// TestStartsWaitForTheirTurn: an org's groups together start so many instances concurrently; the
// next one records why it waits, and its group is woken.
func TestStartsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	s := groupBundle(t)
	s.LimitWork(1)
	ctx := t.Context()
	first, a := s.placedInstance(t, 1)
	second, b := s.placedInstance(t, 2)
	p, err := s.PlanGroup(ctx, first, time.Second)
	require.NoError(t, err)
	require.Equal(t, []string{a}, p.Boot)
	p, err = s.PlanGroup(ctx, second, time.Second)
	require.NoError(t, err)
	require.Empty(t, p.Boot)
	require.Contains(t, p.Details, "1 waiting for their turn")
	require.Equal(t, "booting|waits for its turn: 1 long steps of its org are under way, the most at once", s.instanceState(t, b))

	_, err = s.InstanceStarted(ctx, a, time.Minute)
	require.NoError(t, err)
	wake, err := s.EndWork(ctx, a)
	require.NoError(t, err)
	require.Equal(t, []string{workload.GroupWorkflowID(second)}, wake)
	p, err = s.PlanGroup(ctx, second, time.Second)
	require.NoError(t, err)
	require.Equal(t, []string{b}, p.Boot)
	_, err = s.InstanceStarted(ctx, b, time.Minute)
	require.NoError(t, err)
	require.Equal(t, "booting|", s.instanceState(t, b))
}
