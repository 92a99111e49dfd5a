package api

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLaterRepeatsUntilItIsTaken(t *testing.T) {
	t.Parallel()
	var failed []string
	l := &Later{Every: time.Hour, Failed: func(id string, _ error) { failed = append(failed, id) }}
	done := map[string]int{}
	answer := errors.New("away")
	for _, id := range []string{"b", "a", "a"} {
		l.Keep(id, func(context.Context) error { done[id]++; return answer })
	}
	l.again(t.Context())
	require.Equal(t, map[string]int{"a": 1}, done, "while the first is not taken the others are not tried")
	require.Equal(t, []string{"a"}, failed)
	answer = nil
	l.again(t.Context())
	require.Equal(t, map[string]int{"a": 2, "b": 1}, done)
	l.again(t.Context())
	require.Equal(t, map[string]int{"a": 2, "b": 1}, done, "an accepted request is not repeated")
}
