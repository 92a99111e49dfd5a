// Package scale decides what an action does to a fleet of servers: how many are added
// or removed, where, and which ones. Before each action it evaluates the fleet's
// policies in order (region-placement, "Policy Triggers"). It is pure.
package scale

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/region"
	"github.com/prego/prego/server"
)

// ScalingSpec is the spec of a scaling policy: how many servers are added or removed by an action without a count.
type ScalingSpec struct {
	Event      server.FleetActionKind `json:"event"` // CLUSTER_SCALE_OUT or CLUSTER_SCALE_IN
	Adjustment Adjustment             `json:"adjustment"`
}

// Adjustment is the size of a change.
type Adjustment struct {
	Type       region.Adjustment `json:"type"`
	Number     int64             `json:"number"`
	MinStep    int64             `json:"min_step,omitempty"`
	BestEffort bool              `json:"best_effort,omitempty"` // limit to the fleet's bounds instead of refusing
	Cooldown   int64             `json:"cooldown,omitempty"`    // seconds after its last use during which it refuses
}

// DeletionSpec is the spec of a deletion policy: which servers are removed.
type DeletionSpec struct {
	Criteria region.Criterion `json:"criteria"`
	// GracePeriod is how many seconds to wait for tenants to leave a server; after that it is kept.
	GracePeriod int64 `json:"grace_period,omitempty"`
}

// regionSpec is a region placement policy as users write it: absent fields have defaults.
type regionSpec struct {
	Regions []struct {
		Name   string `json:"name"`
		Weight *int64 `json:"weight"`
		Cap    *int64 `json:"cap"`
	} `json:"regions"`
}

