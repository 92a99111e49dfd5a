package e2e

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/internal/benchjson"
	"github.com/prego/prego/internal/s3test"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// BenchmarkMoveOf1GB prints for how long a site with 1 GB of files can't be written to when it
// moves, while rows are written all the time and 20 files are added to it during the copy.
func BenchmarkMoveOf1GB(b *testing.B) {
	s := s3test.Start(b)
	c := newCell(b, options{vars: backupVars(s, map[string]string{"PREGO_MOVE_GRACE": "1s", "PREGO_BACKUP_PART_BYTES": "67108864", "PREGO_SITE_TIMEOUT": "5m", "PREGO_SITE_STEP_TIMEOUT": "10m", "PREGO_LOG_LEVEL": "warn"})})
	c.org("acme", "")
	app := c.sharedFleet(0)
	const site = "alpha.sites.test"
	id := c.tenant("alpha", prego.PlanStarter, nil)
	database := c.settledTenant(id, tenant.Active).Allocation.DatabaseName
	c.create("app2", prego.RoleApp, server.Spec{})
	c.awaitStatus("app2", server.Active)
	file := func(name string, bytes int) {
		b.Helper()
		noise := make([]byte, bytes)
		_, _ = rand.Read(noise)
		require.NoError(b, os.WriteFile(filepath.Join(c.rootOf(app), wire.BenchDir, "sites", site, "private/files", name), noise, 0o644))
	}
	const large, small = 12, 2000
	for i := range large {
		file(fmt.Sprintf("large-%d", i), 64<<20)
	}
	for i := range small { // 219 MB
		file(fmt.Sprintf("small-%d", i), 110_000)
	}
	of := "/v1/tenants/" + id
	for b.Loop() {
		w := c.typist(app, id, site)
		w.more(5)
		began := time.Now()
		var m api.Move
		c.post(of+"/moves", nil, http.StatusAccepted, &m)
		for i := range 20 {
			file(fmt.Sprintf("later-%d", i), 1<<20)
			time.Sleep(20 * time.Millisecond)
		}
		require.Eventually(b, func() bool {
			c.send(http.MethodGet, of+"/moves/"+m.MoveId, nil, http.StatusOK, &m)
			return m.State.Ended()
		}, 10*time.Minute, 100*time.Millisecond)
		require.Equal(b, tenant.MoveDone, m.State, deref(m.Message))
		rows, _ := w.ends(c, app, database)
		b.Logf("%d MB were copied in %s while the site served, %d kB while it was read-only: %d ms; %d rows, none lost", m.CopiedBytes>>20, m.FrozenAt.Sub(*m.StartedAt).Round(time.Millisecond), m.DeltaBytes>>10, *m.DowntimeMs, rows)
		b.Logf("%s from the request to the old server being cleared", time.Since(began).Round(time.Second))
		require.Less(b, *m.DowntimeMs, int64(10_000))
		benchjson.Record(b, "move_1gb_readonly_ms", float64(*m.DowntimeMs), "ms", 0)
		app = deref(m.ToServerId)
	}
}
