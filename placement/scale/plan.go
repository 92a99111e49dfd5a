package scale

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/placement/region"
	"github.com/prego/prego/server"
)

// Codes of impossible actions, in addition to the codes of package region.
const (
	CodeCooldown    = "policy_cooldown"
	CodePolicyError = "policy_refused"
)

// NodeData is an action's data: region-placement's, and that of replacements.
type NodeData struct {
	region.Data
	Replacement *Replacement `json:"replacement,omitempty"`
}

// Replacement is how many members are replaced, and where.
type Replacement struct {
	Count   int64            `json:"count"`
	Regions map[string]int64 `json:"regions"`
	Surge   int64            `json:"max_surge"`
}

type planner struct {
	st   server.FleetState
	kind server.FleetActionKind
	seq  int
	in   Inputs
	data region.Data
	code string
	used []string
	idle bool // a scaling policy found nothing to do

	regions map[string]int64 // members now
	usable  []string
	grace   int64
	by      region.Criterion
}

// Plan decides what an action does. A plan with a Reason does nothing.
func Plan(st server.FleetState, a server.FleetAction) (server.FleetPlan, error) {
	in, err := ParseInputs(a.Action, a.Inputs, false)
	if err != nil { // accepted, but no longer valid
		return server.FleetPlan{Data: json.RawMessage("{}"), Reason: string(prego.CodeOf(err)), Message: err.Error()}, nil
	}
	p := &planner{st: st, kind: a.Action, seq: a.Seq, in: in, regions: currentCounts(st.Fleet)}
	p.usable = usableRegions(st.Usable, in.Regions)
	if a.Action == server.ClusterReplace {
		return p.replace()
	}
	p.bounds()
	for _, policy := range st.Fleet.Policies {
		if !policy.Enabled || p.data.Status == region.StatusError {
			continue
		}
		if err := p.ask(policy); err != nil {
			return server.FleetPlan{}, fmt.Errorf("policy %s: %w", policy.PolicyID, err)
		}
	}
	if p.data.Status != region.StatusError {
		p.fill()
	}
	return p.plan()
}

func currentCounts(f server.Fleet) map[string]int64 {
	out := make(map[string]int64, len(f.Regions))
	for r, n := range f.Regions {
		out[string(r)] = n
	}
	return out
}

// usableRegions are the provider's regions that an action may use.
func usableRegions(all, only []prego.Region) []string {
	out := []string{}
	for _, r := range all {
		if len(only) == 0 || slices.Contains(only, r) {
			out = append(out, string(r))
		}
	}
	return out
}

func (p *planner) refuse(code, sentence string) {
	p.code, p.data = code, region.Data{Status: region.StatusError, Reason: sentence}
}

func (p *planner) refused(err error) {
	code, message := string(prego.CodeOf(err)), err.Error()
	var e *prego.Error
	if errors.As(err, &e) {
		message = e.Message
	}
	p.refuse(code, message)
}

func (p *planner) size() region.Bounds {
	return region.Bounds{Current: p.st.Fleet.Size, MinSize: p.st.Fleet.MinSize, MaxSize: p.st.Fleet.MaxSize, GlobalMax: server.MaxFleetSize}
}

// bounds rejects an action that would leave the fleet's bounds before any policy is
// evaluated; a scaling policy's result is checked separately.
func (p *planner) bounds() {
	switch p.kind {
	case server.ClusterResize:
		res, err := region.ParseResize(p.in.resize(), p.size())
		if err != nil {
			p.refused(err)
			return
		}
		p.data = resizeData(res)
	case server.NodeCreate:
		p.check(1)
	case server.ClusterScaleOut:
		if p.in.Count != nil {
			p.check(*p.in.Count)
		}
	case server.ClusterScaleIn:
		if p.in.Count != nil {
			p.check(-*p.in.Count)
		}
	case server.ClusterReplace:
	}
}

