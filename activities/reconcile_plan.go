package activities

import (
	"sort"
	"strconv"
	"time"

	"github.com/prego/prego"
)

// FleetSnapshot is what one reconciliation compares: the rows, read first, and
// then what the provider lists.
type FleetSnapshot struct {
	Now       time.Time
	Rows      []prego.FleetRow
	Resources []prego.Resource
	Owned     []prego.OwnedResource
	// OrgNames are the names, by kind, of all that orgs have or are about to have.
	OrgNames map[string]bool
	// Images are the golden images that may still have something at the provider, by id.
	Images map[string]prego.GoldenImage
}

// OrphanRules guard against destroying what is merely not understood.
type OrphanRules struct {
	MinAge     time.Duration // older than the longest provisioning attempt
	MaxPerRun  int
	BreakerPct float64 // of the owned servers
	BreakerMin int     // so many may always go: small fleets
}

// FleetFindings is what the snapshot shows.
type FleetFindings struct {
	// Missing are rows whose machine the provider no longer has.
	Missing []prego.FleetRow
	// Orphans carry our labels and have no owner, oldest first.
	Orphans []prego.OwnedResource
	// Lost are shared or settled resources of the ledger that the provider does
	// not have.
	Lost []prego.Resource
	// Idle are rows that should have a workflow working on them.
	Idle []prego.FleetRow
}

// idleAfter is how long a row in motion may stand still before its workflow is
// checked for.
const idleAfter = 30 * time.Second

// FindFleet compares rows with what the provider lists. It is pure.
//
// Of two servers for one row the one whose token was consumed stays: it is the
// one the row is bound to, and the other has no owner.
func FindFleet(s FleetSnapshot) FleetFindings {
	var f FleetFindings
	at := make(map[string]bool, len(s.Owned))
	for _, o := range s.Owned {
		at[resourceKey(o.Kind, o.ProviderID)] = true
	}
	rows := make(map[string]prego.FleetRow, len(s.Rows))
	bound := make(map[string]bool, len(s.Rows))
	for _, r := range s.Rows {
		rows[r.ServerID] = r
		if r.ProviderServerID != "" && r.Status != prego.ServerTerminated {
			bound[r.ProviderServerID] = true
			watched := r.Status == prego.ServerActive || r.Status == prego.ServerFailed
			if watched && !at[resourceKey(prego.ResourceServer, r.ProviderServerID)] {
				f.Missing = append(f.Missing, r)
			}
		}
		moving := r.Status == prego.ServerProvisioning || r.Status == prego.ServerDraining
		if moving && r.Idle >= idleAfter {
			f.Idle = append(f.Idle, r)
		}
	}
	ledger := make(map[string]bool, len(s.Resources))
	intents := make(map[string]bool)
	for _, r := range s.Resources {
		switch {
		case r.ProviderID != "":
			ledger[resourceKey(r.Kind, r.ProviderID)] = true
			if r.ServerID == "" && !at[resourceKey(r.Kind, r.ProviderID)] {
				f.Lost = append(f.Lost, r)
			}
		default:
			intents[resourceKey(r.Kind, r.Name)] = true
		}
	}
	for _, o := range s.Owned {
		row, known := rows[o.Labels[prego.LabelServerID]]
		imageID := o.Labels[prego.LabelImageID]
		switch {
		case imageID != "" && (o.Kind != prego.ResourcePrimaryIP || !o.Attached):
			if !ownedByImage(s.Images[imageID], o) {
				f.Orphans = append(f.Orphans, o)
			}
		case o.Kind == prego.ResourceServer && bound[o.ProviderID]:
		case o.Kind == prego.ResourceServer && known && inMotion(row, o):
		case o.Kind != prego.ResourceServer && ledger[resourceKey(o.Kind, o.ProviderID)]:
		case s.OrgNames[resourceKey(o.Kind, o.Name)]:
		case o.Kind == prego.ResourcePrimaryIP && o.Attached:
			// It goes with its server, and is judged by it.
		case intents[resourceKey(o.Kind, o.Name)] && known && row.Status == prego.ServerProvisioning:
		default:
			f.Orphans = append(f.Orphans, o)
		}
	}
	sort.Slice(f.Orphans, func(i, j int) bool {
		a, b := f.Orphans[i], f.Orphans[j]
		if !a.CreatedAt.Equal(b.CreatedAt) {
			return a.CreatedAt.Before(b.CreatedAt)
		}
		return resourceKey(a.Kind, a.ProviderID) < resourceKey(b.Kind, b.ProviderID)
	})
	return f
}

// ownedByImage reports whether what carries an image's label is what its row says: the
// builder while it is built, and the one snapshot that the row names, or is about to.
func ownedByImage(g prego.GoldenImage, o prego.OwnedResource) bool {
	making := g.Status == prego.ImageBuilding || g.Status == prego.ImageVerifying
	switch o.Kind {
	case prego.ResourceServer, prego.ResourcePrimaryIP:
		return making
	case prego.ResourceImage:
		if g.ProviderImageID == "" {
			return making
		}
		return g.ProviderImageID == o.ProviderID && g.Status != prego.ImageFailed
	case prego.ResourceVolume, prego.ResourceFirewall, prego.ResourcePlacementGroup:
	}
	return false
}

// inMotion reports whether a workflow may be about to bind, or to take down, the
// server: the row is being provisioned at this very attempt, or is draining.
func inMotion(row prego.FleetRow, o prego.OwnedResource) bool {
	switch row.Status {
	case prego.ServerProvisioning:
		attempt, err := strconv.Atoi(o.Labels[prego.LabelAttempt])
		return err == nil && attempt >= row.Attempt && row.ProviderServerID == ""
	case prego.ServerDraining:
		return true
	case prego.ServerActive, prego.ServerFailed, prego.ServerTerminated:
	}
	return false
}

// Doomed picks, from the orphans that were seen often and long enough, those to
// destroy now. tripped tells that the breaker refused them all: too large a part
// of the fleet would go, or the database looks restored or empty.
func Doomed(s FleetSnapshot, orphans []prego.OwnedResource, sightings map[string]prego.Sighting, rules OrphanRules) (doomed []prego.OwnedResource, tripped bool) {
	owned, doomedServers, unknown := 0, 0, 0
	rows := make(map[string]bool, len(s.Rows))
	for _, r := range s.Rows {
		rows[r.ServerID] = true
	}
	for _, o := range s.Owned {
		if o.Kind == prego.ResourceServer {
			owned++
		}
	}
	for _, o := range orphans {
		seen := sightings[resourceKey(o.Kind, o.ProviderID)]
		if seen.Sightings < 2 || s.Now.Sub(o.CreatedAt) < rules.MinAge {
			continue
		}
		if o.Kind == prego.ResourceServer {
			doomedServers++
			if _, known := s.Images[o.Labels[prego.LabelImageID]]; !known && !rows[o.Labels[prego.LabelServerID]] {
				unknown++
			}
		}
		doomed = append(doomed, o)
	}
	// Rows are never deleted. Several servers that no row ever knew mean that this
	// is not the database that made them.
	empty := len(s.Rows) == 0 && len(s.Images) == 0 && owned > 0
	restored := unknown > rules.BreakerMin
	share := doomedServers > rules.BreakerMin && float64(doomedServers)*100 > rules.BreakerPct*float64(owned)
	if len(doomed) > 0 && (empty || restored || share) {
		return nil, true
	}
	if len(doomed) > rules.MaxPerRun {
		doomed = doomed[:rules.MaxPerRun]
	}
	return doomed, false
}

func resourceKey(kind prego.ResourceKind, id string) string { return string(kind) + "/" + id }
