package server

import (
	"time"

	"github.com/prego/prego"
)

// PatchWave is what servers that are patched together have in common, and their results so
// far.
type PatchWave struct {
	WaveID      prego.PatchWaveID
	RequestedBy string
	Why         string
	CreatedAt   time.Time
	Fleets      []prego.FleetID
	Servers     int
	Done        int
	Failed      int
	Cancelled   int
	Installed   int        // packages, on all of them
	FinishedAt  *time.Time // nil while one is under way, or waits
}

// PatchWaveServer is a server of a wave.
type PatchWaveServer struct {
	ServerID   prego.ServerID
	FleetID    prego.FleetID // "" for none
	Status     MaintenanceStatus
	Reason     string
	Message    string
	Patched    *Patched
	CreatedAt  time.Time
	StartedAt  *time.Time
	FinishedAt *time.Time
}

// PatchWaveStep is a line of a wave's timeline.
type PatchWaveStep struct {
	At       time.Time
	ServerID prego.ServerID
	Step     Step
	Reason   prego.Reason
	Message  string
}
