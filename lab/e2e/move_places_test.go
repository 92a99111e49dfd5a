package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/s3test"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// createIn makes a server in another region.
func (c *cell) createIn(region prego.Region, location, id string, role prego.Role) {
	c.t.Helper()
	c.post("/internal/servers/create", server.CreateRequest{
		ServerID: prego.ServerID(c.id(id)), Role: role, Region: region, InfraProvider: prego.ProviderHetzner, Spec: server.Spec{Location: location},
	}, http.StatusAccepted, nil)
}

// stuck is a visitor whose resolver keeps one address, regardless of the DNS.
func (p *public) stuck(address string) *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return p.dialer.DialContext(ctx, network, net.JoinHostPort(address, "443"))
		},
		TLSClientConfig: p.tls(), ForceAttemptHTTP2: true,
	}
	p.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// TestATenantMovesEverywhere: to another pool alone, to a node with its own MariaDB and back, and to another region,
// while rows are written over HTTP and processes die.
func TestATenantMovesEverywhere(t *testing.T) {
	t.Parallel()
	crash := filepath.Join(t.TempDir(), "crash")
	s := s3test.Start(t)
	p, id := movable(t, s, crash)
	p.create("redis2", prego.RoleRedisPool, server.Spec{})
	p.create("node", prego.RoleNode, server.Spec{})
	us := map[string]prego.Role{"edge-us": prego.RoleEdge, "app-us": prego.RoleApp, "db-us": prego.RoleDBShard, "redis-us": prego.RoleRedisPool}
	for name, role := range us {
		p.createIn(prego.RegionUS, "ash", name, role)
	}
	of, base := "/v1/tenants/"+id, "https://"+movedSite
	database := p.settledTenant(id, tenant.Active).Allocation.DatabaseName
	visitor := p.visitor()
	p.opens(visitor, base, "<h1>"+movedSite+"</h1>")
	p.keepPassword(p.id("app"), movedSite, "open sesame")
	w := p.write(base, p.login(visitor, base, id))
	w.more(5)

	move := func(body map[string]any) (m api.Move) {
		t.Helper()
		p.post(of+"/moves", body, http.StatusAccepted, &m)
		return m
	}
	where := func(app, shard, pool string) {
		t.Helper()
		require.Equal(t, 1, p.number(`SELECT count(*) FROM tenant_allocations a WHERE tenant_id = $1 AND released_at IS NULL AND app_server_id = $2
			AND (SELECT server_id FROM db_shards WHERE shard_id = a.db_shard_id) = $3 AND (SELECT server_id FROM redis_pools WHERE pool_id = a.redis_pool_id) = $4`, id, p.id(app), p.id(shard), p.id(pool)))
		p.counted()
		p.rows(w, database)
	}

	// The cache alone.
	p.awaitStatus("redis2", server.Active)
	m := p.moved(of, move(map[string]any{"to_pool_id": "any"}), tenant.MoveDone)
	require.Equal(t, []string{p.id("redis"), p.id("redis2")}, []string{deref(m.FromPoolId), deref(m.ToPoolId)})
	w.more(2)
	where("app", "db", "redis2")
	p.cacheMoved(database, "redis2", "redis")

	// To a node and back, once undisturbed and once not.
	p.awaitStatus("node", server.Active)
	dies := func(point string, hosts ...string) {
		t.Helper()
		p.dies(crash, point)
		for _, host := range hosts {
			if pid := p.agentPID(p.id(host)); pid > 0 {
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			}
		}
		p.start("worker")
	}
	points := deep.Some(t, 1, []string{"move/prepare", "move/data-packed", "move/data-carried", "move/copied", "move/data-frozen", "move/caught-up", "move/settled", "move/switched", "move/freed", "move/cleared"})
	for _, point := range points {
		require.NoError(t, os.WriteFile(crash, []byte(point), 0o600))
		m = move(map[string]any{"to_server_id": p.id("node")})
		dies(point, "app", "node")
		p.moved(of, m, tenant.MoveDone)
		w.more(2)
		where("node", "node", "node")
		require.Equal(t, "open sesame", p.keptPassword(p.id("node"), movedSite))
		require.NoDirExists(t, p.siteDir(p.id("app")))
		require.NoError(t, os.WriteFile(crash, []byte(point), 0o600))
		m = move(map[string]any{})
		dies(point, "node")
		m = p.moved(of, m, tenant.MoveDone)
		w.more(2)
		t.Logf("back from the node: written again after %d ms by the row", *m.DowntimeMs)
	}

	// To another region. Somebody's resolver knows the edges before all the time.
	for name := range us {
		p.awaitStatus(name, server.Active)
	}
	edge := p.text(`SELECT host FROM servers WHERE server_id = $1`, p.id("edge"))
	long := p.knows(edge, base+"/api/method/ping")
	before := w.settled()
	m = move(map[string]any{"region": "us"})
	eventually(t, func() bool {
		p.send(http.MethodGet, of+"/moves/"+m.MoveId, nil, http.StatusOK, &m)
		return m.OpenedAt != nil
	}, 3*patience, 20*time.Millisecond)
	asked := long.count()
	eventually(t, func() bool { return long.count() > asked+20 }, patience, 20*time.Millisecond)
	require.Empty(t, long.stop(), "of %d, and the edges' errors: %s", long.count(), p.edgesErrors())
	m = p.moved(of, m, tenant.MoveDone)
	w.more(2)
	require.Empty(t, w.soFar().failed[before:])
	keepHistory(t, p.cell, "tenant-moved-to-another-network", m.WorkflowId)
	where("app-us", "db-us", "redis-us")
	require.Equal(t, "open sesame", p.keptPassword(p.id("app-us"), movedSite))
	require.Equal(t, "us", string(p.getTenant(id).Region))
	eventually(t, func() bool {
		status, _, err := visit(p.stuck(edge), base)
		return err != nil || status == http.StatusNotFound // no site of theirs needs that certificate any more
	}, patience, 100*time.Millisecond, "its edges know it no longer")
	t.Logf("to another region: written again after %d ms by the row; %d requests the long way", *m.DowntimeMs, long.count())

	// Back, and the shard there is lost right after the switch: the old database still exists.
	require.NoError(t, os.WriteFile(crash, []byte("move/switched"), 0o600))
	m = move(map[string]any{"region": "eu", "to_shard_id": p.id("db")})
	p.dies(crash, "move/switched")
	p.send(http.MethodPost, "/v1/servers/"+p.id("db")+"/lost", map[string]any{"reason": "its disk died"}, http.StatusAccepted, nil)
	p.start("worker")
	m = p.moved(of, m, tenant.MoveFailed)
	require.Equal(t, string(tenant.ReasonMoveTarget), deref(m.Reason))
	require.Contains(t, deref(m.Message), "is gone, where the tenant had moved to. It is on "+p.id("app-us")+" again")
	keepHistory(t, p.cell, "tenant-move-returned", m.WorkflowId)
	w.more(2)
	where("app-us", "db-us", "redis-us")
	back := p.getTenant(id)
	require.Equal(t, []any{"us", tenant.Active}, []any{string(back.Region), back.State})
	require.NotNil(t, back.Loss)
	w.stop()
	w.all.Wait()
	t.Logf("%v: %d rows at the end; %d reads, %d failed: %v", points, p.rows(w, database), w.reads.Load(), len(w.failed), w.failed)
}

