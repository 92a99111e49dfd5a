package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

func TestAPlacementPoolIsShownWithWhoUsesIt(t *testing.T) {
	t.Parallel()
	orgs := []string{"acme", "corp"}
	p := api.PlacementPool{Name: "Skynet", Require: []string{"staging", "skynet"}, Disallow: []string{}, IsDefault: true, OrgCount: 3, OrgIds: &orgs, UpdatedBy: "alice", UpdatedAt: born}
	var one, table bytes.Buffer
	printPlacementPool(&one, p)
	require.Equal(t, "placement pool Skynet: require staging, skynet; disallow -; the default; orgs: acme, corp and 1 more; changed by alice at 2026-01-02T03:04:05Z\n", one.String())
	require.NoError(t, poolTable(&table, []api.PlacementPool{p}))
	require.Contains(t, table.String(), "Skynet  staging, skynet  -         true     3     alice")
}

func TestThePlacementPoolVerbs(t *testing.T) {
	t.Parallel()
	cmd := newPlacementPoolCommand()
	for _, verb := range []string{"list", "show", "create", "update", "delete", "default", "associate", "dissociate", "of"} {
		found, _, err := cmd.Find([]string{verb})
		require.NoError(t, err)
		require.Equal(t, verb, found.Name())
	}
}
