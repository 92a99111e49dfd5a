package placement

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// ErrOutOfTime ends a simulation whose own decisions took longer than it may take: nothing else is at fault.
var ErrOutOfTime = prego.Errorf(prego.CodeTimedOut,
	"the simulation took longer than a request may; simulate fewer requests or a smaller fleet at a time")

// Document is the JSON input of `prego plan place`: a fleet and requests.
type Document struct {
	DocFleet
	Requests []DocRequest `json:"requests"`
}

// DocFleet is a snapshot, as POST /v1/placements/simulate takes it.
type DocFleet struct {
	Policy         DocPolicy           `json:"policy"`
	Servers        []DocServer         `json:"servers"`
	DBShards       []DocShard          `json:"db_shards"`
	RedisPools     []DocRedisPool      `json:"redis_pools"`
	InfraProviders []DocProvider       `json:"infra_providers"`
	Residency      map[string][]string `json:"residency"`
	SitePool       []DocPoolSite       `json:"site_pool"`
}

// DocPolicy is what a document changes of the active policy: absent fields, nulls and empty words change nothing.
type DocPolicy struct{ changes jsontext.Value }

// UnmarshalJSONFrom checks the fields of a policy and keeps them.
func (p *DocPolicy) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	changes, err := dec.ReadValue()
	if err != nil {
		return err
	}
	*p = DocPolicy{changes: changes.Clone()}
	_, err = p.over(DefaultPolicy(), dec.Options())
	var wrong *jsonv2.SemanticError
	if errors.As(err, &wrong) {
		wrong.JSONPointer = dec.StackPointer() + wrong.JSONPointer
	}
	return err
}

// over returns the policy that the changes make of another one.
func (p DocPolicy) over(active Policy, opts ...jsonv2.Options) (Policy, error) {
	out := active
	err := jsonv2.Unmarshal(p.changes, &out, append(opts, jsonv2.WithUnmarshalers(keepDefaults))...)
	out.Mode, out.Algorithm = cmp.Or(out.Mode, active.Mode), cmp.Or(out.Algorithm, active.Algorithm)
	out.EmptyPool = cmp.Or(out.EmptyPool, active.EmptyPool)
	return out, err
}

// keepDefaults leaves a policy's field as it is for a null.
var keepDefaults = jsonv2.UnmarshalFromFunc(func(dec *jsontext.Decoder, v any) error {
	if dec.PeekKind() != 'n' {
		return jsonv2.SkipFunc
	}
	return dec.SkipValue()
})

// DocServer is a server.
type DocServer struct {
	ServerID             prego.ServerID  `json:"server_id"`
	Role                 string          `json:"role"`
	Region               string          `json:"region"`
	InfraProvider        string          `json:"infra_provider"`
	Status               string          `json:"status"`
	MemoryPct            float64         `json:"memory_pct"` // 0–100
	TenantCount          int             `json:"tenant_count"`
	Tags                 []string        `json:"tags"`
	Tenants              []DocTenant     `json:"tenants"`
	DedicatedForTenantID *prego.TenantID `json:"dedicated_for_tenant_id"`
	AcceptsTrial         *bool           `json:"accepts_trial"` // null means true
	NotServing           bool            `json:"not_serving"`
	RunsInstances        bool            `json:"runs_instances"`
	Cordoned             bool            `json:"cordoned"`
	CPUPct               *float64        `json:"cpu_pct"`          // 0–100, null is unknown
	WorkerSlotsPct       *float64        `json:"worker_slots_pct"` // 0–100, null is unknown
}

// DocTenant is a tenant on a server.
type DocTenant struct {
	TenantID    prego.TenantID `json:"tenant_id"`
	OrgID       prego.OrgID    `json:"org_id"`
	ParentOrgID *prego.OrgID   `json:"parent_org_id"`
	Plan        string         `json:"plan"`
}

// DocShard is a DB shard.
type DocShard struct {
	ShardID              prego.ShardID   `json:"shard_id"`
	Region               string          `json:"region"`
	PlanTierLock         *string         `json:"plan_tier_lock"`
	DedicatedForTenantID *prego.TenantID `json:"dedicated_for_tenant_id"`
	CurrentTenantCount   int             `json:"current_tenant_count"`
	TenantCapacity       int             `json:"tenant_capacity"`
	Status               string          `json:"status"`
	NotServing           bool            `json:"not_serving"`
	RunsInstances        bool            `json:"runs_instances"`
	Cordoned             bool            `json:"cordoned"` // its server is
	DiskPct              *float64        `json:"disk_pct"` // 0–100, null is unknown
}

