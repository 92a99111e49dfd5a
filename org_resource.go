package prego

import (
	"regexp"
	"strings"
	"time"
)

// Codes of refusals about what orgs own beside tenants.
const (
	CodeGroupUnknown       Code = "group_unknown"
	CodeRouteNotFound      Code = "route_not_found"
	CodeHostnameTaken      Code = "hostname_taken"
	CodePortTaken          Code = "port_taken"
	CodeIPv4NotFound       Code = "ipv4_not_found"
	CodeIPv4Required       Code = "ipv4_required"
	CodeIPv4InUse          Code = "ipv4_in_use"
	CodeVolumeNotFound     Code = "volume_not_found"
	CodeVolumeNameTaken    Code = "volume_name_taken"
	CodeVolumeAttached     Code = "volume_attached"
	CodeVolumeInUse        Code = "volume_in_use"
	CodeVolumeMismatch     Code = "volume_region_mismatch"
	CodeSingleWriter       Code = "single_writer"
	CodeAttachmentNotFound Code = "attachment_not_found"
	CodeSnapshotNotFound   Code = "snapshot_not_found"
	CodeSnapshotUnknown    Code = "snapshot_unknown"
	CodeSnapshotNotReady   Code = "snapshot_not_ready"
	CodeSnapshotUnusable   Code = "snapshot_unusable" // of a version that did not name its files
	CodeRestoreNotFound    Code = "restore_not_found"
	CodeRestoreUnderWay    Code = "restore_under_way"
	CodeTenantUnknown      Code = "tenant_unknown"
)

// Reasons of addresses and volumes that are not there. The first two are the
// provider's capacity, never the org's quota (quotas-and-fairness, "Capacity
// constraints vs quota constraints").
const (
	ReasonIPAMExhausted    Reason = "ipam_exhausted"
	ReasonNoCapacityVolume Reason = "no_capacity_volume"
	ReasonProviderRefused  Reason = "provider_refused"
	ReasonResourceMissing  Reason = "missing_at_provider"
)

// OrgResourceStatus is how an address or a volume stands at the provider.
type OrgResourceStatus string

// The states of addresses and volumes. Each but deleted counts for the org's quota.
const (
	OrgResourcePending   OrgResourceStatus = "pending"   // asked for; reason says what it waits for
	OrgResourceReady     OrgResourceStatus = "ready"     // there
	OrgResourceReleasing OrgResourceStatus = "releasing" // to be deleted at the provider
	OrgResourceFailed    OrgResourceStatus = "failed"    // reason says why; delete it or ask again
)

// IPv4Allocation is the IPv4 add-on of an env: a primary IP at the provider.
type IPv4Allocation struct {
	AllocationID string
	OrgID        string
	EnvID        string
	Provider     InfraProviderID
	Name         string // at the provider
	Location     string
	ProviderID   string
	Address      string
	Status       OrgResourceStatus
	Reason       Reason
	Message      string
	CreatedBy    string
	CreatedAt    time.Time
}

// Limits of the provider on one volume, in bytes.
const (
	MinVolumeBytes int64 = 10_000_000_000
	MaxVolumeBytes int64 = 10_000_000_000_000
	gigabyte       int64 = 1_000_000_000
)

// Volume is an org's block device at the provider.
type Volume struct {
	VolumeID     string
	OrgID        string
	Region       Region
	Location     string
	Name         string // the org's
	SizeBytes    int64
	Provider     InfraProviderID
	ProviderName string
	ProviderID   string
	Status       OrgResourceStatus
	Reason       Reason
	Message      string
	CreatedBy    string
	CreatedAt    time.Time
	Attachment   *VolumeAttachment // the live one
}

// GB is the size that is ordered: whole GB, rounded up.
func (v Volume) GB() int { return int((v.SizeBytes + gigabyte - 1) / gigabyte) }

// Validate checks a volume that is asked for.
func (v Volume) Validate() error {
	if err := ValidateOrgID("org_id", v.OrgID); err != nil {
		return err
	}
	switch {
	case !v.Region.Valid():
		return Invalid("region", "must be one of sg, eu, us")
	case !IsLabel(v.Name, maxVolumeName):
		return Invalid("name", "must be a lower-case DNS label of at most 63 characters")
	case v.SizeBytes < MinVolumeBytes:
		return Invalid("size_bytes", "must be at least 10000000000: the provider makes no volume below 10 GB")
	case v.SizeBytes > MaxVolumeBytes:
		return Invalid("size_bytes", "must be at most 10000000000000: the provider makes no volume above 10 TB")
	}
	return nil
}

const maxVolumeName = 63

// VolumeAttachment makes a volume that of one process group.
type VolumeAttachment struct {
	AttachmentID string
	OrgID        string
	VolumeID     string
	GroupID      string
	MountPath    string
	ServerID     string // where the volume is attached at the provider now; "" for nowhere
	CreatedBy    string
	CreatedAt    time.Time
}

