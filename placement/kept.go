package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// A decision can be replayed from a journal: the initial state of the snapshot, and every change and decision since,
// in order. Past decisions are applied, not made again, so that a program that decides differently still reaches the
// same state.

// KeptState is the state of a snapshot at the beginning of a journal.
type KeptState struct {
	Version string // of the program
	Policy  Policy
	Data    Data
	Own     map[string]string `json:",omitempty"` // tenant → its dedicated server
}

// KeptEvent is a line of a journal: a change of rows, or a decision.
type KeptEvent struct {
	Change  *Change       `json:",omitempty"`
	Decided *KeptDecision `json:",omitempty"`
}

// KeptDecision is a request and the place that it was given.
type KeptDecision struct {
	Request Request
	Place   KeptPlace
}

// KeptPlace is what a decision gave.
type KeptPlace struct {
	Outcome       Outcome
	Code          prego.Code            `json:",omitempty"` // if no place was found
	AppServerID   prego.ServerID        `json:",omitempty"` // with HoldForSite: the server whose pool to refill
	DBShardID     prego.ShardID         `json:",omitempty"`
	RedisPoolID   prego.RedisPoolID     `json:",omitempty"`
	PoolSiteID    string                `json:",omitempty"`
	InfraProvider prego.InfraProviderID `json:",omitempty"`
	// Dedicates means that the server is from now on dedicated to the tenant, with its
	// shard and pool unless an operator's override shares them.
	Dedicates    bool         `json:",omitempty"`
	MissingRoles []prego.Role `json:",omitempty"`
}

// Line is the line of a decision with its stored explanation.
func (d KeptDecision) Line(e Explanation) Line {
	l := LineOf(d.Request, Decision{KeptPlace: d.Place})
	l.Decision = e
	return l
}