// DocRedisPool is a Redis pool.
type DocRedisPool struct {
	PoolID               string          `json:"pool_id"`
	Region               string          `json:"region"`
	CurrentTenants       int             `json:"current_tenants"`
	TenantCapacity       int             `json:"tenant_capacity"`
	DedicatedForTenantID *prego.TenantID `json:"dedicated_for_tenant_id"`
	Status               string          `json:"status"`
	NotServing           bool            `json:"not_serving"`
	RunsInstances        bool            `json:"runs_instances"`
	Cordoned             bool            `json:"cordoned"`   // its server is
	MemoryPct            *float64        `json:"memory_pct"` // 0–100, null is unknown
}

// DocProvider is a cloud.
type DocProvider struct {
	ID      string   `json:"id"`
	Enabled bool     `json:"enabled"`
	Regions []string `json:"regions"`
}

// DocPoolSite is a pool site.
type DocPoolSite struct {
	PoolSiteID  string         `json:"pool_site_id"`
	AppServerID prego.ServerID `json:"app_server_id"`
	DBShardID   prego.ShardID  `json:"db_shard_id"`
	State       string         `json:"state"`
}

// DocRequest is a tenant that asks for a place.
type DocRequest struct {
	TenantID       prego.TenantID    `json:"tenant_id"`
	OrgID          prego.OrgID       `json:"org_id"`
	ParentOrgID    *prego.OrgID      `json:"parent_org_id"`
	Region         string            `json:"region"`
	Plan           string            `json:"plan"`
	DataResidency  *string           `json:"data_residency"`
	Constraint     *prego.Constraint `json:"constraint"`
	Stack          string            `json:"stack"`
	DedicatedRedis bool              `json:"dedicated_redis"`
	Override       *DocOverride      `json:"override"`
}

// DocOverride forces a placement.
type DocOverride struct {
	ForceAppServerID *prego.ServerID    `json:"force_app_server_id"`
	ForceDBShardID   *prego.ShardID     `json:"force_db_shard_id"`
	ForceRedisPoolID *prego.RedisPoolID `json:"force_redis_pool_id"`
	Reason           string             `json:"reason"`
	IgnoreConstraint bool               `json:"ignore_constraint"`
}

func stringOr[T ~string](p *T) T {
	if p == nil {
		return ""
	}
	return *p
}

// checker collects the document's parts and keeps the first error.
type checker struct{ err error }

func (c *checker) fault(field, message string) {
	if c.err == nil {
		c.err = prego.Invalid(field, message)
	}
}

func (c *checker) id(seen map[string]bool, field, id string) {
	switch {
	case id == "":
		c.fault(field, "is required")
	case seen[id]:
		c.fault(field, "is given twice: "+id)
	}
	seen[id] = true
}

func (c *checker) region(field, v string) prego.Region {
	if !prego.Region(v).Valid() {
		c.fault(field, "must be one of sg, eu, us")
	}
	return prego.Region(v)
}

func (c *checker) regions(field string, in []string) []prego.Region {
	out := make([]prego.Region, 0, len(in))
	for i, v := range in {
		out = append(out, c.region(fmt.Sprintf("%s[%d]", field, i), v))
	}
	return out
}

func (c *checker) plan(field, v string) prego.Plan {
	if !prego.Plan(v).Valid() {
		c.fault(field, "must be one of trial, starter, business, enterprise")
	}
	return prego.Plan(v)
}

func (c *checker) status(field, v string) server.Status {
	if v == "" {
		return server.Active
	}
	if !server.Status(v).Valid() {
		c.fault(field, "must be one of provisioning, active, draining, terminated, failed")
	}
	return server.Status(v)
}

// pct is a percentage that may be unknown.
func (c *checker) pct(field string, v *float64) *float64 {
	if v != nil && (*v < 0 || *v > 100) {
		c.fault(field, "must be 0 to 100")
	}
	return v
}

func (c *checker) count(field string, v int) {
	if v < 0 {
		c.fault(field, "must not be negative")
	}
}

