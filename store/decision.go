package store

import (
	"context"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

const fromDecisions = `allocation_snapshots d JOIN tenants t ON t.tenant_id = d.tenant_id`

const selectDecisions = `
SELECT d.snapshot_id, d.tenant_id, d.allocation_id, d.outcome, d.code, d.algorithm, d.decision_log AS decision, d.policy_json AS policy, d.actor, d.created_at, t.org_id, t.region
FROM ` + fromDecisions

const sqlGetDecision = selectDecisions + ` WHERE d.snapshot_id = $1`

// GetDecision reads a decision, or CodeDecisionNotFound.
func (s *Store) GetDecision(ctx context.Context, id int64) (tenant.Decision, error) {
	return get[tenant.Decision](ctx, s.pool, prego.Errorf(prego.CodeDecisionNotFound, "there is no decision %d", id), sqlGetDecision, id)
}

var decisions = listing[tenant.Decision]{
	what: "decisions", from: selectDecisions, order: "-id",
	filters: map[string]string{"tenant_id": "d.tenant_id", "org_id": "t.org_id", "region": "t.region", "outcome": "d.outcome", "code": "d.code"},
	sorts:   map[string]string{"id": "d.snapshot_id"},
	id:      "d.snapshot_id",
	table:   fromDecisions, dimensions: []dimension{{filter: "outcome"}, {filter: "code"}}, narrow: []string{"tenant_id", "org_id"},
}

// ListAllDecisions returns a page of the decisions on all tenants.
func (s *Store) ListAllDecisions(ctx context.Context, q prego.ListQuery) (page []tenant.Decision, next string, err error) {
	return decisions.page(ctx, s, q)
}
