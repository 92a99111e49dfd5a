package tenant

import (
	"time"

	"github.com/prego/prego"
)

// DrillState is the state of a drill.
type DrillState string

// The states of drills.
const (
	DrillRunning DrillState = "running"
	DrillPassed  DrillState = "passed"
	DrillFailed  DrillState = "failed"
)

// Ended reports whether a drill has its result.
func (s DrillState) Ended() bool { return s != DrillRunning }

// Drill is the restore of a backup on some server, to see whether it can be.
type Drill struct {
	DrillID    string
	OrgID      prego.OrgID
	TenantID   prego.TenantID // or
	VolumeID   prego.VolumeID
	BackupID   prego.BackupID
	ServerID   prego.ServerID // where it is restored
	State      DrillState
	Reason     prego.Reason // why it failed
	Message    string
	Tables     int64 // that were found, with their rows, and files
	Rows       int64
	Files      int64 // of a volume: files, directories and links
	Bytes      int64 // that were read again, of a volume's files
	CreatedBy  string
	CreatedAt  time.Time
	FinishedAt *time.Time
}

// WorkflowID is the id of its run.
func (d Drill) WorkflowID() string { return DrillWorkflowID(d.DrillID) }

// DrillRecord is a drill with what its run needs.
type DrillRecord struct {
	Drill
	Site    PoolSite // its own, in no pool; a volume's has none
	Cleared bool
}

// DrillEnd is how a drill ended.
type DrillEnd struct {
	DrillID   string
	State     DrillState
	Reason    prego.Reason
	Message   string
	Tables    int64
	Rows      int64
	Files     int64
	Bytes     int64
	Undecided bool // it failed for a reason other than the backup
}

// DrillLeft is a drill whose run may be lost.
type DrillLeft struct {
	DrillID string
	State   DrillState
}

// DrillWorkflowID is the id of the run that carries out a drill.
func DrillWorkflowID(drillID string) string { return "drill/" + drillID }
