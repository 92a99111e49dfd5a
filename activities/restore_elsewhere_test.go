package activities_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/internal/objects"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/ops/impact"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workload"
)

// takesAll is a host that downloads every part.
type takesAll struct{}

func (takesAll) Transfer(context.Context, prego.ServerID, string, wire.TransferRequest) (wire.TransferResponse, error) {
	return wire.TransferResponse{}, nil
}

// choosy are hosts that refuse some commands with the words that their agents have for it.
type choosy struct {
	*hosts
	refuses map[string]string // by verb, or by verb and a word of its arguments
}

func (h *choosy) Bench(ctx context.Context, c server.BenchCommand) (string, error) {
	out, err := h.hosts.Bench(ctx, c)
	for what, says := range h.refuses {
		words := strings.Fields(what)
		if verb(c.Args) == words[0] && strings.Contains(strings.Join(c.Args, " "), words[len(words)-1]) {
			return "", &server.CommandError{Kind: "bench", ExitCode: 1, Stderr: says, Permanent: true, Code: server.CommandFailed}
		}
	}
	return out, err
}

func (h *choosy) BenchAll(ctx context.Context, cs []server.BenchCommand) (done int, err error) {
	for _, c := range cs {
		if _, err := h.Bench(ctx, c); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

// losing is a tenant whose server is lost, with backups bak-3, the newest, to bak-1, and a place on a surviving server.
type losing struct {
	*placing
	*steps
	choosy *choosy
	bucket *objects.Store
	ref    tenant.Ref
	site   string // the tenant's
	old    string // its database that is, or was, on db-0
}

func newLosing(t *testing.T, lost prego.ServerID, named prego.BackupID) *losing {
	t.Helper()
	l := newBackedUp(t)
	role := map[prego.ServerID]prego.Role{"app-0": prego.RoleApp, "db-0": prego.RoleDBShard}[lost]
	_, err := l.placing.Store.LoseServer(impact.By(t.Context(), "test"), lost, "its disk died", "ann")
	require.NoError(t, err)
	require.NoError(t, l.placing.Store.Terminate(t.Context(), lost))
	l.replace(role)
	back, _, err := l.placing.Store.RestoreElsewhere(t.Context(), l.ref.TenantID, named, "rst-1", "ann")
	require.NoError(t, err)
	l.ref.Generation = back.Generation
	value, err := l.env.ExecuteActivity(l.PlaceTenant, l.ref)
	require.NoError(t, err)
	var placed activities.PlaceResult
	require.NoError(t, value.Get(&placed))
	require.True(t, placed.Placed)
	l.hosts.ran = nil
	return l
}

// replace adds a server that takes the tenants of a lost one.
func (l *losing) replace(role prego.Role) {
	l.Server("another-1", role, "")
	l.Exec(`UPDATE servers SET network_id = 'n-1', private_address = '10.64.0.99' WHERE server_id = 'another-1'`)
}

// newBackedUp is the tenant with its backups before the loss.
func newBackedUp(t *testing.T) *losing {
	t.Helper()
	p, s, ref := networked(t, false)
	l := &losing{
		placing: p, steps: s, ref: ref, choosy: &choosy{hosts: s.hosts, refuses: map[string]string{}},
		site: p.Text(`SELECT slug FROM tenants`) + ".sites.test",
	}
	s3 := s3test.Start(t)
	var err error
	l.bucket, err = objects.New(objects.Config{
		Endpoint: s3.Endpoint, Bucket: s3.Bucket, Region: s3.Region, AccessKey: s3.AccessKey,
		SecretKey: s3.SecretKey, PathStyle: true, MayDelete: s3test.MayDelete,
	})
	require.NoError(t, err)
	s.hosts.says = map[string]string{"check-restored": `{"tables":7,"rows":70,"files":3}`}
	s.Settings.Losses.For = time.Minute
	s.Bench = l.choosy
	s.Restorer = &activities.Backups{
		Store: p.Store, Objects: l.bucket, Vault: openVault{}, Hosts: takesAll{}, Audit: p.Store, Tenants: s.Tenants,
		Metrics: activities.NewBackupMetrics(prometheus.NewRegistry()), Log: zap.NewNop(), Settings: activities.BackupSettings{URLTTL: time.Minute},
	}
	_, err = s.env.ExecuteActivity(s.BuildTenant, ref)
	require.NoError(t, err)
	l.old = p.Text(`SELECT database_name FROM tenant_allocations`)
	for i := 1; i <= 3; i++ {
		id := fmt.Sprintf("bak-%d", i)
		require.NoError(t, l.bucket.Put(t.Context(), id, []byte("0123456789")))
		p.Exec(`INSERT INTO backups (backup_id, org_id, tenant_id, server_id, site, kind, state, created_by, taken_at, sealed_identity, object_key, manifest_key, bytes, part_bytes, parts, sha256, plain_sha256, manifest_sha256)
			SELECT $1, org_id, tenant_id, 'app-0', site, 'manual', 'stored', 'test', now() - make_interval(hours => 4 - $2), 'x', $1, 'm', 10, 10, 1, 'x', 'x', 'x' FROM tenants`, id, i)
	}
	return l
}

// build runs the step that restores the tenant, and drops what there is if it fails, as the run does.
func (l *losing) build() error {
	l.T.Helper()
	_, err := l.env.ExecuteActivity(l.BuildTenant, l.ref)
	if err != nil {
		_, dropped := l.env.ExecuteActivity(l.DropSite, activities.DropInput{TenantID: l.ref.TenantID})
		require.NoError(l.T, dropped)
	}
	return err
}

// at is when a command was first asked for, with all of these words; -1 for never.
func (l *losing) at(words ...string) int {
	return slices.IndexFunc(l.hosts.ran, func(c []string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(c, w) })
	})
}

