// Package ops is about all areas: events, operations, the audit, searches, and what workers look for. It is pure.
package ops

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego"
)

// Event is something that happened to an object.
type Event struct {
	Cursor  string // its place in the feed
	At      time.Time
	Kind    string // of the object
	ID      string
	OrgID   prego.OrgID // that owns it, "" if none does
	About   []string    // ids of other objects that it concerns
	Step    string      // what happened
	Status  string      // of the object, after it
	Reason  string
	Message string
	Actor   string
}

// EventQuery selects a page of the feed of events.
type EventQuery struct {
	Since string // a cursor; "" is the end of the feed
	Tail  int    // without a cursor: so many of the newest events
	Limit int    // events
	EventFilter
}

// EventFilter selects events; an empty field selects all.
type EventFilter struct {
	Kinds []string
	IDs   []string // of the object or another subject of the event
	Orgs  []string
}

// Matches reports whether a filter selects an event.
func (f EventFilter) Matches(e Event) bool {
	return (len(f.Kinds) == 0 || slices.Contains(f.Kinds, e.Kind)) &&
		(len(f.Orgs) == 0 || slices.Contains(f.Orgs, string(e.OrgID))) &&
		(len(f.IDs) == 0 || slices.ContainsFunc(f.IDs, func(id string) bool { return id == e.ID || slices.Contains(e.About, id) }))
}

// Empty reports whether a filter selects everything.
func (f EventFilter) Empty() bool { return len(f.Kinds)+len(f.IDs)+len(f.Orgs) == 0 }

// EventPage is a page of the feed of events, the oldest first.
type EventPage struct {
	Events []Event
	Next   string // the cursor to read on from
	More   bool   // more can be read immediately, even if the page is empty
}

// EventCursor is a cursor of the feed of events: a transaction, and the number of the event.
type EventCursor struct {
	Xid uint64
	Seq int64
}

func (p EventCursor) String() string {
	return strconv.FormatUint(p.Xid, 10) + "-" + strconv.FormatInt(p.Seq, 10)
}

// Compare orders places as the feed does.
func (p EventCursor) Compare(o EventCursor) int {
	return cmp.Or(cmp.Compare(p.Xid, o.Xid), cmp.Compare(p.Seq, o.Seq))
}

// ParseEventCursor reads a cursor, or refuses it with CodeInvalidField.
func ParseEventCursor(s string) (p EventCursor, err error) {
	xid, seq, ok := strings.Cut(s, "-")
	p.Xid, err = strconv.ParseUint(xid, 10, 64)
	if ok && err == nil {
		p.Seq, err = strconv.ParseInt(seq, 10, 64)
	}
	if !ok || err != nil || p.Seq < 0 {
		return EventCursor{}, prego.Invalid("since", "must be a cursor of the feed of events")
	}
	return p, nil
}
