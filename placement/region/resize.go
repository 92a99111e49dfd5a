package region

import (
	"cmp"
	"fmt"

	"github.com/prego/prego"
)

// Adjustment is how a resize specifies its target.
type Adjustment string

// The adjustments: to n, by n, by n percent.
const (
	ExactCapacity      Adjustment = "EXACT_CAPACITY"
	ChangeInCapacity   Adjustment = "CHANGE_IN_CAPACITY"
	ChangeInPercentage Adjustment = "CHANGE_IN_PERCENTAGE"
)

// DefaultGlobalMax is the service limit: the most nodes that any fleet may have.
const DefaultGlobalMax int64 = 1_000

// Codes of rejected resizes.
const (
	CodeAboveServiceLimit    prego.Code = "target_above_service_limit"
	CodeBelowMin             prego.Code = "target_below_min_size"
	CodeBelowFleetMin        prego.Code = "target_below_fleet_min_size"
	CodeAboveMax             prego.Code = "target_above_max_size"
	CodeAboveFleetMax        prego.Code = "target_above_fleet_max_size"
	CodeMinAboveMax          prego.Code = "min_size_above_max_size"
	CodeMaxAboveServiceLimit prego.Code = "max_size_above_service_limit"
	CodeMaxBelowFleetMin     prego.Code = "max_size_below_fleet_min_size"
)

// Bounds are a fleet's size and its limits.
type Bounds struct {
	Current   int64 // current nodes, in any region
	MinSize   int64 // of the fleet
	MaxSize   int64 // of the fleet; NoCap means no limit
	GlobalMax int64 // the service limit
}

// Validate rejects impossible bounds.
func (b Bounds) Validate() error {
	switch {
	case b.Current < 0 || b.Current > MaxNodes:
		return prego.Invalid("current", fmt.Sprintf("must be 0 to %d", MaxNodes))
	case b.MinSize < 0 || b.MinSize > MaxNodes:
		return prego.Invalid("cluster.min_size", fmt.Sprintf("must be 0 to %d", MaxNodes))
	case b.MaxSize < NoCap || b.MaxSize > MaxNodes:
		return prego.Invalid("cluster.max_size", fmt.Sprintf("must be -1 (no limit) to %d", MaxNodes))
	case b.MaxSize != NoCap && b.MinSize > b.MaxSize:
		return prego.Invalid("cluster.min_size", "must not be above cluster.max_size")
	case b.GlobalMax < 1 || b.GlobalMax > MaxNodes:
		return prego.Invalid("global_max", fmt.Sprintf("must be 1 to %d", MaxNodes))
	}
	return nil
}

// Resize is a requested resize. Without an Adjustment the fleet keeps its size, within the bounds.
type Resize struct {
	Adjustment Adjustment
	Number     int64  // nodes, or percent
	MinSize    *int64 // instead of the fleet's
	MaxSize    *int64 // instead of the fleet's; NoCap means no limit
	MinStep    int64  // least nodes that a percentage changes
	// Strict rejects a target outside the bounds; otherwise it is moved inside. Over
	// the API the default is true, inside an action false.
	Strict bool
}

// Validate rejects impossible resizes.
func (r Resize) Validate(at string) error {
	if at != "" {
		at += "."
	}
	switch r.Adjustment {
	case "", ExactCapacity, ChangeInCapacity, ChangeInPercentage:
	default:
		return prego.Invalid(at+"adjustment_type", "must be EXACT_CAPACITY, CHANGE_IN_CAPACITY or CHANGE_IN_PERCENTAGE")
	}
	switch {
	case r.Adjustment == ExactCapacity && r.Number < 0:
		return prego.Invalid(at+"number", "must not be negative")
	case r.Number < -MaxNodes || r.Number > MaxNodes:
		return prego.Invalid(at+"number", fmt.Sprintf("must be %d to %d", -MaxNodes, MaxNodes))
	case r.MinSize != nil && (*r.MinSize < 0 || *r.MinSize > MaxNodes):
		return prego.Invalid(at+"min_size", fmt.Sprintf("must be 0 to %d", MaxNodes))
	case r.MaxSize != nil && (*r.MaxSize < NoCap || *r.MaxSize > MaxNodes):
		return prego.Invalid(at+"max_size", fmt.Sprintf("must be -1 (no limit) to %d", MaxNodes))
	case r.MinStep < 0 || r.MinStep > MaxNodes:
		return prego.Invalid(at+"min_step", fmt.Sprintf("must be 0 to %d", MaxNodes))
	}
	return nil
}

