package placement

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/prego/prego"
)

// Funnel shows how a decision was made: for app servers, DB shards and Redis pools each, what every filter removed,
// and the scores of the rest.
type Funnel struct {
	Parts []FunnelPart `json:"parts"`
}

// The kinds of a funnel's parts.
const (
	KindAppServer = "app_server"
	KindDBShard   = "db_shard"
	KindRedisPool = "redis_pool"
)

// FunnelPart is a funnel for candidates of one kind.
type FunnelPart struct {
	Kind       string         `json:"kind"`
	Candidates int            `json:"candidates"` // 0 if the decision was made without them
	Filters    []FunnelFilter `json:"filters"`    // the filters that removed some, in the order of the pipeline
	Remaining  int            `json:"remaining"`
	// Scored are the first remaining candidates in the order of preference; the chosen one is always among them.
	Scored []ScoredCandidate `json:"scored"`
	Chosen string            `json:"chosen,omitempty"`
}

// FunnelFilter is what one filter removed.
type FunnelFilter struct {
	Filter  string   `json:"filter"`
	Removed int      `json:"removed"`
	IDs     []string `json:"ids"` // the first by id
	Left    int      `json:"left"`
}

// ScoredCandidate is a candidate that passed every filter.
type ScoredCandidate struct {
	ID          string             `json:"id"`
	Score       float64            `json:"score"`
	Components  map[string]float64 `json:"components"` // by the names of the policy's weights
	DBShardID   prego.ShardID      `json:"db_shard_id,omitempty"`
	RedisPoolID prego.RedisPoolID  `json:"redis_pool_id,omitempty"`
	Chosen      bool               `json:"chosen,omitempty"`
}

// Filters that are no rejections: a decision does not count what they removed.
const (
	filterOwnServer = "own_server"    // the tenant already has a dedicated server, and this is another one
	filterNoPool    = "no_redis_pool" // no Redis pool can be used with it
	filterNoShard   = "no_db_shard"   // no DB shard can be used with it
	filterNewServer = "new_server"    // the algorithm always makes a new server
	filterOverride  = "override"      // an operator forced another one
)

