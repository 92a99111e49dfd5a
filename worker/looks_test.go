package worker

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/activities"
)

// TestOneLostRunKeepsNoOtherFromItsStart also if it can't be started.
func TestOneLostRunKeepsNoOtherFromItsStart(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	var asked []int
	r, err := startLost(t.Context(), []int{1, 2, 3}, nil, func(_ context.Context, n int) (bool, error) {
		asked = append(asked, n)
		return n == 3, map[int]error{2: refused}[n]
	})
	require.ErrorIs(t, err, refused)
	require.True(t, r.Found)
	require.Equal(t, []int{1, 2, 3}, asked)
	n := 0
	_, err = startLost(t.Context(), make([]int, 100), nil, func(context.Context, int) (bool, error) {
		n++
		return false, refused
	})
	require.ErrorIs(t, err, refused)
	require.Equal(t, activities.MostFailed, n, "it is about none of them")
}
