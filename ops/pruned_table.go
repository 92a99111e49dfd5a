package ops

// PrunedTable is a table whose rows are deleted when they are old enough.
type PrunedTable string

// The tables that are pruned.
const (
	PrunedEvents       PrunedTable = "org_events"
	PrunedFeed         PrunedTable = "events" // the feed of events
	PrunedSessions     PrunedTable = "org_sessions"
	PrunedInstances    PrunedTable = "instances" // stopped instances
	PrunedCommands     PrunedTable = "agent_command_audit"
	PrunedDecisions    PrunedTable = "decision_inputs" // not the decisions themselves
	PrunedSamples      PrunedTable = "server_samples"
	PrunedRates        PrunedTable = "rate_budgets"
	PrunedKeys         PrunedTable = "request_keys"
	PrunedCreationKeys PrunedTable = "request_keys_of_creations" // in the same table
	PrunedAudit        PrunedTable = "audit_entries"             // that are sealed, behind a checkpoint
	PrunedCredentials  PrunedTable = "credentials"               // expired tokens and logins
	PrunedLinks        PrunedTable = "login_links"               // that expired, used or not
)
