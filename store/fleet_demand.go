package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/instance"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// Fleets that may create servers for tenants, newest first. All callers lock them in this order.
const sqlServingFleets = `
SELECT f.fleet_id FROM fleets f JOIN infra_providers i ON i.id = f.infra_provider
WHERE f.serves_tenants AND f.role = $1 AND i.enabled AND $2 = ANY (i.regions)
ORDER BY f.created_at DESC, f.fleet_id FOR NO KEY UPDATE OF f`

// demand has the first suitable fleet with room create up to n servers in a region, as an
// action planned by its policies and within its limits. The calling run carries it out; it
// does not queue behind operators' actions. It returns nil if there is no such fleet.
func demand(ctx context.Context, tx *txn, role prego.Role, region prego.Region, suits func(server.Fleet) bool, n int, cause, run string, plan planner) (*server.Fleet, *server.FleetAction, error) {
	ids := valuesIn[string](ctx, tx, sqlServingFleets, role, region)
	for _, id := range ids {
		f, err := getFleet(ctx, tx, id)
		if err != nil {
			return nil, nil, err
		}
		if !suits(f) {
			continue
		}
		st, err := fleetState(ctx, tx, f)
		if err != nil {
			return nil, nil, err
		}
		for count := n; count > 0; count-- {
			inputs, err := json.Marshal(map[string]any{"count": count, "regions": []prego.Region{region}})
			if err != nil {
				return nil, nil, err
			}
			want := server.FleetAction{FleetID: prego.FleetID(id), Action: server.ClusterScaleOut, Inputs: inputs}
			p, err := plan(st, want)
			if err != nil {
				return nil, nil, err
			}
			if p.Reason != "" {
				continue
			}
			a := oneIn[server.FleetAction](ctx, tx, sqlQueueAction, id, want.Action, want.Inputs, cause, run, run, "")
			a, err = planAction(ctx, tx, f, a, func(server.FleetState, server.FleetAction) (server.FleetPlan, error) { return p, nil })
			return &f, &a, err
		}
	}
	return nil, nil, nil
}

// makesTagged reports whether a fleet may create servers with exactly these tags.
func makesTagged(f server.Fleet, tags []string) bool {
	for _, t := range f.Spec.Tags {
		if !slices.Contains(tags, t) {
			return false
		}
	}
	return f.Constraint.SatisfiedBy(tags)
}

// BeginFleetScaling records a scaling round as actions of fleets and requests the servers, as many as fleets have
// room for, in one transaction. Without any room nothing starts, and the round's message states it. Repeating it
// returns the existing round.
func (s *Store) BeginFleetScaling(ctx context.Context, e tenant.ScalingRound, plan planner) (begun tenant.ScalingRound, err error) {
	err = s.inTx(ctx, "begin scaling", func(tx *txn) error {
		begun = e
		begun.ServerIDs, begun.TierLocks, begun.Tags, begun.Networks, begun.Requested = nil, nil, nil, nil, 0
		for i := 0; i < e.Requested; {
			n := 1
			for i+n < e.Requested && slices.Equal(e.Tags[i], e.Tags[i+n]) && networkOf(e, i) == networkOf(e, i+n) {
				n++
			}
			tx.check(askFleets(ctx, tx, e, i, n, &begun, plan))
			i += n
		}
		begun.Requested = len(begun.ServerIDs)
		if begun.Requested < e.Requested {
			begun.Message = fmt.Sprintf("%d wanted, the fleets of role %s that serve tenants have room for %d in %s", e.Requested, e.Role, begun.Requested, e.Region)
		}
		if begun.Requested == 0 {
			return nil
		}
		err := tx.QueryRow(ctx, sqlBeginScaling, e.Region, e.Role, e.Trigger, e.Waiting, begun.Requested, begun.ServerIDs, begun.TierLocks, e.WorkflowID, e.Round,
			begun.Message, begun.Tags).Scan(&begun.EventID)
		return ifNoRows(err, errRoundBegun)
	})
	if errors.Is(err, errRoundBegun) {
		return s.begunScaling(ctx, e)
	}
	return begun, err
}

