package activities_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
	"github.com/prego/prego/server"
	"github.com/prego/prego/store"
)

// agentsFunc stands for the agents on hosts.
type agentsFunc func(in wire.ExecRequest) (wire.ExecResult, error)

func (f agentsFunc) Exec(_ context.Context, _ prego.ServerID, _ string, in wire.ExecRequest) (wire.ExecResult, error) {
	return f(in)
}

func TestEachCommandHasItsRowBeforeAndAfter(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Server("app-0", prego.RoleApp, "")
	rows := func() []server.AuditedCommand {
		list, _, err := store.Commands.In(p.Store)(t.Context(), prego.ListQuery{Limit: 50}.Of("server_id", "app-0"))
		require.NoError(t, err)
		return list
	}
	row := func(id string) (found server.AuditedCommand) {
		for _, r := range rows() {
			if r.AuditID == id {
				found = r
			}
		}
		require.Equal(t, id, found.AuditID)
		return found
	}
	var asked wire.ExecRequest
	run := func(id string, answer func() (wire.ExecResult, error), args ...string) (string, error) {
		c := &activities.Commander{Audit: p.Store, Agents: agentsFunc(func(in wire.ExecRequest) (wire.ExecResult, error) {
			asked = in
			before := row(id)
			require.NotNil(t, before.StartedAt, "the row is there before the command runs")
			return answer()
		})}
		return c.Bench(t.Context(), server.BenchCommand{
			ServerID: "app-0", Addr: "127.0.0.1", WorkflowID: "tenant-provision/t-1", AuditID: id, TenantID: "t-1", Timeout: 1500 * time.Millisecond, Args: args,
		})
	}
	const secret = "hunter2-hunter2"

	out, err := run("good", func() (wire.ExecResult, error) {
		return wire.ExecResult{StdoutTruncated: "set to " + secret + "\n", StderrTruncated: "token=abcdef", DurationMs: 12}, nil
	}, "--site", "a.example.com", "set-config", "admin_password", secret)
	require.NoError(t, err)
	require.Equal(t, "set to [redacted]\n", out)
	require.Equal(t, wire.ExecRequest{
		WorkflowID: "tenant-provision/t-1", Kind: wire.KindBench, AuditID: "good", TenantID: "t-1", TimeoutSeconds: 2,
		Args: []string{"--site", "a.example.com", "set-config", "admin_password", secret},
	}, asked, "exactly the requested commands run")
	r := row("good")
	require.Equal(t, "--site a.example.com set-config admin_password …", r.Args)
	require.Equal(t, []any{0, int64(12), "set to [redacted]\n", "token=[redacted]", prego.ActorWorkflow, "tenant-provision/t-1", "bench"},
		[]any{*r.ExitCode, *r.DurationMs, r.Stdout, r.Stderr, r.Actor, r.WorkflowID, r.Kind})
	require.NotNil(t, r.FinishedAt)

	_, err = run("bad", func() (wire.ExecResult, error) {
		return wire.ExecResult{ExitCode: 1, StderrTruncated: "no: password=" + secret}, nil
	}, "list-sites")
	var ce *server.CommandError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, []any{1, true, server.CommandFailed, "no: password=[redacted]"}, []any{ce.ExitCode, ce.Permanent, ce.Code, ce.Stderr})
	require.Equal(t, 1, *row("bad").ExitCode)

	_, err = run("slow", func() (wire.ExecResult, error) { return wire.ExecResult{ExitCode: 124}, nil }, "list-sites")
	require.ErrorAs(t, err, &ce)
	require.Equal(t, server.CommandTimeout, ce.Code)

	// The host is away: the outcome is unknown until the same id is sent again.
	away := &server.CommandError{Kind: "bench", Code: server.CommandUnreachable, Message: "dial: password=" + secret, Stderr: "token=abcdef"}
	_, err = run("away", func() (wire.ExecResult, error) { return wire.ExecResult{}, away }, "list-sites")
	require.ErrorAs(t, err, &ce)
	require.False(t, ce.Permanent)
	require.Equal(t, []string{"dial: password=[redacted]", "token=[redacted]"}, []string{ce.Message, ce.Stderr}, "it goes into a history")
	r = row("away")
	require.Nil(t, r.ExitCode)
	require.NotNil(t, r.FinishedAt)
	require.Contains(t, r.Stderr, "outcome unknown")
	_, err = run("away", func() (wire.ExecResult, error) { return wire.ExecResult{StdoutTruncated: "a.example.com\n"}, nil }, "list-sites")
	require.NoError(t, err)
	r = row("away")
	require.Equal(t, []any{0, "a.example.com\n", ""}, []any{*r.ExitCode, r.Stdout, r.Stderr})
	_, err = run("away", func() (wire.ExecResult, error) { return wire.ExecResult{}, away }, "list-sites")
	require.ErrorAs(t, err, &ce)
	require.Equal(t, server.CommandUnreachable, ce.Code)
	require.Equal(t, 0, *row("away").ExitCode, "a known outcome is kept")

	_, err = run("refused", func() (wire.ExecResult, error) {
		return wire.ExecResult{}, &server.CommandError{Kind: "bench", Permanent: true, Code: "site_not_owned", Message: "args: the site belongs to another tenant"}
	}, "list-sites")
	require.ErrorAs(t, err, &ce)
	require.True(t, ce.Permanent)
	require.Equal(t, "refused: site_not_owned: args: the site belongs to another tenant", row("refused").Stderr)

	_, err = run("given-up", func() (wire.ExecResult, error) { return wire.ExecResult{}, context.DeadlineExceeded }, "list-sites")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Nil(t, row("given-up").ExitCode)

	// The rest of a secret that the host cut in two.
	_, err = run("long", func() (wire.ExecResult, error) {
		return wire.ExecResult{StdoutTruncated: "ter2-hunter2 " + strings.Repeat("x ", server.MaxAuditedOutput/2-6)}, nil
	}, "list-sites")
	require.NoError(t, err)
	require.NotContains(t, row("long").Stdout, "ter2")

	require.Equal(t, 1, p.Number(`SELECT count(*) FROM agent_command_audit WHERE audit_id = 'away'`))
	require.Zero(t, p.Number(`SELECT count(*) FROM agent_command_audit a WHERE a::text LIKE '%' || $1 || '%'`, secret))
}