// Build checks the document and returns its parts, and the active policy with the document's changes. The first error
// is returned as a CodeInvalidField error with its path.
func (d Document) Build(active Policy) (Policy, Data, []Request, error) {
	c := &checker{}
	p, _ := d.Policy.over(active) // the changes were tried when they were read
	if err := p.Validate(); err != nil {
		return p, Data{}, nil, err
	}
	data := Data{Residency: make(map[string]Zone, len(d.Residency))}
	for i, v := range d.InfraProviders {
		at := fmt.Sprintf("infra_providers[%d]", i)
		if v.ID == "" {
			c.fault(at+".id", "is required")
		}
		data.Providers = append(data.Providers, Provider{
			ID: prego.InfraProviderID(v.ID), Enabled: v.Enabled, Regions: c.regions(at+".regions", v.Regions),
		})
	}
	for _, country := range slices.Sorted(maps.Keys(d.Residency)) {
		data.Residency[country] = Zone{Regions: c.regions("residency."+country, d.Residency[country])}
	}
	ids := map[string]bool{}
	for i, v := range d.DBShards {
		data.Shards = append(data.Shards, c.shard(fmt.Sprintf("db_shards[%d]", i), ids, v))
	}
	ids = map[string]bool{}
	for i, v := range d.RedisPools {
		at := fmt.Sprintf("redis_pools[%d]", i)
		c.id(ids, at+".pool_id", v.PoolID)
		c.count(at+".tenant_capacity", v.TenantCapacity)
		c.count(at+".current_tenants", v.CurrentTenants)
		data.Pools = append(data.Pools, RedisPool{
			PoolID: v.PoolID, Region: c.region(at+".region", v.Region), Tenants: v.CurrentTenants,
			Capacity: v.TenantCapacity, DedicatedFor: stringOr(v.DedicatedForTenantID),
			Status: c.status(at+".status", v.Status), NotServing: v.NotServing, RunsInstances: v.RunsInstances,
			Cordoned: v.Cordoned, MemoryPct: c.pct(at+".memory_pct", v.MemoryPct),
		})
	}
	ids = map[string]bool{}
	for i, v := range d.Servers {
		data.Servers = append(data.Servers, c.server(fmt.Sprintf("servers[%d]", i), ids, v))
	}
	ownRows(&data)
	ids = map[string]bool{}
	for i, v := range d.SitePool {
		at := fmt.Sprintf("site_pool[%d]", i)
		c.id(ids, at+".pool_site_id", v.PoolSiteID)
		switch tenant.SiteState(v.State) {
		case tenant.SiteAvailable:
			site := PoolSite{PoolSiteID: v.PoolSiteID, AppServerID: v.AppServerID, DBShardID: v.DBShardID}
			data.Sites = append(data.Sites, site)
		case tenant.SiteReserved, tenant.SiteAssigned, tenant.SiteFailed, tenant.SiteDraining:
		default:
			c.fault(at+".state", "must be one of available, reserved, assigned, failed, draining")
		}
	}
	requests := make([]Request, 0, len(d.Requests))
	ids = map[string]bool{}
	for i, v := range d.Requests {
		requests = append(requests, c.request(fmt.Sprintf("requests[%d]", i), ids, v))
	}
	return p, data, requests, c.err
}

// ownRows marks the shard and pool of a node's name as the node's own.
func ownRows(d *Data) {
	nodes := map[string]bool{}
	for _, s := range d.Servers {
		nodes[string(s.ServerID)] = s.Role == prego.RoleNode
	}
	for i := range d.Shards {
		if nodes[string(d.Shards[i].ShardID)] {
			d.Shards[i].HostServerID = prego.ServerID(d.Shards[i].ShardID)
		}
	}
	for i := range d.Pools {
		if nodes[d.Pools[i].PoolID] {
			d.Pools[i].HostServerID = prego.ServerID(d.Pools[i].PoolID)
		}
	}
}

func (c *checker) shard(at string, ids map[string]bool, v DocShard) Shard {
	c.id(ids, at+".shard_id", string(v.ShardID))
	c.count(at+".tenant_capacity", v.TenantCapacity)
	c.count(at+".current_tenant_count", v.CurrentTenantCount)
	s := Shard{
		ShardID: v.ShardID, Region: c.region(at+".region", v.Region), DedicatedFor: stringOr(v.DedicatedForTenantID),
		Tenants: v.CurrentTenantCount, Capacity: v.TenantCapacity, Status: c.status(at+".status", v.Status),
		NotServing: v.NotServing, RunsInstances: v.RunsInstances, Cordoned: v.Cordoned,
		DiskPct: c.pct(at+".disk_pct", v.DiskPct),
	}
	if v.PlanTierLock != nil {
		s.PlanTierLock = c.plan(at+".plan_tier_lock", *v.PlanTierLock)
	}
	return s
}

