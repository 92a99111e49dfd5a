package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/org"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

const sqlTestEvent = `INSERT INTO events (kind, id, step) VALUES ('server', $1, 'x')`

// readOn reads the feed from a cursor to its end, and returns the ids and where it ended.
func readOn(t *testing.T, s *Store, q ops.EventQuery) (ids []string, next string) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 3
	}
	for {
		page, err := s.Events(t.Context(), q)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Events), q.Limit)
		for _, e := range page.Events {
			ids = append(ids, e.ID)
		}
		q.Since = page.Next
		if !page.More {
			return ids, page.Next
		}
	}
}

// eventually reads until that many events are there: transactions of other tests, in other databases of the same
// Postgres, delay the feed.
func eventually(t *testing.T, s *Store, q ops.EventQuery, n int) (ids []string, next string) {
	t.Helper()
	require.Eventually(t, func() bool {
		var more []string
		more, next = readOn(t, s, q)
		ids, q.Since = append(ids, more...), next
		return len(ids) >= n
	}, 30*time.Second, 5*time.Millisecond)
	return ids, next
}

// startOfTest returns a cursor behind the events of the test's setup.
func startOfTest(t *testing.T, s *Store) string {
	t.Helper()
	exec(t, s, `INSERT INTO events (kind, id, step) VALUES ('test', 'start', 'x')`)
	var page ops.EventPage
	require.Eventually(t, func() (there bool) {
		var err error
		page, err = s.Events(t.Context(), ops.EventQuery{Tail: 1})
		require.NoError(t, err)
		return len(page.Events) == 1 && page.Events[0].ID == "start"
	}, 30*time.Second, 5*time.Millisecond)
	return page.Next
}

func endOfFeed(t *testing.T, s *Store) string {
	t.Helper()
	page, err := s.Events(t.Context(), ops.EventQuery{Limit: 1})
	require.NoError(t, err)
	require.Empty(t, page.Events)
	return page.Next
}

// TestNoCommitIsMissed has an older transaction commit after a newer one, whose events wait for it.
func TestNoCommitIsMissed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	start := startOfTest(t, s)
	begin := func(id string) pgx.Tx {
		tx, err := s.pool.Begin(ctx)
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		_, err = tx.Exec(ctx, sqlTestEvent, id)
		require.NoError(t, err)
		return tx
	}
	older, newer := begin("older"), begin("newer")
	require.NoError(t, newer.Commit(ctx))
	ids, _ := readOn(t, s, ops.EventQuery{Since: start})
	require.Empty(t, ids, "an older event may still come")
	require.NoError(t, older.Commit(ctx))
	ids, next := eventually(t, s, ops.EventQuery{Since: start}, 2)
	require.Equal(t, []string{"older", "newer"}, ids)
	ids, _ = readOn(t, s, ops.EventQuery{Since: next})
	require.Empty(t, ids, "nothing comes twice")

	undone := begin("undone")
	require.NoError(t, begin("kept").Commit(ctx))
	require.NoError(t, undone.Rollback(ctx))
	ids, _ = eventually(t, s, ops.EventQuery{Since: next}, 1)
	require.Equal(t, []string{"kept"}, ids)
}

// TestFeedReadersReadEachEventOnce lets writers commit in any order while readers follow, with pages of
// different sizes, and stop and resume at any time. Each reads everything, once, and in the same order.
func TestFeedReadersReadEachEventOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	start := startOfTest(t, s)
	const writers, each = 4, 25
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				err := s.inTx(ctx, "write", func(tx *txn) error {
					for part := range 1 + i%3 {
						if _, err := tx.Exec(ctx, sqlTestEvent, fmt.Sprintf("%d/%d/%d", w, i, part)); err != nil {
							return err
						}
					}
					if i%7 == 6 {
						return context.Canceled
					}
					return nil
				})
				if i%7 != 6 && err != nil {
					t.Error(err)
				}
			}
		})
	}
	want := 0
	for i := range each {
		if i%7 != 6 {
			want += 1 + i%3
		}
	}
	want *= writers
	read := make([][]string, 3)
	for r := range read {
		wg.Go(func() {
			q := ops.EventQuery{Since: start, Limit: 1 + r*20}
			for len(read[r]) < want && t.Context().Err() == nil {
				page, err := s.Events(ctx, q)
				if err != nil {
					t.Error(err)
					return
				}
				keep := len(page.Events)
				if keep > 0 && rand.IntN(3) == 0 { // it stops in the middle of a page, and resumes from the last event that it took
					keep = 1 + rand.IntN(keep)
				}
				for _, e := range page.Events[:keep] {
					read[r] = append(read[r], e.ID)
				}
				if q.Since = page.Next; keep < len(page.Events) {
					q.Since = page.Events[keep-1].Cursor
				}
			}
		})
	}
	wg.Wait()
	for r := range read {
		require.Len(t, read[r], want)
		require.Equal(t, read[0], read[r], "all read the same order")
		once := slices.Compact(slices.Sorted(slices.Values(read[r])))
		require.Len(t, once, want, "each once")
		require.False(t, slices.ContainsFunc(once, func(id string) bool { return strings.Contains(id, "/6/") }), "rolled-back events are not reported")
	}
}

