package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/workload"
)

// TestConcurrentRequestsStayWithinOrgQuota: 32 concurrent requests compete for room for 5,
// of each kind, and the usage view counts the rows.
func TestConcurrentRequestsStayWithinOrgQuota(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s, ctx := New(pool), context.Background()
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := pool.Exec(ctx, sql, args...)
		require.NoError(t, err)
	}
	exec(`INSERT INTO orgs (org_id, created_by, tier) VALUES ('acme', 'a', 'enterprise')`)
	exec(`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'acme', 'a', 'a')`)
	const racers, room = 32, 5
	for i := range racers {
		exec(`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ($1, 'app-a', 'acme', $1, 'eu', 'a')`, fmt.Sprintf("env-%d", i))
		exec(`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
			VALUES ($1, $2, 'acme', 'eu', 'a', '{}', 1, 0, 1, 'a')`, fmt.Sprintf("grp-%d", i), fmt.Sprintf("env-%d", i))
	}
	var claimed []org.Domain
	for i := range racers {
		d, err := s.ClaimDomain(ctx, org.Domain{DomainID: prego.DomainID(fmt.Sprint("dom-", i)), OrgID: "acme", Name: fmt.Sprintf("h%d.example.com", i), Token: fmt.Sprint("t", i)}, "a")
		require.NoError(t, err)
		claimed = append(claimed, d)
	}
	limits := map[string]float64{"max_ipv4_allocations": room, "max_total_volume_bytes": room * 10e9, "max_hostnames": room}
	for dimension, limit := range limits {
		exec(`INSERT INTO org_quotas (org_id, dimension, limit_value, updated_by) VALUES ('acme', $1, $2, 'a')`, dimension, limit)
	}
	for dimension, take := range map[string]func(i int) error{
		"max_ipv4_allocations": func(i int) error {
			_, err := s.EnableIPv4(ctx, prego.EnvID(fmt.Sprintf("env-%d", i)), fmt.Sprintf("ip4-%d", i), "test", func(prego.Region) string { return "fsn1" }, "a")
			return err
		},
		"max_total_volume_bytes": func(i int) error {
			_, err := s.CreateVolume(ctx, workload.Volume{VolumeID: prego.VolumeID(fmt.Sprintf("vol-%d", i)), OrgID: "acme", Region: "eu", Location: "fsn1", Name: fmt.Sprint("v", i), SizeBytes: 10e9}, "test", "a")
			return err
		},
		// A hostname counts when it is verified: all have claimed one before.
		"max_hostnames": func(i int) error {
			d, err := s.DomainSeen(ctx, claimed[i], org.DomainAnswer{At: time.Now(), TXT: []string{claimed[i].ChallengeValue()}}, domainRules)
			if err == nil && d.Reason == org.ReasonDomainQuota {
				return prego.Errorf(prego.CodeQuotaExceeded, "%s", d.Message)
			}
			return err
		},
	} {
		var wg sync.WaitGroup
		errs := make([]error, racers)
		for i := range racers {
			wg.Add(1)
			go func() {
				defer wg.Done()
				errs[i] = take(i)
			}()
		}
		wg.Wait()
		took := 0
		for _, err := range errs {
			if err == nil {
				took++
				continue
			}
			require.Equal(t, prego.CodeQuotaExceeded, prego.CodeOf(err), "%v", err)
		}
		require.Equal(t, room, took, dimension)
		var usage float64
		require.NoError(t, pool.QueryRow(ctx, `SELECT usage FROM org_usage_view WHERE org_id = 'acme' AND dimension = $1`, dimension).Scan(&usage))
		require.InDelta(t, limits[dimension], usage, 0.1, dimension)
	}
}

