package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/lab/pgtest"
	"github.com/prego/prego/ops/attention"
	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// TestSift: bad parts cost themselves, in few statements, and an error that is not theirs ends it.
func TestSift(t *testing.T) {
	t.Parallel()
	bad := &pgconn.PgError{Code: "23514"}
	for _, tt := range []struct {
		why      string
		bad      []int
		n, tries int
	}{
		{"none", nil, 1000, 1},
		{"one", []int{777}, 1000, 21},
		{"the only one", []int{0}, 1, 1},
		{"two", []int{3, 999}, 1000, 39},
	} {
		parts := make([]int, tt.n)
		for i := range parts {
			parts[i] = i
		}
		var written []int
		tries := 0
		rejected, err := sift(parts, func(part []int) error {
			if tries++; slices.ContainsFunc(part, func(i int) bool { return slices.Contains(tt.bad, i) }) {
				return fmt.Errorf("write: %w", bad)
			}
			written = append(written, part...)
			return nil
		})
		require.NoError(t, err)
		require.LessOrEqual(t, tries, tt.tries, tt.why)
		require.Len(t, written, tt.n-len(tt.bad), tt.why)
		require.Len(t, rejected, len(tt.bad))
		for i, r := range rejected {
			require.Equal(t, tt.bad[i], r.part)
			require.ErrorIs(t, r.reason, bad)
		}
	}
	tries := 0
	_, err := sift(make([]int, 1000), func([]int) error {
		tries++
		return bad
	})
	require.ErrorIs(t, err, bad, "it is not about a row")
	require.Equal(t, maxSiftTries+1, tries)
	for _, other := range []error{errors.New("no connection"), &pgconn.PgError{Code: "40P01"}, context.Canceled} {
		tries = 0
		_, err = sift(make([]int, 1000), func([]int) error {
			tries++
			return other
		})
		require.ErrorIs(t, err, other)
		require.Equal(t, 1, tries)
	}
}

// poison makes the database reject the rows of a table that meet a condition.
func poison(t *testing.T, s *Store, table, condition string) {
	t.Helper()
	exec(t, s, `CREATE FUNCTION poisoned() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'poisoned' USING ERRCODE = 'check_violation'; END $$`)
	exec(t, s, `CREATE TRIGGER poisoned BEFORE INSERT OR UPDATE ON `+table+` FOR EACH ROW WHEN (`+condition+`)
		EXECUTE FUNCTION poisoned()`)
}

// rejectedRows are the findings about rejected rows.
func rejectedRows(t *testing.T, s *Store) (messages []string) {
	t.Helper()
	found, _, err := s.Attention(t.Context(), attention.Limits{})
	require.NoError(t, err)
	for _, f := range found {
		if f.Kind == attention.LookFailing {
			messages = append(messages, f.ID+": "+f.Message)
		}
	}
	return messages
}

func TestABadHeartbeatCostsItself(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	var batch []server.Heartbeat
	for i := range 20 {
		id := fmt.Sprintf("s-%02d", i)
		agentServer(t, s, id, "active", server.AgentDegraded, time.Minute)
		batch = append(batch, heartbeatOf(prego.ServerID(id)))
	}
	poison(t, s, "servers", `NEW.server_id = 's-07'`)
	out, err := s.FlushHeartbeats(t.Context(), batch)
	require.NoError(t, err)
	require.Len(t, out, 19)
	require.Equal(t, 19, count(t, s, `servers WHERE agent_status = 'connected'`))
	found := rejectedRows(t, s)
	require.Len(t, found, 1)
	require.Contains(t, found[0], "heartbeats: the database rejects s-07: ")
	require.Contains(t, found[0], "poisoned")
	exec(t, s, `DROP TRIGGER poisoned ON servers`)
	out, err = s.FlushHeartbeats(t.Context(), batch)
	require.NoError(t, err)
	require.Len(t, out, 20)
	exec(t, s, `UPDATE rejected_rows SET seen_at = now() - interval '11 minutes'`)
	require.Empty(t, rejectedRows(t, s))
}

