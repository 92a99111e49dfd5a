package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/prego/prego"
)

// ValidateFleetID accepts a lower-case DNS label of at most MaxFleetIDLen characters.
func ValidateFleetID(id prego.FleetID) error {
	return prego.ValidateName("fleet_id", string(id), MaxFleetIDLen)
}

// Limits of fleets. A member's id consists of the fleet's id, the action's number and
// its own number, and must fit a server id.
const (
	MaxFleetIDLen = 32
	// MaxFleetSize is the global limit of a fleet's size.
	MaxFleetSize = 1000
	// NoMaxSize is the max_size of a fleet without its own limit.
	NoMaxSize = -1
	// MaxGracePeriod bounds how long a deletion waits for tenants to leave.
	MaxGracePeriod = 7 * 24 * time.Hour
)

// Fleet is a named set of servers of one role. Its servers are spread over regions by a
// region placement policy, or are all in Region if it has none.
type Fleet struct {
	FleetID         prego.FleetID
	Role            prego.Role
	Region          prego.Region // "" if a region placement policy decides
	InfraProvider   prego.InfraProviderID
	MinSize         int64
	MaxSize         int64 // NoMaxSize for none
	DesiredCapacity int64 // the target of the last action
	Spec            Spec
	Constraint      prego.Constraint // satisfied by its servers' tags; fixed
	// Serves means that servers for waiting tenants are created in this fleet.
	Serves bool `json:"serves_tenants"`
	// ServesWorkloads means that servers for waiting instances are created in this fleet.
	ServesWorkloads bool
	// What each of its servers offers to instances of process groups; 0 is nothing.
	WorkloadMemory int64 `json:"workload_memory_bytes"`
	WorkloadDisk   int64 `json:"workload_disk_bytes"`
	WorkloadCPUs   float64
	// PatchWindow is when its servers get security updates by themselves.
	PatchWindow FleetPatchWindow
	// Profile counts the changes of Spec. CLUSTER_REPLACE replaces members created
	// under an earlier one.
	Profile   int
	CreatedBy string
	CreatedAt time.Time
	UpdatedAt time.Time

	Size     int64                  // members: servers that are neither draining nor terminated
	Regions  map[prego.Region]int64 // members per region
	Policies []Attachment           `db:"-"` // in order
}

// CreateFleetRequest is the body of POST /v1/fleets.
type CreateFleetRequest struct {
	FleetID       prego.FleetID         `json:"fleet_id"`
	Role          prego.Role            `json:"role"`
	Region        prego.Region          `json:"region,omitempty"`
	InfraProvider prego.InfraProviderID `json:"infra_provider"`
	MinSize       int64                 `json:"min_size,omitempty"`
	MaxSize       *int64                `json:"max_size,omitempty"` // none if absent
	Spec          Spec                  `json:"spec"`
	Constraint    prego.Constraint      `json:"constraint"`
	// Stack is another way to require the tag "stack:<name>"; Validate moves it to Constraint, and gives the tag to
	// the fleet's servers.
	Stack  string `json:"stack,omitempty"`
	Serves bool   `json:"serves_tenants,omitempty"`
	// ServesWorkloads needs WorkloadMemory to have an effect.
	ServesWorkloads bool `json:"serves_workloads,omitempty"`
	// What each of its servers offers to instances; absent and 0 mean nothing.
	WorkloadMemory int64   `json:"workload_memory_bytes,omitempty"`
	WorkloadDisk   int64   `json:"workload_disk_bytes,omitempty"`
	WorkloadCPUs   float64 `json:"workload_cpus,omitempty"`
	// PatchWindow is the environment's if it is absent.
	PatchWindow *FleetPatchWindow `json:"patch_window,omitempty"`
}

