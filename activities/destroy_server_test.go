package activities_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// cloud is a provider's account: its resources, its deletions, and the requests it rejects.
type cloud struct {
	activities.Infra
	things    []server.OwnedResource
	gone      []string         // "kind/id", in order
	off       []string         // servers that were switched off
	fails     map[string]error // by "kind/id", or the name of a call
	firewalls int              // looked after
}

func (*cloud) ID() prego.InfraProviderID { return prego.ProviderHetzner }

// has adds a resource that is a day old; attempt 0 means no owner.
func (c *cloud) has(kind server.ResourceKind, id, name string, serverID prego.ServerID, attempt int) {
	o := server.OwnedResource{Kind: kind, ProviderID: id, Name: name, Labels: map[string]string{}, CreatedAt: time.Now().Add(-24 * time.Hour)}
	if attempt > 0 {
		o.Labels[server.LabelServerID], o.Labels[server.LabelAttempt] = string(serverID), strconv.Itoa(attempt)
	}
	c.things = append(c.things, o)
}

func (c *cloud) ListOwned(context.Context) ([]server.OwnedResource, error) {
	return slices.Clone(c.things), c.fails["ListOwned"]
}

func (c *cloud) FindServers(_ context.Context, serverID prego.ServerID) (found []server.Handle, err error) {
	for _, o := range c.things {
		if o.Kind == server.ResourceServer && prego.ServerID(o.Labels[server.LabelServerID]) == serverID {
			attempt, _ := strconv.Atoi(o.Labels[server.LabelAttempt])
			found = append(found, server.Handle{ProviderServerID: o.ProviderID, Name: o.Name, Attempt: attempt})
		}
	}
	return found, c.fails["FindServers"]
}

func (c *cloud) DestroyServer(ctx context.Context, id prego.ServerID) error {
	return c.DeleteResource(ctx, server.ResourceServer, id)
}

func (c *cloud) DeleteResource(_ context.Context, kind server.ResourceKind, id prego.ServerID) error {
	key := string(kind) + "/" + string(id)
	if err := c.fails[key]; err != nil {
		return err
	}
	i := slices.IndexFunc(c.things, func(o server.OwnedResource) bool { return o.Kind == kind && o.ProviderID == string(id) })
	if i >= 0 && c.things[i].Protected {
		return &server.InfraError{Class: server.InfraPermanent, Code: server.InfraProtected}
	}
	c.gone = append(c.gone, key)
	c.things = slices.DeleteFunc(c.things, func(o server.OwnedResource) bool { return o.Kind == kind && prego.ServerID(o.ProviderID) == id })
	return nil
}

func (c *cloud) Protect(_ context.Context, kind server.ResourceKind, id string, on bool) error {
	if err := c.fails["Protect"]; err != nil {
		return err
	}
	for i := range c.things {
		if c.things[i].Kind == kind && c.things[i].ProviderID == id {
			c.things[i].Protected = on
		}
	}
	return nil
}

func (c *cloud) EnsureFirewall(context.Context, server.FirewallParams) (string, error) {
	c.firewalls++
	return "fw", c.fails["EnsureFirewall"]
}

// deleted are the things that were deleted since the last time, sorted.
func (c *cloud) deleted() []string {
	gone := c.gone
	c.gone = nil
	slices.Sort(gone)
	return gone
}

// servers are the steps of servers over a cloud and a real database.
func (p *placing) servers(c *cloud, s *store.Store) (*activities.Servers, *testsuite.TestActivityEnvironment) {
	a := &activities.Servers{
		Store: s, Infra: map[prego.InfraProviderID]activities.Infra{prego.ProviderHetzner: c},
		Settings: activities.Settings{AmbiguousGrace: time.Hour}, Metrics: activities.NewMetrics(prometheus.NewRegistry()), Log: zap.NewNop(),
	}
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivity(a)
	return a, env
}

// machine adds the row of a server.
func (p *placing) machine(id string, status server.Status, attempt int, providerID string) {
	p.T.Helper()
	p.Exec(`INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, attempt, provider_server_id, host)
		VALUES ($1, '\x00', 'app', 'eu', 'hetzner', '{}', $2, 'w', 'a', $3, NULLIF($4, ''), '192.0.2.1')`, id, status, attempt, providerID)
}

