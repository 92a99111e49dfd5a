package org_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/org"
)

func TestHeadroomHasNoNoise(t *testing.T) {
	t.Parallel()
	require.Equal(t, 0.1, org.Quota{Limit: 0.3, Usage: 0.2}.Headroom())
	require.Equal(t, 1e13-1, org.Quota{Limit: 1e13, Usage: 1}.Headroom(), "bytes")
	require.Zero(t, org.Quota{Limit: 1, Usage: 2}.Headroom())
}