func TestNothingRunsUnaudited(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Server("app-0", prego.RoleApp, "")
	for at, runs := range map[string]bool{"INTO agent_command_audit": false, "UPDATE agent_command_audit": true} {
		ran := false
		c := &activities.Commander{Audit: p.stumbling(at), Agents: agentsFunc(func(wire.ExecRequest) (wire.ExecResult, error) {
			ran = true
			return wire.ExecResult{}, nil
		})}
		_, err := c.Bench(t.Context(), server.BenchCommand{ServerID: "app-0", AuditID: "x", Args: []string{"list-sites"}})
		require.ErrorIs(t, err, errStore, "the step is repeated, and the row completed then")
		var ce *server.CommandError
		require.False(t, errors.As(err, &ce))
		require.Equal(t, runs, ran)
		ran = false
		done, err := c.BenchAll(t.Context(), []server.BenchCommand{{ServerID: "app-0", AuditID: "x", Args: []string{"list-sites"}}})
		require.ErrorIs(t, err, errStore)
		require.Zero(t, done, "all of them are repeated")
		require.Equal(t, runs, ran)
	}
}

// TestHostsAreToldWholeSeconds: a part of one counts as one.
func TestHostsAreToldWholeSeconds(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 1)
	p.Server("app-0", prego.RoleApp, "")
	for timeout, want := range map[time.Duration]int{0: 0, 1: 1, time.Second: 1, 2 * time.Second: 2, 2*time.Second + 1: 3} {
		var asked wire.ExecRequest
		c := &activities.Commander{Audit: p.Store, Agents: agentsFunc(func(in wire.ExecRequest) (wire.ExecResult, error) {
			asked = in
			return wire.ExecResult{}, nil
		})}
		_, err := c.Bench(t.Context(), server.BenchCommand{ServerID: "app-0", AuditID: timeout.String(), Timeout: timeout, Args: []string{"list-sites"}})
		require.NoError(t, err)
		require.Equal(t, want, asked.TimeoutSeconds, "%s", timeout)
	}
}

