// Package config is the one place where the process environment is read. Every
// setting is a field with its variable, default and meaning; a secret can come
// from a file by naming it in the variable with the suffix _FILE.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/prego/prego"
	"github.com/prego/prego/cost"
	"github.com/prego/prego/ops"
	"github.com/prego/prego/org"
	"github.com/prego/prego/org/quota"
	"github.com/prego/prego/placement"
	"github.com/prego/prego/server"
	"github.com/prego/prego/tenant"
)

// Config holds the settings of all processes; each reads the parts that it needs.
type Config struct {
	// Environment names this installation. It is part of names and labels at the
	// provider, so two installations can share a project.
	Environment string `env:"PREGO_ENV" envDefault:"dev"`
	LogLevel    string `env:"PREGO_LOG_LEVEL" envDefault:"info"`  // debug, info, warn, error
	LogFormat   string `env:"PREGO_LOG_FORMAT" envDefault:"json"` // json or console
	DatabaseURL string `env:"DATABASE_URL"`                       // Postgres; DATABASE_URL_FILE for a file
	MaxDBConns  int32  `env:"PREGO_DB_MAX_CONNS" envDefault:"16"` // per process
	KeysDir     string `env:"PREGO_KEYS_DIR" envDefault:"./keys"` // CAs and signing keys, see docs/configuration.md
	MetricsAddr string `env:"PREGO_METRICS_LISTEN"`               // worker and agentgw serve /metrics and /healthz here; empty disables it

	Traces    Traces
	Temporal  Temporal `envPrefix:"TEMPORAL_"`
	Relay     Relay    `envPrefix:"PREGO_RELAY_"`
	API       API      `envPrefix:"PREGO_API_"`
	Gateway   Gateway  `envPrefix:"PREGO_AGENTGW_"`
	Edge      Edge
	Worker    Worker
	Hetzner   Hetzner
	Placement Placement
	Tenants   Tenants
	Quotas    Quotas
	Workloads Workloads
	ACME      ACME
	Names     Names
	Backups   Backups
	Releases  Releases
	Moves     Moves
	Keep      Keep
	Costs     Costs
}

// Costs says how what is billed is counted.
type Costs struct {
	Every time.Duration `env:"PREGO_COSTS_EVERY" envDefault:"15m"` // how often
	// What no provider of servers tells.
	BackupGBMonth  string `env:"PREGO_BACKUP_PRICE_GB_MONTH"`                  // net price of a GB (10^9 bytes) in object storage, a month; empty: not known
	BackupCurrency string `env:"PREGO_BACKUP_PRICE_CURRENCY" envDefault:"EUR"` // the currency that the provider of servers bills in
}

func (c Costs) check(bad func(name, why string)) {
	if c.Every < time.Minute || c.Every > time.Hour {
		bad("PREGO_COSTS_EVERY", "must be 1m to 1h: whose an hour is, is seen once in it")
	}
	if _, ok := cost.Parse(c.BackupGBMonth); !ok && c.BackupGBMonth != "" {
		bad("PREGO_BACKUP_PRICE_GB_MONTH", "must be a decimal number, such as 0.0059")
	}
	if len(c.BackupCurrency) != 3 || c.BackupCurrency != strings.ToUpper(c.BackupCurrency) {
		bad("PREGO_BACKUP_PRICE_CURRENCY", "must be a currency's code, such as EUR")
	}
}

// Keep says for how long rows are kept that grow in number with use; 0 is forever.
type Keep struct {
	Events    time.Duration `env:"PREGO_KEEP_EVENTS" envDefault:"9600h"`    // of orgs
	Feed      time.Duration `env:"PREGO_KEEP_FEED" envDefault:"720h"`       // the feed of events
	Commands  time.Duration `env:"PREGO_KEEP_COMMANDS" envDefault:"9600h"`  // records of commands on hosts
	Sessions  time.Duration `env:"PREGO_KEEP_SESSIONS" envDefault:"720h"`   // exec sessions and log streams that are over; at least 2h, since quotas count the last hour's
	Instances time.Duration `env:"PREGO_KEEP_INSTANCES" envDefault:"720h"`  // that are stopped; at least 1h
	Keys      time.Duration `env:"PREGO_KEEP_KEYS" envDefault:"168h"`       // idempotency keys and the answers to their requests; at least 24h
	Decisions time.Duration `env:"PREGO_KEEP_DECISIONS" envDefault:"2160h"` // inputs of placement decisions, for replays; at least 1h
	Samples   time.Duration `env:"PREGO_KEEP_SAMPLES" envDefault:"25h"`     // what hosts reported, every five minutes; at least 1h, and the last day is shown
	Audit     time.Duration `env:"PREGO_KEEP_AUDIT" envDefault:"0"`         // entries of the audit; at least 720h
	SealAudit time.Duration `env:"PREGO_AUDIT_SEAL_EVERY" envDefault:"10s"` // how often new entries of the audit are sealed
	Every     time.Duration `env:"PREGO_PRUNE_EVERY" envDefault:"1m"`       // how often what is older is looked for
	Batch     int           `env:"PREGO_PRUNE_BATCH" envDefault:"1000"`     // rows deleted in one transaction
}

// keepCreationKeys outlasts every client that repeats a request until it is answered: repeated later, what
// created a tenant, an app or an env is refused because of its name.
const keepCreationKeys = 90 * 24 * time.Hour

// Of returns how long rows of each table are kept.
func (k Keep) Of() map[ops.PrunedTable]time.Duration {
	return map[ops.PrunedTable]time.Duration{
		ops.PrunedEvents: k.Events, ops.PrunedFeed: k.Feed, ops.PrunedCommands: k.Commands, ops.PrunedSessions: k.Sessions, ops.PrunedInstances: k.Instances,
		ops.PrunedKeys: k.Keys, ops.PrunedCreationKeys: keepCreationKeys,
		ops.PrunedDecisions: k.Decisions, ops.PrunedSamples: k.Samples,
		ops.PrunedAudit: k.Audit,
	}
}

func (k Keep) check(bad func(name, why string)) {
	for name, v := range map[string]struct{ is, least time.Duration }{
		"PREGO_KEEP_EVENTS": {k.Events, time.Hour}, "PREGO_KEEP_FEED": {k.Feed, time.Hour}, "PREGO_KEEP_COMMANDS": {k.Commands, time.Hour}, "PREGO_KEEP_SESSIONS": {k.Sessions, 2 * time.Hour},
		"PREGO_KEEP_INSTANCES": {k.Instances, time.Hour}, "PREGO_KEEP_KEYS": {k.Keys, 24 * time.Hour},
		"PREGO_KEEP_DECISIONS": {k.Decisions, time.Hour}, "PREGO_KEEP_SAMPLES": {k.Samples, time.Hour},
		"PREGO_KEEP_AUDIT": {k.Audit, 720 * time.Hour},
	} {
		if v.is != 0 && v.is < v.least {
			bad(name, fmt.Sprintf("must be at least %s, or 0 for forever", v.least))
		}
	}
	if k.SealAudit <= 0 || k.SealAudit > time.Minute {
		bad("PREGO_AUDIT_SEAL_EVERY", "must be above 0 and at most 1m")
	}
	if k.Every <= 0 || k.Batch < 1 || k.Batch > 100_000 {
		bad("PREGO_PRUNE_EVERY and PREGO_PRUNE_BATCH", "must be above 0, the second at most 100000")
	}
}

