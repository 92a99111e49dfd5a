package org

import "github.com/prego/prego"

// SessionOf is whose org an exec session or a log stream counts for: a tenant's or an
// instance's.
type SessionOf struct {
	TenantID   prego.TenantID
	InstanceID prego.InstanceID
}

// SessionKind is what an org's session is.
type SessionKind string

// The kinds of sessions that are counted.
const (
	SessionExec SessionKind = "exec"
	SessionLogs SessionKind = "logs"
)
