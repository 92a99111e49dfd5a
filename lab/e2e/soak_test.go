//go:build soak

package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/lab/soak"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

var (
	soakFor    = flag.Duration("for", 30*time.Minute, "how long the load runs")
	soakReport = flag.String("soak-report", "", "the file of the report; it is printed in any case")
	soakSeries = flag.String("soak-series", "", "the file of all measurements, as JSON")
)

func init() { //nolint:gochecknoinits // main_test.go builds and starts before any test
	strip = "" // the agent's symbols show where it counts its goroutines
}

// soakVars are the settings of an installation that repeats everything within half an hour: agents renew tokens and
// certificates, data is purged, rows get old.
func soakVars(s *s3test.Server) map[string]string {
	return backupVars(s, groupVars(map[string]string{
		"PREGO_LOG_LEVEL": "info", "PREGO_PACE": "0.1", "PREGO_AGENTGW_HEARTBEAT": "5s", "PREGO_AGENTGW_CERT_TTL": "20m", "PREGO_RECONCILE_EVERY": "1m",
		"PREGO_RETENTION": "20s", "PREGO_BACKUP_FINAL_FOR": "1m", "PREGO_MOVE_GRACE": "5s", "PREGO_SITE_TIMEOUT": "60s",
		"PREGO_KEEP_EVENTS": "1h", "PREGO_KEEP_FEED": "1h", "PREGO_KEEP_COMMANDS": "1h", "PREGO_KEEP_KEYS": "24h",
	}))
}

// TestSoak keeps a small installation under a steady load and prints which of its quantities
// grow: memory, goroutines, connections, descriptors, rows, disk. It fails if one does that
// has no reason to (contributing/soak.md).
func TestSoak(t *testing.T) {
	s := s3test.Start(t)
	p := newPublic(t, soakVars(s))
	// The processes' pages of memory stay with them as long as they do: a second start would be
	// another series.
	l := &load{public: p, done: map[string]float64{}}
	l.build()

	ctx, end := context.WithTimeout(t.Context(), *soakFor)
	defer end()
	sampler := newSampler(l, s, *soakFor)
	var running sync.WaitGroup
	l.begin(ctx, &running)
	sampler.run(ctx)
	running.Wait()

	series := sampler.all()
	if *soakSeries != "" {
		b, err := json.Marshal(series)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(*soakSeries, b, 0o644))
	}
	results := soak.Judge(series, *soakFor/6, *soakFor)
	tally := soak.CountVerdicts(results)
	var b strings.Builder
	b.WriteString(soak.Report(results))
	fmt.Fprintf(&b, "done: %s\n", l)
	for _, e := range l.errors {
		fmt.Fprintf(&b, "failed: %s\n", e)
	}
	b.WriteString(soak.Summary(*soakFor, int(l.done["tenant"]), int(l.done["server"]), tally) + "\n")
	fmt.Print(b.String())
	if *soakReport != "" {
		require.NoError(t, os.WriteFile(*soakReport, []byte(b.String()), 0o644))
	}
	for _, what := range []string{"tenant", "server", "backup", "move", "deploy", "request", "fault"} {
		require.Positive(t, l.done[what], "nothing was done: %s", what)
	}
	// Faults are injected, so that a tenant may fail now and then, as it may in production.
	require.LessOrEqual(t, float64(len(l.errors)), 1+l.done["tenant"]/20, "failed: %v", l.errors)
	require.Zero(t, tally.Grew, "series grew")
	l.finish()
	l.counted()
	require.Len(t, l.billed("server"), l.number(`SELECT count(*) FROM resources WHERE kind = 'server' AND state = 'created'`))
}

