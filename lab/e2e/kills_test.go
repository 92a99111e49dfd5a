package e2e

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/devstack"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/migrations"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// kill is who dies at which step of a story. Steps are the named points of activities, most of
// which have one before the effect and one after it.
type kill struct{ at, who string }

// everybody are all processes that can die during a story.
var everybody = []string{"worker", "agent", "agentgw", "s3", "postgres"}

// rounds are the kills of a story; a round is a play with deaths at each step. In `make test-deep` each process dies at
// each step once; otherwise there is one round, with n random steps and processes.
func rounds(t testing.TB, n int, points, who []string) (out [][]kill) {
	t.Helper()
	shift := rand.IntN(len(who))
	for r := range who {
		var round []kill
		for i, point := range points {
			round = append(round, kill{at: point, who: who[(i+r+shift)%len(who)]})
		}
		out = append(out, round)
	}
	if deep.Times(1) > 1 {
		return out
	}
	return [][]kill{deep.Some(t, n, out[0])}
}

func among(all [][]kill, who string) bool {
	return slices.ContainsFunc(all, func(round []kill) bool {
		return slices.ContainsFunc(round, func(k kill) bool { return k.who == who })
	})
}

// mortals are a cell's processes and what they depend on. A story is played while each of its
// kills happens.
type mortals struct {
	*cell
	crash string
	s3    *s3test.Server
	pg    *devstack.Postgres
	at    devstack.PostgresConfig
	// mariadb kills the MariaDBs of shards, which restart by themselves.
	mariadb func()
}

// newMortals prepares the environment of a cell. Postgres is a private one if it will die.
func newMortals(t testing.TB, kills [][]kill) (m *mortals, vars map[string]string, url string) {
	t.Helper()
	m = &mortals{crash: filepath.Join(t.TempDir(), "crash")}
	vars = map[string]string{"PREGO_TEST_CRASH": m.crash}
	if !among(kills, "postgres") {
		return m, vars, ""
	}
	dir, err := os.MkdirTemp("/var/tmp", "prego-kills-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m.at = devstack.PostgresConfig{Dir: filepath.Join(dir, "pg"), LogFile: filepath.Join(dir, "pg.log")}
	m.bootPostgres(t)
	require.NoError(t, m.pg.EnsureDatabase(t.Context(), "prego"))
	url = m.pg.URL("prego")
	require.NoError(t, migrations.Up(t.Context(), url))
	return m, vars, url
}

func (m *mortals) bootPostgres(t testing.TB) {
	t.Helper()
	pg, err := devstack.StartPostgres(context.Background(), m.at)
	require.NoError(t, err)
	t.Cleanup(func() { pg.Stop(10 * time.Second) })
	m.pg, m.at.Port = pg, pg.Port
}

// mayBeAway declares that Postgres is killed in this story.
func (m *mortals) mayBeAway() bool { return m.pg != nil }

func (m *mortals) arm(k kill) {
	m.t.Helper()
	point := k.at
	if k.who != "worker" {
		point = "hold:" + point
	}
	require.NoError(m.t, os.WriteFile(m.crash, []byte(point), 0o600))
}

// play starts a story, with the deaths at their steps. The worker waits at the step while others are killed, and
// continues while they are away.
func (m *mortals) play(kills []kill, begin func()) {
	m.t.Helper()
	m.arm(kills[0])
	begin()
	for i, k := range kills {
		next := func() {
			if i+1 < len(kills) {
				m.arm(kills[i+1])
			}
		}
		if k.who == "worker" {
			m.dies(m.crash, k.at)
			next()
			m.start("worker")
			continue
		}
		eventually(m.t, func() bool { return exists(m.crash + ".hit") }, 2*patience, 5*time.Millisecond, "%s is reached", k.at)
		next()
		m.killed(k.who, func() {
			require.NoError(m.t, os.Remove(m.crash+".hit"))
			time.Sleep(300 * time.Millisecond) // it is away when it is needed
		})
	}
}

// killed kills a process, and restarts it when the others have done something without it.
func (m *mortals) killed(who string, meanwhile func()) {
	m.t.Helper()
	switch who {
	case "agent": // of all hosts; their supervisors start them again
		for _, h := range m.sim.Hosts() {
			if h.AgentPID > 0 {
				require.NoError(m.t, syscall.Kill(h.AgentPID, syscall.SIGKILL))
			}
		}
		meanwhile()
	case "agentgw":
		m.kill("agentgw")
		meanwhile()
		m.start("agentgw")
	case "s3":
		m.s3.Kill()
		meanwhile()
		m.s3.Boot()
	case "mariadb":
		m.mariadb()
		meanwhile()
	case "postgres":
		m.pg.Kill()
		meanwhile()
		m.bootPostgres(m.t)
		eventually(m.t, func() bool {
			status, _ := m.request(http.MethodGet, "/v1/servers?limit=1", nil)
			return status == http.StatusOK && m.pool.Ping(context.Background()) == nil
		}, patience, 20*time.Millisecond)
	default:
		m.t.Fatalf("there is no process %s", who)
	}
}

// nothingLeft checks that nothing of a story is left in the storage or in the ledger: billed resources exist.
func (m *mortals) nothingLeft() {
	m.t.Helper()
	stored := m.number(`SELECT count(*) FROM backups WHERE state = 'stored'`)
	require.Equal(m.t, stored, m.number(`SELECT count(*) FROM resources WHERE kind = 'backup' AND state = 'created'`))
	require.Zero(m.t, m.number(`SELECT count(*) FROM resources WHERE kind = 'backup' AND state NOT IN ('created', 'released')`))
	objects, uploads := 0, 0
	require.NoError(m.t, filepath.WalkDir(filepath.Join(m.s3.Dir, m.s3.Bucket), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "redo" {
			return filepath.SkipDir
		}
		if err == nil && !d.IsDir() {
			if strings.Contains(path, ".sgwtmp") {
				uploads++
			} else {
				objects++
			}
		}
		return err
	}))
	require.Equal(m.t, []int{2 * stored, 0}, []int{objects, uploads}, "each backup and its manifest, and no parts")
}

