package ops

// OperationStatus is the status of an operation.
type OperationStatus string

// The statuses of an operation; the last two are final.
const (
	OperationRunning   OperationStatus = "running"
	OperationSucceeded OperationStatus = "succeeded"
	OperationFailed    OperationStatus = "failed"
)

// Operation is the work that an accepted request started, as seen in the rows of its
// target.
type Operation struct {
	ID         string // the workflow's id, and a suffix if a workflow has several operations
	Kind       string // the first part of the id
	Status     OperationStatus
	Reason     string // a stable code, "" for none
	Message    string
	TargetKind string
	TargetID   string
}
