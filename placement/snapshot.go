package placement

import (
	"cmp"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// Server is a candidate for the app: role app, or a node with its own shard and pool.
type Server struct {
	ServerID      prego.ServerID
	Role          prego.Role
	Region        prego.Region
	NetworkID     prego.NetworkID // private network; "" for none
	InfraProvider prego.InfraProviderID
	Status        server.Status
	MemoryPct     float64 // 0–100
	TenantCount   int
	Tags          []string       // lower-case
	DedicatedFor  prego.TenantID // the tenant that it is dedicated to; "" for none
	RefusesTrials bool
	WarmPlan      prego.Plan // the warm pool that it was created for; "" for any
	NotServing    bool       // of a fleet that does not serve tenants
	RunsInstances bool       // runs process groups of any owner: it is not empty
	Cordoned      bool       // closed to newcomers
	// CPUPct and WorkerSlotsPct are averages over some minutes, 0–100; nil is unknown.
	CPUPct, WorkerSlotsPct *float64
	// ParentOrgs counts the tenants here by parent org.
	ParentOrgs map[string]int `db:"-"`
}

// Shard is a database server's tenant capacity (placement-policy §2.3, §2.4).
type Shard struct {
	ShardID      prego.ShardID
	Region       prego.Region
	NetworkID    prego.NetworkID // of its server
	HostServerID prego.ServerID  // the node that it belongs to, which alone may use it; "" for a standalone shard
	PlanTierLock prego.Plan      // "" for none
	AnyPlan      bool            `db:"-"` // a node's shard without a row: created for the node's tenant
	DedicatedFor prego.TenantID
	Tenants      int
	Capacity     int
	Status       server.Status
	ParentOrgs   map[string]int `db:"-"`
	// NotServing, RunsInstances and Cordoned are properties of its server.
	NotServing, RunsInstances, Cordoned bool
	// DiskPct is of the disk that holds its data, 0–100; nil is unknown.
	DiskPct *float64
}

// RedisPool is a Redis pool.
type RedisPool struct {
	PoolID       string
	Region       prego.Region
	NetworkID    prego.NetworkID // of its server
	HostServerID prego.ServerID
	DedicatedFor prego.TenantID
	Tenants      int
	Capacity     int
	Status       server.Status
	// NotServing, RunsInstances and Cordoned are properties of its server.
	NotServing, RunsInstances, Cordoned bool
	// MemoryPct is of the memory that Redis may use, 0–100; nil is unknown.
	MemoryPct *float64
}

// PoolSite is an available pre-built site on a server, bound to the shard that it was created on.
type PoolSite struct {
	PoolSiteID  string
	AppServerID prego.ServerID
	DBShardID   prego.ShardID
}

// Provider is a cloud and where it may be used (placement-policy §2.2).
type Provider struct {
	ID      prego.InfraProviderID
	Enabled bool
	Regions []prego.Region
}

// Zone is where the data of a country's residents may be stored.
type Zone struct {
	Regions   []prego.Region
	Providers []prego.InfraProviderID // nil means all
}

// Allows reports whether the data may be stored at a provider in a region.
func (z Zone) Allows(region prego.Region, provider prego.InfraProviderID) bool {
	return slices.Contains(z.Regions, region) && (len(z.Providers) == 0 || slices.Contains(z.Providers, provider))
}

// Data is a snapshot as rows.
type Data struct {
	Servers   []Server
	Shards    []Shard
	Pools     []RedisPool
	Sites     []PoolSite // available ones
	Providers []Provider
	Residency map[string]Zone
	// Networks are the networks with room; nil means that all have room.
	Networks []Network
	// Edges are the networks that have edges.
	Edges []EdgeNetwork
	// LastServer is where the previous tenant was placed, for round_robin.
	LastServer string
}

// Snapshot is the state that decisions are made on, and that is updated with them. What decisions read most is kept
// in dense slices, ordered by id, and changed in place. It is not safe for concurrent use.
type Snapshot struct {
	policy    Policy
	servers   []member // by id
	hot       []hot    // beside servers
	shards    slots[Shard]
	pools     slots[RedisPool]
	providers map[prego.InfraProviderID]Provider
	residency map[string]Zone
	own       map[string]string          // tenant → its dedicated server, unless that is on its way out
	families  map[string]map[string]bool // parent org → servers of its tenants
	last      string
	places    []place
	placeAt   map[place]uint16
	room      map[prego.NetworkID]int // servers that a network takes; nil means any number
	edges     map[string]bool         // networks with edges, and whether an edge there serves

	// By slot: where it is.
	shardPlace, poolPlace []uint16

	// Scratch space of one decision.
	shardScore []float64 // by slot; below 0: not for this request
	near       []near    // by place
	family     []int     // servers where the parent org lives
}

type member struct {
	Server
	groups   []siteGroup // by the shard's id
	ownShard int32       // slot; -1 for none
	ownPool  int32
}

// siteGroup are the sites of a server on one shard.
type siteGroup struct {
	shard int32 // slot
	ids   []string
}

// hot is what a scan over all servers reads.
type hot struct {
	score  float64 // of load and count
	shard0 int32   // slot of the only shard with sites; or manyShards, noSites
	flags  uint16
	place  uint16
}

const (
	noSites    int32 = -1
	manyShards int32 = -2
)

// What filters look at. A server that passes a request has none of flagsToLookAt.
const (
	flagClosed = 1 << iota // not active, or cordoned
	flagMemory             // at or above the threshold
	flagFull               // a node with its maximum of tenants
	flagEmpty
	flagDedicated
	flagNode
	flagNoTrials
	flagWarm // created for a plan
	flagBadProvider
	flagNotServing
	flagCPU         // at or above the threshold
	flagWorkerSlots // at or above the threshold

	// Not the server's, but the request's; a server's place adds the first.
	flagElsewhere // in another region
	flagTags      // has a constraint
	flagZone      // names providers
	flagAlone     // the tenant needs a dedicated server
	flagBusy      // some are being reserved

	flagsToLookAt = 1<<iota - 1 - flagEmpty
)

func regionIndex(r prego.Region) uint8 {
	switch r {
	case prego.RegionSG:
		return 1
	case prego.RegionEU:
		return 2
	case prego.RegionUS:
		return 3
	}
	return 0
}

// NewSnapshot creates a snapshot.
func NewSnapshot(p Policy, d Data) *Snapshot {
	f := &Snapshot{
		policy: p, residency: d.Residency, own: map[string]string{}, families: map[string]map[string]bool{}, last: d.LastServer,
		providers: make(map[prego.InfraProviderID]Provider, len(d.Providers)), placeAt: map[place]uint16{},
	}
	f.setNetworks(d.Networks)
	f.setEdges(d.Edges)
	for _, p := range d.Providers {
		f.providers[p.ID] = p
	}
	slices.SortFunc(d.Shards, func(a, b Shard) int { return cmp.Compare(a.ShardID, b.ShardID) })
	slices.SortFunc(d.Pools, func(a, b RedisPool) int { return cmp.Compare(a.PoolID, b.PoolID) })
	slices.SortFunc(d.Servers, func(a, b Server) int { return cmp.Compare(a.ServerID, b.ServerID) })
	f.shards.init(len(d.Shards))
	for _, s := range d.Shards {
		f.SetShard(s)
	}
	f.pools.init(len(d.Pools))
	for _, p := range d.Pools {
		f.SetPool(p)
	}
	f.servers, f.hot = make([]member, 0, len(d.Servers)), make([]hot, 0, len(d.Servers))
	for _, s := range d.Servers {
		f.SetServer(s)
	}
	for _, s := range d.Sites {
		f.AddSite(s)
	}
	return f
}

func (f *Snapshot) find(id prego.ServerID) (int, bool) {
	return slices.BinarySearchFunc(f.servers, id, func(s member, id prego.ServerID) int {
		return cmp.Compare(s.ServerID, id)
	})
}

// SetServer adds or replaces a server; its sites stay. Servers of other roles are not candidates and are ignored.
func (f *Snapshot) SetServer(s Server) {
	if s.Role != prego.RoleApp && s.Role != prego.RoleNode {
		return
	}
	i, there := f.find(s.ServerID)
	if !there {
		f.servers = slices.Insert(f.servers, i, member{ownShard: -1, ownPool: -1})
		f.hot = slices.Insert(f.hot, i, hot{})
	}
	for org := range f.servers[i].ParentOrgs {
		delete(f.families[org], string(s.ServerID))
	}
	for org := range s.ParentOrgs {
		f.joins(org, s.ServerID)
	}
	f.disown(f.servers[i].DedicatedFor, s.ServerID)
	// A tenant waits for its own server. It does not wait for one on its way out, or a closed one, or one that holds
	// its place already: the destination of a move, whose end may wait for the tenant.
	if s.DedicatedFor != "" && s.TenantCount == 0 && !s.Cordoned &&
		s.Status != server.Decommissioning && s.Status != server.Terminated {
		f.own[string(s.DedicatedFor)] = string(s.ServerID)
	}
	f.servers[i].Server = s
	f.heat(i)
}

// disown removes a server's dedication to a tenant.
func (f *Snapshot) disown(tenant prego.TenantID, serverID prego.ServerID) {
	if prego.ServerID(f.own[string(tenant)]) == serverID {
		delete(f.own, string(tenant))
	}
}

func (f *Snapshot) joins(org string, serverID prego.ServerID) {
	if f.families[org] == nil {
		f.families[org] = map[string]bool{}
	}
	f.families[org][string(serverID)] = true
}

// RemoveServer removes a server and its sites.
func (f *Snapshot) RemoveServer(id prego.ServerID) {
	i, there := f.find(id)
	if !there {
		return
	}
	f.disown(f.servers[i].DedicatedFor, id)
	for org := range f.servers[i].ParentOrgs {
		delete(f.families[org], string(id))
	}
	f.servers = slices.Delete(f.servers, i, i+1)
	f.hot = slices.Delete(f.hot, i, i+1)
}

// Server returns the snapshot's copy of a server.
func (f *Snapshot) Server(id prego.ServerID) (Server, bool) {
	if i, ok := f.find(id); ok {
		return f.servers[i].Server, true
	}
	return Server{}, false
}

// Shard returns the snapshot's copy of a shard.
func (f *Snapshot) Shard(id string) (Shard, bool) { return f.shards.get(id) }

// Pool returns the snapshot's copy of a pool.
func (f *Snapshot) Pool(id string) (RedisPool, bool) { return f.pools.get(id) }

// Sites counts the available sites of a server.
func (f *Snapshot) Sites(serverID prego.ServerID) int {
	n := 0
	if i, ok := f.find(serverID); ok {
		for _, g := range f.servers[i].groups {
			n += len(g.ids)
		}
	}
	return n
}

// SetShard adds or replaces a shard.
func (f *Snapshot) SetShard(s Shard) {
	if f.shards.set(string(s.ShardID), s); len(f.shardScore) < len(f.shards.items) {
		f.shardScore = append(f.shardScore, 0)
	}
	f.shardPlace = setAt(f.shardPlace, f.shards.byID[string(s.ShardID)], f.placeOf(s.Region, s.NetworkID))
}

// setAt sets an element of a list, which grows to the highest index.
func setAt(list []uint16, at int32, v uint16) []uint16 {
	if int(at) == len(list) {
		return append(list, v)
	}
	list[at] = v
	return list
}

// SetPool adds or replaces a pool.
func (f *Snapshot) SetPool(p RedisPool) {
	f.pools.set(p.PoolID, p)
	f.poolPlace = setAt(f.poolPlace, f.pools.byID[p.PoolID], f.placeOf(p.Region, p.NetworkID))
}

// heat updates a server's dense entry.
func (f *Snapshot) heat(i int) {
	s, p := &f.servers[i], &f.policy
	w := p.Weights
	h := hot{
		score: w.AppLoad*(1-s.MemoryPct/100) + w.AppCount*(1-float64(s.TenantCount)/float64(p.MaxTenantsPerNode)) +
			w.AppCPU*freeShare(s.CPUPct) + w.AppWorkerSlots*freeShare(s.WorkerSlotsPct),
		place: f.placeOf(s.Region, s.NetworkID), shard0: noSites,
	}
	set := func(flag uint16, on bool) {
		if on {
			h.flags |= flag
		}
	}
	set(flagClosed, s.Status != server.Active || s.Cordoned)
	set(flagMemory, !(s.MemoryPct < p.MemoryPctMax))
	set(flagFull, s.TenantCount >= p.MaxTenantsPerNode)
	set(flagEmpty, s.TenantCount == 0 && !s.RunsInstances)
	set(flagDedicated, s.DedicatedFor != "")
	set(flagNode, s.Role == prego.RoleNode)
	set(flagNoTrials, s.RefusesTrials)
	set(flagWarm, s.WarmPlan != "")
	set(flagBadProvider, f.badProvider(&s.Server))
	set(flagNotServing, s.NotServing)
	set(flagCPU, HasReached(s.CPUPct, p.CPUPctMax))
	set(flagWorkerSlots, HasReached(s.WorkerSlotsPct, p.WorkerSlotsPctMax))
	if s.Role == prego.RoleNode {
		s.ownShard, s.ownPool = f.nodeParts(s.Server)
	}
	switch len(s.groups) {
	case 0:
	case 1:
		h.shard0 = s.groups[0].shard
	default:
		h.shard0 = manyShards
	}
	f.hot[i] = h
}

// freeShare is the free share used in a score: unknown counts as 0, so that a server that is known to be idle comes
// before a server that reports nothing.
func freeShare(pct *float64) float64 {
	if pct == nil {
		return 0
	}
	return 1 - *pct/100
}

// HasReached reports whether a measure is at or above its threshold. An unknown measure
// never excludes a server, and neither does a threshold of 0.
func HasReached(pct *float64, most float64) bool { return pct != nil && most > 0 && *pct >= most }

// badProvider: the server's cloud is disabled, or no longer serves its region.
func (f *Snapshot) badProvider(s *Server) bool {
	pr, known := f.providers[s.InfraProvider]
	return !known || !pr.Enabled || !slices.Contains(pr.Regions, s.Region)
}

// setProviders replaces the clouds, and updates the servers that a change affects.
func (f *Snapshot) setProviders(providers []Provider) {
	next := make(map[prego.InfraProviderID]Provider, len(providers))
	same := len(providers) == len(f.providers)
	for _, p := range providers {
		old, known := f.providers[p.ID]
		same = same && known && old.Enabled == p.Enabled && slices.Equal(old.Regions, p.Regions)
		next[p.ID] = p
	}
	if f.providers = next; same {
		return
	}
	for i := range f.servers {
		if f.hot[i].flags &^= flagBadProvider; f.badProvider(&f.servers[i].Server) {
			f.hot[i].flags |= flagBadProvider
		}
	}
}

// nodeParts are the slots of a node's own shard and pool: the rows that name it, or else ones with the node's name
// that are created here ("all IDs refer to the same host").
func (f *Snapshot) nodeParts(s Server) (shard, pool int32) {
	if _, ok := f.shards.byID[string(s.ServerID)]; !ok {
		f.SetShard(Shard{ShardID: prego.ShardID(s.ServerID), Region: s.Region, NetworkID: s.NetworkID, HostServerID: s.ServerID, AnyPlan: true, Tenants: s.TenantCount, Capacity: f.policy.MaxTenantsPerNode, Status: server.Active})
	}
	if _, ok := f.pools.byID[string(s.ServerID)]; !ok {
		f.SetPool(RedisPool{PoolID: string(s.ServerID), Region: s.Region, NetworkID: s.NetworkID, HostServerID: s.ServerID, Tenants: s.TenantCount, Capacity: f.policy.MaxTenantsPerNode, Status: server.Active})
	}
	return f.shards.byID[string(s.ServerID)], f.pools.byID[string(s.ServerID)]
}

// AddSite makes a site available. One with an unknown server or shard is ignored.
func (f *Snapshot) AddSite(s PoolSite) {
	i, there := f.find(s.AppServerID)
	slot, known := f.shards.byID[string(s.DBShardID)]
	if !there || !known {
		return
	}
	srv := &f.servers[i]
	for g := range srv.groups {
		if srv.groups[g].shard == slot {
			if at, have := slices.BinarySearch(srv.groups[g].ids, s.PoolSiteID); !have {
				srv.groups[g].ids = slices.Insert(srv.groups[g].ids, at, s.PoolSiteID)
			}
			return
		}
	}
	srv.groups = append(srv.groups, siteGroup{shard: slot, ids: []string{s.PoolSiteID}})
	slices.SortFunc(srv.groups, func(a, b siteGroup) int {
		return cmp.Compare(f.shards.ids[a.shard], f.shards.ids[b.shard])
	})
	f.heat(i)
}

// RemoveSite removes a site that is no longer available.
func (f *Snapshot) RemoveSite(appServerID prego.ServerID, poolSiteID string) {
	i, there := f.find(appServerID)
	if !there {
		return
	}
	srv := &f.servers[i]
	for g := range srv.groups {
		if at, have := slices.BinarySearch(srv.groups[g].ids, poolSiteID); have {
			srv.groups[g].ids = slices.Delete(srv.groups[g].ids, at, at+1)
			if len(srv.groups[g].ids) == 0 {
				srv.groups = slices.Delete(srv.groups, g, g+1)
				f.heat(i)
			}
			return
		}
	}
}

// Apply updates the snapshot with a decision: the tenant counts from now on.
func (f *Snapshot) Apply(r Request, d Decision) {
	if !d.PlacesTenant() {
		return
	}
	f.last = string(d.AppServerID)
	if i, ok := f.find(d.AppServerID); ok {
		s := f.servers[i].Server
		s.TenantCount++
		s.ParentOrgs = withOrg(s.ParentOrgs, r.ParentOrgID)
		if d.Dedicates {
			s.DedicatedFor = r.TenantID
		}
		f.SetServer(s)
	}
	if s, ok := f.shards.get(string(d.DBShardID)); ok {
		if r.Plan == prego.PlanEnterprise || d.Dedicates && s.Tenants == 0 && !s.RunsInstances {
			s.DedicatedFor = r.TenantID
		}
		s.Tenants++
		s.ParentOrgs = withOrg(s.ParentOrgs, r.ParentOrgID)
		f.SetShard(s)
	}
	if p, ok := f.pools.get(string(d.RedisPoolID)); ok {
		if r.Plan == prego.PlanEnterprise || r.DedicatedRedis || d.Dedicates && p.Tenants == 0 && !p.RunsInstances {
			p.DedicatedFor = r.TenantID
		}
		p.Tenants++
		f.SetPool(p)
	}
	f.RemoveSite(d.AppServerID, d.PoolSiteID)
}

func withOrg(orgs map[string]int, org prego.OrgID) map[string]int {
	if org == "" {
		return orgs
	}
	if orgs == nil {
		orgs = make(map[string]int, 1)
	}
	orgs[string(org)]++
	return orgs
}

// slots stores values at fixed places, with an index by id and an order of ids.
type slots[T any] struct {
	items []T
	ids   []string // by slot
	byID  map[string]int32
	order []int32 // slots in the order of ids
}

func (s *slots[T]) init(n int) {
	s.items, s.ids, s.order = make([]T, 0, n), make([]string, 0, n), make([]int32, 0, n)
	s.byID = make(map[string]int32, n)
}

func (s *slots[T]) set(id string, v T) {
	if slot, ok := s.byID[id]; ok {
		s.items[slot] = v
		return
	}
	slot := int32(len(s.items))
	s.items, s.ids = append(s.items, v), append(s.ids, id)
	s.byID[id] = slot
	at, _ := slices.BinarySearchFunc(s.order, id, func(o int32, id string) int {
		return cmp.Compare(s.ids[o], id)
	})
	s.order = slices.Insert(s.order, at, slot)
}

func (s *slots[T]) get(id string) (v T, ok bool) {
	slot, ok := s.byID[id]
	if ok {
		v = s.items[slot]
	}
	return v, ok
}
