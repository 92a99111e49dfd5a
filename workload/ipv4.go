package workload

import (
	"time"

	"github.com/prego/prego"
)

// IPv4Allocation is the IPv4 add-on of an env: a floating IP at the provider.
type IPv4Allocation struct {
	ServerID     prego.ServerID // the edge that has it, or is about to; "" for none
	Served       bool           // that edge has it
	AllocationID string
	OrgID        prego.OrgID
	EnvID        prego.EnvID
	Provider     prego.InfraProviderID
	Name         string // at the provider
	Location     string
	ProviderID   string
	Address      string
	Status       ResourceStatus
	Reason       prego.Reason
	Message      string
	CreatedBy    string
	CreatedAt    time.Time
	DeletedAt    *time.Time // nil while it is there
}

// WorkflowID is the id of its run.
func (a IPv4Allocation) WorkflowID() string { return AddressWorkflowID(a.AllocationID) }

// AddressHome is the current and the wanted place of a floating address.
type AddressHome struct {
	ServerID prego.ServerID // the edge that has it, or is about to; "" for none
	Served   bool           // it has it
	Wanted   prego.ServerID // the edge that should have it; "" if there is none
}

// Moves reports whether it must be moved. Without an edge in use, it stays where it is.
func (h AddressHome) Moves() bool { return h.Wanted != "" && (!h.Served || h.ServerID != h.Wanted) }

// AddressWorkflowID is the id of the run that creates or releases an IPv4 address.
func AddressWorkflowID(allocationID string) string { return "address/" + allocationID }
