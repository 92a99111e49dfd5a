package placement

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/prego/prego"
	"github.com/prego/prego/tenant"
)

// reason is why a candidate was rejected: the first filter that it failed, in the order of the pipeline
// (placement-policy §2).
type reason uint8

const (
	passes reason = iota
	rejectConstraint
	rejectRegion
	rejectProvider
	rejectResidency
	rejectDedicated
	rejectNotServing
	rejectNotEmpty
	rejectTrials
	rejectWarmPlan
	rejectTierLock
	rejectStatus
	rejectMemory
	rejectCPU
	rejectWorkerSlots
	rejectCount
	rejectDisk
	rejectShardFull
	rejectRedisMemory
	rejectPoolFull
	rejectBusy
	rejectNetwork
	rejectNoEdges
	rejectNoSite
	rejectCordoned
	reasons
)

var reasonNames = [reasons]string{
	rejectConstraint: "constraint_mismatch", rejectRegion: "region_mismatch",
	rejectProvider: "infra_provider_not_allowed", rejectResidency: "data_residency",
	rejectDedicated: "dedicated_to_another_tenant", rejectNotServing: "fleet_not_serving", rejectNotEmpty: "not_empty",
	rejectTrials: "refuses_trials", rejectWarmPlan: "warm_for_another_plan", rejectTierLock: "plan_tier_lock",
	rejectStatus: "not_active", rejectMemory: "memory_pct", rejectCPU: "cpu_pct",
	rejectWorkerSlots: "worker_slots_pct", rejectDisk: "db_disk_pct", rejectRedisMemory: "redis_memory_pct",
	rejectCount: "tenant_count", rejectShardFull: "db_shard_full", rejectPoolFull: "redis_pool_full",
	rejectNoSite: "site_pool_empty", rejectBusy: "busy",
	rejectNetwork: "network_zone_mismatch", rejectNoEdges: "network_without_edges", rejectCordoned: "cordoned",
}

// codeNoSite is the code of placements that wait for a pool site.
const codeNoSite prego.Code = "site_pool_empty"

// tally counts rejections and keeps the first of each list; every list is in the order of ids.
type tally struct {
	counts [reasons]int
	first  [lists][]Rejection
	most   int
	looked int
}

// The lists of a tally. A round robin starts in the middle of the servers, so the
// servers before and after its start have separate lists. Servers that only lack a site
// have their own: they are no rejections if the site is created on demand.
const (
	listShards = iota
	listPools
	listServers
	listTurned
	listNoSite
	listNoSiteTurned
	lists
)

func (t *tally) reject(list int, id string, r reason) {
	t.counts[r]++
	t.list(list, id, r)
}

func (t *tally) list(list int, id string, r reason) {
	if len(t.first[list]) < t.most {
		t.first[list] = append(t.first[list], Rejection{ID: id, Reason: reasonNames[r]})
	}
}

// listed returns the first rejections of all lists, by id.
func (t *tally) listed(o Outcome) []Rejection {
	last := lists
	if o == OnDemandSite {
		last = listNoSite
	}
	var out []Rejection
	for _, l := range t.first[:last] {
		out = append(out, l...)
	}
	slices.SortStableFunc(out, func(a, b Rejection) int { return cmp.Compare(a.ID, b.ID) })
	return out[:min(len(out), t.most)]
}

// triple is a candidate that passes every filter.
type triple struct {
	server int // index
	shard  int32
	pool   int32 // slot + 1 of the adviser's choice, 0 for the engine's
	score  float64
	ok     bool
}

// search is a decision in progress.
type search struct {
	f         *Snapshot
	r         Request
	mode      tenant.PlacementMode
	algorithm Algorithm
	tally
	zone      Zone
	zoned     bool
	exclusive bool   // the tenant needs a dedicated server
	asks      uint32 // flags of the request
	alone     bool   // and a dedicated shard, which an override may ignore
	ownPool   bool   // and a dedicated Redis pool
	crowded   bool   // no candidate has room, and an override takes the one with the most
	wished    bool   // an operator chose the target of a move: it needs no room, and need not serve

	near   []near // by place
	passed struct{ shard, pool int }
	// saw notes which kinds were examined, for a funnel.
	saw     struct{ servers, shards, pools bool }
	bestFit bool
	// passing is called for every triple that passes, and restarts before all are tried again; both may be nil.
	passing  func(t triple, site bool)
	restarts func()
	// report is the result of the constraint, nil if every server satisfies it.
	report *ConstraintReport
}

