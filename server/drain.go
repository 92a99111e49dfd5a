package server

import (
	"time"

	"github.com/prego/prego"
)

// DrainKind is what a server is emptied for.
type DrainKind string

// The kinds of drains. A reboot and a replacement begin with a drain.
const (
	DrainOnly    DrainKind = "drain"
	DrainReboot  DrainKind = "reboot"
	DrainReplace DrainKind = "replace"
	DrainResize  DrainKind = "resize"
	DrainPatch   DrainKind = "patch"
)

// DrainStatus is the status of a drain.
type DrainStatus string

// The statuses of a drain.
const (
	DrainMaking    DrainStatus = "making"    // its replacement is being made
	DrainWaiting   DrainStatus = "waiting"   // as many servers of its fleet are being emptied as may be
	DrainMoving    DrainStatus = "moving"    // its instances are
	DrainFinishing DrainStatus = "finishing" // it is empty, and is rebooted or deleted
	DrainDone      DrainStatus = "done"
	DrainFailed    DrainStatus = "failed"
	DrainCancelled DrainStatus = "cancelled"
)

// Ended reports whether nothing more happens.
func (s DrainStatus) Ended() bool {
	return s == DrainDone || s == DrainFailed || s == DrainCancelled
}

// The reasons of drains that wait or failed, besides those of process groups without a
// place (workload.Reason…).
const (
	DrainFleetBudget       = "fleet_budget"
	DrainOrgBudget         = "org_budget"
	DrainTimeout           = "drain_timeout"
	DrainServerGone        = "server_gone"
	DrainReplacementFailed = "replacement_failed"
	DrainRebootTimeout     = "reboot_timeout"
	DrainStillUsed         = "still_used"
	DrainResizeRefused     = "resize_refused" // by the provider; the server is as it was
	// DrainPatchFailed: security updates were not installed; the server stays cordoned.
	// DrainPatchRefused: nothing was begun, because its host could not tell which are missing.
	DrainPatchFailed  = "patch_failed"
	DrainPatchRefused = "patch_check_failed"
	// DrainPatchElsewhere: it waits, because another server of its fleet is cordoned after a patch that failed.
	DrainPatchElsewhere = "fleet_patch_failed"
	// DrainTenantUnfit: a tenant has ended or is being made, and stays until its data is purged, or it is active.
	DrainTenantUnfit = "tenant_not_movable"
)

// maxDrainTimeout bounds how long a drain may be told to wait: a week.
const maxDrainTimeout = 7 * 24 * 3600

// maxWaveLen is how long the name of a wave may be.
const maxWaveLen = 63

// DrainRequest is the body of a request for a drain, a reboot or a replacement.
type DrainRequest struct {
	Reason string `json:"reason,omitempty"` // for the timeline
	// TimeoutSeconds is how long instances may take to be moved; then the drain fails. 0 means as long
	// as it takes.
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
	// KeepTenants leaves tenants where they are; of a reboot they have the downtime.
	KeepTenants bool `json:"keep_tenants,omitempty"`
	// ServerType is what the server is to be; of a resize only.
	ServerType string `json:"server_type,omitempty"`
	// Wave is what servers that are patched together have in common; of a patch only.
	Wave prego.PatchWaveID `json:"wave,omitempty"`
}

// Validate checks the request's own fields.
func (r DrainRequest) Validate(kind DrainKind) error {
	if err := (CordonRequest{Reason: r.Reason}).Validate(); err != nil {
		return err
	}
	if r.TimeoutSeconds < 0 || r.TimeoutSeconds > maxDrainTimeout {
		return prego.Invalid("timeout_seconds", "must be 0 for none, or at most 604800")
	}
	if r.KeepTenants && kind == DrainReplace {
		return prego.Invalid("keep_tenants", "is not possible: the server is deleted")
	}
	if (r.ServerType != "") != (kind == DrainResize) {
		return prego.Invalid("server_type", "is what a resize needs, and nothing else")
	}
	if r.Wave != "" {
		if kind != DrainPatch {
			return prego.Invalid("wave", "is of patches only")
		}
		return prego.ValidateName("wave", string(r.Wave), maxWaveLen)
	}
	return nil
}

// Drain is one row of server_drains.
type Drain struct {
	ServerID    prego.ServerID
	Number      int // of the server's, from 1
	Kind        DrainKind
	Status      DrainStatus
	Reason      string // stable; why it waits or failed, "" otherwise
	Message     string
	Why         string // as the caller gave it
	RequestedBy string
	KeepTenants bool
	ServerType  string // of a resize: what it is to be
	WasOpen     bool   // the server was not cordoned before
	Total, Left int    // instances that were, and are, on the server
	// TenantsTotal and TenantsLeft are the tenants that were there, and are: an app server's.
	TenantsTotal, TenantsLeft int

	Patched *Patched          // of a patch: what was installed
	Wave    prego.PatchWaveID // of a patch: which it is part of, "" for none

	DeadlineAt        *time.Time
	ReplacementID     prego.ServerID // "" for none
	CancelRequestedAt *time.Time
	CreatedAt         time.Time
	StartedAt         *time.Time
	FinishedAt        *time.Time
}

// DrainedInstance is an instance that is still on a server that is being emptied.
type DrainedInstance struct {
	InstanceID prego.InstanceID
	GroupID    prego.GroupID
	OrgID      prego.OrgID
	State      string
	Leaving    bool // its group is replacing it
	StopsFirst bool // its replacement starts after it has stopped: it has a volume, or its org no room for one more
	// Reason and Message say why its group has no place for the replacement, "" if nothing does.
	Reason, Message string
}

// DrainAct is what a drain's run does next besides changing rows.
type DrainAct string

// What a drain's run does.
const (
	ActMake     DrainAct = "make"      // the replacement
	ActLeaveDNS DrainAct = "leave_dns" // an edge's addresses leave all records
	ActReboot   DrainAct = "reboot"
	ActReset    DrainAct = "reset"
	ActDelete   DrainAct = "delete"
	ActResize   DrainAct = "resize"
	ActCheck    DrainAct = "check_patches" // which security updates are missing
	ActPatch    DrainAct = "patch"         // they are installed
)

// DrainLimits bound how much is moved at once.
type DrainLimits struct {
	Servers   int // of one fleet, emptied at once
	Instances int // of one org, moved by all drains at once
	Tenants   int // of one server, moved at once
}

// DrainStep is what one look at a drain came to.
type DrainStep struct {
	Status  DrainStatus
	Kind    DrainKind
	Role    prego.Role
	Region  prego.Region
	Message string
	Act     DrainAct // "" for nothing
	Groups  []DrainedGroup
	// Tenants are those whose moves are to begin, Cancelled the moves that are to be undone.
	Tenants   []prego.TenantID
	Cancelled []prego.MoveID
	// Runs are other drains' that may go on now.
	Runs []string
	// Opened is set if the server takes newcomers again.
	Opened bool
}

// DrainedGroup is a group whose instances are to be replaced, or stay after all.
type DrainedGroup struct {
	GroupID prego.GroupID
	OrgID   prego.OrgID
}

// DrainCount is how many drains of a kind have a status.
type DrainCount struct {
	Kind   DrainKind
	Status DrainStatus
	N      int
	Stuck  int // of them: something but their turn keeps them
}

const drainPrefix = "server-drain/"

// DrainWorkflowID is the id of the run that empties a server.
func DrainWorkflowID(serverID prego.ServerID) string { return string(drainPrefix + serverID) }
