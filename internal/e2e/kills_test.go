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
	"github.com/prego/prego/internal/deep"
	"github.com/prego/prego/internal/s3test"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// dies waits until the worker has died at a point that PREGO_TEST_CRASH names. It stays dead.
func (c *cell) dies(file, point string) {
	c.t.Helper()
	select {
	case <-c.procs["worker"].Done():
	case <-time.After(patience):
		c.t.Fatalf("%s was never reached", point)
	}
	require.NoError(c.t, os.Remove(file+".hit"))
	delete(c.procs, "worker")
}

// destroy takes a server away at the provider, without warning.
func (c *cell) destroy(id string) {
	c.t.Helper()
	var provider string
	c.query(&provider, `SELECT provider_server_id FROM servers WHERE server_id = $1`, id)
	c.provider(http.MethodDelete, "/servers/"+provider, nil)
}

// TestAServerIsLostDuringAMove: one of the two, without warning, at each state of the move. Before
// the switch a tenant whose target is gone stays, and one whose source is gone comes back from
// its backup; after it the other way round. Nothing is left of the move, and the tenant can
// move again.
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
			p.destroy(gone)
			if l.declared {
				p.post("/v1/servers/"+gone+"/lost", map[string]string{"reason": "burnt"}, http.StatusAccepted, nil)
			}
			p.start("worker")
			if !l.declared {
				p.reconcile()
			}
			want := tenant.MoveFailed
			if switched {
				want = tenant.MoveDone
			}
			m = p.moved(of, m, want)
			if isLost := switched == (l.which == "target"); isLost {
				tn := p.backAgain(id, tenant.Active)
				there = tn.Allocation.AppServerId
				require.NotEqual(t, gone, there)
				if was := database; was != tn.Allocation.DatabaseName { // a site of the pool
					database = tn.Allocation.DatabaseName
					require.Zero(t, inMariaDB[int](p.cell, there, database, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", was))
				}
			} else {
				require.Equal(t, there, p.settledTenant(id, tenant.Active).Allocation.AppServerId)
				require.Zero(t, p.number(`SELECT count(*) FROM tenant_losses`))
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