// Moves says how tenants are moved to other app servers.
type Moves struct {
	CopyFor   time.Duration `env:"PREGO_MOVE_COPY_TIMEOUT" envDefault:"6h"`   // for copying a site while it serves
	FreezeFor time.Duration `env:"PREGO_MOVE_FREEZE_TIMEOUT" envDefault:"2m"` // for how long a site may be read-only before its move is undone
	Grace     time.Duration `env:"PREGO_MOVE_GRACE" envDefault:"10m"`         // for how long the server before keeps what it had of a site
	PassOn    time.Duration `env:"PREGO_MOVE_PASS_ON" envDefault:"6m"`        // for how long edges of the network before pass on, at least: names are known for 5 min
	Tenants   int           `env:"PREGO_DRAIN_TENANTS" envDefault:"2"`        // that are moved away from one server at once when it is drained
}

// Backups says which object storage tenants' backups are kept in. Without an endpoint they stay
// on their hosts.
type Backups struct {
	Endpoint          string        `env:"PREGO_BACKUP_ENDPOINT"`                                             // URL of storage that speaks S3, such as https://fsn1.your-objectstorage.com; empty: backups stay on their hosts
	Bucket            string        `env:"PREGO_BACKUP_BUCKET"`                                               // it must exist, without versioning
	Region            string        `env:"PREGO_BACKUP_REGION" envDefault:"us-east-1"`                        // as the storage calls it
	AccessKey         string        `env:"PREGO_BACKUP_ACCESS_KEY"`                                           // PREGO_BACKUP_ACCESS_KEY_FILE for a file
	SecretKey         string        `env:"PREGO_BACKUP_SECRET_KEY"`                                           // PREGO_BACKUP_SECRET_KEY_FILE for a file
	PathStyle         bool          `env:"PREGO_BACKUP_PATH_STYLE"`                                           // true: the bucket is in the path of URLs, not in the host's name
	PartBytes         int64         `env:"PREGO_BACKUP_PART_BYTES" envDefault:"16777216"`                     // of an upload, at least 5 MiB; larger for sites above 10,000 parts
	URLTTL            time.Duration `env:"PREGO_BACKUP_URL_TTL" envDefault:"20m"`                             // how long a URL that a host gets is valid
	UploadFor         time.Duration `env:"PREGO_BACKUP_UPLOAD_TIMEOUT" envDefault:"6h"`                       // of an upload or a download, with all retries
	PerHost           int           `env:"PREGO_BACKUP_PER_HOST" envDefault:"1"`                              // at once
	PerRegion         int           `env:"PREGO_BACKUP_PER_REGION" envDefault:"20"`                           // at once
	LateAfter         time.Duration `env:"PREGO_BACKUP_LATE_AFTER" envDefault:"2h"`                           // a scheduled backup that is not stored so long after its time is late
	FinalFor          time.Duration `env:"PREGO_BACKUP_FINAL_FOR" envDefault:"2160h"`                         // how long the last backup of a deleted tenant is kept
	RestoreLost       []string      `env:"PREGO_RESTORE_LOST" envDefault:"trial,starter,business,enterprise"` // plans whose tenants are restored elsewhere at once when their server is lost; none for none
	DrillEvery        time.Duration `env:"PREGO_DRILL_EVERY" envDefault:"504h"`                               // how often the newest backup of each tenant and each volume is restored to see whether it can be; 0 for never
	DrillRetry        time.Duration `env:"PREGO_DRILL_RETRY" envDefault:"24h"`                                // when a tenant or a volume is drilled again whose drill failed
	DrillsAtOnce      int           `env:"PREGO_DRILLS_AT_ONCE" envDefault:"2"`                               // drills under way; at most one on a server
	RestoreLostAtOnce int           `env:"PREGO_RESTORE_LOST_AT_ONCE" envDefault:"16"`                        // tenants
	SweepEvery        time.Duration `env:"PREGO_BACKUP_SWEEP_EVERY" envDefault:"5s"`                          // how often backups that are due are looked for
	CheckEvery        time.Duration `env:"PREGO_BACKUP_COMPARE_EVERY" envDefault:"1h"`                        // how often the bucket is compared with the rows
}

// LostPlans are the plans whose tenants are restored elsewhere without being asked.
func (b Backups) LostPlans() ([]prego.Plan, error) {
	if len(b.RestoreLost) == 1 && b.RestoreLost[0] == "none" {
		return nil, nil
	}
	plans := make([]prego.Plan, 0, len(b.RestoreLost))
	for _, name := range b.RestoreLost {
		if !prego.Plan(name).Valid() {
			return nil, errors.New("must be none, or a list of trial, starter, business, enterprise")
		}
		plans = append(plans, prego.Plan(name))
	}
	return plans, nil
}

// Names says which DNS zone this installation keeps, and how orgs' names are looked up.
type Names struct {
	Zone          string        `env:"PREGO_DNS_ZONE"`                            // zone of the provider's project that PREGO_SITE_DOMAIN is in; empty keeps no records
	Resolvers     []string      `env:"PREGO_DNS_RESOLVERS"`                       // host:port of the resolvers that orgs' names are looked up with; empty for those of /etc/resolv.conf
	Authoritative bool          `env:"PREGO_DNS_AUTHORITATIVE" envDefault:"true"` // ask the name servers of a name's own zone for its TXT record
	Every         time.Duration `env:"PREGO_NAMES_EVERY" envDefault:"2s"`         // how often records and names are looked at
	CompareEvery  time.Duration `env:"PREGO_DNS_COMPARE_EVERY" envDefault:"1h"`   // how often the zone is compared with the rows
	Retry         time.Duration `env:"PREGO_DOMAIN_RETRY" envDefault:"30s"`       // before a name whose TXT record was not found is looked up again; doubles
	RetryMax      time.Duration `env:"PREGO_DOMAIN_RETRY_MAX" envDefault:"1h"`    // the longest of these pauses
	Recheck       time.Duration `env:"PREGO_DOMAIN_RECHECK" envDefault:"6h"`      // how often a verified name is looked up
	Grace         time.Duration `env:"PREGO_DOMAIN_GRACE" envDefault:"72h"`       // how long a verified name is served after its TXT record went away
}

// Rules are the rules that orgs' names are looked up by.
func (n Names) Rules() org.DomainRules {
	return org.DomainRules{Retry: n.Retry, RetryMax: n.RetryMax, Recheck: n.Recheck, Grace: n.Grace}
}

