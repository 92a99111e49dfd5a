// Package server is the domain of servers: their states and steps, their resources at a
// provider, what runs on them, and their fleets and images. It is pure, and does not
// know about tenants.
package server

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prego/prego"
)

var imageName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

var digits = regexp.MustCompile(`^[1-9][0-9]*$`)

// Status is the status of a server.
type Status string

// The statuses of a server. A failed server carries a Reason; draining means that its
// decommissioning was accepted.
const (
	Provisioning    Status = "provisioning"
	Active          Status = "active"
	Decommissioning Status = "draining"
	Terminated      Status = "terminated"
	Failed          Status = "failed"
)

// Statuses lists every status in the order of a server's life.
func Statuses() []Status {
	return []Status{Provisioning, Active, Decommissioning, Terminated, Failed}
}

// Valid reports whether s is a known status.
func (s Status) Valid() bool { return slices.Contains(Statuses(), s) }

// AgentStatus is the last known status of a server's agent (direct-provisioning §6).
type AgentStatus string

// The values of servers.agent_status. degraded means silent for 60 s, disconnected for
// 300 s (direct-provisioning §3).
const (
	AgentUnknown      AgentStatus = "unknown"
	AgentConnected    AgentStatus = "connected"
	AgentDegraded     AgentStatus = "degraded"
	AgentDisconnected AgentStatus = "disconnected"
)

// AgentStatuses lists every status of an agent.
func AgentStatuses() []AgentStatus {
	return []AgentStatus{AgentUnknown, AgentConnected, AgentDegraded, AgentDisconnected}
}

// TokenPurpose is why a bootstrap token was issued (direct-provisioning §6).
type TokenPurpose string

// The values of server_bootstrap_tokens.purpose.
const (
	PurposeAgentBootstrap TokenPurpose = "agent_bootstrap"
	PurposeImportExisting TokenPurpose = "import_existing_server"
)

// Spec is what a caller may request besides role and region. Empty fields use the
// configured candidates of the role and region.
type Spec struct {
	// ServerType pins the provider's machine type, for example "cx43".
	ServerType string `json:"server_type,omitempty"`
	// Location pins the provider's location, for example "fsn1".
	Location string `json:"location,omitempty"`
	// Image names the operating system image; empty means the configured one.
	Image string `json:"image,omitempty"`
	// Network is the wanted private network of the server, whose zone then decides
	// about its location; empty means any of the location's zone.
	Network prego.NetworkID `json:"network,omitempty"`
	// VolumeGB requests a data volume of this size, 10 to 10,000; 0 requests none.
	VolumeGB int `json:"volume_gb,omitempty"`
	// Tags are the server's placement tags; fixed for its lifetime.
	Tags []string `json:"tags,omitempty"`
}

// CreateRequest is the body of POST /internal/servers/create.
type CreateRequest struct {
	ServerID      prego.ServerID        `json:"server_id"`
	Role          prego.Role            `json:"role"`
	Region        prego.Region          `json:"region"`
	InfraProvider prego.InfraProviderID `json:"infra_provider"`
	Spec          Spec                  `json:"spec"`
}

// Validate checks the request's own fields and normalizes its tags. The store checks
// whether the provider exists, is enabled and serves the region.
func (r *CreateRequest) Validate() error {
	if err := prego.ValidateServerID(string(r.ServerID)); err != nil {
		return err
	}
	switch {
	case !r.Role.Valid():
		return prego.Invalid("role", "must be one of app, db-shard, redis-pool, node, edge")
	case !r.Region.Valid():
		return prego.Invalid("region", "must be one of sg, eu, us")
	case r.InfraProvider == "":
		return prego.Invalid("infra_provider", "is required")
	case !prego.IsLabel(string(r.InfraProvider), 63):
		return prego.Invalid("infra_provider", "must be a provider's name: lower-case letters, digits and hyphens")
	}
	return r.Spec.Validate()
}

// Validate checks the spec and normalizes its tags.
func (s *Spec) Validate() error {
	for _, f := range []struct{ field, value string }{
		{"spec.server_type", s.ServerType}, {"spec.location", s.Location}, {"spec.network", string(s.Network)},
	} {
		if f.value != "" && !prego.IsLabel(f.value, 63) {
			return prego.Invalid(f.field, "must be a provider's name: lower-case letters, digits and hyphens")
		}
	}
	if s.Image != "" && (len(s.Image) > 63 || !imageName.MatchString(s.Image)) {
		return prego.Invalid("spec.image", "must be a provider's image name or id")
	}
	if s.VolumeGB != 0 && (s.VolumeGB < 10 || s.VolumeGB > 10_000) {
		return prego.Invalid("spec.volume_gb", "must be 0 for none, or 10 to 10000")
	}
	tags, err := prego.DistinctTags("spec.tags", s.Tags)
	if err != nil {
		return err
	}
	if s.Tags = tags; len(tags) == 0 {
		s.Tags = nil
	}
	return nil
}

