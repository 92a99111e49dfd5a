package server

import (
	"fmt"
	"time"
)

// PatchState is how a host stands to Debian's security updates.
type PatchState string

// How a host stands to security updates.
const (
	PatchUnknown PatchState = "unknown" // its agent has not reported
	PatchCurrent PatchState = "current"
	PatchPending PatchState = "pending" // updates are missing
	PatchReboot  PatchState = "reboot"  // none is, but it runs code that was replaced
)

// Patches are the security updates that a host lacks.
type Patches struct {
	Pending     int             `json:"pending"`
	Packages    []PackageUpdate `json:"packages,omitempty"` // the first of them
	RebootSince time.Time       `json:"reboot_since,omitzero"`
	RebootFor   string          `json:"reboot_for,omitempty"`
	CheckedAt   time.Time       `json:"checked_at,omitzero"` // when the lists of packages were fetched last
	Failed      string          `json:"failed,omitempty"`    // why they could not be
}

// PackageUpdate is a package with its version before, "" for none, and after.
type PackageUpdate struct {
	Name string `json:"name"`
	From string `json:"from,omitempty"`
	To   string `json:"to"`
}

// State sums them up.
func (p Patches) State() PatchState {
	switch {
	case p.Pending > 0:
		return PatchPending
	case !p.RebootSince.IsZero():
		return PatchReboot
	case p.CheckedAt.IsZero():
		return PatchUnknown
	}
	return PatchCurrent
}

// ToDo describes what a patch of the host would do, "" for nothing.
func (p Patches) ToDo() string {
	switch {
	case p.Pending > 0 && !p.RebootSince.IsZero():
		return fmt.Sprintf("%d security updates and a reboot (%s)", p.Pending, p.RebootFor)
	case p.Pending > 0:
		return fmt.Sprintf("%d security updates", p.Pending)
	case !p.RebootSince.IsZero():
		return "a reboot: " + p.RebootFor
	}
	return ""
}

// Patched is what a patch installed on a host, and how that stood afterwards.
type Patched struct {
	Installed int             `json:"installed"`
	Packages  []PackageUpdate `json:"packages,omitempty"` // the first of them
	Now       Patches         `json:"now"`
}

// PatchCount counts servers by their state of security updates; Late are servers that lack updates for
// longer than they should.
type PatchCount struct {
	Region string
	Role   string
	State  PatchState
	N      int
	Late   int
}
