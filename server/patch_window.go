package server

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/prego/prego"
)

// PatchWindow is when servers are patched by themselves; the zero value is never.
type PatchWindow struct {
	cron cron.Schedule
	open time.Duration
}

// maxPatchWindow bounds how long a window is.
const maxPatchWindow = 24 * time.Hour

// NewPatchWindow is a window that opens as a cron expression of five fields says, in UTC, and is open for
// a while; "" is never.
func NewPatchWindow(expression string, open time.Duration) (w PatchWindow, err error) {
	if expression == "" {
		return w, nil
	}
	if open < time.Minute || open > maxPatchWindow {
		return w, prego.Invalid("patch window", "must be open for a minute to 24 hours")
	}
	w.open = open
	if w.cron, err = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(expression); err != nil {
		return PatchWindow{}, prego.Invalid("patch window", fmt.Sprintf("must be a cron expression of five fields: %v", err))
	}
	return w, nil
}

// OpenSince is since when the window has been open, if it is.
func (w PatchWindow) OpenSince(now time.Time) (since time.Time, open bool) {
	if w.cron == nil {
		return since, false
	}
	now = now.UTC()
	since = w.cron.Next(now.Add(-w.open))
	return since, !since.IsZero() && !since.After(now)
}