// Relay is how the API reaches hosts: through a worker (docs/adr/0015).
type Relay struct {
	Listen string `env:"LISTEN" envDefault:"127.0.0.1:8446"`      // at the worker
	URL    string `env:"URL" envDefault:"https://127.0.0.1:8446"` // at the API; a name may be that of several workers
}

// Quotas says what orgs may use (quotas-and-fairness). API and worker need the same.
type Quotas struct {
	TiersFile   string     `env:"PREGO_TIERS_FILE"`                         // limits of each tier, see docs/quotas.md; empty for the built-in ones
	DefaultTier prego.Tier `env:"PREGO_DEFAULT_TIER" envDefault:"free"`     // of new orgs that don't choose one: free, paid, enterprise
	MetricsOrgs int        `env:"PREGO_QUOTA_METRICS_ORGS" envDefault:"50"` // orgs with metrics of their own: those nearest to a limit
}

// Tiers returns the configured limits, or the built-in ones.
func (q Quotas) Tiers() (quota.Tiers, error) {
	if q.TiersFile == "" {
		return quota.DefaultTiers(), nil
	}
	b, err := os.ReadFile(q.TiersFile)
	if err != nil {
		return nil, fmt.Errorf("PREGO_TIERS_FILE: %w", err)
	}
	t, err := quota.ParseTiers(b)
	if err != nil {
		return nil, fmt.Errorf("PREGO_TIERS_FILE %s: %w", q.TiersFile, err)
	}
	return t, nil
}

// Placement says how tenants are placed (placement-policy §2.4, §2.5). API and
// worker need the same.
type Placement struct {
	Shared            string  `env:"PREGO_SHARED_PLACEMENT_LEGACY"`             // 1, true or yes: tenants share servers; else each gets its own
	Algorithm         string  `env:"PLACEMENT_ALGORITHM" envDefault:"best_fit"` // best_fit, first_fit, round_robin, new_server
	MemoryPctMax      float64 `env:"PLACEMENT_MEMORY_PCT_MAX" envDefault:"70"`  // servers at or above it get no new tenants
	MaxTenantsPerNode int     `env:"PLACEMENT_MAX_TENANTS_PER_NODE" envDefault:"20"`
	CPUPctMax         float64 `env:"PLACEMENT_CPU_PCT_MAX" envDefault:"85"`          // the same for what agents measure; 0 disables
	WorkerSlotsPctMax float64 `env:"PLACEMENT_WORKER_SLOTS_PCT_MAX" envDefault:"90"` // busy background workers
	DBDiskPctMax      float64 `env:"PLACEMENT_DB_DISK_PCT_MAX" envDefault:"80"`      // shards with a disk at or above it get no new tenants
	RedisMemoryPctMax float64 `env:"PLACEMENT_REDIS_MEMORY_PCT_MAX" envDefault:"90"` // Redis pools
	Weights           string  `env:"PLACEMENT_WEIGHTS"`                              // JSON with app_load, app_count, db_load, redis_load, affinity, app_cpu, app_worker_slots, db_disk, redis_memory
	EmptyPool         string  `env:"PLACEMENT_EMPTY_POOL" envDefault:"on_demand"`    // or hold: wait for a refill
	SameShard         bool    `env:"PLACEMENT_SAME_SHARD_AFFINITY"`                  // prefer the shard of the parent org

	AdviserURL    string        `env:"PLACEMENT_ADVISER_URL"`                       // a service that may propose a place among candidates that pass; empty for none
	AdviserToken  string        `env:"PLACEMENT_ADVISER_TOKEN"`                     // its bearer token; PLACEMENT_ADVISER_TOKEN_FILE for a file
	AdviserWithin time.Duration `env:"PLACEMENT_ADVISER_WITHIN" envDefault:"500ms"` // how long a placement waits for it
}

// Tenants configures tenants' lifecycle, their sites, and the growth of the fleet.
type Tenants struct {
	SiteDomain      string        `env:"PREGO_SITE_DOMAIN" envDefault:"sites.prego.internal"` // tenants' sites are <slug>.<domain>
	TrialPeriod     time.Duration `env:"PREGO_TRIAL_PERIOD" envDefault:"336h"`                // active on plan trial → grace_period; 0 means never
	GracePeriod     time.Duration `env:"PREGO_GRACE_PERIOD" envDefault:"168h"`                // grace_period → terminated; 0 means never
	Retention       time.Duration `env:"PREGO_RETENTION" envDefault:"720h"`                   // terminated → data_purged; 0 means never
	CapacityWait    time.Duration `env:"PREGO_TENANT_CAPACITY_WAIT" envDefault:"2h"`          // how long a tenant waits for a place
	CapacityPoll    time.Duration `env:"PREGO_TENANT_POLL" envDefault:"30s"`                  // how often a waiting run checks by itself
	SiteTimeout     time.Duration `env:"PREGO_SITE_TIMEOUT" envDefault:"10m"`                 // for bench new-site and backup
	CommandTimeout  time.Duration `env:"PREGO_COMMAND_TIMEOUT" envDefault:"60s"`              // for other commands on hosts
	AppTimeout      time.Duration `env:"PREGO_APP_TIMEOUT" envDefault:"10m"`                  // for installing one app
	StepTimeout     time.Duration `env:"PREGO_SITE_STEP_TIMEOUT" envDefault:"20m"`            // for a step on a host with all its retries
	ReserveFor      time.Duration `env:"PREGO_SITE_RESERVATION" envDefault:"30m"`             // how long a claimed site waits for a silent run
	FailureMemory   time.Duration `env:"PREGO_BUILD_FAILURE_MEMORY" envDefault:"15m"`         // how long a failed build keeps its server from being tried
	RefillParallel  int           `env:"PREGO_REFILL_PARALLEL" envDefault:"2"`                // builds at once per host
	ScaleOutMaxRun  int           `env:"PREGO_SCALE_OUT_MAX_PER_RUN" envDefault:"10"`         // servers per round
	ScaleOutMaxRole int           `env:"PREGO_SCALE_OUT_MAX_PER_REGION" envDefault:"100"`     // servers of a role per region
	ThresholdPct    float64       `env:"PREGO_SCALE_OUT_THRESHOLD_PCT" envDefault:"70"`       // percent of capacity used above which the fleet grows ahead of need; 0 for never
	SweepEvery      time.Duration `env:"PREGO_TENANT_SWEEP_EVERY" envDefault:"15s"`
	OrphanQuiet     time.Duration `env:"PREGO_TENANT_QUIET" envDefault:"1m"` // how long a row may be unchanged before its run is checked

	StorageEvery   time.Duration `env:"PREGO_STORAGE_EVERY" envDefault:"1h"`       // between two measurements of a site
	StorageSweep   time.Duration `env:"PREGO_STORAGE_SWEEP_EVERY" envDefault:"1m"` // how often sites that are due are measured
	StorageBatch   int           `env:"PREGO_STORAGE_BATCH" envDefault:"500"`      // sites measured per run
	StorageHosts   int           `env:"PREGO_STORAGE_HOSTS" envDefault:"8"`        // hosts measured at once
	StorageWarnPct float64       `env:"PREGO_STORAGE_WARN_PCT" envDefault:"90"`    // percent of the quota at which a site is warned
	StorageGrace   time.Duration `env:"PREGO_STORAGE_GRACE" envDefault:"24h"`      // after so long above 100 % a site becomes read-only
	StorageHardPct float64       `env:"PREGO_STORAGE_HARD_PCT" envDefault:"120"`   // percent of the quota at which a site becomes read-only at once
}

