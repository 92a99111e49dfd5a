package store

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/token"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

func TestRegistries(t *testing.T) {
	t.Parallel()
	s, ctx := New(pgtest.Pool(t)), context.Background()
	_, err := s.GetRegistry(ctx, "", "r.example.com")
	require.Equal(t, prego.CodeRegistryNotFound, prego.CodeOf(err))
	sealed := func(user, secret, key string) server.SealedRegistry {
		return server.SealedRegistry{Registry: server.Registry{Host: "r.example.com", Username: user, KeyID: key}, Sealed: []byte(secret)}
	}
	r, err := s.PutRegistry(ctx, sealed("ann", "x1", "k1"), "op")
	require.NoError(t, err)
	require.Equal(t, "ann", r.Username)
	r, err = s.PutRegistry(ctx, sealed("bob", "x2", "k1"), "op2")
	require.NoError(t, err)
	require.Equal(t, []string{"bob", "op", "op2"}, []string{r.Username, r.CreatedBy, r.UpdatedBy})

	was, err := s.SealedRegistry(ctx, "", "r.example.com")
	require.NoError(t, err)
	require.Equal(t, "x2", string(was.Sealed))
	require.NoError(t, s.ResealRegistry(ctx, sealed("bob", "x1", "k1"), sealed("bob", "late", "k2")))
	now, err := s.SealedRegistry(ctx, "", "r.example.com")
	require.NoError(t, err)
	require.Equal(t, was, now, "a password that was changed meanwhile is not undone")
	require.NoError(t, s.ResealRegistry(ctx, was, sealed("bob", "x3", "k2")))
	now, err = s.SealedRegistry(ctx, "", "r.example.com")
	require.NoError(t, err)
	require.Equal(t, []string{"x3", "k2"}, []string{string(now.Sealed), now.KeyID})

	all, err := s.ListRegistries(ctx, "")
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.NoError(t, s.DeleteRegistry(ctx, "", "r.example.com"))
	require.Equal(t, prego.CodeRegistryNotFound, prego.CodeOf(s.DeleteRegistry(ctx, "", "r.example.com")))
}

// TestOneDigestHolds: of many that concurrently resolve a tag all use one digest.
func TestOneDigestHolds(t *testing.T) {
	t.Parallel()
	s, ctx := New(pgtest.Pool(t)), context.Background()
	_, ok, err := s.ImageDigest(ctx, "frappe/erpnext:v15")
	require.NoError(t, err)
	require.False(t, ok)
	got := make([]string, 16)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			d, err := s.PutImageDigest(ctx, "frappe/erpnext:v15", "sha256:"+strings.Repeat(string("0123456789abcdef"[i]), 64))
			if err == nil {
				got[i] = d
			}
		})
	}
	wg.Wait()
	kept, ok, err := s.ImageDigest(ctx, "frappe/erpnext:v15")
	require.NoError(t, err)
	require.True(t, ok)
	for _, d := range got {
		require.Equal(t, kept, d)
	}
	_, err = s.PutImageDigest(ctx, "frappe/erpnext:v15", "latest")
	require.Equal(t, prego.CodeInvalidField, prego.CodeOf(err))
	require.NoError(t, s.DeleteImageDigest(ctx, "frappe/erpnext:v15"))
	require.Equal(t, prego.CodeImageNotFound, prego.CodeOf(s.DeleteImageDigest(ctx, "frappe/erpnext:v15")))
}

// TestSealedRegistries: passwords are in no row, follow a rotation of the master key,
// and open for nothing but their registry.
func TestSealedRegistries(t *testing.T) {
	t.Parallel()
	pool, ctx := pgtest.Pool(t), context.Background()
	first, second := strings.Repeat("1a", 32), strings.Repeat("2b", 32)
	type registries struct {
		Registries
		logins RegistryLogins
	}
	with := func(key string, earlier ...string) registries {
		box, err := token.NewBox(key, earlier...)
		require.NoError(t, err)
		return registries{NewRegistries(New(pool), box), RegistryLogins{New(pool), box}}
	}
	auth := func(r registries, image string) (string, string, bool, error) {
		return r.logins.RegistryAuth(ctx, "", image)
	}
	old := with(first)
	for host, secret := range map[string]string{"r.example.com": "swordfish-1", "docker.io": "swordfish-2"} {
		_, err := old.PutRegistry(ctx, "", host, "robot", secret, "op")
		require.NoError(t, err)
	}
	var row string
	require.NoError(t, pool.QueryRow(ctx, `SELECT string_agg(r::text || encode(sealed, 'escape'), '') FROM registries r`).Scan(&row))
	require.NotContains(t, row, "swordfish")
	user, password, ok, err := auth(old, "r.example.com/team/bench:v15")
	require.NoError(t, err)
	require.Equal(t, []any{"robot", "swordfish-1", true}, []any{user, password, ok})
	_, password, _, err = auth(old, "frappe/erpnext:v15")
	require.NoError(t, err)
	require.Equal(t, "swordfish-2", password)
	_, _, ok, err = auth(old, "ghcr.io/a/b")
	require.NoError(t, err)
	require.False(t, ok)

	_, _, _, err = auth(with(second), "frappe/erpnext")
	require.Equal(t, prego.CodeSealed, prego.CodeOf(err), "an unknown master key is reported, and no pull goes without credentials")
	require.Equal(t, prego.CodeSealed, prego.CodeOf(with(second).RotateRegistries(ctx)))
	require.NoError(t, with(second, first).RotateRegistries(ctx))
	_, password, _, err = auth(with(second), "r.example.com/team/bench:v15")
	require.NoError(t, err)
	require.Equal(t, "swordfish-1", password)

	_, err = pool.Exec(ctx, `UPDATE registries SET sealed = (SELECT sealed FROM registries WHERE host = 'docker.io') WHERE host = 'r.example.com'`)
	require.NoError(t, err)
	_, _, _, err = auth(with(second), "r.example.com/team/bench:v15")
	require.Equal(t, prego.CodeSealed, prego.CodeOf(err), "a password does not open for another registry")
}

