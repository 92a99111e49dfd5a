package tenant

import "github.com/prego/prego"

// Decision is a decision on a tenant's place, shown among other tenants' decisions.
type Decision struct {
	DecisionRecord
	OrgID  prego.OrgID
	Region prego.Region
}

// KeptInput are events of a journal of placement decisions, numbered from First.
type KeptInput struct {
	Journal string
	First   int64
	Events  []any // of JSON
}
