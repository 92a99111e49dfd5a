// Package rooted runs as root, or holds Docker's socket, which is equivalent: a process for each task, with a few
// verbs and a check of the caller. None of it listens to the network.
package rooted

import "github.com/prego/prego/agent/host"

// Machine is a host as root works on it: its devices, its addresses and its packages. A host
// that is a directory has no processes for that, see Here.
type Machine struct {
	*host.Host

	// For tests: how much of the disk backups of volumes leave free, and a hook that is called while a file system is
	// frozen.
	keepFree     int64
	duringFreeze func()
}

// Here works on a host in this process, for a host that is a directory, which needs no root.
func Here(h *host.Host) *Machine { return &Machine{Host: h} }
