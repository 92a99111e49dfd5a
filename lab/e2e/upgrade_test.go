package e2e

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/need"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/lab/sim"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

const schemaFile = "migrations/00001_schema.sql"

// git runs git in the repository.
func git(t testing.TB, args ...string) (out string, err error) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = repo
	b, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(b)), err
}

// previousPrograms builds prego and its agent of an earlier commit (docs/adr/0080): of the last release, or, as long as
// there is none, of the oldest commit since which the schema's file is unchanged. PREGO_TEST_UPGRADE_FROM names another
// commit.
func previousPrograms(t testing.TB) (dir string) {
	t.Helper()
	shallow, err := git(t, "rev-parse", "--is-shallow-repository")
	require.NoError(t, err, shallow)
	require.Equal(t, "false", shallow, "this clone lacks the previous commits: git fetch --unshallow --tags")
	from := os.Getenv("PREGO_TEST_UPGRADE_FROM")
	if from == "" {
		if from, err = git(t, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"); err != nil {
			from, err = git(t, "log", "-1", "--format=%H", "--", schemaFile)
			require.NoError(t, err, from)
		}
	}
	changed, err := git(t, "diff", "--stat", from, "--", schemaFile)
	require.NoError(t, err, changed)
	if changed != "" {
		tag, err := git(t, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*")
		require.Error(t, err, "%s is part of %s and may not change: add a migration\n%s", schemaFile, tag, changed)
		t.Logf("%s differs from that of %.12s and there is no release: no installation can be upgraded across that.\n"+
			"The programs of this checkout stand in for the previous ones.\n%s", schemaFile, from, changed)
		return bins
	}
	subject, err := git(t, "log", "-1", "--format=%h %s", from)
	require.NoError(t, err, subject)
	number, err := git(t, "rev-list", "--count", from+"..HEAD")
	require.NoError(t, err, number)
	t.Logf("previous programs: %s (%s commits ago)", subject, number)
	dir = filepath.Join(t.TempDir(), "previous")
	source := filepath.Join(dir, "source")
	require.NoError(t, os.MkdirAll(source, 0o755))
	archive, err := git(t, "archive", "--output", source+".tar", from)
	require.NoError(t, err, archive)
	out, err := exec.Command("tar", "-x", "-f", source+".tar", "-C", source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range []string{"prego", "prego-agent"} {
		flags := strip + "-X main.version=previous -X main.releaseKeys=" + agentReleaseKeys()
		file := filepath.Join(dir, name)
		build := exec.Command("go", "build", "-trimpath", "-ldflags", flags, "-o", file, "./cmd/"+name)
		build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return dir
}

// replace runs other programs, in the order of docs/install.md: the database first, then worker, gateway and API.
func (c *cell) replace(bins string) {
	c.t.Helper()
	c.migrate(bins)
	c.bins = bins
	c.vars["PREGO_AGENTGW_AGENT_BINARY"] = filepath.Join(bins, "prego-agent")
	for _, name := range []string{"worker", "agentgw", "api"} {
		c.stop(name)
		c.start(name)
	}
}

func (c *cell) migrate(bins string) {
	c.t.Helper()
	cmd := exec.Command(filepath.Join(bins, "prego"), "migrate")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "DATABASE_URL=" + c.url, "PREGO_ENV=" + c.env}
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "%s", out)
}

// reader reads from the API all the time.
type reader struct {
	stop           context.CancelFunc
	done           chan struct{}
	answered, lost atomic.Int64
	gap            atomic.Int64 // ns, between two answers
}

func (c *cell) read(path string) *reader {
	ctx, stop := context.WithCancel(c.t.Context())
	r := &reader{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		last := time.Now()
		for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.addr("api")+path, http.NoBody)
			if err != nil {
				return
			}
			req.Header.Set("Authorization", "Bearer "+c.operator)
			resp, err := need.HTTP.Do(req)
			if err == nil {
				_ = resp.Body.Close()
			}
			if err != nil || resp.StatusCode != http.StatusOK {
				r.lost.Add(1)
				continue
			}
			r.answered.Add(1)
			r.gap.Store(max(r.gap.Load(), int64(time.Since(last))))
			last = time.Now()
		}
	}()
	c.t.Cleanup(func() { stop(); <-r.done })
	return r
}

