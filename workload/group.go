// Package workload is the domain of what orgs run besides tenants: apps and
// environments, process groups and their instances, routes, addresses and volumes. It
// is pure.
package workload

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Spec is what an instance of a process group runs.
type Spec struct {
	Image   string   `json:"image"`
	Command []string `json:"command,omitempty"`
	// MemoryLimitBytes is a hard cap. CPURequest, in CPUs, is a share, and what
	// placement counts.
	MemoryLimitBytes int64   `json:"memory_limit_bytes"`
	CPURequest       float64 `json:"cpu_request"`
	// DiskRequestBytes is what placement counts for images, logs and files that the
	// instance writes outside of volumes. The engine does not limit it.
	DiskRequestBytes int64 `json:"disk_request_bytes,omitempty"`
	Ports            []int `json:"ports,omitempty"` // TCP ports that it listens on
	// Volumes are paths at which volumes must be mounted: no instance starts before the
	// group has an attachment at each of them.
	Volumes    []string          `json:"volumes,omitempty"`
	Constraint *prego.Constraint `json:"constraint,omitempty"` // fixed when the group is created
	// Stack is another way to require the tag "stack:<name>"; Validate moves it to Constraint.
	Stack string `json:"stack,omitempty"`
	// Health describes the check of an instance. Without it, an instance is healthy after running for
	// a few seconds.
	Health              *HealthCheck `json:"health,omitempty"`
	StartTimeoutSeconds int          `json:"start_timeout_seconds,omitempty"` // until it is healthy, 90 when 0
	// DrainSeconds is how long a healthy instance runs on after it was taken out of
	// service; then it gets SIGTERM.
	DrainSeconds int `json:"drain_seconds,omitempty"`
	// StopTimeoutSeconds is from SIGTERM to SIGKILL, 10 when 0.
	StopTimeoutSeconds int `json:"stop_timeout_seconds,omitempty"`
}

// Limits of process groups.
const (
	MaxReplicas         = 10_000
	maxGroupName        = 40
	MaxMemory           = 4 << 40
	MaxCPURequest       = 1024
	MaxDisk             = 64 << 40
	maxWorkloadPorts    = 16
	maxWorkloadVolumes  = 8
	maxWorkloadCommand  = 64
	maxStartTimeout     = 600
	defaultStartTimeout = 90
	maxDrain            = 3600
	maxStopTimeout      = 300
	defaultStopTimeout  = 10
	maxWorkloadArgument = 4096
)