// ACME says which authority issues certificates for host names, and what it allows.
type ACME struct {
	Directory   string            `env:"PREGO_ACME_DIRECTORY"`                          // URL of the authority's directory, for Let's Encrypt https://acme-v02.api.letsencrypt.org/directory; empty: no certificates are asked for
	Contact     string            `env:"PREGO_ACME_CONTACT"`                            // e-mail address of the account
	Account     string            `env:"PREGO_ACME_ACCOUNT" envDefault:"1"`             // which of the accounts at the authority; another name makes another account
	EABKeyID    string            `env:"PREGO_ACME_EAB_KEY_ID"`                         // of an external account binding, which some authorities ask for
	EABKey      string            `env:"PREGO_ACME_EAB_KEY"`                            // its key, base64url; PREGO_ACME_EAB_KEY_FILE for a file
	CAFile      string            `env:"PREGO_ACME_CA_FILE"`                            // PEM of the roots that are trusted for the authority's own HTTPS; empty for the system's
	HTTPPort    int               `env:"PREGO_ACME_HTTP_PORT" envDefault:"80"`          // where names are asked for the answers to challenges; another one for tests only
	Resolver    string            `env:"PREGO_ACME_RESOLVER"`                           // name server that names are looked up at before the authority does, as address:port; empty for the system's
	ServeWithin time.Duration     `env:"PREGO_ACME_SERVE_WITHIN" envDefault:"10m"`      // how long answers to challenges may take to be seen
	IssueWithin time.Duration     `env:"PREGO_ACME_ISSUE_WITHIN" envDefault:"10m"`      // how long the authority may take
	Poll        time.Duration     `env:"PREGO_ACME_POLL" envDefault:"2s"`               // between two looks at answers or an order, growing to 30s
	AskEvery    time.Duration     `env:"PREGO_ACME_ASK_EVERY" envDefault:"12h"`         // how often the authority is asked when to renew a certificate, unless it says how often
	SweepEvery  time.Duration     `env:"PREGO_CERTIFICATE_SWEEP_EVERY" envDefault:"5s"` // how often certificates that are due are looked for
	Orders      tenant.IssueLimit `env:"PREGO_ACME_LIMIT_ORDERS" envDefault:"300/3h"`   // orders of the account; 0 for no limit
	Domain      tenant.IssueLimit `env:"PREGO_ACME_LIMIT_DOMAIN" envDefault:"50/168h"`  // certificates of a registered domain
	Duplicates  tenant.IssueLimit `env:"PREGO_ACME_LIMIT_NAMES" envDefault:"5/168h"`    // certificates for exactly the same names
	Failures    tenant.IssueLimit `env:"PREGO_ACME_LIMIT_FAILURES" envDefault:"5/1h"`   // failed validations of a name
}

// Limits returns the authority's rate limits.
func (a ACME) Limits() tenant.IssueLimits {
	return tenant.IssueLimits{Orders: a.Orders, Domain: a.Domain, Duplicates: a.Duplicates, Failures: a.Failures}
}

// Storage returns the rules for sites above their storage quota.
func (t Tenants) Storage() tenant.StorageRules {
	return tenant.StorageRules{WarnPct: t.StorageWarnPct, HardPct: t.StorageHardPct, Grace: t.StorageGrace}
}

// Workloads configures process groups and their instances.
type Workloads struct {
	Retry      time.Duration `env:"PREGO_GROUP_RETRY" envDefault:"30s"` // wait before the next try of groups that the quota rejected or that have not converged
	SweepEvery time.Duration `env:"PREGO_GROUP_SWEEP_EVERY" envDefault:"15s"`
	// PatchCron is when servers that lack security updates, or a reboot, are patched by themselves, as a cron
	// expression of five fields in UTC; empty: never. PatchFor is for how long.
	PatchCron      string        `env:"PREGO_PATCH_WINDOW"`
	PatchFor       time.Duration `env:"PREGO_PATCH_WINDOW_FOR" envDefault:"4h"`
	PatchEvery     time.Duration `env:"PREGO_PATCH_EVERY" envDefault:"1m"`
	RebalanceEvery time.Duration `env:"PREGO_REBALANCE_EVERY" envDefault:"2s"`
	Quiet          time.Duration `env:"PREGO_GROUP_QUIET" envDefault:"1m"`      // how long a group's row may be unchanged before its run is checked
	SweepHosts     int           `env:"PREGO_GROUP_SWEEP_HOSTS" envDefault:"8"` // servers whose instances one sweep checks
	DrainServers   int           `env:"PREGO_DRAIN_FLEET_LIMIT" envDefault:"1"` // servers of a fleet that are emptied at once
	DrainInstances int           `env:"PREGO_DRAIN_ORG_LIMIT" envDefault:"10"`  // instances of an org that are moved off such servers at once
}

// Policy returns the configured placement policy.
func (p Placement) Policy() (placement.Policy, error) {
	out := placement.DefaultPolicy()
	switch strings.ToLower(p.Shared) {
	case "1", "true", "yes":
		out.Mode = tenant.ModeShared
	case "", "0", "false", "no":
	default:
		return out, fmt.Errorf("PREGO_SHARED_PLACEMENT_LEGACY must be 1, true, yes or unset, not %q", p.Shared)
	}
	out.Algorithm, out.MemoryPctMax, out.MaxTenantsPerNode = placement.Algorithm(p.Algorithm), p.MemoryPctMax, p.MaxTenantsPerNode
	out.MeasuredLimits = tenant.MeasuredLimits{
		CPUPctMax: p.CPUPctMax, WorkerSlotsPctMax: p.WorkerSlotsPctMax, DBDiskPctMax: p.DBDiskPctMax, RedisMemoryPctMax: p.RedisMemoryPctMax,
	}
	out.EmptyPool, out.SameShard = placement.EmptyPool(p.EmptyPool), p.SameShard
	if p.Weights != "" {
		dec := json.NewDecoder(strings.NewReader(p.Weights))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&out.Weights); err != nil {
			return out, fmt.Errorf("PLACEMENT_WEIGHTS: %w", err)
		}
	}
	if err := out.Validate(); err != nil {
		return out, fmt.Errorf("placement settings (PLACEMENT_…): %w", err)
	}
	return out, nil
}

