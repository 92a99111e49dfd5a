package server

import (
	"fmt"
	"time"
)

// ContainerInfo is a container on a host.
type ContainerInfo struct {
	Name      string    `json:"name"`  // its name in the stack
	Image     string    `json:"image"` // as declared
	State     string    `json:"state"` // created, running, paused, restarting, removing, exited, dead
	Health    string    `json:"health,omitempty"`
	ExitCode  int       `json:"exit_code"`
	OOMKilled bool      `json:"oom_killed,omitempty"`
	Restarts  int       `json:"restarts"`
	StartedAt time.Time `json:"started_at,omitzero"`
	SpecHash  string    `json:"spec_hash,omitempty"`
	Instance  string    `json:"instance,omitempty"` // the instance that it belongs to; "" for the stack's
}

// ContainerStats is one sample of a container's usage.
type ContainerStats struct {
	At          time.Time     `json:"at"`
	CPU         time.Duration `json:"cpu_ns"` // since it started
	MemoryBytes uint64        `json:"memory_bytes"`
	MemoryLimit uint64        `json:"memory_limit_bytes"`
	Pids        uint64        `json:"pids"`
}

// DriftKind is a way in which a container differs from its declaration.
type DriftKind string

// The kinds of drift.
const (
	DriftMissing    DriftKind = "missing"    // declared, but missing
	DriftStopped    DriftKind = "stopped"    // exists, but is not running
	DriftLooping    DriftKind = "looping"    // keeps crashing
	DriftUnhealthy  DriftKind = "unhealthy"  // running, but its health check fails
	DriftOutdated   DriftKind = "outdated"   // created from another declaration
	DriftChanged    DriftKind = "changed"    // created from this declaration, then changed by hand
	DriftUndeclared DriftKind = "undeclared" // ours, but no longer declared
)

// ContainerDrift is one difference between a host and its declaration. Detail
// names what differs, never values.
type ContainerDrift struct {
	Container string    `json:"container"`
	Kind      DriftKind `json:"kind"`
	Detail    string    `json:"detail,omitempty"`
}

func (d ContainerDrift) String() string {
	if d.Detail == "" {
		return fmt.Sprintf("%s: %s", d.Container, d.Kind)
	}
	return fmt.Sprintf("%s: %s (%s)", d.Container, d.Kind, d.Detail)
}