func TestTheFeedIsFiltered(t *testing.T) {
	t.Parallel()
	s := tenantStore(t)
	start := startOfTest(t, s)
	exec(t, s, `INSERT INTO events (kind, id, org_id, about, step)
		SELECT CASE WHEN i % 2 = 0 THEN 'server' ELSE 'move' END, 'x-' || i, CASE WHEN i % 5 = 0 THEN 'acme' END, ARRAY['about-' || i % 3], 'x' FROM generate_series(1, 60) i`)
	_, end := eventually(t, s, ops.EventQuery{Since: start}, 60)
	for name, tc := range map[string]struct {
		f    ops.EventFilter
		want int
	}{
		"all": {ops.EventFilter{}, 60}, "kind": {ops.EventFilter{Kinds: []string{"move"}}, 30}, "two kinds": {ops.EventFilter{Kinds: []string{"move", "server"}}, 60},
		"org": {ops.EventFilter{Orgs: []string{"acme"}}, 12}, "id": {ops.EventFilter{IDs: []string{"x-7"}}, 1}, "about": {ops.EventFilter{IDs: []string{"about-1", "x-3"}}, 21},
		"together": {ops.EventFilter{Kinds: []string{"server"}, Orgs: []string{"acme"}}, 6}, "none": {ops.EventFilter{Kinds: []string{"nothing"}}, 0},
	} {
		ids, next := readOn(t, s, ops.EventQuery{Since: start, EventFilter: tc.f})
		require.Len(t, ids, tc.want, name)
		require.Equal(t, end, next, "%s: it continues behind the events it searched", name)
		page, err := s.Events(t.Context(), ops.EventQuery{Since: start, Limit: 200})
		require.NoError(t, err)
		matched := slices.DeleteFunc(page.Events, func(e ops.Event) bool { return !tc.f.Matches(e) })
		require.Len(t, matched, tc.want, "%s: Go agrees with SQL", name)
		tail, err := s.Events(t.Context(), ops.EventQuery{Tail: 4, Limit: 50, EventFilter: tc.f})
		require.NoError(t, err)
		require.Len(t, tail.Events, min(4, tc.want), name)
		require.Equal(t, end, tail.Next)
		if len(ids) > 0 {
			require.Equal(t, ids[len(ids)-1], tail.Events[len(tail.Events)-1].ID, "%s: the newest comes last", name)
		}
	}
}

