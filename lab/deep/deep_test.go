package deep

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTimes(t *testing.T) {
	t.Setenv("PREGO_TEST_DEEP", "")
	require.Equal(t, 7, Times(7))
	t.Setenv("PREGO_TEST_DEEP", "20")
	require.Equal(t, 140, Times(7))
	t.Setenv("PREGO_TEST_DEEP", "much")
	require.Equal(t, 7, Times(7))
}

func TestAPropertyIsTriedAsOftenAsWanted(t *testing.T) {
	t.Setenv("PREGO_TEST_DEEP", "")
	cases := 0
	Check(t, 7, func(t *rapid.T) {
		rapid.Int().Draw(t, "n")
		cases++
	})
	require.Equal(t, 7, cases)
	t.Setenv("PREGO_TEST_DEEP", "5")
	Check(t, 7, func(*rapid.T) { cases++ })
	require.Equal(t, 7+35, cases)
}

// TestAFailureIsPlayedAgain: what failed once is never passed over, or rapid could not make
// it smaller.
func TestAFailureIsPlayedAgain(t *testing.T) {
	t.Setenv("PREGO_TEST_DEEP", "")
	rapid.Check(t, func(outer *rapid.T) {
		tried := check(2, func(*rapid.T) { panic("wrong") }, func(p func(*rapid.T)) {
			for range 5 {
				require.PanicsWithValue(t, "wrong", func() { p(outer) })
			}
		})
		require.Equal(t, 5, tried)
	})
}

func TestSomeAreInTheirOrder(t *testing.T) {
	t.Setenv("PREGO_TEST_DRAW", "")
	t.Setenv("PREGO_TEST_DEEP", "")
	all := []int{1, 2, 3, 4, 5, 6, 7, 8}
	require.Equal(t, all[:2], Some(t, 3, all[:2]))
	seen := map[int]bool{}
	for range 200 {
		some := Some(t, 3, all)
		require.Len(t, some, 3)
		require.True(t, slices.IsSorted(some))
		for _, v := range some {
			seen[v] = true
		}
	}
	require.Len(t, seen, len(all), "each has its turn")
	drawn := map[string]bool{}
	for draw := range 20 {
		t.Setenv("PREGO_TEST_DRAW", fmt.Sprint(draw))
		some := Some(t, 3, all)
		require.Equal(t, some, Some(t, 3, all), "the same when it is run again")
		drawn[fmt.Sprint(some)] = true
	}
	require.Greater(t, len(drawn), 5)
	t.Setenv("PREGO_TEST_DEEP", "5")
	require.Equal(t, all, Some(t, 3, all))
}