// Validate checks the request's own fields and normalizes its tags.
func (r *CreateFleetRequest) Validate() error {
	if err := ValidateFleetID(r.FleetID); err != nil {
		return err
	}
	probe := CreateRequest{ServerID: "x", Role: r.Role, Region: r.Region, InfraProvider: r.InfraProvider, Spec: r.Spec}
	if probe.Region == "" {
		probe.Region = prego.Regions()[0]
	}
	if err := probe.Validate(); err != nil {
		return err
	}
	r.Spec = probe.Spec
	if r.MaxSize == nil {
		r.MaxSize = new(int64(NoMaxSize))
	}
	if err := cmp.Or(
		validateSizes(r.MinSize, *r.MaxSize), validateOffer(r.WorkloadMemory, r.WorkloadDisk, r.WorkloadCPUs),
		validateServes(r.Role, r.Serves, r.ServesWorkloads || r.WorkloadMemory > 0),
		r.PatchWindow.Validate(), r.Constraint.Validate("constraint"),
	); err != nil {
		return err
	}
	stack := prego.Constraint{}
	if err := cmp.Or(stack.RequireStack("stack", r.Stack), r.Constraint.RequireStack("stack", r.Stack)); err != nil {
		return err
	}
	for _, tag := range stack.Require {
		if !slices.Contains(r.Spec.Tags, tag) {
			r.Spec.Tags = append(slices.Clip(r.Spec.Tags), tag)
		}
	}
	r.Stack = ""
	return cmp.Or(r.Spec.Validate(), checkTags(r.Constraint, r.Spec.Tags))
}

// validateServes rejects edges that would also run tenants or instances: what runs there
// could reach the keys of every host name.
func validateServes(role prego.Role, tenants, workloads bool) error {
	switch {
	case role != prego.RoleEdge:
	case tenants:
		return prego.Invalid("serves_tenants", "must be false: no tenant is placed on an edge")
	case workloads:
		return prego.Invalid("serves_workloads", "must be false: no instance runs on an edge")
	}
	return nil
}

// checkTags rejects tags that a fleet's servers must not have.
func checkTags(c prego.Constraint, tags []string) error {
	if c.SatisfiedBy(tags) {
		return nil
	}
	return &prego.Error{Code: prego.CodeCellMismatch, Field: "spec.tags", Message: "do not satisfy the fleet's constraint: " + c.String()}
}

// validateOffer bounds what a server offers to instances.
func validateOffer(memory, disk int64, cpus float64) error {
	switch {
	case memory < 0 || memory > 1<<50:
		return prego.Invalid("workload_memory_bytes", "must be 0 to 1125899906842624")
	case disk < 0 || disk > 1<<50:
		return prego.Invalid("workload_disk_bytes", "must be 0 to 1125899906842624")
	case cpus < 0 || cpus > 4096:
		return prego.Invalid("workload_cpus", "must be 0 to 4096")
	}
	return nil
}

func validateSizes(minSize, maxSize int64) error {
	switch {
	case minSize < 0 || minSize > MaxFleetSize:
		return prego.Invalid("min_size", "must be 0 to 1000")
	case maxSize < NoMaxSize || maxSize > MaxFleetSize:
		return prego.Invalid("max_size", "must be 0 to 1000, or -1 for none")
	case maxSize != NoMaxSize && minSize > maxSize:
		return prego.Invalid("min_size", "must not be above max_size")
	}
	return nil
}

// UpdateFleetRequest is the body of PATCH /v1/fleets/{id}; absent fields stay.
type UpdateFleetRequest struct {
	MinSize         *int64            `json:"min_size,omitempty"`
	MaxSize         *int64            `json:"max_size,omitempty"`
	Spec            *Spec             `json:"spec,omitempty"`
	Serves          *bool             `json:"serves_tenants,omitempty"`
	ServesWorkloads *bool             `json:"serves_workloads,omitempty"`
	WorkloadMemory  *int64            `json:"workload_memory_bytes,omitempty"`
	WorkloadDisk    *int64            `json:"workload_disk_bytes,omitempty"`
	WorkloadCPUs    *float64          `json:"workload_cpus,omitempty"`
	PatchWindow     *FleetPatchWindow `json:"patch_window,omitempty"` // with no schedule: the environment's again
	Constraint      *prego.Constraint `json:"constraint,omitempty"`   // refused: CodeConstraintImmutable
	Stack           *string           `json:"stack,omitempty"`        // likewise
}

