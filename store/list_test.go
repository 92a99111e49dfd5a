package store

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
)

// variants are all statements of a list: with all filters together and with none, in
// each order, from the start and from a cursor.
func variants[T any](t *testing.T, l Listing[T]) (out []string) {
	t.Helper()
	every := map[string][]string{}
	for name := range l.filters {
		every[name] = []string{"x"}
	}
	for field := range l.sorts {
		for _, sort := range []string{field, "-" + field} {
			for _, filters := range []map[string][]string{nil, every} {
				q := prego.ListQuery{Filters: filters, Sort: sort, Limit: 1}
				sql, _, by, err := l.statement(q)
				require.NoError(t, err)
				out = append(out, sql)
				var zero T
				value := fieldOf(zero, by)
				if _, ok := value.(time.Time); ok {
					value = time.Now()
				}
				q.Cursor, err = newCursor(sort, value, fieldOf(zero, l.id))
				require.NoError(t, err)
				sql, _, _, err = l.statement(q)
				require.NoError(t, err)
				out = append(out, sql)
			}
		}
	}
	return out
}

func TestEveryListFitsTheSchema(t *testing.T) {
	t.Parallel()
	conn, err := pgtest.Pool(t).Acquire(context.Background())
	require.NoError(t, err)
	defer conn.Release()
	var all []string
	for _, statements := range [][]string{
		variants(t, servers), variants(t, Tenants), variants(t, Apps), variants(t, Envs), variants(t, Groups), variants(t, Instances), variants(t, AllInstances), variants(t, IPv4s), variants(t, Attachments),
		variants(t, volumes), variants(t, Routes), variants(t, Snapshots), variants(t, Restores), variants(t, Images), variants(t, PlacementPools),
		variants(t, Fleets), variants(t, Policies), variants(t, FleetActions), variants(t, Orgs), variants(t, orgEvents), variants(t, Commands), variants(t, ScalingEvents), variants(t, Ledger),
		variants(t, AllBackups),
	} {
		all = append(all, statements...)
	}
	for i, sql := range all {
		_, err := conn.Conn().Prepare(context.Background(), fmt.Sprintf("list%d", i), sql)
		require.NoError(t, err, sql)
	}
}

func TestAListWalksInAnyOrderAndFilters(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	for i := range 9 {
		_, _, err := s.CreateServer(ctx, server.CreateRequest{
			ServerID: prego.ServerID(fmt.Sprintf("s-%d", 8-i)), Role: []prego.Role{prego.RoleApp, prego.RoleNode, prego.RoleDBShard}[i%3], Region: prego.RegionEU,
			InfraProvider: prego.ProviderHetzner, Spec: server.Spec{Tags: []string{"a", fmt.Sprintf("b%d", i%2)}},
		}, "test")
		require.NoError(t, err)
	}
	exec(t, s, `UPDATE servers SET status = 'terminated' WHERE server_id = 's-4'`)
	walk := func(q prego.ListQuery) (ids []string) {
		for q.Limit = 2; ; {
			page, next, err := s.ListServers(ctx, q)
			require.NoError(t, err)
			for _, v := range page {
				ids = append(ids, string(v.ServerID))
			}
			if q.Cursor = next; next == "" {
				return ids
			}
		}
	}
	filter := func(pairs map[string][]string) prego.ListQuery {
		return prego.ListQuery{Filters: maps.Clone(pairs), Sort: "server_id"}
	}
	require.Equal(t, []string{"s-0", "s-1", "s-2", "s-3", "s-5", "s-6", "s-7", "s-8"}, walk(prego.ListQuery{}), "the newest first, without terminated servers")
	require.Equal(t, []string{"s-8", "s-7", "s-6", "s-5", "s-4", "s-3", "s-2", "s-1", "s-0"}, walk(prego.ListQuery{Sort: "-server_id", All: true}))
	require.Equal(t, []string{"s-4"}, walk(filter(map[string][]string{"status": {"terminated", "failed"}})), "a state that is named is not left out")
	require.Equal(t, []string{"s-2", "s-5", "s-8"}, walk(filter(map[string][]string{"role": {"app"}})))
	require.Equal(t, []string{"s-1", "s-2", "s-5", "s-7", "s-8"}, walk(filter(map[string][]string{"role": {"app", "node"}})))
	require.Equal(t, []string{"s-0", "s-2", "s-6", "s-8"}, walk(filter(map[string][]string{"tag": {"A", "b0"}})), "all tags must be there, in any case")
	_, _, err := s.ListServers(ctx, prego.ListQuery{Sort: "host", Limit: 1})
	code(t, err, prego.CodeInvalidField)
	_, next, err := s.ListServers(ctx, prego.ListQuery{Limit: 1})
	require.NoError(t, err)
	_, _, err = s.ListServers(ctx, prego.ListQuery{Limit: 1, Cursor: next, Sort: "server_id"})
	code(t, err, prego.CodeInvalidField)
	_, _, err = s.ListServers(ctx, filter(map[string][]string{"host": {"x"}}))
	code(t, err, prego.CodeUnknownField)
}
