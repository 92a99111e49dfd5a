package activities

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

func owned(id string, serverID prego.ServerID, attempt string, age time.Duration, now time.Time) server.OwnedResource {
	return server.OwnedResource{
		Kind: server.ResourceServer, ProviderID: id, Name: "n" + id, CreatedAt: now.Add(-age),
		Labels: map[string]string{server.LabelServerID: string(serverID), server.LabelAttempt: attempt},
	}
}

func TestOfTwoServersForOneRowTheBoundOneStays(t *testing.T) {
	t.Parallel()
	now := time.Now()
	f := Compare(Comparison{
		Now:  now,
		Rows: []server.ReconcileRow{{ServerID: "a", Status: server.Active, Attempt: 2, ProviderServerID: "2"}},
		Owned: []server.OwnedResource{
			owned("1", "a", "1", time.Hour, now), owned("2", "a", "2", time.Hour, now),
		},
	})
	require.Empty(t, f.Missing)
	require.Len(t, f.Orphans, 1)
	require.Equal(t, "1", f.Orphans[0].ProviderID)
}

// TestDoomedKeepsToItsGuards: in any fleet, no resource goes that is young, seen once or has an
// owner; never more than the cap; and none at all when the rows are gone.
func TestDoomedKeepsToItsGuards(t *testing.T) {
	t.Parallel()
	now := time.Now()
	rules := OrphanRules{MinAge: time.Hour, MaxPerRun: 5, BreakerPct: 5, BreakerMin: 3}
	rapid.Check(t, func(t *rapid.T) {
		s := Comparison{Now: now}
		sightings := map[string]server.Sighting{}
		for i := range rapid.IntRange(0, 60).Draw(t, "servers") {
			id := fmt.Sprint(i)
			age := time.Duration(rapid.IntRange(0, 120).Draw(t, "minutes")) * time.Minute
			s.Owned = append(s.Owned, owned(id, prego.ServerID("s"+id), "1", age, now))
			s.Owned[i].Protected = rapid.IntRange(0, 3).Draw(t, "protected") == 0
			sightings[resourceKey(server.ResourceServer, id)] = server.Sighting{Sightings: rapid.IntRange(1, 3).Draw(t, "sightings")}
			switch rapid.IntRange(0, 3).Draw(t, "row") {
			case 0: // no row
			case 1:
				s.Rows = append(s.Rows, server.ReconcileRow{ServerID: prego.ServerID("s" + id), Status: server.Terminated, Attempt: 1})
			default:
				s.Rows = append(s.Rows, server.ReconcileRow{ServerID: prego.ServerID("s" + id), Status: server.Active, Attempt: 1, ProviderServerID: id})
			}
		}
		found := Compare(s)
		doomed, tripped := Doomed(s, found.Orphans, sightings, rules)
		require.LessOrEqual(t, len(doomed), rules.MaxPerRun)
		if tripped || (len(s.Rows) == 0 && len(s.Owned) > 0) {
			require.Empty(t, doomed)
		}
		bound := map[string]bool{}
		for _, r := range s.Rows {
			bound[r.ProviderServerID] = true
		}
		for _, o := range doomed {
			require.False(t, o.Protected, "it was in use")
			require.False(t, bound[o.ProviderID], "it has an owner")
			require.GreaterOrEqual(t, now.Sub(o.CreatedAt), rules.MinAge)
			require.GreaterOrEqual(t, sightings[resourceKey(o.Kind, o.ProviderID)].Sightings, 2)
		}
	})
}

