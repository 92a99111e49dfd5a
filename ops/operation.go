package ops

import "github.com/prego/prego"

// OperationStatus is the status of an operation.
type OperationStatus string

// The statuses of an operation; the last two are final.
const (
	OperationRunning   OperationStatus = "running"
	OperationSucceeded OperationStatus = "succeeded"
	OperationFailed    OperationStatus = "failed"
)

// About is what a run is about, for people who look for it in Temporal's UI.
type About struct {
	OrgID prego.OrgID // "" for a run of the platform
	Name  string      // the tenant's slug, or the name or id of what the run makes
	What  string      // "starter in eu"
	By    string      // who requested it, "" if a sweep did
}

// Details is a sentence of it, in Markdown.
func (a About) Details() string {
	if a.Name == "" {
		return ""
	}
	out := "**" + a.Name + "**"
	if a.What != "" {
		out += ", " + a.What
	}
	if a.OrgID != "" {
		out += ", of org " + string(a.OrgID)
	}
	if a.By != "" {
		out += ", requested by " + a.By
	}
	return out
}

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