// build makes what stays for the whole run: servers, two tenants, a process group.
func (l *load) build() {
	l.org("acme", "")
	roles := map[string]prego.Role{"edge": prego.RoleEdge, "app": prego.RoleApp, "app2": prego.RoleApp, "db": prego.RoleDBShard, "redis": prego.RoleRedisPool}
	for name, role := range roles {
		l.create(name, role, server.Spec{})
	}
	for name := range roles {
		l.awaitStatus(name, server.Active)
	}
	l.policies(1, 2)
	for _, slug := range []string{"stays", "wanders"} {
		id := l.tenant(slug, prego.PlanStarter, nil)
		l.settledTenant(id, tenant.Active)
		l.residents = append(l.residents, id)
	}
	l.nodes("nodes", 1, 4096*mb)
	g := l.group(l.workloads("shop-org", "paid"), "web", 2, spec("web:1", 64))
	l.settledGroup(g.GroupId)
	l.web = g.GroupId
}

// ages are the rows that are pruned by age, after an hour at the least. Rows that are older than a tenth of the run are
// made as old as is kept: the same, for a soak, as keeping rows for so long.
var ages = []string{
	`UPDATE org_events SET at = at - interval '2 hours' WHERE at < now() - $1::interval AND at > now() - interval '1 hour'`,
	`UPDATE agent_command_audit SET requested_at = requested_at - interval '2 hours' WHERE requested_at < now() - $1::interval AND requested_at > now() - interval '1 hour'`,
	`UPDATE org_sessions SET opened_at = opened_at - interval '31 days' WHERE opened_at < now() - $1::interval AND opened_at > now() - interval '2 hours' AND closed_at IS NOT NULL`,
	`UPDATE instances SET stopped_at = stopped_at - interval '31 days' WHERE stopped_at < now() - $1::interval AND stopped_at > now() - interval '1 hour' AND state = 'stopped'`,
	`UPDATE server_samples SET at = at - interval '26 hours' WHERE at < now() - $1::interval AND at > now() - interval '1 hour'`,
	`UPDATE request_keys SET created_at = created_at - interval '25 hours' WHERE created_at < now() - $1::interval AND created_at > now() - interval '24 hours' AND created_id IS NULL`,
	`UPDATE request_keys SET created_at = created_at - interval '91 days' WHERE created_at < now() - $1::interval AND created_at > now() - interval '90 days' AND created_id IS NOT NULL`,
	// The feed of changes has no setting: what is older than a mark is deleted, which is set anew after ten minutes.
	`UPDATE changes_pruned SET marked_at = marked_at - interval '10 minutes' WHERE marked_at < now() - LEAST($1::interval, interval '2 minutes') AND marked_at > now() - interval '10 minutes'`,
}

func (l *load) age(ctx context.Context) error {
	for _, sql := range ages {
		if _, err := l.pool.Exec(ctx, sql, fmt.Sprintf("%d seconds", int((*soakFor/10).Seconds()))); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// finish waits until started work has ended.
func (l *load) finish() {
	l.t.Helper()
	var open []string
	eventually(l.t, func() bool {
		rows, err := l.pool.Query(context.Background(), `SELECT 'tenant ' || tenant_id || ' ' || state || ' ' || converged_state FROM tenants WHERE state <> converged_state
			UNION ALL SELECT 'server ' || server_id || ' ' || status FROM servers WHERE status NOT IN ('active', 'terminated', 'failed')
			UNION ALL SELECT 'resource ' || kind || ' ' || name || ' ' || state FROM resources WHERE state IN ('intended', 'releasing') AND kind <> 'primary_ip'`)
		require.NoError(l.t, err)
		open, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(l.t, err)
		return len(open) == 0
	}, 2*patience, time.Second, "%s", later(func() string { return strings.Join(open, "; ") }))
}

func (l *load) hostDirs() map[string]string {
	out := map[string]string{}
	for _, h := range l.sim.Hosts() {
		for _, name := range []string{"edge", "app", "app2", "db", "redis"} {
			if h.Name == "prego-"+l.env+"-"+l.id(name) {
				out[name] = filepath.Clean(h.Root)
			}
		}
	}
	return out
}