// Hash identifies the request: two validated requests are the same request when
// their hashes are equal.
func (r CreateRequest) Hash() [32]byte { return prego.RequestHash(r) }

// Server is one row of servers, shared by all packages.
type Server struct {
	ServerID      prego.ServerID
	Role          prego.Role
	Region        prego.Region
	InfraProvider prego.InfraProviderID
	Spec          Spec
	Tags          []string

	Status        Status
	StatusReason  prego.Reason
	StatusMessage string

	ManagedBy        prego.ManagedBy
	ProviderServerID string // the provider's id, "" if there is none
	ServerType       string // the chosen candidate, "" before the first try
	Location         string
	Image            string
	Host             string // public IPv4
	IPv6             string // public IPv6 network, CIDR

	NetworkID           prego.NetworkID // the private network present or planned; "" for none
	PrivateAddress      string          // its IPv4 address there, as the provider reports it; "" until then
	AgentPrivateAddress string          // the same as its agent reports it; the provider's counts

	WorkflowID string
	Generation int // 1 for the first provisioning, one more per retry
	Attempt    int // number of the last create attempt over all generations

	AgentStatus          AgentStatus
	AgentVersion         string
	AgentBootID          string
	AgentFirstSeenAt     *time.Time
	AgentLastHeartbeatAt *time.Time
	Load1                *float64 // run-queue length averaged over 1 min
	MemoryPct            *float64 // 0–100
	DiskPct              *float64 // 0–100
	CPUPct               *float64 // 0–100, averaged over some minutes; this and the next are nil if unknown
	WorkerSlotsPct       *float64 // 0–100, busy background workers, averaged over some minutes
	DBDiskPct            *float64 // 0–100, of the disk that holds MariaDB's data
	RedisMemoryPct       *float64 // 0–100, of the memory that Redis may use
	DockerState          string
	// ClockAheadSeconds is how far the host's clock was ahead of the gateway's,
	// negative if behind; nil is unknown. ClockSkewed means that it was too much.
	ClockAheadSeconds *float64
	ClockSkewed       bool
	// AgentTags are the tags that the host reports; nil before its agent has. Placement
	// uses Tags.
	AgentTags []string

	FleetID    prego.FleetID // "" for none
	CordonedAt *time.Time    // if set, it gets no new tenants and instances
	// CordonedBy is the operator who cordoned it, "" if only the control plane itself keeps it closed.
	CordonedBy   string
	PatchState   PatchState // see Patches
	Patches      *Patches   // as its agent reports, nil before
	PatchesAt    *time.Time
	PatchesSince *time.Time // since when updates or a reboot are missing
	CordonReason string     // as the operator gave it

	AcceptsTrial   bool       // whether tenants of plan trial may be placed on it
	PlanTierLock   prego.Plan // the plan that its shard is for, "" for those that tier_lock_allows lets share
	TenantCapacity *int       // of its shard and pool; nil for the role's default

	ImportedFromPulumiAt    *time.Time
	IdentityRevokedAt       *time.Time
	DecommissionRequestedAt *time.Time
	CreatedBy               string
	CreatedAt               time.Time
	UpdatedAt               time.Time
	ActiveAt                *time.Time
	TerminatedAt            *time.Time
}

// Released reports whether the server runs nothing for us any more: it was deleted, or is about to be. Its disk may
// still be kept, for tenants that were lost with it.
func (s Server) Released() bool {
	return s.Status == Terminated || s.Status == Decommissioning && s.IdentityRevokedAt != nil
}

// Use is the content of a server that would be lost or cut off with its machine.
type Use struct{ Tenants, Instances, Volumes int }

// Any reports whether there is anything.
func (u Use) Any() bool { return u != Use{} }

// String is such as "2 tenants and 1 volume".
func (u Use) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		noun string
	}{{u.Tenants, "tenant"}, {u.Instances, "instance"}, {u.Volumes, "volume"}} {
		switch {
		case p.n == 1:
			parts = append(parts, "1 "+p.noun)
		case p.n > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", p.n, p.noun))
		}
	}
	switch n := len(parts); n {
	case 0:
		return "nothing"
	case 1:
		return parts[0]
	default:
		return strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
}

// Event is one line of a server's timeline.
type Event struct {
	EventID  int64 `json:"id"`
	ServerID prego.ServerID
	At       time.Time
	Step     Step
	Attempt  int // 0 if the event belongs to no attempt
	Status   Status
	Reason   prego.Reason
	Message  string
	Actor    prego.Actor
}

// Step names a kind of timeline event.
type Step string

