//go:build machines

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
	"github.com/prego/prego/tenant"
)

// attention is an outside client that requests a page all the time.
type attention struct {
	stop     func()
	mu       sync.Mutex
	asked    int
	failed   []string
	gap      time.Duration // the longest between two answers
	answered time.Time
}

// attend asks for a page that has a text, until it is stopped.
func (s *openSite) attend(url, text string) *attention {
	end, ended := make(chan struct{}), make(chan struct{})
	a := &attention{answered: time.Now(), stop: sync.OnceFunc(func() { close(end); <-ended })}
	s.t.Cleanup(a.stop)
	go func() {
		defer close(ended)
		for {
			status, body, err := visit(s.visitor, url)
			a.mu.Lock()
			a.asked++
			if err == nil && status == http.StatusOK && strings.Contains(body, text) {
				a.gap, a.answered = max(a.gap, time.Since(a.answered)), time.Now()
			} else {
				a.failed = append(a.failed, fmt.Sprintf("%s: %d %v %.200s", time.Now().Format("15:04:05.000"), status, err, body))
			}
			a.mu.Unlock()
			select {
			case <-end:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return a
}

// served logs the results of all requests, and checks that none failed.
func (a *attention) served(t *testing.T, what string) {
	t.Helper()
	a.stop()
	t.Logf("%s: %d requests, %d failed, longest gap %d ms", what, a.asked, len(a.failed), a.gap.Milliseconds())
	require.Empty(t, a.failed, what)
	require.Greater(t, a.asked, 10, what)
}

// inMariaDB runs SQL on the shard as root. Debian 13 has Docker's client in a separate package, which hosts don't get.
func (s *openSite) inMariaDB(sql string) string {
	return s.shard.run(`pid=$(grep --no-messages --files-with-matches --line-regexp mariadbd /proc/[0-9]*/comm | cut -d / -f 3)
			MYSQL_PWD="$(cat /etc/prego-secrets/mariadb-root)" nsenter --target "$pid" --mount mariadb --skip-ssl --user=root --skip-column-names --execute "` + sql + `"`)
}

// directory is where a site's files are on an app server.
func directory(site string) string { return "/var/lib/docker/volumes/*/_data/" + site }

// containers are the names of a machine's containers.
func (m *machine) containers() string {
	return m.run(engine + `/containers/json?all=1 | grep -o '"Names":\["[^"]*"' | sort`)
}

// nothingOf checks that a machine has nothing of a site: no file with its name in its path or content. Exempt are the
// agent's records of past commands, and Redis's log of deleted jobs, until it is rewritten.
func (m *machine) nothingOf(site string) {
	m.t.Helper()
	name, _, _ := strings.Cut(site, ".")
	require.Empty(m.t, m.run(`find / -xdev \( -path /proc -o -path /sys \) -prune -o -name '*`+name+`*' -print; find /var/lib/docker/volumes -name '*`+name+`*'`))
	require.Empty(m.t, m.run(`grep --recursive --files-with-matches --fixed-strings '`+name+`' /etc /run/prego* /var/lib/prego* /var/lib/docker/volumes 2>/dev/null | grep -v -e '\.log$' -e /logs/ -e prego-agent-exec -e appendonly || true`))
}

// moves has a tenant moved to another app server, asked for by https the whole time. Then the server that it
// came to gets a security update that takes a reboot, which it leaves before.
func (s *openSite) moves() {
	t := s.t.(*testing.T)
	t.Helper()
	s.app2.awaitActive()
	site, database, of := deref(s.own.Site), s.own.Allocation.DatabaseName, "/v1/tenants/"+s.own.TenantId
	before := s.app.containers()
	s.app.run(`dir=$(echo ` + directory(site) + `) && echo kept >$dir/private/files/kept && chown --reference=$dir/site_config.json $dir/private/files/kept && chmod 640 $dir/private/files/kept`)
	file := func(m *machine) string {
		return m.run(`cd ` + directory(site) + `/private/files && cat kept && stat --format '%a %u %g' kept`)
	}
	was := file(s.app)
	users := func() string {
		return s.inMariaDB("SELECT Host FROM mysql.user WHERE User = '" + database + "' ORDER BY 1")
	}
	require.Equal(t, s.private(s.app), users())
	s.inMariaDB("INSERT INTO " + database + ".tabToDo (name) VALUES ('moved')")
	a := s.attend(deref(s.own.SiteUrl), "rows: 1")

	var m api.Move
	s.post(of+"/moves", map[string]any{"to_server_id": s.id("app2")}, http.StatusAccepted, &m)
	m = s.moved(of, m, tenant.MoveDone)
	t.Logf("moved after %s; read-only for %d ms", m.FinishedAt.Sub(m.CreatedAt).Round(time.Second), *m.DowntimeMs)
	require.Equal(t, s.private(s.app2), users(), "no other server reaches its database")
	require.Equal(t, was, file(s.app2))
	own := s.app2.credentialsOf(site)
	s.app.nothingOf(site)
	require.Equal(t, before, s.app.containers())
	reach(t, "after the move", []path{
		{from: "app2, A's user", to: "A's database", open: true, try: own.reads(s.app2.dial, database, s.app2.clientTLS())},
		{from: "app, A's user, its password", to: "A's database", try: own.reads(s.app.dial, database, s.app.clientTLS()), why: "Access denied"},
		{from: "app2, A's user", to: "A's cache", open: true, try: own.pings(s.app2.dial, s.app2.clientTLS())},
		connects("outside", dialAs(s.from), "app2", s.app2.host().Addr, 8080, false),
		connects("edge", s.edge.dial, "app2", s.private(s.app2), 8080, true),
	})

	// It is moved away from a server that is rebooted.
	s.app2.offer(archives(t))
	s.app2.run("touch /run/before")
	s.post("/v1/servers/"+s.id("app2")+"/patch", nil, http.StatusAccepted, nil)
	d := s.drained(s.id("app2"))
	t.Log(deref(d.Message))
	require.Contains(t, deref(d.Message), "prego-canary 1.1 installed; rebooted (prego-canary), and away for")
	require.Equal(t, []int{1, 0}, []int{d.TenantsTotal, d.TenantsLeft})
	s.app2.run("! test -e /run/before")
	require.Nil(t, s.get("app2").CordonedAt)
	a.served(t, "moved, and moved back before a reboot")
	require.Equal(t, s.private(s.app), users())
	require.Equal(t, was, file(s.app))
	s.app2.nothingOf(site)
	// It has no tenant any more, so shard and pool are closed to it.
	eventually(t, func() bool {
		return !strings.Contains(s.pool.run("nft list table inet prego"), s.private(s.app2))
	}, time.Minute, 200*time.Millisecond)
	reach(t, "after the way back", []path{
		connects("app2", s.app2.dial, "pool", s.private(s.pool), 6379, false),
		connects("app2", s.app2.dial, "shard", s.private(s.shard), 3306, false),
		connects("app", s.app.dial, "shard", s.private(s.shard), 3306, true),
	})
	s.inMariaDB("DELETE FROM " + database + ".tabToDo WHERE name = 'moved'")
	s.own = s.settledTenant(s.own.TenantId, tenant.Active)
	require.Equal(t, prego.ServerID(s.id("app")), prego.ServerID(s.own.Allocation.AppServerId))
}