func TestABadReportOfContainersCostsItself(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	var batch []workload.InstanceReport
	for i := range 5 {
		id := fmt.Sprintf("s-%d", i)
		agentServer(t, s, id, "active", server.AgentConnected, time.Second)
		batch = append(batch, workload.InstanceReport{
			ServerID: prego.ServerID(id), Key: heartbeatOf(prego.ServerID(id)).Key, Stream: "a", Seq: 1, Full: true,
		})
	}
	poison(t, s, "container_reports", `NEW.server_id = 's-2'`)
	out, err := s.ReportInstances(t.Context(), batch)
	require.NoError(t, err)
	require.Equal(t, []prego.ServerID{"s-2"}, out.Rejected)
	require.Equal(t, 4, count(t, s, `container_reports`))
	require.Contains(t, rejectedRows(t, s)[0], "reports of containers: the database rejects s-2: ")
}

func TestABadRuleOfPeersCostsItself(t *testing.T) {
	t.Parallel()
	b := peersSetup(t)
	for i := range 6 {
		b.server(fmt.Sprintf("app-%d", i), prego.RoleApp, fmt.Sprintf("10.64.0.%d", 10+i))
	}
	poison(t, b.s, "server_peers", `NEW.server_id = 'app-3' AND NEW.version > 0`)
	for _, limit := range []int{100, 100, 1} {
		n, err := b.s.MakeDuePeers(t.Context(), limit, peersPorts)
		require.NoError(t, err)
		require.Less(t, n, 100)
	}
	require.Equal(t, 5, count(t, b.s, `server_peers WHERE version > 0`))
	require.Contains(t, rejectedRows(t, b.s)[0], "rules of peers: the database rejects app-3: ")
	exec(t, b.s, `DROP TRIGGER poisoned ON server_peers`)
	require.Positive(t, b.wanted("app-3").Version, "it was still due")
}

func TestABadDNSRecordCostsItself(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Pool(t))
	record := func(name, value string) server.DNSRecord {
		return server.DNSRecord{RecordSet: server.RecordSet{
			Zone: "example.com", Name: name, Type: server.RecordA, TTL: 300, Values: []string{value},
		}, Owner: server.RecordOfEdges}
	}
	wanted := []server.DNSRecord{record("a", "192.0.2.1"), record("b", "192.0.2.2"), record("c", "192.0.2.3")}
	n, err := s.WantRecords(t.Context(), "example.com", wanted)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	wanted[1].TTL, wanted[2].Values = 1, []string{"192.0.2.4"} // no TTL is below a minute
	wanted = append(wanted[1:], record("d", "192.0.2.5"))
	n, err = s.WantRecords(t.Context(), "example.com", wanted)
	require.NoError(t, err)
	require.Equal(t, 3, n, "c is changed, d is new, a is not wanted any more")
	require.Equal(t, 1, count(t, s, `dns_records WHERE name = 'b' AND state = 'intended' AND ttl = 300`), "b stays")
	require.Equal(t, 1, count(t, s, `dns_records WHERE name = 'a' AND state = 'releasing'`))
	require.Contains(t, rejectedRows(t, s)[0], "DNS records: the database rejects b.example.com A: ")
}

func TestABadNameOfACertificateCostsItself(t *testing.T) {
	t.Parallel()
	b := certificatesIn(t)
	exec(t, b.Store, `INSERT INTO tenants (tenant_id, slug, org_id, region, plan, expected_users, storage_quota_gb,
		policy, request_hash, state, created_by) VALUES ('t-1', 'a', 'o1', 'eu', 'starter', 1, 1, 'shared', '', 'active', 'a')`)
	for _, name := range []string{"a.org", "b.org", "c.org"} {
		b.domain(name, "o1", "verified", true)
		b.do(`UPDATE domains SET tenant_id = 't-1' WHERE name = $1`, name)
	}
	poison(t, b.Store, "certificates", `'b.org' = ANY (NEW.names)`)
	require.Equal(t, 2, b.sync())
	require.Zero(t, b.sync())
	require.Equal(t, 2, count(t, b.Store, `certificates`))
	require.Contains(t, rejectedRows(t, b.Store)[0], "names of certificates: the database rejects b.org: ")
	exec(t, b.Store, `DROP TRIGGER poisoned ON certificates`)
	require.Equal(t, 1, b.sync(), "it was still due")
}
