package prego

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Tier is the service tier of an org; it decides the limits that the org has by default
// (quotas-and-fairness, "Quota configuration model").
type Tier string

// The tiers.
const (
	TierFree       Tier = "free"
	TierPaid       Tier = "paid"
	TierEnterprise Tier = "enterprise"
)

// Tiers lists every tier.
func Tiers() []Tier { return []Tier{TierFree, TierPaid, TierEnterprise} }

// Valid reports whether t is one of Tiers.
func (t Tier) Valid() bool { return oneOf(t, Tiers()) }

// QuotaExceeded is the refusal of a change that would take an org above a limit. Its
// code is CodeQuotaExceeded.
type QuotaExceeded struct {
	Dimension      string  `json:"dimension"`
	Limit          float64 `json:"limit"`
	CurrentUsage   float64 `json:"current_usage"`
	RequestedDelta float64 `json:"requested_delta"`
}

func (q *QuotaExceeded) Error() string { return q.Unwrap().Error() }

// Unwrap is the refusal as a coded error.
func (q *QuotaExceeded) Unwrap() error {
	n := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	return &Error{Code: CodeQuotaExceeded, Message: fmt.Sprintf("the org's %s is %s and %s are used: %s more are above it. Free some, or ask for a higher limit",
		q.Dimension, n(q.Limit), n(q.CurrentUsage), n(q.RequestedDelta))}
}

// OrgEvent is one line of what happened to an org's resources. Payload holds no secret.
type OrgEvent struct {
	EventID int64
	OrgID   string
	At      time.Time
	Type    string // app.create, group.scale, org.quota_set, …
	Subject string // the id of what it happened to
	Actor   string
	Reason  string
	Payload json.RawMessage
}
