package store

import (
	"context"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/pgtest"
)

// walkList reads a list to its end, two at a time.
func walkList[T any](t *testing.T, s *Store, l Listing[T], q prego.ListQuery) (out []T) {
	t.Helper()
	for q.Limit = 2; ; {
		page, next, err := l.page(context.Background(), s, q)
		require.NoError(t, err)
		out = append(out, page...)
		if q.Cursor = next; next == "" {
			return out
		}
	}
}

// sameSpread compares a list with the same list read without ranges of an index.
func sameSpread[T any](t *testing.T, s *Store, l Listing[T], q prego.ListQuery) int {
	t.Helper()
	plain := l
	plain.dimensions = nil
	want := walkList(t, s, plain, q)
	require.Equal(t, want, walkList(t, s, l, q), "%+v", q)
	return len(want)
}

func TestAListIsTheSameFromRangesOfAnIndex(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	pgtest.FillLarge(t, s.pool.Config().ConnString(), 30)
	r := rand.New(rand.NewPCG(1, 2))
	// Missing and ended values are also requested.
	exec(t, s, `UPDATE tenants SET state = (ARRAY['provisioning', 'active', 'terminated', 'data_purged', 'failed'])[1 + substr(tenant_id, 3)::int % 5], plan = (ARRAY['trial', 'starter', 'enterprise'])[1 + substr(tenant_id, 3)::int % 3]`)
	exec(t, s, `UPDATE servers SET status = (ARRAY['active', 'terminated', 'failed'])[1 + substr(server_id, 3)::int % 3], fleet_id = CASE WHEN substr(server_id, 3)::int % 2 = 0 THEN 'nodes-7' END`)
	met := 0
	for _, l := range scaleLists()[:2] {
		queries := l.queries()
		names := make([]string, 0, len(queries))
		for name := range queries {
			names = append(names, name)
		}
		slices.Sort(names)
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names[:min(deep.Times(40), len(names))] {
			q := queries[name]
			if states, ok := q.Filters["state"]; ok {
				q.Filters["state"] = append(slices.Clone(states), "provisioning", states[0]) // several, one twice
			}
			if l.what == Tenants.what {
				met += sameSpread(t, s, Tenants, q)
			} else {
				met += sameSpread(t, s, servers, q)
			}
		}
	}
	require.Positive(t, met)
	for _, q := range []prego.ListQuery{{}, {Filters: map[string][]string{"region": {"eu", "sg"}}}, {Filters: map[string][]string{"trigger": {"warm_pool"}, "role": {"app"}}, Sort: "created_at"}, {All: true}} {
		sameSpread(t, s, ScalingEvents, q)
	}
	_, _, err := Tenants.page(ctx, s, prego.ListQuery{Limit: 1, Filters: map[string][]string{"region": {"none"}}})
	require.NoError(t, err)
}

// A value that a dimension doesn't have would be missing in lists.
func TestDimensionsHaveEveryValueOfTheirColumns(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	quoted := regexp.MustCompile(`'([a-z_-]+)'`)
	check := func(table, filter, column string, have []string) {
		if have == nil {
			return
		}
		rules, err := values[string](context.Background(), s.pool, `
			SELECT pg_get_constraintdef(c.oid) FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)
			WHERE c.conrelid = $1::regclass AND c.contype = 'c' AND a.attname = $2 AND cardinality(c.conkey) = 1`, table, column)
		require.NoError(t, err)
		if column == "infra_provider" {
			rules, err = values[string](context.Background(), s.pool, `SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'infra_providers'::regclass AND contype = 'c'`)
			require.NoError(t, err)
		}
		require.NotEmpty(t, rules, "%s.%s", table, column)
		var want []string
		for _, m := range quoted.FindAllStringSubmatch(rules[0], -1) {
			want = append(want, m[1])
		}
		require.ElementsMatch(t, want, have, "%s.%s of the list", table, filter)
	}
	for _, d := range Tenants.dimensions {
		check("tenants", d.filter, Tenants.filters[d.filter], d.all)
	}
	for _, d := range servers.dimensions {
		check("servers", d.filter, servers.filters[d.filter], d.all)
	}
	for _, d := range ScalingEvents.dimensions {
		table := map[string]string{"region": "servers", "role": "servers"}[d.filter] // the events' have no rule
		if table == "" {
			table = "scaling_events"
		}
		check(table, d.filter, ScalingEvents.filters[d.filter], d.all)
	}
}
