package api_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/ops/impact"
)

// site places a new tenant on app-1, where its site is.
func (b *bundle) site(slug string) string {
	b.t.Helper()
	id := b.tenant(`{"slug":"` + slug + `","org_id":"acme","region":"eu","plan":"starter"}`)
	b.ok(200, "POST", "/internal/placement-overrides", `{"tenant_id":"`+id+`","force_app_server_id":"app-1","reason":"here"}`)
	b.sql(`UPDATE tenants SET state = 'active', site = slug || '.sites.test' WHERE tenant_id = $1`, id)
	b.sql(`UPDATE tenant_allocations SET on_shard = true WHERE tenant_id = $1`, id)
	b.sql(`INSERT INTO site_usage (tenant_id, database_bytes, files_bytes, quota_gb) VALUES ($1, 5, 7, 1)`, id)
	return id
}

// refusedImpact sends a request that must be refused until its impact is accepted.
func (b *bundle) refusedImpact(method, path, body, accepted string) impact.Impact {
	b.t.Helper()
	resp, answer := b.sendWith(method, path, body, "Impact-Accepted", accepted)
	require.Equal(b.t, 409, resp.StatusCode, "%s", answer)
	p := as[api.Problem](b.t, answer)
	require.Equal(b.t, "impact_not_accepted", p.Code)
	return *p.Impact
}

// nothing is a digest that accepts nothing.
const nothing = "1795770000-AAAAAA"

func TestDeletingAServerAsksForWhatIsLostWithIt(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1", "app-2")
	first := b.site("bakery")

	tried := as[api.Tried](t, b.ok(200, "DELETE", "/v1/servers/app-2?dry_run=true", "")).Impact
	require.Equal(t, impact.Impact{Class: impact.None, Affected: []impact.Thing{}, Destroyed: []impact.Loss{}}, tried)
	resp, answer := b.send("DELETE", "/v1/servers/app-2", "operator", "", "")
	require.Equal(t, 202, resp.StatusCode, "an empty server asks nothing: %s", answer)

	shown := b.refusedImpact("DELETE", "/v1/servers/app-1", "", nothing)
	require.Equal(t, impact.Destroys, shown.Class)
	bakery := impact.Thing{Kind: "tenant", ID: first, Name: "bakery", OrgID: "acme", Class: impact.Interrupts}
	require.Equal(t, []impact.Thing{bakery}, shown.Affected)
	require.Equal(t, []impact.Loss{{Kind: "site", ID: first, Name: "bakery.sites.test", OrgID: "acme", Bytes: 12}}, shown.Destroyed)
	require.Equal(t, impact.Destroys, b.refusedImpact("DELETE", "/v1/servers/db-1", "", nothing).Class, "its database is there")
	pool := b.refusedImpact("DELETE", "/v1/servers/redis-1", "", nothing)
	require.Equal(t, impact.Interrupts, pool.Class, "a cache holds nothing")
	require.Empty(t, pool.Destroyed)
	b.refusedImpact("DELETE", "/v1/servers/db-1", "", shown.Digest)

	second := b.site("tailor")
	more := b.refusedImpact("DELETE", "/v1/servers/app-1", "", shown.Digest)
	require.Len(t, more.Destroyed, 2, "%s came after the acceptance", second)
	require.Equal(t, api.ServerStatus("active"), b.show("app-1").Status)
	require.Empty(t, b.audit("&kind=impact"))

	// It accepts what is left of it.
	b.sql(`UPDATE tenant_allocations SET released_at = now() WHERE tenant_id = $1`, first)
	resp, answer = b.sendWith("DELETE", "/v1/servers/app-1", "", "Impact-Accepted", more.Digest)
	require.Equal(t, 202, resp.StatusCode, "%s", answer)
	noted := b.audit("&kind=impact")
	require.Len(t, noted, 1)
	require.Equal(t, "app-1", noted[0].Id)
	require.Equal(t, "operator", noted[0].Actor)
	require.Equal(t, "deleteServer", deref(noted[0].Operation))
	require.Equal(t, resp.Header.Get("X-Request-Id"), deref(noted[0].RequestId))
	require.Equal(t, "destroys", (*noted[0].New)["class"])
	require.Contains(t, (*noted[0].New)["destroyed"].([]any)[0], "id")

	resp, answer = b.send("DELETE", "/v1/servers/app-1", "operator", "", "")
	require.Equal(t, 202, resp.StatusCode, "a repetition destroys nothing more: %s", answer)
}

