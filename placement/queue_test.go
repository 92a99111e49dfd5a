package placement_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/placement"
)

var queuedAt = time.Date(2026, 11, 24, 9, 0, 0, 0, time.UTC)

func waiters(n int, roles ...prego.Role) (out []placement.Waiter) {
	for i := range n {
		id := "t-" + string(rune('a'+i))
		out = append(out, placement.Waiter{Position: i + 1, Kind: placement.WaiterTenant, ID: id, Name: id, Region: prego.RegionEU, MissingRoles: roles})
	}
	return out
}

func comingServer(id string, role prego.Role, ago time.Duration, room int) placement.Coming {
	return placement.Coming{Kind: placement.ComingServer, ID: id, Status: "provisioning", Region: prego.RegionEU, Role: role, Tenants: true, RequestedAt: queuedAt.Add(-ago), Room: room}
}

func TestExpectationsFollowWhatComes(t *testing.T) {
	t.Parallel()
	q := placement.Queue{
		At: queuedAt, Target: 2 * time.Minute, Waiters: waiters(5, prego.RoleDBShard),
		Usual:  []placement.Usual{{Region: prego.RegionEU, Role: prego.RoleDBShard, Servers: 40, P50: 90, P95: 150}},
		Coming: []placement.Coming{comingServer("db-2", prego.RoleDBShard, 100*time.Second, 2), comingServer("db-1", prego.RoleDBShard, 30*time.Second, 2)},
	}
	out := q.Expect()
	first, second := queuedAt.Add(50*time.Second), queuedAt.Add(time.Minute)
	for i, want := range []*time.Time{&first, &first, &second, &second, nil} { // db-2 is late: 150 s after its request
		require.Equal(t, want, out[i].ExpectedAt, i)
	}
	require.Equal(t, "server db-2 is being made, and 95 % of 40 servers of role db-shard in eu took at most 2m30s", out[0].Because)
	require.Equal(t, "server db-1 is being made, and half of 40 servers of role db-shard in eu took at most 1m30s", out[2].Because)
	require.Equal(t, "the coming capacity has room for 4, and 4 are served before it", out[4].Because)
	require.Len(t, out[0].Coming, 2)
	require.Equal(t, "db-2", out[0].Coming[0].ID, "in the order of expectation")
}

func TestNobodyIsExpectedBeforeWhoIsServedFirst(t *testing.T) {
	t.Parallel()
	w := waiters(3, prego.RoleApp)
	w[0].MissingRoles = []prego.Role{prego.RoleApp, prego.RoleDBShard} // the latest of both
	q := placement.Queue{
		At: queuedAt, Target: 2 * time.Minute, Waiters: w,
		Coming: []placement.Coming{comingServer("app-1", prego.RoleApp, 90*time.Second, 0), comingServer("db-1", prego.RoleDBShard, 10*time.Second, 0)},
	}
	out := q.Expect()
	late := queuedAt.Add(110 * time.Second)
	for _, e := range out {
		require.Equal(t, &late, e.ExpectedAt, e.ID)
	}
	require.Contains(t, out[0].Because, "servers should take 2m0s, and none was made in eu in 30 days")
	require.Contains(t, out[1].Because, "t-a is served first, and server db-1")
	require.Equal(t, out[1].Because, out[2].Because)
	slices.Reverse(w[0].MissingRoles)
	require.Equal(t, &late, q.Expect()[0].ExpectedAt)

	us := waiters(1, prego.RoleApp)
	us[0].Region = prego.RegionUS
	q.Waiters = append(q.Waiters, us...)
	require.Nil(t, q.Expect()[3].ExpectedAt, "capacity elsewhere is no help")
}

