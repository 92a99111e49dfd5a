package tenant

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/server"
)

// PutOrgRequest creates or changes an org.
type PutOrgRequest struct {
	ParentOrgID *prego.OrgID `json:"parent_org_id"` // nil keeps the parent, "" removes it
	Tier        prego.Tier   `json:"tier"`          // "" keeps the tier; a new org gets the configured one
}

// DecisionRecord is one row of allocation_snapshots (placement-policy §7).
type DecisionRecord struct {
	SnapshotID   int64 `json:"id"`
	TenantID     prego.TenantID
	AllocationID *int64 // nil if no place was found
	Outcome      string // placed, on_demand, awaiting_capacity, hold, new_server, rejected
	Code         string
	Algorithm    string          // as recorded: one_tenant_one_server_v1 if that policy applied
	Decision     json.RawMessage // placement.Explanation
	Policy       json.RawMessage
	Actor        string
	CreatedAt    time.Time `json:"at"`
}

// PlacementOverride is the body of POST /internal/placement-overrides
// (placement-policy §8).
type PlacementOverride struct {
	TenantID         prego.TenantID    `json:"tenant_id"`
	ForceAppServerID prego.ServerID    `json:"force_app_server_id,omitempty"`
	ForceDBShardID   prego.ShardID     `json:"force_db_shard_id,omitempty"`
	ForceRedisPoolID prego.RedisPoolID `json:"force_redis_pool_id,omitempty"`
	Reason           string            `json:"reason"`
	// IgnoreConstraint forces a server that violates the tenant's constraint.
	IgnoreConstraint bool `json:"ignore_constraint,omitempty"`
}

// Validate checks the override's own fields.
func (o *PlacementOverride) Validate() error {
	if err := prego.ValidateTenantID(o.TenantID); err != nil {
		return err
	}
	if o.ForceAppServerID == "" && o.ForceDBShardID == "" && o.ForceRedisPoolID == "" {
		return prego.Invalid("force_app_server_id", "or force_db_shard_id or force_redis_pool_id is required")
	}
	for _, f := range []struct{ field, id string }{
		{"force_app_server_id", string(o.ForceAppServerID)},
		{"force_db_shard_id", string(o.ForceDBShardID)},
		{"force_redis_pool_id", string(o.ForceRedisPoolID)},
	} {
		if f.id != "" && prego.ValidateServerID(f.id) != nil {
			return prego.Invalid(f.field, "must be an id: lower-case letters, digits and inner hyphens")
		}
	}
	if o.Reason = strings.TrimSpace(o.Reason); o.Reason == "" || len(o.Reason) > 500 {
		return prego.Invalid("reason", "is required, at most 500 characters")
	}
	return nil
}

// SitePool counts the pre-built sites of one app server.
type SitePool struct {
	ServerID    prego.ServerID
	Region      prego.Region
	Role        prego.Role
	Status      server.Status
	TenantCount int
	Available   int
	Reserved    int // claimed or being built
	Assigned    int
	Failed      int
	Draining    int
	// OldestBuild is when the oldest unfinished build started.
	OldestBuild *time.Time `json:"oldest_build_at"`
}

// SitePoolPolicy sets how many sites are kept per app server for a plan tier.
type SitePoolPolicy struct {
	Plan         prego.Plan
	LowWatermark int
	Target       int
	SLOSeconds   int // to get from below the watermark back to the target
}

// WarmPool is the warm server pool of a region and plan tier. Claimable counts the
// servers that are ready for a tenant.
type WarmPool struct {
	Region    prego.Region
	Plan      prego.Plan
	Target    int
	Claimable int
	Building  int // being provisioned, or without a site so far
	UpdatedBy string
	UpdatedAt time.Time
}

// ScalingEvent is one row of scaling_events (placement-policy §3).
type ScalingEvent struct {
	EventID    int64 `json:"id"`
	Region     prego.Region
	Role       prego.Role
	Trigger    string // scale_out_required, threshold, warm_pool
	Waiting    int
	Requested  int
	Made       int
	ServerIDs  []prego.ServerID
	WorkflowID string
	Message    string
	CreatedAt  time.Time
	FinishedAt *time.Time
}
