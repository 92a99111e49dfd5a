package org

import "github.com/prego/prego"

// SessionOf names which tenant's or instance's org an exec session or a log stream
// counts for.
type SessionOf struct {
	TenantID   prego.TenantID
	InstanceID prego.InstanceID
}

// SessionAt is what an exec session or a log stream is opened on.
type SessionAt struct {
	ServerID prego.ServerID
	Site     string // "" for none
	// TenantID is the tenant that the caller names; "" for none. It never chooses the org.
	TenantID   prego.TenantID
	InstanceID prego.InstanceID // "" for none
}

// SessionKind is the kind of an org's session.
type SessionKind string

// The kinds of sessions.
const (
	SessionExec SessionKind = "exec"
	SessionLogs SessionKind = "logs"
)
