package wire

import "time"

// PatchSocket is where the process that installs security updates listens for the executor.
const PatchSocket = "/run/prego-agent-patch.sock"

// PathPatches takes a PatchReport. It needs ScopeHeartbeat.
const PathPatches = "/internal/agent/patches"

// Bounds of a PatchReport.
const (
	MaxPatchPackages = 40
	MaxPatchText     = 512 // bytes of each text
)

// PatchReport lists the security updates that a host lacks, and why it needs a reboot.
type PatchReport struct {
	// Pending is how many packages have a security update that is not installed.
	Pending int `json:"pending"`
	// Packages are the first MaxPatchPackages of them, by name.
	Packages []PackageUpdate `json:"packages,omitempty"`
	// RebootSince is since when the host needs a reboot, zero if it needs none; RebootFor is the reason.
	RebootSince time.Time `json:"reboot_since,omitzero"`
	RebootFor   string    `json:"reboot_for,omitempty"`
	// CheckedAt is when the lists of packages were fetched last, zero if never.
	CheckedAt time.Time `json:"checked_at,omitzero"`
	// Failed is why the lists could not be fetched.
	Failed string `json:"failed,omitempty"`
}

// PackageUpdate is a package with the installed version, "" for none, and the next one.
type PackageUpdate struct {
	Name string `json:"name"`
	From string `json:"from,omitempty"`
	To   string `json:"to"`
}

// PatchResult is what the verb apply prints: what it installed, and how the host stands now.
type PatchResult struct {
	Installed int             `json:"installed"`
	Packages  []PackageUpdate `json:"packages,omitempty"` // the first MaxPatchPackages
	Now       PatchReport     `json:"now"`
}
