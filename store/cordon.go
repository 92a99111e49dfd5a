package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

const sqlCordonServer = `
UPDATE servers SET cordoned_at = COALESCE(cordoned_at, now()), cordoned_by = $2, cordon_reason = $3, updated_at = now()
WHERE server_id = $1 AND status NOT IN ('draining', 'terminated') AND (cordoned_at IS NULL OR (cordoned_by, cordon_reason) IS DISTINCT FROM ($2, $3))
RETURNING ` + serverColumns

const sqlUncordonServer = `
UPDATE servers SET cordoned_at = CASE WHEN closing THEN cordoned_at END, cordoned_by = NULL, cordon_reason = NULL, updated_at = now()
WHERE server_id = $1 AND cordoned_by IS NOT NULL AND status NOT IN ('draining', 'terminated')
RETURNING ` + serverColumns

// CordonServer closes a server to new tenants and instances at an operator's request; existing ones stay. Repeating
// it changes who closed it and why. For a server being removed it is CodeInvalidTransition.
func (s *Store) CordonServer(ctx context.Context, id prego.ServerID, by, why string) (srv server.Server, err error) {
	err = s.inTx(ctx, "cordon "+string(id), func(tx *txn) error {
		srv = got(cordonIn(ctx, tx, id, by, why)).in(tx)
		return nil
	})
	return srv, err
}

func cordonIn(ctx context.Context, tx *txn, id prego.ServerID, by, why string) (server.Server, error) {
	// Held first, so that both statements see an uncordon under way.
	if _, err := tx.Exec(ctx, sqlHoldServer, id); err != nil {
		return server.Server{}, err
	}
	closed, err := find[server.Server](ctx, tx, sqlCordonServer, id, by, why)
	if err != nil {
		return server.Server{}, err
	}
	if closed == nil {
		srv, err := serverIn(ctx, tx, id)
		if err == nil && (srv.Status == server.Decommissioning || srv.Status == server.Terminated) {
			err = prego.Errorf(prego.CodeInvalidTransition, "server %s is %s, and accepts no tenants or instances anyway", id, srv.Status)
		}
		return srv, err
	}
	return *closed, addEvent(ctx, tx, server.Event{ServerID: id, Step: server.StepCordoned, Message: byWhom(by, why), Actor: prego.ActorOperator}, "")
}

// UncordonServer reopens a server that an operator has cordoned; an open server is returned as it is. A server that
// the control plane keeps closed, because its fleet is about to remove it or an image is verified there, stays
// closed: without another cordon this is CodeInvalidTransition. A server being emptied is CodeInvalidTransition too,
// because what leaves it would come back.
func (s *Store) UncordonServer(ctx context.Context, id prego.ServerID, by string) (srv server.Server, err error) {
	err = s.inTx(ctx, "uncordon "+string(id), func(tx *txn) error {
		// A maintenance that starts to empty the server also holds its row, and is seen.
		tx.run(ctx, sqlHoldServer, id)
		m := findIn[server.Maintenance](ctx, tx, sqlOpenMaintenance, id)
		if m != nil {
			return prego.Errorf(prego.CodeInvalidTransition, "a %s of server %s is %s: cancel it, which also opens the server", m.Kind, id, m.Status)
		}
		srv = got(uncordonIn(ctx, tx, id, by)).in(tx)
		return nil
	})
	return srv, err
}

func uncordonIn(ctx context.Context, tx *txn, id prego.ServerID, by string) (server.Server, error) {
	opened, err := find[server.Server](ctx, tx, sqlUncordonServer, id)
	if err != nil {
		return server.Server{}, err
	}
	if opened == nil {
		srv, err := serverIn(ctx, tx, id)
		switch {
		case err != nil || srv.CordonedAt == nil && srv.Status != server.Decommissioning && srv.Status != server.Terminated:
			return srv, err
		case srv.Status == server.Decommissioning || srv.Status == server.Terminated:
			return srv, prego.Errorf(prego.CodeInvalidTransition, "server %s is %s", id, srv.Status)
		}
		return srv, prego.Errorf(prego.CodeInvalidTransition, "the control plane itself keeps server %s closed: its fleet is about to remove it, or an image is verified there", id)
	}
	tx.run(ctx, sqlRoomFreed, opened.Region)
	return *opened, addEvent(ctx, tx, server.Event{ServerID: id, Step: server.StepUncordoned, Message: byWhom(by, ""), Actor: prego.ActorOperator}, "")
}

const sqlChangePlacement = `
UPDATE servers SET accepts_trial = COALESCE($2, accepts_trial),
    plan_tier_lock = NULLIF(COALESCE($3, plan_tier_lock), 'none'),
    tenant_capacity = COALESCE($4, tenant_capacity), updated_at = now()
WHERE server_id = $1 AND (accepts_trial, COALESCE(plan_tier_lock, 'none'), tenant_capacity) IS DISTINCT FROM
    (COALESCE($2, accepts_trial), COALESCE($3, plan_tier_lock, 'none'), COALESCE($4, tenant_capacity))
RETURNING ` + serverColumns

// ChangePlacement changes which tenants a server, its shard and its pool take from now on. Tenants that are there stay,
// beyond the capacity too.
func (s *Store) ChangePlacement(
	ctx context.Context, id prego.ServerID, c server.PlacementChange, by string,
) (srv server.Server, err error) {
	err = s.inTx(ctx, "placement of "+string(id), func(tx *txn) error {
		tx.run(ctx, sqlHoldServer, id)
		srv = got(serverIn(ctx, tx, id)).in(tx)
		if err := c.Check(srv.Role); err != nil {
			return err
		}
		if srv.Status == server.Decommissioning || srv.Status == server.Terminated {
			return prego.Errorf(prego.CodeInvalidTransition,
				"server %s is %s, and accepts no tenants anyway", id, srv.Status)
		}
		args := []any{id, c.AcceptsTrial, c.PlanTierLock, c.TenantCapacity}
		changed := findIn[server.Server](ctx, tx, sqlChangePlacement, args...)
		if changed == nil {
			return nil
		}
		srv = *changed
		return addEvent(ctx, tx, server.Event{
			ServerID: id, Step: server.StepPlacementChanged, Message: byWhom(by, c.String()),
			Actor: prego.ActorOperator,
		}, "")
	})
	return srv, err
}

// byWhom formats the actor and the reason of a request for the timeline.
func byWhom(by, why string) string {
	if why == "" {
		return "by " + by
	}
	return "by " + by + ": " + why
}

const sqlCordonedServers = `SELECT region, role, count(*)::int AS n FROM servers WHERE cordoned_at IS NOT NULL AND status <> 'terminated' GROUP BY 1, 2`

// CordonedServers counts the servers closed to new tenants and instances.
func (s *Store) CordonedServers(ctx context.Context) ([]server.Count, error) {
	return collect[server.Count](ctx, s, "cordoned servers", sqlCordonedServers)
}