// Apply applies the requested changes to a fleet.
func (r *UpdateFleetRequest) Apply(f *Fleet) error {
	if r.Constraint != nil || r.Stack != nil {
		field := "constraint"
		if r.Constraint == nil {
			field = "stack"
		}
		return &prego.Error{Code: prego.CodeConstraintImmutable, Field: field, Message: "is fixed once the fleet is created: create another fleet"}
	}
	if err := r.PatchWindow.Validate(); err != nil {
		return err
	}
	prego.Assign(&f.MinSize, r.MinSize)
	prego.Assign(&f.MaxSize, r.MaxSize)
	prego.Assign(&f.Serves, r.Serves)
	prego.Assign(&f.ServesWorkloads, r.ServesWorkloads)
	prego.Assign(&f.WorkloadMemory, r.WorkloadMemory)
	prego.Assign(&f.WorkloadDisk, r.WorkloadDisk)
	prego.Assign(&f.WorkloadCPUs, r.WorkloadCPUs)
	prego.Assign(&f.PatchWindow, r.PatchWindow)
	if err := cmp.Or(
		validateOffer(f.WorkloadMemory, f.WorkloadDisk, f.WorkloadCPUs),
		validateServes(f.Role, f.Serves, f.ServesWorkloads || f.WorkloadMemory > 0), validateSizes(f.MinSize, f.MaxSize),
	); err != nil || r.Spec == nil {
		return err
	}
	if err := r.Spec.Validate(); err != nil {
		return err
	}
	if err := checkTags(f.Constraint, r.Spec.Tags); err != nil {
		return err
	}
	if prego.RequestHash(f.Spec) != prego.RequestHash(*r.Spec) {
		f.Spec = *r.Spec
		f.Profile++
	}
	return nil
}

// PolicyType is what a policy decides.
type PolicyType string

// The types of policies: how many, where, and which ones.
const (
	PolicyScaling         PolicyType = "scaling"
	PolicyRegionPlacement PolicyType = "region_placement"
	PolicyDeletion        PolicyType = "deletion"
)

