package prego

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
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
func (t Tier) Valid() bool { return slices.Contains(Tiers(), t) }

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
func (q *QuotaExceeded) Unwrap() error { return &Error{Code: CodeQuotaExceeded, Message: q.Sentence()} }

// Sentence says it for people. What process groups were promised counts as used.
func (q *QuotaExceeded) Sentence() string {
	n := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	return fmt.Sprintf("the org's %s is %s and %s are used or promised: %s more are above it. Free some, or ask for a higher limit",
		q.Dimension, n(q.Limit), n(q.CurrentUsage), n(q.RequestedDelta))
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

// OrgQuota is one dimension of an org: the limit that holds, and what is used of it.
type OrgQuota struct {
	Dimension string
	Limit     float64
	Override  bool // the limit is the org's own; else its tier's
	Usage     float64
	Reserved  float64 // promised to process groups, and not allocated yet
	Reason    string  // of an override
	UpdatedBy string
	UpdatedAt *time.Time
}

// Headroom is how much more fits beside what is promised, at least 0: a limit can be set below the usage.
func (q OrgQuota) Headroom() float64 { return max(0, q.Limit-q.Usage-q.Reserved) }

// OrgEventFilter selects a page of an org's events.
type OrgEventFilter struct {
	OrgID  string
	Prefix string // of the type; "" for all
	Before int64  // only events with smaller ids; 0 for all
	Limit  int
}

// OrgUsage is what one org uses of one dimension, or what all others use that are not
// told one by one: their OrgID is "".
type OrgUsage struct {
	OrgID     string
	Dimension string
	Usage     float64
	Limit     float64
}

// Ratio is the part of the limit that is used. What is used of nothing is infinitely
// too much.
func (u OrgUsage) Ratio() float64 {
	if u.Limit == 0 {
		if u.Usage > 0 {
			return math.Inf(1)
		}
		return 0
	}
	return u.Usage / u.Limit
}

// App is what an org groups its environments under.
type App struct {
	AppID     string
	OrgID     string
	Name      string
	CreatedBy string
	CreatedAt time.Time
}

// Env is a place of an app in a region; process groups and routes are in one.
type Env struct {
	EnvID     string
	AppID     string
	OrgID     string
	Name      string
	Region    Region
	CreatedBy string
	CreatedAt time.Time
}

// ListFilter selects a page of what an org or an app has.
type ListFilter struct {
	ID     string // the owner's; "" for all
	Cursor string
	Limit  int
}

// MaxNameLen bounds the names of apps and envs.
const MaxNameLen = 63

// ValidateName accepts a lower-case DNS label of at most most characters.
func ValidateName(field, name string, most int) error {
	switch {
	case name == "":
		return Invalid(field, "is required")
	case !IsLabel(name, most):
		return Invalid(field, "must be at most "+strconv.Itoa(most)+" lower-case letters, digits and inner hyphens")
	}
	return nil
}

// ValidateID accepts an id of a kind: "app-" and more.
func ValidateID(field, prefix, id string) error {
	if !strings.HasPrefix(id, prefix) || !IsLabel(id, MaxTenantID) {
		return Invalid(field, "must be "+prefix+" and lower-case letters and digits, "+strconv.Itoa(MaxTenantID)+" characters at most")
	}
	return nil
}
