package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/access"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// endingTenant is a tenant whose timer runs.
type endingTenant struct {
	TenantID   prego.TenantID
	Slug, Site string
	OrgID      prego.OrgID
	Plan       prego.Plan
	State      tenant.State
	DeadlineAt time.Time
	AcceptedBy string
	AcceptedAt *time.Time
}

const sqlEndingTenants = `
SELECT t.tenant_id, t.slug, t.site, t.org_id, t.plan, t.state, t.deadline_at,
    COALESCE(a.accepted_by, '') AS accepted_by, a.accepted_at
FROM tenants t LEFT JOIN standing_acceptances a ON a.policy = 'lifecycle' AND a.id = t.tenant_id
WHERE t.deadline_at < $1 ORDER BY t.deadline_at, t.tenant_id LIMIT $2`

// purgedAt is when the timers of a tenant's states have purged its data; zero if they do not.
func (t endingTenant) purgedAt(p tenant.LifecyclePeriods) time.Time {
	for at, state := t.DeadlineAt, t.State; ; {
		action, _, ok := state.TimedAction()
		if !ok {
			return time.Time{}
		}
		next, err := action.Apply(state)
		if err != nil {
			return time.Time{}
		}
		if next == tenant.DataPurged {
			return at
		}
		lasts := p.For(next, t.Plan)
		if lasts <= 0 {
			return time.Time{}
		}
		at, state = at.Add(lasts), next
	}
}

func (t endingTenant) stop() string {
	switch t.State {
	case tenant.GracePeriod:
		return "prego tenant reactivate " + t.Slug
	case tenant.Terminated:
		return "its data can only be kept as backups: prego backup policy hold " + string(t.TenantID)
	case tenant.Active, tenant.Suspended, tenant.Trial, tenant.Provisioning, tenant.DataPurged, tenant.Failed:
	}
	return "prego tenant reactivate " + t.Slug + ", in its grace period"
}

// A backup may lose its owner's purge, its own time or its turn among the others; of owners in the order of their ids.
const sqlRetainedOf = `
SELECT x.*, r.org_id AS backup_org, COALESCE(a.accepted_by, '') AS accepted_by, a.accepted_at
FROM (` + sqlRetainedBy + `) x JOIN backups r ON r.backup_id = x.backup_id
LEFT JOIN standing_acceptances a ON a.policy = 'retention' AND a.id = x.backup_id ORDER BY owner LIMIT $2`

type retainedOf struct {
	retained
	BackupOrg  prego.OrgID
	AcceptedBy string
	AcceptedAt *time.Time
}

const sqlRemovals = `
SELECT t.server_id AS id, a.fleet_id, a.seq, a.requested_by, a.created_at FROM fleet_actions a
JOIN fleet_action_steps t ON t.fleet_id = a.fleet_id AND t.seq = a.seq
WHERE a.status = 'running' AND t.op = 'delete' AND t.state = 'planned' ORDER BY t.server_id LIMIT $1`

// Actions that wait for their turn in their fleets.
const sqlQueuedActions = `SELECT ` + actionColumns + ` FROM fleet_actions a
WHERE a.status = 'queued' AND a.driven_by = 'fleet' ORDER BY a.fleet_id, a.seq LIMIT $1`

// queuedRemovals are the servers that queued actions of fleets will remove: the plan that each would make now, after
// those in front of it have removed theirs. gone are the servers that running actions remove. What plan refuses now may
// be possible when its turn comes, and is not known.
func queuedRemovals(
	ctx context.Context, tx *txn, plan planner, gone map[prego.ServerID]bool,
) (out []removal) {
	for _, a := range manyIn[server.FleetAction](ctx, tx, sqlQueuedActions, mostUpcoming) {
		st := got(fleetState(ctx, tx, got(getFleet(ctx, tx, string(a.FleetID))).in(tx))).in(tx)
		st.Members = slices.DeleteFunc(st.Members, func(m server.FleetMember) bool { return gone[m.ServerID] })
		if tx.err != nil {
			return nil
		}
		p, err := plan(st, a)
		if err != nil {
			continue
		}
		for _, step := range p.Steps {
			if step.Op == server.StepOpDelete {
				gone[step.ServerID] = true
				out = append(out, removal{step.ServerID, a.FleetID, a.Seq, a.RequestedBy, a.CreatedAt})
			}
		}
	}
	return out
}

// removal is a server that an action of a fleet removes.
type removal struct {
	ID          prego.ServerID
	FleetID     prego.FleetID
	Seq         int
	RequestedBy string
	CreatedAt   time.Time
}

// What callers have deleted and is still kept.
const sqlKept = `
SELECT k.*, COALESCE(e.actor, '') AS accepted_by, e.at AS accepted_at
FROM (SELECT 'volume' AS kind, volume_id AS id, name, org_id, kept_until AS at, 'volume.delete' AS type,
        'prego volume undelete ' || volume_id AS stop
    FROM volumes WHERE deleted_at IS NULL AND kept_until > now()
    UNION ALL SELECT 'backup', backup_id, 'of ' || COALESCE(tenant_id, volume_id), org_id, kept_until, 'backup.delete',
        COALESCE('prego backup undelete ' || tenant_id, 'prego volume backup undelete ' || volume_id) || ' ' || backup_id
    FROM backups WHERE state = 'deleting' AND kept_until > now()
    UNION ALL SELECT 'snapshot', s.snapshot_id, 'of ' || s.tenant_id, s.org_id, s.kept_until, 'snapshot.delete',
        'prego snapshot undelete ' || s.tenant_id || ' ' || s.snapshot_id
    FROM snapshots s WHERE ` + isKeptSnapshot + `) k
LEFT JOIN LATERAL (SELECT o.actor, o.at FROM org_events o
    WHERE o.org_id = k.org_id AND o.subject = k.id AND o.type = k.type ORDER BY o.event_id DESC LIMIT 1) e ON true
WHERE k.at < $1 ORDER BY k.at, k.id LIMIT $2`