func (c *checker) server(at string, ids map[string]bool, v DocServer) Server {
	c.id(ids, at+".server_id", string(v.ServerID))
	c.count(at+".tenant_count", v.TenantCount)
	if !prego.Role(v.Role).Valid() {
		c.fault(at+".role", "must be one of app, db-shard, redis-pool, node, edge")
	}
	if v.MemoryPct < 0 || v.MemoryPct > 100 {
		c.fault(at+".memory_pct", "must be 0 to 100")
	}
	s := Server{
		ServerID: v.ServerID, Role: prego.Role(v.Role), Region: c.region(at+".region", v.Region),
		InfraProvider: prego.InfraProviderID(v.InfraProvider), Status: c.status(at+".status", v.Status),
		MemoryPct: v.MemoryPct, TenantCount: v.TenantCount, DedicatedFor: stringOr(v.DedicatedForTenantID),
		RefusesTrials: v.AcceptsTrial != nil && !*v.AcceptsTrial, NotServing: v.NotServing,
		RunsInstances: v.RunsInstances, Cordoned: v.Cordoned, CPUPct: c.pct(at+".cpu_pct", v.CPUPct),
		WorkerSlotsPct: c.pct(at+".worker_slots_pct", v.WorkerSlotsPct),
	}
	tags, err := prego.NormalizeTags(v.Tags)
	var invalid *prego.Error
	if errors.As(err, &invalid) {
		c.fault(at+".tags", invalid.Message)
	}
	s.Tags = tags
	for i, t := range v.Tenants {
		s.ParentOrgs = withOrg(s.ParentOrgs, stringOr(t.ParentOrgID))
		if c.plan(fmt.Sprintf("%s.tenants[%d].plan", at, i), t.Plan) == prego.PlanEnterprise {
			s.DedicatedFor = t.TenantID
		}
	}
	return s
}

func (c *checker) request(at string, ids map[string]bool, v DocRequest) Request {
	c.id(ids, at+".tenant_id", string(v.TenantID))
	r := Request{
		TenantID: v.TenantID, OrgID: v.OrgID, ParentOrgID: stringOr(v.ParentOrgID),
		Region: c.region(at+".region", v.Region), Plan: c.plan(at+".plan", v.Plan),
		DataResidency: stringOr(v.DataResidency), DedicatedRedis: v.DedicatedRedis,
	}
	if v.DedicatedRedis && r.Plan != prego.PlanBusiness && r.Plan != prego.PlanEnterprise {
		c.fault(at+".dedicated_redis", "is part of the plans business and enterprise only")
	}
	if v.Constraint != nil {
		r.Constraint = *v.Constraint
		if err := r.Constraint.Normalize(at + ".constraint"); err != nil && c.err == nil {
			c.err = err
		}
	}
	if err := r.Constraint.RequireStack("stack", v.Stack); err != nil {
		c.fault(at+".stack", "must be a stack's name: printable ASCII without spaces, short enough for a tag")
	}
	if o := v.Override; o != nil && (o.ForceAppServerID != nil || o.ForceDBShardID != nil || o.ForceRedisPoolID != nil) {
		r.Override = &Override{
			AppServerID: stringOr(o.ForceAppServerID), DBShardID: stringOr(o.ForceDBShardID), RedisPoolID: stringOr(o.ForceRedisPoolID),
			Reason: o.Reason, IgnoreConstraint: o.IgnoreConstraint,
		}
	}
	return r
}

// Line is one decision in the output of `prego plan place`.
type Line struct {
	TenantID      prego.TenantID    `json:"tenant_id"`
	Outcome       Outcome           `json:"outcome"`
	Code          prego.Code        `json:"code,omitempty"`
	AppServerID   prego.ServerID    `json:"app_server_id,omitempty"`
	DBShardID     prego.ShardID     `json:"db_shard_id,omitempty"`
	RedisPoolID   prego.RedisPoolID `json:"redis_pool_id,omitempty"`
	PoolSiteID    string            `json:"pool_site_id,omitempty"`
	InfraProvider string            `json:"infra_provider,omitempty"`
	MissingRoles  []prego.Role      `json:"missing_roles,omitempty"`
	Decision      Explanation       `json:"decision"`
}

// LineOf formats a decision.
func LineOf(r Request, d Decision) Line {
	l := Line{
		TenantID: r.TenantID, Outcome: d.Outcome, Code: d.Code, MissingRoles: d.MissingRoles, Decision: d.Explanation(),
	}
	if d.PlacesTenant() {
		l.AppServerID, l.DBShardID, l.RedisPoolID = d.AppServerID, d.DBShardID, d.RedisPoolID
		l.PoolSiteID, l.InfraProvider = d.PoolSiteID, string(d.InfraProvider)
	}
	return l
}
