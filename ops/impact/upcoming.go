package impact

import (
	"time"

	"github.com/prego/prego"
)

// Upcoming is something that a timer will destroy.
type Upcoming struct {
	Kind       string      `json:"kind"` // site, backup or server
	ID         string      `json:"id"`
	Name       string      `json:"name,omitempty"`
	OrgID      prego.OrgID `json:"org_id,omitempty"`
	At         time.Time   `json:"at"`     // at the earliest
	Policy     string      `json:"policy"` // lifecycle, retention or fleet
	AcceptedBy string      `json:"accepted_by,omitempty"`
	AcceptedAt *time.Time  `json:"accepted_at,omitempty"` // nil: nobody has accepted it, and it will be kept
	Stop       string      `json:"stop"`                  // the command that prevents it
}
