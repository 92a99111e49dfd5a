package store

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryOperationIsOnAnObjectOfAnOrgOrOfTheInstallation, so that a new kind is not hidden from its org.
func TestEveryOperationIsOnAnObjectOfAnOrgOrOfTheInstallation(t *testing.T) {
	t.Parallel()
	installations := []string{"server", "release", "warm_pool", "image", "fleet_action", "environment"}
	for kind, k := range operationKinds {
		require.Equal(t, slices.Contains(installations, k.target), orgOfOperation[kind] == "", kind)
	}
	for kind := range orgOfOperation {
		require.Contains(t, operationKinds, kind)
	}
}