// line adds a line of the ledger; one without provider id is of unknown outcome.
func (p *placing) line(kind server.ResourceKind, name, providerID string, serverID prego.ServerID, attempt int) {
	p.T.Helper()
	var err error
	if providerID == "" {
		err = p.Store.Intend(context.Background(), prego.ProviderHetzner, serverID, attempt, server.ResourceIntent{Kind: kind, Name: name})
	} else {
		err = p.Store.ConfirmCreated(context.Background(), prego.ProviderHetzner, serverID, attempt, kind, name, providerID)
	}
	require.NoError(p.T, err)
}

// open are the names of a server's lines that are not closed.
func (p *placing) open(serverID prego.ServerID) (names []string) {
	p.T.Helper()
	lines, err := p.Store.LiveResources(context.Background(), serverID)
	require.NoError(p.T, err)
	for _, l := range lines {
		names = append(names, l.Name)
	}
	return names
}

// TestDestroyingTakesDownAttemptsUpToOne: what the labels name and what the ledger
// does, each once, and nothing of a later attempt or of another server.
func TestDestroyingTakesDownAttemptsUpToOne(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.machine("srv-1", server.Provisioning, 2, "20")
	p.line(server.ResourceServer, "srv-1", "20", "srv-1", 2)
	p.line(server.ResourceServer, "srv-1-unlabelled", "21", "srv-1", 2)
	p.line(server.ResourceServer, "srv-1-taken-over", "30", "srv-1", 2) // its label is 3
	p.line(server.ResourcePrimaryIP, "ip", "22", "srv-1", 2)
	p.line(server.ResourceVolume, "volume", "23", "srv-1", 1)
	p.line(server.ResourceVolume, "volume-3", "33", "srv-1", 3)
	p.line(server.ResourceServer, "srv-1-3", "31", "srv-1", 3)
	c := &cloud{}
	c.has(server.ResourceServer, "10", "srv-1", "srv-1", 1) // which the ledger lost
	c.has(server.ResourceServer, "20", "srv-1", "srv-1", 2)
	c.has(server.ResourceServer, "30", "srv-1-taken-over", "srv-1", 3)
	c.has(server.ResourceServer, "31", "srv-1-3", "srv-1", 3)
	c.has(server.ResourceServer, "90", "srv-2", "srv-2", 1)
	a, env := p.servers(c, p.Store)
	in := activities.DestroyInput{ServerID: "srv-1", Attempt: 2, Reason: prego.ReasonDecommission}
	for i, want := range [][]string{{"primary_ip/22", "server/10", "server/20", "server/21", "volume/23"}, nil, nil} {
		if i == 2 {
			p.line(server.ResourceServer, "srv-1-taken-over", "30", "srv-1", 2)
		}
		v, err := env.ExecuteActivity(a.DestroyServer, in)
		require.NoError(t, err)
		var r activities.DestroyResult
		require.NoError(t, v.Get(&r))
		require.Zero(t, r.Unresolved)
		require.Equal(t, want, c.deleted())
		require.Equal(t, []string{"volume-3", "srv-1-3"}, p.open("srv-1"))
		require.Equal(t, 1, p.Number(`SELECT count(*) FROM servers WHERE provider_server_id IS NULL AND host = ''`))
		require.Equal(t, 1, p.Number(`SELECT count(*) FROM server_events WHERE step = 'attempt_destroyed' AND attempt = 2`))
	}
}

// TestAServerInUseIsNotDestroyed whatever asks for it: not before its deletion was accepted, which lifts the provider's
// protection.
func TestAServerInUseIsNotDestroyed(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.machine("srv-1", server.Failed, 1, "10")
	p.Exec(`UPDATE servers SET tenant_count = 1 WHERE server_id = 'srv-1'`)
	c := &cloud{}
	c.has(server.ResourceServer, "10", "srv-1", "srv-1", 1)
	require.NoError(t, c.Protect(t.Context(), server.ResourceServer, "10", true))
	p.line(server.ResourceServer, "srv-1", "10", "srv-1", 1)
	a, env := p.servers(c, p.Store)
	in := activities.DestroyInput{ServerID: "srv-1", Attempt: 1, Reason: prego.ReasonDecommission}
	_, err := env.ExecuteActivity(a.DestroyServer, in)
	require.ErrorContains(t, err, "server 10 is not deleted: server srv-1 is failed and has 1 tenants")
	require.Empty(t, c.deleted())
	require.True(t, c.things[0].Protected)

	p.Exec(`UPDATE servers SET status = 'draining' WHERE server_id = 'srv-1'`)
	_, err = env.ExecuteActivity(a.DestroyServer, in)
	require.ErrorContains(t, err, "this database does not know that it was used")
	require.Empty(t, c.deleted())

	_, err = p.Store.NoteProtection(t.Context(), prego.ProviderHetzner, server.ResourceServer, "10")
	require.NoError(t, err)
	c.fails = map[string]error{"Protect": &server.InfraError{Class: server.InfraRetry, Code: "locked"}}
	_, err = env.ExecuteActivity(a.DestroyServer, in)
	require.ErrorContains(t, err, "locked")
	require.Empty(t, c.deleted())
	c.fails = nil
	_, err = env.ExecuteActivity(a.DestroyServer, in)
	require.NoError(t, err)
	require.Equal(t, []string{"server/10"}, c.deleted())
}