// filterNames are the names of filters in their order, with the filters that are no rejections at their place.
func filterNames(reasons ...reason) []string {
	out := []string{filterNewServer, filterOverride}
	for _, r := range reasons {
		if name := reasonNames[r]; !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// serverFilterNames lists a node's own shard and pool after the node, and then the companions in a server's network.
func serverFilterNames() []string {
	out := filterNames(slices.Concat(reasonsOf(serverFilters), reasonsOf(shardFilters), reasonsOf(poolFilters))...)
	return append(out, filterOwnServer, filterNoPool, filterNoShard, reasonNames[rejectNetwork], reasonNames[rejectNoSite])
}

// Funnel decides as Decide does, and shows how. It lists at most so many candidates of each filter and of the rest.
func (f *Snapshot) Funnel(r Request, most int) (Decision, Funnel) {
	s := f.search(r)
	listed := s.most
	s.most = math.MaxInt
	var passed []triple
	var sited []bool
	s.passing = func(t triple, site bool) { passed, sited = append(passed, t), append(sited, site) }
	s.restarts = func() { passed, sited = nil, nil }
	d := s.decide()
	if d.Rejected = d.Rejected[:min(len(d.Rejected), listed)]; len(d.Rejected) == 0 {
		d.Rejected = nil // as Decide has it
	}
	t := tracer{search: s, d: d, most: most, passed: passed, sited: sited}
	return d, Funnel{Parts: []FunnelPart{t.servers(), t.shards(), t.pools()}}
}

// tracer shows a search that has ended.
type tracer struct {
	*search
	d      Decision
	most   int
	passed []triple // servers that pass every filter, whether or not they have a site
	sited  []bool   // beside them
}

// part builds a funnel's part from the removed candidates, by id, and the remaining ones, in the order of preference.
func (t *tracer) part(
	kind string, ids []string, removed map[string]string, order []string, remaining []ScoredCandidate, chosen string,
) FunnelPart {
	p := FunnelPart{Kind: kind, Candidates: len(ids), Filters: []FunnelFilter{}, Remaining: len(remaining), Chosen: chosen}
	by := map[string]*FunnelFilter{}
	for _, id := range ids {
		why := removed[id] // "" of the remaining ones, which no filter has
		if by[why] == nil {
			by[why] = &FunnelFilter{Filter: why, IDs: []string{}}
		}
		if by[why].Removed++; len(by[why].IDs) < t.most {
			by[why].IDs = append(by[why].IDs, id)
		}
	}
	left := len(ids)
	for _, name := range order {
		if step := by[name]; step != nil {
			left -= step.Removed
			step.Left = left
			p.Filters = append(p.Filters, *step)
		}
	}
	p.Scored = append([]ScoredCandidate{}, remaining[:min(len(remaining), t.most)]...)
	if i := slices.IndexFunc(remaining, func(c ScoredCandidate) bool { return c.ID == chosen }); i >= 0 {
		remaining[i].Chosen = true
		if i >= len(p.Scored) {
			p.Scored[len(p.Scored)-1] = remaining[i]
		} else {
			p.Scored[i].Chosen = true
		}
	}
	return p
}

// byPreference sorts candidates as the algorithm prefers them: best_fit by score, all others as examined.
func (t *tracer) byPreference(all []ScoredCandidate) {
	if t.bestFit {
		slices.SortStableFunc(all, func(a, b ScoredCandidate) int { return cmp.Compare(b.Score, a.Score) })
	}
}

func rejections(lists ...[]Rejection) map[string]string {
	out := map[string]string{}
	for _, l := range lists {
		for _, r := range l {
			out[r.ID] = r.Reason
		}
	}
	return out
}

// forced removes all but one.
func forced(ids []string, but string) map[string]string {
	out := make(map[string]string, len(ids))
	for _, id := range ids {
		if id != but {
			out[id] = filterOverride
		}
	}
	return out
}

func (t *tracer) shards() FunnelPart {
	var ids []string
	if t.saw.shards {
		ids = make([]string, 0, len(t.f.shards.order))
		for _, slot := range t.f.shards.order {
			ids = append(ids, t.f.shards.ids[slot])
		}
	}
	chosen := string(t.d.DBShardID)
	removed := rejections(t.first[listShards])
	if o := t.r.Override; o != nil && (o.DBShardID != "" || removed[chosen] != "") {
		removed = forced(ids, cmp.Or(string(o.DBShardID), chosen))
	}
	var left []ScoredCandidate
	for _, id := range ids {
		if _, gone := removed[id]; gone {
			continue
		}
		c := map[string]float64{}
		t.shardComponents(c, t.f.shards.byID[id])
		if w := t.f.shardScore[t.f.shards.byID[id]]; w >= 0 && t.shardPreference(t.f.shards.byID[id]) > w {
			c["same_shard"] = AffinityDelta
		}
		left = append(left, scored(id, c))
	}
	t.byPreference(left)
	return t.part(KindDBShard, ids, removed, filterNames(reasonsOf(shardFilters)...), left, chosen)
}

func (t *tracer) pools() FunnelPart {
	var ids []string
	if t.saw.pools {
		ids = make([]string, 0, len(t.f.pools.order))
		for _, slot := range t.f.pools.order {
			ids = append(ids, t.f.pools.ids[slot])
		}
	}
	chosen := string(t.d.RedisPoolID)
	removed := rejections(t.first[listPools])
	if o := t.r.Override; o != nil && (o.RedisPoolID != "" || removed[chosen] != "") { // removed: a forced node's own
		removed = forced(ids, cmp.Or(string(o.RedisPoolID), chosen))
	}
	var left []ScoredCandidate
	for _, id := range ids {
		if _, gone := removed[id]; gone {
			continue
		}
		c := map[string]float64{}
		t.poolComponents(c, t.f.pools.byID[id])
		left = append(left, scored(id, c))
	}
	t.byPreference(left)
	return t.part(KindRedisPool, ids, removed, filterNames(reasonsOf(poolFilters)...), left, chosen)
}

func (t *tracer) servers() FunnelPart {
	var ids []string
	if t.saw.servers {
		ids = make([]string, 0, len(t.f.servers))
		for i := range t.f.servers {
			ids = append(ids, string(t.f.servers[i].ServerID))
		}
	}
	chosen := ""
	if t.d.PlacesTenant() {
		chosen = string(t.d.AppServerID)
	}
	removed := rejections(t.first[listServers], t.first[listTurned])
	sited := slices.Contains(t.sited, true)
	if sited || t.d.Outcome != OnDemandSite {
		maps.Copy(removed, rejections(t.first[listNoSite], t.first[listNoSiteTurned]))
	}
	var left []ScoredCandidate
	kin := t.familyServers()
	if o := t.r.Override; o != nil && o.AppServerID != "" {
		if i, ok := t.f.find(o.AppServerID); ok && len(ids) > 0 {
			c := map[string]float64{}
			t.serverComponents(c, i, false)
			left = append(left, scored(string(o.AppServerID), c))
		}
	} else {
		for n, p := range t.passed {
			srv := &t.f.servers[p.server]
			if _, gone := removed[string(srv.ServerID)]; gone || t.sited[n] != sited {
				continue
			}
			c := map[string]float64{}
			_, family := slices.BinarySearch(kin, p.server)
			t.serverComponents(c, p.server, family && o == nil)
			var pool string
			if o == nil {
				pool = t.poolFor(srv)
				t.shardComponents(c, p.shard)
				t.poolComponents(c, t.f.pools.byID[pool])
			}
			s := scored(string(srv.ServerID), c)
			s.DBShardID, s.RedisPoolID = t.f.shards.items[p.shard].ShardID, prego.RedisPoolID(pool)
			left = append(left, s)
		}
	}
	t.byPreference(left)
	t.silently(ids, removed, left)
	return t.part(KindAppServer, ids, removed, serverFilterNames(), left, chosen)
}

// silently finds why servers were not considered that the decision does not count as rejected.
func (t *tracer) silently(ids []string, removed map[string]string, left []ScoredCandidate) {
	remains := make(map[string]bool, len(left))
	for _, c := range left {
		remains[c.ID] = true
	}
	own := t.f.own[string(t.r.TenantID)]
	for i, id := range ids {
		if _, gone := removed[id]; gone || remains[id] {
			continue
		}
		switch srv := &t.f.servers[i]; {
		case t.r.Override != nil:
			removed[id] = filterOverride
		case !t.saw.shards:
			removed[id] = filterNewServer
		case own != "" && own != id:
			removed[id] = filterOwnServer
		case srv.Role != prego.RoleNode && t.near[t.f.hot[i].place].bestPool < 0:
			removed[id] = filterNoPool
		default:
			removed[id] = filterNoShard
		}
	}
}

func scored(id string, components map[string]float64) ScoredCandidate {
	sum := 0.0
	for name, v := range components {
		if sum += v; v == 0 {
			delete(components, name)
		} else {
			components[name] = round6(v)
		}
	}
	return ScoredCandidate{ID: id, Score: round6(sum), Components: components}
}

// The components of the scores that heat, scoreShards and poolScoreOf add up.

func (t *tracer) serverComponents(c map[string]float64, i int, kin bool) {
	s, w := &t.f.servers[i], &t.f.policy.Weights
	c["app_load"] = w.AppLoad * (1 - s.MemoryPct/100)
	c["app_count"] = w.AppCount * (1 - float64(s.TenantCount)/float64(t.f.policy.MaxTenantsPerNode))
	c["app_cpu"], c["app_worker_slots"] = w.AppCPU*freeShare(s.CPUPct), w.AppWorkerSlots*freeShare(s.WorkerSlotsPct)
	if kin {
		c["affinity"] = w.Affinity
	}
}

func (t *tracer) shardComponents(c map[string]float64, slot int32) {
	sh, w := &t.f.shards.items[slot], &t.f.policy.Weights
	c["db_load"] = w.DBLoad * (1 - float64(sh.Tenants)/float64(sh.Capacity))
	c["db_disk"] = w.DBDisk * freeShare(sh.DiskPct)
}

func (t *tracer) poolComponents(c map[string]float64, slot int32) {
	p, w := &t.f.pools.items[slot], &t.f.policy.Weights
	c["redis_load"] = w.RedisLoad * (1 - float64(p.Tenants)/float64(p.Capacity))
	c["redis_memory"] = w.RedisMemory * freeShare(p.MemoryPct)
}

// Difference is a field that differs between a decision and its replay.
type Difference struct {
	What     string `json:"what"` // policy or code
	Field    string `json:"field"`
	Then     string `json:"then"`
	Now      string `json:"now"`
	Decisive bool   `json:"decisive"` // it changes the answer
}
