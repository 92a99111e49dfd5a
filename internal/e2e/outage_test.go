package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/devstack"
	"github.com/prego/prego/internal/sim"
	"github.com/prego/prego/migrations"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workflows"
)

// TestPostgresAndTemporalKilledWhileAServerBoots kills (SIGKILL) the database, and
// in a run of its own Temporal, while a server is on its way, and starts them
// again. What they had taken they still have.
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

			c := newCell(t, options{url: pg.URL("prego"), vars: map[string]string{"TEMPORAL_ADDRESS": tmp.Address()}, sim: func(cfg *sim.Config) {
				cfg.Profile = sim.Profile{Action: 300 * time.Millisecond, Boot: 800 * time.Millisecond, Stage: 100 * time.Millisecond, Restart: 200 * time.Millisecond}
			}})
			c.create("tough", prego.RoleApp, server.Spec{})
			require.Eventually(t, func() bool { return count(c.get("tough"), server.StepServerCreated) > 0 }, patience, 10*time.Millisecond)
			switch victim {
			case "postgres":
				pg.Kill()
				pgConfig.Port = pg.Port
				again, err := devstack.StartPostgres(ctx, pgConfig)
				require.NoError(t, err)
				t.Cleanup(func() { again.Stop(10 * time.Second) })
			case "temporal":
				tmp.Kill()
				tConfig.Port = tmp.Port
				again, err := devstack.StartTemporal(ctx, tConfig)
				require.NoError(t, err)
				t.Cleanup(func() { again.Stop(10 * time.Second) })
			}
			require.Eventually(t, func() bool {
				status, _ := c.request("GET", "/v1/servers/"+c.id("tough"), nil)
				return status == 200
			}, patience, 50*time.Millisecond)
			c.awaitStatus("tough", server.Active)
			require.Equal(t, 1, c.everBilled("server"))
			c.settled()
		})
	}
}