// Periods returns the configured lifecycle periods.
func (t Tenants) Periods() tenant.LifecyclePeriods {
	return tenant.LifecyclePeriods{Trial: t.TrialPeriod, Grace: t.GracePeriod, Retention: t.Retention}
}

var siteDomain = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// Releases configure how releases of the stack are rolled out.
type Releases struct {
	Sites       int           `env:"PREGO_RELEASE_SITES" envDefault:"40"`       // offline at once
	OrgSites    int           `env:"PREGO_RELEASE_ORG_SITES" envDefault:"10"`   // of one org
	ServerSites int           `env:"PREGO_RELEASE_SERVER_SITES" envDefault:"2"` // worked on at once on a server
	AnswerFor   time.Duration `env:"PREGO_RELEASE_ANSWER_TIMEOUT" envDefault:"2m"`
	Agents      int           `env:"PREGO_AGENT_RELEASE_SERVERS" envDefault:"20"` // that try a release of the agent at once
	AgentWithin time.Duration `env:"PREGO_AGENT_RELEASE_WITHIN" envDefault:"15m"` // until a server counts as silent
}

// Traces says where traces of requests are sent to. Without an endpoint there are none.
type Traces struct {
	Endpoint string  `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`       // base URL of a receiver that speaks OTLP over HTTP, such as http://127.0.0.1:4318; empty: no traces
	Ratio    float64 `env:"PREGO_TRACES_RATIO" envDefault:"1"` // the part of requests that is traced, from 0 to 1; those of a caller that is traced are traced as the caller's
}

func (t Traces) check(bad func(name, why string)) {
	if t.Endpoint != "" {
		if u, err := url.Parse(t.Endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			bad("OTEL_EXPORTER_OTLP_ENDPOINT", "must be a URL such as http://127.0.0.1:4318")
		}
	}
	if !(t.Ratio >= 0 && t.Ratio <= 1) {
		bad("PREGO_TRACES_RATIO", "must be from 0 to 1")
	}
}

// Temporal says where the Temporal server is.
type Temporal struct {
	Address   string `env:"ADDRESS" envDefault:"127.0.0.1:7233"`
	Namespace string `env:"NAMESPACE" envDefault:"default"`
	TaskQueue string `env:"TASK_QUEUE" envDefault:"prego"`
	UIURL     string `env:"UI_URL"` // base of links to runs, for example http://127.0.0.1:8233
}

// API configures `prego api`.
type API struct {
	Listen        string        `env:"LISTEN" envDefault:"127.0.0.1:8080"`
	PublicURL     string        `env:"PUBLIC_URL" envDefault:"http://127.0.0.1:8080"` // base URL for callers
	JWTIssuer     string        `env:"JWT_ISSUER" envDefault:"prego"`
	JWTAudience   string        `env:"JWT_AUDIENCE" envDefault:"prego-api"`
	JWKSURL       string        `env:"JWKS_URL"`                        // also trust these keys; discovered if OIDC_ISSUER is set
	OIDCIssuer    string        `env:"OIDC_ISSUER"`                     // accept tokens of this issuer
	RolesClaim    string        `env:"ROLES_CLAIM" envDefault:"role"`   // claim that holds operator or viewer
	RatePerSecond float64       `env:"RATE_PER_SECOND" envDefault:"50"` // per caller
	RateBurst     int           `env:"RATE_BURST" envDefault:"100"`     // per caller
	DrainTimeout  time.Duration `env:"DRAIN_TIMEOUT" envDefault:"20s"`
}

// Gateway configures `prego agentgw`.
type Gateway struct {
	Listen        string        `env:"LISTEN" envDefault:"127.0.0.1:8443"`
	URL           string        `env:"URL" envDefault:"https://127.0.0.1:8443"` // base URL for hosts
	ServerName    string        `env:"SERVER_NAME" envDefault:"agentgw.prego.internal"`
	AgentBinary   string        `env:"AGENT_BINARY" envDefault:"./bin/prego-agent"` // served to booting hosts, pinned by its digest
	AgentReleases string        `env:"AGENT_RELEASES"`                              // directory of agents named by their SHA-256, for updates; empty: only AgentBinary
	CheckSource   bool          `env:"CHECK_SOURCE" envDefault:"true"`              // handshakes must come from the address assigned by the provider
	OTLPEndpoint  string        `env:"OTLP_ENDPOINT"`                               // base URL for forwarded metrics; empty: count and drop
	Flush         time.Duration `env:"FLUSH" envDefault:"250ms"`                    // how long heartbeats are batched
	FlushRows     int           `env:"FLUSH_ROWS" envDefault:"500"`
	Heartbeat     time.Duration `env:"HEARTBEAT" envDefault:"30s"` // sent to agents
	TokenTTL      time.Duration `env:"TOKEN_TTL" envDefault:"1h"`  // of agents' JWTs; at least 2m
	CertTTL       time.Duration `env:"CERT_TTL" envDefault:"24h"`  // of agents' certificates
	DrainTimeout  time.Duration `env:"DRAIN_TIMEOUT" envDefault:"20s"`
	// Below the 30 s that tokens tolerate.
	ClockTolerance time.Duration `env:"CLOCK_TOLERANCE" envDefault:"20s"` // how far a host's clock may differ: above that, handshakes are rejected, and heartbeats report it
}

// Edge configures what edges serve; the gateway tells them.
type Edge struct {
	MaxBody int64         `env:"PREGO_EDGE_MAX_BODY" envDefault:"536870912"` // bytes of a request to a site; 0 is no limit
	HSTS    time.Duration `env:"PREGO_EDGE_HSTS" envDefault:"0s"`            // Strict-Transport-Security of sites; 0s sends none
	Within  time.Duration `env:"PREGO_EDGE_WAIT" envDefault:"10s"`           // how long what is to stop waits for edges to send no more requests to it
	Settle  time.Duration `env:"PREGO_EDGE_SETTLE" envDefault:"1s"`          // how long requests that were under way then have to end
}

