package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/ops/impact"
)

// What customers have, as rows: what no advice may take away. A failed tenant has nothing yet.
const sqlHad = `
SELECT COALESCE(string_agg(row, E'\n' ORDER BY row), '') FROM (
    SELECT concat_ws(' ', 'tenant', tenant_id, state, slug, site, deadline_at) AS row FROM tenants WHERE state <> 'failed'
    UNION ALL SELECT concat_ws(' ', 'place', tenant_id, app_server_id, db_shard_id, database_name) FROM tenant_allocations
        WHERE released_at IS NULL
    UNION ALL SELECT concat_ws(' ', 'volume', volume_id) FROM volumes WHERE deleted_at IS NULL AND status <> 'failed'
    UNION ALL SELECT concat_ws(' ', 'backup', backup_id) FROM backups WHERE state = 'stored'
    UNION ALL SELECT concat_ws(' ', 'domain', domain_id, status) FROM domains WHERE deleted_at IS NULL
    UNION ALL SELECT concat_ws(' ', 'group', group_id, replicas) FROM process_groups WHERE deleted_at IS NULL
    UNION ALL SELECT concat_ws(' ', 'server', s.server_id, s.status) FROM servers s, server_use(s.server_id) u
        WHERE u.tenants + u.instances + u.volumes > 0 AND s.status IN ('active', 'failed')
) had`

// What the rows of pgtest lack for requests, with a backup of each tenant, and some tenants on the ailing server.
const (
	sqlMore = `
INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
SELECT 't-' || i, 'app-1', 'd', 'r', '', '', 'hetzner', 'test' FROM (VALUES (1), (5), (6)) v (i);
UPDATE tenants SET site = slug || '.eu.example.com' WHERE site = '';
INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by, state, taken_at, sealed_identity, bytes, sha256, plain_sha256, manifest_sha256, finished_at)
SELECT 'bak-more-' || i, 'acme', 't-' || i, 'app-1', 's', 'manual', 'test', 'stored', now(), '', 1, 'x', 'x', 'x', now() FROM generate_series(2, 4) i`
	sqlCrowded = `UPDATE tenant_allocations SET app_server_id = 'app-2' WHERE tenant_id IN ('t-5', 't-6');
UPDATE servers SET tenant_count = 2 WHERE server_id = 'app-2'`
)

// realIDs are ids as the contract has them.
var realIDs = strings.NewReplacer("'grp-a'", "'grp-00000000000a'", "'reb'", "'reb-00000000000000aa'")

// refused is advice that these rows don't allow, which changes nothing, and why.
var refused = map[string]string{
	"DELETE /v1/volumes/vol-a":      "volume_attached: it is detached first",
	"POST /v1/servers/app-2/patch":  "tenants_cannot_move_yet: unless they are to stay",
	"POST /v1/tenants/t-1/drills":   "insufficient_resources: no server can take a drill",
	"POST /v1/volumes/vol-a/drills": "backup_not_found: it has no backup",
}

// TestAdviceLeavesNoTenantWorseOff puts an installation into each state that needs attention, with tenants on the ailing
// server and without, and does all that is proposed. What would interrupt customers must be accepted first, and destroys
// nothing; everything else leaves them what they had.
func TestAdviceLeavesNoTenantWorseOff(t *testing.T) {
	t.Parallel()
	for _, kind := range attention.Kinds() {
		require.NotEmpty(t, pgtest.Ailments[kind], "%s: which rows are it?", kind)
		for _, ailment := range pgtest.Ailments[kind] {
			for name, more := range map[string]string{"": "", "/crowded": ";" + sqlCrowded} {
				if more != "" && !strings.Contains(ailment.SQL, "'app-2'") {
					continue // it is not about that server
				}
				t.Run(string(kind)+"/"+ailment.Is+name, func(t *testing.T) {
					t.Parallel()
					b := ailing(t, sqlMore+more+";"+ailment.SQL)
					for _, action := range b.advice(kind)[0].Actions {
						if action.Method == http.MethodGet {
							status, answer := b.request(action, "")
							require.Equal(t, 200, status, "%s: %s", action.Path, answer)
							continue
						}
						ailing(t, sqlMore+more+";"+ailment.SQL).follow(action) // each by itself
					}
				})
			}
		}
	}
}