func TestThereIsNoExpectationWhereNothingComes(t *testing.T) {
	t.Parallel()
	q := placement.Queue{
		At: queuedAt, Target: 2 * time.Minute, Waiters: waiters(1, prego.RoleApp),
		Rounds: []placement.Round{{Region: prego.RegionEU, Role: prego.RoleApp, Message: "3 wanted, the ceiling allows 0"}},
	}
	because := func(want string) {
		t.Helper()
		e := q.Expect()[0]
		require.Nil(t, e.ExpectedAt)
		require.Equal(t, want, e.Because)
	}
	because("no server of role app is being made in eu: the last scale-out reported: 3 wanted, the ceiling allows 0")
	q.Rounds = []placement.Round{
		{Region: prego.RegionUS, Role: prego.RoleApp, Message: "another region's"},
		{Region: prego.RegionEU, Role: prego.RoleDBShard, Message: "another role's"},
		{Region: prego.RegionEU, Role: prego.RoleApp},
	}
	because("no server of role app is being made in eu")
	for _, roles := range [][]prego.Role{{prego.RoleApp, prego.RoleDBShard}, {prego.RoleDBShard, prego.RoleApp}} {
		q.Waiters[0].MissingRoles = roles
		q.Coming = []placement.Coming{comingServer("db-1", prego.RoleDBShard, 0, 1)}
		because("no server of role app is being made in eu")
	}
	q.Waiters[0].MissingRoles = []prego.Role{prego.RoleApp}
	stock := comingServer("app-9", prego.RoleApp, time.Hour, 0)
	stock.Stock = true
	q.Coming = []placement.Coming{stock}
	because("server app-9 waits for the provider's stock or quota")
	require.Len(t, q.Expect()[0].Coming, 1)
	q.Coming = []placement.Coming{comingServer("app-9", prego.RoleApp, time.Hour, 0)}
	because("server app-9 is being made for longer than the 2m0s that servers should take, and no other one was made in eu in 30 days")
	q.Usual = []placement.Usual{{Region: prego.RegionEU, Role: prego.RoleApp, Servers: 3, P50: 60, P95: 90}}
	because("server app-9 is being made for longer than 95 % of 3 servers of role app in eu took: the time is unknown")
	q.Waiters[0].MissingRoles = nil
	because("it lacks no server: it waits for its site, or for its turn")
	q.Waiters[0].Kind = placement.WaiterGroup
	because("no server that takes instances is being made in eu")
	q.Coming[0].Workloads, q.Coming[0].RequestedAt = true, queuedAt
	require.Equal(t, queuedAt.Add(time.Minute), *q.Expect()[0].ExpectedAt)
}

// TestWhatComesIsInOrder: the earliest first, then what has no time, by id; each waiter has what it waits for.
func TestWhatComesIsInOrder(t *testing.T) {
	t.Parallel()
	coming := []placement.Coming{
		comingServer("aged-2", prego.RoleApp, 0, 1), comingServer("app-2", prego.RoleApp, 20*time.Second, 1),
		comingServer("aged-1", prego.RoleApp, 0, 1), comingServer("app-1", prego.RoleApp, 10*time.Second, 1),
		comingServer("db-1", prego.RoleDBShard, 0, 1),
	}
	coming[0].Stock, coming[2].Stock = true, true
	q := placement.Queue{
		At: queuedAt, Target: 2 * time.Minute, Waiters: waiters(3, prego.RoleApp),
		Usual: []placement.Usual{ // none of these servers
			{Region: prego.RegionUS, Role: prego.RoleApp, Servers: 3, P50: 1000, P95: 1000},
			{Region: prego.RegionEU, Role: prego.RoleNode, Servers: 3, P50: 1000, P95: 1000},
			{Region: prego.RegionEU, Role: prego.RoleApp, P50: 1000, P95: 1000},
		},
	}
	for range 2 {
		q.Coming = coming
		out := q.Expect()
		var ids []string
		for _, c := range out[0].Coming {
			ids = append(ids, c.ID)
		}
		require.Equal(t, []string{"app-2", "app-1", "aged-1", "aged-2"}, ids)
		require.Equal(t, queuedAt.Add(100*time.Second), *out[0].ExpectedAt)
		require.Equal(t, queuedAt.Add(110*time.Second), *out[1].ExpectedAt)
		require.Nil(t, out[2].ExpectedAt)
		require.Equal(t, "server aged-1 waits for the provider's stock or quota", out[2].Because)
		coming = []placement.Coming{coming[4], coming[3], coming[2], coming[1], coming[0]}
	}
	q.Waiters[0].Own = &coming[2]
	own := q.Expect()[0]
	require.Equal(t, []placement.ComingAt{{Coming: coming[2]}}, own.Coming)
	require.Equal(t, "server aged-1 waits for the provider's stock or quota", own.Because)
	scaleOut := comingServer("so-1", prego.RoleApp, 0, 1)
	scaleOut.Kind = placement.ComingScaleOut
	q.Waiters[0].Own = &scaleOut
	require.Equal(t, queuedAt.Add(2*time.Minute), *q.Expect()[0].ExpectedAt)
	require.Equal(t, "scale-out so-1 is asking for servers; servers should take 2m0s, and none was made in eu in 30 days", q.Expect()[0].Because)
	q.Waiters[0].Own = nil
	q.Usual[2].Servers = 1
	q.Usual[2].P50 = 30
	require.Equal(t, queuedAt.Add(10*time.Second), *q.Expect()[0].ExpectedAt)
}
