package org

// Work lists rows that should have a workflow run, and have been unchanged for a while.
type Work struct {
	Addresses, Volumes, Snapshots, Restores []string
	Erasures                                []string // of snapshots' files
}