// resizeData is a resize as other policies see it.
func resizeData(r region.ResizeResult) region.Data {
	d := region.Data{Status: region.StatusOK}
	if r.Creation > 0 {
		d.Creation = &region.Change{Count: &r.Creation}
	}
	if r.Deletion > 0 {
		d.Deletion = &region.Change{Count: &r.Deletion}
	}
	return d
}

func (p *planner) check(change int64) {
	if _, err := region.ParseResize(region.Resize{Adjustment: region.ChangeInCapacity, Number: change, Strict: true}, p.towards(true)); err != nil {
		p.refused(err)
	}
}

// towards are the bounds of a strict change in the action's direction: a fleet below
// its min_size may grow step by step, and one above its max_size shrink.
func (p *planner) towards(strict bool) region.Bounds {
	b := p.size()
	switch {
	case !strict:
	case p.kind == server.ClusterScaleIn:
		b.MaxSize = server.NoMaxSize
	default:
		b.MinSize = 0
	}
	return b
}

// ask evaluates one policy.
func (p *planner) ask(a server.Attachment) error {
	switch a.Type {
	case server.PolicyScaling:
		var s ScalingSpec
		if err := json.Unmarshal(a.Spec, &s); err != nil {
			return err
		}
		p.scaling(a, s)
	case server.PolicyRegionPlacement:
		var s region.Policy
		if err := json.Unmarshal(a.Spec, &s); err != nil {
			return err
		}
		p.placement(a.PolicyID, s)
	case server.PolicyDeletion:
		var s DeletionSpec
		if err := json.Unmarshal(a.Spec, &s); err != nil {
			return err
		}
		p.by, p.grace = s.Criteria, s.GracePeriod
		p.used = append(p.used, string(a.PolicyID))
	}
	return nil
}

// scaling decides how many, for an action of its event without a count.
func (p *planner) scaling(a server.Attachment, s ScalingSpec) {
	if s.Event != p.kind || p.in.Count != nil {
		return
	}
	if a.LastUsedAt != nil {
		if left := time.Duration(s.Adjustment.Cooldown)*time.Second - p.st.Now.Sub(*a.LastUsedAt); left > 0 {
			p.refuse(CodeCooldown, fmt.Sprintf("Policy %s cooldown is still in progress, for %s more.", a.PolicyID, left.Round(time.Second)))
			return
		}
	}
	r := region.Resize{Adjustment: s.Adjustment.Type, Number: s.Adjustment.Number, MinStep: s.Adjustment.MinStep, Strict: !s.Adjustment.BestEffort}
	if p.kind == server.ClusterScaleIn && r.Adjustment != region.ExactCapacity {
		r.Number = -r.Number
	}
	res, err := region.ParseResize(r, p.towards(r.Strict))
	if err != nil {
		p.refused(err)
		return
	}
	if p.kind == server.ClusterScaleOut && res.Deletion > 0 || p.kind == server.ClusterScaleIn && res.Creation > 0 {
		res = region.ResizeResult{Desired: p.st.Fleet.Size} // already beyond its target: nothing to do
	}
	p.used = append(p.used, string(a.PolicyID))
	p.data = resizeData(res)
	p.idle = res.Creation == 0 && res.Deletion == 0
}

func (p *planner) nothing() bool {
	return p.idle || p.kind == server.ClusterResize && p.data.Creation == nil && p.data.Deletion == nil
}

// placement decides where.
func (p *planner) placement(id prego.PolicyID, s region.Policy) {
	if p.nothing() {
		return
	}
	p.used = append(p.used, string(id))
	f := p.st.Fleet
	data := region.Evaluate(region.Request{
		Action: region.Action(p.kind), Policy: s, Current: p.regions, Usable: p.usable, MinSize: f.MinSize, MaxSize: f.MaxSize,
		GlobalMax: server.MaxFleetSize, Count: p.in.Count, Resize: p.in.resize(), Data: p.data, ProfileRegion: string(p.in.Region),
	})
	if data.Status == region.StatusError {
		p.refuse(codeOfReason(data.Reason), data.Reason)
		return
	}
	p.data = data
}

