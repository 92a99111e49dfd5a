package org

import (
	"fmt"

	"github.com/prego/prego"
)

// WorkKind is a kind of long work.
type WorkKind string

// The kinds of long work.
const (
	WorkStart    WorkKind = "start" // of an instance
	WorkSnapshot WorkKind = "snapshot"
	WorkRestore  WorkKind = "restore"
)

// LongWork is work of an org that is to begin.
type LongWork struct {
	OrgID prego.OrgID
	Kind  WorkKind
	Run   string   // the workflow to signal when its turn comes
	IDs   []string // in the order of their turns
}

// Turn decides which work may start.
type Turn struct {
	Begun []string // of the work that was asked for
	Wake  []string // other runs, whose turn has also come
	Most  int      // of the org concurrently
}

// WaitText explains why work of an org waits.
func WaitText(most int) string {
	return fmt.Sprintf("waits for its turn: %d long steps of its org are under way, the most at once", most)
}
