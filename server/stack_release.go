package server

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/prego/prego"
)

// StackReleaseName is the name of a stack release.
type StackReleaseName string

// ReleaseStatus is the status of a stack release.
type ReleaseStatus string

// The statuses of a stack release.
const (
	ReleaseCreated   ReleaseStatus = "created"
	ReleaseRolling   ReleaseStatus = "rolling"
	ReleasePaused    ReleaseStatus = "paused"  // by an operator
	ReleaseStopped   ReleaseStatus = "stopped" // a server did not take it, or a ring proved nothing; see the reason
	ReleaseDone      ReleaseStatus = "done"
	ReleaseCancelled ReleaseStatus = "cancelled"
)

// Rests reports whether nothing happens until an operator requests it.
func (s ReleaseStatus) Rests() bool { return s != ReleaseRolling }

// BenchStatus is how a server stands to a release.
type BenchStatus string

// The statuses of a server's bench in a release.
const (
	BenchPending    BenchStatus = "pending"
	BenchUpdating   BenchStatus = "updating"
	BenchDone       BenchStatus = "done"
	BenchRolledBack BenchStatus = "rolled_back" // it is as it was
	BenchBroken     BenchStatus = "broken"      // the way back failed
	BenchSkipped    BenchStatus = "skipped"     // the server is gone
)

// The reasons why a release stops.
const (
	ReasonImageUnavailable  prego.Reason = "image_unavailable"
	ReasonPreUpdateBackup   prego.Reason = "backup_failed"
	ReasonSiteNotClosed     prego.Reason = "site_not_closed"
	ReasonBenchUnhealthy    prego.Reason = "bench_unhealthy"
	ReasonMigrateFailed     prego.Reason = "migrate_failed"
	ReasonWrongVersion      prego.Reason = "wrong_version"
	ReasonSiteNotAnswering  prego.Reason = "site_not_answering"
	ReasonUpdateInterrupted prego.Reason = "update_interrupted"
	ReasonRollbackFailed    prego.Reason = "rollback_failed"
	// ReasonRingUnproven stops a release between rings: all servers of a ring were lost or deleted before one had it.
	ReasonRingUnproven prego.Reason = "ring_unproven"
)

// ReleaseRing is a part of the fleet that gets a release before the next one does: the
// servers of some tenants, so many percent of all tenants together with the rings before, or
// with neither all that are left.
type ReleaseRing struct {
	Name    string           `json:"name"`
	Tenants []prego.TenantID `json:"tenants,omitempty"`
	Percent int              `json:"percent,omitempty"`
	// SoakSeconds is how long the ring runs the release before the next ring starts.
	SoakSeconds int `json:"soak_seconds,omitempty"`
}

func (r ReleaseRing) isRest() bool { return r.Percent == 0 && len(r.Tenants) == 0 }

// StackRelease is one row of stack_releases.
type StackRelease struct {
	Name      StackReleaseName
	Image     string
	Apps      map[string]string // versions that sites must have afterwards, by app
	Rings     []ReleaseRing
	Status    ReleaseStatus
	Reason    prego.Reason
	Message   string
	Current   bool // servers that are made from now on run it
	CreatedBy string

	CreatedAt  time.Time
	StartedAt  *time.Time
	FinishedAt *time.Time
}

// WorkflowID is the id of its run.
func (r StackRelease) WorkflowID() string { return StackReleaseWorkflowID(r.Name) }

// BenchUpdate is one row of stack_release_servers.
type BenchUpdate struct {
	Release   StackReleaseName
	ServerID  prego.ServerID
	Ring      int
	Status    BenchStatus
	Phase     string
	Reason    prego.Reason
	Message   string
	FromImage string // "" for the configured one
	SiteCount int    // tenants' sites
	// Offline is the longest time that a site of the server was not served, in seconds, so far.
	Offline    float64
	StartedAt  *time.Time
	FinishedAt *time.Time
}

// StackReleaseLimits bound how many sites are offline concurrently for releases. A server whose sites
// alone are more is updated when no other one is.
type StackReleaseLimits struct {
	Sites    int // of all servers
	OrgSites int // of one org
}

// CreateStackReleaseRequest is the body of POST /v1/releases.
type CreateStackReleaseRequest struct {
	Name  StackReleaseName  `json:"name"`
	Image string            `json:"image"`
	Apps  map[string]string `json:"apps,omitempty"`
	Rings []ReleaseRing     `json:"rings,omitempty"`
}

const (
	maxRings   = 10
	maxSoak    = 7 * 24 * 3600
	earlyShare = 5 // percent
)

