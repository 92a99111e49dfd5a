package prego

import (
	"strings"
	"time"
)

// MaxAuditedOutput is how much of each stream an audit row keeps, in bytes: its
// end (direct-provisioning §7).
const MaxAuditedOutput = 8 << 10

// Command is what somebody asks of a host (direct-provisioning §6, §7).
type Command struct {
	AuditID    string // who repeats it gets the first result
	ServerID   string
	WorkflowID string // "" for an operator's
	Kind       string // bench, mariadb, redis-cli
	Args       []string
	Actor      Actor
	// By is the operator; "" for a workflow's.
	By string
}

// RedactedArgs is how the arguments are kept: as one text, without secrets.
func (c Command) RedactedArgs() string { return Redact(strings.Join(c.Args, " ")) }

// CommandOutcome is how a command ended. ExitCode nil is one that nobody knows: the
// host did not say, and it may have run.
type CommandOutcome struct {
	ExitCode *int
	Duration time.Duration
	Stdout   string // the end of it
	Stderr   string
}

// AuditedCommand is one row of agent_command_audit.
type AuditedCommand struct {
	AuditID     string
	ServerID    string
	WorkflowID  string
	Kind        string
	Args        string // redacted
	Actor       Actor
	By          string
	RequestedAt time.Time
	StartedAt   *time.Time
	FinishedAt  *time.Time
	ExitCode    *int
	DurationMs  *int64
	Stdout      string // redacted
	Stderr      string
}