// Worker configures `prego worker`.
type Worker struct {
	MasterKey         string        `env:"PREGO_MASTER_KEY"`         // hex, 32 bytes or more; derives bootstrap tokens and encrypts registry passwords; PREGO_MASTER_KEY_FILE for a file
	MasterKeysEarlier []string      `env:"PREGO_MASTER_KEY_EARLIER"` // earlier master keys, for decryption; also _FILE
	CatalogFile       string        `env:"PREGO_CATALOG_FILE"`
	GoldenImages      bool          `env:"PREGO_GOLDEN_IMAGES" envDefault:"true"`         // create servers from the current verified image, if there is one
	ImageKeep         int           `env:"PREGO_IMAGE_KEEP" envDefault:"2"`               // verified images of a kind to keep, including the current one
	ImageBuildTimeout time.Duration `env:"PREGO_IMAGE_BUILD_TIMEOUT" envDefault:"30m"`    // how long the builder of an image may take
	ImageContainers   []string      `env:"PREGO_IMAGE_CONTAINERS" envDefault:"stack"`     // container images to pull into an image: stack, none, or a list
	CatalogEvery      time.Duration `env:"PREGO_CATALOG_EVERY" envDefault:"1h"`           // how often the provider's catalog is read
	EgressCIDRs       []string      `env:"PREGO_EGRESS_CIDRS"`                            // source address for calls to hosts
	EgressGrace       time.Duration `env:"PREGO_EGRESS_GRACE" envDefault:"10m"`           // how long addresses that are no longer set are still let in at least
	NetworkRange      string        `env:"PREGO_NETWORK_RANGE" envDefault:"10.64.0.0/10"` // private range from which networks of servers are cut, a /24 each; "none" for no networks
	AgentPort         int           `env:"PREGO_AGENT_PORT" envDefault:"443"`
	PeersEvery        time.Duration `env:"PREGO_PEERS_EVERY" envDefault:"1s"` // how often what may reach a server is made anew where it changed
	DockerPort        int           `env:"PREGO_DOCKER_PORT" envDefault:"2376"`
	BootstrapTokenTTL time.Duration `env:"PREGO_BOOTSTRAP_TOKEN_TTL" envDefault:"15m"` // at most 15m
	MaxRetries        int           `env:"PREGO_PROVISION_RETRIES" envDefault:"2"`     // new servers after the first one failed
	CapacityWait      time.Duration `env:"PREGO_CAPACITY_WAIT" envDefault:"1h"`        // how long a server waits for stock, quota or a provider that fails
	FleetWait         time.Duration `env:"PREGO_FLEET_CAPACITY_WAIT" envDefault:"10m"` // the same for a fleet's server, before another region is tried
	FleetParallel     int           `env:"PREGO_FLEET_PARALLEL" envDefault:"10"`       // servers of one fleet action at once
	FleetPoll         time.Duration `env:"PREGO_FLEET_POLL" envDefault:"5s"`           // how often a draining server is checked
	CapacityPoll      time.Duration `env:"PREGO_CAPACITY_POLL" envDefault:"30s"`
	CreateBackoff     time.Duration `env:"PREGO_CREATE_BACKOFF" envDefault:"2s"`  // delay before the second of three create calls; doubles. Failed tries are followed by pauses of 15 and 60 times it
	AmbiguousGrace    time.Duration `env:"PREGO_AMBIGUOUS_GRACE" envDefault:"3m"` // how long a create of unknown outcome may still complete
	ContainerTimeout  time.Duration `env:"PREGO_CONTAINER_TIMEOUT" envDefault:"5m"`
	ContainerImage    string        `env:"PREGO_CONTAINER_IMAGE" envDefault:"frappe/erpnext:v15"` // ${bench_image} in the stack
	StackFile         string        `env:"PREGO_STACK_FILE"`                                      // what runs on servers, see docs/containers.md; empty for the built-in stack
	DriftHosts        int           `env:"PREGO_DRIFT_HOSTS_PER_RUN" envDefault:"8"`              // servers whose containers one reconciliation checks; 0 for none
	UserDataLimit     int           `env:"PREGO_USER_DATA_LIMIT"`                                 // bytes; less than the provider's limit to test the two-stage boot
	BootPatience      time.Duration `env:"PREGO_BOOT_PATIENCE" envDefault:"4m"`                   // how long a booting host retries a failing step; less than its boot may take
	ReconcileEvery    time.Duration `env:"PREGO_RECONCILE_EVERY" envDefault:"5m"`
	OrphanAge         time.Duration `env:"PREGO_ORPHAN_AGE" envDefault:"45m"` // more than the longest provisioning attempt
	OrphanMaxPerRun   int           `env:"PREGO_ORPHAN_MAX_PER_RUN" envDefault:"10"`
	OrphanBreakerPct  float64       `env:"PREGO_ORPHAN_BREAKER_PCT" envDefault:"5"` // share of the fleet above which nothing is destroyed
	SweepEvery        time.Duration `env:"PREGO_SWEEP_EVERY" envDefault:"10s"`      // how often silent agents are looked for; what was accepted and not begun, twice as often
	NetEvery          time.Duration `env:"PREGO_SWEEP_NET_EVERY" envDefault:"15m"`  // how often each sweep runs although no worker found anything to do
	NetworkEvery      time.Duration `env:"PREGO_NETWORK_EVERY" envDefault:"30s"`    // how often servers without a private address are looked for
	DegradedAfter     time.Duration `env:"PREGO_DEGRADED_AFTER" envDefault:"60s"`
	FailedAfter       time.Duration `env:"PREGO_FAILED_AFTER" envDefault:"300s"`
	FreezePct         float64       `env:"PREGO_FREEZE_PCT" envDefault:"20"`                 // share of the fleet falling silent at once above which nobody is marked
	FreezeMinServers  int           `env:"PREGO_FREEZE_MIN_SERVERS" envDefault:"10"`         // smaller fleets never freeze
	Queues            []string      `env:"PREGO_WORKER_QUEUES"`                              // task queues to serve: main, long, periodic; all when empty
	Concurrency       int           `env:"PREGO_WORKER_CONCURRENCY" envDefault:"64"`         // short steps at once
	LongConcurrency   int           `env:"PREGO_WORKER_LONG_CONCURRENCY" envDefault:"64"`    // steps at once that wait for containers, copies, backups and builds
	SweepConcurrency  int           `env:"PREGO_WORKER_PERIODIC_CONCURRENCY" envDefault:"4"` // sweeps and reconciliations at once
	OrgWork           int           `env:"PREGO_ORG_WORK_LIMIT" envDefault:"32"`             // long steps of an org at once: instances being started, snapshots, restores
	StopTimeout       time.Duration `env:"PREGO_WORKER_STOP_TIMEOUT" envDefault:"20s"`
}

// Hetzner says in which project servers are created.
type Hetzner struct {
	Endpoint string `env:"HCLOUD_ENDPOINT" envDefault:"https://api.hetzner.cloud/v1"`
	Token    string `env:"HCLOUD_TOKEN"` // HCLOUD_TOKEN_FILE for a file
	// Simulated allows hosts without public addresses.
	Simulated bool          `env:"PREGO_SIMULATED"`
	Timeout   time.Duration `env:"PREGO_HCLOUD_TIMEOUT" envDefault:"30s"` // of one request
	Poll      time.Duration `env:"PREGO_HCLOUD_POLL" envDefault:"1s"`     // of the shared action poller
}

// FromEnvironment reads the process's environment.
func FromEnvironment() (Config, error) {
	vars := env.ToMap(os.Environ())
	return From(vars)
}