// nothingErased: neither the database nor the site that the tenant had.
func (l *losing) nothingErased() {
	l.T.Helper()
	require.Equal(l.T, -1, l.at("erase-database", l.old), "%v", l.hosts.ran)
	require.Equal(l.T, -1, l.at("erase-site", l.site), "%v", l.hosts.ran)
	require.Equal(l.T, -1, l.at("new-site", l.site), "%v", l.hosts.ran)
	require.Equal(l.T, -1, l.at("grant-database", l.old), "%v", l.hosts.ran)
	require.Zero(l.T, l.Number(`SELECT count(*) FROM tenant_losses WHERE cleared_at IS NOT NULL`))
}

// survivors are the servers that may be lost, with what the other one still has.
var survivors = map[string]prego.ServerID{"the database is alive": "app-0", "the site's files are alive": "db-0"}

// TestLossIsErasedAfterItsReplacementStands: the backup is fetched, opened, restored and compared beside what the lost
// place left; then that goes, and the site gets its name.
func TestLossIsErasedAfterItsReplacementStands(t *testing.T) {
	t.Parallel()
	for name, lost := range survivors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLosing(t, lost, "")
			require.NoError(t, l.build())
			database := l.Text(`SELECT database_name FROM tenant_allocations WHERE released_at IS NULL`)
			require.NotEqual(t, l.old, database)
			temporary := l.Text(`SELECT site_name FROM tenant_allocations WHERE released_at IS NULL`)
			order := []int{l.at("new-site", temporary, database), l.at("open-backup", temporary), l.at("restore", temporary), l.at("check-restored", temporary)}
			if lost == "app-0" {
				order = append(order, l.at("db-0", "erase-database", l.old))
			} else {
				order = append(order, l.at("app-0", "erase-site", l.site, l.old))
			}
			order = append(order, l.at("promote-site", temporary, l.site), l.at("connect-cache", l.site))
			require.True(t, slices.IsSorted(order) && order[0] >= 0, "%v of %v", order, l.hosts.ran)
			require.Equal(t, 1, l.Number(`SELECT count(*) FROM tenants WHERE state = 'active' AND site = $1`, l.site))
			require.Equal(t, 1, l.Number(`SELECT count(*) FROM tenant_losses WHERE cleared_at IS NOT NULL AND backup_id = 'bak-3'`))
			require.Equal(t, 1, l.Number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = 'restored' AND message LIKE 'backup bak-3 of %. Changes made in the % min before the server was lost are lost'`))
		})
	}
}

// TestRestoreSkipsBackupsThatAreGoneOrUnreadable: a missing one, then one whose bytes are others. Each is marked, and
// the next older one is restored.
func TestRestoreSkipsBackupsThatAreGoneOrUnreadable(t *testing.T) {
	t.Parallel()
	for name, lost := range survivors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLosing(t, lost, "")
			require.NoError(t, l.bucket.Delete(t.Context(), "bak-3"))
			l.choosy.refuses["open-backup bak-2"] = "site: digest_mismatch: another digest"
			require.NoError(t, l.build())
			require.Equal(t, 1, l.Number(`SELECT count(*) FROM backups WHERE backup_id = 'bak-3' AND missing_at IS NOT NULL AND verify_message <> ''`))
			require.Equal(t, 1, l.Number(`SELECT count(*) FROM backups WHERE backup_id = 'bak-2' AND verify_message LIKE '%digest_mismatch%'`))
			require.Equal(t, 1, l.Number(`SELECT count(*) FROM backups WHERE backup_id = 'bak-1' AND verify_message = '' AND verified_at IS NOT NULL`))
			require.Equal(t, 2, l.Number(`SELECT count(*) FROM tenant_lifecycle_events WHERE step = 'backup_skipped'`))
			require.Equal(t, 1, l.Number(`SELECT count(*) FROM restore_jobs WHERE backup_id = 'bak-1' AND status = 'succeeded' AND message LIKE 'backup bak-2 can''t be restored%'`))
			require.Equal(t, 1, l.Number(`SELECT count(*) FROM tenant_losses WHERE backup_id = 'bak-1'`))
			require.Negative(t, l.at("restore", "in-a2-bak-2"), "it was never restored")
		})
	}
}

// TestFailedRestoreErasesNothing, at any point before the restored site stands, and in any cleanup after it.
func TestFailedRestoreErasesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		named  prego.BackupID
		gone   []string
		refuse map[string]string
		says   string
		marked int
	}{
		"all backups are gone":     {"", []string{"bak-1", "bak-2", "bak-3"}, nil, "is not in the storage", 3},
		"none can be read":         {"", nil, map[string]string{"open-backup bak": "site: backup_unreadable: no"}, "backup_unreadable", 3},
		"the named backup is gone": {"bak-3", []string{"bak-3"}, nil, "it was named", 1},
		"the restore fails":        {"", nil, map[string]string{"restore": "Frappe can't"}, "Frappe can't", 0},
		"something is not in it":   {"", nil, map[string]string{"check-restored": "site: restore_incomplete: 1 of 7 tables"}, "restore_incomplete", 1},
		"the site can't be made":   {"", nil, map[string]string{"new-site": "no"}, "no", 0},
	} {
		for survivor, lost := range survivors {
			t.Run(name+"/"+survivor, func(t *testing.T) {
				t.Parallel()
				l := newLosing(t, lost, c.named)
				for _, object := range c.gone {
					require.NoError(t, l.bucket.Delete(t.Context(), object))
				}
				l.choosy.refuses = c.refuse
				err := l.build()
				var ended *temporal.ApplicationError
				require.ErrorAs(t, err, &ended)
				require.True(t, ended.NonRetryable())
				require.Contains(t, ended.Message(), c.says)
				l.nothingErased()
				require.Equal(t, c.marked, l.Number(`SELECT count(*) FROM backups WHERE verify_message <> ''`))
				require.NotEqual(t, -1, l.at("erase-site", l.Text(`SELECT site_name FROM tenant_allocations WHERE released_at IS NULL`)), "the created site is dropped")
				// The place is freed; a repeated step has nothing to drop, and keeps the lost site.
				require.NoError(t, l.placing.Store.FreePlace(t.Context(), l.ref.TenantID, "failed_restore", "", tenant.SiteDropped, nil))
				_, err = l.env.ExecuteActivity(l.DropSite, activities.DropInput{TenantID: l.ref.TenantID})
				require.NoError(t, err)
				l.nothingErased()
			})
		}
	}
}

// TestRestoredSiteIsNotRestoredTwice: a step that died after the site was restored continues with its name.
func TestRestoredSiteIsNotRestoredTwice(t *testing.T) {
	t.Parallel()
	l := newLosing(t, "db-0", "")
	l.choosy.refuses["promote-site"] = "no"
	_, err := l.env.ExecuteActivity(l.BuildTenant, l.ref)
	require.Error(t, err)
	require.Equal(t, 1, l.Number(`SELECT count(*) FROM tenants t JOIN tenant_allocations a USING (tenant_id) WHERE a.released_at IS NULL AND t.site = a.site_name`))
	l.choosy.refuses, l.hosts.ran = nil, nil
	require.NoError(t, l.build())
	require.Equal(t, []int{-1, -1, -1}, []int{l.at("new-site"), l.at("restore"), l.at("erase-site")})
	require.Equal(t, 1, l.Number(`SELECT count(*) FROM tenants WHERE state = 'active' AND site = $1`, l.site))
}

// TestMoveLeavesALostTenantItsCopies: what a move has on other servers goes when the tenant is restored, not before.
func TestMoveLeavesALostTenantItsCopies(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]tenant.MoveState{"cleared": tenant.MoveSwitched, "undone": tenant.MoveFrozen} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLosing(t, "app-0", "")
			l.Server("app-9", prego.RoleApp, "")
			l.Exec(`INSERT INTO tenant_moves (move_id, org_id, tenant_id, allocation_id, requested_by, site, database_name, from_server_id, to_server_id, moves_server, state, from_shard_id, from_pool_id, frozen_at)
				SELECT 'mov-1', o.org_id, o.tenant_id, a.allocation_id, 'ann', $1, $2, 'app-9', 'app-0', true, $3, a.db_shard_id, a.redis_pool_id, now() FROM tenants o JOIN tenant_allocations a USING (tenant_id) WHERE a.released_at IS NOT NULL`, l.site, l.old, state)
			m := &activities.Moves{Store: l.placing.Store, Tenants: l.Tenants, Backups: &activities.Backups{Store: l.placing.Store, Tenants: l.Tenants}, Log: zap.NewNop()}
			l.env.RegisterActivity(m)
			step := m.ClearMove
			if state == tenant.MoveFrozen {
				step = m.UndoMove
			}
			_, err := l.env.ExecuteActivity(step, prego.MoveID("mov-1"))
			var waits *temporal.ApplicationError
			require.ErrorAs(t, err, &waits)
			require.Equal(t, activities.ErrTypeMoving, waits.Type())
			require.False(t, waits.NonRetryable())
			require.Empty(t, l.hosts.ran)

			// The restore waits for the move in its turn, once the site stands.
			_, err = l.env.ExecuteActivity(l.BuildTenant, l.ref)
			require.ErrorAs(t, err, &waits)
			require.Equal(t, activities.ErrTypeMoving, waits.Type())
			require.NotEqual(t, -1, l.at("check-restored"))
			l.nothingErased()
			_, err = l.env.ExecuteActivity(step, prego.MoveID("mov-1"))
			require.NoError(t, err)
			l.Exec(`UPDATE tenant_moves SET state = 'done', finished_at = now()`)
			require.NoError(t, l.build())
		})
	}
}

// openedVolumes are hosts that open each backup of a volume but one.
type openedVolumes struct {
	*volumeHosts
	refuses string // its digest
}

func (h openedVolumes) Bench(ctx context.Context, c server.BenchCommand) (string, error) {
	if c.Args[0] != "open-volume" {
		return h.volumeHosts.Bench(ctx, c)
	}
	h.did = append(h.did, "opened "+c.Args[3])
	if c.Args[3] == h.refuses {
		return "", &server.CommandError{Kind: c.Kind, ExitCode: 1, Stderr: "site: digest_mismatch: another digest", Permanent: true, Code: server.CommandFailed}
	}
	return "", nil
}

// TestVolumeCloneSkipsBackupsThatAreGoneOrUnreadable: a missing one, then one whose bytes are others, unless the caller
// named it.
func TestVolumeCloneSkipsBackupsThatAreGoneOrUnreadable(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{false, true} {
		t.Run(fmt.Sprintf("named %t", named), func(t *testing.T) {
			t.Parallel()
			p := newPlacing(t, 4)
			s3 := s3test.Start(t)
			bucket, err := objects.New(objects.Config{
				Endpoint: s3.Endpoint, Bucket: s3.Bucket, Region: s3.Region, AccessKey: s3.AccessKey,
				SecretKey: s3.SecretKey, PathStyle: true, MayDelete: s3test.MayDelete,
			})
			require.NoError(t, err)
			p.Server("srv-1", prego.RoleNode, "")
			p.Exec(`UPDATE servers SET location = 'fsn1', provider_server_id = '1'`)
			p.Exec(`INSERT INTO volumes (volume_id, org_id, region, location, name, size_bytes, provider, provider_name, provider_id, status, created_by)
				VALUES ('vol-a', 'o1', 'eu', 'fsn1', 'a', 10000000000, 'hetzner', 'n', '77', 'ready', 'a')`)
			for i := 1; i <= 3; i++ {
				id := fmt.Sprintf("bak-%d", i)
				require.NoError(t, bucket.Put(t.Context(), id, []byte("0123456789")))
				p.Exec(`INSERT INTO backups (backup_id, org_id, volume_id, server_id, site, kind, state, created_by, taken_at, sealed_identity, object_key, manifest_key, bytes, part_bytes, parts, sha256, plain_sha256, manifest_sha256)
					VALUES ($1, 'o1', 'vol-a', 'srv-1', '', 'manual', 'stored', 'test', now() - make_interval(hours => 4 - $2), 'x', $1, 'm', 10, 10, 1, $1, 'x', 'x')`, id, i)
			}
			cloud := &orgCloud{on: map[string]string{}}
			hosts := &volumeHosts{cloud: cloud, mounted: map[string]bool{}, bytes: 10_000_000_000}
			cloud.hosts = hosts
			a := &activities.Backups{
				Store: p.Store, Objects: bucket, Vault: openVault{}, Hosts: takesAll{}, Audit: p.Store, Tenants: &activities.Tenants{Store: p.Store},
				Metrics: activities.NewBackupMetrics(prometheus.NewRegistry()), Log: zap.NewNop(), Settings: activities.BackupSettings{URLTTL: time.Minute},
				Volumes: &activities.OrgResources{
					Store: p.Store, Hosts: openedVolumes{hosts, "bak-2"}, Infra: map[prego.InfraProviderID]activities.OrgInfra{prego.ProviderHetzner: cloud},
				},
			}
			asked := workload.VolumeRestore{RestoreID: "vrs-1", CreatedBy: "ann"}
			if named {
				asked.BackupID = "bak-3"
			}
			_, _, err = p.Store.CloneVolume(t.Context(), "vol-a", workload.Volume{VolumeID: "vol-b", Name: "b"}, asked, "test")
			require.NoError(t, err)
			p.Exec(`UPDATE volumes SET provider_id = '78', status = 'ready' WHERE volume_id = 'vol-b'`)
			require.NoError(t, bucket.Delete(t.Context(), "bak-3"))
			env := (&testsuite.WorkflowTestSuite{}).NewTestActivityEnvironment()
			env.RegisterActivity(a)
			_, err = env.ExecuteActivity(a.RestoreVolumeFiles, "vrs-1")
			if named {
				require.ErrorContains(t, err, "bak-3 is not in the storage")
				require.Empty(t, hosts.did)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{"opened bak-2", "opened bak-1"}, slices.DeleteFunc(hosts.did, func(did string) bool { return !strings.HasPrefix(did, "opened ") }))
			require.Equal(t, "bak-1", p.Text(`SELECT backup_id FROM volume_restores`))
			require.Equal(t, 1, p.Number(`SELECT count(*) FROM backups WHERE backup_id = 'bak-3' AND missing_at IS NOT NULL`))
			require.Equal(t, 1, p.Number(`SELECT count(*) FROM backups WHERE backup_id = 'bak-2' AND verify_message LIKE '%digest_mismatch%'`))
		})
	}
}