// TestForeignCursorIsRefused, as is a pruned one: its position in the feed is unknown.
func TestForeignCursorIsRefused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	for _, bad := range []string{"", "x", "1", "1-", "-1", "1-x", "18446744073709551616-1", "1-9223372036854775808", "1--1"} {
		if bad != "" {
			_, err := s.Events(ctx, ops.EventQuery{Since: bad, Limit: 1})
			code(t, err, prego.CodeInvalidField)
		}
	}
	start := startOfTest(t, s)
	for i := range 6 {
		exec(t, s, fmt.Sprintf(`INSERT INTO events (kind, id, step, at) VALUES ('instance', 's-%d', 'x', now() - make_interval(days => %d))`, i, 10-i))
	}
	var places []string
	eventually(t, s, ops.EventQuery{Since: start}, 6)
	page, err := s.Events(ctx, ops.EventQuery{Since: start, Limit: 50})
	require.NoError(t, err)
	for _, e := range page.Events {
		places = append(places, e.Cursor)
	}
	gone := func(cursor string) {
		t.Helper()
		_, err := s.Events(ctx, ops.EventQuery{Since: cursor, Limit: 50})
		code(t, err, prego.CodeEventsGone)
		require.ErrorContains(t, err, "since")
	}
	last, err := ops.ParseEventCursor(places[5])
	require.NoError(t, err)
	gone(ops.EventCursor{Xid: last.Xid, Seq: last.Seq + 1}.String())      // never existed: a primary was lost with it
	gone(ops.EventCursor{Xid: last.Xid + 1_000_000, Seq: 1}.String())     // of another database
	gone(ops.EventCursor{Xid: 1<<64 - 1, Seq: last.Seq}.String())         // the greatest number
	n, err := s.Prune(ctx, ops.PrunedFeed, 8*24*time.Hour+time.Hour, 100) // the first two
	require.NoError(t, err)
	require.Equal(t, 2, n)
	gone(start)
	gone(places[0])
	ids, _ := readOn(t, s, ops.EventQuery{Since: places[1]})
	require.Equal(t, []string{"s-2", "s-3", "s-4", "s-5"}, ids, "a reader of the pruned events has missed nothing")
	_, err = s.Prune(ctx, ops.PrunedFeed, time.Hour, 100)
	require.NoError(t, err)
	require.Equal(t, places[5], endOfFeed(t, s), "an empty feed continues where it ended")
	ids, _ = readOn(t, s, ops.EventQuery{Since: places[5]})
	require.Empty(t, ids)
	gone(places[4])

	// A copy in a cluster whose transactions have smaller numbers.
	exec(t, s, `INSERT INTO events (xid, kind, id, step) VALUES ('9000000000000', 'instance', 'foreign', 'x'), ('9000000000000', 'server', 'foreign', 'line')`)
	exec(t, s, `UPDATE pruned SET through_xid = '9000000000001' WHERE what = 'events'`)
	gone("9000000000000-" + fmt.Sprint(last.Seq+1))
	from := endOfFeed(t, s)
	exec(t, s, `INSERT INTO events (kind, id, step) VALUES ('server', 'own', 'x')`)
	ids, next := eventually(t, s, ops.EventQuery{Since: from}, 1)
	require.Equal(t, []string{"own"}, ids)
	_, err = s.Prune(ctx, ops.PrunedFeed, time.Hour, 100)
	require.NoError(t, err)
	require.Equal(t, 1, count(t, s, `events WHERE id = 'foreign'`), "an event whose number is still to come is deleted")
	require.Equal(t, 1, count(t, s, `server_events e JOIN events f ON f.seq = e.event_id WHERE server_id = 'foreign' AND f.xid IS NULL`), "a line stays on its timeline")
	ids, _ = readOn(t, s, ops.EventQuery{Since: next})
	require.Empty(t, ids)
}

