package access

import (
	"github.com/prego/prego"
)

// Caveats limit what a token may do, below the access of its principal. An absent one limits nothing.
type Caveats struct {
	Operations      []string      `json:"operations,omitempty"` // operationIds
	Orgs            []prego.OrgID `json:"orgs,omitempty"`
	MonthlyCents    *int64        `json:"monthly_cents,omitempty"`    // at most so much more a month, over the token's life
	SecondsDown     *int64        `json:"seconds_down,omitempty"`     // at most so many seconds of unavailability, over the token's life
	DestroysNothing bool          `json:"destroys_nothing,omitempty"` //
	RevealsNothing  bool          `json:"reveals_nothing,omitempty"`  //
	DryRunOnly      bool          `json:"dry_run_only,omitempty"`     //
}