// ParsePolicy checks a policy's spec and fills in defaults. Regions are the regions of this service.
func ParsePolicy(kind server.PolicyType, raw json.RawMessage) (json.RawMessage, error) {
	var v any
	var err error
	switch kind {
	case server.PolicyScaling:
		var s ScalingSpec
		if err = decode(raw, &s, "spec"); err == nil {
			err = s.validate()
		}
		v = s
	case server.PolicyRegionPlacement:
		v, err = parseRegions(raw)
	case server.PolicyDeletion:
		var s DeletionSpec
		if err = decode(raw, &s, "spec"); err == nil {
			err = s.validate()
		}
		v = s
	default:
		err = prego.Invalid("type", "must be scaling, region_placement or deletion")
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

func parseRegions(raw json.RawMessage) (region.Policy, error) {
	var s regionSpec
	var p region.Policy
	if err := decode(raw, &s, "spec"); err != nil {
		return p, err
	}
	for i, r := range s.Regions {
		if !prego.Region(r.Name).Valid() {
			return p, prego.Invalid(fmt.Sprintf("spec.regions[%d].name", i), "must be one of sg, eu, us")
		}
		out := region.Region{Name: r.Name, Weight: region.DefaultWeight, Cap: region.NoCap}
		if r.Weight != nil {
			out.Weight = *r.Weight
		}
		if r.Cap != nil {
			out.Cap = *r.Cap
		}
		p.Regions = append(p.Regions, out)
	}
	return p, p.Validate("spec")
}

func (s *ScalingSpec) validate() error {
	a := s.Adjustment
	switch {
	case s.Event != server.ClusterScaleOut && s.Event != server.ClusterScaleIn:
		return prego.Invalid("spec.event", "must be CLUSTER_SCALE_OUT or CLUSTER_SCALE_IN")
	case a.Type == "":
		s.Adjustment.Type = region.ChangeInCapacity
	case a.Type != region.ExactCapacity && a.Type != region.ChangeInCapacity && a.Type != region.ChangeInPercentage:
		return prego.Invalid("spec.adjustment.type", "must be EXACT_CAPACITY, CHANGE_IN_CAPACITY or CHANGE_IN_PERCENTAGE")
	}
	switch {
	case a.Number < 1 || a.Number > server.MaxFleetSize:
		return prego.Invalid("spec.adjustment.number", "must be 1 to 1000")
	case a.MinStep < 0 || a.MinStep > server.MaxFleetSize:
		return prego.Invalid("spec.adjustment.min_step", "must be 0 to 1000")
	case a.Cooldown < 0 || a.Cooldown > 86400:
		return prego.Invalid("spec.adjustment.cooldown", "must be 0 to 86400 seconds")
	}
	return nil
}

func (s *DeletionSpec) validate() error {
	s.Criteria = cmp.Or(s.Criteria, region.OldestFirst)
	switch {
	case !s.Criteria.Valid():
		return prego.Invalid("spec.criteria", "must be OLDEST_FIRST, YOUNGEST_FIRST, OLDEST_PROFILE_FIRST or RANDOM")
	case s.GracePeriod < 0 || s.GracePeriod > int64(server.MaxGracePeriod/time.Second):
		return prego.Invalid("spec.grace_period", fmt.Sprintf("must be 0 to %d seconds", int64(server.MaxGracePeriod/time.Second)))
	}
	return nil
}

// Inputs are an action's inputs; each kind uses some of them.
type Inputs struct {
	Count          *int64            `json:"count,omitempty"`           // scale out, scale in
	AdjustmentType region.Adjustment `json:"adjustment_type,omitempty"` // resize, and all to min_step
	Number         *int64            `json:"number,omitempty"`
	MinSize        *int64            `json:"min_size,omitempty"`
	MaxSize        *int64            `json:"max_size,omitempty"`
	MinStep        int64             `json:"min_step,omitempty"`
	Strict         *bool             `json:"strict,omitempty"`
	Regions        []prego.Region    `json:"regions,omitempty"`      // scale out: only these
	Region         prego.Region      `json:"region,omitempty"`       // node create: the profile's
	MaxSurge       *int64            `json:"max_surge,omitempty"`    // replace: extra servers above its size; 1 if absent
	GracePeriod    *int64            `json:"grace_period,omitempty"` // replace: seconds, as in DeletionSpec
}

var inputsOf = map[server.FleetActionKind][]string{
	server.ClusterScaleOut: {"count", "regions"},
	server.ClusterScaleIn:  {"count"},
	server.ClusterResize:   {"adjustment_type", "number", "min_size", "max_size", "min_step", "strict"},
	server.ClusterReplace:  {"max_surge", "grace_period"},
	server.NodeCreate:      {"region"},
}

// ParseInputs checks an action's inputs. strict is the default for resizes: true over
// the API, false inside an action.
func ParseInputs(kind server.FleetActionKind, raw json.RawMessage, strict bool) (Inputs, error) {
	var in Inputs
	known, ok := inputsOf[kind]
	if !ok {
		return in, prego.Invalid("action", "must be one of CLUSTER_SCALE_OUT, CLUSTER_SCALE_IN, CLUSTER_RESIZE, CLUSTER_REPLACE, NODE_CREATE")
	}
	if len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	var given map[string]json.RawMessage
	_ = json.Unmarshal(raw, &given) // decode refuses what is no object
	for _, name := range sortedKeys(given) {
		if !slices.Contains(known, name) {
			return in, &prego.Error{Code: prego.CodeUnknownField, Field: "inputs." + name, Message: fmt.Sprintf("is not an input of %s, which takes %s", kind, strings.Join(known, ", "))}
		}
	}
	if err := decode(raw, &in, "inputs"); err != nil {
		return in, err
	}
	if kind == server.ClusterResize && in.Strict == nil {
		in.Strict = &strict
	}
	return in, in.validate(kind)
}

func (in *Inputs) validate(kind server.FleetActionKind) error {
	within := func(field string, v *int64, least, most int64) error {
		if v != nil && (*v < least || *v > most) {
			return prego.Invalid("inputs."+field, fmt.Sprintf("must be %d to %d", least, most))
		}
		return nil
	}
	if err := errors.Join(within("count", in.Count, 1, server.MaxFleetSize), within("max_surge", in.MaxSurge, 1, 100),
		within("grace_period", in.GracePeriod, 0, int64(server.MaxGracePeriod/time.Second))); err != nil {
		return err
	}
	for i, r := range in.Regions {
		if !r.Valid() {
			return prego.Invalid(fmt.Sprintf("inputs.regions[%d]", i), "must be one of sg, eu, us")
		}
		if slices.Contains(in.Regions[:i], r) {
			return prego.Invalid(fmt.Sprintf("inputs.regions[%d]", i), "is given twice")
		}
	}
	if in.Region != "" && !in.Region.Valid() {
		return prego.Invalid("inputs.region", "must be one of sg, eu, us")
	}
	if kind != server.ClusterResize {
		return nil
	}
	if in.AdjustmentType != "" && in.Number == nil {
		return prego.Invalid("inputs.number", "is required with adjustment_type")
	}
	if in.AdjustmentType == "" && in.Number != nil {
		return prego.Invalid("inputs.adjustment_type", "is required with number")
	}
	if in.AdjustmentType == "" && in.MinSize == nil && in.MaxSize == nil {
		return prego.Invalid("inputs.adjustment_type", "is required, or min_size or max_size")
	}
	if in.MinStep != 0 && in.AdjustmentType != region.ChangeInPercentage {
		return prego.Invalid("inputs.min_step", "goes with CHANGE_IN_PERCENTAGE only")
	}
	if in.MinSize != nil && in.MaxSize != nil && *in.MaxSize != region.NoCap && *in.MinSize > *in.MaxSize {
		return prego.Invalid("inputs.min_size", "must not be above max_size")
	}
	return in.resize().Validate("inputs")
}

func (in Inputs) resize() region.Resize {
	r := region.Resize{Adjustment: in.AdjustmentType, MinSize: in.MinSize, MaxSize: in.MaxSize, MinStep: in.MinStep}
	if in.Number != nil {
		r.Number = *in.Number
	}
	r.Strict = in.Strict != nil && *in.Strict
	return r
}

// decode reads a whole document, and names the invalid field.
func decode(raw json.RawMessage, into any, at string) error {
	err := jsonv2.Unmarshal(raw, into, jsonv2.RejectUnknownMembers(true), jsontext.AllowInvalidUTF8(true))
	var wrong *jsonv2.SemanticError
	switch {
	case err == nil && jsontext.Value(raw).Kind() == '{':
		return nil
	case !errors.As(err, &wrong) || wrong.JSONPointer == "":
		return prego.Invalid(at, "must be an object")
	}
	for token := range wrong.JSONPointer.Tokens() {
		if _, err := strconv.Atoi(token); err == nil {
			at += "[" + token + "]"
		} else {
			at += "." + token
		}
	}
	if errors.Is(err, jsonv2.ErrUnknownName) {
		return &prego.Error{Code: prego.CodeUnknownField, Field: at, Message: "is not known: names are in lower case"}
	}
	return prego.Invalid(at, "must be "+describe(wrong.GoType)+", not "+cmp.Or(wrong.JSONValue.String(), wrong.JSONKind.String()))
}

func describe(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int64:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	}
	return "of another type"
}
