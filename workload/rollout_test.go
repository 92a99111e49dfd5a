package workload_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/workload"
)

func TestShares(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]workload.Share{
		`0`: {}, `3`: {N: 3}, `"3"`: {N: 3}, `"25%"`: {N: 25, Percent: true}, `"0%"`: {Percent: true}, `10000`: {N: 10_000},
	} {
		var got workload.Share
		require.NoError(t, json.Unmarshal([]byte(text), &got), text)
		require.Equal(t, want, got, text)
		b, err := json.Marshal(got)
		require.NoError(t, err)
		var again workload.Share
		require.NoError(t, json.Unmarshal(b, &again))
		require.Equal(t, want, again)
	}
	for _, text := range []string{`-1`, `1.5`, `"101%"`, `"%"`, `""`, `"2 %"`, `10001`, `true`, `"a"`} {
		require.Error(t, json.Unmarshal([]byte(text), new(workload.Share)), text)
	}
}

// TestBoundsAreRoundedAsInKubernetes: surge up, unavailable down, and never both nothing.
func TestBoundsAreRoundedAsInKubernetes(t *testing.T) {
	t.Parallel()
	share := func(text string) (s workload.Share) {
		s, err := workload.ParseShare(text)
		require.NoError(t, err)
		return s
	}
	for _, tc := range []struct {
		surge, unavailable                  string
		replicas, wantSurge, wantUnavailble int
	}{
		{"25%", "25%", 10, 3, 2},
		{"25%", "25%", 4, 1, 1},
		{"25%", "25%", 1, 1, 0},
		{"1", "0", 5, 1, 0},
		{"0", "10%", 5, 0, 1},
		{"0%", "10%", 5, 0, 1},
		{"100%", "0", 7, 7, 0},
		{"2", "50%", 3, 2, 1},
		{"0", "4", 3, 0, 3},
		{"10%", "0", 0, 0, 0},
	} {
		surge, unavailable := workload.RolloutPolicy{MaxSurge: share(tc.surge), MaxUnavailable: share(tc.unavailable)}.Bounds(tc.replicas)
		require.Equal(t, []int{tc.wantSurge, tc.wantUnavailble}, []int{surge, unavailable}, "%+v", tc)
	}
	rapid.Check(t, func(t *rapid.T) {
		some := func(name string) workload.Share {
			if rapid.Bool().Draw(t, name+" percent") {
				return workload.Share{N: rapid.IntRange(0, 100).Draw(t, name), Percent: true}
			}
			return workload.Share{N: rapid.IntRange(0, workload.MaxReplicas).Draw(t, name)}
		}
		replicas := rapid.IntRange(1, workload.MaxReplicas).Draw(t, "replicas")
		surge, unavailable := workload.RolloutPolicy{MaxSurge: some("surge"), MaxUnavailable: some("unavailable")}.Bounds(replicas)
		require.Positive(t, surge+unavailable)
		require.LessOrEqual(t, unavailable, replicas)
	})
}

func TestAPolicyIsChanged(t *testing.T) {
	t.Parallel()
	none, half, long, many := workload.Share{}, workload.Share{N: 50, Percent: true}, 86_401, -1
	p, err := workload.DefaultRolloutPolicy().Change(&workload.RolloutChange{MaxUnavailable: &half}, "rollout_policy")
	require.NoError(t, err)
	require.Equal(t, workload.RolloutPolicy{MaxSurge: workload.Share{N: 1}, MaxUnavailable: half, ProgressDeadlineSeconds: 600, MaxFailures: 2, AutoRollback: true}, p)
	require.Equal(t, 10*time.Minute, p.ProgressDeadline())
	same, err := p.Change(nil, "")
	require.NoError(t, err)
	require.Equal(t, p, same)
	for field, c := range map[string]workload.RolloutChange{
		"rollout_policy.max_unavailable": {MaxSurge: &none, MaxUnavailable: &workload.Share{Percent: true}}, "rollout_policy.progress_deadline_seconds": {ProgressDeadlineSeconds: &long},
		"rollout_policy.max_failures": {MaxFailures: &many},
	} {
		_, err := workload.DefaultRolloutPolicy().Change(&c, "rollout_policy")
		var invalid *prego.Error
		require.ErrorAs(t, err, &invalid, field)
		require.Equal(t, field, invalid.Field)
	}
}