// TestWhatCarriesAnImagesLabel: builders and snapshots belong to their image while its row names
// them, and are orphans otherwise.
func TestWhatCarriesAnImagesLabel(t *testing.T) {
	t.Parallel()
	now := time.Now()
	thing := func(kind server.ResourceKind, id, image string) server.OwnedResource {
		return server.OwnedResource{Kind: kind, ProviderID: id, Name: "n" + id, CreatedAt: now.Add(-time.Hour), Labels: map[string]string{server.LabelImageID: image, server.LabelServerID: image + "-builder", server.LabelAttempt: "1"}}
	}
	images := map[string]server.GoldenImage{}
	for id, status := range map[string]server.ImageStatus{"building": server.ImageBuilding, "verifying": server.ImageVerifying, "ready": server.ImageReady, "failed": server.ImageFailed, "deleting": server.ImageDeleting} {
		images[id] = server.GoldenImage{ImageID: prego.ImageID(id), Status: status}
	}
	for _, id := range []string{"verifying", "ready", "failed", "deleting"} {
		g := images[id]
		g.ProviderImageID = "snap-" + id
		images[id] = g
	}
	s := Comparison{Now: now, Images: images}
	for id := range images {
		s.Owned = append(s.Owned, thing(server.ResourceServer, "srv-"+id, id), thing(server.ResourceImage, "snap-"+id, id), thing(server.ResourceImage, "twin-"+id, id))
	}
	s.Owned = append(s.Owned, thing(server.ResourceServer, "srv-nobodys", "nobodys"), thing(server.ResourceImage, "snap-nobodys", "nobodys"))
	attached := thing(server.ResourcePrimaryIP, "ip", "failed")
	attached.Attached = true
	s.Owned = append(s.Owned, attached)
	var orphans []string
	for _, o := range Compare(s).Orphans {
		orphans = append(orphans, o.ProviderID)
	}
	require.ElementsMatch(t, []string{
		"srv-ready", "srv-failed", "srv-deleting", "srv-nobodys",
		"snap-failed", "snap-nobodys", "twin-verifying", "twin-ready", "twin-failed", "twin-deleting",
	}, orphans, "while it is building, which of its snapshots is the one is not known yet")

	// A builder of an image that is known proves nothing about the database.
	sightings := map[string]server.Sighting{}
	for _, o := range Compare(s).Orphans {
		sightings[resourceKey(o.Kind, o.ProviderID)] = server.Sighting{Sightings: 2}
	}
	doomed, tripped := Doomed(s, Compare(s).Orphans, sightings, OrphanRules{MinAge: time.Minute, MaxPerRun: 100, BreakerPct: 100, BreakerMin: 1})
	require.False(t, tripped)
	require.Len(t, doomed, 10)
	s.Images = nil
	doomed, tripped = Doomed(s, Compare(s).Orphans, sightings, OrphanRules{MinAge: time.Minute, MaxPerRun: 100, BreakerPct: 100, BreakerMin: 1})
	require.True(t, tripped, "this is not the database that made them")
	require.Empty(t, doomed)
}

