package workload

import (
	"time"

	"github.com/prego/prego"
)

// VolumeRestore restores a volume from a backup of it or of another volume.
type VolumeRestore struct {
	RestoreID  string
	OrgID      prego.OrgID
	VolumeID   prego.VolumeID // that is restored
	BackupID   prego.BackupID
	Status     RestoreStatus
	Reason     prego.Reason
	Message    string
	CreatedBy  string
	CreatedAt  time.Time
	FinishedAt *time.Time
}

// WorkflowID is the id of its run.
func (r VolumeRestore) WorkflowID() string { return VolumeRestoreWorkflowID(r.RestoreID) }

// RestoreStatus is how far a restore of a volume is.
type RestoreStatus string

// The statuses of a restore.
const (
	RestoreQueued    RestoreStatus = "queued"
	RestoreRunning   RestoreStatus = "running"
	RestoreSucceeded RestoreStatus = "succeeded" // all of it was read again and is as in the backup
	RestoreFailed    RestoreStatus = "failed"    // the volume is as it was
)

// VolumeRestoreWorkflowID is the id of the run that restores a volume.
func VolumeRestoreWorkflowID(id string) string { return "volume-restore/" + id }