// Keep copies the state of a snapshot. The copy shares nothing that changes.
func (f *Snapshot) Keep(version string) KeptState {
	k := KeptState{Version: version, Policy: f.policy, Own: maps.Clone(f.own)}
	d := &k.Data
	d.LastServer, d.Residency = f.last, f.residency // replaced whole when it changes
	d.Servers = make([]Server, len(f.servers))
	for i := range f.servers {
		s := f.servers[i].Server
		s.ParentOrgs = maps.Clone(s.ParentOrgs)
		d.Servers[i] = s
		for _, g := range f.servers[i].groups {
			for _, id := range g.ids {
				site := PoolSite{PoolSiteID: id, AppServerID: s.ServerID, DBShardID: f.shards.items[g.shard].ShardID}
				d.Sites = append(d.Sites, site)
			}
		}
	}
	d.Shards = slices.Clone(f.shards.items)
	for i := range d.Shards {
		d.Shards[i].ParentOrgs = maps.Clone(d.Shards[i].ParentOrgs)
	}
	d.Pools = slices.Clone(f.pools.items)
	for _, id := range slices.Sorted(maps.Keys(f.providers)) {
		d.Providers = append(d.Providers, f.providers[id])
	}
	if f.room != nil {
		d.Networks = []Network{}
		for _, id := range slices.Sorted(maps.Keys(f.room)) {
			d.Networks = append(d.Networks, Network{NetworkID: id, Room: f.room[id]})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(f.edges)) {
		d.Edges = append(d.Edges, EdgeNetwork{Network: id, Serves: f.edges[id]})
	}
	return k
}

// snapshot builds the snapshot of a state, as it would have been under a policy.
func (k KeptState) snapshot(p Policy) *Snapshot {
	d := k.Data
	d.Servers, d.Shards, d.Pools = slices.Clone(d.Servers), slices.Clone(d.Shards), slices.Clone(d.Pools)
	made := map[string]bool{} // parts of nodes that have no rows: they take as many as the policy lets
	for i := range d.Servers {
		d.Servers[i].ParentOrgs = maps.Clone(d.Servers[i].ParentOrgs)
	}
	for i := range d.Shards {
		d.Shards[i].ParentOrgs = maps.Clone(d.Shards[i].ParentOrgs)
		if d.Shards[i].AnyPlan {
			made[string(d.Shards[i].ShardID)], d.Shards[i].Capacity = true, p.MaxTenantsPerNode
		}
	}
	for i := range d.Pools {
		if made[d.Pools[i].PoolID] {
			d.Pools[i].Capacity = p.MaxTenantsPerNode
		}
	}
	f := NewSnapshot(p, d)
	f.own = maps.Clone(k.Own)
	if f.own == nil {
		f.own = map[string]string{}
	}
	return f
}

// Kept is a decision with all of its input.
type Kept struct {
	State    KeptState
	events   []json.RawMessage // before it
	Decision KeptDecision
}

// ReadKept reads a journal: its state, and its events up to the decision in question.
func ReadKept(state json.RawMessage, events []json.RawMessage) (Kept, error) {
	var k Kept
	if len(events) == 0 {
		return k, fmt.Errorf("a journal without a decision")
	}
	if err := json.Unmarshal(state, &k.State); err != nil {
		return k, fmt.Errorf("journal: %w", err)
	}
	last := len(events) - 1
	var e KeptEvent
	if err := json.Unmarshal(events[last], &e); err != nil || e.Decided == nil {
		return k, errors.Join(fmt.Errorf("journal: event %d is no decision", last), err)
	}
	k.Decision, k.events = *e.Decided, events[:last]
	return k, nil
}

// Snapshot is the input of the decision, as it would have been under a policy.
func (k Kept) Snapshot(p Policy) (*Snapshot, error) {
	f := k.State.snapshot(p)
	for i, raw := range k.events { // decoded each time: a snapshot changes its input
		var e KeptEvent
		if err := json.Unmarshal(raw, &e); err != nil {
			return nil, fmt.Errorf("journal: event %d: %w", i, err)
		}
		switch {
		case e.Change != nil:
			f.Update(*e.Change)
		case e.Decided != nil:
			f.Apply(e.Decided.Request, Decision{KeptPlace: e.Decided.Place})
		}
	}
	return f, nil
}

// Replay is a decision that was made again.
type Replay struct {
	Then        Line // replayed with the policy of that time
	Now         Line // with another policy
	Funnel      Funnel
	Differences []Difference
	Same        bool   // both give the recorded answer
	Version     string // of the program
}

// Replay decides again with the policy of that time and with policy now. recorded is the decision's stored
// explanation; each funnel lists at most so many.
func (k Kept) Replay(now Policy, version string, recorded Explanation, most int) (Replay, error) {
	out := Replay{Differences: []Difference{}, Version: version}
	f, err := k.Snapshot(k.State.Policy)
	if err != nil {
		return out, err
	}
	then, funnel := f.Funnel(k.Decision.Request, most)
	out.Then, out.Funnel = LineOf(k.Decision.Request, then), funnel
	if was := then.KeptPlace; !was.same(k.Decision.Place) || !sameExplanation(out.Then.Decision, recorded) {
		out.Differences = append(out.Differences, Difference{
			What: "code", Field: "version", Then: k.State.Version, Now: version, Decisive: !was.same(k.Decision.Place),
		})
	}
	today, err := k.under(now)
	if err != nil {
		return out, err
	}
	out.Now = LineOf(k.Decision.Request, today)
	changed := PolicyDifferences(k.State.Policy, now)
	if !today.same(then.KeptPlace) {
		if err := k.blame(then, now, changed); err != nil {
			return out, err
		}
	}
	out.Differences = append(out.Differences, changed...)
	out.Same = then.same(k.Decision.Place) && today.same(k.Decision.Place)
	return out, nil
}

func (k Kept) under(p Policy) (Decision, error) {
	f, err := k.Snapshot(p)
	if err != nil {
		return Decision{}, err
	}
	return f.Decide(k.Decision.Request), nil
}

// blame marks the fields of a policy that change the answer: a smallest set that does so without the others.
func (k Kept) blame(then Decision, now Policy, changed []Difference) error {
	marked := make([]bool, len(changed))
	for i := range marked {
		marked[i] = true
	}
	for i := range changed {
		marked[i] = false
		p := k.State.Policy
		for j, d := range changed {
			if marked[j] {
				setField(d.Field, &p, &now)
			}
		}
		d, err := k.under(p)
		if err != nil {
			return err
		}
		marked[i] = d.same(then.KeptPlace) // without it nothing changes
	}
	for i := range changed {
		changed[i].Decisive = marked[i]
	}
	return nil
}

func (p KeptPlace) same(q KeptPlace) bool {
	if !p.PlacesTenant() && p.Outcome == q.Outcome {
		return p.Code == q.Code && slices.Equal(p.MissingRoles, q.MissingRoles)
	}
	return p.Outcome == q.Outcome && p.AppServerID == q.AppServerID && p.DBShardID == q.DBShardID &&
		p.RedisPoolID == q.RedisPoolID && p.PoolSiteID == q.PoolSiteID && p.Dedicates == q.Dedicates
}

func sameExplanation(a, b Explanation) bool {
	a.Input, b.Input = "", ""
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

// policyField is a line of the policy.
type policyField struct {
	name string
	get  func(p *Policy) string
	set  func(to, from *Policy)
	// number is the value of a field that must be 0 to most; nil for the others.
	number func(p *Policy) *float64
	most   float64
}

func field[T any](name string, at func(p *Policy) *T) policyField {
	return policyField{
		name: name, get: func(p *Policy) string { return fmt.Sprint(*at(p)) },
		set: func(to, from *Policy) { *at(to) = *at(from) },
	}
}

// part is a number from 0 to most.
func part(name string, most float64, at func(p *Policy) *float64) policyField {
	f := field(name, at)
	f.number, f.most = at, most
	return f
}

// policyFields are all fields of a policy, by their names in a decision's policy.
var policyFields = []policyField{
	field("mode", func(p *Policy) *tenant.PlacementMode { return &p.Mode }),
	field("algorithm", func(p *Policy) *Algorithm { return &p.Algorithm }),
	field("memory_pct_max", func(p *Policy) *float64 { return &p.MemoryPctMax }),
	part("cpu_pct_max", 100, func(p *Policy) *float64 { return &p.CPUPctMax }),
	part("worker_slots_pct_max", 100, func(p *Policy) *float64 { return &p.WorkerSlotsPctMax }),
	part("db_disk_pct_max", 100, func(p *Policy) *float64 { return &p.DBDiskPctMax }),
	part("redis_memory_pct_max", 100, func(p *Policy) *float64 { return &p.RedisMemoryPctMax }),
	field("max_tenants_per_node", func(p *Policy) *int { return &p.MaxTenantsPerNode }),
	part("weights.app_load", 1, func(p *Policy) *float64 { return &p.Weights.AppLoad }),
	part("weights.app_count", 1, func(p *Policy) *float64 { return &p.Weights.AppCount }),
	part("weights.db_load", 1, func(p *Policy) *float64 { return &p.Weights.DBLoad }),
	part("weights.redis_load", 1, func(p *Policy) *float64 { return &p.Weights.RedisLoad }),
	part("weights.affinity", 1, func(p *Policy) *float64 { return &p.Weights.Affinity }),
	part("weights.app_cpu", 1, func(p *Policy) *float64 { return &p.Weights.AppCPU }),
	part("weights.app_worker_slots", 1, func(p *Policy) *float64 { return &p.Weights.AppWorkerSlots }),
	part("weights.db_disk", 1, func(p *Policy) *float64 { return &p.Weights.DBDisk }),
	part("weights.redis_memory", 1, func(p *Policy) *float64 { return &p.Weights.RedisMemory }),
	field("empty_pool", func(p *Policy) *EmptyPool { return &p.EmptyPool }),
	field("same_shard", func(p *Policy) *bool { return &p.SameShard }),
	field("max_rejected", func(p *Policy) *int { return &p.MaxRejected }),
}

// PolicyDifferences lists the differing fields of two policies.
func PolicyDifferences(then, now Policy) []Difference {
	var out []Difference
	for _, f := range policyFields {
		if a, b := f.get(&then), f.get(&now); a != b {
			out = append(out, Difference{What: "policy", Field: f.name, Then: a, Now: b})
		}
	}
	return out
}

// setField copies a field of a policy, by its name in a Difference.
func setField(name string, to, from *Policy) {
	i := slices.IndexFunc(policyFields, func(f policyField) bool { return f.name == name })
	policyFields[i].set(to, from)
}