// TestOneNameIsServedOnce: many orgs may have routes of one name, and only the org that
// verifies it is served.
func TestOneNameIsServedOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s, ctx := New(pool), context.Background()
	const racers = 16
	for i := range racers {
		for _, sql := range []string{
			`INSERT INTO orgs (org_id, created_by, tier) VALUES ('o' || $1, 'a', 'paid')`,
			`INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-' || $1, 'o' || $1, 'a', 'a')`,
			`INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-' || $1, 'app-' || $1, 'o' || $1, 'a', 'eu', 'a')`,
			`INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by)
				VALUES ('grp-' || $1, 'env-' || $1, 'o' || $1, 'eu', 'a', '{}', 1, 0, 1, 'a')`,
		} {
			_, err := pool.Exec(ctx, sql, fmt.Sprint(i))
			require.NoError(t, err)
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, racers)
	for i := range racers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := workload.Route{
				RouteID: prego.RouteID(fmt.Sprintf("rte-%d", i)), EnvID: prego.EnvID(fmt.Sprintf("env-%d", i)), GroupID: prego.GroupID(fmt.Sprintf("grp-%d", i)), Hostname: "www.example.com",
				Listener: workload.ListenerSharedV6, ListenPort: 443 + i%3, Protocol: workload.RouteHTTPS, TargetPort: 1,
			}
			_, errs[i] = s.CreateRoute(ctx, r, "a")
		}()
	}
	wg.Wait()
	for i, err := range errs {
		require.NoError(t, err, i)
	}
	served, err := s.PublishedRoutes(ctx)
	require.NoError(t, err)
	require.Empty(t, served)
	took := 0
	for i := range racers {
		d, err := s.GetDomain(ctx, fmt.Sprintf("dom-%d", i))
		require.NoError(t, err)
		d, err = s.DomainSeen(ctx, d, org.DomainAnswer{At: time.Now(), TXT: []string{d.ChallengeValue()}}, domainRules)
		require.NoError(t, err)
		if d.Status == org.DomainVerified {
			took++
		}
	}
	require.Equal(t, 1, took)
	served, err = s.PublishedRoutes(ctx)
	require.NoError(t, err)
	require.Len(t, served, 1)
	require.Equal(t, string(org.DomainVerified), served[0].HostnameStatus)
	_, err = s.CreateRoute(ctx, workload.Route{RouteID: "rte-late", EnvID: "env-1", GroupID: "grp-1", Hostname: "www.example.com", Listener: workload.ListenerSharedV6, ListenPort: 8443, Protocol: workload.RouteHTTPS, TargetPort: 1}, "a")
	require.Equal(t, prego.CodeHostnameTaken, prego.CodeOf(err), "another org has verified it")
	require.NoError(t, s.DeleteRoute(ctx, "env-0", "rte-0", "a"))
	served, err = s.PublishedRoutes(ctx)
	require.NoError(t, err)
	require.Empty(t, served)
	verified, _, err := Domains.In(s)(ctx, verifiedOnly)
	require.NoError(t, err)
	require.Empty(t, verified, "a name that was claimed with a route goes with it")
}

// TestVolumesTakeQuota: their number and bytes are checked when one is created, grows or is cloned.
func TestVolumesTakeQuota(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	ctx := t.Context()
	create := func(id string) error {
		v := workload.Volume{VolumeID: prego.VolumeID(id), OrgID: "acme", Region: "eu", Name: id, SizeBytes: 10e9}
		v.Location = "fsn1"
		_, err := s.CreateVolume(ctx, v, "test", "a")
		return err
	}
	limit := func(d quota.Dimension, limit float64) {
		_, err := s.SetQuota(ctx, "acme", d, limit, "a", "")
		require.NoError(t, err)
	}
	refused := func(d quota.Dimension, err error) {
		t.Helper()
		var over *org.QuotaExceeded
		require.ErrorAs(t, err, &over)
		require.Equal(t, string(d), over.Dimension)
	}
	clone := func() error {
		v := workload.Volume{VolumeID: "copy", Name: "copy"}
		r := workload.VolumeRestore{RestoreID: "rst", BackupID: "bak", CreatedBy: "a"}
		_, _, err := s.CloneVolume(ctx, "vol-1", v, r, "test")
		return err
	}
	limit(quota.MaxVolumes, 1)
	limit(quota.MaxTotalVolumeBytes, 25e9)
	require.NoError(t, create("vol-1"))
	refused(quota.MaxVolumes, create("vol-2"))
	refused(quota.MaxVolumes, clone())
	limit(quota.MaxVolumes, 9)
	exec(t, s, `UPDATE volumes SET status = 'ready', made_bytes = size_bytes, grown_bytes = size_bytes`)
	_, err := s.GrowVolume(ctx, "vol-1", 26e9, "a")
	refused(quota.MaxTotalVolumeBytes, err)
	_, err = s.GrowVolume(ctx, "vol-1", 20e9, "a")
	require.NoError(t, err)
	refused(quota.MaxTotalVolumeBytes, create("vol-2"))
	refused(quota.MaxTotalVolumeBytes, clone())
}