func (f *Snapshot) search(r Request) *search {
	s := &search{f: f, r: r, mode: r.Mode, algorithm: r.Algorithm}
	s.look()
	s.mode = cmp.Or(s.mode, f.policy.Mode)
	s.algorithm = cmp.Or(s.algorithm, f.policy.Algorithm)
	s.most = f.policy.MaxRejected
	s.exclusive = MustBeAlone(r.Plan, s.mode, false)
	s.alone = MustBeAlone(r.Plan, s.mode, r.Override != nil)
	s.ownPool = s.alone || r.DedicatedRedis
	s.ask(flagTags, !r.Constraint.Empty())
	s.ask(flagAlone, s.exclusive)
	s.ask(flagBusy, len(r.Busy) > 0)
	return s
}

func (s *search) ask(flag uint32, on bool) {
	if on {
		s.asks |= flag
	}
}

// Decide places a request, or gives the reason why not. It changes nothing: Apply does.
func (f *Snapshot) Decide(r Request) Decision { return f.search(r).decide() }

func (s *search) decide() Decision {
	f, r := s.f, s.r
	if code, why := s.regionAllowed(); code != "" {
		return s.refuse(code, why)
	}
	s.reportConstraint()
	if r.Override != nil {
		return s.override()
	}
	if own := f.own[string(r.TenantID)]; s.algorithm == NewServer && own != "" {
		s.algorithm = BestFit // the new server exists
	}
	if s.algorithm == NewServer {
		s.countServers()
		if !r.Constraint.Satisfiable() {
			return s.noCapacity()
		}
		return s.without(NeedsServer, "", "the algorithm new_server always makes a new server")
	}
	s.scoreShards()
	s.scorePools()
	return s.choose()
}

// regionAllowed is steps 1 and 2 as far as they concern the request alone: the
// residency zone, and a cloud that serves the region.
func (s *search) regionAllowed() (prego.Code, string) {
	if c := s.r.DataResidency; c != "" {
		zone, known := s.f.residency[c]
		if !known {
			return prego.CodeResidencyUnknown, fmt.Sprintf("there is no residency zone for country %s", c)
		}
		if !slices.Contains(zone.Regions, s.r.Region) {
			return prego.CodeResidencyViolation, fmt.Sprintf("data of residents of %s may not be in region %s", c, s.r.Region)
		}
		s.zone, s.zoned = zone, len(zone.Providers) > 0
		s.ask(flagZone, s.zoned)
	}
	for id, p := range s.f.providers {
		if p.Enabled && slices.Contains(p.Regions, s.r.Region) && (!s.zoned || slices.Contains(s.zone.Providers, id)) {
			return "", ""
		}
	}
	return prego.CodeNoProvider, fmt.Sprintf("no enabled provider serves region %s", s.r.Region)
}

// scoreShards filters the shards, and scores the passing ones into f.shardScore (placement-policy §2.3: the tier lock
// comes first).
func (s *search) scoreShards() {
	f := s.f
	s.saw.shards = true
	for _, slot := range f.shards.order {
		sh := &f.shards.items[slot]
		f.shardScore[slot] = -1
		s.looked++
		if why := s.shard(sh); why != passes {
			s.reject(listShards, string(sh.ShardID), why)
			continue
		}
		f.shardScore[slot] = f.policy.Weights.DBLoad*(1-float64(sh.Tenants)/float64(sh.Capacity)) +
			f.policy.Weights.DBDisk*freeShare(sh.DiskPct)
		if sh.HostServerID != "" {
			continue
		}
		s.passed.shard++
		n := &s.near[f.shardPlace[slot]]
		n.shard++
		ranks := s.algorithm == BestFit || s.crowded
		if n.bestShard < 0 || ranks && s.shardPreference(slot) > n.shardScore+epsilon {
			n.shardScore, n.bestShard = s.shardPreference(slot), slot
		}
	}
}

// shardPreference is a shard's score, raised if the parent org is there and that is preferred (placement-policy §5).
func (s *search) shardPreference(slot int32) float64 {
	v := s.f.shardScore[slot]
	if s.f.policy.SameShard && s.r.ParentOrgID != "" && s.f.shards.items[slot].ParentOrgs[string(s.r.ParentOrgID)] > 0 {
		v += AffinityDelta + 2*epsilon // at exactly the delta it is preferred, whichever shard comes first
	}
	return v
}