// TestWhatAReconciliationFinds covers every row of the comparison: the database's state, the
// provider's resources, and the conclusion.
func TestWhatAReconciliationFinds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	newServer := func(id, of, attempt string) server.OwnedResource {
		return owned(id, prego.ServerID(of), attempt, time.Hour, now)
	}
	thing := func(kind server.ResourceKind, id, name, of string, attached bool) server.OwnedResource {
		return server.OwnedResource{Kind: kind, ProviderID: id, Name: name, CreatedAt: now, Attached: attached, Labels: map[string]string{server.LabelServerID: of}}
	}
	row := func(status server.Status, attempt int, bound string, idle time.Duration) server.ReconcileRow {
		return server.ReconcileRow{ServerID: "a", Status: status, Attempt: attempt, ProviderServerID: bound, Idle: idle}
	}
	volume := server.ResourceVolume
	for name, tc := range map[string]struct {
		rows                          []server.ReconcileRow
		ledger                        []server.ProviderResource
		owned                         []server.OwnedResource
		names                         map[string]bool
		missing, idle, lost, orphaned []string
	}{
		"an active server that is there":                    {rows: []server.ReconcileRow{row(server.Active, 1, "1", time.Hour)}, owned: []server.OwnedResource{newServer("1", "a", "1")}},
		"an active server that is gone":                     {rows: []server.ReconcileRow{row(server.Active, 1, "1", 0)}, missing: []string{"a"}},
		"a failed server that is gone":                      {rows: []server.ReconcileRow{row(server.Failed, 1, "1", 0)}, missing: []string{"a"}},
		"a failed server that never was":                    {rows: []server.ReconcileRow{row(server.Failed, 1, "", 0)}},
		"another kind of the same id is not it":             {rows: []server.ReconcileRow{row(server.Active, 1, "1", 0)}, owned: []server.OwnedResource{thing(volume, "1", "v", "a", false)}, missing: []string{"a"}, orphaned: []string{"volume/1"}},
		"a terminated server is not missed":                 {rows: []server.ReconcileRow{row(server.Terminated, 1, "1", 0)}},
		"a terminated server that is there still":           {rows: []server.ReconcileRow{row(server.Terminated, 1, "1", 0)}, owned: []server.OwnedResource{newServer("1", "a", "1")}, orphaned: []string{"server/1"}},
		"provisioning is left alone":                        {rows: []server.ReconcileRow{row(server.Provisioning, 2, "", idleAfter-1)}, owned: []server.OwnedResource{newServer("1", "a", "2")}},
		"provisioning that stands still":                    {rows: []server.ReconcileRow{row(server.Provisioning, 2, "", idleAfter)}, idle: []string{"a"}},
		"draining that stands still":                        {rows: []server.ReconcileRow{row(server.Decommissioning, 2, "1", time.Hour)}, idle: []string{"a"}},
		"an idle active server is at rest":                  {rows: []server.ReconcileRow{row(server.Failed, 2, "", time.Hour)}},
		"an attempt to come":                                {rows: []server.ReconcileRow{row(server.Provisioning, 2, "", 0)}, owned: []server.OwnedResource{newServer("1", "a", "3")}},
		"an earlier attempt":                                {rows: []server.ReconcileRow{row(server.Provisioning, 2, "", 0)}, owned: []server.OwnedResource{newServer("1", "a", "1")}, orphaned: []string{"server/1"}},
		"an attempt that nobody can read":                   {rows: []server.ReconcileRow{row(server.Provisioning, 0, "", 0)}, owned: []server.OwnedResource{newServer("1", "a", "x")}, orphaned: []string{"server/1"}},
		"a second one while the first is bound":             {rows: []server.ReconcileRow{row(server.Provisioning, 2, "2", 0)}, owned: []server.OwnedResource{newServer("1", "a", "2"), newServer("2", "a", "2")}, orphaned: []string{"server/1"}},
		"what is drained":                                   {rows: []server.ReconcileRow{row(server.Decommissioning, 2, "", 0)}, owned: []server.OwnedResource{newServer("1", "a", "1")}},
		"a server of nobody":                                {owned: []server.OwnedResource{newServer("1", "z", "1")}, orphaned: []string{"server/1"}},
		"a volume in the ledger":                            {ledger: []server.ProviderResource{{Kind: volume, ProviderID: "7", ServerID: "a"}}, owned: []server.OwnedResource{thing(volume, "7", "v", "a", false)}},
		"a server in the ledger alone has no owner":         {ledger: []server.ProviderResource{{Kind: server.ResourceServer, ProviderID: "7", ServerID: "a"}}, owned: []server.OwnedResource{newServer("7", "a", "1")}, orphaned: []string{"server/7"}},
		"a volume that nobody knows":                        {owned: []server.OwnedResource{thing(volume, "7", "v", "a", false)}, orphaned: []string{"volume/7"}},
		"a shared thing that is gone":                       {ledger: []server.ProviderResource{{Kind: server.ResourceFirewall, ProviderID: "7", Name: "fw"}}, lost: []string{"firewall/7"}},
		"a shared thing that is there":                      {ledger: []server.ProviderResource{{Kind: server.ResourceFirewall, ProviderID: "7", Name: "fw"}}, owned: []server.OwnedResource{thing(server.ResourceFirewall, "7", "fw", "", false)}},
		"a server's thing that is gone goes with it":        {ledger: []server.ProviderResource{{Kind: volume, ProviderID: "7", ServerID: "a"}}},
		"a volume about to be bound":                        {rows: []server.ReconcileRow{row(server.Provisioning, 1, "", 0)}, ledger: []server.ProviderResource{{Kind: volume, Name: "v", ServerID: "a"}}, owned: []server.OwnedResource{thing(volume, "7", "v", "a", false)}},
		"a volume that was intended for what is active":     {rows: []server.ReconcileRow{row(server.Active, 1, "1", 0)}, ledger: []server.ProviderResource{{Kind: volume, Name: "v", ServerID: "a"}}, owned: []server.OwnedResource{newServer("1", "a", "1"), thing(volume, "7", "v", "a", false)}, orphaned: []string{"volume/7"}},
		"a volume that nobody intended":                     {rows: []server.ReconcileRow{row(server.Provisioning, 1, "", 0)}, owned: []server.OwnedResource{thing(volume, "7", "v", "a", false)}, orphaned: []string{"volume/7"}},
		"a volume that was intended for nobody":             {ledger: []server.ProviderResource{{Kind: volume, Name: "v", ServerID: "z"}}, owned: []server.OwnedResource{thing(volume, "7", "v", "z", false)}, orphaned: []string{"volume/7"}},
		"an org's volume":                                   {names: map[string]bool{"volume/v": true}, owned: []server.OwnedResource{thing(volume, "7", "v", "", false)}},
		"an address of a server":                            {owned: []server.OwnedResource{thing(server.ResourcePrimaryIP, "7", "ip", "a", true)}},
		"an address of none":                                {owned: []server.OwnedResource{thing(server.ResourcePrimaryIP, "7", "ip", "a", false)}, orphaned: []string{"primary_ip/7"}},
		"a volume that is attached is not judged by others": {owned: []server.OwnedResource{thing(volume, "7", "v", "a", true)}, orphaned: []string{"volume/7"}},
	} {
		f := Compare(Comparison{Now: now, Rows: tc.rows, Resources: tc.ledger, Owned: tc.owned, OrgNames: tc.names})
		var missing, idle, lost, orphaned []string
		for _, r := range f.Missing {
			missing = append(missing, string(r.ServerID))
		}
		for _, r := range f.Idle {
			idle = append(idle, string(r.ServerID))
		}
		for _, r := range f.Lost {
			lost = append(lost, resourceKey(r.Kind, r.ProviderID))
		}
		for _, o := range f.Orphans {
			orphaned = append(orphaned, resourceKey(o.Kind, o.ProviderID))
		}
		require.Equal(t, [][]string{tc.missing, tc.idle, tc.lost, tc.orphaned}, [][]string{missing, idle, lost, orphaned}, name)
	}
}

