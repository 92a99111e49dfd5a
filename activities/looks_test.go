package activities_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/activities"
)

// TestALookStartsARunOnlyWhenThereIsSomethingToDo: an idle system starts none.
func TestALookStartsARunOnlyWhenThereIsSomethingToDo(t *testing.T) {
	t.Parallel()
	p, s, ref := living(t, nil)
	s.do(t, s.MakeSite, ref)
	_, err := p.store.ActivateTenant(t.Context(), ref, 0)
	require.NoError(t, err)
	p.exec(`UPDATE site_usage SET tried_at = now()`)
	s.Settings.StorageEvery = 1 << 40
	for _, found := range []bool{false, true} {
		if found {
			p.exec(`UPDATE tenants SET waiting_since = now()`)
			p.exec(`UPDATE site_usage SET tried_at = 'epoch'`)
		}
		r, err := activities.LookAtTenants(s.Tenants)(t.Context())
		require.NoError(t, err)
		require.Equal(t, found, r.Found)
		r, err = activities.LookAtStorage(s.Tenants)(t.Context())
		require.NoError(t, err)
		require.Equal(t, found, r.Found)
	}
	_, err = activities.LookAtFleet(s.Tenants)(t.Context())
	require.NoError(t, err)
}
