package store

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// The rules that both Go and SQL hold are one function on each side. These tests hold the
// two together: over everything where that is finite, over drawn values elsewhere.

// asks answers with the only value of a statement.
func asks[T any](t require.TestingT, s *Store, sql string, args ...any) (v T) {
	require.NoError(t, s.pool.QueryRow(context.Background(), sql, args...).Scan(&v))
	return v
}

func orNull[T ~string](v T) *T {
	if v == "" {
		return nil
	}
	return &v
}

func TestPlansAndLocksAreOneRule(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	plans := append(prego.Plans(), "", "other")
	allowed := 0
	for _, plan := range plans {
		for _, lock := range plans {
			want := placement.TierLockAllows(plan, lock)
			require.Equal(t, want, asks[bool](t, s, `SELECT tier_lock_allows($1, $2)`, plan, orNull(lock)), "%q on %q", plan, lock)
			if want {
				allowed++
			}
		}
		for _, mode := range []tenant.PlacementMode{tenant.ModeShared, tenant.ModeOneTenantOneServer} {
			for _, override := range []bool{false, true} {
				require.Equal(t, placement.MustBeAlone(plan, mode, override), asks[bool](t, s, `SELECT must_be_alone($1, $2, $3)`, plan, mode, override),
					"%q in %s, override %v", plan, mode, override)
			}
		}
	}
	require.Equal(t, 2+1+1+5, allowed)
}

func TestStatesWithASiteAreOneRule(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	with := 0
	for _, state := range tenant.States() {
		require.Equal(t, state.HasSite(), asks[bool](t, s, `SELECT has_site($1)`, state), state)
		if state.HasSite() {
			with++
		}
	}
	require.Equal(t, 3, with)
}

func TestConstraintsAreOneRule(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	sets := func(from ...string) (out [][]string) { // every subset
		for bits := range 1 << len(from) {
			set := []string{}
			for i, v := range from {
				if bits&(1<<i) != 0 {
					set = append(set, v)
				}
			}
			out = append(out, set)
		}
		return out
	}
	yes, all := 0, 0
	for _, tags := range sets("a", "b", "c") {
		for _, needed := range sets("a", "b", "c") {
			for _, disallow := range sets("a", "b", "c") {
				want := prego.Constraint{Require: needed, Disallow: disallow}.SatisfiedBy(tags)
				require.Equal(t, want, asks[bool](t, s, `SELECT tags_satisfy($1, $2, $3)`, tags, needed, disallow), "%v: %v, not %v", tags, needed, disallow)
				all++
				if want {
					yes++
				}
			}
		}
	}
	require.Equal(t, 512, all)
	require.Equal(t, 4*4*4, yes) // per tag: absent and not required, or present and not disallowed
}

// residencyAllows is the rule in Go, as the engine asks it.
func residencyAllows(zones map[string]placement.Zone, country string, region prego.Region, provider prego.InfraProviderID) bool {
	zone, known := zones[country]
	return country == "" || known && zone.Allows(region, provider)
}

func TestResidencyIsOneRule(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	exec(t, s, `INSERT INTO residency_zones (country, regions, providers) VALUES
		('XA', '{sg,eu}', '{hetzner}'), ('XB', '{us}', '{aws,gcp}'), ('XC', '{sg,eu,us}', NULL)`)
	data, err := s.PlacementChanges(ctx, "", nil)
	require.NoError(t, err)
	countries := []string{"", "ZZ"}
	for country := range data.Residency {
		countries = append(countries, country)
	}
	require.Greater(t, len(countries), 40)
	for _, country := range countries {
		for _, region := range prego.Regions() {
			for _, provider := range []prego.InfraProviderID{"hetzner", "aws", "gcp"} {
				require.Equal(t, residencyAllows(data.Residency, country, region, provider),
					asks[bool](t, s, `SELECT residency_allows($1, $2, $3)`, orNull(country), region, provider), "%s: %s in %s", country, provider, region)
			}
		}
	}
}

func TestThresholdsAreOneRule(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	values := []float64{-1, 0, math.SmallestNonzeroFloat64, 69.999, 70, math.Nextafter(70, 71), 100}
	for _, most := range values {
		require.Equal(t, placement.HasReached(nil, most), asks[bool](t, s, `SELECT has_reached(NULL, $1)`, most))
		for _, pct := range values {
			require.Equal(t, placement.HasReached(&pct, most), asks[bool](t, s, `SELECT has_reached($1, $2)`, pct, most), "%v of %v", pct, most)
		}
	}
	require.False(t, asks[bool](t, s, `SELECT has_reached(99, NULL)`), "as from processes that know no threshold")
	rapid.Check(t, func(r *rapid.T) {
		pct, most := rapid.Float64Range(0, 100).Draw(r, "pct"), rapid.Float64Range(0, 100).Draw(r, "max")
		require.Equal(r, placement.HasReached(&pct, most), asks[bool](r, s, `SELECT has_reached($1, $2)`, pct, most))
	})
}

