package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/migrations"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
	"github.com/prego/prego/workflows"
)

// TestPostgresAndTemporalKilledWhileAServerBoots kills (SIGKILL) the database, and in a separate run Temporal, during a
// server's provisioning, and starts them again. They keep their accepted data, and requests accepted while Temporal was
// away start soon.
func TestPostgresAndTemporalKilledWhileAServerBoots(t *testing.T) {
	t.Parallel()
	binary, err := devstack.FindTemporal(filepath.Join(repo, ".prego", "bin"))
	require.NoError(t, err)
	for _, victim := range []string{"postgres", "temporal"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			dir, err := os.MkdirTemp("/var/tmp", "prego-outage-")
			require.NoError(t, err)
			require.NoError(t, os.Chmod(dir, 0o755))
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			pgConfig := devstack.PostgresConfig{Dir: filepath.Join(dir, "pg"), LogFile: filepath.Join(dir, "pg.log")}
			pg, err := devstack.StartPostgres(ctx, pgConfig)
			require.NoError(t, err)
			t.Cleanup(func() { pg.Stop(10 * time.Second) })
			require.NoError(t, pg.EnsureDatabase(ctx, "prego"))
			require.NoError(t, migrations.Up(ctx, pg.URL("prego")))
			tConfig := devstack.TemporalConfig{Binary: binary, Dir: dir, LogFile: filepath.Join(dir, "temporal.log"), Keywords: workflows.SearchAttributes()}
			tmp, err := devstack.StartTemporal(ctx, tConfig)
			require.NoError(t, err)
			t.Cleanup(func() { tmp.Stop(10 * time.Second) })
			histories, err := os.Stat(filepath.Join(dir, "temporal.db"))
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), histories.Mode().Perm(), "histories are private")

			vars := sharedVars()
			vars["TEMPORAL_ADDRESS"] = tmp.Address()
			c := newCell(t, options{processes: true, url: pg.URL("prego"), vars: vars, sim: func(cfg *sim.Config) {
				cfg.Profile = sim.Profile{Action: 300 * time.Millisecond, Boot: 800 * time.Millisecond, Stage: 100 * time.Millisecond, Restart: 200 * time.Millisecond}
			}})
			servers, alpha, beta, env := 1, "", "", ""
			var taken api.Snapshot
			if victim == "temporal" {
				env, _ = c.workload("acme", prego.TierEnterprise, "shop")
				c.sharedFleet(2)
				servers += 3
				alpha, beta = c.tenant("alpha", prego.PlanStarter, nil), c.tenant("beta", prego.PlanStarter, nil)
				c.settledTenant(alpha, tenant.Active)
				c.settledTenant(beta, tenant.Active)
				taken = c.snapshot("/v1/tenants/" + alpha)
			}
			c.create("tough", prego.RoleApp, server.Spec{})
			eventually(t, func() bool { return count(c.get("tough"), server.StepServerCreated) > 0 }, patience, 10*time.Millisecond)
			switch victim {
			case "postgres":
				pg.Kill()
				pgConfig.Port = pg.Port
				again, err := devstack.StartPostgres(ctx, pgConfig)
				require.NoError(t, err)
				t.Cleanup(func() { again.Stop(10 * time.Second) })
			case "temporal":
				tmp.Kill()
				c.create("late", prego.RoleRedisPool, server.Spec{})
				var v api.Volume
				c.post("/v1/volumes", map[string]any{"org_id": "acme", "name": "late", "region": "eu", "location": "fsn1", "size_bytes": 10_000_000_000}, http.StatusAccepted, &v)
				// The API with starts in its memory dies; another API keeps later ones.
				c.kill("api")
				c.startUnready("api")
				var s api.Snapshot
				var j api.RestoreJob
				c.post("/v1/tenants/"+beta+"/snapshots", nil, http.StatusAccepted, &s)
				c.post("/v1/tenants/"+alpha+"/restores", map[string]any{"snapshot_id": taken.SnapshotId}, http.StatusAccepted, &j)
				c.post("/v1/envs/"+env+"/ipv4", nil, http.StatusAccepted, nil)
				tConfig.Port = tmp.Port
				again, err := devstack.StartTemporal(ctx, tConfig)
				require.NoError(t, err)
				t.Cleanup(func() { again.Stop(10 * time.Second) })
				began := time.Now()
				eventually(t, func() bool {
					return count(c.get("late"), server.StepServerCreated) > 0 && len(c.billed("volume")) > 0 &&
						c.number(`SELECT count(*) FROM ipv4_allocations WHERE status = 'pending'`) == 0 && c.number(`SELECT count(*) FROM snapshots WHERE status = 'queued'`) == 0 &&
						c.number(`SELECT count(*) FROM restore_jobs WHERE status = 'queued'`) == 0
				}, 15*time.Second, 20*time.Millisecond, "requests accepted while Temporal was away")
				t.Logf("requests accepted while Temporal was away started %.1f s after it was back", time.Since(began).Seconds())
				c.awaitVolume(v.VolumeId, "ready")
				c.awaitStatus("late", server.Active)
				eventually(t, func() bool {
					return c.number(`SELECT count(*) FROM restore_jobs WHERE status = 'succeeded'`) == 1 && c.number(`SELECT count(*) FROM snapshots WHERE status = 'succeeded'`) == 2
				}, patience, 50*time.Millisecond)
				c.send(http.MethodDelete, "/v1/envs/"+env+"/ipv4", nil, http.StatusAccepted, nil)
				c.send(http.MethodDelete, "/v1/volumes/"+v.VolumeId, nil, http.StatusAccepted, nil)
				c.awaitGone("/v1/volumes/" + v.VolumeId)
				servers++
			}
			eventually(t, func() bool {
				status, _ := c.request("GET", "/v1/servers/"+c.id("tough"), nil)
				return status == 200
			}, patience, 50*time.Millisecond)
			c.awaitStatus("tough", server.Active)
			require.Equal(t, servers, c.everBilled("server"))
			c.settled()
		})
	}
}