func (c *cloud) PowerOff(_ context.Context, id prego.ServerID) error {
	c.off = append(c.off, string(id))
	return c.fails["PowerOff"]
}

// TestALostServersMachineIsKept, switched off, until the tenants that were lost with it have a site again: it has their
// newest data.
func TestALostServersMachineIsKept(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.machine("srv-1", server.Decommissioning, 1, "10")
	p.line(server.ResourceServer, "srv-1", "10", "srv-1", 1)
	p.Server("app-0", prego.RoleApp, "")
	id := p.Tenant(prego.PlanStarter, nil).TenantID
	p.Exec(`UPDATE tenants SET state = 'failed', status_reason = 'server_lost', lost_at = now()`)
	p.Exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name,
		infra_provider, algorithm, released_at) VALUES ($1, 'srv-1', 'srv-1', 'srv-1', 's', 'd', 'hetzner', 'best_fit', now())`, id)
	p.Exec(`INSERT INTO tenant_losses (tenant_id, allocation_id, server_id, state, lost_at)
		SELECT tenant_id, allocation_id, 'srv-1', 'active', now() FROM tenant_allocations`)
	c := &cloud{}
	c.has(server.ResourceServer, "10", "srv-1", "srv-1", 1)
	a, env := p.servers(c, p.Store)
	destroy := func() activities.DestroyResult {
		t.Helper()
		v, err := env.ExecuteActivity(a.DestroyServer, activities.DestroyInput{ServerID: "srv-1", Attempt: 1})
		require.NoError(t, err)
		var r activities.DestroyResult
		require.NoError(t, v.Get(&r))
		return r
	}

	require.Equal(t, activities.DestroyResult{Unrestored: 1}, destroy())
	require.Equal(t, []string{"10"}, c.off)
	require.Empty(t, c.deleted())
	p.line(server.ResourceVolume, "srv-1-data", "11", "srv-1", 1)
	for kind, id := range map[server.ResourceKind]string{server.ResourceServer: "10", server.ResourceVolume: "11"} {
		require.ErrorContains(t, p.Store.MayDelete(t.Context(), prego.ProviderHetzner, kind, id), "is not restored")
	}
	things := c.things
	c.things = nil
	require.Equal(t, activities.DestroyResult{Unrestored: 1}, destroy(), "the machine is gone, and its volume is not")
	require.Empty(t, c.deleted())
	c.things = things

	p.Exec(`UPDATE tenants SET state = 'active'; `)
	p.Exec(`UPDATE tenant_losses SET restored_at = now()`)
	require.Zero(t, destroy())
	require.Equal(t, []string{"server/10", "volume/11"}, c.deleted())
}

// TestACreateOfUnknownOutcomeIsWaitedFor for as long as it may still land: then all resources with
// its name are deleted. A server that was found settles its attachments, but no volume, which was
// made before it.
func TestACreateOfUnknownOutcomeIsWaitedFor(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.machine("srv-1", server.Provisioning, 1, "")
	lines := func() {
		p.Exec(`DELETE FROM resources`)
		p.line(server.ResourceServer, "s", "", "srv-1", 1)
		p.line(server.ResourcePrimaryIP, "ip", "", "srv-1", 1)
		p.line(server.ResourceVolume, "v", "", "srv-1", 1)
	}
	c := &cloud{}
	a, env := p.servers(c, p.Store)
	destroy := func() int {
		t.Helper()
		v, err := env.ExecuteActivity(a.DestroyServer, activities.DestroyInput{ServerID: "srv-1", Attempt: 1})
		require.NoError(t, err)
		var r activities.DestroyResult
		require.NoError(t, v.Get(&r))
		return r.Unresolved
	}
	lines()
	require.Equal(t, 3, destroy())
	require.Len(t, p.open("srv-1"), 3)
	c.has(server.ResourceServer, "1", "s", "srv-1", 1)
	require.Equal(t, 1, destroy())
	require.Equal(t, []string{"server/1"}, c.deleted())
	require.Equal(t, []string{"v"}, p.open("srv-1"))

	lines()
	p.Exec(`UPDATE resources SET intended_at = now() - interval '61 minutes'`)
	c.has(server.ResourceVolume, "2", "v", "", 0)
	c.has(server.ResourceVolume, "3", "w", "", 0)
	c.has(server.ResourceFirewall, "4", "v", "", 0)
	c.has(server.ResourceVolume, "5", "v", "", 0)
	require.Zero(t, destroy())
	require.Equal(t, []string{"volume/2", "volume/5"}, c.deleted())
	require.Empty(t, p.open("srv-1"))
}

var errStore = errors.New("the database is away")

// stumbling is a store whose statements with a text fail.
func (p *placing) stumbling(at string) *store.Store {
	return store.New(pgtest.Tapped(p.T, p.Pool, func(sql string, _ []any) error {
		if strings.Contains(sql, at) {
			return errStore
		}
		return nil
	}))
}

// TestADestructionThatStumblesIsNotOver: wherever it does, it is an error that is
// repeated, and what the provider did not delete stays in the ledger.
func TestADestructionThatStumblesIsNotOver(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.machine("srv-1", server.Provisioning, 1, "1")
	p.line(server.ResourceServer, "s", "1", "srv-1", 1)
	p.line(server.ResourceVolume, "v", "2", "srv-1", 1)
	p.line(server.ResourceVolume, "w", "", "srv-1", 1)
	p.Exec(`UPDATE resources SET intended_at = now() - interval '61 minutes'`)
	no := &server.InfraError{Class: server.InfraPermanent, Code: "protected", Message: "no"}
	for _, tc := range []struct {
		at   string
		left []string
	}{
		{"failure ON true", []string{"s", "v", "w"}},
		{"SET identity_revoked_at", []string{"s", "v", "w"}},
		{"FROM resources WHERE server_id = $1 AND state <> 'released'", []string{"s", "v", "w"}},
		{"FindServers", []string{"s", "v", "w"}},
		{"server/1", []string{"s", "v", "w"}},
		{"volume/2", []string{"v", "w"}},
		{"SET state = 'released'", []string{"s", "v", "w"}},
		{"ListOwned", []string{"w"}},
		{"volume/3", []string{"w"}},
	} {
		at := tc.at
		c := &cloud{fails: map[string]error{at: no}}
		c.has(server.ResourceServer, "1", "s", "srv-1", 1)
		c.has(server.ResourceVolume, "2", "v", "srv-1", 1)
		c.has(server.ResourceVolume, "3", "w", "", 0)
		a, env := p.servers(c, p.stumbling(at))
		p.Exec(`UPDATE resources SET state = 'releasing'`)
		_, err := env.ExecuteActivity(a.DestroyServer, activities.DestroyInput{ServerID: "srv-1", Attempt: 1})
		require.Error(t, err, at)
		var app *temporal.ApplicationError
		require.ErrorAs(t, err, &app, at)
		require.Equal(t, at == "FindServers", app.NonRetryable(), "%s: only a deletion that is refused is asked for again", at)
		require.Zero(t, p.Number(`SELECT count(*) FROM server_events WHERE step = 'attempt_destroyed'`), at)
		require.Equal(t, tc.left, p.open("srv-1"), at)
	}
	c := &cloud{fails: map[string]error{"server/1": &server.InfraError{Class: server.InfraThrottled, RetryAfter: 7 * time.Second}}}
	c.has(server.ResourceServer, "1", "s", "srv-1", 1)
	a, env := p.servers(c, p.Store)
	_, err := env.ExecuteActivity(a.DestroyServer, activities.DestroyInput{ServerID: "srv-1", Attempt: 1})
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.Equal(t, 7*time.Second, app.NextRetryDelay())
	delete(a.Infra, prego.ProviderHetzner)
	_, err = env.ExecuteActivity(a.DestroyServer, activities.DestroyInput{ServerID: "srv-1", Attempt: 1})
	require.ErrorContains(t, err, "no adapter")
}

// counted is a metric's current value.
func counted(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	require.NoError(t, m.Write(&out))
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// TestOnlyADrainingServerIsDecommissioned, and it ends when nothing is left.
func TestOnlyADrainingServerIsDecommissioned(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	for status, want := range map[server.Status]string{
		server.Decommissioning: "", server.Terminated: "", server.Active: "superseded", server.Failed: "superseded", server.Provisioning: "superseded",
	} {
		p.machine("srv-"+string(status), status, 3, "")
		a, _ := p.servers(&cloud{}, p.Store)
		plan, err := a.PlanDecommission(t.Context(), prego.ServerID("srv-"+string(status)))
		require.Equal(t, activities.DecommissionPlan{Role: prego.RoleApp, Region: "eu", Attempt: 3, Done: status == server.Terminated}, plan)
		if want == "" {
			require.NoError(t, err, status)
			continue
		}
		var app *temporal.ApplicationError
		require.ErrorAs(t, err, &app, status)
		require.Equal(t, want, app.Type())
	}
	a, _ := p.servers(&cloud{}, p.Store)
	_, err := a.PlanDecommission(t.Context(), "nobody")
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.Equal(t, "permanent", app.Type())

	p.line(server.ResourceVolume, "v", "1", "srv-draining", 3)
	require.Error(t, a.TerminateServer(t.Context(), "srv-draining"), "it owns a volume")
	p.Exec(`UPDATE resources SET state = 'released'`)
	broken, _ := p.servers(&cloud{}, p.stumbling("SELECT 'server', s.server_id"))
	require.ErrorIs(t, broken.TerminateServer(t.Context(), "srv-draining"), errStore)
	require.Zero(t, p.Number(`SELECT count(*) FROM servers WHERE server_id = 'srv-draining' AND status = 'terminated'`))
	for range 2 {
		require.NoError(t, a.TerminateServer(t.Context(), "srv-draining"))
		require.Equal(t, 1, p.Number(`SELECT count(*) FROM servers WHERE server_id = 'srv-draining' AND status = 'terminated'`))
		require.Equal(t, 1, p.Number(`SELECT count(*) FROM server_events WHERE step = 'server_deleted'`))
	}
	require.NoError(t, a.NoteCleanupIncomplete(t.Context(), activities.NoteInput{Server: activities.ServerRef{ServerID: "srv-failed", Attempt: 3}, Message: "m"}))
	require.InDelta(t, 1, counted(t, a.Metrics.Cleanup), 0)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM server_events WHERE step = 'cleanup_incomplete' AND attempt = 3`))
}