// Steps of a server's timeline, in the order of the main path.
const (
	StepRequested            Step = "requested"
	StepLocationSpread       Step = "location_spread"    // where its fleet has fewer servers
	StepCandidatesSkipped    Step = "candidates_skipped" // machine types that the provider does not sell
	StepImageGone            Step = "image_gone"         // a golden image that the provider does not have
	StepTokenIssued          Step = "token_issued"
	StepCreateIntended       Step = "create_intended"
	StepServerCreated        Step = "server_created"
	StepServerAdopted        Step = "server_adopted"
	StepCreateRefused        Step = "create_refused"
	StepAwaitingCapacity     Step = "awaiting_capacity"
	StepAwaitingProvider     Step = "awaiting_provider"
	StepNetworkAttached      Step = "network_attached"
	StepNetworkRefused       Step = "network_refused"         // the provider does not let it into its network
	StepAddressDiffers       Step = "private_address_differs" // agent and provider report different ones
	StepAddressAgrees        Step = "private_address_agrees"
	StepServerRunning        Step = "server_running"
	StepBootStage            Step = "boot_stage"
	StepHandshake            Step = "handshake"
	StepHandshakeRefused     Step = "handshake_refused"
	StepFirstHeartbeat       Step = "first_heartbeat"
	StepContainersStarted    Step = "containers_started"
	StepContainerDrift       Step = "container_drift"
	StepContainersRepaired   Step = "containers_repaired"
	StepActive               Step = "active"
	StepAttemptFailed        Step = "attempt_failed"
	StepAttemptDestroyed     Step = "attempt_destroyed"
	StepFailed               Step = "failed"
	StepAgentDegraded        Step = "agent_degraded"
	StepAgentDisconnected    Step = "agent_disconnected"
	StepAgentConnected       Step = "agent_connected"
	StepIdentityRotated      Step = "identity_rotated"
	StepAgentTagsDiffer      Step = "agent_tags_differ"
	StepAgentTagsAgree       Step = "agent_tags_agree"
	StepClockSkewed          Step = "clock_skewed"
	StepClockAgrees          Step = "clock_agrees"
	StepDockerStopped        Step = "docker_stopped"
	StepDockerRunning        Step = "docker_running"
	StepRetryRequested       Step = "retry_requested"
	StepImportRequested      Step = "import_requested"
	StepDeletionRefused      Step = "deletion_refused"
	StepCordoned             Step = "cordoned"
	StepUncordoned           Step = "uncordoned"
	StepPlacementChanged     Step = "placement_changed"
	StepMaintenanceRequested Step = "maintenance_requested"
	StepBenchUpdate          Step = "bench_update"
	StepBenchUpdated         Step = "bench_updated"
	StepAgentUpdated         Step = "agent_updated"
	StepMaintenanceStarted   Step = "maintenance_started"
	StepMaintenanceProgress  Step = "maintenance_progress"
	StepMaintenanceWaits     Step = "maintenance_waits" // an instance finds no place
	StepDrained              Step = "drained"
	StepMaintenanceFailed    Step = "maintenance_failed"
	StepMaintenanceCancelled Step = "maintenance_cancelled"
	StepRebooted             Step = "rebooted"
	StepResized              Step = "resized"
	StepPatched              Step = "patched"
	StepDecommissionAsked    Step = "decommission_requested"
	StepServerDeleted        Step = "server_deleted"
	StepTerminated           Step = "terminated"
	StepReconciled           Step = "reconciled"
	StepWorkflowRestarted    Step = "workflow_restarted"
	StepCleanupIncomplete    Step = "cleanup_incomplete"
)

// ImportRequest is the body of POST /v1/servers/import.
type ImportRequest struct {
	ServerID         prego.ServerID        `json:"server_id"`
	Role             prego.Role            `json:"role"`
	Region           prego.Region          `json:"region"`
	InfraProvider    prego.InfraProviderID `json:"infra_provider"`
	ProviderServerID string                `json:"provider_server_id"`
	Tags             []string              `json:"tags,omitempty"`
	ManagedBy        prego.ManagedBy       `json:"managed_by"` // who created it; worker_direct if empty
}

// Validate checks the request's own fields and normalizes its tags.
func (r *ImportRequest) Validate() error {
	create := CreateRequest{ServerID: r.ServerID, Role: r.Role, Region: r.Region, InfraProvider: r.InfraProvider, Spec: Spec{Tags: r.Tags}}
	if err := create.Validate(); err != nil {
		var invalid *prego.Error
		if errors.As(err, &invalid) { // an import has its tags at the top
			invalid.Field = strings.TrimPrefix(invalid.Field, "spec.")
		}
		return err
	}
	r.Tags = create.Spec.Tags
	if len(r.ProviderServerID) == 0 || len(r.ProviderServerID) > 20 || !digits.MatchString(r.ProviderServerID) {
		return prego.Invalid("provider_server_id", "must be the provider's numeric id")
	}
	switch r.ManagedBy {
	case "":
		r.ManagedBy = prego.ManagedByWorkerDirect
	case prego.ManagedByWorkerDirect, prego.ManagedByPulumi:
	default:
		return prego.Invalid("managed_by", "must be worker_direct or pulumi")
	}
	return nil
}

// Hash identifies the request.
func (r ImportRequest) Hash() [32]byte { return prego.RequestHash(r) }