// Validate checks a spec, normalizes its constraint and fills in the defaults of its
// health check; field is the prefix of field
// names in errors.
func (s *Spec) Validate(field string) error {
	at := func(name string) string {
		if field == "" {
			return name
		}
		return field + "." + name
	}
	switch {
	case s.Image == "":
		return prego.Invalid(at("image"), "is required")
	case s.MemoryLimitBytes < server.MinContainerMemory || s.MemoryLimitBytes > MaxMemory:
		return prego.Invalid(at("memory_limit_bytes"), "must be 6291456 (6 MiB) to 4398046511104 (4 TiB)")
	case s.CPURequest < 0 || s.CPURequest > MaxCPURequest:
		return prego.Invalid(at("cpu_request"), "must be 0 to 1024 CPUs")
	case s.DiskRequestBytes < 0 || s.DiskRequestBytes > MaxDisk:
		return prego.Invalid(at("disk_request_bytes"), "must be 0 to 70368744177664 (64 TiB)")
	case s.StartTimeoutSeconds < 0 || s.StartTimeoutSeconds > maxStartTimeout:
		return prego.Invalid(at("start_timeout_seconds"), "must be 1 to 600")
	case s.DrainSeconds < 0 || s.DrainSeconds > maxDrain:
		return prego.Invalid(at("drain_seconds"), "must be 0 to 3600")
	case s.StopTimeoutSeconds < 0 || s.StopTimeoutSeconds > maxStopTimeout:
		return prego.Invalid(at("stop_timeout_seconds"), "must be 1 to 300")
	case len(s.Ports) > maxWorkloadPorts:
		return prego.Invalid(at("ports"), "must be at most 16 ports")
	case len(s.Volumes) > maxWorkloadVolumes:
		return prego.Invalid(at("volumes"), "must be at most 8 paths")
	}
	if err := server.ValidateImage(at("image"), s.Image); err != nil {
		return err
	}
	if err := validateArguments(at("command"), s.Command); err != nil {
		return err
	}
	for i, p := range s.Ports {
		if p < 1 || p > 65535 {
			return prego.Invalid(at(fmt.Sprintf("ports[%d]", i)), "must be 1 to 65535")
		}
		if slices.Contains(s.Ports[:i], p) {
			return prego.Invalid(at(fmt.Sprintf("ports[%d]", i)), "is there twice")
		}
	}
	for i, v := range s.Volumes {
		if err := ValidateMountPath(at(fmt.Sprintf("volumes[%d]", i)), v); err != nil {
			return err
		}
		if slices.Contains(s.Volumes[:i], v) {
			return prego.Invalid(at(fmt.Sprintf("volumes[%d]", i)), "is there twice")
		}
	}
	if s.Health != nil {
		if err := s.Health.validate(at("health"), s.Ports); err != nil {
			return err
		}
	}
	if s.Constraint == nil && s.Stack != "" {
		s.Constraint = &prego.Constraint{}
	}
	if s.Constraint == nil {
		return nil
	}
	if err := s.Constraint.Validate(at("constraint")); err != nil {
		return err
	}
	stack := s.Stack
	s.Stack = ""
	return s.Constraint.RequireStack(at("stack"), stack)
}

func validateArguments(field string, args []string) error {
	if len(args) > maxWorkloadCommand {
		return prego.Invalid(field, "must be at most 64 words")
	}
	for i, a := range args {
		if len(a) > maxWorkloadArgument || strings.ContainsRune(a, 0) {
			return prego.Invalid(fmt.Sprintf("%s[%d]", field, i), "must be at most 4096 bytes, and none of them NUL")
		}
	}
	return nil
}

// Equal reports whether two specs of the same group run the same thing.
func (s Spec) Equal(o Spec) bool {
	return s.Digest() == o.Digest()
}

// Digest is equal for specs that run the same thing.
func (s Spec) Digest() string {
	s.Constraint = nil
	b, _ := json.Marshal(s) // it has nothing that can't be written
	return fmt.Sprintf("sha256:%x", sha256.Sum256(b))
}

// LabelInstance marks the containers of instances. They are not part of a server's
// declared stack, and are left alone when that is repaired.
const LabelInstance = "prego.instance_id"

// LabelGroup is the label of its process group.
const LabelGroup = "prego.group_id"

// LabelHealth is the HealthCheck, as JSON, that the host's agent carries out: the kinds
// http and tcp. The engine runs the others.
const LabelHealth = "prego.health"

// OnHost places the container of an instance on a server: in its environment's own network,
// and with its ports on the server's private address only. A server without one has them on
// all addresses, and its firewall in front.
func OnHost(c server.ContainerSpec, envID prego.EnvID, private string) server.ContainerSpec {
	c.Network = server.EnvNetworkPrefix + string(envID)
	c.Labels[server.LabelNetwork] = c.Network
	for i, p := range c.Ports {
		if rest, ok := strings.CutPrefix(p, "0.0.0.0:"); ok && private != "" {
			c.Ports[i] = private + ":" + rest
		}
	}
	return c
}