func (s *search) scorePools() {
	f := s.f
	s.saw.pools = true
	for _, slot := range f.pools.order {
		p := &f.pools.items[slot]
		s.looked++
		why := s.pool(p)
		if why != passes {
			s.reject(listPools, p.PoolID, why)
			continue
		}
		if p.HostServerID != "" {
			continue
		}
		s.passed.pool++
		n := &s.near[f.poolPlace[slot]]
		if v := s.poolScoreOf(p); n.pool == 0 || (s.algorithm == BestFit || s.crowded) && v > n.poolScore+epsilon {
			n.poolScore, n.bestPool = v, slot
		}
		n.pool++
	}
}

func (s *search) poolScoreOf(p *RedisPool) float64 {
	w := &s.f.policy.Weights
	return w.RedisLoad*(1-float64(p.Tenants)/float64(p.Capacity)) + w.RedisMemory*freeShare(p.MemoryPct)
}

// satisfies checks the constraint (placement-pools): all required tags, none of the disallowed ones.
func (s *search) satisfies(i int) bool { return s.r.Constraint.SatisfiedBy(s.f.servers[i].Tags) }

// countServers counts the servers as considered, for decisions that choose none.
func (s *search) countServers() {
	s.looked += len(s.f.servers)
	s.saw.servers = true
}

// contest keeps the best and the second-best server.
type contest struct {
	best, family triple
	advised      triple  // of the adviser's server
	second       float64 // the highest score of a server other than best's
	others       bool
}

func (c *contest) enter(t triple, family bool, first bool) {
	switch {
	case !c.best.ok:
		c.best = t
	case !first && t.score > c.best.score+epsilon:
		c.second, c.others = max(c.best.score, c.second), true
		c.best = t
	default:
		c.second, c.others = max(t.score, c.second), true
	}
	if family && (!c.family.ok || t.score > c.family.score+epsilon) {
		c.family = t
	}
}

// choose considers every server once. Scores are separable: the pool is the same for all servers, and the shard only
// depends on the sites that a server has, so the cross product is never enumerated (placement-policy §2.5, §2.6).
func (s *search) choose() Decision {
	f := s.f
	family := s.familyServers()
	advised := -1
	if a := s.r.Advice; a != nil {
		if i, ok := f.find(a.AppServerID); ok {
			advised = i
		}
	}
	inOrder := s.algorithm != BestFit
	var ready, empty contest // with an available site, and without
	after := s.roundRobinStart()
	ownID, hasOwn := f.own[string(s.r.TenantID)]
	s.countServers()
	s.bestFit = s.algorithm == BestFit
	for n := range f.hot {
		i, turned := n+after, 0
		if i >= len(f.hot) { // a round robin wraps around
			i, turned = i-len(f.hot), 1
		}
		h := &f.hot[i]
		here := &s.near[h.place]
		// For most servers, two numbers decide on a plain request.
		if flags := s.flags(h); flags&flagsToLookAt == 0 {
		} else if why := s.server(i, flags); why != passes {
			// The id is only read for the few listed servers: it is elsewhere in memory.
			if s.counts[why]++; len(s.first[listServers+turned]) < s.most {
				s.list(listServers+turned, string(f.servers[i].ServerID), why)
			}
			continue
		}
		if hasOwn && f.servers[i].ServerID != prego.ServerID(ownID) {
			continue // the tenant already has a dedicated server
		}
		_, kin := slices.BinarySearch(family, i)
		base := h.score
		if kin {
			base += f.policy.Weights.Affinity
		}
		pool := here.poolScore
		node := h.flags&flagNode != 0
		if node {
			pool = s.poolScoreOf(&f.pools.items[f.servers[i].ownPool])
		} else {
			here.app++
			if here.bestPool < 0 {
				if s.passed.pool > 0 { // in another network
					s.reject(listServers+turned, string(f.servers[i].ServerID), rejectNetwork)
				}
				continue
			}
		}
		if slot := s.siteShard(i, h); slot >= 0 {
			t := triple{server: i, shard: slot, score: base + f.shardScore[slot] + pool, ok: true}
			if ready.enter(t, kin, inOrder); i == advised {
				ready.advised = t
			}
			if s.passing != nil {
				s.passing(t, true)
			}
			continue
		}
		slot := here.bestShard
		if node {
			slot = f.servers[i].ownShard
		}
		if slot < 0 {
			if s.passed.shard > 0 {
				s.reject(listServers+turned, string(f.servers[i].ServerID), rejectNetwork)
			}
			continue
		}
		s.reject(listNoSite+turned, string(f.servers[i].ServerID), rejectNoSite)
		t := triple{server: i, shard: slot, score: base + f.shardScore[slot] + pool, ok: true}
		if empty.enter(t, kin, inOrder); i == advised {
			empty.advised = t
		}
		if s.passing != nil {
			s.passing(t, false)
		}
	}
	switch {
	case ready.best.ok:
		return s.placed(Placed, ready)
	case empty.best.ok && (hasOwn || (s.mode == tenant.ModeShared && f.policy.EmptyPool == OnDemand)):
		return s.placed(OnDemandSite, empty)
	case empty.best.ok && s.mode == tenant.ModeShared:
		d := s.without(HoldForSite, codeNoSite,
			"servers have room, and none has a site left in its pool: the placement waits for a refill")
		d.AppServerID = f.servers[empty.best.server].ServerID
		return d
	case s.mode == tenant.ModeOneTenantOneServer && s.r.Constraint.Satisfiable(): // by the server created for it
		return s.without(NeedsServer, "", "no warm server can be claimed: the tenant gets a new one")
	}
	return s.noCapacity()
}

