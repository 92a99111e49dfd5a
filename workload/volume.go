package workload

import (
	"regexp"
	"strings"
	"time"

	"github.com/prego/prego"
)

// ResourceStatus is the status of an address or a volume at the provider.
type ResourceStatus string

// The statuses of addresses and volumes. All but deleted count for the org's quota.
const (
	ResourcePending   ResourceStatus = "pending"   // requested; see its reason
	ResourceReady     ResourceStatus = "ready"     // usable
	ResourceReleasing ResourceStatus = "releasing" // to be deleted at the provider
	ResourceFailed    ResourceStatus = "failed"    // see its reason; delete it or request it again
)

// Limits of the provider on one volume, in bytes.
const (
	MinVolumeBytes int64 = 10_000_000_000
	MaxVolumeBytes int64 = 10_000_000_000_000
	gigabyte       int64 = 1_000_000_000
)

// Volume is an org's block device at the provider.
type Volume struct {
	VolumeID     prego.VolumeID
	OrgID        prego.OrgID
	Region       prego.Region
	Location     string
	Name         string // the org's
	SizeBytes    int64
	MadeBytes    int64 // its size at the provider
	GrownBytes   int64 // what its file system was last grown to
	Provider     prego.InfraProviderID
	ProviderName string
	ProviderID   string
	Status       ResourceStatus
	Reason       prego.Reason
	Message      string
	CreatedBy    string
	CreatedAt    time.Time
	KeptUntil    *time.Time        // until then its deletion can be undone; nil if it can't
	Attachment   *VolumeAttachment `db:"-"` // the live one, if any
}

// WorkflowID is the id of its run.
func (v Volume) WorkflowID() string { return VolumeWorkflowID(v.VolumeID) }

// GB is the size to order: whole GB, rounded up.
func (v Volume) GB() int { return int((v.SizeBytes + gigabyte - 1) / gigabyte) }

// Grows reports whether the provider, or a file system that is mounted, has still to follow
// the volume's size.
func (v Volume) Grows(mounted bool) bool {
	return v.Status == ResourceReady && v.MadeBytes > 0 && (v.MadeBytes < v.SizeBytes || mounted && v.GrownBytes < v.MadeBytes)
}

// ValidateGrowth checks a new size: volumes only grow.
func (v Volume) ValidateGrowth(size int64) error {
	switch {
	case size < v.SizeBytes:
		return prego.Invalid("size_bytes", "must not be less than the volume has: the provider only grows volumes")
	case size > MaxVolumeBytes:
		return prego.Invalid("size_bytes", "must be at most 10000000000000: the provider makes no volume above 10 TB")
	}
	return nil
}

// Validate checks a requested volume.
func (v Volume) Validate() error {
	if err := prego.ValidateOrgID("org_id", v.OrgID); err != nil {
		return err
	}
	switch {
	case !v.Region.Valid():
		return prego.Invalid("region", "must be one of sg, eu, us")
	case !prego.IsLabel(v.Name, maxVolumeName):
		return prego.Invalid("name", "must be a lower-case DNS label of at most 63 characters")
	case v.SizeBytes < MinVolumeBytes:
		return prego.Invalid("size_bytes", "must be at least 10000000000: the provider makes no volume below 10 GB")
	}
	return v.ValidateGrowth(v.SizeBytes)
}

const maxVolumeName = 63

// AttachedVolume is a volume that a server has for a process group, according to its row.
type AttachedVolume struct {
	VolumeID         prego.VolumeID
	OrgID            prego.OrgID
	Provider         prego.InfraProviderID
	ProviderID       string
	GroupID          prego.GroupID
	ServerID         prego.ServerID
	ProviderServerID string
	Instances        []string // of the group that run on the server
}

// VolumeAttachment attaches a volume to one process group.
type VolumeAttachment struct {
	AttachmentID string
	OrgID        prego.OrgID
	VolumeID     prego.VolumeID
	GroupID      prego.GroupID
	MountPath    string
	ServerID     prego.ServerID // the server that it is attached to at the provider; "" for none
	CreatedBy    string
	CreatedAt    time.Time
	DeletedAt    *time.Time // nil while it is attached
}

var mountPath = regexp.MustCompile(`^(/[A-Za-z0-9_][A-Za-z0-9._-]{0,63}){1,8}$`)

// reservedMounts are directories that a container needs itself.
var reservedMounts = map[string]bool{"bin": true, "dev": true, "etc": true, "lib": true, "lib64": true, "proc": true, "run": true, "sbin": true, "sys": true, "usr": true}

// ValidateMountPath accepts a plain absolute path outside the system's directories.
func ValidateMountPath(field, path string) error {
	if !mountPath.MatchString(path) || reservedMounts[strings.Split(path, "/")[1]] {
		return prego.Invalid(field, "must be an absolute path of plain names, and not one of the system's")
	}
	return nil
}

// ResourceName is the name at the provider of an org's address or volume.
func ResourceName(environment, id string) string { return "prego-" + environment + "-" + id }

// VolumeWorkflowID is the id of the run that creates or releases a volume.
func VolumeWorkflowID(volumeID prego.VolumeID) string { return string("volume/" + volumeID) }