func TestLimitsAreOneRule(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	amounts := rapid.OneOf(rapid.Float64Range(0, 1e15), rapid.SampledFrom([]float64{0, 0.1, 0.25, 1, 3, 1e-6, 2e-6, 1 << 53}))
	check := func(t require.TestingT, usage, delta, limit float64) {
		require.Equal(t, quota.Above(usage, delta, limit), asks[bool](t, s, `SELECT above_limit($1, $2, $3)`, usage, delta, limit), "%v + %v of %v", usage, delta, limit)
	}
	for _, delta := range []float64{-1, 0, 1, 1 + 1e-6, 1 + 2e-6, 2} { // around a limit that is just reached
		check(t, 2, delta, 3)
		check(t, 5, delta, 3)
	}
	rapid.Check(t, func(r *rapid.T) {
		usage, limit := amounts.Draw(r, "usage"), amounts.Draw(r, "limit")
		delta := rapid.OneOf(rapid.Just(limit-usage), rapid.Just(-usage), amounts).Draw(r, "delta")
		check(r, usage, delta, limit)
	})

	// Whose limit holds: the org's own, else its tier's, for every tier and dimension.
	tiers := quota.DefaultTiers()
	for _, tier := range prego.Tiers() {
		org := "o-" + string(tier)
		exec(t, s, `INSERT INTO orgs (org_id, tier, created_by) VALUES ($1, $2, 'test')`, org, tier)
		own := map[quota.Dimension]float64{}
		for i, d := range quota.Dimensions() {
			if i%2 == 0 {
				own[d] = float64(i / 2) // 0 is also a limit
				exec(t, s, `INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ($1, $2, $3, 'test')`, org, d, own[d])
			}
		}
		for _, d := range quota.Dimensions() {
			want := tiers.Effective(tier, own, d)
			var have quota.Limit
			require.NoError(t, s.pool.QueryRow(context.Background(), `SELECT limit_value, own FROM org_limits($1, ARRAY[$2::text], $3)`, org, d, s.tierLimits).
				Scan(&have.Value, &have.Override))
			require.Equal(t, want, have, "%s of %s", d, tier)
		}
	}
}

func TestVolumesAreMountedAtOnePath(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	rapid.Check(t, func(r *rapid.T) {
		id := rapid.StringMatching(`[0-9]{1,12}`).Draw(r, "id")
		require.Equal(r, server.VolumeHostPath(id), asks[string](r, s, `SELECT volume_host_path($1)`, id))
	})
}

// TestRulesAreInNoStatement: a statement that spells a rule out would be its second home.
func TestRulesAreInNoStatement(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	rows, err := s.pool.Query(context.Background(), `SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace`)
	require.NoError(t, err)
	texts := constants(t)
	for rows.Next() {
		var name, body string
		require.NoError(t, rows.Scan(&name, &body))
		texts[name] = body
	}
	require.NoError(t, rows.Err())
	for rule, spelled := range map[string]string{
		"tier_lock_allows": `plan_tier_lock ((=|<>) '|IS (NULL|DISTINCT))`,
		"tags_satisfy":     `tags @> (p\.|t\.|\$)`,
		"residency_allows": `ANY \((z\.)?providers\)`,
		"has_site":         `'suspended', 'grace_period'`,
		"volume_host_path": `HC_Volume`,
		"above_limit":      `1e-6`,
	} {
		for name, text := range texts {
			require.True(t, name == rule || !regexp.MustCompile(spelled).MatchString(text), "%s is spelled out by %s", rule, name)
		}
	}
}

// TestTakenQuotaMatchesCountedQuota compares the quota taken for a tenant with its count in
// the view, at each plan and around the storage that the plan has anyhow.
func TestTakenQuotaMatchesCountedQuota(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := tenantStore(t)
	for _, plan := range prego.Plans() {
		least := int(asks[int64](t, s, `SELECT storage_bytes / 1000000000 FROM tenant_sizes WHERE plan = $1`, plan))
		for _, gb := range []int{1, least - 1, least, least + 1, 10 * least, 100_000} {
			if gb < 1 {
				continue
			}
			id := prego.TenantID(fmt.Sprintf("t-%s-%d", plan, gb))
			exec(t, s, `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, require_tags, disallow_tags, dedicated_redis, apps, policy, request_hash, state, created_by)
				VALUES ($1, $1, 'acme', 'eu', $2, 1, $3, '{}', '{}', false, '{}', 'shared', '', 'provisioning', 'test') ON CONFLICT DO NOTHING`, id, plan, gb)
			counted, err := one[tenantSize](ctx, s.pool, `SELECT c.memory_bytes + w.overhead_bytes_per_instance AS memory, c.cpu_request AS cpu, c.storage_bytes AS storage
				FROM counted_tenants c, workload_settings w WHERE c.tenant_id = $1`, id)
			require.NoError(t, err)
			require.NoError(t, s.inTx(ctx, "test", func(tx *txn) error {
				size, err := sizeOf(ctx, tx, plan, gb)
				require.Equal(t, counted, size, "%s with %d GB", plan, gb)
				return err
			}))
			require.GreaterOrEqual(t, counted.Storage, float64(gb)*tenant.BytesPerGB)
		}
	}
}

// What rows of a server state about a tenant while they are under way, by tables.
var heldByServer = regexp.MustCompile(`FROM (stack_release_sites|backups|snapshots) (\w+)\s+WHERE \w+\.tenant_id = \w+\.tenant_id AND `)

// TestServersHoldOnlyTenantsThatAreThere: every statement that reads by tenant the work under way on a server checks that
// the tenant's place is there, so that a server that is lost has no hold over it.
func TestServersHoldOnlyTenantsThatAreThere(t *testing.T) {
	t.Parallel()
	underWay := regexp.MustCompile(`offline_at|'(queued|running|making|uploading)'`)
	found := 0
	for name, sql := range constants(t) {
		for _, at := range heldByServer.FindAllStringSubmatchIndex(sql, -1) {
			end, depth := at[1], 1 // of the subquery
			for ; end < len(sql) && depth > 0; end++ {
				depth += map[byte]int{'(': 1, ')': -1}[sql[end]]
			}
			alias := sql[at[4]:at[5]]
			if part := sql[at[0]:end]; underWay.MatchString(part) {
				require.Contains(t, part, "has_place_on("+alias+".tenant_id, "+alias+".server_id)", name)
				found++
			}
		}
	}
	require.GreaterOrEqual(t, found, 5)
}
