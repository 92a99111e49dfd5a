package ops

import "time"

// Freeze is whether everything that deletes outside the database is stopped, and why.
type Freeze struct {
	Frozen bool       `json:"frozen"`
	Since  *time.Time `json:"since,omitempty"`
	By     string     `json:"by,omitempty"`
	Reason string     `json:"reason,omitempty"`
}
