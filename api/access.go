package api

import "github.com/prego/prego/access"

// requires is the capability that an operation needs.
func (o *operation) requires(changes bool) access.Capability {
	if changes {
		return "any:change"
	}
	return "any:read"
}