func codeOfReason(reason string) string {
	switch reason {
	case "No region is found usable.":
		return string(region.CodeNoRegion)
	case "There is no feasible plan to handle all nodes.":
		return string(region.CodeNoPlan)
	}
	return CodePolicyError
}

// fill sets what no policy decided: the count, and the fleet's own region.
func (p *planner) fill() {
	p.data.Status = region.StatusOK
	one := int64(1)
	if p.in.Count != nil {
		one = *p.in.Count
	}
	switch {
	case p.nothing():
		return
	case p.kind == server.ClusterScaleIn && p.data.Deletion == nil:
		p.data.Deletion = &region.Change{Count: &one}
	case (p.kind == server.ClusterScaleOut || p.kind == server.NodeCreate) && p.data.Creation == nil:
		p.data.Creation = &region.Change{Count: &one}
	}
	// The bounds also apply to the policies' results.
	if c := p.data.Creation; c != nil && p.kind != server.ClusterResize {
		p.check(*c.Count)
	}
	if c := p.data.Deletion; c != nil && p.kind != server.ClusterResize {
		p.check(-*c.Count)
	}
	if p.data.Status == region.StatusError || p.data.Creation == nil || p.data.Creation.Regions != nil {
		return
	}
	home := string(p.st.Fleet.Region)
	switch {
	case p.in.Region != "":
		home = string(p.in.Region)
	case home == "" && len(p.in.Regions) == 1:
		home = string(p.in.Regions[0])
	}
	if home == "" || !slices.Contains(p.usable, home) {
		p.refuse(string(region.CodeNoRegion), "No region is found usable.")
		return
	}
	p.data.Creation.Regions = map[string]int64{home: *p.data.Creation.Count}
}

// plan chooses the servers to remove, and lists the steps.
func (p *planner) plan() (server.FleetPlan, error) {
	out := server.FleetPlan{Desired: p.st.Fleet.Size, Used: p.used}
	if p.data.Status != region.StatusError && p.data.Deletion != nil {
		ids, err := p.victims()
		if err != nil {
			p.refused(err)
		} else {
			p.data.Deletion.Candidates = ids
			if p.grace > 0 {
				p.data.Deletion.GracePeriod = &p.grace
			}
		}
	}
	var err error
	if out.Data, err = json.Marshal(NodeData{Data: p.data}); err != nil {
		return out, err
	}
	if p.data.Status == region.StatusError {
		out.Reason, out.Message = p.code, p.data.Reason
		return out, nil
	}
	if c := p.data.Creation; c != nil {
		out.Desired += *c.Count
		out.Steps = createSteps(c.Regions, 1, false)
	}
	if c := p.data.Deletion; c != nil {
		out.Desired -= *c.Count
		at := map[string]prego.Region{}
		for _, m := range p.st.Members {
			at[string(m.ServerID)] = m.Region
		}
		for _, id := range c.Candidates {
			out.Steps = append(out.Steps, server.FleetStep{Op: server.StepOpDelete, ServerID: prego.ServerID(id), Region: at[id], Round: 1})
		}
	}
	return out, nil
}

func createSteps(regions map[string]int64, round int, replan bool) []server.FleetStep {
	var out []server.FleetStep
	for _, name := range sortedKeys(regions) {
		for range regions[name] {
			out = append(out, server.FleetStep{Op: server.StepOpCreate, Region: prego.Region(name), Round: round, Replan: replan})
		}
	}
	return out
}

