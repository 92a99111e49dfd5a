package activities_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
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
		return activities.RefusedCreate(a, t.Context(), &cloud{}, activities.CandidateAttempt{
			ServerID: "app-1", Generation: 1, Attempt: attempt, Candidate: server.Candidate{ServerType: typ, Location: "fsn1"},
		}, &refusal)
	}
	limit := server.InfraError{Class: server.InfraNext, Code: server.InfraDedicatedLimit, Message: "dedicated core limit exceeded"}
	require.Equal(t, &limit, refuse(1, "ccx23", limit))
	require.Zero(t, runs.readings)
	unsold := server.InfraError{Class: server.InfraNext, Code: "invalid_input", Message: "server type is deprecated (server_type: gone)", Unsold: true}
	require.Equal(t, &unsold, refuse(2, "cx42", unsold))
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

// seller is a provider that refuses some machine types.
type seller struct {
	*cloud
	refuses map[string]error // by machine type, or by the name of a placement group
	tried   []string
	tokens  map[string]bool // the user_data of all creations
}

func (*seller) EnsureFirewall(context.Context, server.FirewallParams) (string, error) {
	return "1", nil
}

func (*seller) EnsurePlacementGroup(_ context.Context, _, name string, _ prego.Role) (string, error) {
	return name, nil
}

func (*seller) LabelPrimaryIPs(context.Context, server.Handle, map[string]string) error { return nil }

func (s *seller) CreateServer(_ context.Context, p server.CreateParams) (server.Handle, error) {
	s.tried = append(s.tried, p.Candidate.ServerType)
	s.tokens[p.UserData] = true
	if err := cmp.Or(s.refuses[p.Candidate.ServerType], s.refuses[p.PlacementGroup]); err != nil {
		return server.Handle{}, err
	}
	return server.Handle{
		ProviderServerID: "1", Name: "app-1", Attempt: p.Attempt,
		ServerType: p.Candidate.ServerType, Location: p.Candidate.Location,
	}, nil
}

type tokenSource struct{}

func (tokenSource) NewTokenID() string      { return uuid.NewString() }
func (tokenSource) Derive(id string) string { return "token of " + id }
func (tokenSource) Hash(raw string) []byte  { sum := sha256.Sum256([]byte(raw)); return sum[:] }

// selling is a server to create from three types, the first two with dedicated cores.
func selling(t *testing.T, refuses map[string]error) (*seller, func(attempt int) (activities.MadeServer, error), *placing) {
	t.Helper()
	p := newPlacing(t, 4)
	p.machine("app-1", server.Provisioning, 0, "")
	s := &seller{cloud: &cloud{}, refuses: refuses, tokens: map[string]bool{}}
	a, env := p.servers(s.cloud, p.Store)
	a.Infra[prego.ProviderHetzner] = s
	a.Tokens, a.Settings.BootstrapTokenTTL = tokenSource{}, 15*time.Minute
	a.Boot = func(b activities.BootParams) (activities.Boot, error) { return activities.Boot{UserData: b.Token}, nil }
	return s, func(attempt int) (made activities.MadeServer, err error) {
		in := activities.CreateServerInput{ServerID: "app-1", Generation: 1, Attempt: attempt}
		for _, typ := range []string{"ccx23", "ccx33", "cpx42"} {
			in.Candidates = append(in.Candidates, server.Candidate{ServerType: typ, Location: "sin"})
			in.Machines = append(in.Machines, activities.Machine{Architecture: "x86", Dedicated: typ != "cpx42"})
		}
		out, err := env.ExecuteActivity(a.MakeServer, in)
		if err != nil {
			return made, err
		}
		require.NoError(t, out.Get(&made))
		return made, nil
	}, p
}

// TestRefusalsEndTheCandidatesThatTheyConcern: the account's limit of dedicated cores ends the candidates with such
// cores, a type that is not sold ends one, a full placement group none, and a limit of servers ends all. All share one
// token.
func TestRefusalsEndTheCandidatesThatTheyConcern(t *testing.T) {
	t.Parallel()
	refusal := func(class server.InfraClass, code string) error {
		return &server.InfraError{Class: class, Code: code, Message: "no"}
	}
	dedicated, sold := refusal(server.InfraNext, server.InfraDedicatedLimit), refusal(server.InfraNext, "resource_unavailable")
	full := refusal(server.InfraNext, server.InfraGroupFull)
	for name, tc := range map[string]struct {
		refuses map[string]error
		tried   []string
		made    int    // its candidate
		refused string // the type of the error
	}{
		"dedicated cores":   {map[string]error{"ccx23": dedicated}, []string{"ccx23", "cpx42"}, 2, ""},
		"all out of stock":  {map[string]error{"ccx23": dedicated, "cpx42": sold}, []string{"ccx23", "cpx42"}, 0, activities.ErrTypeCandidate},
		"a type not sold":   {map[string]error{"ccx23": sold}, []string{"ccx23", "ccx33"}, 1, ""},
		"servers":           {map[string]error{"ccx23": refusal(server.InfraQuota, "resource_limit_exceeded")}, []string{"ccx23"}, 0, activities.ErrTypeCandidate},
		"a full group":      {map[string]error{"prego--app-1": full}, []string{"ccx23", "ccx23"}, 0, ""},
		"groups all full":   {map[string]error{"ccx23": full}, []string{"ccx23", "ccx23", "ccx23", "ccx33"}, 1, ""},
		"a permanent error": {map[string]error{"ccx23": refusal(server.InfraPermanent, "forbidden")}, []string{"ccx23"}, 0, activities.ErrTypePermanent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, create, p := selling(t, tc.refuses)
			made, err := create(1)
			require.Equal(t, tc.tried, s.tried)
			require.Len(t, s.tokens, 1)
			require.Equal(t, 1, p.Number(`SELECT count(*) FROM server_bootstrap_tokens`))
			if tc.refused != "" {
				require.Equal(t, tc.refused, typeOf(t, err))
				require.Zero(t, p.Number(`SELECT count(*) FROM resources WHERE server_id = 'app-1' AND state <> 'released'`))
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.made, made.Candidate)
			require.Equal(t, 1, p.Number(`SELECT count(*) FROM servers WHERE provider_server_id = '1'`))
		})
	}
}

// TestARepeatedRoundContinuesAtItsCandidate: what the call for that one made, before the worker died, is found and not
// made again from another.
func TestARepeatedRoundContinuesAtItsCandidate(t *testing.T) {
	t.Parallel()
	s, create, _ := selling(t, map[string]error{
		"ccx23": &server.InfraError{Class: server.InfraNext, Code: "resource_unavailable"},
		"ccx33": errors.New("the worker died"),
	})
	_, err := create(1)
	require.ErrorContains(t, err, "the worker died")
	s.refuses = nil
	made, err := create(1)
	require.NoError(t, err)
	require.Equal(t, 1, made.Candidate)
	require.Equal(t, []string{"ccx23", "ccx33", "ccx33"}, s.tried)
	require.Len(t, s.tokens, 1)
	_, err = create(2)
	require.NoError(t, err)
	require.Equal(t, "ccx23", s.tried[3], "the next attempt begins with the first")
	require.Len(t, s.tokens, 2)
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
