package server

import (
	"fmt"
	"time"

	"github.com/prego/prego"
)

// Codes of a CommandError besides the agent's own.
const (
	CommandFailed      = "command_failed"      // non-zero exit status
	CommandTimeout     = "command_timeout"     // it was killed at its timeout
	CommandUnreachable = "unreachable"         // no answer; it may have run
	CommandMistrusted  = "certificate_invalid" // the host and the control plane don't accept each other
	CommandNotSent     = "not_sent"            // refused before the host was called
	CommandUnknown     = "outcome_unknown"     // it had begun, and the outcome is unknown
)

// BenchCommand is one run of bench on a host, or of another kind.
type BenchCommand struct {
	Kind       string // "bench" when empty
	ServerID   prego.ServerID
	Addr       string
	WorkflowID string
	AuditID    string
	// TenantID makes the host refuse other tenants' sites; "" if the site belongs to no
	// tenant yet.
	TenantID prego.TenantID
	Timeout  time.Duration
	Args     []string
	// Secrets go to the host, and into no record, error or log.
	Secrets map[string]string
	// Undo are the arguments of the command that the host runs by itself after Lease, unless it was run before. With Undo
	// and no Lease the command does not run: its earlier effect lasts.
	Undo  []string
	Lease time.Duration
}

// CommandError reports a failed command on a host. Stderr and Message
// are safe to show.
type CommandError struct {
	Kind     string // "bench"
	ExitCode int    // 0 if the command did not exit by itself
	Stderr   string // its last bytes
	// Permanent means that repeating it with the same audit id changes nothing.
	Permanent bool
	Code      string // from the agent, or from the constants above
	Message   string
}

func (e *CommandError) Error() string {
	switch {
	case e.ExitCode == 0:
		return fmt.Sprintf("%s: %s: %s", e.Kind, e.Code, e.Message)
	case e.Stderr == "":
		return fmt.Sprintf("%s ended with status %d", e.Kind, e.ExitCode)
	}
	return fmt.Sprintf("%s ended with status %d: %s", e.Kind, e.ExitCode, e.Stderr)
}
