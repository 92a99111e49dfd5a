package store

import (
	"context"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/workload"
)

const (
	// groupsOfAnOrg bounds how many waiting groups of an org one pass considers; the next pass continues with the
	// groups tried longest ago.
	groupsOfAnOrg = 25
	// waitingGroups bounds how many groups one pass considers altogether.
	waitingGroups = 2000
	// unitsOfAGroup bounds how many instances of a group one pass places.
	unitsOfAGroup = 50
)

// Groups that want instances and may be tried now, for each org those tried longest ago first. A group rejected by
// its org's quota waits for its retry time, or until less of that dimension is used. A group that fits nowhere waits
// for its retry time, or until there is more room.
const (
	groupTried = `COALESCE(g.tried_at, 'epoch')`
	groupSince = `COALESCE(g.waiting_since, g.created_at)`
	groupSize  = `GREATEST(g.memory_limit_bytes / 4294967296.0, g.cpu_request)::float8`
	groupIsDue = `(g.next_attempt_at IS NULL OR g.next_attempt_at <= now() OR CASE WHEN starts_with(g.status_reason, 'org_quota_exceeded:')
          THEN g.refused_usage > (SELECT u.used FROM org_used(g.org_id, ARRAY[split_part(g.status_reason, ':', 2)]) u) END)
      AND ` + groupRetries
	groupRetries           = `(g.retry_at IS NULL OR g.retry_at <= now() OR g.tried_release <> g.release OR r.freed_at >= g.tried_at)`
	sqlWaitingForInstances = `
SELECT group_id, org_id, size, wanted, tried, since FROM (
    SELECT g.group_id, g.org_id, g.wanted, ` + groupTried + ` AS tried, ` + groupSince + ` AS since, ` + groupSize + ` AS size,
        row_number() OVER (PARTITION BY g.org_id ORDER BY g.tried_at NULLS FIRST, g.waiting_since, g.group_id) AS nth
    FROM process_groups g LEFT JOIN region_room r ON r.region = g.region
    WHERE g.region = $1 AND g.wanted > 0 AND g.deleted_at IS NULL AND g.group_id <> ALL (COALESCE($2::text[], '{}')) AND ` + groupIsDue + `) w
WHERE nth <= $3 ORDER BY nth, tried, since, group_id LIMIT $4`
)

const sqlInstanceDemand = `
SELECT now() AS at, g.wanted, g.group_id, g.org_id, g.memory_limit_bytes + (SELECT overhead_bytes_per_instance FROM workload_settings) AS memory_bytes, g.cpu_request, g.disk_request_bytes AS disk_bytes,
    jsonb_build_object('require', g.require_tags, 'disallow', g.disallow_tags) AS "constraint",
    ARRAY(SELECT DISTINCT v.location FROM volume_attachments a JOIN volumes v ON v.volume_id = a.volume_id WHERE a.group_id = g.group_id AND a.deleted_at IS NULL ORDER BY 1) AS locations,
    (SELECT count(*) FROM volume_attachments a WHERE a.group_id = g.group_id AND a.deleted_at IS NULL)::int AS volumes,
    ARRAY(SELECT p.value FROM jsonb_array_elements_text(COALESCE(g.spec -> 'volumes', '[]')) p
        WHERE NOT EXISTS (SELECT FROM volume_attachments a WHERE a.group_id = g.group_id AND a.deleted_at IS NULL AND a.mount_path = p.value) ORDER BY 1) AS missing
FROM process_groups g WHERE g.group_id = ANY ($1)`

// InstanceDemand returns the instances that wait for a place in a region, in the order of service, at most limit,
// without those of the groups in except. Orgs take turns; see instance.Turns.
func (s *Store) InstanceDemand(ctx context.Context, region prego.Region, limit int, except []prego.GroupID) ([]workload.InstanceDemand, error) {
	type row struct {
		GroupID      prego.GroupID
		OrgID        prego.OrgID
		Size         float64
		Wanted       int
		Tried, Since time.Time
	}
	rows, err := collect[row](ctx, s, "groups that wait", sqlWaitingForInstances, region, prego.Strings(except), groupsOfAnOrg, waitingGroups)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	waiting := make([]instance.WaitingGroup, len(rows))
	for i, r := range rows {
		waiting[i] = instance.WaitingGroup(r)
	}
	turns := instance.Turns(waiting, unitsOfAGroup, limit)
	var ids []string
	named := map[prego.GroupID]bool{}
	for _, i := range turns {
		if id := waiting[i].GroupID; !named[id] {
			named[id], ids = true, append(ids, string(id))
		}
	}
	groups, err := collect[workload.InstanceDemand](ctx, s, "instances that wait", sqlInstanceDemand, ids)
	if err != nil {
		return nil, err
	}
	byID := make(map[prego.GroupID]workload.InstanceDemand, len(groups))
	for _, g := range groups {
		byID[g.GroupID] = g
	}
	out := make([]workload.InstanceDemand, 0, len(turns))
	for _, i := range turns {
		if g, ok := byID[waiting[i].GroupID]; ok { // it may have been deleted since
			out = append(out, g)
		}
	}
	return out, nil
}

const sqlInstancesBackingOff = `
SELECT group_id FROM process_groups
WHERE region = $1 AND wanted > 0 AND deleted_at IS NULL AND retry_at > now() AND tries > 0 AND group_id <> ALL (COALESCE($2::text[], '{}')) ORDER BY waiting_since, group_id LIMIT $3`

// InstancesBackingOff returns the instances of a region that fitted nowhere and are not tried now, one for each
// group, without those of the groups in except.
func (s *Store) InstancesBackingOff(ctx context.Context, region prego.Region, except []prego.GroupID) ([]workload.InstanceDemand, error) {
	ids, err := collectValues[string](ctx, s, "groups that back off", sqlInstancesBackingOff, region, prego.Strings(except), waitingGroups)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return collect[workload.InstanceDemand](ctx, s, "instances that back off", sqlInstanceDemand, ids)
}

// The usage of orgs at a limit is not read here: their groups' next attempt is near.
const sqlRegionsWithGroups = `
SELECT DISTINCT g.region FROM process_groups g LEFT JOIN region_room r ON r.region = g.region
WHERE g.wanted > 0 AND g.deleted_at IS NULL AND (g.next_attempt_at IS NULL OR g.next_attempt_at <= now())
    AND ` + groupRetries + ` ORDER BY 1`

// WaitingRegions are the regions with groups that wait for places and may be tried now.
func (s *Store) WaitingRegions(ctx context.Context) ([]prego.Region, error) {
	return collectValues[prego.Region](ctx, s, "regions with waiting groups", sqlRegionsWithGroups)
}

const sqlRoomFreed = `
INSERT INTO region_room (region, freed_at) VALUES ($1, clock_timestamp()) ON CONFLICT (region) DO UPDATE SET freed_at = clock_timestamp()`

// RoomFreed records that there may be room for instances that fitted nowhere in a region.
func (s *Store) RoomFreed(ctx context.Context, region prego.Region) error {
	return s.exec(ctx, string("room in "+region), sqlRoomFreed, region)
}
