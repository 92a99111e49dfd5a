package prego

// OperationStatus is how an operation stands.
type OperationStatus string

// The states of an operation; it stays in the last two.
const (
	OperationRunning   OperationStatus = "running"
	OperationSucceeded OperationStatus = "succeeded"
	OperationFailed    OperationStatus = "failed"
)

// Operation is what goes on after a request was accepted, as the rows of its target say.
type Operation struct {
	ID         string // the workflow's id, and what tells operations of one workflow apart
	Kind       string // the first part of the id
	Status     OperationStatus
	Reason     string // stable, "" for none
	Message    string
	TargetKind string
	TargetID   string
}
