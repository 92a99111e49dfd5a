package activities_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// catalogRuns counts the readings of the catalog that are requested.
type catalogRuns struct {
	activities.Runs
	readings int
}

func (r *catalogRuns) StartCatalogRefresh(context.Context) (string, error) {
	r.readings++
	return "catalog", nil
}

// TestARefusedCandidateIsOnTheTimeline: so that an operator sees it, and the catalog is read again if it had what the
// provider does not sell.
func TestARefusedCandidateIsOnTheTimeline(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	p.machine("app-1", server.Provisioning, 1, "")
	a, _ := p.servers(&cloud{}, p.Store)
	runs := &catalogRuns{}
	a.Runs = runs
	refuse := func(attempt int, typ string, refusal server.InfraError) error {
		return activities.RefusedCreate(a, t.Context(), &cloud{}, activities.CreateServerInput{
			ServerID: "app-1", Generation: 1, Attempt: attempt, Candidate: server.Candidate{ServerType: typ, Location: "fsn1"},
		}, &refusal)
	}
	limit := server.InfraError{Class: server.InfraNext, Code: server.InfraDedicatedLimit, Message: "dedicated core limit exceeded"}
	require.Equal(t, activities.ErrTypeDedicated, typeOf(t, refuse(1, "ccx23", limit)))
	require.Zero(t, runs.readings)
	unsold := server.InfraError{Class: server.InfraNext, Code: "invalid_input", Message: "server type is deprecated (server_type: gone)", Unsold: true}
	require.Equal(t, activities.ErrTypeCandidate, typeOf(t, refuse(2, "cx42", unsold)))
	require.Equal(t, 1, runs.readings)
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM server_events WHERE step = 'create_refused' AND reason = 'dedicated_core_limit'
		AND message = 'ccx23 in fsn1: dedicated core limit exceeded'`))
	require.Equal(t, 1, p.Number(`SELECT count(*) FROM server_events WHERE step = 'create_refused' AND reason = 'invalid_input'
		AND message = 'cx42 in fsn1: server type is deprecated (server_type: gone)'`))

	require.NoError(t, p.Store.CatalogNotRead(t.Context(), prego.ProviderHetzner, "no answer"))
	require.Error(t, refuse(3, "cx42", unsold))
	require.Equal(t, 1, runs.readings, "it was tried just now")
}

func typeOf(t *testing.T, err error) string {
	t.Helper()
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	return app.Type()
}

// market is a provider whose catalog changes.
type market struct{ types []server.OfferedType }

func (m *market) Catalog(context.Context) (server.ProviderCatalog, error) {
	return server.ProviderCatalog{ServerTypes: m.types}, nil
}

// wakenServers records the servers that are woken.
type wakenServers struct {
	activities.Runs
	woken []prego.ServerID
}

func (r *wakenServers) WakeProvision(_ context.Context, id prego.ServerID) error {
	r.woken = append(r.woken, id)
	return nil
}

// TestStockThatChangesWakesServers: those that wait for it, and only if the catalog has changed.
func TestStockThatChangesWakesServers(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 4)
	for _, id := range []string{"app-1", "app-2", "app-3"} {
		p.machine(id, server.Provisioning, 1, "")
	}
	p.Exec(`UPDATE servers SET status_reason = 'awaiting_capacity' WHERE server_id <> 'app-2'`)
	p.Exec(`UPDATE servers SET status = 'failed' WHERE server_id = 'app-3'`)
	m, runs := &market{}, &wakenServers{}
	a := &activities.Catalogs{
		Store: p.Store, Infra: map[prego.InfraProviderID]activities.CatalogInfra{prego.ProviderHetzner: m}, Runs: runs, Log: zap.NewNop(),
	}
	read := func(available bool) {
		t.Helper()
		m.types = []server.OfferedType{{Name: "cx43", At: []server.OfferedAt{{Location: "fsn1", Available: available}}}}
		_, err := a.RefreshCatalog(t.Context())
		require.NoError(t, err)
	}
	read(false)
	require.Equal(t, []prego.ServerID{"app-1"}, runs.woken)
	read(false)
	require.Len(t, runs.woken, 1, "nothing has changed")
	read(true)
	require.Equal(t, []prego.ServerID{"app-1", "app-1"}, runs.woken)
}
