package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
)

// TestReleaseIsRecordedBeforeDeletion: the server's resources are due for release, its token and its
// identity are revoked. Other attempts keep theirs.
func TestReleaseIsRecordedBeforeDeletion(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	bootingServer(t, s, "srv-1", time.Minute)
	exec(t, s, `UPDATE servers SET agent_first_seen_at = now(), agent_status = 'connected' WHERE server_id = 'srv-1'`)
	exec(t, s, `INSERT INTO resources (provider, kind, name, provider_id, server_id, attempt, state)
		VALUES ('hetzner', 'server', 'one', '1', 'srv-1', 1, 'created'), ('hetzner', 'primary_ip', 'one', NULL, 'srv-1', 1, 'intended'), ('hetzner', 'server', 'two', '2', 'srv-1', 2, 'created')`)
	require.NoError(t, s.BeginRelease(t.Context(), "srv-1", 1))
	require.Equal(t, 2, count(t, s, `resources WHERE attempt = 1 AND state = 'releasing' AND releasing_at IS NOT NULL`))
	require.Equal(t, 1, count(t, s, `resources WHERE attempt = 2 AND state = 'created'`))
	require.Equal(t, 1, count(t, s, `server_bootstrap_tokens WHERE server_id = 'srv-1' AND superseded_at IS NOT NULL`))
	require.Equal(t, 1, count(t, s, `servers WHERE server_id = 'srv-1' AND identity_revoked_at IS NOT NULL AND agent_status = 'disconnected'`))
	var since time.Time
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT min(releasing_at) FROM resources`).Scan(&since))
	require.NoError(t, s.BeginRelease(t.Context(), "srv-1", 1))
	require.Equal(t, 2, count(t, s, `resources WHERE releasing_at = (SELECT min(releasing_at) FROM resources)`), "a repetition changes nothing")
}

// TestCommandsAreInTheAudit before they run, and their ends after; an end that is known stays.
func TestCommandsAreInTheAudit(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	insertServer(t, s, "srv-1", "active")
	some := func(id string) server.Command {
		return server.Command{AuditID: id, ServerID: "srv-1", Kind: "bench", Actor: prego.ActorSystem}
	}
	code := 3
	require.NoError(t, s.BeginCommands(t.Context(), []server.Command{some("a"), some("b")}))
	require.NoError(t, s.BeginCommands(t.Context(), []server.Command{some("a")}), "a repeated command")
	require.Equal(t, 2, count(t, s, `agent_command_audit WHERE server_id = 'srv-1' AND finished_at IS NULL`))
	require.NoError(t, s.FinishCommands(t.Context(), []server.CommandOutcome{{AuditID: "a", ExitCode: &code, Stderr: "no", Duration: time.Second}}))
	require.NoError(t, s.FinishCommands(t.Context(), []server.CommandOutcome{{AuditID: "a"}}))
	require.Equal(t, 1, count(t, s, `agent_command_audit WHERE audit_id = 'a' AND finished_at IS NOT NULL AND exit_code = 3 AND stderr_truncated = 'no' AND duration_ms = 1000`))
	require.Equal(t, 1, count(t, s, `agent_command_audit WHERE finished_at IS NULL`), "the other one runs")
}

// TestCommandsOfDeadProcessesEnd: the row of a command whose process died before its end is closed after the command's
// time limit. A later end, of a process that was only slow, is still recorded.
func TestCommandsOfDeadProcessesEnd(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	insertServer(t, s, "srv-1", "active")
	some := func(id string, within time.Duration) server.Command {
		return server.Command{AuditID: id, ServerID: "srv-1", Kind: "bench", Actor: prego.ActorSystem, Within: within}
	}
	code := 0
	done := server.CommandOutcome{AuditID: "done", ExitCode: &code, Stderr: "quiet"}
	late := server.CommandOutcome{AuditID: "late", ExitCode: &code, Stderr: "slow"}
	bounded, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, s.BeginCommand(t.Context(), some("done", time.Second)))
	require.NoError(t, s.BeginCommand(t.Context(), some("late", time.Minute)))
	require.NoError(t, s.BeginCommand(bounded, some("bounded", 0)))
	require.NoError(t, s.BeginCommand(t.Context(), some("unbounded", 0)))
	require.NoError(t, s.BeginCommands(t.Context(), []server.Command{some("first", time.Minute), some("second",
		time.Minute)}))
	require.NoError(t, s.FinishCommand(t.Context(), "done", done))

	after := func(passed string, want int64) {
		t.Helper()
		_, err := s.pool.Exec(t.Context(), `UPDATE agent_command_audit SET ends_by = ends_by - $1::interval`, passed)
		require.NoError(t, err)
		n, err := s.EndLostCommands(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	after("110 seconds", 0)
	after("20 seconds", 1)
	require.Equal(t, 1, count(t, s, `agent_command_audit WHERE audit_id = 'late' AND finished_at IS NOT NULL AND
		exit_code IS NULL
		AND stderr_truncated = 'unknown: the process that ran it died'`))
	after("1 minute", 1) // bounded
	after("2 minutes", 2)
	after("1 day", 1)
	require.NoError(t, s.FinishCommand(t.Context(), "late", late))
	require.Equal(t, 2, count(t, s, `agent_command_audit WHERE exit_code = 0 AND stderr_truncated IN ('quiet',
		'slow')`))
}
