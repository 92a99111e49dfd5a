package org

import "github.com/prego/prego"

// SessionOf names which tenant's or instance's org an exec session or a log stream
// counts for.
type SessionOf struct {
	TenantID   prego.TenantID
	InstanceID prego.InstanceID
}

// SessionKind is the kind of an org's session.
type SessionKind string

// The kinds of sessions.
const (
	SessionExec SessionKind = "exec"
	SessionLogs SessionKind = "logs"
)
