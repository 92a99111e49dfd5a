package workflows

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
)

func TestWhatTemporalMayTakeLaterIsRepeated(t *testing.T) {
	t.Parallel()
	kept := map[string]func(context.Context) error{}
	c := &Client{NotTaken: func(what string, again func(context.Context) error) { kept[what] = again }}
	var answer error
	try := func(what string, err error) {
		answer = err
		require.Equal(t, err, c.attempt(t.Context(), what, func(context.Context) error { return answer }))
	}
	try("taken", nil)
	try("nonsense", serviceerror.NewInvalidArgument("no"))
	try("ended", serviceerror.NewNotFound("gone"))
	require.Empty(t, kept)
	try("away", errors.New("reset by peer"))
	require.Error(t, kept["away"](t.Context()))
	answer = serviceerror.NewNotFound("it has ended meanwhile")
	require.NoError(t, kept["away"](t.Context()), "what never will be taken is given up")
	answer = nil
	require.NoError(t, kept["away"](t.Context()))
	c.NotTaken = nil
	try("by the caller", errors.New("away"))
}
