package store

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/tenant"
)

// A change of parents excludes writers, and then holds the org's row.
func TestReplacingAnOrgWaitsForAChangeOfParents(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	_, err := s.PutOrg(ctx, "acme", tenant.PutOrgRequest{}, "test")
	require.NoError(t, err)
	require.NoError(t, s.holding(t, sqlLockOrgs, func() error {
		_, err := s.PutOrg(ctx, "acme", tenant.PutOrgRequest{Tier: prego.TierPaid}, "test", "*")
		return err
	}, func(tx pgx.Tx) {
		_, err := tx.Exec(ctx, `SELECT FROM orgs WHERE org_id = 'acme' FOR NO KEY UPDATE`)
		require.NoError(t, err)
	}))
}