// TestOrphansGoOldestFirst: which of many are within the cap does not depend on how the
// provider lists them.
func TestOrphansGoOldestFirst(t *testing.T) {
	t.Parallel()
	now := time.Now()
	f := Compare(Comparison{Now: now, Owned: []server.OwnedResource{
		owned("3", "x", "1", time.Hour, now), owned("1", "x", "1", time.Minute, now), owned("2", "x", "1", time.Hour, now),
	}})
	var ids []string
	for _, o := range f.Orphans {
		ids = append(ids, o.ProviderID)
	}
	require.Equal(t, []string{"2", "3", "1"}, ids)
}

// TestTheBreaker at its edges: what may go, and what makes it refuse all.
func TestTheBreaker(t *testing.T) {
	t.Parallel()
	now := time.Now()
	rules := OrphanRules{MinAge: time.Hour, MaxPerRun: 4, BreakerPct: 10, BreakerMin: 3}
	for name, tc := range map[string]struct {
		servers, ofRows, ofNobody, volumes int // servers with an owner; orphans of rows that ended, and of no row
		age                                time.Duration
		sightings                          int
		doomed                             int
		tripped                            bool
	}{
		"nothing":                            {servers: 10, age: time.Hour, sightings: 2},
		"one":                                {servers: 10, ofRows: 1, age: time.Hour, sightings: 2, doomed: 1},
		"one that is young":                  {servers: 10, ofRows: 1, age: time.Hour - 1, sightings: 2},
		"one that was seen once":             {servers: 10, ofRows: 1, age: time.Hour, sightings: 1},
		"so many may always go":              {servers: 1, ofRows: 3, age: time.Hour, sightings: 2, doomed: 3},
		"too large a share":                  {servers: 30, ofRows: 4, age: time.Hour, sightings: 2, tripped: true},
		"a share that is just allowed":       {servers: 36, ofRows: 4, age: time.Hour, sightings: 2, doomed: 4},
		"more than a run may":                {servers: 100, ofRows: 6, age: time.Hour, sightings: 2, doomed: 4},
		"three that nobody knows":            {servers: 100, ofNobody: 3, age: time.Hour, sightings: 2, doomed: 3},
		"four that nobody knows":             {servers: 100, ofNobody: 4, age: time.Hour, sightings: 2, tripped: true},
		"no rows at all":                     {ofNobody: 1, age: time.Hour, sightings: 2, tripped: true},
		"no rows and nothing to go":          {ofNobody: 1, age: 0, sightings: 2},
		"volumes are no share of the fleet":  {servers: 1, volumes: 4, age: time.Hour, sightings: 2, doomed: 4},
		"no rows, no servers, and a volume":  {volumes: 1, age: time.Hour, sightings: 2, doomed: 1},
		"more volumes than a run may":        {servers: 1, volumes: 5, age: time.Hour, sightings: 2, doomed: 4},
		"young ones are no part of a share":  {servers: 5, ofRows: 4, age: time.Minute, sightings: 2},
		"unseen ones are no sign of trouble": {servers: 5, ofNobody: 4, age: time.Hour, sightings: 1},
	} {
		s, sightings := Comparison{Now: now}, map[string]server.Sighting{}
		var orphans []server.OwnedResource
		n := 0
		add := func(rows server.Status, orphan bool) {
			n++
			o := owned(fmt.Sprint(n), prego.ServerID(fmt.Sprint("s", n)), "1", tc.age, now)
			s.Owned = append(s.Owned, o)
			if rows != "" {
				s.Rows = append(s.Rows, server.ReconcileRow{ServerID: prego.ServerID(fmt.Sprint("s", n)), Status: rows})
			}
			if orphan {
				orphans = append(orphans, o)
			}
			sightings[resourceKey(o.Kind, o.ProviderID)] = server.Sighting{Sightings: tc.sightings}
		}
		for range tc.servers {
			add(server.Active, false)
		}
		for range tc.ofRows {
			add(server.Terminated, true)
		}
		for range tc.ofNobody {
			add("", true)
		}
		for range tc.volumes {
			n++
			o := server.OwnedResource{Kind: server.ResourceVolume, ProviderID: fmt.Sprint(n), CreatedAt: now.Add(-tc.age)}
			s.Owned, orphans = append(s.Owned, o), append(orphans, o)
			sightings[resourceKey(o.Kind, o.ProviderID)] = server.Sighting{Sightings: tc.sightings}
		}
		doomed, tripped := Doomed(s, orphans, sightings, rules)
		require.Equal(t, []any{tc.doomed, tc.tripped}, []any{len(doomed), tripped}, name)
	}
}
