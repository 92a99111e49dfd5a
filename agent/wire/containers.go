package wire

// PathContainers takes a ContainersRequest. It needs ScopeHeartbeat.
const PathContainers = "/internal/agent/containers"

// Labels of the containers that an agent reports.
const (
	LabelServer   = "prego.server_id"
	LabelInstance = "prego.instance_id"
	// LabelHealth is a HealthCheck as JSON, which the agent carries out. Without it the
	// engine's own check counts, and without that, that the container keeps running.
	LabelHealth = "prego.health"
)

// ContainersRequest reports instances' containers: what they are now, not what happened, so that a later report
// replaces an earlier one. A host sends one report at a time, and the next once this one was answered.
type ContainersRequest struct {
	// Stream is random. An agent begins another whenever it may have missed something, with a full report.
	Stream string `json:"stream"`
	Seq    int64  `json:"seq"` // of the report in its stream, from 1
	// Full means that the host has no other containers of instances.
	Full       bool        `json:"full,omitempty"`
	Containers []Container `json:"containers"`
}

// Container is the container of one instance.
type Container struct {
	Instance string          `json:"instance"`
	Ended    bool            `json:"ended,omitempty"`
	Health   ContainerHealth `json:"health,omitempty"` // while it runs
	Detail   string          `json:"detail,omitempty"` // why it is not healthy or has ended, at most MaxContainerDetail bytes
}

// ContainerHealth is the outcome of the check of a running container.
type ContainerHealth string

// The values of ContainerHealth.
const (
	HealthStarting  ContainerHealth = "starting"
	HealthHealthy   ContainerHealth = "healthy"
	HealthUnhealthy ContainerHealth = "unhealthy"
)

// Limits of a ContainersRequest.
const (
	MaxContainers      = 4096
	MaxContainerDetail = 1024
)

// ContainersResponse is given once a report is in the database.
type ContainersResponse struct {
	// Resync asks for a new stream: this one is not known.
	Resync bool `json:"resync,omitempty"`
}

// HealthKind is how a HealthCheck asks.
type HealthKind string

// The kinds of checks that an agent carries out.
const (
	HealthHTTP HealthKind = "http" // any status from 200 to 399 passes
	HealthTCP  HealthKind = "tcp"  // a connection that is accepted passes
)

// HealthCheck is a check that the agent makes from the host. It passes immediately when one try does, and fails after
// Retries failures in a row; failures within StartPeriodSeconds of the start don't count.
type HealthCheck struct {
	Kind               HealthKind `json:"kind"`
	Port               int        `json:"port"` // of the container
	Path               string     `json:"path,omitempty"`
	IntervalSeconds    int        `json:"interval_seconds"`
	TimeoutSeconds     int        `json:"timeout_seconds"`
	Retries            int        `json:"retries"`
	StartPeriodSeconds int        `json:"start_period_seconds,omitempty"`
}

// WatchSocket is where the process that reads the engine's events listens for the one that faces the network.
const WatchSocket = "/run/prego-agent-watch.sock"
