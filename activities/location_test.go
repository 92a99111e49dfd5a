package activities_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// TestServersOfAFleetSpreadOverLocations plans members of a fleet that are created
// together, one that comes after, and a server that belongs to no fleet.
func TestServersOfAFleetSpreadOverLocations(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Exec(`INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, region, min_size, max_size, spec, created_by) VALUES ('web', '', 'app', 'hetzner', 'eu', 0, -1, '{}', 'test')`)
	add := func(id, fleet, status, location string) {
		p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, fleet_id, location, generation)
			VALUES ($1, '', 'app', 'eu', 'hetzner', '{}', $2, 'w', 'test', NULLIF($3, ''), $4, 1)`, id, status, fleet, location)
	}
	a := &activities.Servers{Store: p.Store, Catalog: server.DefaultCatalog(), Settings: activities.Settings{CreateBackoff: 2 * time.Second}}
	first := func(id string) string {
		plan, err := a.PlanProvisioning(t.Context(), activities.ServerRef{ServerID: prego.ServerID("web-" + id), Generation: 1})
		require.NoError(t, err)
		require.ElementsMatch(t, server.DefaultCatalog().Candidates("app", "eu", server.Spec{}), plan.Candidates)
		require.Equal(t, []time.Duration{30 * time.Second, 2 * time.Minute}, plan.ProviderPauses)
		return plan.Candidates[0].String()
	}
	for i := range 4 {
		add(fmt.Sprintf("web-%d", i), "web", "provisioning", "")
	}
	var got []string
	for i := range 4 {
		got = append(got, first(fmt.Sprint(i)))
	}
	require.Equal(t, []string{"cx43 in fsn1", "cx43 in nbg1", "cx43 in hel1", "cx43 in fsn1"}, got, "planned together")
	require.Equal(t, 2, p.Number(`SELECT count(*) FROM server_events WHERE step = 'location_spread'`), "where it changes the order")
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM server_events WHERE step = 'location_spread' AND server_id = 'web-2' AND message LIKE 'hel1 first:%'`))

	for i, l := range []string{"fsn1", "nbg1", "hel1", "fsn1"} {
		p.Exec(`UPDATE servers SET status = 'active', location = $2 WHERE server_id = $1`, fmt.Sprintf("web-%d", i), l)
	}
	p.Exec(`UPDATE servers SET status = 'draining' WHERE server_id = 'web-2'`)
	add("web-4", "web", "provisioning", "")
	require.Equal(t, "cx43 in hel1", first("4"), "who leaves doesn't count")
	add("web-5", "", "provisioning", "")
	require.Equal(t, "cx43 in fsn1", first("5"))
}
