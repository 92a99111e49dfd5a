package api

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
)

// TestViewersLeavePlacesForOperators: no caller has more than a share, and viewers together no more than what is not
// for operators.
func TestViewersLeavePlacesForOperators(t *testing.T) {
	t.Parallel()
	a := &admission{
		most: 8, forOperators: 3, each: 2, code: prego.CodeTooManyStreams, what: "streams", of: map[string]int{},
	}
	var leaves []func()
	enter := func(subject string, operator bool) bool {
		p := access.Principal{PrincipalID: subject}
		if operator {
			p.Grants = []access.Grant{{Role: "operator"}}
		}
		leave, err := a.enter(p)
		if err == nil {
			leaves = append(leaves, leave)
			return true
		}
		require.Equal(t, prego.CodeTooManyStreams, prego.CodeOf(err))
		var limited *limitedError
		require.True(t, errors.As(err, &limited))
		require.Positive(t, limited.after)
		return false
	}
	for range 2 {
		require.True(t, enter("ann", false))
	}
	require.False(t, enter("ann", false), "her share is two")
	for _, caller := range []string{"bob", "bob", "cid"} {
		require.True(t, enter(caller, false))
	}
	require.False(t, enter("cid", false), "the other three are for operators")
	for i := range 3 {
		require.True(t, enter(fmt.Sprint("operator-", i), true))
	}
	require.False(t, enter("operator-9", true), "all are taken")
	leaves[0]()
	require.False(t, enter("ann", false), "one of the operators has a place of the others")
	require.True(t, enter("operator-9", true))
	for _, leave := range leaves[1:] {
		leave()
	}
	require.Empty(t, a.of)
	require.Zero(t, a.all)
}