// TestCommandsInTurn: their rows exist before the first command runs, the first failure ends them,
// and a repeated step runs the missing ones.
func TestCommandsInTurn(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 1)
	p.Server("app-0", prego.RoleApp, "")
	var ran []string
	fails := "b"
	c := &activities.Commander{Audit: p.Store, Agents: agentsFunc(func(in wire.ExecRequest) (wire.ExecResult, error) {
		if len(ran) == 0 {
			require.Equal(t, 3, p.Number(`SELECT count(*) FROM agent_command_audit WHERE started_at IS NULL`), "asked for, and not begun")
		}
		ran = append(ran, in.AuditID)
		if in.AuditID == fails {
			return wire.ExecResult{ExitCode: 1, StderrTruncated: "no"}, nil
		}
		return wire.ExecResult{StdoutTruncated: "did " + in.AuditID, DurationMs: 5}, nil
	})}
	var commands []server.BenchCommand
	for _, id := range []string{"a", "b", "c"} {
		commands = append(commands, server.BenchCommand{ServerID: "app-0", AuditID: id, Args: []string{"list-sites"}})
	}
	done, err := c.BenchAll(t.Context(), commands)
	var ce *server.CommandError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, 1, done)
	require.Equal(t, []string{"a", "b"}, ran)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM agent_command_audit WHERE audit_id = 'a' AND exit_code = 0 AND stdout_truncated = 'did a' AND finished_at >= started_at AND started_at >= requested_at - interval '1 second'`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM agent_command_audit WHERE audit_id = 'b' AND exit_code = 1 AND stderr_truncated = 'no'`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM agent_command_audit WHERE audit_id = 'c' AND exit_code IS NULL AND started_at IS NULL AND stderr_truncated LIKE 'not run%'`))

	fails, ran = "", []string{"again"}
	done, err = c.BenchAll(t.Context(), commands)
	require.NoError(t, err)
	require.Equal(t, 3, done)
	require.Equal(t, 3, p.Number(`SELECT count(*) FROM agent_command_audit WHERE exit_code = 0 AND started_at IS NOT NULL`))
}

// TestCommandsThatEraseAskTheGate: all of the table, from whatever run they come. Others need not ask.
func TestCommandsThatEraseAskTheGate(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.Server("app-0", prego.RoleApp, "")
	p.Server("redis-0", prego.RoleRedisPool, "")
	p.Exec(`UPDATE redis_pools SET server_id = 'app-0'`)
	id := p.Tenant(prego.PlanStarter, nil).TenantID
	p.Exec(`UPDATE tenants SET state = 'active', site = 't-1.example.com'`)
	p.Exec(`INSERT INTO tenant_allocations (tenant_id, app_server_id, db_shard_id, redis_pool_id, site_name, database_name, infra_provider, algorithm)
		SELECT $1, 'app-0', 'app-0', pool_id, 't-1.example.com', 'pool_t1', 'hetzner', 'best_fit' FROM redis_pools`, id)
	p.Exec(`UPDATE tenant_allocations SET on_shard = false, on_pool = true`)
	p.Exec(`INSERT INTO snapshots (snapshot_id, org_id, tenant_id, server_id, site, status, created_by)
		SELECT 'snp-1', org_id, tenant_id, 'app-0', site, 'succeeded', 'test' FROM tenants`)
	asked := 0
	c := &activities.Commander{Audit: p.Store, Agents: agentsFunc(func(wire.ExecRequest) (wire.ExecResult, error) {
		asked++
		return wire.ExecResult{}, nil
	})}
	words := strings.NewReplacer("SITE", "t-1.example.com", "OURDB", "pool_t1", "CACHEDB", "3", "BACKUP", "snp-1")
	for kind, rules := range policy.Rules {
		for _, r := range rules {
			asked = 0
			args := strings.Fields(words.Replace(r.Line))
			if r.Effect != policy.Erases {
				require.NoError(t, p.Store.MayRun(t.Context(), "app-0", kind, args), r.Line)
				continue
			}
			b := server.BenchCommand{
				ServerID: "app-0", Addr: "127.0.0.1", WorkflowID: "w", AuditID: "a-" + r.Name(), Kind: string(kind), Timeout: time.Second,
				Args: args,
			}
			_, err := c.Bench(t.Context(), b)
			_, errAll := c.BenchAll(t.Context(), []server.BenchCommand{b})
			require.ErrorContains(t, err, "holds_data: ", r.Line)
			require.ErrorContains(t, errAll, "holds_data: ", r.Line)
			require.Zero(t, asked, r.Line)
		}
	}
}