// Container returns the container of an instance of this release on the server with
// address host; mounts are its volumes, source:target.
func (s Spec) Container(instanceID prego.InstanceID, groupID prego.GroupID, ports []PortBinding, mounts []string) server.ContainerSpec {
	c := server.ContainerSpec{
		Name: string(instanceID), Image: s.Image, Command: s.Command, Labels: map[string]string{LabelInstance: string(instanceID), LabelGroup: string(groupID)},
		Mounts: mounts, MemoryBytes: s.MemoryLimitBytes, CPUShares: max(2, int64(s.CPURequest*1024)), Pids: 4096,
		// The control plane replaces what ended, maybe elsewhere; the engine must not
		// restart it.
		Restart: server.RestartNo, StopTimeout: prego.Duration(seconds(cmp.Or(s.StopTimeoutSeconds, defaultStopTimeout))), StartTimeout: prego.Duration(s.StartTimeout()),
	}
	for _, p := range ports {
		c.Ports = append(c.Ports, fmt.Sprintf("0.0.0.0:%d:%d/tcp", p.HostPort, p.ContainerPort))
	}
	if h := s.Health; h != nil && h.Kind == HealthCommand {
		c.Health = &server.ContainerHealth{
			Command: h.Command, Interval: prego.Duration(h.Interval()), Timeout: prego.Duration(h.Timeout()), Retries: h.Retries, Grace: prego.Duration(h.StartPeriod()),
		}
	}
	if h := s.Health; h != nil && h.Kind != HealthCommand {
		b, err := json.Marshal(h)
		if err != nil {
			panic("workload: a health check always marshals: " + err.Error())
		}
		c.Labels[LabelHealth] = string(b)
	}
	return c
}

// StartTimeout is how soon an instance must be healthy.
func (s Spec) StartTimeout() time.Duration {
	return seconds(cmp.Or(s.StartTimeoutSeconds, defaultStartTimeout))
}

// PortBinding maps a port of an instance to a port of its server.
type PortBinding struct {
	ContainerPort int `json:"container_port"`
	HostPort      int `json:"host_port"`
}

// DeployStatus is the progress of a group's last deploy.
type DeployStatus string

// The statuses of a deploy.
const (
	DeployNone          DeployStatus = "none"
	DeployRolling       DeployStatus = "rolling"
	DeployDrainingFirst DeployStatus = "draining_first"
	DeployStoppingFirst DeployStatus = "stopping_first"
	DeploySucceeded     DeployStatus = "succeeded"
	DeployRolledBack    DeployStatus = "rolled_back"
	DeployFailed        DeployStatus = "failed" // and not rolled back; it succeeds when it recovers
)

// UnderWay reports whether instances are being replaced.
func (d DeployStatus) UnderWay() bool {
	return d == DeployRolling || d == DeployDrainingFirst || d == DeployStoppingFirst
}

// InstanceState is the state of an instance (quotas-and-fairness, "Instances usage").
// All but stopped count.
type InstanceState string

// The states of an instance.
const (
	InstanceBooting  InstanceState = "booting"
	InstanceRunning  InstanceState = "running"
	InstanceDraining InstanceState = "draining"
	InstanceFailed   InstanceState = "failed"
	InstanceStopped  InstanceState = "stopped"
)

// GroupStatus is whether a group has all its instances.
type GroupStatus string

// The statuses of a group.
const (
	GroupPending       GroupStatus = "pending"
	GroupRunning       GroupStatus = "running"
	GroupUnschedulable GroupStatus = "unschedulable"
	GroupStopped       GroupStatus = "stopped"
)

// Why a group has no place for an instance (quotas-and-fairness, "Capacity constraints
// vs quota constraints"). ReasonOrgQuota is followed by a colon and the dimension.
const (
	ReasonOrgQuota       = "org_quota_exceeded"
	ReasonNoNodesActive  = "no_nodes_active"
	ReasonVolumeLocality = "volume_locality_no_node"
	// ReasonNoVolumeSlots: no server could have the group's volumes attached besides those
	// of others, because the provider attaches a limited number to one server.
	ReasonNoVolumeSlots    = "no_volume_slots"
	ReasonNoCapacityMemory = "no_capacity_memory"
	ReasonNoCapacityDisk   = "no_capacity_disk"
	// ReasonLargerThanServers: it would not fit an empty server of any fleet.
	ReasonLargerThanServers = "larger_than_servers"
	ReasonVolumeMissing     = "volume_not_attached"
	ReasonInstanceFailed    = "instance_failed"
	ReasonCrashLoop         = "crash_loop" // an instance's place has crashed again and again
)