var mountPath = regexp.MustCompile(`^(/[A-Za-z0-9_][A-Za-z0-9._-]{0,63}){1,8}$`)

// reservedMounts are directories that a container can't do without.
var reservedMounts = map[string]bool{"bin": true, "dev": true, "etc": true, "lib": true, "lib64": true, "proc": true, "run": true, "sbin": true, "sys": true, "usr": true}

// ValidateMountPath accepts a plain absolute path that is not the system's.
func ValidateMountPath(field, path string) error {
	if !mountPath.MatchString(path) || reservedMounts[strings.Split(path, "/")[1]] {
		return Invalid(field, "must be an absolute path of plain names, and not one of the system's")
	}
	return nil
}

// SessionOf is whose org an exec session or a log stream counts for: a tenant's or an
// instance's.
type SessionOf struct {
	TenantID   string
	InstanceID string
}

// JobStatus is how a snapshot or a restore stands.
type JobStatus string

// The states of snapshots and restores. The first two are under way.
const (
	JobQueued    JobStatus = "queued"
	JobRunning   JobStatus = "running"
	JobSucceeded JobStatus = "succeeded"
	JobFailed    JobStatus = "failed"
	JobDeleted   JobStatus = "deleted" // snapshots
)

// Snapshot is a backup of a tenant's site on its host.
type Snapshot struct {
	SnapshotID string
	OrgID      string
	TenantID   string
	ServerID   string
	Site       string
	Status     JobStatus
	Files      []string
	Message    string
	CreatedBy  string
	CreatedAt  time.Time
	FinishedAt *time.Time
	// Name is what its host knows it by; "" for one of a version that let bench name the
	// files, which cannot be restored.
	Name     string
	Bytes    *int64     // of all its files; nil while there are none
	ErasedAt *time.Time // when the files of a deleted one were gone
}

// RestoreJob brings a tenant's site back to a snapshot.
type RestoreJob struct {
	JobID      string
	OrgID      string
	TenantID   string
	SnapshotID string
	Status     JobStatus
	Message    string
	CreatedBy  string
	CreatedAt  time.Time
	FinishedAt *time.Time
}

// SessionKind is what an org's session is.
type SessionKind string

// The kinds of sessions that are counted.
const (
	SessionExec SessionKind = "exec"
	SessionLogs SessionKind = "logs"
)

var orgResourceID = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

const maxOrgResourceID = 32

// ValidateOrgResourceID checks an id of something that an org owns.
func ValidateOrgResourceID(field, prefix, id string) error {
	if !strings.HasPrefix(id, prefix) || len(id) > maxOrgResourceID || !orgResourceID.MatchString(id) {
		return Invalid(field, "must be an id that begins with "+prefix)
	}
	return nil
}

// OrgResourceName is the name at the provider of an org's address or volume.
func OrgResourceName(environment, id string) string { return "prego-" + environment + "-" + id }

const addressPrefix = "address/"

// AddressWorkflowID is the id of the run that makes or releases an IPv4 address.
func AddressWorkflowID(allocationID string) string { return addressPrefix + allocationID }

// AllocationIDFromWorkflow is the inverse of AddressWorkflowID.
func AllocationIDFromWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, addressPrefix)
}

const volumePrefix = "volume/"

// VolumeWorkflowID is the id of the run that makes or releases a volume.
func VolumeWorkflowID(volumeID string) string { return volumePrefix + volumeID }

// VolumeIDFromWorkflow is the inverse of VolumeWorkflowID.
func VolumeIDFromWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, volumePrefix)
}

const (
	snapshotPrefix      = "snapshot/"
	snapshotErasePrefix = "snapshot-erase/"
	restorePrefix       = "restore/"
)

// SnapshotWorkflowID is the id of the run that makes a snapshot.
func SnapshotWorkflowID(snapshotID string) string { return snapshotPrefix + snapshotID }

// SnapshotIDFromWorkflow is the inverse of SnapshotWorkflowID.
func SnapshotIDFromWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, snapshotPrefix)
}

// SnapshotEraseWorkflowID is the id of the run that deletes a snapshot's files.
func SnapshotEraseWorkflowID(snapshotID string) string { return snapshotErasePrefix + snapshotID }

// SnapshotIDFromEraseWorkflow is the inverse of SnapshotEraseWorkflowID.
func SnapshotIDFromEraseWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, snapshotErasePrefix)
}

// RestoreWorkflowID is the id of the run that restores a snapshot.
func RestoreWorkflowID(jobID string) string { return restorePrefix + jobID }

// JobIDFromRestoreWorkflow is the inverse of RestoreWorkflowID.
func JobIDFromRestoreWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, restorePrefix)
}

// OrgWork are rows that should have a run working on them, and have been still for
// a while.
type OrgWork struct {
	Addresses, Volumes, Snapshots, Restores []string
	Erasures                                []string // of snapshots' files
}
