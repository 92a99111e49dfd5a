package workload

import "github.com/prego/prego"

// InstanceReport is a server's report about the containers of instances.
type InstanceReport struct {
	ServerID prego.ServerID
	Key      []byte // SHA-256 of the agent's public key
	Stream   string
	Seq      int64
	Full     bool // there are no others
	Seen     []InstanceSight
}

// InstanceSight is the container of one instance.
type InstanceSight struct {
	InstanceID prego.InstanceID
	Ended      bool
	Health     InstanceHealth // while it runs
	Detail     string         // why it is not healthy or has ended
}

// InstanceHealth is the result of a running container's check.
type InstanceHealth string

// The values of InstanceHealth.
const (
	HealthStarting  InstanceHealth = "starting"
	HealthHealthy   InstanceHealth = "healthy"
	HealthUnhealthy InstanceHealth = "unhealthy"
)

// ReportOutcome is what a batch of reports changed.
type ReportOutcome struct {
	Resync []prego.ServerID // servers that must report everything again
	Groups []GroupRef       // groups that have something to do now
	Failed int              // instances
	Ran    int              // instances that became healthy
	// Rejected are servers whose report was not written: the database rejects it.
	Rejected []prego.ServerID
}
