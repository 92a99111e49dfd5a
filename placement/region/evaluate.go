package region

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/prego/prego"
)

// Action is a change that is about to happen to a fleet.
type Action string

// The actions before which the policy is evaluated.
const (
	ScaleIn    Action = "CLUSTER_SCALE_IN"
	ScaleOut   Action = "CLUSTER_SCALE_OUT"
	ResizeTo   Action = "CLUSTER_RESIZE"
	NodeCreate Action = "NODE_CREATE"
)

// Status is the result of a check.
type Status string

// The statuses.
const (
	StatusOK    Status = "OK"
	StatusError Status = "ERROR"
)

// Data is an action's data: what earlier policies decided, and the result of this one.
type Data struct {
	Status   Status  `json:"status,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	Creation *Change `json:"creation,omitempty"`
	Deletion *Change `json:"deletion,omitempty"`
}

// Change is how many nodes are added or removed, and where. The default count is one.
// Other fields of a deletion policy are kept.
type Change struct {
	Count       *int64           `json:"count,omitempty"`
	Regions     map[string]int64 `json:"regions,omitempty"`
	Candidates  []string         `json:"candidates,omitempty"`   // ids of nodes to delete
	GracePeriod *int64           `json:"grace_period,omitempty"` // seconds
}

// Request is one check of the policy.
type Request struct {
	Action        Action
	Policy        Policy
	Current       map[string]int64 // nodes per region, including unlisted ones
	Usable        []string         // regions of enabled providers; nil means all
	MinSize       int64
	MaxSize       int64 // NoCap means no limit
	GlobalMax     int64 // 0 means DefaultGlobalMax
	Count         *int64
	Resize        Resize // its Strict is false unless the action sets it
	Data          Data
	ProfileRegion string // of the node to create; "" for none
}

// Validate rejects impossible requests.
func (r Request) Validate() error {
	switch r.Action {
	case ScaleIn, ScaleOut, ResizeTo, NodeCreate:
	default:
		return prego.Invalid("action", "must be CLUSTER_SCALE_IN, CLUSTER_SCALE_OUT, CLUSTER_RESIZE or NODE_CREATE")
	}
	if err := cmp.Or(r.Policy.Validate("policy"), validateCurrent(r.Current)); err != nil {
		return err
	}
	seen := make(map[string]bool, len(r.Usable))
	for i, name := range r.Usable {
		field := fmt.Sprintf("usable_regions[%d]", i)
		if err := validateName(field, name); err != nil {
			return err
		}
		if seen[name] {
			return prego.Invalid(field, "is given twice: "+name)
		}
		seen[name] = true
	}
	if err := r.bounds().Validate(); err != nil {
		return err
	}
	for _, c := range []struct {
		field string
		count *int64
	}{{"inputs.count", r.Count}, {"data.creation.count", r.Data.Creation.count()}, {"data.deletion.count", r.Data.Deletion.count()}} {
		if c.count != nil && (*c.count < 1 || *c.count > MaxNodes) {
			return prego.Invalid(c.field, fmt.Sprintf("must be 1 to %d", MaxNodes))
		}
	}
	if s := r.Data.Status; s != "" && s != StatusOK && s != StatusError {
		return prego.Invalid("data.status", "must be OK or ERROR")
	}
	if err := r.Resize.Validate("inputs"); err != nil {
		return err
	}
	if r.ProfileRegion != "" {
		return validateName("node.profile_region", r.ProfileRegion)
	}
	return nil
}

func (c *Change) count() *int64 {
	if c == nil {
		return nil
	}
	return c.Count
}

func (r Request) bounds() Bounds {
	b := Bounds{MinSize: r.MinSize, MaxSize: r.MaxSize, GlobalMax: r.GlobalMax}
	b.GlobalMax = cmp.Or(b.GlobalMax, DefaultGlobalMax)
	for _, n := range r.Current {
		b.Current += n
	}
	return b
}

// Evaluate is the policy's check before an action (region-placement, S1 to S4). The request should be valid; an
// invalid one also ends as an error. Data that already is an error is left alone.
func Evaluate(r Request) Data {
	if err := r.Validate(); err != nil {
		return failed(err)
	}
	if r.Data.Status == StatusError {
		return r.Data
	}
	out := r.Data
	out.Status, out.Reason = StatusOK, ""
	if r.Action == NodeCreate && r.ProfileRegion != "" {
		return out // the profile's region takes precedence (S4)
	}
	creation, deletion, err := r.counts()
	switch {
	case err != nil:
		return failed(err)
	case creation > 0:
		regions, err := Grow(r.Policy, r.Current, r.Usable, creation)
		if err != nil {
			return failed(err)
		}
		out.Creation = r.Data.Creation.planned(creation, regions)
	case deletion > 0:
		regions, err := Shrink(r.Policy, r.Current, r.Usable, deletion)
		if err != nil {
			return failed(err)
		}
		out.Deletion = r.Data.Deletion.planned(deletion, regions)
	}
	return out
}

// counts is how many nodes are added or removed; both are 0 if nothing changes.
func (r Request) counts() (creation, deletion int64, err error) {
	switch r.Action {
	case ScaleIn:
		return 0, r.count(r.Data.Deletion), nil
	case ScaleOut:
		return r.count(r.Data.Creation), 0, nil
	case NodeCreate:
		return 1, 0, nil
	}
	switch {
	case r.Data.Creation != nil:
		return r.count(r.Data.Creation), 0, nil
	case r.Data.Deletion != nil:
		return 0, r.count(r.Data.Deletion), nil
	}
	res, err := ParseResize(r.Resize, r.bounds())
	return res.Creation, res.Deletion, err
}

// count is another policy's decision if there is one, without a count 1; otherwise the action's input, or 1.
func (r Request) count(decided *Change) int64 {
	n := r.Count
	if decided != nil {
		n = decided.Count
	}
	if n == nil {
		return 1
	}
	return *n
}

func (c *Change) planned(n int64, regions map[string]int64) *Change {
	out := Change{}
	if c != nil {
		out = *c
	}
	out.Count, out.Regions = &n, regions
	return &out
}

// failed is the data of a failed check: the reason, and nothing to act on.
func failed(err error) Data {
	var e *prego.Error
	if errors.As(err, &e) && e.Code != prego.CodeInvalidField {
		return Data{Status: StatusError, Reason: e.Message}
	}
	return Data{Status: StatusError, Reason: err.Error()}
}