// TestAPatchWindowStatesWhatItDoes later, and asks for what stops before its successor runs.
func TestAPatchWindowStatesWhatItDoes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1", "app-2")
	first := b.site("bakery")
	b.ok(201, "POST", "/v1/fleets", `{"fleet_id":"apps","role":"app","infra_provider":"hetzner","region":"eu"}`)
	b.sql(`UPDATE servers SET fleet_id = 'apps' WHERE server_id IN ('app-1', 'app-2')`)
	const window, none = `{"patch_window":{"schedule":"0 3 * * *","seconds":3600}}`, `{"patch_window":{"schedule":""}}`
	tried := func(body string) impact.Impact {
		return as[api.Tried](t, b.ok(200, "PATCH", "/v1/fleets/apps?dry_run=true", body)).Impact
	}
	shown := tried(window)
	require.Equal(t, []impact.Thing{{Kind: "tenant", ID: first, Name: "bakery", OrgID: "acme", Class: impact.Moves}}, shown.Affected)
	require.Contains(t, shown.Undo, "remove the patch window")
	require.Empty(t, tried(`{"max_size":7}`).Affected)
	b.ok(200, "PATCH", "/v1/fleets/apps", window)
	require.Empty(t, tried(window).Affected, "it is there already")
	require.Empty(t, tried(none).Affected)
}

// TestADryRunHasNoIdempotencyKey takes none and returns none.
func TestADryRunHasNoIdempotencyKey(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	ask := func(query, slug string) (int, []byte) {
		resp, answer := b.sendWith("POST", "/v1/tenants"+query, `{"slug":"`+slug+`","org_id":"acme","region":"eu","plan":"starter"}`, "Idempotency-Key", "k-1")
		return resp.StatusCode, answer
	}
	for _, slug := range []string{"one", "two"} {
		status, answer := ask("?dry_run=true", slug)
		require.Equal(t, 200, status, "%s", answer)
	}
	status, made := ask("", "three")
	require.Equal(t, 202, status, "%s", made)
	for slug, want := range map[string]int{"three": 200, "four": 409} {
		status, answer := ask("?dry_run=true", slug)
		require.Equal(t, want, status, "%s: as the request itself: %s", slug, answer)
	}
	status, again := ask("", "three")
	require.Equal(t, 202, status)
	require.JSONEq(t, string(made), string(again))
	status, _ = ask("", "four")
	require.Equal(t, 409, status, "the key is that of three")
}

// TestEveryChangeStatesItsImpact: the worst that it may do, and a dry run or why there is none.
func TestEveryChangeStatesItsImpact(t *testing.T) {
	t.Parallel()
	tried := 0
	for path, item := range contract(t).Paths.Map() {
		for method, op := range item.Operations() {
			bound, stated := op.Extensions["x-impact"].(string)
			why, without := op.Extensions["x-dry-run"].(string)
			name := method + " " + path
			if method == http.MethodGet {
				require.False(t, stated || without, name)
				continue
			}
			require.True(t, impact.Class(bound).Valid(), "%s has the impact %q", name, bound)
			has, accepts := false, false
			for _, p := range op.Parameters {
				has, accepts = has || p.Value.Name == "dry_run", accepts || p.Value.Name == "Impact-Accepted"
			}
			asks := has && impact.Class(bound).Exceeds(impact.Moves)
			require.Equal(t, asks, accepts, "%s takes an acceptance if it interrupts or destroys", name)
			require.NotEqual(t, has, without && why != "", "%s has a dry run, or a reason why it has none", name)
			if has {
				tried++
				require.NotNil(t, op.Responses.Status(http.StatusOK).Value.Content["application/vnd.prego.impact+json"], name)
			}
		}
	}
	require.Greater(t, tried, 100)
}