// TestDeletingARegistryNamesItsUsers: instances that pull from it must be accepted; without them nothing is.
func TestDeletingARegistryNamesItsUsers(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	const forget, used = `DELETE FROM registries`, `
		INSERT INTO orgs (org_id, created_by) VALUES ('acme', 'test') ON CONFLICT DO NOTHING;
		INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-a', 'acme', 'a', 'test');
		INSERT INTO envs (env_id, app_id, org_id, name, region, created_by)
			VALUES ('env-a', 'app-a', 'acme', 'prod', 'eu', 'test');
		INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request,
			replicas, status, converged, created_by)
			VALUES ('grp-a', 'env-a', 'acme', 'eu', 'web', '{}', 1, 0.1, 1, 'running', true, 'test');
		INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request,
			number, spec, state)
		SELECT 'i-' || n, 'grp-a', 'acme', 'node-1', 1, 1, 0, n, json_build_object('image', image), state
		FROM (VALUES (1, 'r.example.com/team/web:1', 'running'), (2, 'r.example.com/team/web:2', 'failed'),
			(3, 'r.example.com/team/web:3', 'stopped'), (4, 'redis:7', 'running'),
			(5, 'index.docker.io/library/redis:7', 'booting'), (6, 'x.example.com/r.example.com', 'running')
		) v (n, image, state)`
	put := func() {
		exec(t, s, forget)
		exec(t, s, `INSERT INTO registries (org_id, host, username, sealed, key_id, created_by, updated_by)
			SELECT org_id, host, 'u', '', 'k', 'test', 'test'
			FROM unnest('{r.example.com,docker.io,free.example.com}'::text[]) host, unnest('{acme,other,""}'::text[]) org_id`)
	}
	put()
	require.NoError(t, s.DeleteRegistry(t.Context(), "acme", "r.example.com"))
	require.Equal(t, prego.CodeRegistryNotFound, prego.CodeOf(s.DeleteRegistry(t.Context(), "acme", "r.example.com")))
	put()
	conn, err := s.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	runEach(t, conn, `SET session_replication_role = replica;`+used+`;SET session_replication_role = DEFAULT`)
	for host, want := range map[string]map[string]impact.Class{
		"r.example.com":    {"i-1": impact.Interrupts, "i-2": impact.Interrupts},
		server.DockerHub:   {"i-4": impact.Interrupts, "i-5": impact.Interrupts},
		"free.example.com": {},
	} {
		del := func(ctx context.Context) error { return s.DeleteRegistry(ctx, "acme", host) }
		i := trying(t, s, del)
		require.Equal(t, want, classes(i), host)
		err := del(t.Context())
		require.Equal(t, len(want) > 0, prego.CodeOf(err) == prego.CodeImpactNotAccepted, "%s: %v", host, err)
		_, err = s.GetRegistry(t.Context(), "acme", host)
		require.Equal(t, len(want) > 0, err == nil, "%s is kept until it is accepted", host)
		if len(want) > 0 {
			require.NoError(t, del(impact.By(t.Context(), "test")), host)
		}
	}
	for _, org := range []prego.OrgID{"other", ""} {
		require.NoError(t, s.DeleteRegistry(t.Context(), org, "r.example.com"), "acme's instances don't use those of %q", org)
	}
}

// TestAnOrgsPullUsesOnlyItsOwnCredentials, not the installation's and not another org's, whose sealed password opens for
// no other org.
func TestAnOrgsPullUsesOnlyItsOwnCredentials(t *testing.T) {
	t.Parallel()
	s, ctx := tenantStore(t), t.Context()
	box, err := token.NewBox(strings.Repeat("1a", 32))
	require.NoError(t, err)
	r, logins := NewRegistries(s, box), RegistryLogins{s, box}
	_, err = s.PutOrg(ctx, "other", tenant.PutOrgRequest{}, "test")
	require.NoError(t, err)
	for org, secret := range map[prego.OrgID]string{"": "swordfish", "acme": "swordfish-of-acme"} {
		_, err := r.PutRegistry(ctx, org, "r.example.com", "robot", secret, "op")
		require.NoError(t, err)
	}
	_, err = r.PutRegistry(ctx, "nope", "r.example.com", "robot", "x", "op")
	require.Equal(t, prego.CodeNotFound, prego.CodeOf(err))
	for org, want := range map[prego.OrgID]string{"": "swordfish", "acme": "swordfish-of-acme", "other": ""} {
		_, password, ok, err := logins.RegistryAuth(ctx, org, "r.example.com/team/web:1")
		require.NoError(t, err)
		require.Equal(t, []any{want, want != ""}, []any{password, ok}, org)
	}
	list, err := s.ListRegistries(ctx, "acme")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, prego.OrgID("acme"), list[0].OrgID)

	exec(t, s, `UPDATE registries SET org_id = 'other' WHERE org_id = 'acme'`)
	_, _, _, err = logins.RegistryAuth(ctx, "other", "r.example.com/team/web:1")
	require.Equal(t, prego.CodeSealed, prego.CodeOf(err), "it was sealed for acme")
	_, _, ok, err := logins.RegistryAuth(ctx, "acme", "r.example.com/team/web:1")
	require.NoError(t, err)
	require.False(t, ok)
}