// TestGivingAServerUpNamesWhatIsLost: the only advice that destroys.
func TestGivingAServerUpNamesWhatIsLost(t *testing.T) {
	t.Parallel()
	b := ailing(t, sqlMore+`;
		UPDATE servers SET status = 'failed', status_reason = 'heartbeat_lost', agent_status = 'disconnected',
			agent_last_heartbeat_at = now() - interval '20 minutes', tenant_count = 1 WHERE server_id = 'app-1';
		UPDATE edges SET server_id = 'app-7'; UPDATE tenant_allocations SET app_server_id = 'app-2' WHERE tenant_id <> 't-2';
		UPDATE site_health SET server_id = 'app-7', up = false, cause = 'timeout' WHERE tenant_id = 't-2';
		INSERT INTO server_maintenances (server_id, number, kind, requested_by, was_open, status, reason, finished_at, reset_at)
		VALUES ('app-1', 1, 'reboot', 'test', true, 'failed', 'reboot_timeout', now(), now())`)
	item := b.advice(attention.ServerFailed)[0]
	require.Contains(t, item.Todo, "is lost: shop-2 0 min.")
	give := item.Actions[len(item.Actions)-1]
	require.Equal(t, "prego server lose app-1", give.Cli)
	status, answer := b.request(give, "dry_run")
	require.Equal(t, 200, status, "%s: %v", answer, b.logs.All())
	require.Contains(t, string(answer), `"destroyed":[{"kind":"site","id":"t-2"`)
	before := b.had()
	status, answer = b.request(give, "")
	require.Equal(t, 409, status, "%s", answer)
	require.Equal(t, before, b.had(), "it must be accepted")
}

// ailing is an installation with some rows changed.
func ailing(t *testing.T, sql string) *bundle {
	t.Helper()
	b := setup(t, nil)
	b.untried = true
	conn, err := b.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	all := `INSERT INTO orgs (org_id, tier, created_by) VALUES ('acme', 'enterprise', 'test');
		SET session_replication_role = replica;` + pgtest.WellInstallation + ";" + sql + `;SET session_replication_role = DEFAULT`
	for s := range strings.SplitSeq(realIDs.Replace(all), ";") {
		_, err := conn.Exec(t.Context(), s)
		require.NoError(t, err, s)
	}
	return b
}

func (b *bundle) advice(kind attention.Kind) []api.Attention {
	b.t.Helper()
	resp, body := b.do("GET", "/v1/attention?kind="+string(kind), "viewer", "", "")
	require.Equal(b.t, 200, resp.StatusCode, "%s", body)
	items := as[api.AttentionList](b.t, body).Items
	require.NotEmpty(b.t, items)
	return items
}

func (b *bundle) had() (rows string) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), sqlHad).Scan(&rows))
	return rows
}

// request sends what an action proposes, as the console does.
func (b *bundle) request(a api.AttentionAction, flag string) (status int, answer []byte) {
	b.t.Helper()
	path, header, body := a.Path, "", ""
	if flag != "" {
		path += "?" + flag + "=true"
	}
	if a.Body != nil {
		text, err := json.Marshal(a.Body)
		require.NoError(b.t, err)
		header, body = js, string(text)
	}
	resp, answer := b.send(string(a.Method), path, "operator", header, body)
	return resp.StatusCode, answer
}

// follow does what an action proposes, as far as that needs no acceptance.
func (b *bundle) follow(a api.AttentionAction) {
	b.t.Helper()
	what, before := string(a.Method)+" "+a.Path, b.had()
	status, answer := b.request(a, "dry_run")
	if status == 200 {
		tried := as[api.Tried](b.t, answer)
		require.Empty(b.t, tried.Impact.Destroyed, what)
		require.NotEqual(b.t, impact.Destroys, tried.Impact.Class, what)
		if tried.Impact.Digest != "" {
			require.Contains(b.t, a.Path, "/reboot", "only a reboot interrupts")
			status, answer = b.request(a, "")
			require.Equal(b.t, 409, status, "%s: %s", what, answer)
			require.Equal(b.t, before, b.had(), what)
			return
		}
	}
	status, answer = b.request(a, "")
	if why := refused[what]; status >= 300 && why != "" {
		code, _, _ := strings.Cut(why, ":")
		require.Equal(b.t, code, as[api.Problem](b.t, answer).Code, what)
	} else {
		require.Less(b.t, status, 300, "%s: %s", what, answer)
	}
	after := strings.Split(b.had(), "\n")
	for row := range strings.SplitSeq(before, "\n") {
		require.Contains(b.t, after, row, what)
	}
}