// toldRows are rows of every table that the feed reports, and changes of each state.
const toldRows = `
INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb, policy, request_hash, state, created_by) VALUES ('t-1', 'one', 'acme', 'eu', 'trial', 1, 1, 'shared', '', 'active', 'ann');
INSERT INTO scaling_events (region, role, trigger, requested, server_ids, workflow_id, round) VALUES ('eu', 'app', 'threshold', 1, '{app-1}', 'w', '1');
UPDATE scaling_events SET finished_at = now();
INSERT INTO fleets (fleet_id, request_hash, role, infra_provider, min_size, max_size, spec, created_by) VALUES ('web', '', 'app', 'hetzner', 0, 1, '{}', 'ann');
INSERT INTO fleet_actions (fleet_id, seq, action, inputs, status, cause, driven_by, requested_by) VALUES ('web', 1, 'NODE_CREATE', '{}', 'queued', 'operator', 'fleet', 'ann');
INSERT INTO fleet_action_steps (fleet_id, seq, server_id, op, region, round) VALUES ('web', 1, 'app-1', 'create', 'eu', 1);
UPDATE fleet_action_steps SET state = 'done';
UPDATE fleet_actions SET status = 'succeeded';
INSERT INTO apps (app_id, org_id, name, created_by) VALUES ('app-1', 'acme', 'shop', 'ann');
INSERT INTO envs (env_id, app_id, org_id, name, region, created_by) VALUES ('env-1', 'app-1', 'acme', 'prod', 'eu', 'ann');
INSERT INTO process_groups (group_id, env_id, org_id, region, name, spec, memory_limit_bytes, cpu_request, replicas, created_by) VALUES ('grp-1', 'env-1', 'acme', 'eu', 'web', '{}', 1, 1, 1, 'ann');
UPDATE process_groups SET status = 'unschedulable', status_reason = 'no_capacity_memory';
UPDATE process_groups SET status = 'running', status_reason = '', deploy_status = 'succeeded';
UPDATE process_groups SET status = 'running', updated_at = now();
INSERT INTO instances (instance_id, group_id, org_id, server_id, release, memory_limit_bytes, cpu_request, number, spec, state) VALUES ('ins-1', 'grp-1', 'acme', 'app-1', 1, 1, 1, 1, '{}', 'booting');
UPDATE instances SET state = 'running', healthy = true;
UPDATE instances SET healthy = false;
INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, status, created_by) VALUES ('vol-1', 'acme', 'eu', 'fsn1', 'data', 10000000000, 'hetzner', 'x', 'pending', 'ann');
UPDATE volumes SET status = 'ready';
UPDATE volumes SET deleted_at = now();
INSERT INTO volume_attachments (attachment_id, org_id, volume_id, group_id, mount_path, created_by) VALUES ('vat-1', 'acme', 'vol-1', 'grp-1', '/data', 'ann');
UPDATE volume_attachments SET server_id = 'app-1';
UPDATE volume_attachments SET server_id = NULL;
INSERT INTO ipv4_allocations (allocation_id, org_id, env_id, provider, name, location, status, created_by) VALUES ('ip4-1', 'acme', 'env-1', 'hetzner', 'y', 'fsn1', 'pending', 'ann');
UPDATE ipv4_allocations SET reason = 'ipam_exhausted';
INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, requested_by, site, database_name, from_server_id) VALUES ('mov-1', 'acme', 't-1', 1, 'ann', 'one', 'd', 'app-1');
UPDATE tenant_moves SET state = 'cancelled', finished_at = now();
INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, created_by) VALUES ('bak-1', 'acme', 't-1', 'app-1', 'one', 'manual', 'ann');
UPDATE backups SET state = 'failed', reason = 'dump_failed', finished_at = now();
UPDATE backups SET held_at = now();
UPDATE backups SET held_at = NULL;
UPDATE backups SET verified_at = now();
INSERT INTO snapshots (snapshot_id, org_id, tenant_id, status, server_id, site, created_by) VALUES ('snp-1', 'acme', 't-1', 'queued', 'app-1', 'one', 'ann');
UPDATE snapshots SET status = 'succeeded';
INSERT INTO restore_jobs (job_id, org_id, tenant_id, snapshot_id, status, created_by) VALUES ('rst-1', 'acme', 't-1', 'snp-1', 'queued', 'ann');
UPDATE restore_jobs SET status = 'failed';
INSERT INTO volume_restores (restore_id, org_id, volume_id, backup_id, created_by) VALUES ('vrs-1', 'acme', 'vol-1', 'bak-1', 'ann');
UPDATE volume_restores SET status = 'failed', finished_at = now();
INSERT INTO drills (drill_id, org_id, tenant_id, backup_id, server_id, created_by) VALUES ('drl-1', 'acme', 't-1', 'bak-1', 'app-1', 'ann');
UPDATE drills SET state = 'passed', finished_at = now();
INSERT INTO certificates (certificate_id, names, challenge, org_id, created_by) VALUES ('crt-1', '{shop.example.com}', 'http-01', 'acme', 'prego');
UPDATE certificates SET failures = 1, reason = 'rate_limited';
UPDATE certificates SET failures = 0;
UPDATE certificates SET version = 1, reason = '';
UPDATE certificates SET status = 'retired', retired_at = now();
INSERT INTO rebalances (rebalance_id, requested_by, at_once, max_failures, remove_servers, monthly, frees, closed) VALUES ('reb-1', 'ann', 1, 0, false, 1, '{}', '{}');
UPDATE rebalances SET state = 'done', finished_at = now();
INSERT INTO patch_waves (wave_id, requested_by) VALUES ('wav-1', 'ann');
INSERT INTO stack_releases (name, image, rings, created_by) VALUES ('v15', 'i', '[]', 'ann');
UPDATE stack_releases SET status = 'rolling';
INSERT INTO agent_releases (version, serial, sha256, document, signature, rings, created_by) VALUES ('1.2.3', 1, '', '', '', '[]', 'ann');
UPDATE agent_releases SET status = 'paused';
INSERT INTO golden_images (image_id, provider, region, base_image, architecture, created_by) VALUES ('img-1', 'hetzner', 'eu', 'debian-13', 'x86', 'ann');
UPDATE golden_images SET status = 'ready', provider_image_id = '1', verified_at = now();
INSERT INTO login_links (link_id, kind, hash, access_role, org_id, name, created_by, expires_at) VALUES ('link-1', 'join', sha256('1'), 'developer', 'acme', 'Bob', 'ann', now());
UPDATE login_links SET used_at = now();`

