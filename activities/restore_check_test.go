package activities

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// TestWhatHappensAfterARestore has each case that docs/restore-control-plane.md lists.
func TestWhatHappensAfterARestore(t *testing.T) {
	t.Parallel()
	now := time.Now()
	rules := OrphanRules{MinAge: 45 * time.Minute, MaxPerRun: 10, BreakerPct: 5, BreakerMin: 3}
	machine := func(id, row, attempt string, age time.Duration) server.OwnedResource {
		return server.OwnedResource{Kind: server.ResourceServer, ProviderID: id, Name: "n-" + id, CreatedAt: now.Add(-age), Labels: map[string]string{server.LabelServerID: row, server.LabelAttempt: attempt}}
	}
	s := Comparison{
		Now: now,
		Rows: []server.ReconcileRow{
			{ServerID: "fine", Status: server.Active, ProviderServerID: "1"},
			{ServerID: "deleted-since", Status: server.Active, ProviderServerID: "2"},
			{ServerID: "finished-since", Status: server.Provisioning, Attempt: 1},
			{ServerID: "in-use-since", Status: server.Provisioning, Attempt: 1},
			{ServerID: "begun", Status: server.Provisioning, Attempt: 1},
			{ServerID: "leaving", Status: server.Decommissioning, ProviderServerID: "5"},
		},
		Resources: []server.ProviderResource{{Kind: server.ResourceFirewall, Name: "fw", ProviderID: "9"}},
		Owned: []server.OwnedResource{
			machine("1", "fine", "1", time.Hour), machine("3", "finished-since", "1", time.Hour), machine("5", "leaving", "1", time.Hour),
			machine("6", "created-since", "1", time.Hour), machine("7", "created-just-now", "1", time.Minute),
		},
	}
	kept := machine("8", "active-since", "1", time.Hour)
	inUse := machine("10", "in-use-since", "1", time.Hour)
	kept.Protected, inUse.Protected = true, true
	s.Owned = append(s.Owned, kept, inUse)
	open := []string{"server-provision/begun", "server-provision/fine", "server-provision/never-was", "server-decommission/leaving", "tenant-sweep/x"}
	is := func(s Comparison, open []string, rules OrphanRules) map[string]Difference {
		out := map[string]Difference{}
		for _, d := range predict(s, open, rules) {
			out[d.Where+": "+d.What] = d
		}
		return out
	}
	found := is(s, open, rules)
	then := map[string]string{
		"provider: server deleted-since":           "fails with server_missing",
		"provider: firewall fw":                    "its line is closed",
		"provider: server n-6":                     "is destroyed by the second reconciliation",
		"provider: server n-8":                     "is kept: it is protected from deletion",
		"provider: server n-7":                     "is destroyed once it is older than 45m0s",
		"database: server finished-since":          "continues from its row; if the machine has used its token",
		"database: server in-use-since":            "keeps its machine, which is protected from deletion",
		"database: server begun":                   "continues from its row, and gets a machine",
		"database: server leaving":                 "is deleted",
		"temporal: run server-provision/fine":      "ends when it reads the row",
		"temporal: run server-provision/never-was": "ends when it reads the row",
	}
	require.Len(t, found, len(then))
	for what, says := range then {
		require.Contains(t, found[what].Then, says, what)
	}
	destroys := map[string]bool{}
	for what, d := range found {
		if d.Destroys {
			destroys[what] = true
		}
	}
	require.Equal(t, map[string]bool{"provider: server n-6": true, "provider: server n-7": true, "database: server finished-since": true, "database: server leaving": true}, destroys)
	require.Contains(t, found["database: server finished-since"].Then, "Temporal has no run")
	require.NotContains(t, found["database: server begun"].Then, "Temporal has no run")

	rules.MaxPerRun = 0
	require.Contains(t, is(s, open, rules)["provider: server n-6"].Then, "kept while PREGO_ORPHAN_MAX_PER_RUN is 0")
	rules.MaxPerRun = 10
	for _, id := range []string{"11", "12", "13"} {
		s.Owned = append(s.Owned, machine(id, "created-since-"+id, "1", time.Hour))
	}
	held := is(s, open, rules)["provider: server n-6"]
	require.Contains(t, held.Then, "the breaker holds")
	require.False(t, held.Destroys)
	require.Empty(t, predict(Comparison{Now: now, Rows: s.Rows[:1], Owned: s.Owned[:1]}, nil, rules), "nothing differs")
}

// TestSitesAfterARestore: sites deleted, made and taken into use since, and no site that may be on its way.
func TestSitesAfterARestore(t *testing.T) {
	t.Parallel()
	h := tenant.HostSites{ServerID: "app", Sites: []tenant.HostSite{
		{Site: "fine.sites.test", TenantID: "t-1", State: tenant.Active, Finished: true},
		{Site: "deleted.sites.test", TenantID: "t-2", State: tenant.Suspended, Finished: true},
		{Site: "pool-1.pool", Finished: true},
		{Site: "pool-2.pool", Finished: true},
		{Site: "pool-3.pool"},
		{Site: "arrives.sites.test", TenantID: "t-3", State: tenant.Active},
	}}
	list := func(_ context.Context, id prego.ServerID, _ string) ([]string, error) {
		if id == "silent" {
			return nil, errors.New("connection refused")
		}
		return []string{"pool-2.pool", "fine.sites.test", "made.sites.test"}, nil
	}
	is := map[string]string{}
	for _, d := range askSites(t.Context(), []tenant.HostSites{h, {ServerID: "silent"}}, list) {
		require.Equal(t, "host", d.Where)
		require.False(t, d.Destroys)
		is[d.What] = d.Is
	}
	require.Equal(t, map[string]string{
		"site deleted.sites.test": "tenant t-2 is suspended in the database, but server app does not have its site",
		"site pool-1.pool":        "free in the database, but server app does not have it",
		"site made.sites.test":    "is on server app, but belongs to no tenant in the database",
		"sites of server silent":  "were not listed: connection refused",
	}, is)
}
