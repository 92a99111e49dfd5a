package org

// SessionOf is whose org an exec session or a log stream counts for: a tenant's or an
// instance's.
type SessionOf struct {
	TenantID   string
	InstanceID string
}

// SessionKind is what an org's session is.
type SessionKind string

// The kinds of sessions that are counted.
const (
	SessionExec SessionKind = "exec"
	SessionLogs SessionKind = "logs"
)