// siteShard is the best shard for which a server still has a site, or -1.
func (s *search) siteShard(i int, h *hot) int32 {
	switch h.shard0 {
	case noSites:
		return -1
	case manyShards:
	default:
		if s.f.shardScore[h.shard0] >= 0 && s.reachable(i, h, h.shard0) &&
			(len(s.r.Busy) == 0 || s.freeSite(&s.f.servers[i].groups[0]) != "") {
			return h.shard0
		}
		return -1
	}
	best := int32(-1)
	for _, g := range s.f.servers[i].groups { // by the shard's id
		if s.f.shardScore[g.shard] < 0 || !s.reachable(i, h, g.shard) || s.freeSite(&g) == "" {
			continue
		}
		if best < 0 || (s.algorithm == BestFit && s.shardPreference(g.shard) > s.shardPreference(best)+epsilon) {
			best = g.shard
		}
	}
	return best
}

// freeSite is the first site of a group that is not being reserved, or "".
func (s *search) freeSite(g *siteGroup) string {
	for _, id := range g.ids {
		if !s.r.Busy[id] {
			return id
		}
	}
	return ""
}

// reachable reports whether a server may use a shard: a node's shard serves only that node, any other its network.
func (s *search) reachable(i int, h *hot, slot int32) bool {
	host := s.f.shards.items[slot].HostServerID
	return host == "" && s.f.shardPlace[slot] == h.place || host == s.f.servers[i].ServerID
}

// familyServers are the servers where the request's parent org lives, by index.
func (s *search) familyServers() []int {
	s.f.family = s.f.family[:0]
	for id := range s.f.families[string(s.r.ParentOrgID)] {
		i, _ := s.f.find(prego.ServerID(id))
		s.f.family = append(s.f.family, i)
	}
	sort.Ints(s.f.family)
	return s.f.family
}

// roundRobinStart is the index of the server after the last chosen one.
func (s *search) roundRobinStart() int {
	if s.algorithm != RoundRobin {
		return 0
	}
	i, there := s.f.find(prego.ServerID(s.f.last))
	if there {
		i++
	}
	return i
}

