package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/prego/prego"
)

// Fleets that may make servers for tenants, newest first. They are locked in this
// order by everybody.
const sqlServingFleets = `
SELECT f.fleet_id FROM fleets f JOIN infra_providers i ON i.id = f.infra_provider
WHERE f.serves_tenants AND f.role = $1 AND i.enabled AND $2 = ANY (i.regions)
ORDER BY f.created_at DESC, f.fleet_id FOR NO KEY UPDATE OF f`

const sqlDemandAction = `
INSERT INTO fleet_actions AS a (fleet_id, seq, action, inputs, status, cause, driven_by, requested_by)
VALUES ($1, $2, $3, $4, 'queued', $5, $6, $6) RETURNING ` + actionColumns

// demand has the first fleet that can make up to n servers for a region: as an action
// of it, planned by its policies within its bounds. The action is carried out by the
// run that asks, not behind what operators queued. No fleet: nil.
func demand(ctx context.Context, tx pgx.Tx, role prego.Role, region prego.Region, suits func(prego.Fleet) bool, n int, cause, run string, plan planner) (*prego.Fleet, *prego.FleetAction, error) {
	rows, err := tx.Query(ctx, sqlServingFleets, role, region)
	if err != nil {
		return nil, nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		f, err := getFleet(ctx, tx, id)
		if err != nil {
			return nil, nil, err
		}
		if suits != nil && !suits(f) {
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
			want := prego.FleetAction{FleetID: id, Action: prego.ClusterScaleOut, Inputs: inputs}
			p, err := plan(st, want)
			if err != nil {
				return nil, nil, err
			}
			if p.Reason != "" {
				continue
			}
			a, err := takeDemand(ctx, tx, want, cause, run)
			if err != nil {
				return nil, nil, err
			}
			a, err = planAction(ctx, tx, f, a, func(prego.FleetState, prego.FleetAction) (prego.FleetPlan, error) { return p, nil })
			return &f, &a, err
		}
	}
	return nil, nil, nil
}

func takeDemand(ctx context.Context, tx pgx.Tx, want prego.FleetAction, cause, run string) (prego.FleetAction, error) {
	var seq int
	if err := tx.QueryRow(ctx, sqlNextSeq, want.FleetID).Scan(&seq); err != nil {
		return want, err
	}
	rows, err := tx.Query(ctx, sqlDemandAction, want.FleetID, seq, want.Action, want.Inputs, cause, run)
	if err != nil {
		return want, err
	}
	return pgx.CollectExactlyOneRow(rows, scanAction)
}

// BeginFleetScaling is BeginScaling for servers of which a fleet is to have room: the
// round that is begun has at most as many as that, and their names. Without any
// room nothing is begun, and the round's message says so.
func (s *Store) BeginFleetScaling(ctx context.Context, e prego.ScalingRound, plan planner) (begun prego.ScalingRound, err error) {
	begun = e
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		f, a, err := demand(ctx, tx, e.Role, e.Region, nil, e.Requested, e.Trigger, e.WorkflowID, plan)
		if err != nil {
			return err
		}
		if f == nil {
			begun.Requested, begun.ServerIDs, begun.TierLocks = 0, nil, nil
			begun.Message = fmt.Sprintf("no fleet of role %s that serves tenants has room in %s", e.Role, e.Region)
			return nil
		}
		ids := make([]string, 0, len(a.Steps))
		for _, st := range a.Steps {
			ids = append(ids, st.ServerID)
		}
		if len(ids) < e.Requested {
			begun.Message = fmt.Sprintf("%d wanted, fleet %s has room for %d", e.Requested, f.FleetID, len(ids))
		}
		begun.FleetID, begun.FleetSeq, begun.ServerIDs, begun.Requested, begun.TierLocks = f.FleetID, a.Seq, ids, len(ids), e.TierLocks[:len(ids)]
		err = tx.QueryRow(ctx, sqlBeginScaling, e.Region, e.Role, e.Trigger, e.Waiting, begun.Requested, ids, begun.TierLocks, e.WorkflowID, e.Round,
			begun.Message, f.FleetID, a.Seq).Scan(&begun.EventID)
		if errors.Is(err, pgx.ErrNoRows) {
			return errRoundBegun
		}
		return err
	})
	if errors.Is(err, errRoundBegun) {
		found, ok, err := s.FindScaling(ctx, e.WorkflowID, e.Round)
		if err == nil && !ok {
			err = fmt.Errorf("scaling round %s of %s is gone", e.Round, e.WorkflowID)
		}
		return found, err
	}
	if err != nil {
		return e, asCoded("begin scaling", err)
	}
	return begun, nil
}

// errRoundBegun undoes an action whose round another step began first.
var errRoundBegun = errors.New("the round is begun already")

// A server that tenants wait for is done with when it came to life or failed.
const sqlDemandSteps = `
UPDATE fleet_action_steps st SET at = now(), state = CASE WHEN s.active_at IS NULL THEN 'failed' ELSE 'done' END, message = CASE WHEN s.active_at IS NULL THEN s.status_message ELSE '' END
FROM servers s WHERE st.fleet_id = $1 AND st.seq = $2 AND st.state = 'planned' AND s.server_id = st.server_id`

const sqlScalingAction = `SELECT COALESCE(fleet_id, ''), fleet_seq FROM scaling_events WHERE event_id = $1`

// RequestFleetMember accepts a server that one tenant or a warm pool needs, as a
// member of a fleet that serves tenants and has room; without any room it is refused
// with CodeFleetFull. Repeated, it meets its row.
func (s *Store) RequestFleetMember(ctx context.Context, n prego.FleetServer, by string, plan planner) (server prego.Server, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		met, err := serverIn(ctx, tx, n.ServerID)
		if err == nil {
			server = met
			return nil
		}
		if prego.CodeOf(err) != prego.CodeServerNotFound {
			return err
		}
		f, a, err := demand(ctx, tx, n.Role, n.Region, nil, 1, by, by, plan)
		if err != nil {
			return err
		}
		if f == nil {
			return prego.Errorf(prego.CodeFleetFull, "no fleet of role %s that serves tenants has room in %s", n.Role, n.Region)
		}
		n.FleetID, n.FleetProfile, n.Provider = f.FleetID, f.Profile, f.InfraProvider
		tags := n.Spec.Tags
		n.Spec = f.Spec
		if n.Spec.Tags, err = prego.NormalizeTags(append(append([]string{}, f.Spec.Tags...), tags...)); err != nil {
			return err
		}
		var created bool
		if server, created, err = insertServerIn(ctx, tx, fleetServer(n, by)); err != nil {
			return err
		}
		if !created { // another step was as far while this one waited for the fleets
			return errMemberMet
		}
		_, err = tx.Exec(ctx, sqlHandOver, f.FleetID, a.Seq, n.ServerID)
		return err
	})
	if err != nil && !errors.Is(err, errMemberMet) {
		return prego.Server{}, asCoded("request fleet server", err)
	}
	return server, nil
}

// errMemberMet undoes an action whose server was asked for already.
var errMemberMet = errors.New("the server is there already")

// The server has a name and a run of its own: with its row the action is done.
const sqlHandOver = `
WITH step AS (UPDATE fleet_action_steps SET server_id = $3, state = 'done', at = now() WHERE fleet_id = $1 AND seq = $2)
UPDATE fleet_actions SET status = 'succeeded', finished_at = now(), message = 'asked for; what becomes of it is in its own row' WHERE fleet_id = $1 AND seq = $2`
