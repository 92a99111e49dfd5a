package server

import (
	"fmt"
	"time"

	"github.com/prego/prego"
)

// ResourceIntent names something that is about to be created at a provider.
type ResourceIntent struct {
	Kind ResourceKind
	Name string
}

// ProviderResource is one row of the ledger of what we own at providers.
type ProviderResource struct {
	ResourceID int64
	Provider   prego.InfraProviderID
	Kind       ResourceKind
	Name       string
	ProviderID string         // "" while it is unknown whether the create call happened
	ServerID   prego.ServerID // "" if the environment owns it
	Attempt    int
	State      ResourceState
	IntendedAt time.Time
	Age        time.Duration // since the intent, by the database's clock
}

// PrimaryIPName is the ledger's name for the i-th address of a server.
func PrimaryIPName(serverName string, i int) string {
	return fmt.Sprintf("%s-ip%d", serverName, i)
}

// ReconcileRow is what the reconciler needs to know of a server.
type ReconcileRow struct {
	ServerID         prego.ServerID
	Status           Status
	Reason           prego.Reason
	Generation       int
	Attempt          int
	ProviderServerID string
	Idle             time.Duration // since the row last changed
}

// Sighting is one more time that a resource without an owner was seen.
type Sighting struct {
	Sightings int
	FirstSeen time.Duration // ago
}

// ContainerError reports that a host's containers will not start, even after
// retries. Message is safe to show.
type ContainerError struct {
	Container string
	Message   string
}

func (e *ContainerError) Error() string {
	return fmt.Sprintf("container %s: %s", e.Container, e.Message)
}