var (
	releaseName    = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	releaseApp     = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
	releaseVersion = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+_-]{0,62}$`)
	ringName       = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
)

// DefaultRings are the rings of a release that names none.
func DefaultRings(canaries []prego.TenantID) []ReleaseRing {
	rings := []ReleaseRing{{Name: "early", Percent: earlyShare}, {Name: "rest"}}
	if len(canaries) > 0 {
		rings = slices.Insert(rings, 0, ReleaseRing{Name: "canary", Tenants: canaries})
	}
	return rings
}

// Validate checks the request, and fills in the rings: without any the default ones, and
// the rest comes last.
func (r *CreateStackReleaseRequest) Validate() error {
	if !releaseName.MatchString(string(r.Name)) {
		return prego.Invalid("name", "must be 1 to 63 characters of a-z, 0-9, dot and dash, and begin and end with a letter or a digit")
	}
	if err := ValidateImage("image", r.Image); err != nil {
		return err
	}
	for _, app := range slices.Sorted(maps.Keys(r.Apps)) {
		if !releaseApp.MatchString(app) || !releaseVersion.MatchString(r.Apps[app]) {
			return prego.Invalid("apps", fmt.Sprintf("%q with version %q is no app", app, r.Apps[app]))
		}
	}
	if len(r.Rings) == 0 {
		r.Rings = DefaultRings(nil)
	}
	names, share := map[string]bool{}, 0
	for i, ring := range r.Rings {
		field := fmt.Sprintf("rings.%d", i)
		switch {
		case !ringName.MatchString(ring.Name) || names[ring.Name]:
			return prego.Invalid(field+".name", "must be 1 to 32 characters of a-z, 0-9 and dash, and the only ring of that name")
		case ring.Percent < 0 || ring.Percent > 100 || ring.Percent > 0 && (len(ring.Tenants) > 0 || ring.Percent <= share):
			return prego.Invalid(field+".percent", "must be at most 100, more than that of the ring before, and not given with tenants")
		case ring.SoakSeconds < 0 || ring.SoakSeconds > maxSoak:
			return prego.Invalid(field+".soak_seconds", "must be at most 604800")
		case ring.isRest() && i < len(r.Rings)-1:
			return prego.Invalid(field, "has neither tenants nor a percentage, which is all that are left: it must be the last")
		}
		names[ring.Name], share = true, max(share, ring.Percent)
	}
	if last := r.Rings[len(r.Rings)-1]; !last.isRest() {
		if names["rest"] {
			return prego.Invalid("rings", "the last ring must be the one that is called rest")
		}
		r.Rings = append(r.Rings, ReleaseRing{Name: "rest"})
	}
	if len(r.Rings) > maxRings {
		return prego.Invalid("rings", fmt.Sprintf("must be at most %d", maxRings))
	}
	return nil
}

// BenchServer is a server with a bench, and whose sites are on it.
type BenchServer struct {
	ServerID prego.ServerID
	Tenants  []prego.TenantID
}

// AssignRings assigns a ring to each server. The result is the same for the same release,
// in any order of the servers. A percentage counts tenants, is of all of them together
// with the rings before, and takes at least one server; servers without tenants show
// nothing, and come last.
func AssignRings(release StackReleaseName, rings []ReleaseRing, servers []BenchServer) map[prego.ServerID]int {
	servers = slices.Clone(servers)
	place := func(id prego.ServerID) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(string(release) + "\x00" + string(id))) // never fails
		return h.Sum64()
	}
	slices.SortFunc(servers, func(a, b BenchServer) int {
		return cmp.Or(cmp.Compare(place(a.ServerID), place(b.ServerID)), cmp.Compare(a.ServerID, b.ServerID))
	})
	total, taken, last := 0, 0, len(rings)-1
	out := make(map[prego.ServerID]int, len(servers))
	for _, s := range servers {
		total += len(s.Tenants)
		out[s.ServerID] = last
	}
	for i, ring := range rings[:last] {
		took := false
		for _, s := range servers {
			if out[s.ServerID] < last || len(s.Tenants) == 0 {
				continue
			}
			named := slices.ContainsFunc(s.Tenants, func(t prego.TenantID) bool { return slices.Contains(ring.Tenants, t) })
			if named || ring.Percent > 0 && (!took || taken*100 < ring.Percent*total) {
				out[s.ServerID], took = i, true
				taken += len(s.Tenants)
			}
		}
	}
	return out
}

// StackReleaseStep is what one look at a release came to.
type StackReleaseStep struct {
	Status  ReleaseStatus
	Message string
	// Updating are the servers whose runs should be under way.
	Updating []prego.ServerID
	Began    bool // a server's update, with this look
	Total    int
	Left     int
}

// StackReleaseSite is a site of a server that is being updated.
type StackReleaseSite struct {
	Site       string               `json:"site"`
	TenantID   prego.TenantID       `json:"tenant_id,omitempty"` // "" for a pool site
	PoolSiteID string               `json:"pool_site_id,omitempty"`
	Status     StackReleaseSiteStep `json:"status"`
	Closed     bool                 `json:"closed,omitempty"` // edges show the maintenance page
}

// StackReleaseSiteStep is how far a site's update is.
type StackReleaseSiteStep string

// The steps of a site.
const (
	SiteWaiting   StackReleaseSiteStep = "waiting"
	SiteKept      StackReleaseSiteStep = "kept" // offline, with a backup on the host
	SiteMigrating StackReleaseSiteStep = "migrating"
	SiteMigrated  StackReleaseSiteStep = "migrated"
	SiteChecked   StackReleaseSiteStep = "checked"
	SiteRestored  StackReleaseSiteStep = "restored"
)

// BenchRecord is what the run that updates a server reads of it.
type BenchRecord struct {
	BenchUpdate
	Undoing bool
	Try     int
	Image   string // the release's
	Apps    map[string]string
	Role    prego.Role
	Region  prego.Region
	Host    string
	// Gone is set if the server is not active any more.
	Gone bool
	// Cancelled is set if the release is; Untouched, if the update has changed nothing on the host or for visitors.
	Cancelled, Untouched bool

	Sites []StackReleaseSite
	// Waits returns what must end first: "" if the update may begin.
	Waits string
}

// StackReleaseWorkflowID is the id of the run that rolls a release out.
func StackReleaseWorkflowID(name StackReleaseName) string { return string("release/" + name) }

// BenchUpdateWorkflowID is the id of the run that updates a server's bench.
func BenchUpdateWorkflowID(name StackReleaseName, serverID prego.ServerID) string {
	return "release-server/" + string(name) + "/" + string(serverID)
}
