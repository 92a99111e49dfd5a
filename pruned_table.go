package prego

// PrunedTable is a table whose rows are deleted when they are old enough.
type PrunedTable string

// The tables that are pruned.
const (
	PrunedEvents     PrunedTable = "org_events"
	PrunedSessions   PrunedTable = "org_sessions"
	PrunedInstances  PrunedTable = "instances" // those that are stopped
	PrunedCommands   PrunedTable = "agent_command_audit"
	PrunedKeys       PrunedTable = "request_keys"
	PrunedTenantKeys PrunedTable = "idempotency_keys"
	PrunedOrgKeys    PrunedTable = "org_idempotency_keys"
	PrunedAudit      PrunedTable = "audit_entries" // that are sealed, behind a checkpoint
)