// Secrets are the settings that can be read from a file, named by the variable with the
// suffix _FILE.
func Secrets() []string {
	return []string{"DATABASE_URL", "HCLOUD_TOKEN", "PREGO_MASTER_KEY", "PREGO_MASTER_KEY_EARLIER", "PLACEMENT_ADVISER_TOKEN", "PREGO_ACME_EAB_KEY", "PREGO_BACKUP_ACCESS_KEY", "PREGO_BACKUP_SECRET_KEY"}
}

// From reads settings from vars, as FromEnvironment does from the process. It reports
// all errors at once.
func From(vars map[string]string) (Config, error) {
	merged := make(map[string]string, len(vars))
	var errs []error
	maps.Copy(merged, vars)
	for _, k := range Secrets() {
		file := vars[k+"_FILE"]
		if file == "" {
			continue
		}
		if vars[k] != "" {
			errs = append(errs, fmt.Errorf("set %s or %s_FILE, not both", k, k))
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s_FILE: %w", k, err))
			continue
		}
		merged[k] = strings.TrimSpace(string(b))
	}
	cfg, err := env.ParseAsWithOptions[Config](env.Options{Environment: merged})
	if err != nil {
		errs = append(errs, err)
		return Config{}, errors.Join(errs...)
	}
	errs = append(errs, cfg.check()...)
	return cfg, errors.Join(errs...)
}

// Networks is the range from which private networks are cut, "" for none.
func (w Worker) Networks() string {
	if w.NetworkRange == "none" {
		return ""
	}
	return w.NetworkRange
}

