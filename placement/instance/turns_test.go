package instance

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
)

func TestAnOrgThatNeverHadATurnIsServedAtOnce(t *testing.T) {
	t.Parallel()
	var waiting []WaitingGroup
	for i := range 5000 {
		waiting = append(waiting, WaitingGroup{
			GroupID: prego.GroupID(fmt.Sprintf("g-%04d", i)), OrgID: prego.OrgID(fmt.Sprintf("o-%04d", i)), Size: 1, Wanted: 100,
			Tried: time.Unix(int64(i)+1, 0), Since: time.Unix(int64(i), 0),
		})
	}
	waiting = append(waiting, WaitingGroup{GroupID: "new", OrgID: "new", Size: 8, Wanted: 1, Since: time.Unix(9999, 0)})
	turns := Turns(waiting, 50, 500)
	require.Len(t, turns, 500)
	require.Equal(t, len(waiting)-1, turns[0])
	require.Equal(t, []int{0, 1, 2}, turns[1:4], "then who was tried longest ago")
}

func TestLargeInstancesTakeTurnsWithSmallOnes(t *testing.T) {
	t.Parallel()
	turns := Turns([]WaitingGroup{{GroupID: "l", OrgID: "large", Size: 4, Wanted: 10}, {GroupID: "s", OrgID: "small", Size: 1, Wanted: 10}}, 50, 100)
	require.Equal(t, []int{0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1}, turns[:13])
	require.Len(t, turns, 20)
}

func TestTurns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var waiting []WaitingGroup
		for i := range rapid.IntRange(0, 12).Draw(t, "groups") {
			waiting = append(waiting, WaitingGroup{
				GroupID: prego.GroupID(fmt.Sprintf("g%d", i)), OrgID: prego.OrgID(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "org")),
				Size: rapid.SampledFrom([]float64{0, 0.5, 1, 3, 8}).Draw(t, "size"), Wanted: rapid.IntRange(0, 6).Draw(t, "wanted"),
				Tried: time.Unix(int64(rapid.IntRange(0, 3).Draw(t, "tried")), 0), Since: time.Unix(int64(rapid.IntRange(0, 3).Draw(t, "since")), 0),
			})
		}
		perGroup, limit := rapid.IntRange(1, 4).Draw(t, "per group"), rapid.IntRange(1, 30).Draw(t, "limit")
		turns := Turns(waiting, perGroup, limit)

		left := map[prego.OrgID]int{} // instances that may still come
		for _, w := range waiting {
			left[w.OrgID] += min(w.Wanted, perGroup)
		}
		all := 0
		for _, n := range left {
			all += n
		}
		require.Len(t, turns, min(all, limit))
		given, placed := map[prego.OrgID]float64{}, map[int]int{}
		for _, i := range turns {
			w := waiting[i]
			for org, n := range left {
				if n > 0 {
					require.LessOrEqual(t, given[w.OrgID], given[org], "%s is served before %s, which was given less", w.OrgID, org)
				}
			}
			for j, other := range waiting {
				if other.OrgID == w.OrgID && placed[j] < min(other.Wanted, perGroup) {
					require.LessOrEqual(t, compareWaiting(w, other), 0, "%s before %s", w.GroupID, other.GroupID)
				}
			}
			given[w.OrgID] += max(w.Size, smallest)
			placed[i]++
			left[w.OrgID]--
			require.LessOrEqual(t, placed[i], min(w.Wanted, perGroup))
		}
	})
}
