package api_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/api"
)

func TestOverviewIsForViewersAlso(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	get := func() api.Overview {
		t.Helper()
		resp, body := b.do("GET", "/v1/overview", "viewer", "", "")
		require.Equal(t, 200, resp.StatusCode, "%s", body)
		return as[api.Overview](t, body)
	}
	o := get()
	require.Equal(t, "0.00", o.Costs.Total)
	require.Nil(t, o.Servers.MemoryPct)
	require.NotNil(t, o.Servers.Hours)
	_, err := b.pool.Exec(context.Background(), `INSERT INTO cost_meters
		(provider, kind, provider_id, started_at, month, billed)
		VALUES ('hetzner', 'server', '1', now(), date_trunc('month', now() AT TIME ZONE 'UTC'), 1500000)`)
	require.NoError(t, err)
	o = get()
	require.Equal(t, "1.50", o.Costs.Total)
	require.Equal(t, []api.OverviewKind{{Kind: "server", Cost: "1.50"}}, o.Costs.Kinds)
}
