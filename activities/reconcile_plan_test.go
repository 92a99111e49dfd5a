package activities

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/prego/prego"
)

func owned(id, serverID, attempt string, age time.Duration, now time.Time) prego.OwnedResource {
	return prego.OwnedResource{
		Kind: prego.ResourceServer, ProviderID: id, Name: "n" + id, CreatedAt: now.Add(-age),
		Labels: map[string]string{prego.LabelServerID: serverID, prego.LabelAttempt: attempt},
	}
}

func TestOfTwoServersForOneRowTheBoundOneStays(t *testing.T) {
	t.Parallel()
	now := time.Now()
	f := FindFleet(FleetSnapshot{
		Now:  now,
		Rows: []prego.FleetRow{{ServerID: "a", Status: prego.ServerActive, Attempt: 2, ProviderServerID: "2", ConsumedAttempt: 2}},
		Owned: []prego.OwnedResource{
			owned("1", "a", "1", time.Hour, now), owned("2", "a", "2", time.Hour, now),
		},
	})
	require.Empty(t, f.Missing)
	require.Len(t, f.Orphans, 1)
	require.Equal(t, "1", f.Orphans[0].ProviderID)
}

// TestDoomedKeepsToItsGuards: whatever the fleet looks like, nothing goes that is
// young, seen once or has an owner; never more than the cap; and nothing at all
// when the rows are gone.
func TestDoomedKeepsToItsGuards(t *testing.T) {
	t.Parallel()
	now := time.Now()
	rules := OrphanRules{MinAge: time.Hour, MaxPerRun: 5, BreakerPct: 5, BreakerMin: 3}
	rapid.Check(t, func(t *rapid.T) {
		s := FleetSnapshot{Now: now}
		sightings := map[string]prego.Sighting{}
		for i := range rapid.IntRange(0, 60).Draw(t, "servers") {
			id := fmt.Sprint(i)
			age := time.Duration(rapid.IntRange(0, 120).Draw(t, "minutes")) * time.Minute
			s.Owned = append(s.Owned, owned(id, "s"+id, "1", age, now))
			sightings[resourceKey(prego.ResourceServer, id)] = prego.Sighting{Sightings: rapid.IntRange(1, 3).Draw(t, "sightings")}
			switch rapid.IntRange(0, 3).Draw(t, "row") {
			case 0: // no row
			case 1:
				s.Rows = append(s.Rows, prego.FleetRow{ServerID: "s" + id, Status: prego.ServerTerminated, Attempt: 1})
			default:
				s.Rows = append(s.Rows, prego.FleetRow{ServerID: "s" + id, Status: prego.ServerActive, Attempt: 1, ProviderServerID: id})
			}
		}
		found := FindFleet(s)
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
			require.False(t, bound[o.ProviderID], "it has an owner")
			require.GreaterOrEqual(t, now.Sub(o.CreatedAt), rules.MinAge)
			require.GreaterOrEqual(t, sightings[resourceKey(o.Kind, o.ProviderID)].Sightings, 2)
		}
	})
}

// TestWhatCarriesAnImagesLabel: builders and snapshots are their image's while its row says
// so, and orphans when it does not.
func TestWhatCarriesAnImagesLabel(t *testing.T) {
	t.Parallel()
	now := time.Now()
	thing := func(kind prego.ResourceKind, id, image string) prego.OwnedResource {
		return prego.OwnedResource{Kind: kind, ProviderID: id, Name: "n" + id, CreatedAt: now.Add(-time.Hour), Labels: map[string]string{prego.LabelImageID: image, prego.LabelServerID: image + "-builder", prego.LabelAttempt: "1"}}
	}
	images := map[string]prego.GoldenImage{}
	for id, status := range map[string]prego.ImageStatus{"building": prego.ImageBuilding, "verifying": prego.ImageVerifying, "ready": prego.ImageReady, "failed": prego.ImageFailed, "deleting": prego.ImageDeleting} {
		images[id] = prego.GoldenImage{ImageID: id, Status: status}
	}
	for _, id := range []string{"verifying", "ready", "failed", "deleting"} {
		g := images[id]
		g.ProviderImageID = "snap-" + id
		images[id] = g
	}
	s := FleetSnapshot{Now: now, Images: images}
	for id := range images {
		s.Owned = append(s.Owned, thing(prego.ResourceServer, "srv-"+id, id), thing(prego.ResourceImage, "snap-"+id, id), thing(prego.ResourceImage, "twin-"+id, id))
	}
	s.Owned = append(s.Owned, thing(prego.ResourceServer, "srv-nobodys", "nobodys"), thing(prego.ResourceImage, "snap-nobodys", "nobodys"))
	attached := thing(prego.ResourcePrimaryIP, "ip", "failed")
	attached.Attached = true
	s.Owned = append(s.Owned, attached)
	var orphans []string
	for _, o := range FindFleet(s).Orphans {
		orphans = append(orphans, o.ProviderID)
	}
	require.ElementsMatch(t, []string{
		"srv-ready", "srv-failed", "srv-deleting", "srv-nobodys",
		"snap-failed", "snap-nobodys", "twin-verifying", "twin-ready", "twin-failed", "twin-deleting",
	}, orphans, "while it is building, which of its snapshots is the one is not known yet")

	// A builder of an image that is known says nothing about the database.
	sightings := map[string]prego.Sighting{}
	for _, o := range FindFleet(s).Orphans {
		sightings[resourceKey(o.Kind, o.ProviderID)] = prego.Sighting{Sightings: 2}
	}
	doomed, tripped := Doomed(s, FindFleet(s).Orphans, sightings, OrphanRules{MinAge: time.Minute, MaxPerRun: 100, BreakerPct: 100, BreakerMin: 1})
	require.False(t, tripped)
	require.Len(t, doomed, 10)
	s.Images = nil
	doomed, tripped = Doomed(s, FindFleet(s).Orphans, sightings, OrphanRules{MinAge: time.Minute, MaxPerRun: 100, BreakerPct: 100, BreakerMin: 1})
	require.True(t, tripped, "this is not the database that made them")
	require.Empty(t, doomed)
}
