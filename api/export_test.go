package api

import (
	"maps"
	"slices"

	"github.com/prego/prego"
)

// Status is the one that a code is answered with.
func Status(code prego.Code) int { return statuses[code] }

// Codes are those that callers can meet.
func Codes() []prego.Code { return slices.Collect(maps.Keys(statuses)) }

// Limits of streams, and of the feed of events.
const (
	MaxStreams  = maxStreams
	FollowEvery = followEvery
	FeedBuffer  = feedBuffer
)

// Following reports whether the feed of events is being read.
func (a *API) Following() bool {
	a.feed.mu.Lock()
	defer a.feed.mu.Unlock()
	return a.feed.running
}

// End ends what is long, as the end of the process does.
func (a *API) End() { a.end() }