// victims chooses the servers to remove: by the deletion policy, within the regions that the placement policy
// decided. Failed servers go first, then those without tenants: tenants are not moved while there is an empty server.
func (p *planner) victims() ([]string, error) {
	by := p.by
	by = cmp.Or(by, region.OldestFirst)
	seed := fnv.New64a()
	fmt.Fprintf(seed, "%s/%d", p.st.Fleet.FleetID, p.seq)
	left := *p.data.Deletion.Count
	perRegion := maps.Clone(p.data.Deletion.Regions)
	var out []string
	for _, class := range deletionClasses(p.st.Members) {
		want, count := map[string]int64(nil), min(left, int64(len(class)))
		if perRegion != nil {
			want, count = map[string]int64{}, 0
			have := map[string]int64{}
			for _, n := range class {
				have[n.Region]++
			}
			for name, n := range perRegion {
				want[name] = min(n, have[name])
			}
		}
		ids, err := region.SelectVictims(class, by, want, count, seed.Sum64())
		if err != nil {
			return nil, err
		}
		for name, n := range want {
			perRegion[name] -= n
		}
		left -= int64(len(ids))
		out = append(out, prego.Strings(ids)...)
	}
	if left > 0 {
		return nil, prego.Errorf(region.CodeTooFewNodes,
			"%d servers must be removed, more than there are.", *p.data.Deletion.Count)
	}
	return out, nil
}

func deletionClasses(members []server.FleetMember) [][]region.Member {
	out := make([][]region.Member, 3)
	for _, m := range members {
		class := 2
		switch {
		case m.Status == server.Failed && m.Tenants == 0:
			class = 0
		case m.Tenants == 0:
			class = 1
		}
		out[class] = append(out[class], region.Member{ID: m.ServerID, Region: string(m.Region), CreatedAt: m.CreatedAt, ProfileGeneration: int64(m.Profile)})
	}
	return out
}

// replace replaces members of earlier profiles, each in its region, max_surge at a time: first the new ones are
// created, and once they are active the old ones are removed.
func (p *planner) replace() (server.FleetPlan, error) {
	surge := int64(1)
	if p.in.MaxSurge != nil {
		surge = *p.in.MaxSurge
	}
	var old []region.Member
	at := map[string]prego.Region{}
	for _, m := range p.st.Members {
		at[string(m.ServerID)] = m.Region
		if m.Profile < p.st.Fleet.Profile {
			old = append(old, region.Member{ID: m.ServerID, Region: string(m.Region), CreatedAt: m.CreatedAt, ProfileGeneration: int64(m.Profile)})
		}
	}
	out := server.FleetPlan{Desired: p.st.Fleet.Size}
	ids, err := region.SelectVictims(old, region.OldestProfileFirst, nil, int64(len(old)), 0)
	if err != nil {
		return out, err
	}
	r := Replacement{Count: int64(len(ids)), Regions: map[string]int64{}, Surge: surge}
	p.data.Status = region.StatusOK
	if most := p.st.Fleet.Size + min(surge, r.Count); most > server.MaxFleetSize {
		p.refuse(string(region.CodeAboveServiceLimit), fmt.Sprintf("The surge would make %d servers, more than the %d allowed per fleet.", most, server.MaxFleetSize))
	}
	for i, id := range ids {
		round := i/int(surge) + 1
		r.Regions[string(at[string(id)])]++
		out.Steps = append(out.Steps, server.FleetStep{Op: server.StepOpCreate, Region: at[string(id)], Round: round},
			server.FleetStep{Op: server.StepOpDelete, ServerID: id, Region: at[string(id)], Round: round})
		if !slices.Contains(p.usable, string(at[string(id)])) {
			p.refuse(string(region.CodeNoRegion), "No region is found usable.")
		}
	}
	if p.data.Status == region.StatusError {
		out.Reason, out.Message, out.Steps = p.code, p.data.Reason, nil
	}
	data := NodeData{Data: p.data}
	if out.Reason == "" {
		data.Replacement = &r
	}
	out.Data, err = json.Marshal(data)
	return out, err
}

