package tenant

import (
	"time"

	"github.com/prego/prego"
)

// JobStatus is the status of a snapshot or a restore.
type JobStatus string

// The statuses of snapshots and restores. The first two are unfinished.
const (
	JobQueued    JobStatus = "queued"
	JobRunning   JobStatus = "running"
	JobSucceeded JobStatus = "succeeded"
	JobFailed    JobStatus = "failed"
	JobDeleted   JobStatus = "deleted" // snapshots
)

// Snapshot is a backup of a tenant's site on its host, where its id is its name.
type Snapshot struct {
	SnapshotID prego.SnapshotID
	OrgID      prego.OrgID
	TenantID   prego.TenantID
	ServerID   prego.ServerID
	Site       string
	Status     JobStatus
	Files      []string
	Message    string
	CreatedBy  string
	CreatedAt  time.Time
	FinishedAt *time.Time
	Bytes      *int64     // of all its files; nil until they exist
	KeptUntil  *time.Time // of a deleted snapshot whose deletion can be undone
	ErasedAt   *time.Time // when the files of a deleted snapshot were erased
}

// WorkflowID is the id of its run.
func (s Snapshot) WorkflowID() string { return SnapshotWorkflowID(s.SnapshotID) }

// RestoreJob restores a tenant's site from a snapshot or from a backup.
type RestoreJob struct {
	JobID      string
	OrgID      prego.OrgID
	TenantID   prego.TenantID
	SnapshotID prego.SnapshotID // "" if it is of a backup
	BackupID   prego.BackupID   // "" if it is of a snapshot
	Status     JobStatus
	Message    string
	CreatedBy  string
	CreatedAt  time.Time
	FinishedAt *time.Time
	// Elsewhere: the site is recreated by the run that provisions the tenant.
	Elsewhere bool
}

// WorkflowID is the id of the run that carries it out.
func (j RestoreJob) WorkflowID() string {
	if j.Elsewhere {
		return ProvisionWorkflowID(j.TenantID)
	}
	return RestoreWorkflowID(j.JobID)
}

// RestoreOf is the source of a tenant's restore: a snapshot or a backup.
type RestoreOf struct {
	SnapshotID prego.SnapshotID
	BackupID   prego.BackupID
}

// SnapshotWorkflowID is the id of the run that makes a snapshot.
func SnapshotWorkflowID(snapshotID prego.SnapshotID) string {
	return string("snapshot/" + snapshotID)
}

// SnapshotEraseWorkflowID is the id of the run that deletes a snapshot's files.
func SnapshotEraseWorkflowID(snapshotID prego.SnapshotID) string {
	return string("snapshot-erase/" + snapshotID)
}

// RestoreWorkflowID is the id of the run that restores a snapshot.
func RestoreWorkflowID(jobID string) string { return "restore/" + jobID }
