// Package quota decides what an org may use: the dimensions, the limits of each tier, and
// the verdict on a change (quotas-and-fairness). It is pure.
package quota

import (
	_ "embed" // the tiers
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/prego/prego"
	"github.com/prego/prego/org"
)

// Dimension is one thing that is limited (quotas-and-fairness, "Quota dimensions").
type Dimension string

// The dimensions. All are counts or bytes, except MaxTotalCPURequest, which is CPUs, and MaxMonthlyEuros.
const (
	MaxInstances           Dimension = "max_instances"
	MaxTotalMemoryBytes    Dimension = "max_total_memory_bytes"
	MaxTotalCPURequest     Dimension = "max_total_cpu_request"
	MaxEnvs                Dimension = "max_envs"
	MaxApps                Dimension = "max_apps"
	MaxRoutes              Dimension = "max_routes"
	MaxPublicPorts         Dimension = "max_public_ports"
	MaxIPv4Allocations     Dimension = "max_ipv4_allocations"
	MaxHostnames           Dimension = "max_hostnames"
	MaxVolumes             Dimension = "max_volumes"
	MaxTotalVolumeBytes    Dimension = "max_total_volume_bytes"
	MaxVolumeAttachments   Dimension = "max_volume_attachments"
	MaxSnapshotsPerVolume  Dimension = "max_snapshots_per_volume" // running, of the volume with the most
	MaxRestoreJobs         Dimension = "max_restore_jobs"         // queued and running, of tenants and volumes
	MaxLogStreams          Dimension = "max_log_streams"
	MaxExecSessions        Dimension = "max_exec_sessions"
	MaxExecSessionsPerHour Dimension = "max_exec_sessions_per_hour"
	MaxServers             Dimension = "max_servers"       // of its tenants with a server each
	MaxMonthlyEuros        Dimension = "max_monthly_euros" // list prices, added up in whole cents
)

// Dimensions lists every dimension in the order of display and checks.
func Dimensions() []Dimension {
	return []Dimension{
		MaxInstances, MaxTotalMemoryBytes, MaxTotalCPURequest, MaxEnvs, MaxApps, MaxRoutes, MaxPublicPorts, MaxIPv4Allocations, MaxHostnames,
		MaxVolumes, MaxTotalVolumeBytes, MaxVolumeAttachments, MaxSnapshotsPerVolume, MaxRestoreJobs, MaxLogStreams, MaxExecSessions, MaxExecSessionsPerHour,
		MaxServers, MaxMonthlyEuros,
	}
}

// Valid reports whether d is a known dimension.
func (d Dimension) Valid() bool {
	return slices.Contains(Dimensions(), d)
}

// Whole reports whether d is counted in integers.
func (d Dimension) Whole() bool { return d != MaxTotalCPURequest && d != MaxMonthlyEuros }

// Cents is an amount of money as a change of MaxMonthlyEuros.
func Cents(cents int64) Delta { return Delta{MaxMonthlyEuros, float64(cents) / centsPerEuro} }

const centsPerEuro = 100

//go:embed tiers.json
var tiersJSON []byte

// Tiers are the limits of each tier.
type Tiers map[prego.Tier]map[Dimension]float64

// DefaultTiers are the built-in limits.
func DefaultTiers() Tiers {
	t, err := ParseTiers(tiersJSON)
	if err != nil {
		panic("quota: the embedded tiers are valid: " + err.Error())
	}
	return t
}

// ParseTiers reads tiers as JSON, and rejects incomplete ones: a missing limit would be
// a decision that no person made.
func ParseTiers(text []byte) (Tiers, error) {
	var t Tiers
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, err
	}
	return t, t.Validate()
}

// Validate rejects tiers with missing or impossible limits.
func (t Tiers) Validate() error {
	for tier := range t {
		if !tier.Valid() {
			return fmt.Errorf("%q is not a tier", tier)
		}
	}
	for _, tier := range prego.Tiers() {
		for _, d := range Dimensions() {
			v, ok := t[tier][d]
			if !ok {
				return fmt.Errorf("tier %s has no %s", tier, d)
			}
			if err := ValidateLimit(d, v); err != nil {
				return fmt.Errorf("tier %s: %w", tier, err)
			}
		}
		for d := range t[tier] {
			if !d.Valid() {
				return fmt.Errorf("tier %s: %q is not a dimension", tier, d)
			}
		}
	}
	return nil
}

// maxLimit is the largest limit: a float64 can't distinguish the next integer from its successor, so
// a larger limit could not be detected.
const maxLimit = 1<<53 - 1

// ValidateLimit rejects limits that are negative, fractional where d is whole, or too
// large to be exact.
func ValidateLimit(d Dimension, v float64) error {
	switch {
	case !d.Valid():
		return prego.Invalid("dimension", "must be one of the dimensions of GET /v1/orgs/{id}/quotas")
	case math.IsNaN(v) || v < 0:
		return prego.Invalid("limit", "must not be negative")
	case v > maxLimit:
		return prego.Invalid("limit", "must be at most 9007199254740991")
	case d.Whole() && v != math.Trunc(v):
		return prego.Invalid("limit", "must be a whole number for "+string(d))
	case d == MaxMonthlyEuros && v*centsPerEuro != math.Round(v*centsPerEuro):
		return prego.Invalid("limit", "must be in whole cents, such as 99.50, for max_monthly_euros")
	}
	return nil
}

// Delta is a change of a dimension's usage; negative values give back.
type Delta struct {
	Dimension Dimension
	By        float64
}

// Limit is an effective limit and its source.
type Limit struct {
	Value    float64
	Override bool // whether the org overrides its tier's limit
}

// Effective returns the effective limit: the org's own if it has one, else its tier's.
func (t Tiers) Effective(tier prego.Tier, own map[Dimension]float64, d Dimension) Limit {
	if v, ok := own[d]; ok {
		return Limit{Value: v, Override: true}
	}
	return Limit{Value: t[tier][d]}
}

// hair is the tolerated rounding error: CPUs are sums of fractions.
const hair = 1e-6

// Above reports whether taking by more goes above a limit. Giving back never does.
func Above(usage, by, limit float64) bool { return by > 0 && usage+by > limit+hair }

// Check returns nil, or the first delta that would go above its limit. Deltas that take
// nothing are never rejected.
func Check(deltas []Delta, usage map[Dimension]float64, limit func(Dimension) float64) *org.QuotaExceeded {
	for _, d := range deltas {
		if Above(usage[d.Dimension], d.By, limit(d.Dimension)) {
			return &org.QuotaExceeded{Dimension: string(d.Dimension), Limit: limit(d.Dimension), CurrentUsage: usage[d.Dimension], RequestedDelta: d.By}
		}
	}
	return nil
}
