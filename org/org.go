// Package org is the domain of orgs: what they are, what they use and may use, and
// their events. It is pure; the package quota below it decides.
package org

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/prego/prego"
)

// Org is a customer. Several can share a parent (placement-policy §5).
type Org struct {
	OrgID       prego.OrgID
	ParentOrgID prego.OrgID // "" for none
	Tier        prego.Tier
	CreatedBy   string
	CreatedAt   time.Time
}

// QuotaExceeded rejects a change that would take an org above a limit. Its code is
// CodeQuotaExceeded.
type QuotaExceeded struct {
	Dimension      string  `json:"dimension"`
	Limit          float64 `json:"limit"`
	CurrentUsage   float64 `json:"current_usage"`
	RequestedDelta float64 `json:"requested_delta"`
}

func (q *QuotaExceeded) Error() string { return q.Unwrap().Error() }

// Unwrap returns the rejection as a coded error.
func (q *QuotaExceeded) Unwrap() error {
	return &prego.Error{Code: prego.CodeQuotaExceeded, Message: q.Sentence()}
}

// Sentence formats it for people. Promises to process groups count as used.
func (q *QuotaExceeded) Sentence() string {
	n := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	return fmt.Sprintf("the org's %s is %s, %s are used or promised, and this needs %s more. Free some, or request a higher limit: prego limit-request create",
		q.Dimension, n(q.Limit), n(q.CurrentUsage), n(q.RequestedDelta))
}

// Event is one event of an org's resources. Payload holds no secret.
type Event struct {
	EventID int64
	OrgID   prego.OrgID
	At      time.Time
	Type    string // app.create, group.scale, org.quota_set, …
	Subject string // the id of the resource
	Actor   string
	Reason  string
	Payload json.RawMessage
}

// Quota is one dimension of an org: the effective limit, and its usage.
type Quota struct {
	Dimension string
	Limit     float64
	Override  bool // whether the org overrides its tier's limit
	Usage     float64
	Reserved  float64 // promised to process groups, but not allocated yet
	Reason    string  // why the limit was overridden
	UpdatedBy string
	UpdatedAt *time.Time
}

// LimitRequestState is a state of a request for a higher limit.
type LimitRequestState string

// The states. All but LimitOpen are final.
const (
	LimitOpen      LimitRequestState = "open"
	LimitApproved  LimitRequestState = "approved"
	LimitRefused   LimitRequestState = "refused"
	LimitWithdrawn LimitRequestState = "withdrawn"
)

// LimitRequest is a request of an org for a higher limit.
type LimitRequest struct {
	LimitRequestID string
	OrgID          prego.OrgID
	Dimension      string
	OldLimit       float64 // when it was requested; of an approved one, the limit that it replaced
	RequestedLimit float64
	GrantedLimit   *float64 // only of an approved one
	Reason         string
	State          LimitRequestState
	Answer         string // why it was approved or refused
	CreatedBy      string
	CreatedAt      time.Time
	DecidedBy      string
	DecidedAt      *time.Time
}

// Headroom is how much is left after the promises, at least 0: a limit can be set
// below the usage.
func (q Quota) Headroom() float64 {
	return max(0, math.Round((q.Limit-q.Usage-q.Reserved)*1e6)/1e6) // euros and CPUs have fractions
}

// Usage is one org's usage of one dimension. With OrgID "" it is the sum over all orgs
// that are not listed.
type Usage struct {
	OrgID     prego.OrgID
	Dimension string
	Usage     float64
	Limit     float64
}

// UsageCheck is what comparing orgs' counters with their rows came to.
type UsageCheck struct {
	Checked  int          // orgs compared this time
	Repaired []UsageDrift // of those, the ones whose counters were wrong
	Drifted  int          // orgs that were wrong when they were last compared
}

// UsageDrift lists the dimensions with wrong counters of an org.
type UsageDrift struct {
	OrgID prego.OrgID
	Drift json.RawMessage // [{dimension, used, counted, promised, reserved}]
}

// Ratio is the used part of the limit; +Inf for usage with a limit of 0.
func (u Usage) Ratio() float64 {
	if u.Limit == 0 {
		if u.Usage > 0 {
			return math.Inf(1)
		}
		return 0
	}
	return u.Usage / u.Limit
}