// Replan plans servers again that could not be created in their region, over the regions without failures, as far as
// the fleet has room.
func Replan(st server.FleetState, a server.FleetAction) (out server.FleetReplan, err error) {
	out.Data = a.Data
	var kept NodeData
	if err := json.Unmarshal(a.Data, &kept); err != nil {
		return out, fmt.Errorf("data of action %d: %w", a.Seq, err)
	}
	if a.Action == server.ClusterReplace {
		out.Skip = standStill(a.Steps)
		return out, nil
	}
	lost, failed, made, round := map[prego.Region]bool{}, int64(0), int64(0), 0
	for _, s := range a.Steps {
		round = max(round, s.Round)
		if s.Replan {
			made++
		}
		if s.State == server.FleetStepFailed {
			lost[s.Region] = true
			failed++
		}
	}
	missing := failed - made // those already replaced no longer count
	// A failed server that is kept for debugging is a member and takes its place.
	if f := st.Fleet; f.MaxSize != server.NoMaxSize {
		missing = min(missing, f.MaxSize-f.Size)
	}
	missing = min(missing, server.MaxFleetSize-st.Fleet.Size)
	var policy *region.Policy
	for _, p := range st.Fleet.Policies {
		if p.Enabled && p.Type == server.PolicyRegionPlacement {
			policy = &region.Policy{}
			if err := json.Unmarshal(p.Spec, policy); err != nil {
				return out, fmt.Errorf("policy %s: %w", p.PolicyID, err)
			}
		}
	}
	if missing <= 0 || policy == nil || kept.Creation == nil {
		return out, nil
	}
	in, err := ParseInputs(a.Action, a.Inputs, false)
	if err != nil || in.Region != "" { // the profile's region is the only one
		return out, err
	}
	left := []string{}
	for _, name := range usableRegions(st.Usable, in.Regions) {
		if !lost[prego.Region(name)] {
			left = append(left, name)
		}
	}
	regions, err := region.Grow(*policy, currentCounts(st.Fleet), left, missing)
	if err != nil {
		return out, nil //nolint:nilerr // missing servers stay missing: the action reports it
	}
	out.More = createSteps(regions, round+1, true)
	kept.Creation.Regions = map[string]int64{}
	for _, s := range slices.Concat(a.Steps, out.More) {
		if s.Op == server.StepOpCreate && s.State != server.FleetStepFailed {
			kept.Creation.Regions[string(s.Region)]++
		}
	}
	out.Data, err = json.Marshal(kept)
	return out, err
}

// standStill returns the steps to skip after a server of a replacement failed to come up or to go: those not begun,
// except removals of old servers whose new ones are active. A failed new server is no reason to remove an old one,
// and a kept old one is no reason to let the fleet keep growing.
func standStill(steps []server.FleetStep) (skip []server.FleetStep) {
	stand := map[prego.Region]int{} // new servers whose old ones are still to be removed
	for _, s := range steps {
		switch {
		case s.Op == server.StepOpCreate && s.State == server.FleetStepDone:
			stand[s.Region]++
		case s.Op == server.StepOpDelete && s.State != server.FleetStepPlanned && s.State != server.FleetStepSkipped:
			stand[s.Region]--
		}
	}
	for _, s := range steps {
		if s.State != server.FleetStepPlanned {
			continue
		}
		if s.Op == server.StepOpDelete && stand[s.Region] > 0 {
			stand[s.Region]--
			continue
		}
		s.Message = "a server before it could not be replaced"
		skip = append(skip, s)
	}
	return skip
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// GracePeriod is how long an action waits for tenants to leave a server.
func GracePeriod(a server.FleetAction) time.Duration {
	var seconds *int64
	if a.Action == server.ClusterReplace {
		if in, err := ParseInputs(a.Action, a.Inputs, false); err == nil {
			seconds = in.GracePeriod
		}
	} else {
		var d NodeData
		if json.Unmarshal(a.Data, &d) == nil && d.Deletion != nil {
			seconds = d.Deletion.GracePeriod
		}
	}
	if seconds == nil {
		return 0
	}
	return time.Duration(*seconds) * time.Second
}
