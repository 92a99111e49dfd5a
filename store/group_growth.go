package store

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/server"
)

// causeInstances is the cause of actions for waiting instances.
const causeInstances = "instances"

// Fleets that may run instances in a region, newest first, in the same order as for tenants. A fleet whose last
// growth for instances in the region is open, or failed within five minutes, is growing: groups wait for its servers,
// and a provider without capacity is not asked at every try.
const sqlInstanceOffers = `
WITH f AS (` + selectFleets + `)
SELECT f.fleet_id, COALESCE(f.spec -> 'tags', '[]') AS tags, COALESCE(f.spec ->> 'location', '') AS location, f.workload_memory AS memory_bytes, f.workload_disk AS disk_bytes, f.workload_cpus AS cpus,
    f.serves_workloads AS serves, CASE WHEN f.max_size < 0 THEN $2 ELSE f.max_size END - f.size AS room,
    EXISTS (SELECT FROM fleet_actions a WHERE a.fleet_id = f.fleet_id AND a.cause = '` + causeInstances + `' AND a.inputs -> 'regions' ? $1
        AND (a.status IN ('queued', 'running') OR a.status = 'failed' AND a.finished_at > now() - interval '5 minutes')) AS growing
FROM f JOIN infra_providers i ON i.id = f.infra_provider
WHERE f.workload_memory > 0 AND f.region IN ('', $1) AND i.enabled AND $1 = ANY (i.regions)
ORDER BY f.created_at DESC, f.fleet_id`

// InstanceOffers returns the fleets that may run instances in a region, in the order of requests to grow.
func (s *Store) InstanceOffers(ctx context.Context, region prego.Region) ([]instance.Offer, error) {
	return collect[instance.Offer](ctx, s, "fleets for instances", sqlInstanceOffers, region, server.MaxFleetSize)
}

// GrowForInstances queues an action that adds servers to a fleet in a region. It is an ordinary action of the fleet:
// its policies decide, and its workflow carries it out.
func (s *Store) GrowForInstances(ctx context.Context, region prego.Region, g instance.Growth) error {
	inputs, err := json.Marshal(map[string]any{"count": g.Servers, "regions": []prego.Region{region}})
	if err != nil {
		return err
	}
	return s.inTx(ctx, "grow a fleet for instances", func(tx pgx.Tx) error {
		if _, err := lockFleet(ctx, tx, g.FleetID); err != nil {
			return err
		}
		_, err := one[server.FleetAction](ctx, tx, sqlQueueAction, g.FleetID, server.ClusterScaleOut, inputs, causeInstances, drivenByFleet, prego.ActorSystem, "")
		return err
	})
}