// TestAServersRefusedDeletionIsOnItsTimeline: with the first refusal, each text once, and in status until it is gone.
func TestAServersRefusedDeletionIsOnItsTimeline(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.machine("srv-1", server.Decommissioning, 1, "1")
	p.Exec(`UPDATE servers SET status_reason = 'decommission_requested', decommission_requested_at = now()`)
	p.line(server.ResourceServer, "s", "1", "srv-1", 1)
	destroy := func(no error) error {
		c := &cloud{fails: map[string]error{"server/1": no}}
		c.has(server.ResourceServer, "1", "s", "srv-1", 1)
		a, env := p.servers(c, p.Store)
		_, err := env.ExecuteActivity(a.DestroyServer, activities.DestroyInput{ServerID: "srv-1", Attempt: 1})
		return err
	}
	told := func() (out []string) {
		rows, err := p.Pool.Query(t.Context(),
			`SELECT message FROM server_events WHERE step = 'deletion_refused' ORDER BY 1`)
		require.NoError(t, err)
		out, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return out
	}
	refusal := func(class server.InfraClass, code, message string) error {
		return &server.InfraError{Class: class, Code: code, Message: message}
	}
	require.Error(t, destroy(refusal(server.InfraRetry, "unavailable", "later")))
	require.Empty(t, told(), "it passes by itself")
	for range 2 {
		require.Error(t, destroy(refusal(server.InfraPermanent, "locked", "it is in a plan")))
	}
	require.Len(t, told(), 1)
	require.Contains(t, told()[0], "it is in a plan")
	found, _, err := p.Store.Attention(t.Context(), attention.Limits{})
	require.NoError(t, err)
	i := slices.IndexFunc(found, func(f attention.Finding) bool { return f.Kind == attention.ServerStuck })
	require.GreaterOrEqual(t, i, 0)
	require.Equal(t, told()[0], found[i].Message)
	require.Error(t, destroy(refusal(server.InfraPermanent, server.InfraProtected, "protected")))
	require.Len(t, told(), 2)
	require.Contains(t, told()[1], "holds_data", "protected by another database's state")
	require.NoError(t, destroy(nil))
}
