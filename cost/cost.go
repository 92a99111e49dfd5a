// Package cost decides what is billed, to whom, and what it costs. It is pure: amounts
// follow from the existing things, prices and the time.
package cost

import (
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// OwnerKind is a kind of owner.
type OwnerKind string

// The kinds of owners.
const (
	OfServer      OwnerKind = "server"
	OfTenant      OwnerKind = "tenant"
	OfOrg         OwnerKind = "org"
	OfEnv         OwnerKind = "env"
	OfFleet       OwnerKind = "fleet"
	OfPool        OwnerKind = "pool"
	OfEnvironment OwnerKind = "environment" // the control plane itself
	OfNobody      OwnerKind = "none"
)

// Owner is whose something is.
type Owner struct {
	Kind  OwnerKind
	ID    string
	OrgID prego.OrgID // the org that pays, "" for none
}

// StateUntracked is the state of what no row owns, in the ledger beside the states of rows.
const StateUntracked server.ResourceState = "untracked"

// Resource is a line of the ledger: something that a provider bills or limits.
type Resource struct {
	LedgerID   string `json:"id"`
	Provider   prego.InfraProviderID
	Kind       server.ResourceKind
	ProviderID string // "" until it is known
	Name       string
	Type       string // machine type, or family of an address
	Location   string
	SizeGB     float64
	OwnerKind  OwnerKind
	OwnerID    string
	OrgID      prego.OrgID
	State      server.ResourceState
	Since      time.Time
	Until      *time.Time
	PriceMonth Micro  // -1 if it is not known
	Currency   string // "" if no price is known
}

// PriceKnown reports whether the provider publishes its price.
func (r Resource) PriceKnown() bool { return r.PriceMonth >= 0 }