// dies waits until the worker has died at a point that PREGO_TEST_CRASH names. It stays dead.
func (c *cell) dies(file, point string) {
	c.t.Helper()
	select {
	case <-c.procs["worker"].Done():
	case <-time.After(2 * patience):
		c.t.Fatalf("%s was never reached", point)
	}
	require.NoError(c.t, os.Remove(file+".hit"))
	delete(c.procs, "worker")
}

// TestRestoreSurvivesAnyDeath: a site under constant writes is backed up and restored, while every participant is
// killed at each step. It has the rows of before the backup, all of them and once, none written between backup and
// restore, and the later ones.
func TestRestoreSurvivesAnyDeath(t *testing.T) {
	t.Parallel()
	all := rounds(t, 3, []string{
		"stored-backup/start", "stored-backup/sealed", "stored-backup/upload", "stored-backup/uploaded", "stored-backup/completed", "stored-backup/manifest",
		"stored-restore/start", "stored-restore/downloaded", "stored-restore/opened", "restore/kept", "restore/start", "restore/done",
	}, everybody)
	deleted := rounds(t, 1, []string{"stored-backup/deleted"}, everybody)
	m, vars, url := newMortals(t, slices.Concat(all, deleted))
	m.s3 = s3test.Start(t)
	m.cell = newCell(t, options{url: url, vars: backupVars(m.s3, vars)})
	m.org("acme", "")
	app := m.sharedFleet(1)
	const site = "alpha.sites.test"
	id := m.tenant("alpha", prego.PlanStarter, nil)
	database := m.settledTenant(id, tenant.Active).Allocation.DatabaseName
	of := "/v1/tenants/" + id
	kept := m.noise(app, site, "noise", 17<<20)
	for i, round := range all {
		at := slices.IndexFunc(round, func(k kill) bool { return !strings.HasPrefix(k.at, "stored-backup/") })
		if at < 0 {
			at = len(round)
		}
		w := m.typist(app, id, site)
		w.more(3)
		before := w.mark()
		var b api.Backup
		m.playAny(round[:at], func() { b = m.backup(of) })
		b = m.backupState(of, b, tenant.BackupStored)
		after := w.mark()
		w.more(3)
		require.NoError(t, os.Remove(filepath.Join(m.rootOf(app), wire.BenchDir, "sites", site, "private/files/noise")))
		asked := w.mark()
		var j api.RestoreJob
		m.playAny(round[at:], func() {
			m.post(of+"/restores", map[string]any{"backup_id": b.BackupId}, http.StatusAccepted, &j)
		})
		eventually(t, func() bool {
			m.send(http.MethodGet, of+"/restores/"+j.JobId, nil, http.StatusOK, &j)
			return j.Status == "succeeded" || j.Status == "failed"
		}, 2*patience, 50*time.Millisecond)
		require.Equal(t, api.JobStatus("succeeded"), j.Status, deref(j.Message))
		restored := w.mark()
		w.more(3)
		w.rewound(m.cell, app, database, before, after, asked, restored)
		require.Equal(t, "off", m.maintenance(app, site))
		back, err := os.ReadFile(filepath.Join(m.rootOf(app), wire.BenchDir, "sites", site, "private/files/noise"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(kept, back))
		eventually(t, func() bool {
			left, err := os.ReadDir(filepath.Join(m.rootOf(app), wire.BenchDir, "sites", site, wire.SnapshotsDir))
			return err == nil && len(left) == 0
		}, patience, 50*time.Millisecond, "nothing is left on the host")
		require.Equal(t, i+1, m.number(`SELECT count(*) FROM backups`), "each was made once")
		m.nothingLeft()
		m.play(deleted[i%len(deleted)], func() {
			m.send(http.MethodDelete, of+"/backups/"+b.BackupId, nil, http.StatusNoContent, nil)
			m.exec(keptEnough)
		})
		m.backupState(of, b, tenant.BackupDeleted)
		m.nothingLeft()
		m.exec(`UPDATE backups SET taken_at = taken_at - interval '1 hour'`) // one an hour may be asked for
	}
	m.counted()
}

// playAny plays a story without deaths.
func (m *mortals) playAny(kills []kill, begin func()) {
	m.t.Helper()
	if len(kills) == 0 {
		begin()
		return
	}
	m.play(kills, begin)
}

// destroy takes a server away at the provider, without warning.
func (c *cell) destroy(id string) {
	c.t.Helper()
	var provider string
	c.query(&provider, `SELECT provider_server_id FROM servers WHERE server_id = $1`, id)
	c.deleteAtProvider(provider)
}

// TestAServerIsLostDuringAMove: either one, without warning, at each state of the move. Before the switch a tenant with
// a lost target stays, and a tenant with a lost source comes back from its backup; after it the other way round, except
// that a tenant whose old copy still exists gets it back. Nothing is left of the move, and the tenant can move again.
func TestAServerIsLostDuringAMove(t *testing.T) {
	t.Parallel()
	type lost struct {
		point, which string
		declared     bool // by an operator, and not found by the reconciler
	}
	var all []lost
	for i, point := range []string{"move/placed", "move/copied", "move/held", "move/settled", "move/switched", "move/freed", "move/cleared"} {
		for k, which := range []string{"source", "target"} {
			all = append(all, lost{point, which, (i+k)%2 == 0})
		}
	}
	for _, l := range deep.Some(t, 1, all) {
		t.Run(strings.ReplaceAll(l.point, "/", " ")+" "+l.which, func(t *testing.T) {
			t.Parallel()
			crash := filepath.Join(t.TempDir(), "crash")
			s := s3test.Start(t)
			p, id := movable(t, s, crash)
			of, app, app2 := "/v1/tenants/"+id, p.id("app"), p.id("app2")
			database := p.settledTenant(id, tenant.Active).Allocation.DatabaseName
			p.todo(app, database, "one", "in the backup")
			p.backedUp(id)
			p.create("app3", prego.RoleApp, server.Spec{})
			p.awaitStatus("app3", server.Active)
			require.NoError(t, os.WriteFile(crash, []byte(l.point), 0o600))
			var m api.Move
			p.post(of+"/moves", map[string]any{"to_server_id": app2}, http.StatusAccepted, &m)
			p.dies(crash, l.point)
			gone, there := app, app2
			if l.which == "target" {
				gone, there = app2, app
			}
			switched := p.number(`SELECT count(*) FROM tenant_moves WHERE switched_at IS NOT NULL`) == 1
			kept := p.number(`SELECT count(*) FROM tenant_moves WHERE clearing_at IS NULL`) == 1
			p.destroy(gone)
			if l.declared {
				// Refused until the edges have found that its sites do not answer.
				eventually(t, func() bool {
					status, _ := p.request(http.MethodPost, "/v1/servers/"+gone+"/lost", map[string]string{"reason": "burnt"})
					return status == http.StatusAccepted
				}, patience, 200*time.Millisecond)
			}
			p.start("worker")
			if !l.declared {
				p.reconcile()
			}
			want := tenant.MoveFailed
			if switched {
				want = tenant.MoveDone
			}
			// As long as the old copy is kept, the tenant is given that back, which loses nothing.
			returned := switched && kept && l.which == "target"
			if returned {
				want = tenant.MoveFailed
			}
			m = p.moved(of, m, want)
			if isLost := !returned && switched == (l.which == "target"); isLost {
				tn := p.backAgain(id, tenant.Active)
				there = tn.Allocation.AppServerId
				require.NotEqual(t, gone, there)
				if was := database; was != tn.Allocation.DatabaseName { // a site of the pool
					database = tn.Allocation.DatabaseName
					require.Zero(t, inMariaDB[int](p.cell, there, database, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", was))
				}
			} else {
				require.Equal(t, there, p.settledTenant(id, tenant.Active).Allocation.AppServerId)
				require.Equal(t, returned, p.number(`SELECT count(*) FROM tenant_losses`) == 1)
			}
			require.Equal(t, []string{"in the backup"}, p.cell.todos(there, database))
			base := "https://" + movedSite
			visitor := p.visitor()
			p.opens(visitor, base, "<h1>"+movedSite+"</h1>")
			w := p.write(base, p.login(visitor, base, id))
			w.more(3)
			for _, server := range []string{app, app2, p.id("app3")} {
				if server != there && server != gone {
					p.onlyAt(s, there, server)
				}
			}
			// It is where it can move from.
			p.post(of+"/moves", nil, http.StatusAccepted, &m)
			m = p.moved(of, m, tenant.MoveDone)
			w.more(3)
			p.onlyAt(s, *m.ToServerId, there)
		})
	}
}