// Group is a process group: what runs in an environment, and how many of it.
type Group struct {
	GroupID       prego.GroupID
	EnvID         prego.EnvID
	OrgID         prego.OrgID
	Region        prego.Region
	Name          string
	Spec          Spec
	Release       int
	StableRelease int // the last release that was healthy, 0 for none
	Replicas      int
	Constraint    prego.Constraint
	DeployStatus  DeployStatus
	DeployReason  string // why it failed or was rolled back
	DeployMessage string
	Policy        RolloutPolicy `json:"rollout_policy"`
	PausedAt      *time.Time    // rollouts stand still since then
	Status        GroupStatus
	StatusReason  string
	StatusMessage string
	Decision      json.RawMessage // nil before the first
	NextAttemptAt *time.Time
	WaitingSince  *time.Time
	CreatedBy     string
	CreatedAt     time.Time
	UpdatedAt     time.Time
	DeletedAt     *time.Time
	Converged     bool
	Instances     map[InstanceState]int // that are not stopped
}

// WorkflowID is the id of its run.
func (g Group) WorkflowID() string { return GroupWorkflowID(g.GroupID) }

// Instance is a container of a group on a server.
type Instance struct {
	InstanceID prego.InstanceID
	GroupID    prego.GroupID
	OrgID      prego.OrgID
	ServerID   prego.ServerID
	Number     int64
	Release    int
	Spec       Spec
	Ports      []PortBinding
	State      InstanceState
	Healthy    bool
	Message    string
	Restarts   int // crashes of the instances that it replaces, in a row
	CreatedAt  time.Time
	StartedAt  *time.Time // when its container ran; nil before
	RunningAt  *time.Time // when it was healthy
	StoppedAt  *time.Time
}

// CreateGroupRequest is the body of POST /v1/envs/{env_id}/groups.
type CreateGroupRequest struct {
	Name     string `json:"name"`
	Spec     Spec   `json:"spec"`
	Replicas *int   `json:"replicas,omitempty"` // 1 if absent
	// Rollout changes the default policy.
	Rollout *RolloutChange `json:"rollout_policy,omitempty"`
}

// Policy is the default with the request's changes.
func (r CreateGroupRequest) Policy() (RolloutPolicy, error) {
	return DefaultRolloutPolicy().Change(r.Rollout, "rollout_policy")
}

// Validate checks the request's own fields and normalizes its tags.
func (r *CreateGroupRequest) Validate() error {
	if err := cmp.Or(prego.ValidateName("name", r.Name, maxGroupName), r.Spec.Validate("spec")); err != nil {
		return err
	}
	if r.Replicas == nil {
		r.Replicas = new(1)
	}
	if r.Spec.Constraint == nil {
		r.Spec.Constraint = &prego.Constraint{}
	}
	_, err := r.Policy()
	return cmp.Or(err, ValidateReplicas(*r.Replicas))
}

// ValidateReplicas accepts 0 to MaxReplicas.
func ValidateReplicas(n int) error {
	if n < 0 || n > MaxReplicas {
		return prego.Invalid("replicas", "must be 0 to 10000")
	}
	return nil
}

const (
	groupPrefix = "grp-"
)

var instanceIDPattern = regexp.MustCompile(`^ins-[0-9a-f]{12}-[1-9][0-9]{0,14}$`)

// NewGroupID returns an id with 12 random hex digits.
func NewGroupID(random string) string { return groupPrefix + random }

