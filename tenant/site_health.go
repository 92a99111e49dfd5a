package tenant

import (
	"time"

	"github.com/prego/prego"
)

// SiteHealth is whether a tenant's site answers, by the edges that probe it now.
type SiteHealth struct {
	Up     bool             `json:"up"`    // every one of these edges reaches it
	Since  time.Time        `json:"since"` // of up or down
	Cause  string           `json:"cause"` // of down: refused, timeout, error, missing or maintenance
	Edges  []prego.ServerID `json:"edges"`
	DownAt []prego.ServerID `json:"down_at"` // the edges that don't reach it
}

// Uptime is how long a tenant's site was up and down in a month of UTC. It is down while no edge reaches it. Time
// without an edge that probes it is unobserved, such as that of a suspension.
type Uptime struct {
	Month             string  `json:"month"` // as 2026-11
	UpSeconds         float64 `json:"up_seconds"`
	DownSeconds       float64 `json:"down_seconds"`
	UnobservedSeconds float64 `json:"unobserved_seconds"`
}

// Pct is the observed uptime in percent, nil while nothing was observed.
func (u Uptime) Pct() *float64 {
	observed := u.UpSeconds + u.DownSeconds
	if observed <= 0 {
		return nil
	}
	pct := 100 * (u.UpSeconds / observed) // the quotient is at most 1, whatever is rounded
	return &pct
}
