package activities_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/activities"
	"github.com/prego/prego/server"
)

// firewalls is a provider that has firewalls only, and may be away.
type firewalls struct {
	activities.Infra
	id      prego.InfraProviderID
	away    error
	updated []string
}

func (f *firewalls) ID() prego.InfraProviderID { return f.id }

func (f *firewalls) EnsureFirewall(_ context.Context, p server.FirewallParams) (string, error) {
	if f.away == nil {
		f.updated = append(f.updated, p.Name)
	}
	return "1", f.away
}

// TestAProviderThatIsAwayDelaysNoOthersFirewall: each has one, and each is tried.
func TestAProviderThatIsAwayDelaysNoOthersFirewall(t *testing.T) {
	t.Parallel()
	p := newPlacing(t, 1)
	p.Exec(`INSERT INTO resources (provider, kind, name, provider_id, state)
		SELECT provider, 'firewall', 'prego-test-edge', '1', 'created' FROM unnest(ARRAY['hetzner', 'aws']) provider`)
	one, other := &firewalls{id: "hetzner"}, &firewalls{id: "aws"}
	a := &activities.Servers{
		Store: p.Store, Infra: map[prego.InfraProviderID]activities.Infra{one.id: one, other.id: other},
		Settings: activities.Settings{Environment: "test"},
	}
	for range 5 { // a map has no order
		one.away, other.away = errors.New("away"), nil
		require.ErrorContains(t, a.OpenPublicPorts(t.Context()), "away")
		one.away, other.away = other.away, one.away
		require.ErrorContains(t, a.OpenPublicPorts(t.Context()), "away")
	}
	require.Len(t, one.updated, 5)
	require.Len(t, other.updated, 5)
}
