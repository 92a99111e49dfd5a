package server

import (
	"time"

	"github.com/prego/prego"
)

// MaintenanceKind is a kind of work on a server.
type MaintenanceKind string

// The kinds of maintenance. All begin by emptying the server, and a drain does only that.
const (
	MaintenanceDrain   MaintenanceKind = "drain"
	MaintenanceReboot  MaintenanceKind = "reboot"
	MaintenanceReplace MaintenanceKind = "replace"
	MaintenanceResize  MaintenanceKind = "resize"
	MaintenancePatch   MaintenanceKind = "patch"
)

// MaintenanceStatus is the status of a maintenance.
type MaintenanceStatus string

// The statuses of a maintenance.
const (
	MaintenanceMaking    MaintenanceStatus = "making"    // its replacement is being made
	MaintenanceWaiting   MaintenanceStatus = "waiting"   // as many servers of its fleet are being emptied as may be
	MaintenanceMoving    MaintenanceStatus = "moving"    // its instances are
	MaintenanceFinishing MaintenanceStatus = "finishing" // it is empty, and is rebooted or deleted
	MaintenanceDone      MaintenanceStatus = "done"
	MaintenanceFailed    MaintenanceStatus = "failed"
	MaintenanceCancelled MaintenanceStatus = "cancelled"
)

// Ended reports whether nothing more happens.
func (s MaintenanceStatus) Ended() bool {
	return s == MaintenanceDone || s == MaintenanceFailed || s == MaintenanceCancelled
}

// The reasons of maintenances that wait or failed, besides the reasons of process groups without a
// place (workload.Reason…).
const (
	MaintenanceFleetBudget       = "fleet_budget"
	MaintenanceOrgBudget         = "org_budget"
	MaintenanceTimeout           = "maintenance_timeout"
	MaintenanceServerGone        = "server_gone"
	MaintenanceReplacementFailed = "replacement_failed"
	MaintenanceRebootTimeout     = "reboot_timeout"
	MaintenanceResizeRefused     = "resize_refused" // by the provider; the server is as it was
	// MaintenancePatchFailed: security updates were not installed; the server stays cordoned.
	// MaintenancePatchRefused: nothing was started, because its host could not report the missing updates.
	MaintenancePatchFailed  = "patch_failed"
	MaintenancePatchRefused = "patch_check_failed"
	// MaintenancePatchElsewhere: it waits, because another server of its fleet is cordoned after a patch that failed.
	MaintenancePatchElsewhere = "fleet_patch_failed"
	// MaintenanceImpactGrew: it waits, because it would now interrupt something that its caller did not accept.
	MaintenanceImpactGrew = "impact_grew"
	// MaintenanceTenantUnfit: a tenant has ended or is being made, and stays until its data is purged, or it is active.
	MaintenanceTenantUnfit = "tenant_not_movable"
)

// maxMaintenanceTimeout bounds how long a maintenance may be set to wait: a week.
const maxMaintenanceTimeout = 7 * 24 * 3600

// maxWaveLen is how long the name of a wave may be.
const maxWaveLen = 63

// MaintenanceRequest is the body of a request for maintenance.
type MaintenanceRequest struct {
	Reason string `json:"reason,omitempty"` // for the timeline
	// TimeoutSeconds is how long instances may take to be moved; then the maintenance fails. 0 means as long
	// as it takes.
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
	// KeepTenants leaves tenants where they are; of a reboot they have the downtime.
	KeepTenants bool `json:"keep_tenants,omitempty"`
	// ServerType is the wanted type; of a resize only.
	ServerType string `json:"server_type,omitempty"`
	// Wave is what servers that are patched together have in common; of a patch only.
	Wave prego.PatchWaveID `json:"wave,omitempty"`
}

// Validate checks the request's own fields.
func (r MaintenanceRequest) Validate(kind MaintenanceKind) error {
	if err := (CordonRequest{Reason: r.Reason}).Validate(); err != nil {
		return err
	}
	if r.TimeoutSeconds < 0 || r.TimeoutSeconds > maxMaintenanceTimeout {
		return prego.Invalid("timeout_seconds", "must be 0 for none, or at most 604800")
	}
	if r.KeepTenants && kind == MaintenanceReplace {
		return prego.Invalid("keep_tenants", "is not possible: the server is deleted")
	}
	if (r.ServerType != "") != (kind == MaintenanceResize) {
		return prego.Invalid("server_type", "is what a resize needs, and nothing else")
	}
	if r.Wave != "" {
		if kind != MaintenancePatch {
			return prego.Invalid("wave", "is of patches only")
		}
		return prego.ValidateName("wave", string(r.Wave), maxWaveLen)
	}
	return nil
}