// TestAnAcceptanceKeepsTheKey: a request that was refused is repeated with its acceptance and the same key. The answer
// is that of the key from then on, with or without the acceptance.
func TestAnAcceptanceKeepsTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1")
	id := b.site("bakery")
	b.sql(`UPDATE tenants SET state = 'trial' WHERE tenant_id = $1`, id)
	ask := func(key, accepted, query string) (int, []byte) {
		req := request(t, b.srv.URL, "POST", "/v1/tenants/"+id+"/terminate"+query, "operator", js, `{}`)
		req.Header.Set("Idempotency-Key", key)
		if accepted != "" {
			req.Header.Set("Impact-Accepted", accepted)
		}
		resp, err := need.HTTP.Do(req)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, answer
	}
	status, answer := ask("k-1", "", "?dry_run=true")
	require.Equal(t, 200, status, "%s", answer)
	status, answer = ask("k-1", "", "")
	require.Equal(t, 409, status, "%s", answer)
	shown := as[api.Problem](t, answer)
	require.Equal(t, "impact_not_accepted", shown.Code)
	status, done := ask("k-1", shown.Impact.Digest, "")
	require.Equal(t, 202, status, "%s", done)
	status, again := ask("k-1", "", "")
	require.Equal(t, 202, status, "%s", again)
	require.JSONEq(t, string(done), string(again))
	require.Len(t, b.audit("&kind=impact"), 1)
	status, answer = ask("k-1", "", "?dry_run=true")
	require.Equal(t, 409, status)
	require.Equal(t, "invalid_transition", as[api.Problem](t, answer).Code, "a dry run has no key")
}

// TestWhatIsGoneIsAccepted: a server that is declared lost, a volume, a backup, and what a restore replaces.
func TestWhatIsGoneIsAccepted(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1", "app-2")
	id, trial := b.site("bakery"), b.site("trial")
	b.sql(`UPDATE tenants SET state = 'trial' WHERE tenant_id = $1`, trial)
	b.sql(`UPDATE tenant_allocations SET app_server_id = 'app-2' WHERE tenant_id = $1`, trial)
	taken := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	for n, backup := range []string{"bak-1", "bak-2"} {
		b.sql(`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, kind, state, site, created_by, object_key, taken_at, bytes,
			sealed_identity, sha256, plain_sha256, manifest_sha256)
			VALUES ($1, 'acme', $2, 'app-1', 'manual', 'stored', 'bakery.sites.test', 'ann', $1, $3, 9, 'x', 'x', 'x', 'x')`, backup, id, taken.Add(-time.Duration(n)*time.Hour))
	}
	verified := taken.Add(-time.Hour)
	b.sql(`UPDATE backups SET verified_at = now() WHERE backup_id = 'bak-2'`)
	bakery := impact.Loss{
		Kind: "site", ID: id, Name: "bakery.sites.test", OrgID: "acme", Bytes: 12,
		CopyAt: &verified, UnverifiedAt: &taken,
	}
	for _, tc := range []struct {
		method, path, body string
		lost               impact.Loss
	}{
		{"POST", "/v1/servers/app-1/lost", `{"reason":"its disk died"}`, bakery},
		{"POST", "/v1/tenants/" + id + "/restores", `{"backup_id":"bak-2"}`, bakery},
		{"DELETE", "/v1/tenants/" + id + "/backups/bak-2", "", impact.Loss{Kind: "backup", ID: "bak-2", Name: "bakery.sites.test", OrgID: "acme", Bytes: 9, UnverifiedAt: &taken}},
		{"POST", "/v1/tenants/" + trial + "/cancel", `{}`, impact.Loss{Kind: "site", ID: trial, Name: "trial.sites.test", OrgID: "acme", Bytes: 12}},
	} {
		shown := b.refusedImpact(tc.method, tc.path, tc.body, nothing)
		require.Equal(t, []impact.Loss{tc.lost}, shown.Destroyed, tc.path)
		tried := as[api.Tried](t, b.ok(200, tc.method, tc.path+"?dry_run=true", tc.body)).Impact
		require.Equal(t, shown.Destroyed, tried.Destroyed, tc.path)
	}
	require.Equal(t, api.ServerStatus("active"), b.show("app-1").Status)
}

