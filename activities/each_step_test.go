package activities_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/lab/deep"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
	"github.com/prego/prego/tenant"
)

// fault fails one of the calls that a run's steps make outside of their process: to the database, a provider or a host.
type fault struct {
	n, at int    // calls so far, and the one that fails; 0 for none
	lost  bool   // it acts, and its answer is lost
	twice bool   // each step runs twice
	where string // what failed
}

var errAway = errors.New("it is away")

func (f *fault) call(what string, act func() error) error {
	f.n++
	if f.n != f.at {
		return act()
	}
	f.where = what
	if f.lost {
		_ = act()
	}
	return errAway
}

// store fails statements. One whose answer is lost is as one before the next call, and is not played.
func (f *fault) store(p *placing) *store.Store {
	return store.New(pgtest.Tapped(p.T, p.Pool, func(sql string, _ []any) error {
		if f.lost {
			return nil
		}
		return f.call(sql, func() error { return nil })
	}))
}

// faultyCloud is a provider whose calls fail.
type faultyCloud struct {
	*cloud
	*fault
}

func (c faultyCloud) infra(what string, act func() error) error {
	err := c.call(what, act)
	if errors.Is(err, errAway) {
		return &server.InfraError{Class: server.InfraRetry, Code: "away", Message: what}
	}
	return err
}

func (c faultyCloud) FindServers(ctx context.Context, id prego.ServerID) (found []server.Handle, err error) {
	err = c.infra("FindServers", func() error { found, err = c.cloud.FindServers(ctx, id); return err })
	return found, err
}

func (c faultyCloud) ListOwned(ctx context.Context) (owned []server.OwnedResource, err error) {
	err = c.infra("ListOwned", func() error { owned, err = c.cloud.ListOwned(ctx); return err })
	return owned, err
}

func (c faultyCloud) DestroyServer(ctx context.Context, id prego.ServerID) error {
	return c.infra("DestroyServer", func() error { return c.cloud.DestroyServer(ctx, id) })
}

func (c faultyCloud) DeleteResource(ctx context.Context, kind server.ResourceKind, id prego.ServerID) error {
	return c.infra("DeleteResource", func() error { return c.cloud.DeleteResource(ctx, kind, id) })
}

func (c faultyCloud) Protect(ctx context.Context, kind server.ResourceKind, id string, on bool) error {
	return c.infra("Protect", func() error { return c.cloud.Protect(ctx, kind, id, on) })
}

// faultyHosts are hosts whose commands fail.
type faultyHosts struct {
	*hosts
	*fault
}

func (h faultyHosts) Bench(ctx context.Context, c server.BenchCommand) (out string, err error) {
	err = h.call(strings.Join(c.Args, " "), func() error { out, err = h.hosts.Bench(ctx, c); return err })
	if errors.Is(err, errAway) {
		err = &server.CommandError{Kind: "bench", Code: server.CommandUnreachable, Message: "it is away"}
	}
	return out, err
}