// Maintenance is one row of server_maintenances.
type Maintenance struct {
	ServerID    prego.ServerID
	Number      int // of the server's, from 1
	Kind        MaintenanceKind
	Status      MaintenanceStatus
	Reason      string // stable; why it waits or failed, "" otherwise
	Message     string
	Why         string // as the caller gave it
	RequestedBy string
	KeepTenants bool
	ServerType  string // of a resize: the wanted type
	WasOpen     bool   // the server was not cordoned before
	Total, Left int    // instances that were, and are, on the server
	// TenantsTotal and TenantsLeft are the tenants that were there, and are: an app server's.
	TenantsTotal, TenantsLeft int

	Patched *Patched          // of a patch: the installed updates
	Wave    prego.PatchWaveID // of a patch: which it is part of, "" for none

	DeadlineAt        *time.Time
	ReplacementID     prego.ServerID // "" for none
	CancelRequestedAt *time.Time
	CreatedAt         time.Time
	StartedAt         *time.Time
	FinishedAt        *time.Time
}

// WorkflowID is the id of its run.
func (m Maintenance) WorkflowID() string { return MaintenanceWorkflowID(m.ServerID) }

// RemainingInstance is an instance that is still on a server that is being emptied.
type RemainingInstance struct {
	InstanceID prego.InstanceID
	GroupID    prego.GroupID
	GroupName  string
	OrgID      prego.OrgID
	State      string
	Leaving    bool // its group is replacing it
	StopsFirst bool // its replacement starts after it has stopped: it has a volume, or a deploy drains first
	// Reason and Message explain why its group has no place for the replacement; "" if it has.
	Reason, Message string
}

// RemainingTenant is a tenant that is still on a server that is being emptied.
type RemainingTenant struct {
	TenantID prego.TenantID
	Slug     string
	OrgID    prego.OrgID
	State    string
	// MoveID and MoveState are those of its open move, "" while it waits for one.
	MoveID    prego.MoveID
	MoveState string
	// Reason and Message explain what its move waits for, or why it is not moved; "" if it waits for its turn.
	Reason, Message string
}

// MaintenanceAct is what a maintenance's run does next besides changing rows.
type MaintenanceAct string

// What a maintenance's run does.
const (
	ActMake     MaintenanceAct = "make"      // the replacement
	ActLeaveDNS MaintenanceAct = "leave_dns" // an edge's addresses leave all records
	ActReboot   MaintenanceAct = "reboot"
	ActReset    MaintenanceAct = "reset"
	ActDelete   MaintenanceAct = "delete"
	ActResize   MaintenanceAct = "resize"
	ActCheck    MaintenanceAct = "check_patches" // which security updates are missing
	ActPatch    MaintenanceAct = "patch"         // they are installed
)

// MaintenanceLimits bound the concurrent moves.
type MaintenanceLimits struct {
	Servers   int // of one fleet, emptied concurrently
	Instances int // of one org, moved concurrently by all maintenances
	Tenants   int // of one server, moved concurrently
}

// MaintenanceStep is what one look at a maintenance came to.
type MaintenanceStep struct {
	Status  MaintenanceStatus
	Kind    MaintenanceKind
	Role    prego.Role
	Region  prego.Region
	Message string
	Act     MaintenanceAct // "" for nothing
	Groups  []MaintenanceGroup
	// Tenants are the tenants to move, Cancelled the moves to undo.
	Tenants   []prego.TenantID
	Cancelled []prego.MoveID
	// Runs are the runs of other maintenances that may continue now.
	Runs []string
	// Opened is set if the server takes newcomers again.
	Opened bool
}

// MaintenanceGroup is a group whose instances must be replaced, or can stay after all.
type MaintenanceGroup struct {
	GroupID prego.GroupID
	OrgID   prego.OrgID
}

// MaintenanceCount is how many maintenances of a kind have a status.
type MaintenanceCount struct {
	Kind   MaintenanceKind
	Status MaintenanceStatus
	N      int
	Stuck  int // of them: something but their turn keeps them
}

// MaintenanceWorkflowID is the id of the run that empties a server.
func MaintenanceWorkflowID(serverID prego.ServerID) string {
	return string("server-maintenance/" + serverID)
}
