package activities

import (
	"sort"
	"strconv"
	"time"

	"github.com/prego/prego/server"
	"github.com/prego/prego/workload"
)

// Comparison is the input of one reconciliation: the rows, read first, and then what
// the provider lists.
type Comparison struct {
	Now       time.Time
	Rows      []server.ReconcileRow
	Resources []server.ProviderResource
	Owned     []server.OwnedResource
	// OrgNames are the names, by kind, of everything that orgs have or are about to
	// have.
	OrgNames map[string]bool
	// Images are the golden images that may still have resources at the provider, by
	// id.
	Images map[string]server.GoldenImage
	// Attached are the volumes that servers had for process groups before the list was made.
	Attached []workload.AttachedVolume
}

// OrphanRules guard against destroying resources that are only misunderstood.
type OrphanRules struct {
	MinAge     time.Duration // more than the longest provisioning attempt
	MaxPerRun  int
	BreakerPct float64 // of the owned servers
	BreakerMin int     // this many may always be destroyed, for small fleets
}

// Findings is the result of a comparison.
type Findings struct {
	// Missing are rows whose machine the provider no longer has.
	Missing []server.ReconcileRow
	// Orphans carry our labels and have no owner, oldest first.
	Orphans []server.OwnedResource
	// Lost are shared or settled resources of the ledger that the provider does
	// not have.
	Lost []server.ProviderResource
	// Idle are rows that should have a workflow working on them.
	Idle []server.ReconcileRow
}

// idleAfter is how long a row in transition may be unchanged before its workflow is
// checked.
const idleAfter = 30 * time.Second

// Compare compares rows with what the provider lists. It is pure.
//
// If a row has two servers, the one whose token was consumed stays: the row is bound to
// it, and the other has no owner.
func Compare(s Comparison) Findings {
	var f Findings
	at := make(map[string]bool, len(s.Owned))
	for _, o := range s.Owned {
		at[resourceKey(o.Kind, o.ProviderID)] = true
	}
	rows := make(map[string]server.ReconcileRow, len(s.Rows))
	bound := make(map[string]bool, len(s.Rows))
	for _, r := range s.Rows {
		rows[string(r.ServerID)] = r
		if r.ProviderServerID != "" && r.Status != server.Terminated {
			bound[r.ProviderServerID] = true
			watched := r.Status == server.Active || r.Status == server.Failed
			if watched && !at[resourceKey(server.ResourceServer, r.ProviderServerID)] {
				f.Missing = append(f.Missing, r)
			}
		}
		moving := r.Status == server.Provisioning || r.Status == server.Decommissioning
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
		row, known := rows[o.Labels[server.LabelServerID]]
		imageID := o.Labels[server.LabelImageID]
		switch {
		case imageID != "" && (o.Kind != server.ResourcePrimaryIP || !o.Attached):
			if !ownedByImage(s.Images[imageID], o) {
				f.Orphans = append(f.Orphans, o)
			}
		case o.Kind == server.ResourceServer && bound[o.ProviderID]:
		case o.Kind == server.ResourceServer && known && inMotion(row, o):
		case o.Kind != server.ResourceServer && ledger[resourceKey(o.Kind, o.ProviderID)]:
		case s.OrgNames[resourceKey(o.Kind, o.Name)]:
		case o.Kind == server.ResourcePrimaryIP && o.Attached:
			// It belongs to its server, and is judged with it.
		case o.Kind == server.ResourceNetwork && o.Attached:
			// Deleting it would take the servers' addresses.
		case intents[resourceKey(o.Kind, o.Name)] && known && row.Status == server.Provisioning:
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

// ownedByImage reports whether a resource with an image's label matches its row: the builder during
// the build, or the snapshot that the row names or will name.
func ownedByImage(g server.GoldenImage, o server.OwnedResource) bool {
	making := g.Status == server.ImageBuilding || g.Status == server.ImageVerifying
	switch o.Kind {
	case server.ResourceServer, server.ResourcePrimaryIP:
		return making
	case server.ResourceImage:
		if g.ProviderImageID == "" {
			return making
		}
		return g.ProviderImageID == o.ProviderID && g.Status != server.ImageFailed
	case server.ResourceVolume, server.ResourceFirewall, server.ResourcePlacementGroup, server.ResourceNetwork:
	}
	return false
}

// inMotion reports whether a workflow may be about to bind the server or to destroy it:
// the row is being provisioned at this very attempt, or is draining.
func inMotion(row server.ReconcileRow, o server.OwnedResource) bool {
	switch row.Status {
	case server.Provisioning:
		attempt, err := strconv.Atoi(o.Labels[server.LabelAttempt])
		return err == nil && attempt >= row.Attempt && row.ProviderServerID == ""
	case server.Decommissioning:
		return true
	case server.Active, server.Failed, server.Terminated:
	}
	return false
}

// Doomed picks, from the orphans that were seen often and long enough, those to destroy
// now. tripped means that the breaker refused them all: too large a part of the fleet
// would go, or the database looks restored or empty.
func Doomed(s Comparison, orphans []server.OwnedResource, sightings map[string]server.Sighting, rules OrphanRules) (doomed []server.OwnedResource, tripped bool) {
	owned, doomedServers, unknown := 0, 0, 0
	rows := make(map[string]bool, len(s.Rows))
	for _, r := range s.Rows {
		rows[string(r.ServerID)] = true
	}
	for _, o := range s.Owned {
		if o.Kind == server.ResourceServer {
			owned++
		}
	}
	for _, o := range orphans {
		seen := sightings[resourceKey(o.Kind, o.ProviderID)]
		if seen.Sightings < 2 || s.Now.Sub(o.CreatedAt) < rules.MinAge {
			continue
		}
		if o.Kind == server.ResourceServer {
			doomedServers++
			if _, known := s.Images[o.Labels[server.LabelImageID]]; !known && !rows[o.Labels[server.LabelServerID]] {
				unknown++
			}
		}
		if !o.Protected { // it was in use when a row last knew it: an operator decides
			doomed = append(doomed, o)
		}
	}
	// Rows are never deleted. Several servers that never had a row mean that another
	// database created them.
	empty := len(s.Rows) == 0 && len(s.Images) == 0 && owned > 0
	restored := unknown > rules.BreakerMin
	share := doomedServers > rules.BreakerMin && float64(doomedServers)*100 > rules.BreakerPct*float64(owned)
	if doomedServers+len(doomed) > 0 && (empty || restored || share) {
		return nil, true
	}
	if len(doomed) > rules.MaxPerRun {
		doomed = doomed[:rules.MaxPerRun]
	}
	return doomed, false
}

func resourceKey(kind server.ResourceKind, id string) string { return string(kind) + "/" + id }