// TestUpgradeWithRunsInFlight replaces the programs of the previous release, or commit, with this checkout's, and goes
// back to them: with tenants, orgs and policies; while a server boots, a tenant waits, a server is drained, the move of
// its tenant has frozen the site, and a backup and a tenant are accepted that no worker has seen. Agents are of the
// previous version.
func TestUpgradeWithRunsInFlight(t *testing.T) {
	t.Parallel()
	previous := previousPrograms(t)
	crash := filepath.Join(t.TempDir(), "crash")
	s := s3test.Start(t)
	c := newCell(t, options{
		bins: previous, vars: backupVars(s, map[string]string{"PREGO_TEST_CRASH": crash, "PREGO_MOVE_GRACE": "1s"}),
		sim: func(cfg *sim.Config) { cfg.Profile.Boot = 3 * time.Second },
	})
	// The database's schema is the same, and its functions are those of the previous programs.
	c.migrate(previous)

	c.org("acme", "")
	c.limit("acme", "max_volumes", 7)
	c.sharedFleet(0)
	alpha := c.tenant("alpha", prego.PlanStarter, nil)
	c.settledTenant(alpha, tenant.Active)
	c.create("app2", prego.RoleApp, server.Spec{})
	c.awaitStatus("app2", server.Active)
	c.send(http.MethodPost, "/v1/servers/"+c.id("app")+"/cordon", nil, http.StatusOK, nil)
	other := c.tenant("other", prego.PlanStarter, nil) // on app2
	c.settledTenant(other, tenant.Active)
	c.send(http.MethodPost, "/v1/servers/"+c.id("app")+"/uncordon", nil, http.StatusOK, nil)
	c.fleet("pool", prego.RoleRedisPool, []map[string]any{weighted("eu", 50, -1), weighted("us", 25, 1)}, nil)
	agents := c.number(`SELECT count(*) FROM servers WHERE agent_status = 'connected'`)
	events := c.number(`SELECT count(*) FROM events`)

	require.NoError(t, os.WriteFile(crash, []byte("move/frozen"), 0o600))
	c.create("late", prego.RoleRedisPool, server.Spec{})
	far := c.tenant("far", prego.PlanStarter, func(m map[string]any) { m["region"] = "us" }) // no server is there
	c.drain(c.id("app"), "drain")
	select {
	case <-c.procs["worker"].Done():
	case <-time.After(patience):
		t.Fatal("the drain's move never freezes its site")
	}
	require.NoError(t, os.Remove(crash+".hit"))
	delete(c.procs, "worker")
	beta := c.tenant("beta", prego.PlanStarter, nil)
	backup := c.backup("/v1/tenants/" + other)
	require.Equal(t, 1, c.number(`SELECT count(*) FROM tenant_moves WHERE finished_at IS NULL`))
	require.Positive(t, c.number(`SELECT count(*) FROM servers WHERE status = 'provisioning'`))
	require.Positive(t, c.number(`SELECT count(*) FROM tenants WHERE waiting_since IS NOT NULL`))
	reads := c.read("/v1/tenants/" + alpha)

	c.replace(bins)
	upgraded := time.Now()
	c.settledTenant(beta, tenant.Active)
	c.settledTenant(far, tenant.Active)
	c.awaitStatus("late", server.Active)
	c.drained(c.id("app"))
	c.backupState("/v1/tenants/"+other, backup, tenant.BackupStored)
	t.Logf("every run ended within %.1f s of the upgrade", time.Since(upgraded).Seconds())
	c.wholeAfter(agents, events, alpha, beta, other, far)
	require.Equal(t, c.id("app2"), c.settledTenant(alpha, tenant.Active).Allocation.AppServerId)

	// Back: the previous programs work on this schema.
	c.replace(previous)
	c.wholeAfter(agents, events, alpha, beta, other, far)
	delta := c.tenant("delta", prego.PlanStarter, nil)
	c.settledTenant(delta, tenant.Active)
	// And again, as an upgrade does after its reason was fixed.
	c.replace(bins)
	c.wholeAfter(agents, events, alpha, beta, other, far)
	reads.stop()
	<-reads.done
	gap := time.Duration(reads.gap.Load())
	t.Logf("%d reads, %d not answered; the longest pause, while the one API was replaced, was %.1f s",
		reads.answered.Load(), reads.lost.Load(), gap.Seconds())
	require.Less(t, gap, 30*time.Second)
	c.counted()
	c.settled()
	for _, name := range processNames {
		b, err := os.ReadFile(c.logFile(name))
		require.NoError(t, err)
		for _, bad := range []string{"nondeterminis", "NonDeterminis", "TMPRL1100", "panic"} {
			require.NotContains(t, string(b), bad, name)
		}
	}
}

// wholeAfter compares what an exchange of programs may not change.
func (c *cell) wholeAfter(agents, events int, tenants ...string) {
	c.t.Helper()
	for _, id := range tenants {
		tn := c.settledTenant(id, tenant.Active)
		require.Contains(c.t, c.hostSites(prego.ServerID(tn.Allocation.AppServerId)), tn.Slug+".sites.test")
	}
	require.Equal(c.t, 1, c.number(`SELECT count(*) FROM org_quotas WHERE org_id = 'acme' AND limit_value = 7`))
	require.GreaterOrEqual(c.t, c.number(`SELECT count(*) FROM events`), events)
	require.Equal(c.t, 1, c.number(`SELECT count(*) FROM fleets WHERE fleet_id = 'pool'`))
	// Agents of the previous version report to the gateway, and carry out commands.
	eventually(c.t, func() bool {
		return c.number(`SELECT count(*) FROM servers WHERE agent_status = 'connected'
			AND agent_last_heartbeat_at > now() - interval '5 seconds'`) >= agents
	}, patience, 50*time.Millisecond)
}