// asking is a client that requests a page all the time, at one edge.
type asking struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	asked  atomic.Int64
	failed []string
}

func (p *public) knows(edge, url string) *asking {
	ctx, cancel := context.WithCancel(p.t.Context())
	a := &asking{cancel: cancel}
	p.t.Cleanup(func() { a.stop() })
	a.done.Go(func() {
		client := p.stuck(edge)
		for ctx.Err() == nil {
			status, body, err := visit(client, url)
			if errors.Is(err, syscall.ECONNRESET) || status == http.StatusServiceUnavailable {
				status, body, err = visit(client, url) // Caddy's next configuration may lose one, at either edge (ADR 30)
			}
			if a.asked.Add(1); err != nil || status != http.StatusOK {
				a.failed = append(a.failed, fmt.Sprintf("%d %v %.200s", status, err, body))
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return a
}

// edgesErrors are the last errors in the logs of all hosts' Caddys.
func (p *public) edgesErrors() string {
	var errs []string
	for id := range strings.FieldsSeq(p.text(`SELECT string_agg(server_id, ' ' ORDER BY server_id) FROM servers WHERE role = 'edge'`)) {
		logs, err := filepath.Glob(filepath.Join(filepath.Dir(p.rootOf(id)), "*.log"))
		require.NoError(p.t, err)
		for _, name := range logs {
			b, err := os.ReadFile(name)
			require.NoError(p.t, err)
			for line := range strings.Lines(string(b)) {
				if strings.Contains(line, `"level":"error"`) {
					errs = append(errs, id+" "+filepath.Base(name)+" "+line)
				}
			}
		}
	}
	return strings.Join(errs[max(0, len(errs)-20):], "")
}

func (a *asking) count() int64 { return a.asked.Load() }

func (a *asking) stop() []string {
	a.cancel()
	a.done.Wait()
	return a.failed
}
