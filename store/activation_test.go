package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/server"
)

// TestActivationStats uses 100 servers that took 1 to 100 s, and others that don't count.
func TestActivationStats(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := New(pgtest.Pool(t))
	add := func(id, image string, seconds int, change string) {
		exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, location, image, created_at, active_at)
		            VALUES ($1, '', 'node', 'eu', 'hetzner', '{}', 'active', 'w', 'test', 'fsn1', $2, now() - interval '1 hour', now() - interval '1 hour' + make_interval(secs => $3))`, id, image, float64(seconds))
		if change != "" {
			exec(t, s, `UPDATE servers SET `+change+` WHERE server_id = $1`, id)
		}
	}
	for i := range 100 {
		add(fmt.Sprint("s-", i), "debian-12", 100-i, "")
	}
	add("gone", "debian-13", 130, `status = 'terminated'`)
	add("slow", "debian-13", 120, "")
	add("retried", "debian-12", 900, `generation = 2`)
	add("old", "debian-12", 900, `active_at = now() - interval '3 days', created_at = now() - interval '4 days'`)
	add("import", "debian-12", 900, `purpose = 'import_existing_server'`)
	add("booting", "debian-12", 900, `active_at = NULL, status = 'provisioning'`)
	got, err := s.ActivationStats(ctx, 48*time.Hour)
	require.NoError(t, err)
	for i := range got { // to what a clock's microseconds leave
		for _, v := range []*float64{&got[i].P50, &got[i].P95, &got[i].P99, &got[i].Max} {
			*v = float64(int(*v*100+0.5)) / 100
		}
	}
	require.Equal(t, []server.ActivationStats{
		{Role: "node", Location: "fsn1", Image: "debian-12", Servers: 100, P50: 50.5, P95: 95.05, P99: 99.01, Max: 100, InTime: 100},
		{Role: "node", Location: "fsn1", Image: "debian-13", Servers: 2, P50: 125, P95: 129.5, P99: 129.9, Max: 130, InTime: 1},
	}, got)
}

// TestServerAwaitsProvider: the row has the last cause and the timeline has each pause once. A server deleted
// in the meantime stops waiting.
func TestServerAwaitsProvider(t *testing.T) {
	t.Parallel()
	s, ctx := New(pgtest.Pool(t)), context.Background()
	exec(t, s, `INSERT INTO servers (server_id, request_hash, role, region, infra_provider, spec, status, workflow_id, created_by, generation)
		VALUES ('app-1', '', 'app', 'eu', 'hetzner', '{}', 'provisioning', 'w', 'test', 1)`)
	for _, message := range []string{"unavailable; tried again at 12:00:30", "unavailable; tried again at 12:02:30", "unavailable; tried again at 12:02:30"} {
		require.NoError(t, s.AwaitProvider(ctx, "app-1", 1, 1, message))
	}
	srv, err := s.GetServer(ctx, "app-1")
	require.NoError(t, err)
	require.Equal(t, []string{"awaiting_provider", "unavailable; tried again at 12:02:30"}, []string{string(srv.StatusReason), srv.StatusMessage})
	require.Equal(t, 2, count(t, s, "server_events WHERE step = 'awaiting_provider' AND reason = 'awaiting_provider'"))
	exec(t, s, `UPDATE servers SET status = 'draining'`)
	require.ErrorIs(t, s.AwaitProvider(ctx, "app-1", 1, 1, "unavailable"), server.ErrSuperseded)
}