// placed makes the decision for the contest's winner, after the affinity rule and the invariants (placement-policy
// §5, §6).
func (s *search) placed(o Outcome, c contest) Decision {
	f, win := s.f, c.best
	byAffinity := false
	within := win.score-c.family.score <= AffinityDelta+epsilon
	if s.algorithm == BestFit && c.family.ok && c.family.server != win.server && within {
		win, byAffinity = c.family, true
	}
	advised, byAdvice := s.advised(o, c)
	if byAdvice {
		win, byAffinity, s.algorithm = advised, false, AIRecommended
	}
	srv := &f.servers[win.server]
	d := s.decision(o)
	d.AppServerID, d.InfraProvider, d.Score = srv.ServerID, srv.InfraProvider, win.score
	d.DBShardID = f.shards.items[win.shard].ShardID
	if d.RedisPoolID = prego.RedisPoolID(s.poolFor(srv)); win.pool > 0 {
		d.RedisPoolID = prego.RedisPoolID(f.pools.items[win.pool-1].PoolID)
	}
	d.Dedicates = s.exclusive
	for _, g := range srv.groups {
		if g.shard == win.shard {
			d.PoolSiteID = s.freeSite(&g)
		}
	}
	d.Confidence = 1
	switch {
	case byAdvice && win.server != c.best.server:
		d.Confidence = 0
	case c.others:
		d.Confidence = min(1, max(0, win.score-c.second))
	}
	d.SelectionReason = s.explain(d, c, byAffinity)
	if err := f.CheckInvariants(s.r, d); err != nil { // defence in depth: the property tests never reach this
		return s.refuse(prego.CodeOf(err), err.Error())
	}
	return d
}

func (s *search) poolFor(srv *member) string {
	if srv.Role == prego.RoleNode {
		return s.f.pools.items[srv.ownPool].PoolID
	}
	return s.f.pools.items[s.nearTo(srv).bestPool].PoolID
}

// nearTo is what a request finds in a server's network.
func (s *search) nearTo(srv *member) *near { return &s.near[s.f.placeOf(srv.Region, srv.NetworkID)] }

func (s *search) explain(d Decision, c contest, byAffinity bool) string {
	how := fmt.Sprintf("%s: %s", d.Algorithm, d.AppServerID)
	switch {
	case d.Algorithm == AIRecommended:
		how += fmt.Sprintf(" scored %.4f, the best %.4f", d.Score, c.best.score) + adviserReason(s.r.Advice.Reason)
	case byAffinity:
		how += fmt.Sprintf(" (score %.4f), where its parent org lives, within %.2f of the best (%.4f)",
			d.Score, AffinityDelta, c.best.score)
	case s.algorithm == BestFit && c.others:
		how += fmt.Sprintf(" scored %.4f, the runner-up %.4f", d.Score, c.second)
	case s.algorithm == BestFit:
		how += fmt.Sprintf(" scored %.4f and is the only one", d.Score)
	}
	if d.Outcome == OnDemandSite {
		return how + "; its site is created on demand"
	}
	return how + "; site " + d.PoolSiteID + " from its pool"
}

// noCapacity distinguishes the two placement errors, and lists the missing roles (placement-policy §3,
// placement-pools "Auctioneer").
func (s *search) noCapacity() Decision {
	if s.report != nil && s.report.Satisfying == 0 {
		d := s.without(AwaitingCapacity, prego.CodeCellMismatch,
			"no server satisfies the constraint ("+s.report.String()+")")
		d.MissingRoles = []prego.Role{prego.RoleApp}
		d.MissingIn, _ = s.grow()
		return d
	}
	d := s.without(AwaitingCapacity, prego.CodeInsufficientResources, "")
	d.MissingIn, d.MissingRoles = s.grow()
	d.SelectionReason = fmt.Sprintf("no candidate has room in region %s; short of: %v", s.r.Region, d.MissingRoles)
	if d.MissingIn != "" {
		d.SelectionReason += " in " + networkName(d.MissingIn)
	}
	if s.report != nil {
		d.SelectionReason += " (" + s.report.String() + ")"
	}
	return d
}

func (s *search) decision(o Outcome) Decision {
	d := Decision{
		KeptPlace: KeptPlace{Outcome: o}, Mode: s.mode, Algorithm: s.algorithm, CandidatesEvaluated: s.looked, Rejected: s.listed(o),
		RejectedCounts: make(map[string]int, 4), Constraint: s.report,
	}
	for r, n := range s.counts {
		if n > 0 && (o != OnDemandSite || reason(r) != rejectNoSite) {
			d.RejectedCounts[reasonNames[r]] = n
		}
	}
	return d
}

func (s *search) without(o Outcome, code prego.Code, why string) Decision {
	d := s.decision(o)
	d.Code, d.SelectionReason = code, why
	if o == NeedsServer {
		d.Algorithm = NewServer
	}
	return d
}

func (s *search) refuse(code prego.Code, why string) Decision {
	return s.without(Refused, code, why)
}