// The expected report of each row: step, status, org, subject, reason, actor.
var wantTold = map[string]string{
	"agent_release 1.2.3": "created created ann; paused paused",
	"app app-1":           "create acme ann",
	"attachment vat-1":    "attached acme vol-1,grp-1,app-1; detached acme vol-1,grp-1,app-1",
	"backup bak-1":        "queued queued acme t-1,app-1 ann; failed failed acme t-1,app-1 dump_failed; held failed acme t-1,app-1 dump_failed; released failed acme t-1,app-1 dump_failed; verified failed acme t-1,app-1 dump_failed",
	"certificate crt-1":   "pending pending acme shop.example.com prego; attempt_failed pending acme shop.example.com rate_limited; issued pending acme shop.example.com; retired retired acme shop.example.com",
	"drill drl-1":         "running running acme t-1,bak-1,app-1 ann; passed passed acme t-1,bak-1,app-1",
	"fleet web":           "NODE_CREATE queued web/1 ann; server_create done web/1,app-1; NODE_CREATE succeeded web/1",
	"group grp-1":         "unschedulable unschedulable acme env-1 no_capacity_memory; deploy_succeeded running acme env-1; running running acme env-1",
	"image img-1":         "building building ann; ready ready",
	"instance ins-1":      "booting booting acme grp-1,app-1; running running acme grp-1,app-1; unhealthy running acme grp-1,app-1",
	"ipv4 ip4-1":          "pending pending acme env-1 ipam_exhausted",
	"login_link link-1":   "created open acme ann; used used acme",
	"move mov-1":          "queued queued acme t-1,app-1 ann; cancelled cancelled acme t-1,app-1",
	"org acme":            "quota_set acme max_apps more ann",
	"patch_wave wav-1":    "created ann",
	"rebalance reb-1":     "running running ann; done done",
	"release v15":         "created created ann; rolling rolling",
	"restore rst-1":       "queued queued acme t-1,snp-1 ann; failed failed acme t-1,snp-1",
	"restore vrs-1":       "queued queued acme vol-1,bak-1 ann; failed failed acme vol-1,bak-1",
	"scaling 1":           "threshold open eu/app,app-1; finished finished eu/app,app-1",
	"server app-1":        "requested provisioning operator",
	"snapshot snp-1":      "queued queued acme t-1,app-1 ann; succeeded succeeded acme t-1,app-1",
	"tenant t-1":          "suspend suspended acme unpaid ann",
	"volume vol-1":        "ready ready acme; gone ready acme",
}

