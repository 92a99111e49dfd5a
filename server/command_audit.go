package server

import (
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/prego/prego"
)

// MaxAuditedOutput is how much of each stream an audit row keeps, in bytes: its
// end (direct-provisioning §7).
const MaxAuditedOutput = 8 << 10

// Command is a command for a host (direct-provisioning §6, §7).
type Command struct {
	AuditID    string // a repetition gets the first result
	ServerID   prego.ServerID
	WorkflowID string // "" for an operator's
	Kind       string // bench, mariadb, redis-cli
	Args       []string
	Actor      prego.Actor
	// TenantID makes the host refuse other tenants' sites; "" disables the check.
	TenantID prego.TenantID
	// By is the operator; "" for a workflow's command.
	By string
	// Secrets are passed beside the arguments to the verbs that take them. They are
	// never stored, and are masked in the command's output.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Private are arguments that may be secrets: they are not recorded, and are masked in the command's output.
	Private []string `json:"-"`
	// Within is how long its process waits for its end; 0 is until the deadline of the context that it is begun with.
	Within time.Duration `json:"-"`
}

// secretName is a word that is followed by a secret, as in "set-config admin_password
// VALUE".
var secretName = regexp.MustCompile(`(?i)^[\w.-]*(?:password|passwd|pwd|secret|token|credential|encryption[_-]?key|api[_-]?key|access[_-]?key|private[_-]?key)[\w.-]*$`)

// secrets are the arguments that are secrets because of their position.
func (c Command) secrets() (out []string) {
	for i := 1; i < len(c.Args); i++ {
		if secretName.MatchString(c.Args[i-1]) && !strings.HasPrefix(c.Args[i], "-") {
			out = append(out, c.Args[i])
		}
	}
	for _, s := range c.Secrets {
		out = append(out, s)
	}
	return append(out, c.Private...)
}

// Redact masks secrets in a command's output, including those it was given.
func (c Command) Redact(text string) string {
	for _, s := range c.secrets() {
		if len(s) >= minSecret {
			text = strings.ReplaceAll(text, s, prego.Redacted)
		}
	}
	return prego.Redact(text)
}

// minSecret is the length of the shortest argument that is masked in outputs: shorter
// ones would match by chance.
const minSecret = 4

// RedactEnd is Redact for the end of a stream that its host cut at MaxAuditedOutput
// bytes: the first word may be the rest of a secret, and is dropped.
func (c Command) RedactEnd(text string) string {
	const cut = MaxAuditedOutput - 3 // to a whole character
	if len(text) >= cut {
		if i := strings.IndexAny(text, " \t\n"); i >= 0 {
			text = text[i+1:]
		}
	}
	return c.Redact(text)
}

// CommandOutcome is how a command ended. A nil ExitCode is unknown: the host did not
// report it, and the command may have run.
type CommandOutcome struct {
	AuditID  string    // of one among several
	Began    time.Time // likewise; zero if it was not run
	ExitCode *int
	Duration time.Duration
	Stdout   string // its last bytes
	Stderr   string
}

// AuditedCommand is one row of agent_command_audit.
type AuditedCommand struct {
	AuditID     string
	ServerID    prego.ServerID
	WorkflowID  string
	Kind        string
	Args        string // redacted
	Actor       prego.Actor
	By          string `json:"requested_by"`
	RequestedAt time.Time
	StartedAt   *time.Time
	FinishedAt  *time.Time
	ExitCode    *int
	DurationMs  *int64
	Stdout      string // redacted
	Stderr      string
}

// UnknownOutcome is the outcome of a command without a reported end: refused, or
// without an answer. A repetition with the same audit id may still get it.
func UnknownOutcome(err error, took time.Duration) CommandOutcome {
	o := CommandOutcome{Duration: took, Stderr: "outcome unknown: the caller gave up waiting; it may have run"}
	var ce *CommandError
	if !errors.As(err, &ce) {
		return o
	}
	switch {
	case ce.Code == CommandUnreachable:
		o.Stderr = "outcome unknown: no answer from the host; it may have run: " + ce.Message
	case ce.Permanent:
		o.Stderr = "refused: " + ce.Code + ": " + ce.Message
	default:
		o.Stderr = "outcome unknown: " + ce.Code + ": " + ce.Message
	}
	return o
}

// EndOf returns the last n bytes of a text, still valid UTF-8.
func EndOf(s string, n int) string {
	return strings.ToValidUTF8(s[max(0, len(s)-n):], "")
}
