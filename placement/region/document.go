package region

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/prego/prego"
)

// Document is the JSON input of `prego plan region`: one check of the policy.
type Document struct {
	Action        string           `json:"action"`
	Policy        DocPolicy        `json:"policy"`
	Current       map[string]int64 `json:"current"`
	UsableRegions *[]string        `json:"usable_regions"` // null means all
	Cluster       *DocCluster      `json:"cluster"`
	Inputs        *DocInputs       `json:"inputs"`
	Data          *Data            `json:"data"`
	Node          *DocNode         `json:"node"`
	GlobalMax     *int64           `json:"global_max"` // null means DefaultGlobalMax
}

// DocPolicy is a policy.
type DocPolicy struct {
	Regions []DocRegion `json:"regions"`
}

// DocRegion is a region of a policy; absent fields have the defaults.
type DocRegion struct {
	Name   string `json:"name"`
	Weight *int64 `json:"weight"`
	Cap    *int64 `json:"cap"`
}

// DocCluster is a fleet's bounds.
type DocCluster struct {
	MinSize         *int64 `json:"min_size"` // null means 0
	MaxSize         *int64 `json:"max_size"` // null means NoCap
	DesiredCapacity *int64 `json:"desired_capacity"`
}

// DocInputs are an action's inputs. Each action uses its own and ignores the others.
type DocInputs struct {
	Count          *int64  `json:"count"`
	AdjustmentType *string `json:"adjustment_type"`
	Number         *int64  `json:"number"`
	MinSize        *int64  `json:"min_size"`
	MaxSize        *int64  `json:"max_size"`
	MinStep        *int64  `json:"min_step"`
	Strict         *bool   `json:"strict"` // null means false, as inside an action
}

// DocNode is the node of NODE_CREATE.
type DocNode struct {
	ProfileRegion *string `json:"profile_region"`
}

// ResizeDocument is the JSON input of `prego plan resize`.
type ResizeDocument struct {
	AdjustmentType *string     `json:"adjustment_type"`
	Number         *int64      `json:"number"`
	MinSize        *int64      `json:"min_size"`
	MaxSize        *int64      `json:"max_size"`
	MinStep        *int64      `json:"min_step"`
	Strict         *bool       `json:"strict"`  // null means true, as over the API
	Current        *int64      `json:"current"` // null means the fleet's desired_capacity
	Cluster        *DocCluster `json:"cluster"`
	GlobalMax      *int64      `json:"global_max"` // null means DefaultGlobalMax
}

// ResizeAnswer is the result of a resize, as JSON.
type ResizeAnswer struct {
	Status   Status     `json:"status"`
	Code     prego.Code `json:"code,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Desired  *int64     `json:"desired,omitempty"`
	Creation *Change    `json:"creation,omitempty"`
	Deletion *Change    `json:"deletion,omitempty"`
}

// Build returns the policy, not validated yet.
func (d DocPolicy) Build() Policy {
	p := Policy{Regions: make([]Region, 0, len(d.Regions))}
	for _, r := range d.Regions {
		p.Regions = append(p.Regions, Region{Name: r.Name, Weight: or(r.Weight, DefaultWeight), Cap: or(r.Cap, NoCap)})
	}
	return p
}

// Build checks the document and returns the request.
func (d Document) Build() (Request, error) {
	r := Request{
		Action: Action(d.Action), Policy: d.Policy.Build(), Current: d.Current,
		MaxSize: NoCap, GlobalMax: or(d.GlobalMax, DefaultGlobalMax),
	}
	if d.UsableRegions != nil {
		r.Usable = *d.UsableRegions
	}
	if d.Cluster != nil {
		r.MinSize, r.MaxSize = or(d.Cluster.MinSize, 0), or(d.Cluster.MaxSize, NoCap)
		if err := d.Cluster.validate(); err != nil {
			return r, err
		}
	}
	if d.Data != nil {
		r.Data = *d.Data
	}
	if d.Node != nil && d.Node.ProfileRegion != nil {
		r.ProfileRegion = *d.Node.ProfileRegion
		if err := validateName("node.profile_region", r.ProfileRegion); err != nil {
			return r, err
		}
	}
	if in := d.Inputs; in != nil {
		var err error
		if r.Resize, err = buildResize("inputs.", in.AdjustmentType, in.Number); err != nil {
			return r, err
		}
		r.Count = in.Count
		r.Resize.MinSize, r.Resize.MaxSize, r.Resize.MinStep = in.MinSize, in.MaxSize, or(in.MinStep, 0)
		r.Resize.Strict = or(in.Strict, false)
	}
	// GlobalMax 0 would mean the default.
	if d.GlobalMax != nil && *d.GlobalMax < 1 {
		return r, prego.Invalid("global_max", fmt.Sprintf("must be 1 to %d", MaxNodes))
	}
	return r, r.Validate()
}

// Build checks the document and returns the resize.
func (d ResizeDocument) Build() (Resize, Bounds, error) {
	b := Bounds{MaxSize: NoCap, GlobalMax: or(d.GlobalMax, DefaultGlobalMax)}
	if c := d.Cluster; c != nil {
		b.Current, b.MinSize, b.MaxSize = or(c.DesiredCapacity, 0), or(c.MinSize, 0), or(c.MaxSize, NoCap)
		if err := c.validate(); err != nil {
			return Resize{}, b, err
		}
	} else if d.Current == nil {
		return Resize{}, b, prego.Invalid("current", "is required without cluster.desired_capacity")
	}
	b.Current = or(d.Current, b.Current)
	r, err := buildResize("", d.AdjustmentType, d.Number)
	if err != nil {
		return r, b, err
	}
	r.MinSize, r.MaxSize, r.MinStep, r.Strict = d.MinSize, d.MaxSize, or(d.MinStep, 0), or(d.Strict, true)
	return r, b, cmp.Or(r.Validate(""), b.Validate())
}

// NewResizeAnswer formats the result of ParseResize.
func NewResizeAnswer(r ResizeResult, err error) ResizeAnswer {
	if err != nil {
		a := ResizeAnswer{Status: StatusError, Code: prego.CodeOf(err), Reason: err.Error()}
		var e *prego.Error
		if errors.As(err, &e) && e.Code != prego.CodeInvalidField {
			a.Reason = e.Message
		}
		return a
	}
	a := ResizeAnswer{Status: StatusOK, Desired: &r.Desired}
	if r.Creation > 0 {
		a.Creation = &Change{Count: &r.Creation}
	}
	if r.Deletion > 0 {
		a.Deletion = &Change{Count: &r.Deletion}
	}
	return a
}

func (c DocCluster) validate() error {
	if n := or(c.DesiredCapacity, 0); n < 0 || n > MaxNodes {
		return prego.Invalid("cluster.desired_capacity", fmt.Sprintf("must be 0 to %d", MaxNodes))
	}
	return nil
}

func buildResize(at string, adjustment *string, number *int64) (Resize, error) {
	switch {
	case adjustment == nil && number != nil:
		return Resize{}, prego.Invalid(at+"adjustment_type", "is required with number")
	case adjustment != nil && *adjustment == "":
		return Resize{}, prego.Invalid(at+"adjustment_type", "must not be empty")
	case adjustment != nil && number == nil:
		return Resize{}, prego.Invalid(at+"number", "is required with adjustment_type")
	}
	return Resize{Adjustment: Adjustment(or(adjustment, "")), Number: or(number, 0)}, nil
}

func or[T any](v *T, otherwise T) T {
	if v == nil {
		return otherwise
	}
	return *v
}
