package workload

import (
	"time"

	"github.com/prego/prego"
)

// IPv4Allocation is the IPv4 add-on of an env: a primary IP at the provider.
type IPv4Allocation struct {
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
}

// AddressWorkflowID is the id of the run that creates or releases an IPv4 address.
func AddressWorkflowID(allocationID string) string { return addressPrefix + allocationID }
