package workload

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego"
)

// Share is a number of instances, or a percentage of a group's replicas.
type Share struct {
	N       int
	Percent bool
}

// String is "2" or "25%".
func (s Share) String() string {
	if s.Percent {
		return strconv.Itoa(s.N) + "%"
	}
	return strconv.Itoa(s.N)
}

// ParseShare reads "2" or "25%".
func ParseShare(text string) (s Share, err error) {
	digits, percent := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || percent && n > 100 || n > MaxReplicas {
		return s, fmt.Errorf("%q is neither a number of instances, 0 to %d, nor a percentage, 0%% to 100%%", text, MaxReplicas)
	}
	return Share{n, percent}, nil
}

// MarshalJSON writes a number, or a percentage as a string.
func (s Share) MarshalJSON() ([]byte, error) {
	if s.Percent {
		return json.Marshal(s.String())
	}
	return json.Marshal(s.N)
}

// UnmarshalJSON reads both.
func (s *Share) UnmarshalJSON(b []byte) (err error) {
	text := string(b)
	if strings.HasPrefix(text, `"`) {
		if err = json.Unmarshal(b, &text); err != nil {
			return err
		}
	}
	*s, err = ParseShare(text)
	return err
}

// of is how many of the replicas it is; percentages are rounded up or down.
func (s Share) of(replicas int, up bool) int {
	if !s.Percent {
		return s.N
	}
	n := s.N * replicas
	if up {
		n += 99
	}
	return n / 100
}

// RolloutPolicy sets how a release replaces a group's instances.
type RolloutPolicy struct {
	MaxSurge       Share `json:"max_surge"`       // instances in addition to the replicas; percentages are rounded up
	MaxUnavailable Share `json:"max_unavailable"` // replicas that may be missing; percentages are rounded down
	// ProgressDeadlineSeconds is how long a rollout may go without another instance
	// becoming healthy.
	ProgressDeadlineSeconds int `json:"progress_deadline_seconds"`
	// MaxFailures is how many instances of the new release may fail before the rollout
	// does.
	MaxFailures int `json:"max_failures"`
	// AutoRollback goes back to the last good release when a rollout fails.
	AutoRollback bool `json:"auto_rollback"`
}

// DefaultRolloutPolicy applies to a group without its own.
func DefaultRolloutPolicy() RolloutPolicy {
	return RolloutPolicy{MaxSurge: Share{N: 1}, ProgressDeadlineSeconds: 600, MaxFailures: 2, AutoRollback: true}
}

const (
	maxProgressDeadline = 86_400
	maxRolloutFailures  = 1000
)

// Bounds is how many instances may exist in addition to the replicas, and how many of the
// replicas may be missing. When both percentages come to nothing one may be missing, as
// otherwise nothing could be replaced.
func (p RolloutPolicy) Bounds(replicas int) (surge, unavailable int) {
	surge, unavailable = p.MaxSurge.of(replicas, true), p.MaxUnavailable.of(replicas, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, replicas)
}

// ProgressDeadline is how long a rollout may go without progress.
func (p RolloutPolicy) ProgressDeadline() time.Duration { return seconds(p.ProgressDeadlineSeconds) }

// RolloutChange changes a group's policy; nil fields stay.
type RolloutChange struct {
	MaxSurge                *Share `json:"max_surge,omitempty"`
	MaxUnavailable          *Share `json:"max_unavailable,omitempty"`
	ProgressDeadlineSeconds *int   `json:"progress_deadline_seconds,omitempty"`
	MaxFailures             *int   `json:"max_failures,omitempty"`
	AutoRollback            *bool  `json:"auto_rollback,omitempty"`
}

// Change is the policy with a change, which may be nil; field is the prefix of field
// names in errors.
func (p RolloutPolicy) Change(c *RolloutChange, field string) (RolloutPolicy, error) {
	if c == nil {
		return p, nil
	}
	prego.Assign(&p.MaxSurge, c.MaxSurge)
	prego.Assign(&p.MaxUnavailable, c.MaxUnavailable)
	prego.Assign(&p.ProgressDeadlineSeconds, c.ProgressDeadlineSeconds)
	prego.Assign(&p.MaxFailures, c.MaxFailures)
	prego.Assign(&p.AutoRollback, c.AutoRollback)
	switch {
	case p.MaxSurge.N == 0 && p.MaxUnavailable.N == 0:
		return p, prego.Invalid(field+".max_unavailable", "and max_surge must not both be 0: nothing could be replaced")
	case p.ProgressDeadlineSeconds < 1 || p.ProgressDeadlineSeconds > maxProgressDeadline:
		return p, prego.Invalid(field+".progress_deadline_seconds", "must be 1 to 86400")
	case p.MaxFailures < 0 || p.MaxFailures > maxRolloutFailures:
		return p, prego.Invalid(field+".max_failures", "must be 0 to 1000")
	}
	return p, nil
}

// RolloutKind is what began a rollout.
type RolloutKind string

// The kinds of rollouts.
const (
	RolloutCreate   RolloutKind = "create"
	RolloutDeploy   RolloutKind = "deploy"
	RolloutRollback RolloutKind = "rollback"
	RolloutRestart  RolloutKind = "restart"
)

// RolloutOutcome is the result of a rollout.
type RolloutOutcome string

// The outcomes of rollouts.
const (
	RolloutUnderWay   RolloutOutcome = "under_way"
	RolloutSucceeded  RolloutOutcome = "succeeded"
	RolloutRolledBack RolloutOutcome = "rolled_back"
	RolloutFailed     RolloutOutcome = "failed"     // and not rolled back; it succeeds when it recovers
	RolloutSuperseded RolloutOutcome = "superseded" // another one began
)

// ReasonProgressDeadline is why a rollout failed, unless it is ReasonInstanceFailed.
const ReasonProgressDeadline = "progress_deadline_exceeded"

// KeptRollouts is how many rollouts of a group are kept, besides its present and
// its last good release's.
const KeptRollouts = 20

// Rollout is one replacement of a group's instances by a release's.
type Rollout struct {
	GroupID   prego.GroupID
	Number    int `json:"rollout"` // counts the group's rollouts
	Release   int
	Kind      RolloutKind
	Spec      Spec
	Outcome   RolloutOutcome
	Reason    string // why it failed
	Message   string
	CreatedBy string
	CreatedAt time.Time
	EndedAt   *time.Time
}