// NewInstanceID returns the id of a group's instance by number. Its container has the
// same name.
func NewInstanceID(groupID prego.GroupID, number int64) string {
	return "ins-" + strings.TrimPrefix(string(groupID), groupPrefix) + "-" + strconv.FormatInt(number, 10)
}

// ValidateInstanceID accepts ids as NewInstanceID makes them.
func ValidateInstanceID(id string) error {
	if !instanceIDPattern.MatchString(id) {
		return prego.Invalid("instance_id", "must be the id of an instance, ins-…")
	}
	return nil
}

// GroupWorkflowID is the id of the run that reconciles a group.
func GroupWorkflowID(groupID prego.GroupID) string { return string("group-reconcile/" + groupID) }

// GroupSweepWorkflowID is the id of the periodic sweep of groups.
func GroupSweepWorkflowID(environment string) string { return "sweep-groups/" + environment }

// GroupPlan is the next work for a group.
type GroupPlan struct {
	OrgID   prego.OrgID    `json:"org_id"`
	Region  prego.Region   `json:"region"`
	Boot    []string       `json:"boot,omitempty"`
	Stop    []string       `json:"stop,omitempty"`
	Serve   bool           `json:"serve,omitempty"`   // there are instances to allocate
	Settled bool           `json:"settled,omitempty"` // nothing is left to do
	Wait    time.Duration  `json:"wait,omitempty"`    // the longest wait before the rows are read again
	Details string         `json:"details,omitempty"` // for people
	Wake    []string       `json:"wake,omitempty"`    // runs of others whose turn to work has come
	Late    int            `json:"late,omitempty"`    // instances that failed now, because they were not healthy in time
	Ended   RolloutOutcome `json:"ended,omitempty"`   // of the rollout, if this plan ended it
}

// InstanceDemand is one instance that needs a place.
type InstanceDemand struct {
	At          time.Time // when it was read: room that became free before is known
	Wanted      int       // instances of the group
	GroupID     prego.GroupID
	OrgID       prego.OrgID
	MemoryBytes int64 // including the overhead
	CPURequest  float64
	DiskBytes   int64
	Constraint  prego.Constraint
	Locations   []string // of the group's volumes
	Volumes     int      // how many they are
	Missing     []string // paths without a volume
}

// InstancePlace is where to allocate an instance.
type InstancePlace struct {
	GroupID  prego.GroupID
	ServerID prego.ServerID
	Decision json.RawMessage
}

// AllocationOutcome is the outcome of an allocation.
type AllocationOutcome string

// The outcomes of an allocation.
const (
	Allocated       AllocationOutcome = "allocated"
	AllocationVoid  AllocationOutcome = "void"  // nothing is wanted any more
	AllocationLost  AllocationOutcome = "lost"  // the server has changed meanwhile
	AllocationQuota AllocationOutcome = "quota" // the org's limit is reached
	AllocationNone  AllocationOutcome = "none"  // no server fits
	AllocationSurge AllocationOutcome = "surge" // no room for one more: another instance has to stop first
)

// InstanceAllocation is the result of an allocation.
type InstanceAllocation struct {
	Outcome    AllocationOutcome
	InstanceID prego.InstanceID
	Waited     time.Duration // since it was wanted and within quota
}

// InstanceHost is an instance and its server.
type InstanceHost struct {
	Instance
	Region       prego.Region
	Host         string // the server's address
	Role         prego.Role
	ServerStatus server.Status
	Binds        []string // its volumes, in the engine's format
	EnvID        prego.EnvID
	Private      string // the server's private address, "" for none
	Drained      bool   // its server is being emptied
}

// GroupWork lists what may have no run, and counts.
type GroupWork struct {
	Groups        []GroupRef // to be checked
	Servers       []string   // servers that run instances
	Idle          []string   // groups that run and want nothing, and have a volume attached
	Unschedulable map[string]int
}

// GroupRef names a group of an org.
type GroupRef struct {
	GroupID prego.GroupID
	OrgID   prego.OrgID
}
