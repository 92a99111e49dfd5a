package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/lab/pgtest"
)

// TestAddressesAreTakenBeforeAliases, because an alias without its address leads nowhere. Rows lie in the other
// order, and are written again, as after some changes.
func TestAddressesAreTakenBeforeAliases(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := New(pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO dns_records (zone, name, type, ttl, content, owner, state) VALUES
		('example.com', 'a.sites', 'CNAME', 60, '{x}', 'site', 'intended'), ('example.com', '*.sites', 'CNAME', 60, '{x}', 'sites', 'intended'),
		('example.com', 'us.edges', 'A', 60, '{192.0.2.1}', 'edges', 'intended'), ('example.com', 'eu.edges', 'AAAA', 60, '{2001:db8::1}', 'edges', 'intended'),
		('example.com', 'eu.edges', 'A', 60, '{192.0.2.2}', 'edges', 'intended')`)
	require.NoError(t, err)
	records, err := s.TakeRecords(t.Context(), "example.com", 10, time.Minute)
	require.NoError(t, err)
	var got []string
	for _, r := range records {
		got = append(got, r.Name+" "+string(r.Type))
	}
	require.Equal(t, []string{"eu.edges A", "eu.edges AAAA", "us.edges A", "*.sites CNAME", "a.sites CNAME"}, got)
}
