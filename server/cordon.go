package server

import "github.com/prego/prego"

// CordonRequest is the body of POST /v1/servers/{id}/cordon.
type CordonRequest struct {
	Reason string `json:"reason,omitempty"` // for the timeline
}

// Validate checks the request's own fields.
func (r CordonRequest) Validate() error {
	if len(r.Reason) > 500 {
		return prego.Invalid("reason", "must be at most 500 bytes")
	}
	return nil
}

// Count is how many servers of a region and role there are of some kind.
type Count struct {
	Region prego.Region
	Role   prego.Role
	N      int
}
