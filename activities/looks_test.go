package activities_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/worker"
)

// TestALookStartsARunOnlyWhenThereIsSomethingToDo: an idle system starts none.
func TestALookStartsARunOnlyWhenThereIsSomethingToDo(t *testing.T) {
	t.Parallel()
	p, s, ref := living(t, nil)
	s.do(t, s.MakeSite, ref)
	_, err := p.Store.ActivateTenant(t.Context(), ref, 0)
	require.NoError(t, err)
	p.Exec(`UPDATE site_usage SET tried_at = now()`)
	s.Settings.StorageEvery = 1 << 40
	for _, found := range []bool{false, true} {
		if found {
			p.Exec(`UPDATE tenants SET waiting_since = now()`)
			p.Exec(`UPDATE site_usage SET tried_at = 'epoch'`)
		}
		r, err := worker.LookAtTenants(t.Context(), s.Tenants)
		require.NoError(t, err)
		require.Equal(t, found, r.Found)
		r, err = worker.LookAtStorage(t.Context(), s.Tenants)
		require.NoError(t, err)
		require.Equal(t, found, r.Found)
	}
	_, err = worker.LookAtFleet(t.Context(), s.Tenants)
	require.NoError(t, err)
}

// TestALookTakesSamples of what hosts have just reported, however many workers look.
func TestALookTakesSamples(t *testing.T) {
	t.Parallel()
	p, _, _ := living(t, nil)
	look := worker.At(p.Store, worker.LookAtSamples)
	p.Exec(`UPDATE servers SET agent_last_heartbeat_at = NULL`)
	r, err := look(t.Context())
	require.NoError(t, err)
	require.False(t, r.Found, "no server reported")
	require.Zero(t, p.Number(`SELECT count(*) FROM server_samples`))
	for range 3 { // at least two are in one span
		p.Exec(`UPDATE servers SET agent_last_heartbeat_at = now(), load1 = 0.5`)
		_, err := look(t.Context())
		require.NoError(t, err)
	}
	require.Positive(t, p.Number(`SELECT count(*) FROM server_samples WHERE load1 = 0.5 AND at > now() - interval '11 minutes'`))
	require.LessOrEqual(t, p.Number(`SELECT count(*) FROM server_samples`), 2*p.Number(`SELECT count(*) FROM servers`))
}
