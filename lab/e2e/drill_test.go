package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/tenant"
)

// drilled drills a backup, and waits until it is over and thrown away.
func (c *cell) drilled(id string, want tenant.DrillState) api.Drill {
	c.t.Helper()
	var d api.Drill
	eventually(c.t, func() bool { return c.number(`SELECT count(*) FROM drills WHERE cleared_at IS NULL`) == 0 }, patience, 50*time.Millisecond)
	c.post("/v1/tenants/"+id+"/drills", nil, http.StatusCreated, &d)
	eventually(c.t, func() bool {
		var all api.DrillPage
		c.send(http.MethodGet, "/v1/tenants/"+id+"/drills", nil, http.StatusOK, &all)
		d = all.Drills[0]
		return d.State.Ended()
	}, patience, 50*time.Millisecond)
	require.Equal(c.t, want, d.State, "%s %s", deref(d.Reason), deref(d.Message))
	eventually(c.t, func() bool { return c.number(`SELECT count(*) FROM drills WHERE cleared_at IS NULL`) == 0 }, patience, 50*time.Millisecond)
	return d
}

// TestABackupIsVerifiedByADrill: restored on a server, opened, compared, asked, thrown away. Each
// kind of damage is found, and a backup that was not restored is not verified.
func TestABackupIsVerifiedByADrill(t *testing.T) {
	t.Parallel()
	s := s3test.Start(t)
	crash := filepath.Join(t.TempDir(), "crash")
	c := newCell(t, options{vars: backupVars(s, map[string]string{"PREGO_DRILL_EVERY": "1h", "PREGO_TEST_CRASH": crash})})
	c.org("acme", "")
	app := c.sharedFleet(0)
	id := c.tenant("alpha", prego.PlanStarter, nil)
	db := c.settledTenant(id, tenant.Active).Allocation.DatabaseName
	c.todo(app, db, "one", "kept")
	c.noise(app, "alpha.sites.test", "noise", 1<<20)
	verified := func() api.Tenant {
		return c.awaitTenant(id, "verified", func(tn api.Tenant) bool { return tn.LastRestorable.Verified })
	}

	// By schedule, and in each further round on request, with a death on the way.
	m := &mortals{cell: c, crash: crash, s3: s}
	for i, round := range rounds(t, 1, []string{"drill/start", "stored-restore/downloaded", "stored-restore/opened", "drill/fetched", "drill/restored", "drill/erased"}, []string{"worker", "agent", "agentgw", "s3"}) {
		m.play(round, func() {
			if i == 0 {
				c.backedUp(id)
				return
			}
			c.post("/v1/tenants/"+id+"/drills", nil, http.StatusCreated, nil)
		})
		verified()
		eventually(t, func() bool {
			return c.number(`SELECT count(*) FROM drills WHERE state = 'passed' AND cleared_at IS NOT NULL`) == i+1
		}, 2*patience, 50*time.Millisecond)
	}
	require.Equal(t, 1, c.number(`SELECT count(*) FROM drills WHERE created_by = 'schedule'`))
	var all api.DrillPage
	c.send(http.MethodGet, "/v1/tenants/"+id+"/drills", nil, http.StatusOK, &all)
	require.EqualValues(t, 1, *all.Drills[0].Files)
	require.Greater(t, *all.Drills[0].Rows, int64(1))
	require.NotContains(t, strings.Join(c.hostSites(prego.ServerID(app)), " "), "drill-", "nothing is left")
	require.Zero(t, inMariaDB[int](c, app, db, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'pool\\_drill%'"))
	require.Zero(t, c.number(`SELECT count(*) FROM site_pool WHERE pool_site_id LIKE 'dr-%'`))
	require.Equal(t, []string{"kept"}, c.todos(app, db), "the tenant is not touched")
	writeHistory(t, "drill-passed", history(t, tenant.DrillWorkflowID(all.Drills[0].DrillId)))

	// Damage: the last good one stays verified, the damaged ones never are.
	for name, damage := range map[string]func(b api.Backup) string{
		"a bit": func(b api.Backup) string {
			change(t, s, b)
			return "digest_mismatch"
		},
		"cut": func(b api.Backup) string {
			require.NoError(t, os.Truncate(s.File(deref(b.Object)), *b.Bytes/2))
			return ""
		},
		"another key": func(b api.Backup) string {
			c.exec(`UPDATE backups b SET sealed_identity = o.sealed_identity, key_id = o.key_id FROM backups o WHERE b.backup_id = $1 AND o.backup_id <> b.backup_id AND o.state = 'stored'`, b.BackupId)
			return "sealed"
		},
		"gone": func(b api.Backup) string {
			require.NoError(t, os.Remove(s.File(deref(b.Object))))
			return "backup_missing"
		},
	} {
		bad := c.backedUp(id)
		want := damage(bad)
		d := c.drilled(id, tenant.DrillFailed)
		t.Logf("%s: %s: %s", name, deref(d.Reason), deref(d.Message))
		require.Equal(t, bad.BackupId, d.BackupId)
		require.NotEmpty(t, deref(d.Reason), name)
		if want != "" {
			require.Equal(t, want, deref(d.Reason), name)
		}
		c.send(http.MethodGet, "/v1/tenants/"+id+"/backups/"+bad.BackupId, nil, http.StatusOK, &bad)
		require.False(t, bad.Verified, name)
		require.Equal(t, 1, c.number(`SELECT count(*) FROM backup_schedules WHERE drill_failed`))
		require.NotContains(t, strings.Join(c.hostSites(prego.ServerID(app)), " "), "drill-", name)
		if name == "a bit" {
			writeHistory(t, "drill-failed", history(t, tenant.DrillWorkflowID(d.DrillId)))
		}
	}
	c.backedUp(id)
	c.drilled(id, tenant.DrillPassed)
	require.Zero(t, c.number(`SELECT count(*) FROM backup_schedules WHERE drill_failed`))
	require.True(t, verified().LastRestorable.Verified)
}