func (h faultyHosts) BenchAll(ctx context.Context, cs []server.BenchCommand) (done int, err error) {
	for _, c := range cs {
		if _, err := h.Bench(ctx, c); err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

// played is what a run leaves: in the rows, at the provider and on the hosts.
type played struct{ rows, things, commands []string }

// run runs the steps of a run, as Temporal does: one that fails is repeated.
func (f *fault) run(t *testing.T, env *testsuite.TestActivityEnvironment, steps ...[2]any) {
	t.Helper()
	for _, s := range steps {
		times := 1
		if f.twice {
			times = 2
		}
		for range times {
			err := errAway
			for try := 0; err != nil; try++ {
				if _, err = env.ExecuteActivity(s[0], s[1]); err != nil {
					var app *temporal.ApplicationError
					require.ErrorAs(t, err, &app)
					require.False(t, app.NonRetryable(), "%s: %v", f.where, err)
					require.Less(t, try, 3, "%s: %v", f.where, err)
				}
			}
		}
	}
}

// rowsOf are the rows of tables without times and counters, and the events without repetitions. Names that differ from
// one database to the next are replaced.
func (p *placing) rowsOf(names map[string]string) (out []string) {
	p.T.Helper()
	for _, table := range []string{
		"servers", "resources", "tenants", "tenant_allocations", "tenant_losses", "db_shards", "redis_pools",
		"site_pool", "restore_jobs", "backups", "server_bootstrap_tokens",
		"(SELECT DISTINCT kind, id, status, step, reason FROM events)",
	} {
		rows, err := p.Pool.Query(context.Background(), `SELECT to_jsonb(x) FROM `+table+` x`)
		require.NoError(p.T, err)
		for rows.Next() {
			var row map[string]any
			require.NoError(p.T, rows.Scan(&row))
			for k := range row {
				if strings.HasSuffix(k, "_at") || strings.HasSuffix(k, "_since") {
					row[k] = row[k] != nil
				}
			}
			delete(row, "request_hash")
			delete(row, "changed_xid")
			text, err := json.Marshal(row)
			require.NoError(p.T, err)
			line := table + " " + string(text)
			for _, name := range slices.Sorted(maps.Keys(names)) {
				line = strings.ReplaceAll(line, name, names[name])
			}
			out = append(out, line)
		}
		require.NoError(p.T, rows.Err())
	}
	slices.Sort(out)
	return out
}

func (h *hosts) distinct(names map[string]string) (out []string) {
	for _, c := range h.ran {
		line := strings.Join(c, " ")
		for _, name := range slices.Sorted(maps.Keys(names)) {
			line = strings.ReplaceAll(line, name, names[name])
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// deleteServer is the run that takes a server with all that it owns down.
func deleteServer(t *testing.T, f *fault) played {
	p := newPlacing(t, 4)
	p.machine("srv-1", server.Decommissioning, 1, "1")
	p.line(server.ResourceServer, "s", "1", "srv-1", 1)
	p.line(server.ResourceVolume, "v", "2", "srv-1", 1)
	p.line(server.ResourceVolume, "w", "", "srv-1", 1) // of unknown outcome
	p.Exec(`UPDATE resources SET intended_at = now() - interval '61 minutes'`)
	c := &cloud{}
	c.has(server.ResourceServer, "1", "s", "srv-1", 1)
	c.has(server.ResourceVolume, "2", "v", "srv-1", 1)
	c.has(server.ResourceVolume, "3", "w", "", 0)
	c.has(server.ResourceServer, "4", "other", "srv-2", 1)
	c.things[0].Protected = true // since it was in use
	_, err := p.Store.NoteProtection(t.Context(), prego.ProviderHetzner, server.ResourceServer, "1")
	require.NoError(t, err)
	a, env := p.servers(c, f.store(p))
	a.Infra[prego.ProviderHetzner] = faultyCloud{c, f}
	destroy := activities.DestroyInput{ServerID: "srv-1", Attempt: 1, Reason: prego.ReasonDecommission}
	f.run(t, env,
		[2]any{a.PlanDecommission, prego.ServerID("srv-1")},
		[2]any{a.DestroyServer, destroy},
		[2]any{a.TerminateServer, prego.ServerID("srv-1")})
	var things []string
	for _, o := range c.things {
		things = append(things, fmt.Sprintf("%s %s", o.Kind, o.ProviderID))
	}
	require.Equal(t, []string{"server 4"}, things)
	return played{p.rowsOf(nil), things, nil}
}

// names are what a tenant's database and hosts call it.
func (p *placing) names() map[string]string {
	out := map[string]string{
		p.Text(`SELECT tenant_id FROM tenants`): "TENANT", p.Text(`SELECT slug FROM tenants`): "SLUG",
	}
	for i := range p.Number(`SELECT count(*) FROM tenant_allocations`) {
		at := fmt.Sprintf(` FROM tenant_allocations ORDER BY allocation_id LIMIT 1 OFFSET %d`, i)
		out[p.Text(`SELECT database_name`+at)] = fmt.Sprintf("DATABASE%d", i)
	}
	return out
}

// purgeTenant is the run that erases a tenant whose time is over.
func purgeTenant(t *testing.T, f *fault) played {
	p, s, ref := networked(t, false)
	_, err := s.env.ExecuteActivity(s.BuildTenant, ref)
	require.NoError(t, err)
	names := p.names()
	p.Exec(`UPDATE tenants SET state = 'data_purged'`)
	s.hosts.ran = nil
	s.Store, s.Bench = f.store(p), faultyHosts{s.hosts, f}
	f.run(t, s.env,
		[2]any{s.DropSite, activities.DropInput{TenantID: ref.TenantID}},
		[2]any{s.FreePlace, activities.FreePlaceInput{
			TenantID: ref.TenantID, Reason: string(tenant.DataPurged), Fate: tenant.SiteDropped,
		}},
		[2]any{s.TenantConverged, activities.ConvergedInput{TenantID: ref.TenantID, State: tenant.DataPurged}})
	return played{p.rowsOf(names), nil, s.hosts.distinct(names)}
}

// restoreLost is the step that restores a tenant elsewhere whose app server is lost.
func restoreLost(t *testing.T, f *fault) played {
	l := newLosing(t, "app-0", "")
	names := l.names()
	tapped := f.store(l.placing)
	l.Tenants.Store, l.Bench = tapped, faultyHosts{l.hosts, f}
	f.run(t, l.env, [2]any{l.BuildTenant, l.ref})
	require.Equal(t, 1, l.Number(`SELECT count(*) FROM tenants WHERE state = 'active'`))
	return played{l.rowsOf(names), nil, l.hosts.distinct(names)}
}

// TestEachStepFailsOnceAndRunsTwice: wherever one call of a run fails, before it acts or with its answer lost, and with
// each step run twice, the run ends as it does without.
func TestEachStepFailsOnceAndRunsTwice(t *testing.T) {
	t.Parallel()
	for name, story := range map[string]func(*testing.T, *fault) played{
		"a server is deleted": deleteServer, "a tenant is purged": purgeTenant,
		"a lost tenant is restored": restoreLost,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			count := func(lost bool) (played, []fault) {
				f := fault{lost: lost}
				end := story(t, &f)
				all := make([]fault, f.n)
				for i := range all {
					all[i] = fault{at: i + 1, lost: lost}
				}
				return end, all
			}
			want, calls := count(false)
			again, lost := count(true)
			require.Equal(t, want, again, "it ends the same each time")
			require.NotEmpty(t, want.rows)
			cases := append([]fault{{twice: true}}, deep.Some(t, 12, append(calls, lost...))...)
			for _, c := range cases {
				end := story(t, &c)
				require.True(t, c.twice || c.where != "", "call %d was not made", c.at)
				require.Equal(t, want, end, "call %d fails, answer lost %v: %s", c.at, c.lost, c.where)
			}
			t.Logf("%d calls, and %d with an answer to lose", len(calls), len(lost))
		})
	}
}