// mostUpcoming bounds what Upcoming reads of each kind.
const mostUpcoming = 20_000

// Upcoming lists what timers destroy until a moment, the first first: the sites of trials and of tenants that were
// cancelled, backups that retention does not keep, if each scheduled one until then is made, servers that fleets remove
// or, by the steps that plan returns now, will remove, and what was deleted and is still kept. It is truncated if there
// are more backups than it reads.
func (s *Store) Upcoming(
	ctx context.Context, until time.Time, p tenant.LifecyclePeriods, plan planner,
) (out []impact.Upcoming, truncated bool, err error) {
	err = s.inView(ctx, "what is destroyed next", func(tx *txn) error {
		now, purged := time.Now(), map[string]impact.Upcoming{}
		for _, t := range manyIn[endingTenant](ctx, tx, sqlEndingTenants, until, mostUpcoming) {
			if at := t.purgedAt(p); !at.IsZero() && at.Before(until) {
				u := impact.Upcoming{
					Kind: "site", ID: string(t.TenantID), Name: cmp.Or(t.Site, t.Slug), OrgID: t.OrgID,
					At: later(at, now), Policy: "lifecycle", AcceptedBy: t.AcceptedBy, AcceptedAt: t.AcceptedAt,
					Stop: t.stop(),
				}
				out, purged[u.ID] = append(out, u), u
			}
		}
		all := map[string][]retainedOf{}
		backups := manyIn[retainedOf](ctx, tx, sqlRetainedOf, "", mostUpcoming)
		for _, b := range backups {
			all[b.Owner] = append(all[b.Owner], b)
		}
		if truncated = len(backups) == mostUpcoming; truncated {
			delete(all, backups[len(backups)-1].Owner) // it may have more
		}
		for owner, backups := range all {
			out = append(out, endingBackups(owner, backups, purged[owner], now, until)...)
		}
		if !access.OfCustomer(ctx) {
			removals, gone := manyIn[removal](ctx, tx, sqlRemovals, mostUpcoming), map[prego.ServerID]bool{}
			for _, r := range removals {
				gone[r.ID] = true
			}
			for _, r := range append(removals, queuedRemovals(ctx, tx, plan, gone)...) {
				out = append(out, impact.Upcoming{
					Kind: string(server.ResourceServer), ID: string(r.ID), At: now, Policy: "fleet",
					AcceptedBy: r.RequestedBy, AcceptedAt: &r.CreatedAt, Stop: fmt.Sprintf("prego fleet cancel %s %d", r.FleetID, r.Seq),
				})
			}
		}
		for _, k := range manyIn[struct {
			Kind, ID, Name, Type, Stop, AcceptedBy string
			OrgID                                  prego.OrgID
			At                                     time.Time
			AcceptedAt                             *time.Time
		}](ctx, tx, sqlKept, until, mostUpcoming) {
			out = append(out, impact.Upcoming{
				Kind: k.Kind, ID: k.ID, Name: k.Name, OrgID: k.OrgID, At: k.At, Policy: "deletion",
				AcceptedBy: k.AcceptedBy, AcceptedAt: k.AcceptedAt, Stop: k.Stop,
			})
		}
		return nil
	})
	slices.SortFunc(out, func(a, b impact.Upcoming) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
	return out, truncated, err
}

// later is a moment, which is not in the past.
func later(at, now time.Time) time.Time {
	if at.Before(now) {
		return now
	}
	return at
}

// endingBackups are an owner's backups that are deleted until a moment, if each scheduled backup is made. The purge of
// its tenant's data ends the time of all but the last.
func endingBackups(
	owner string, backups []retainedOf, purge impact.Upcoming, now, until time.Time,
) (out []impact.Upcoming) {
	policy, gone := backups[0].policy(), map[prego.BackupID]time.Time{}
	left := make([]tenant.Retained, 0, len(backups))
	for _, b := range backups {
		left = append(left, b.Retained)
	}
	without := func(b tenant.Retained) bool { return !gone[b.BackupID].IsZero() }
	if !backups[0].Scheduled {
		policy.Schedule = ""
	}
	for at := policy.Next(owner, now); !at.IsZero() && at.Before(until); at = policy.Next(owner, at) {
		left = append(left, tenant.Retained{BackupID: prego.BackupID(at.Format(time.RFC3339)), TakenAt: at})
		for _, id := range tenant.Surplus(left, policy.Retention, at) {
			gone[id] = at
		}
		left = slices.DeleteFunc(left, without)
	}
	for _, b := range backups {
		ends := b.ExpiresAt
		if !purge.At.IsZero() && b.Kind != tenant.BackupFinal {
			ends = &purge.At
		}
		if at := gone[b.BackupID]; !b.Held && ends != nil && ends.Before(until) && (at.IsZero() || ends.Before(at)) {
			gone[b.BackupID] = later(*ends, now)
		}
	}
	for _, b := range backups {
		if at := gone[b.BackupID]; !at.IsZero() {
			out = append(out, impact.Upcoming{
				Kind: "backup", ID: string(b.BackupID), Name: "of " + owner, OrgID: b.BackupOrg, At: at,
				Policy: "retention", AcceptedBy: b.AcceptedBy, AcceptedAt: b.AcceptedAt,
				Stop: "prego backup policy hold " + owner,
			})
		}
	}
	return out
}