// TestADeletionIsUndone: of a volume and of a backup, until the time that is shown.
func TestADeletionIsUndone(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1")
	id := b.site("bakery")
	v := as[api.Volume](t, b.ok(202, "POST", "/v1/volumes",
		`{"org_id":"acme","name":"data","region":"eu","location":"fsn1","size_bytes":10000000000}`))
	volume := "/v1/volumes/" + v.VolumeId
	for _, sql := range []string{
		`UPDATE volumes SET status = 'ready', provider_id = '7', made_bytes = size_bytes`,
		`INSERT INTO backups (backup_id, org_id, tenant_id, volume_id, server_id, kind, state, site, created_by,
			taken_at, bytes, sealed_identity, sha256, plain_sha256, manifest_sha256)
		SELECT 'bak-' || COALESCE(t, v), 'acme', t, v, 'app-1', 'manual', 'stored', 's', 'ann',
			now(), 9, 'x', 'x', 'x', 'x'
		FROM (SELECT tenant_id, NULL FROM tenants UNION ALL SELECT NULL, volume_id FROM volumes) o (t, v)`,
		// One of a day is kept: which one, is retention's business, also after an undo.
		`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, kind, state, site, created_by, taken_at, bytes,
			sealed_identity, sha256, plain_sha256, manifest_sha256)
		SELECT 'bak-earlier', 'acme', tenant_id, 'app-1', 'manual', 'stored', 's', 'ann', date_trunc('hour', now()), 9,
			'x', 'x', 'x', 'x' FROM tenants`,
		`UPDATE backups SET taken_at = date_trunc('hour', now()) + interval '1 second' WHERE backup_id <> 'bak-earlier'`,
		`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, status, server_id, site, created_by, created_at)
		SELECT 'snp-1', 'acme', tenant_id, 'succeeded', 'app-1', 's', 'ann', now() + interval '2 hours' FROM tenants`,
		`INSERT INTO volume_restores (restore_id, org_id, volume_id, backup_id, created_by, status, finished_at)
		SELECT 'vrs-1', 'acme', volume_id, backup_id, 'ann', 'succeeded', now() FROM backups
		WHERE volume_id IS NOT NULL`,
	} {
		b.sql(sql)
	}
	for _, tc := range []struct {
		path, undo, gone string
		deletes, undoes  int
	}{
		{volume, "prego volume undelete data, until ", "invalid_transition", 202, 202},
		{
			volume + "/backups/bak-" + v.VolumeId, "prego volume backup undelete " + v.VolumeId + " bak-",
			"backup_not_ready", 204, 200,
		},
		{
			"/v1/tenants/" + id + "/backups/bak-" + id, "prego backup undelete " + id + " bak-" + id + ", until ",
			"backup_not_ready", 204, 200,
		},
		{
			"/v1/tenants/" + id + "/snapshots/snp-1", "prego snapshot undelete " + id + " snp-1, until ",
			"snapshot_not_found", 204, 200,
		},
	} {
		type kept struct {
			Status, State string
			KeptUntil     *time.Time `json:"kept_until"`
		}
		show := func() kept { return as[kept](t, b.ok(200, "GET", tc.path, "")) }
		before := show()
		require.Contains(t, b.refusedImpact("DELETE", tc.path, "", nothing).Undo, tc.undo)
		require.Equal(t, before, show(), "not accepted")
		b.ok(tc.deletes, "DELETE", tc.path, "")
		require.WithinDuration(t, time.Now().Add(24*time.Hour), *show().KeptUntil, time.Minute)
		b.ok(tc.undoes, "POST", tc.path+"/undelete", "")
		require.Equal(t, before, show())
		b.ok(tc.undoes, "POST", tc.path+"/undelete", "")

		b.ok(tc.deletes, "DELETE", tc.path, "")
		b.sql(`UPDATE volumes SET kept_until = now()`)
		b.sql(`UPDATE backups SET kept_until = now()`)
		b.sql(`UPDATE snapshots SET kept_until = now()`)
		_, body := b.send("POST", tc.path+"/undelete", "operator", "", "")
		require.Equal(t, tc.gone, as[api.Problem](t, body).Code)
		if tc.gone != "snapshot_not_found" {
			require.Nil(t, show().KeptUntil)
		}
	}
}

// TestWhatIsDestroyedNextIsListed for viewers, with who accepted it.
func TestWhatIsDestroyedNextIsListed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.org("acme", "")
	b.fleet("app-1", "db-1", "redis-1")
	id := b.site("bakery")
	b.ok(202, "POST", "/v1/tenants/"+id+"/cancel", `{}`)
	b.sql(`UPDATE tenants SET state = 'terminated', deadline_at = now() + interval '2 days' WHERE tenant_id = $1`, id)
	list := func(days string) api.UpcomingList {
		return as[api.UpcomingList](t, b.ok(200, "GET", "/v1/impact/upcoming?days="+days, ""))
	}
	require.Empty(t, list("1").Upcoming)
	all := list("3")
	require.Equal(t, 1, all.Total)
	u := all.Upcoming[0]
	require.Equal(t, []string{"site", id, "lifecycle", "operator"}, []string{u.Kind, u.ID, u.Policy, u.AcceptedBy})
	require.NotEmpty(t, u.Stop)
}
