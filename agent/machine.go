package agent

// Machine is a host as root works on it: its devices, its addresses and its packages. A host
// that is a directory has no processes for that, see Here.
type Machine struct {
	*Host

	// For tests: how much of the disk backups of volumes leave free, and what is called while a
	// file system is frozen.
	keepFree     int64
	duringFreeze func()
}

// Here works on a host in this process: for one that is a directory, which needs no root.
func Here(h *Host) *Machine { return &Machine{Host: h} }