// FleetPolicy is one row of policies.
type FleetPolicy struct {
	PolicyID  prego.PolicyID
	Type      PolicyType
	Spec      json.RawMessage // by Type: scale.ScalingSpec, region.Policy, scale.DeletionSpec
	CreatedBy string
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Attachment is a policy of a fleet.
type Attachment struct {
	FleetPolicy
	Position int
	Enabled  bool
	// LastUsedAt is when it last decided about an action, for its cooldown.
	LastUsedAt *time.Time
}

// FleetActionKind names what an action does (region-placement "Actions Handled").
type FleetActionKind string

// The kinds of actions.
const (
	ClusterScaleOut FleetActionKind = "CLUSTER_SCALE_OUT"
	ClusterScaleIn  FleetActionKind = "CLUSTER_SCALE_IN"
	ClusterResize   FleetActionKind = "CLUSTER_RESIZE"
	ClusterReplace  FleetActionKind = "CLUSTER_REPLACE"
	NodeCreate      FleetActionKind = "NODE_CREATE"
)

// FleetActionStatus is the status of an action.
type FleetActionStatus string

// The statuses of an action.
const (
	ActionQueued    FleetActionStatus = "queued"
	ActionRunning   FleetActionStatus = "running"
	ActionSucceeded FleetActionStatus = "succeeded"
	ActionFailed    FleetActionStatus = "failed" // earlier steps stay
	ActionCancelled FleetActionStatus = "cancelled"
)

// Ended reports whether the status is final.
func (s FleetActionStatus) Ended() bool { return s != ActionQueued && s != ActionRunning }

// FleetAction is one row of fleet_actions.
type FleetAction struct {
	FleetID     prego.FleetID
	Seq         int    // 1 for the fleet's first
	Key         string // part of the names of its servers
	Action      FleetActionKind
	Inputs      json.RawMessage
	Data        json.RawMessage // the result of the policies: region.Data
	Status      FleetActionStatus
	Reason      string // a stable code, if it failed
	Message     string
	Cause       string // "operator", or the run that requested it
	RequestedBy string
	// CancelRequested: steps that have not begun are skipped.
	CancelRequested bool

	CreatedAt  time.Time
	StartedAt  *time.Time
	FinishedAt *time.Time
	Steps      []FleetStep `db:"-"`
}

// FleetStepOp is what an action does to one server.
type FleetStepOp string

// The operations of steps.
const (
	StepOpCreate FleetStepOp = "create"
	StepOpDelete FleetStepOp = "delete"
)

// FleetStepState is the state of a step.
type FleetStepState string

// The states of steps. A server that still has tenants at the end of its grace period
// is kept.
const (
	FleetStepPlanned FleetStepState = "planned"
	FleetStepDone    FleetStepState = "done"
	FleetStepFailed  FleetStepState = "failed"
	FleetStepKept    FleetStepState = "kept"
	FleetStepSkipped FleetStepState = "skipped"
)

// FleetStep is one server that an action creates or removes.
type FleetStep struct {
	Op       FleetStepOp    `json:"op"`
	ServerID prego.ServerID `json:"server_id"`
	Region   prego.Region   `json:"region"`
	Round    int            `json:"round"`            // rounds run one after the other
	Replan   bool           `json:"replan,omitempty"` // it replaces a failed plan
	State    FleetStepState `json:"state"`
	Message  string         `json:"message,omitempty"`
	At       time.Time      `json:"at,omitzero"` // when it entered State
}

// Outcome returns the outcome of an action whose steps are all finished.
func (a FleetAction) Outcome() (status FleetActionStatus, reason, message string) {
	n := map[FleetStepState]int{}
	round, last, failed := 0, "", 0
	made, wanted := 0, 0 // servers; a replacement for a failed one does not count again
	for _, st := range a.Steps {
		n[st.State]++
		if st.Op != StepOpCreate {
			continue
		}
		if !st.Replan {
			wanted++
		}
		switch st.State {
		case FleetStepDone:
			made++
		case FleetStepFailed:
			if failed++; st.Round >= round {
				round, last = st.Round, st.Message
			}
		}
	}
	switch {
	case n[FleetStepSkipped] > 0 && a.CancelRequested:
		return ActionCancelled, "cancelled", fmt.Sprintf("cancelled: %d of %d steps were not begun", n[FleetStepSkipped], len(a.Steps))
	case made < wanted && (failed > 0 || n[FleetStepKept] == 0): // a replacement stops if a server is kept
		return ActionFailed, "servers_failed", fmt.Sprintf("%d of %d servers could not be made; the last: %s", wanted-made, wanted, last)
	case n[FleetStepKept] > 0:
		return ActionFailed, string(prego.CodeServerHasTenants), fmt.Sprintf("%d servers still had tenants at the end of the grace period and are kept", n[FleetStepKept])
	}
	return ActionSucceeded, "", ""
}

// FleetMember is a server as seen by an action's planning.
type FleetMember struct {
	ServerID  prego.ServerID
	Region    prego.Region
	Status    Status
	Profile   int
	CreatedAt time.Time
	Tenants   int // on it, its shard and its pool, and instances of process groups
}

// FleetState is the input of an action's planning.
type FleetState struct {
	Fleet   Fleet
	Members []FleetMember  // by id
	Usable  []prego.Region // served by the fleet's provider, while it is enabled
	Now     time.Time
}

// FleetPlan is what an action will do, decided before the first server is touched.
type FleetPlan struct {
	Data    json.RawMessage // the result of the policies: region-placement, S1 to S4
	Reason  string          // a stable code if nothing can be done, with its message
	Message string
	Desired int64 // the fleet's new desired capacity
	// Delete steps name their server; create steps get one later.
	Steps []FleetStep
	// Used are the policies that took part in the decision.
	Used []string
}

// FleetReplan describes how an action continues after steps of it failed.
type FleetReplan struct {
	More []FleetStep     // for servers that could not be created
	Skip []FleetStep     // with a message
	Data json.RawMessage // the action's, with what changed
}

// FleetActionRequest requests an action.
type FleetActionRequest struct {
	FleetID        prego.FleetID
	Action         FleetActionKind
	Inputs         json.RawMessage // validated
	Cause          string
	By             string
	IdempotencyKey string // "" for none
}

// FleetRound is the next round of an action.
type FleetRound struct {
	Action FleetAction // without its steps
	Steps  []FleetStep // planned, all of one round; none if the action is finished
	Fleet  Fleet
}

// FleetStepResult is the result of a step.
type FleetStepResult struct {
	ServerID prego.ServerID `json:"server_id"`
	Op       FleetStepOp    `json:"op"`
	State    FleetStepState `json:"state"`
	Message  string         `json:"message,omitempty"`
}

// FleetWorkflowID is the id of a fleet's action runs. Fleet names are unique per
// environment, server names globally.
func FleetWorkflowID(environment string, fleetID prego.FleetID) string {
	return "fleet-scale/" + environment + "/" + string(fleetID)
}

// Wanted is a server that the control plane requests by itself.
type Wanted struct {
	ServerID     prego.ServerID
	Role         prego.Role
	Region       prego.Region
	Provider     prego.InfraProviderID
	Spec         Spec
	DedicatedFor prego.TenantID // for this tenant
	WarmPlan     prego.Plan
	PlanTierLock prego.Plan // of the future shard
	FleetID      prego.FleetID
	FleetProfile int // of the fleet when it was requested
}