// TestFeedReportsChanges of each kind of object, including its creation.
func TestFeedReportsChanges(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := tenantStore(t)
	start := startOfTest(t, s)
	_, _, err := s.CreateServer(ctx, server.CreateRequest{ServerID: "app-1", Role: prego.RoleApp, Region: prego.RegionEU, InfraProvider: prego.ProviderHetzner}, "ann")
	require.NoError(t, err)
	exec(t, s, toldRows)
	require.NoError(t, s.inTx(ctx, "events", func(tx *txn) error {
		for _, e := range []org.Event{
			{Type: "org.quota_set", Subject: "max_apps", Reason: "more"}, {Type: "app.create", Subject: "app-1"}, {Type: "backup.create", Subject: "bak-1"},
		} {
			e.OrgID, e.Actor = "acme", "ann"
			if err := orgEvent(ctx, tx, e, nil); err != nil {
				return err
			}
		}
		return tenantEvent(ctx, tx, tenant.Event{TenantID: "t-1", ToState: tenant.Suspended, Step: "suspend", Actor: "ann", Reason: "unpaid"}, "")
	}))
	told := map[string]string{}
	require.Eventually(t, func() bool {
		page, err := s.Events(ctx, ops.EventQuery{Since: start, Limit: 200})
		require.NoError(t, err)
		for _, e := range page.Events {
			said := strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s %s", e.Step, e.Status, e.OrgID, strings.Join(e.About, ","), e.Reason, e.Actor))
			if k := e.Kind + " " + e.ID; !strings.HasSuffix(told[k], said) {
				told[k] += "; " + said
			}
		}
		start = page.Next
		return strings.Contains(told["tenant t-1"], "suspend")
	}, 30*time.Second, 5*time.Millisecond)
	for k, v := range told {
		told[k] = strings.Join(strings.Fields(strings.TrimPrefix(v, "; ")), " ")
	}
	require.Equal(t, wantTold, told)
	// Each trigger's table is among them.
	tables, err := values[string](ctx, s.pool, `SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE '%\_told'`)
	require.NoError(t, err)
	require.Len(t, tables, 21)
	for _, table := range tables {
		require.Contains(t, toldRows, table)
	}
}

// TestEventsAreReadByIndex: the events of an object or org are found without scanning or sorting the whole table.
func TestEventsAreReadByIndex(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pgtest.FillLarge(t, url, 2000,
		`INSERT INTO events (kind, id, step) SELECT CASE WHEN i % 3 = 0 THEN 'server' ELSE 'tenant' END, 's-' || i % 500, 'x' FROM generate_series(1, 20000) i`,
		`INSERT INTO events (kind, id, step) SELECT 'instance', 'i-' || i, 'x' FROM generate_series(1, 20000) i`)
	pool, err := Open(t.Context(), url, 2, nil)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := New(pool)
	exec(t, s, `ANALYZE events`)
	const ofOrg = `SELECT * FROM org_events WHERE org_id = 'o-0' AND `
	for sql, index := range map[string]string{
		`SELECT * FROM server_events WHERE server_id = 's-3' ORDER BY event_id DESC LIMIT 10`:                             "events_of_timeline",
		`SELECT * FROM tenant_lifecycle_events WHERE tenant_id = 's-4' ORDER BY event_id DESC LIMIT 10`:                   "events_of_timeline",
		`SELECT * FROM org_events WHERE org_id = 'o-7' ORDER BY event_id DESC LIMIT 10`:                                   "org_events_by_org",
		ofOrg + `subject = 'g-100' ORDER BY event_id DESC LIMIT 10`:                                                       "org_events_by_subject",
		ofOrg + `actor = 'ann' ORDER BY event_id DESC LIMIT 10`:                                                           "org_events_by_actor",
		ofOrg + `type ^@ 'volume.c' ORDER BY event_id DESC LIMIT 10`:                                                      "org_events_by_type",
		`SELECT event_id FROM org_events ORDER BY event_id LIMIT 10`:                                                      "org_events_age",
		`SELECT xid, seq FROM events WHERE ` + onlyInFeed + ` ORDER BY xid, seq LIMIT 10`:                                 "events_of_feed",
		`SELECT xid, seq FROM events WHERE (xid, seq) > ('5', 1) AND xid < '9000000000' ORDER BY xid, seq LIMIT 10`:       "events_order",
		`SELECT FROM events WHERE kind = 'server' AND id = 's-3' AND dedup_key = 'first_heartbeat/1' FOR KEY SHARE`:       "events_once",
		`SELECT FROM server_events WHERE server_id = 's-3' AND step = 'handshake_refused' AND at > now() - interval '1h'`: "events_of_timeline",
	} {
		plan, err := values[string](t.Context(), s.pool, `EXPLAIN (COSTS OFF) `+sql)
		require.NoError(t, err)
		require.Contains(t, strings.Join(plan, "\n"), index, sql)
	}
}