// errRoundBegun undoes actions of a round that another step began first.
var errRoundBegun = errors.New("the round is begun already")

// networkOf returns the network for a server of a round, "" for any.
func networkOf(e tenant.ScalingRound, i int) prego.NetworkID {
	if i < len(e.Networks) {
		return e.Networks[i]
	}
	return ""
}

// inZone reports whether a fleet's servers can be in a network zone. An unknown location may be in any.
func inZone(f server.Fleet, zone string) bool {
	of := server.ProviderCatalog{}.ZoneOf(f.Spec.Location)
	return zone == "" || of == "" || of == zone
}

const sqlZoneOf = `SELECT zone FROM networks WHERE network_id = $1`

// askFleets requests n servers of a round that have the same tags and network.
func askFleets(ctx context.Context, tx *txn, e tenant.ScalingRound, from, n int, begun *tenant.ScalingRound, plan planner) error {
	tags, network, zone := e.Tags[from], networkOf(e, from), ""
	if network != "" {
		zone = valueIn[string](ctx, tx, sqlZoneOf, network)
	}
	for n > 0 {
		f, a, err := demand(ctx, tx, e.Role, e.Region, func(f server.Fleet) bool { return makesTagged(f, tags) && inZone(f, zone) }, n, e.Trigger, e.WorkflowID, plan)
		if err != nil || f == nil {
			return err
		}
		for _, st := range a.Steps {
			spec := f.Spec
			spec.Tags, spec.Network = tags, network
			if len(tags) == 0 {
				spec.Tags = nil
			}
			if _, _, err := insertServerIn(ctx, tx, fleetServer(server.Wanted{
				ServerID: st.ServerID, Role: e.Role, Region: e.Region, Provider: f.InfraProvider, Spec: spec, PlanTierLock: e.TierLocks[from],
				FleetID: f.FleetID, FleetProfile: f.Profile,
			}, e.WorkflowID)); err != nil {
				return err
			}
			begun.ServerIDs, begun.TierLocks, begun.Tags = append(begun.ServerIDs, st.ServerID), append(begun.TierLocks, e.TierLocks[from]), append(begun.Tags, tags)
			begun.Networks = append(begun.Networks, network)
			from++
			n--
		}
	}
	return nil
}

// The servers for waiting tenants are settled when they are active or have failed.
const sqlDemandSteps = `
UPDATE fleet_action_steps st SET at = now(), state = CASE WHEN s.active_at IS NULL THEN 'failed' ELSE 'done' END, message = CASE WHEN s.active_at IS NULL THEN s.status_message ELSE '' END
FROM servers s, scaling_events e WHERE e.event_id = $1 AND s.server_id = ANY (e.server_ids) AND st.server_id = s.server_id AND st.op = 'create' AND st.state = 'planned'`

const sqlDemandActions = `
SELECT DISTINCT a.fleet_id, a.seq FROM scaling_events e JOIN fleet_action_steps st ON st.server_id = ANY (e.server_ids) AND st.op = 'create'
JOIN fleet_actions a ON a.fleet_id = st.fleet_id AND a.seq = st.seq WHERE e.event_id = $1 AND a.status = 'running'`

// finishDemand ends the actions of a scaling event.
func (s *Store) finishDemand(ctx context.Context, eventID int64) error {
	if _, err := s.pool.Exec(ctx, sqlDemandSteps, eventID); err != nil {
		return fmt.Errorf("steps of scaling event %d: %w", eventID, err)
	}
	type ref struct {
		FleetID prego.FleetID
		Seq     int
	}
	actions, err := collect[ref](ctx, s, "actions of a scaling event", sqlDemandActions, eventID)
	if err != nil {
		return err
	}
	for _, a := range actions {
		if _, err := s.FinishFleetAction(ctx, a.FleetID, a.Seq); err != nil {
			return err
		}
	}
	return nil
}