func (c Config) check() []error {
	var errs []error
	bad := func(name, why string) { errs = append(errs, fmt.Errorf("%s %s", name, why)) }
	if err := prego.ValidateEnvironment(c.Environment); err != nil {
		errs = append(errs, fmt.Errorf("PREGO_ENV: %w", err))
	}
	if c.Worker.BootstrapTokenTTL <= 0 || c.Worker.BootstrapTokenTTL > 15*time.Minute {
		bad("PREGO_BOOTSTRAP_TOKEN_TTL", "must be above 0 and at most 15m (direct-provisioning §4)")
	}
	if g := c.Gateway; g.TokenTTL < 2*time.Minute || g.CertTTL < 15*time.Minute {
		bad("PREGO_AGENTGW_TOKEN_TTL and PREGO_AGENTGW_CERT_TTL", "must be at least 2m and 15m: agents renew at half of a life, with a heartbeat, and certificates are valid from 5 minutes before they are issued")
	}
	if c.Worker.MaxRetries < 0 || c.Worker.MaxRetries > 2 {
		bad("PREGO_PROVISION_RETRIES", "must be 0, 1 or 2 (direct-provisioning §3)")
	}
	for _, cidr := range c.Worker.EgressCIDRs {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			bad("PREGO_EGRESS_CIDRS", fmt.Sprintf("must be a comma-separated list of CIDRs, not %q", cidr))
		}
	}
	if r := c.Worker.Networks(); r != "" {
		if _, err := server.NetworkRange(r, c.Hetzner.Simulated); err != nil {
			errs = append(errs, fmt.Errorf("PREGO_NETWORK_RANGE: %w", err))
		}
	}
	for name, port := range map[string]int{"PREGO_AGENT_PORT": c.Worker.AgentPort, "PREGO_DOCKER_PORT": c.Worker.DockerPort} {
		if port < 1 || port > 65535 {
			bad(name, "must be 1 to 65535")
		}
	}
	if _, err := c.Placement.Policy(); err != nil {
		errs = append(errs, err)
	}
	t := c.Tenants
	for name, d := range map[string]time.Duration{
		"PREGO_TRIAL_PERIOD": t.TrialPeriod, "PREGO_GRACE_PERIOD": t.GracePeriod, "PREGO_RETENTION": t.Retention,
	} {
		if d < 0 {
			bad(name, "must not be negative")
		}
	}
	for name, d := range map[string]time.Duration{
		"PREGO_TENANT_CAPACITY_WAIT": t.CapacityWait, "PREGO_TENANT_POLL": t.CapacityPoll, "PREGO_SITE_TIMEOUT": t.SiteTimeout, "PREGO_COMMAND_TIMEOUT": t.CommandTimeout,
		"PREGO_APP_TIMEOUT": t.AppTimeout, "PREGO_SITE_STEP_TIMEOUT": t.StepTimeout, "PREGO_SITE_RESERVATION": t.ReserveFor, "PREGO_TENANT_SWEEP_EVERY": t.SweepEvery,
	} {
		if d <= 0 {
			bad(name, "must be above 0")
		}
	}
	if t.RefillParallel < 1 || t.ScaleOutMaxRun < 1 || t.ScaleOutMaxRole < 1 {
		bad("PREGO_REFILL_PARALLEL, PREGO_SCALE_OUT_MAX_PER_RUN and PREGO_SCALE_OUT_MAX_PER_REGION", "must be at least 1")
	}
	if t.ThresholdPct < 0 || t.ThresholdPct > 100 {
		bad("PREGO_SCALE_OUT_THRESHOLD_PCT", "must be 0 for never, or up to 100")
	}
	if t.StorageEvery <= 0 || t.StorageSweep <= 0 || t.StorageBatch < 1 || t.StorageHosts < 1 {
		bad("PREGO_STORAGE_EVERY, PREGO_STORAGE_SWEEP_EVERY, PREGO_STORAGE_BATCH and PREGO_STORAGE_HOSTS", "must be above 0")
	}
	if t.StorageWarnPct <= 0 || t.StorageWarnPct > 100 || t.StorageHardPct < 100 || t.StorageGrace < 0 {
		bad("PREGO_STORAGE_WARN_PCT, PREGO_STORAGE_HARD_PCT and PREGO_STORAGE_GRACE", "must be above 0 and at most 100, at least 100, and not negative")
	}
	if t.FailureMemory < 0 || t.OrphanQuiet < 0 {
		bad("PREGO_BUILD_FAILURE_MEMORY and PREGO_TENANT_QUIET", "must not be negative")
	}
	if !c.Quotas.DefaultTier.Valid() {
		bad("PREGO_DEFAULT_TIER", "must be free, paid or enterprise")
	}
	if c.Quotas.MetricsOrgs < 0 || c.Quotas.MetricsOrgs > 1000 {
		bad("PREGO_QUOTA_METRICS_ORGS", "must be 0 to 1000")
	}
	if !siteDomain.MatchString(t.SiteDomain) {
		bad("PREGO_SITE_DOMAIN", "must be a domain name")
	}
	if a := c.ACME; a.ServeWithin <= 0 || a.IssueWithin <= 0 || a.Poll <= 0 || a.AskEvery < time.Minute || a.SweepEvery <= 0 {
		bad("PREGO_ACME_SERVE_WITHIN, PREGO_ACME_ISSUE_WITHIN, PREGO_ACME_POLL, PREGO_ACME_ASK_EVERY and PREGO_CERTIFICATE_SWEEP_EVERY", "must be above 0, the fourth at least 1m")
	}
	if b := c.Backups; b.Endpoint != "" && (b.Bucket == "" || b.AccessKey == "" || b.SecretKey == "") {
		bad("PREGO_BACKUP_ENDPOINT", "needs PREGO_BACKUP_BUCKET, PREGO_BACKUP_ACCESS_KEY and PREGO_BACKUP_SECRET_KEY")
	}
	if b := c.Backups; b.PartBytes < 5<<20 || b.PartBytes > 64<<20 {
		bad("PREGO_BACKUP_PART_BYTES", "must be 5 MiB to 64 MiB")
	}
	if c.Edge.Settle < 500*time.Millisecond {
		bad("PREGO_EDGE_SETTLE", "must be at least 500ms: so long an edge keeps connections by which requests still reach what has left its document")
	}
	if b := c.Backups; b.URLTTL < time.Minute || b.URLTTL > 24*time.Hour {
		bad("PREGO_BACKUP_URL_TTL", "must be 1m to 24h")
	}
	if b := c.Backups; b.UploadFor <= 0 || b.LateAfter <= 0 || b.FinalFor <= 0 || b.SweepEvery <= 0 || b.CheckEvery <= 0 || b.PerHost < 1 || b.PerRegion < 1 {
		bad("PREGO_BACKUP_UPLOAD_TIMEOUT, PREGO_BACKUP_LATE_AFTER, PREGO_BACKUP_FINAL_FOR, PREGO_BACKUP_SWEEP_EVERY, PREGO_BACKUP_COMPARE_EVERY, PREGO_BACKUP_PER_HOST and PREGO_BACKUP_PER_REGION", "must be above 0")
	}
	if _, err := c.Backups.LostPlans(); err != nil {
		bad("PREGO_RESTORE_LOST", err.Error())
	}
	if b := c.Backups; b.DrillEvery < 0 || b.DrillRetry <= 0 || b.DrillsAtOnce < 1 {
		bad("PREGO_DRILL_EVERY, PREGO_DRILL_RETRY and PREGO_DRILLS_AT_ONCE", "must be above 0; PREGO_DRILL_EVERY may be 0")
	}
	if c.Backups.RestoreLostAtOnce < 1 {
		bad("PREGO_RESTORE_LOST_AT_ONCE", "must be above 0")
	}
	if r := c.Releases; r.Sites < 1 || r.OrgSites < 1 || r.ServerSites < 1 || r.AnswerFor <= 0 || r.Agents < 1 || r.AgentWithin <= 0 {
		bad("PREGO_RELEASE_SITES, PREGO_RELEASE_ORG_SITES, PREGO_RELEASE_SERVER_SITES, PREGO_RELEASE_ANSWER_TIMEOUT, PREGO_AGENT_RELEASE_SERVERS and PREGO_AGENT_RELEASE_WITHIN", "must be above 0")
	}
	if _, err := server.NewPatchWindow(c.Workloads.PatchCron, c.Workloads.PatchFor); err != nil {
		bad("PREGO_PATCH_WINDOW and PREGO_PATCH_WINDOW_FOR", err.Error())
	}
	if c.Workloads.PatchEvery <= 0 {
		bad("PREGO_PATCH_EVERY", "must be above 0")
	}
	c.Keep.check(bad)
	c.Costs.check(bad)
	c.Traces.check(bad)
	if m := c.Moves; m.CopyFor <= 0 || m.FreezeFor <= 0 || m.Grace < 0 || m.PassOn < 0 || m.Tenants < 1 {
		bad("PREGO_MOVE_COPY_TIMEOUT, PREGO_MOVE_FREEZE_TIMEOUT and PREGO_DRAIN_TENANTS", "must be above 0, and PREGO_MOVE_GRACE and PREGO_MOVE_PASS_ON not below")
	}
	if c.ACME.HTTPPort < 1 || c.ACME.HTTPPort > 65535 {
		bad("PREGO_ACME_HTTP_PORT", "must be 1 to 65535")
	}
	if c.ACME.Directory != "" && !strings.HasPrefix(c.ACME.Directory, "https://") {
		bad("PREGO_ACME_DIRECTORY", "must be a URL that begins with https://")
	}
	if c.ACME.Account == "" || strings.ContainsAny(c.ACME.Account, "/ ") {
		bad("PREGO_ACME_ACCOUNT", "must be a name without / and spaces")
	}
	n := c.Names
	if n.Zone != "" && !prego.Within(t.SiteDomain, n.Zone) {
		bad("PREGO_DNS_ZONE", "must be PREGO_SITE_DOMAIN or a domain above it")
	}
	if n.Every <= 0 || n.CompareEvery <= 0 || n.Retry <= 0 || n.RetryMax < n.Retry || n.Recheck <= 0 || n.Grace < 0 {
		bad("PREGO_NAMES_EVERY, PREGO_DNS_COMPARE_EVERY, PREGO_DOMAIN_RETRY, PREGO_DOMAIN_RETRY_MAX, PREGO_DOMAIN_RECHECK and PREGO_DOMAIN_GRACE", "must be above 0, the third at most the fourth, the last not negative")
	}
	if c.Worker.FleetWait <= 0 || c.Worker.FleetPoll <= 0 || c.Worker.FleetParallel < 1 || c.Worker.FleetParallel > 100 {
		bad("PREGO_FLEET_CAPACITY_WAIT, PREGO_FLEET_POLL and PREGO_FLEET_PARALLEL", "must be above 0, the last at most 100")
	}
	if c.Worker.ImageKeep < 1 || c.Worker.ImageKeep > 20 || c.Worker.ImageBuildTimeout <= 0 {
		bad("PREGO_IMAGE_KEEP and PREGO_IMAGE_BUILD_TIMEOUT", "must be 1 to 20, and above 0")
	}
	if c.Worker.NetEvery <= 0 {
		bad("PREGO_SWEEP_NET_EVERY", "must be above 0")
	}
	if c.Worker.CatalogEvery < time.Minute {
		bad("PREGO_CATALOG_EVERY", "must be at least 1m")
	}
	if c.Worker.DegradedAfter <= 0 || c.Worker.FailedAfter <= c.Worker.DegradedAfter {
		bad("PREGO_FAILED_AFTER", "must be above PREGO_DEGRADED_AFTER, and both above 0")
	}
	return errs
}

// Catalog returns the configured catalog, or the default one.
func (w Worker) Catalog() (server.Catalog, error) {
	c := server.DefaultCatalog()
	if w.CatalogFile != "" {
		b, err := os.ReadFile(w.CatalogFile)
		if err != nil {
			return c, fmt.Errorf("PREGO_CATALOG_FILE: %w", err)
		}
		dec := json.NewDecoder(strings.NewReader(string(b)))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&c); err != nil {
			return c, fmt.Errorf("PREGO_CATALOG_FILE %s: %w", w.CatalogFile, err)
		}
	}
	return c, c.Validate()
}
