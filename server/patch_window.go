package server

import (
	"cmp"
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

// NewPatchWindow is a window that opens by a cron expression of five fields, in UTC, and is open for
// a while; "" is never.
func NewPatchWindow(expression string, open time.Duration) (w PatchWindow, err error) {
	if expression == "" {
		return w, nil
	}
	if open < time.Minute || open > maxPatchWindow {
		return w, prego.Invalid("patch window", "must be open for a minute to 24 hours")
	}
	w.open = open
	if w.cron, err = prego.ParseCron(expression); err != nil {
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

// PatchNever is the schedule of a fleet whose servers are patched on request only.
const PatchNever = "never"

// defaultWindow is how long a fleet's window is open by default, in seconds.
const defaultWindow = 4 * 60 * 60

// FleetPatchWindow is a fleet's own window. Without a schedule it is the environment's.
type FleetPatchWindow struct {
	Schedule string `json:"schedule"`          // cron expression of five fields in UTC, or PatchNever
	Seconds  int    `json:"seconds,omitempty"` // how long it is open
}

// Validate checks a window, if there is one, and fills in how long it is open.
func (w *FleetPatchWindow) Validate() error {
	switch {
	case w == nil:
		return nil
	case (w.Schedule == "" || w.Schedule == PatchNever) && w.Seconds != 0:
		return prego.Invalid("patch_window.seconds", "needs a schedule other than "+PatchNever)
	case w.Schedule == "" || w.Schedule == PatchNever:
		return nil
	}
	w.Seconds = cmp.Or(w.Seconds, defaultWindow)
	if open := time.Duration(w.Seconds) * time.Second; open < time.Minute || open > maxPatchWindow {
		return prego.Invalid("patch_window.seconds", "must be 60 to 86400")
	}
	if _, err := NewPatchWindow(w.Schedule, maxPatchWindow); err != nil {
		return prego.Invalid("patch_window.schedule", fmt.Sprintf("must be %s or a cron expression, such as 0 2 * * 2: %v", PatchNever, err))
	}
	return nil
}

// FleetWindow is the window of a fleet that has its own.
type FleetWindow struct {
	FleetID prego.FleetID
	Window  FleetPatchWindow
}

// OpenPatchWindows are the windows that are open at a moment.
type OpenPatchWindows struct {
	Since  *time.Time // the environment's, for fleets without their own
	Fleets map[prego.FleetID]time.Time
}

// None reports whether no window is open.
func (o OpenPatchWindows) None() bool { return o.Since == nil && len(o.Fleets) == 0 }

// PatchWindowsOpen are the windows that are open now. A fleet whose window can't be parsed has
// none.
func PatchWindowsOpen(now time.Time, environment PatchWindow, fleets []FleetWindow) (o OpenPatchWindows) {
	if since, open := environment.OpenSince(now); open {
		o.Since = &since
	}
	for _, f := range fleets {
		if f.Window.Schedule == PatchNever {
			continue
		}
		w, err := NewPatchWindow(f.Window.Schedule, time.Duration(f.Window.Seconds)*time.Second)
		if err != nil {
			continue
		}
		if since, open := w.OpenSince(now); open {
			if o.Fleets == nil {
				o.Fleets = make(map[prego.FleetID]time.Time)
			}
			o.Fleets[f.FleetID] = since
		}
	}
	return o
}

// ToPatch is a server that is next in a window.
type ToPatch struct {
	ServerID prego.ServerID
	Unit     string    // its fleet, or its role and region
	Since    time.Time // when the window opened
}

// Wave is the wave of the window that is open.
func (s ToPatch) Wave() prego.PatchWaveID {
	return prego.PatchWaveID(s.Unit + "-" + s.Since.UTC().Format("20060102-1504"))
}