// RequestFleetMember requests a server for one tenant or a warm pool, as a member of a
// fleet that serves tenants, has room, and creates servers that satisfy c; CodeFleetFull if
// there is none. The server has the fleet's tags and the requested ones. Repeating it
// returns the existing server.
func (s *Store) RequestFleetMember(ctx context.Context, n server.Wanted, c prego.Constraint, by string, plan planner) (srv server.Server, err error) {
	err = s.inTx(ctx, "request fleet server", func(tx *txn) error {
		if n.DedicatedFor != "" {
			tx.check(holdOwner(ctx, tx, n.DedicatedFor))
		}
		srv, err = serverIn(ctx, tx, n.ServerID)
		if prego.CodeOf(err) != prego.CodeServerNotFound {
			return err
		}
		tagged := func(f server.Fleet) []string {
			tags, _ := prego.NormalizeTags(slices.Concat(f.Spec.Tags, n.Spec.Tags)) // both are normal: no error
			return tags
		}
		f, a, err := demand(ctx, tx, n.Role, n.Region, func(f server.Fleet) bool {
			tags := tagged(f)
			return c.SatisfiedBy(tags) && f.Constraint.SatisfiedBy(tags)
		}, 1, by, by, plan)
		if err != nil {
			return err
		}
		if f == nil {
			// An earlier attempt may have taken the last place while this one waited for the fleets.
			if srv, err = serverIn(ctx, tx, n.ServerID); prego.CodeOf(err) != prego.CodeServerNotFound {
				return err
			}
			return prego.Errorf(prego.CodeFleetFull, "no fleet of role %s that serves tenants has room in %s for a server like this", n.Role, n.Region)
		}
		n.FleetID, n.FleetProfile, n.Provider = f.FleetID, f.Profile, f.InfraProvider
		tags := tagged(*f)
		n.Spec = f.Spec
		if n.Spec.Tags = tags; len(tags) == 0 {
			n.Spec.Tags = nil
		}
		if n.DedicatedFor != "" {
			tx.check(s.checkOwnServer(ctx, tx, n))
		}
		var created bool
		if srv, created, err = insertServerIn(ctx, tx, fleetServer(n, by)); err != nil {
			return err
		}
		if !created { // another step created it while this one waited for the fleets
			return errMemberMet
		}
		tx.run(ctx, sqlHandOver, f.FleetID, a.Seq, n.ServerID)
		return nil
	})
	if err != nil && !errors.Is(err, errMemberMet) {
		return server.Server{}, err
	}
	return srv, nil
}

// errMemberMet undoes an action whose server was already requested.
var errMemberMet = errors.New("the server is there already")

// The server has a name and a separate run: with its row the action is done.
const sqlHandOver = `
WITH step AS (UPDATE fleet_action_steps SET server_id = $3, state = 'done', at = now() WHERE fleet_id = $1 AND seq = $2)
UPDATE fleet_actions SET status = 'succeeded', finished_at = now(), message = 'asked for; what becomes of it is in its own row' WHERE fleet_id = $1 AND seq = $2`

// Each fleet's tags once, in the order of requests to fleets.
const sqlServingTags = `
SELECT f.spec FROM fleets f JOIN infra_providers i ON i.id = f.infra_provider
WHERE f.serves_tenants AND f.role = $1 AND i.enabled AND $2 = ANY (i.regions) ORDER BY f.created_at DESC, f.fleet_id`

// FleetTags returns the tags of the servers that fleets would create for tenants of a region, in the order of
// requests to fleets.
func (s *Store) FleetTags(ctx context.Context, region prego.Region, role prego.Role) ([][]string, error) {
	specs, err := collectValues[server.Spec](ctx, s, "tags of fleets", sqlServingTags, role, region)
	out := make([][]string, 0, len(specs))
	for _, spec := range specs {
		out = append(out, filled(spec.Tags))
	}
	return out, err
}

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
	return s.inTx(ctx, "grow a fleet for instances", func(tx *txn) error {
		got(lockFleet(ctx, tx, g.FleetID)).in(tx)
		_, err := one[server.FleetAction](ctx, tx, sqlQueueAction, g.FleetID, server.ClusterScaleOut, inputs, causeInstances, drivenByFleet, prego.ActorSystem, "")
		return err
	})
}
