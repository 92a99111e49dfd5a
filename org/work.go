package org

// Work are rows that should have a run working on them, and have been still for
// a while.
type Work struct {
	Addresses, Volumes, Snapshots, Restores []string
	Erasures                                []string // of snapshots' files
}