// ResizeResult is a valid resize. With neither Creation nor Deletion there is nothing to do.
type ResizeResult struct {
	Desired  int64
	Creation int64
	Deletion int64
}

// ParseResize returns the size after a resize. Errors are a *prego.Error with a code from the list above.
func ParseResize(r Resize, b Bounds) (ResizeResult, error) {
	if err := cmp.Or(r.Validate(""), b.Validate()); err != nil {
		return ResizeResult{}, err
	}
	target := b.Current + r.change(b.Current)
	if !r.Strict {
		target = r.within(target, b)
	}
	if err := r.refusal(target, b); err != nil {
		return ResizeResult{}, err
	}
	return ResizeResult{Desired: target, Creation: max(0, target-b.Current), Deletion: max(0, b.Current-target)}, nil
}

func (r Resize) change(current int64) int64 {
	switch r.Adjustment {
	case ExactCapacity:
		return r.Number - current
	case ChangeInCapacity:
		return r.Number
	case ChangeInPercentage:
		return r.percentage(current)
	}
	return 0
}

// percentage is number percent of current, exactly: below one node it is one node, above it is truncated; MinStep is
// the least. The sign is the number's, so that a fleet without nodes can grow by a step.
func (r Resize) percentage(current int64) int64 {
	sign, number := int64(1), r.Number
	switch {
	case number == 0:
		return 0
	case number < 0:
		sign, number = -1, -number
	}
	size := number * current / 100 // both are at most MaxNodes: 10^18 is below 2^63
	if size == 0 && current > 0 {
		size = 1
	}
	return sign * max(size, r.MinStep)
}

// within limits a target to the minimum, then to the maximum.
func (r Resize) within(target int64, b Bounds) int64 {
	least, most := or(r.MinSize, b.MinSize), or(r.MaxSize, b.MaxSize)
	target = max(target, least)
	if most != NoCap {
		target = min(target, most)
	}
	return target
}

// refusal is the first error that applies, in the order of region-placement S3 with one exception: min_size above
// max_size is checked first, because every target is then below the one or above the other. For the same reason a
// min_size above the fleet's max_size has no code.
func (r Resize) refusal(target int64, b Bounds) error {
	given := func(v *int64) (int64, bool) {
		if v == nil || *v == NoCap {
			return 0, false
		}
		return *v, true
	}
	least, hasLeast := given(r.MinSize)
	most, hasMost := given(r.MaxSize)
	fleetMost := b.MaxSize != NoCap && r.MaxSize == nil
	refuse := func(field string, code prego.Code, format string, args ...any) error {
		e := prego.Errorf(code, format, args...)
		e.Field = field
		return e
	}
	switch {
	case hasLeast && hasMost && least > most:
		return refuse("min_size", CodeMinAboveMax, "The specified min_size (%d) is greater than the specified max_size (%d).", least, most)
	case target > b.GlobalMax:
		return refuse("number", CodeAboveServiceLimit, "The target capacity (%d) is greater than the maximum number of nodes allowed per fleet (%d).", target, b.GlobalMax)
	case hasLeast && target < least:
		return refuse("number", CodeBelowMin, "The target capacity (%d) is less than the specified min_size (%d).", target, least)
	case r.Strict && !hasLeast && target < b.MinSize:
		return refuse("number", CodeBelowFleetMin, "The target capacity (%d) is less than the fleet's min_size (%d).", target, b.MinSize)
	case hasMost && target > most:
		return refuse("number", CodeAboveMax, "The target capacity (%d) is greater than the specified max_size (%d).", target, most)
	case r.Strict && fleetMost && target > b.MaxSize:
		return refuse("number", CodeAboveFleetMax, "The target capacity (%d) is greater than the fleet's max_size (%d).", target, b.MaxSize)
	case hasMost && most > b.GlobalMax:
		return refuse("max_size", CodeMaxAboveServiceLimit, "The specified max_size (%d) is greater than the maximum number of nodes allowed per fleet (%d).", most, b.GlobalMax)
	case hasMost && !hasLeast && most < b.MinSize:
		return refuse("max_size", CodeMaxBelowFleetMin, "The specified max_size (%d) is less than the fleet's min_size (%d).", most, b.MinSize)
	}
	return nil
}
