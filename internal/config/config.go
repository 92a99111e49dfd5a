// Package config is the one place where the process environment is read. Every
// setting is a field with its variable, default and meaning; a secret can come
// from a file by naming it in the variable with the suffix _FILE. A field without a variable is no setting: only
// tests have a reason to change it.
package config

import (
	"cmp"
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
	// Pace is for tests and demos: a factor on every period, pause, grace and wait that the environment doesn't set.
	// Timeouts of work and retentions keep their length.
	Pace        Pace   `env:"PREGO_PACE" envDefault:"1"`
	LogLevel    string `env:"PREGO_LOG_LEVEL" envDefault:"info"`  // debug, info, warn, error
	LogFormat   string `env:"PREGO_LOG_FORMAT" envDefault:"json"` // json or console
	DatabaseURL string `env:"DATABASE_URL"`                       // Postgres; DATABASE_URL_FILE for a file
	MaxDBConns  int32  `env:"PREGO_DB_MAX_CONNS" envDefault:"16"` // connections of a process
	KeysDir     string `env:"PREGO_KEYS_DIR" envDefault:"./keys"` // CAs and signing keys, see docs/keys.md
	MetricsAddr string `env:"PREGO_METRICS_LISTEN"`               // each process serves /metrics, /healthz and /readyz here, without a login; empty disables it

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

	Unknown []string // variables of the environment that look like settings and are none
}

// Costs are prices that no provider of servers has in its catalog.
type Costs struct {
	// Backups is the net price of a GB (10^9 bytes) in object storage for a month, with its currency; empty: unknown.
	Backups string `env:"PREGO_BACKUP_PRICE_GB_MONTH"`
}

// BackupGBMonth is the price of backups: an amount and the code of its currency.
func (c Costs) BackupGBMonth() (amount, currency string) {
	amount, currency, _ = strings.Cut(c.Backups, " ")
	return amount, cmp.Or(currency, "EUR")
}

func (c Costs) check(bad func(name, why string)) {
	amount, currency := c.BackupGBMonth()
	if _, ok := cost.Parse(amount); !ok && amount != "" || len(currency) != 3 || currency != strings.ToUpper(currency) {
		bad("PREGO_BACKUP_PRICE_GB_MONTH", "must be a decimal number with a currency, such as 0.0059 EUR")
	}
}

// Retentions that no operator has a reason to change.
const (
	keepSessions     = 30 * 24 * time.Hour // a month's disputes about a shell; quotas need the last hour's
	keepInstances    = 30 * 24 * time.Hour // as keepSessions: stopped instances, for questions about a crash
	keepCreationKeys = 90 * 24 * time.Hour // outlasts every client that repeats a request; the name refuses a later one
	keepDecisions    = 90 * 24 * time.Hour // a quarter's placements, for replays of another policy
	keepSamples      = 25 * time.Hour      // the last day is shown
	keepRates        = time.Hour           // every rate is full again
	keepCredentials  = 30 * 24 * time.Hour // after they expired, as keepSessions: who could get in; the audit has all of them
)

// Keep is how long rows are kept that grow in number with use, as the law or a contract of an operator has it; 0 is
// forever.
type Keep struct {
	Events   time.Duration `env:"PREGO_KEEP_EVENTS" envDefault:"9600h"`   // events of orgs
	Feed     time.Duration `env:"PREGO_KEEP_FEED" envDefault:"720h"`      // the feed of events
	Commands time.Duration `env:"PREGO_KEEP_COMMANDS" envDefault:"9600h"` // records of commands on hosts
	Keys     time.Duration `env:"PREGO_KEEP_KEYS" envDefault:"168h"`      // idempotency keys and the answers to their requests; at least 24h
	Audit    time.Duration `env:"PREGO_KEEP_AUDIT" envDefault:"0"`        // entries of the audit; at least 720h
}

// Of returns how long rows of each table are kept.
func (k Keep) Of() map[ops.PrunedTable]time.Duration {
	return map[ops.PrunedTable]time.Duration{
		ops.PrunedEvents: k.Events, ops.PrunedFeed: k.Feed, ops.PrunedCommands: k.Commands, ops.PrunedSessions: keepSessions,
		ops.PrunedInstances: keepInstances, ops.PrunedKeys: k.Keys, ops.PrunedCreationKeys: keepCreationKeys,
		ops.PrunedDecisions: keepDecisions, ops.PrunedSamples: keepSamples, ops.PrunedAudit: k.Audit,
		ops.PrunedRates:       keepRates,
		ops.PrunedCredentials: keepCredentials, ops.PrunedLinks: keepCredentials,
	}
}

func (k Keep) check(bad func(name, why string)) {
	for name, v := range map[string]struct{ is, least time.Duration }{
		"PREGO_KEEP_EVENTS": {k.Events, time.Hour}, "PREGO_KEEP_FEED": {k.Feed, time.Hour}, "PREGO_KEEP_COMMANDS": {k.Commands, time.Hour},
		"PREGO_KEEP_KEYS": {k.Keys, 24 * time.Hour}, "PREGO_KEEP_AUDIT": {k.Audit, 720 * time.Hour},
	} {
		if v.is != 0 && v.is < v.least {
			bad(name, fmt.Sprintf("must be at least %s, or 0 for forever", v.least))
		}
	}
}

// Moves configures moves of tenants to other app servers.
type Moves struct {
	FreezeFor time.Duration `env:"PREGO_MOVE_FREEZE_TIMEOUT" envDefault:"2m"`    // for how long a site may be read-only before its move is undone
	Grace     time.Duration `env:"PREGO_MOVE_GRACE" envDefault:"10m" pace:"yes"` // how long the previous server keeps the data of a site
	PassOn    time.Duration `envDefault:"6m" pace:"yes"`                         // for how long edges of the network before pass on, at least: names are known for 5 min
	Tenants   int           `env:"PREGO_DRAIN_TENANTS" envDefault:"2"`           // tenants that move away concurrently from a server that is drained
}

// Backups names the object storage of tenants' backups. Without an endpoint they stay on their hosts.
type Backups struct {
	Endpoint     string        `env:"PREGO_BACKUP_ENDPOINT"`                                             // URL of storage that speaks S3, such as https://fsn1.your-objectstorage.com; empty: backups stay on their hosts
	Bucket       string        `env:"PREGO_BACKUP_BUCKET"`                                               // bucket of backups; it must exist, without versioning
	Region       string        `env:"PREGO_BACKUP_REGION" envDefault:"us-east-1"`                        // region, as the storage calls it
	AccessKey    string        `env:"PREGO_BACKUP_ACCESS_KEY"`                                           // access key of the storage; PREGO_BACKUP_ACCESS_KEY_FILE for a file
	SecretKey    string        `env:"PREGO_BACKUP_SECRET_KEY"`                                           // secret key of the storage; PREGO_BACKUP_SECRET_KEY_FILE for a file
	PathStyle    bool          `env:"PREGO_BACKUP_PATH_STYLE"`                                           // true: the bucket is in the path of URLs, not in the host's name
	PartBytes    int64         `envDefault:"16777216"`                                                   // of an upload, at least 5 MiB; larger for sites above 10,000 parts
	UploadFor    time.Duration `env:"PREGO_BACKUP_UPLOAD_TIMEOUT" envDefault:"6h"`                       // time limit of an upload or a download, with all retries
	FinalFor     time.Duration `env:"PREGO_BACKUP_FINAL_FOR" envDefault:"2160h"`                         // how long the last backup of a deleted tenant is kept
	RestoreLost  []string      `env:"PREGO_RESTORE_LOST" envDefault:"trial,starter,business,enterprise"` // plans whose tenants are restored elsewhere when their server is lost; none for none
	DrillEvery   time.Duration `env:"PREGO_DRILL_EVERY" envDefault:"504h" pace:"yes"`                    // how often the newest backup of each tenant and each volume is restored to see whether it can be; 0 for never
	DrillRetry   time.Duration `envDefault:"24h" pace:"yes"`                                             // when a tenant or a volume is drilled again whose drill failed
	DrillsAtOnce int           `env:"PREGO_DRILLS_AT_ONCE" envDefault:"2"`                               // drills under way; at most one on a server
	SweepEvery   time.Duration `envDefault:"5s" pace:"yes"`                                              // how often backups that are due are looked for
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

// Names configures the DNS zone of this installation and lookups of orgs' names.
type Names struct {
	Zone          string        `env:"PREGO_DNS_ZONE"`                            // zone of the provider's project that PREGO_SITE_DOMAIN is in; empty keeps no records
	Resolvers     []string      `env:"PREGO_DNS_RESOLVERS"`                       // host:port of the resolvers for orgs' names and certificates; empty: the resolvers of /etc/resolv.conf
	Authoritative bool          `env:"PREGO_DNS_AUTHORITATIVE" envDefault:"true"` // ask the name servers of a name's own zone for its TXT record
	Every         time.Duration `envDefault:"2s" pace:"yes"`                      // how often records and names are looked at
	CompareEvery  time.Duration `envDefault:"15m" pace:"yes"`                     // how often the zone is compared with the rows
	Retry         time.Duration `envDefault:"30s" pace:"yes"`                     // before a name whose TXT record was not found is looked up again; doubles
	RetryMax      time.Duration `envDefault:"1h" pace:"yes"`                      // the longest of these pauses
	Recheck       time.Duration `envDefault:"6h" pace:"yes"`                      // how often a verified name is looked up
	Grace         time.Duration `envDefault:"72h" pace:"yes"`                     // how long a verified name is served after its TXT record went away
}

// Rules are the rules that orgs' names are looked up by.
func (n Names) Rules() org.DomainRules {
	return org.DomainRules{Retry: n.Retry, RetryMax: n.RetryMax, Recheck: n.Recheck, Grace: n.Grace}
}

// Relay is how the API reaches hosts: through a worker (docs/adr/0015).
type Relay struct {
	Listen string `env:"LISTEN" envDefault:"127.0.0.1:8446"`      // address at the worker
	URL    string `env:"URL" envDefault:"https://127.0.0.1:8446"` // where the API reaches workers; a name may be that of several workers
}

// Quotas limits what orgs use (quotas-and-fairness). API and worker need the same.
type Quotas struct {
	TiersFile   string     `env:"PREGO_TIERS_FILE"`                     // limits of each tier, see docs/quotas.md; empty for the built-in ones
	DefaultTier prego.Tier `env:"PREGO_DEFAULT_TIER" envDefault:"free"` // tier of new orgs that don't choose one: free, paid, enterprise
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

// Placement configures placement (placement-policy §2.4, §2.5). API and
// worker need the same.
type Placement struct {
	Shared            string  `env:"PREGO_SHARED_PLACEMENT_LEGACY"`                  // 1, true or yes: tenants share servers; else each gets its own
	Algorithm         string  `env:"PLACEMENT_ALGORITHM" envDefault:"best_fit"`      // best_fit, first_fit, round_robin, new_server
	MemoryPctMax      float64 `env:"PLACEMENT_MEMORY_PCT_MAX" envDefault:"70"`       // servers at or above it get no new tenants
	MaxTenantsPerNode int     `env:"PLACEMENT_MAX_TENANTS_PER_NODE" envDefault:"20"` // servers with this many get no new tenants
	CPUPctMax         float64 `env:"PLACEMENT_CPU_PCT_MAX" envDefault:"85"`          // the same for measured CPU; 0 disables
	WorkerSlotsPctMax float64 `env:"PLACEMENT_WORKER_SLOTS_PCT_MAX" envDefault:"90"` // the same for busy background workers; 0 disables
	DBDiskPctMax      float64 `env:"PLACEMENT_DB_DISK_PCT_MAX" envDefault:"80"`      // shards with a disk at or above it get no new tenants
	RedisMemoryPctMax float64 `env:"PLACEMENT_REDIS_MEMORY_PCT_MAX" envDefault:"90"` // Redis pools at or above it get no new tenants
	Weights           string  `env:"PLACEMENT_WEIGHTS"`                              // JSON with app_load, app_count, db_load, redis_load, affinity, app_cpu, app_worker_slots, db_disk, redis_memory
	EmptyPool         string  `env:"PLACEMENT_EMPTY_POOL" envDefault:"on_demand"`    // when no pre-built site is ready: on_demand builds one, hold waits for a refill
	SameShard         bool    `env:"PLACEMENT_SAME_SHARD_AFFINITY"`                  // prefer the shard of the parent org

	AdviserURL   string `env:"PLACEMENT_ADVISER_URL"`   // a service that may propose a place among candidates that pass; empty for none
	AdviserToken string `env:"PLACEMENT_ADVISER_TOKEN"` // bearer token of the adviser; PLACEMENT_ADVISER_TOKEN_FILE for a file
}

// Tenants configures tenants' lifecycle, their sites, and the growth of the fleet.
type Tenants struct {
	SiteDomain      string        `env:"PREGO_SITE_DOMAIN" envDefault:"sites.prego.internal"`   // tenants' sites are <slug>.<domain>
	TrialPeriod     time.Duration `env:"PREGO_TRIAL_PERIOD" envDefault:"336h"`                  // active on plan trial → grace_period; 0 means never
	GracePeriod     time.Duration `env:"PREGO_GRACE_PERIOD" envDefault:"168h"`                  // grace_period → terminated; 0 means never
	Retention       time.Duration `env:"PREGO_RETENTION" envDefault:"720h"`                     // terminated → data_purged; 0 means never
	CapacityWait    time.Duration `env:"PREGO_TENANT_CAPACITY_WAIT" envDefault:"2h" pace:"yes"` // how long a tenant waits for a place
	CapacityPoll    time.Duration `envDefault:"30s" pace:"yes"`                                 // how often a waiting run checks by itself
	SiteTimeout     time.Duration `env:"PREGO_SITE_TIMEOUT" envDefault:"10m"`                   // time limit of bench new-site and of backups
	CommandTimeout  time.Duration `envDefault:"60s"`                                            // for other commands on hosts
	FailureMemory   time.Duration `envDefault:"15m" pace:"yes"`                                 // how long a failed build keeps its server from being tried
	ScaleOutMaxRole int           `env:"PREGO_SCALE_OUT_MAX_PER_REGION" envDefault:"100"`       // servers of a role per region
	ThresholdPct    float64       `env:"PREGO_SCALE_OUT_THRESHOLD_PCT" envDefault:"70"`         // percent of capacity used above which the fleet grows ahead of need; 0 for never
	SweepEvery      time.Duration `envDefault:"15s" pace:"yes"`
	OrphanQuiet     time.Duration `envDefault:"1m" pace:"yes"` // how long a row may be unchanged before its run is checked

	StorageEvery time.Duration `envDefault:"1h" pace:"yes"`                            // between two measurements of a site
	StorageSweep time.Duration `envDefault:"1m" pace:"yes"`                            // how often sites that are due are measured
	StorageGrace time.Duration `env:"PREGO_STORAGE_GRACE" envDefault:"24h" pace:"yes"` // after so long above 100 % a site becomes read-only
}

// ACME configures the authority that issues certificates for host names, and its limits.
type ACME struct {
	Directory   string            `env:"PREGO_ACME_DIRECTORY"`                         // URL of the authority's directory, for Let's Encrypt https://acme-v02.api.letsencrypt.org/directory; empty: no certificates are asked for
	Contact     string            `env:"PREGO_ACME_CONTACT"`                           // e-mail address of the account
	Account     string            `env:"PREGO_ACME_ACCOUNT" envDefault:"1"`            // which of the accounts at the authority; another name makes another account
	EABKeyID    string            `env:"PREGO_ACME_EAB_KEY_ID"`                        // id of an external account binding, which some authorities ask for
	EABKey      string            `env:"PREGO_ACME_EAB_KEY"`                           // key of the external account binding, base64url; PREGO_ACME_EAB_KEY_FILE for a file
	CAFile      string            `env:"PREGO_ACME_CA_FILE"`                           // PEM of the roots that are trusted for the authority's own HTTPS; empty for the system's
	ServeWithin time.Duration     `envDefault:"10m" pace:"yes"`                        // how long answers to challenges may take to be seen
	IssueWithin time.Duration     `envDefault:"10m" pace:"yes"`                        // how long the authority may take
	Poll        time.Duration     `envDefault:"2s" pace:"yes"`                         // between two looks at answers or an order, growing to 30s
	SweepEvery  time.Duration     `envDefault:"5s" pace:"yes"`                         // how often certificates that are due are looked for
	Orders      tenant.IssueLimit `env:"PREGO_ACME_LIMIT_ORDERS" envDefault:"300/3h"`  // orders of the account; 0 for no limit
	Domain      tenant.IssueLimit `env:"PREGO_ACME_LIMIT_DOMAIN" envDefault:"50/168h"` // certificates of a registered domain
}

// Limits returns the authority's rate limits.
func (a ACME) Limits() tenant.IssueLimits {
	// Let's Encrypt raises only the first two on request.
	return tenant.IssueLimits{
		Orders: a.Orders, Domain: a.Domain, Duplicates: tenant.IssueLimit{Most: 5, Per: 7 * 24 * time.Hour}, Failures: tenant.IssueLimit{Most: 5, Per: time.Hour},
	}
}

// Storage returns the rules for sites above their storage quota.
func (t Tenants) Storage() tenant.StorageRules {
	return tenant.StorageRules{WarnPct: 90, HardPct: 120, Grace: t.StorageGrace} // warned while there is room, and no fifth above it
}

// Workloads configures process groups and their instances.
type Workloads struct {
	Retry      time.Duration `env:"PREGO_GROUP_RETRY" envDefault:"30s" pace:"yes"` // wait before the next try of groups that the quota rejected or that have not converged
	SweepEvery time.Duration `envDefault:"15s" pace:"yes"`
	// PatchCron is when servers that lack security updates, or a reboot, are patched by themselves, as a cron
	// expression of five fields in UTC; empty: never.
	PatchCron      string        `env:"PREGO_PATCH_WINDOW"`
	PatchFor       time.Duration `env:"PREGO_PATCH_WINDOW_FOR" envDefault:"4h"` // how long that window is open
	PatchEvery     time.Duration `envDefault:"1m" pace:"yes"`
	RebalanceEvery time.Duration `envDefault:"2s" pace:"yes"`
	Quiet          time.Duration `envDefault:"1m" pace:"yes"`                   // how long a group's row may be unchanged before its run is checked
	DrainServers   int           `env:"PREGO_DRAIN_FLEET_LIMIT" envDefault:"1"` // servers of a fleet that are emptied concurrently
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

// PlacementPolicy reads the placement policy from the process's environment, and no other setting.
func PlacementPolicy() (placement.Policy, error) {
	p, err := env.ParseAs[Placement]()
	if err != nil {
		return placement.Policy{}, err
	}
	return p.Policy()
}

// Periods returns the configured lifecycle periods.
func (t Tenants) Periods() tenant.LifecyclePeriods {
	return tenant.LifecyclePeriods{Trial: t.TrialPeriod, Grace: t.GracePeriod, Retention: t.Retention}
}

var siteDomain = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// Releases configure how releases of the stack are rolled out.
type Releases struct {
	Sites  int `env:"PREGO_RELEASE_SITES" envDefault:"40"`         // sites that are offline concurrently
	Agents int `env:"PREGO_AGENT_RELEASE_SERVERS" envDefault:"20"` // servers that try a release of the agent concurrently
}

// Traces configures the receiver of traces of requests. Without an endpoint there are none.
type Traces struct {
	Endpoint string  `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`       // base URL of a receiver that speaks OTLP over HTTP, such as http://127.0.0.1:4318; empty: no traces
	Ratio    float64 `env:"PREGO_TRACES_RATIO" envDefault:"1"` // the part of requests that is traced, from 0 to 1; a caller that traces decides for its requests
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

// Temporal is the address of the Temporal server.
type Temporal struct {
	Address   string `env:"ADDRESS" envDefault:"127.0.0.1:7233"` // address of its frontend
	Namespace string `env:"NAMESPACE" envDefault:"default"`      // namespace that workflows run in
	TaskQueue string `env:"TASK_QUEUE" envDefault:"prego"`       // beginning of the names of task queues
	UIURL     string `env:"UI_URL"`                              // base of links to runs, for example http://127.0.0.1:8233
}

// API configures `prego api`.
type API struct {
	Listen        string  `env:"LISTEN" envDefault:"127.0.0.1:8080"`            // address of the API and the console
	PublicURL     string  `env:"PUBLIC_URL" envDefault:"http://127.0.0.1:8080"` // base URL for callers
	OIDC          OIDC    `envPrefix:"OIDC_"`
	RatePerSecond float64 `env:"RATE_PER_SECOND" envDefault:"50"` // requests per caller
}

// OIDC is where people log in: docs/login.md.
type OIDC struct {
	Issuer       string `env:"ISSUER"`                           // issuer that people log in with; empty: no such login
	ClientID     string `env:"CLIENT_ID"`                        // this installation at the issuer
	ClientSecret string `env:"CLIENT_SECRET"`                    // empty for a public client, which prego login needs; PREGO_API_OIDC_CLIENT_SECRET_FILE for a file
	GroupsClaim  string `env:"GROUPS_CLAIM" envDefault:"groups"` // claim with the names of a person's groups
}

func (o OIDC) check(bad func(name, why string)) {
	switch u, err := url.Parse(o.Issuer); {
	case o.Issuer == "":
	case err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "":
		bad("PREGO_API_OIDC_ISSUER", "must be the URL of an issuer, such as https://id.example.com")
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		bad("PREGO_API_OIDC_ISSUER", "must begin with https:// (http:// only on this host): who changes its answers can log in as anyone")
	case o.ClientID == "":
		bad("PREGO_API_OIDC_ISSUER", "needs PREGO_API_OIDC_CLIENT_ID")
	}
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// Gateway configures `prego agentgw`.
type Gateway struct {
	Listen        string        `env:"LISTEN" envDefault:"127.0.0.1:8443"`          // address of the gateway
	URL           string        `env:"URL" envDefault:"https://127.0.0.1:8443"`     // base URL for hosts
	AgentBinary   string        `env:"AGENT_BINARY" envDefault:"./bin/prego-agent"` // served to booting hosts, pinned by its digest
	AgentReleases string        `env:"AGENT_RELEASES"`                              // directory of agents named by their SHA-256, for updates; empty: only AgentBinary
	CheckSource   bool          `env:"CHECK_SOURCE" envDefault:"true"`              // handshakes must come from the address assigned by the provider
	OTLPEndpoint  string        `env:"OTLP_ENDPOINT"`                               // base URL for forwarded metrics; empty: count and drop
	Flush         time.Duration `envDefault:"250ms" pace:"yes"`                     // how long heartbeats are batched
	Heartbeat     time.Duration `env:"HEARTBEAT" envDefault:"30s" pace:"yes"`       // how often agents send heartbeats
	CertTTL       time.Duration `env:"CERT_TTL" envDefault:"24h"`                   // lifetime of agents' certificates
}

// Edge configures edges, which get it from the gateway.
type Edge struct {
	MaxBody int64         `env:"PREGO_EDGE_MAX_BODY" envDefault:"536870912"` // bytes of a request to a site; 0 is no limit
	HSTS    time.Duration `env:"PREGO_EDGE_HSTS" envDefault:"0s"`            // Strict-Transport-Security of sites; 0s sends none
	Within  time.Duration `envDefault:"10s"`                                 // how long a stopping instance waits until edges send it no more requests
}

// Worker configures `prego worker`.
type Worker struct {
	MasterKey         string        `env:"PREGO_MASTER_KEY"`                               // hex, 32 bytes or more; derives bootstrap tokens and encrypts registry passwords; PREGO_MASTER_KEY_FILE for a file
	MasterKeysEarlier []string      `env:"PREGO_MASTER_KEY_EARLIER"`                       // earlier master keys, for decryption; also _FILE
	CatalogFile       string        `env:"PREGO_CATALOG_FILE"`                             // what to order at the provider, best first; empty: the built-in catalog
	ImageContainers   []string      `env:"PREGO_IMAGE_CONTAINERS" envDefault:"stack"`      // container images to pull into an image: stack, none, or a list
	ImageBuildTimeout time.Duration `envDefault:"30m"`                                     // how long the builder of an image may take
	CatalogEvery      time.Duration `envDefault:"1h" pace:"yes"`                           // how often the provider's catalog is read
	EgressCIDRs       []string      `env:"PREGO_EGRESS_CIDRS"`                             // source addresses of calls to hosts, for their firewalls
	NetworkRange      string        `env:"PREGO_NETWORK_RANGE" envDefault:"10.64.0.0/10"`  // private range of the networks of servers, a /24 each; "none" for no networks
	AgentPort         int           `env:"PREGO_AGENT_PORT" envDefault:"443"`              // port of the agent on hosts
	PeersEvery        time.Duration `envDefault:"1s" pace:"yes"`                           // how often changed rules of servers' peers are recomputed
	DockerPort        int           `env:"PREGO_DOCKER_PORT" envDefault:"2376"`            // port of the container engine on hosts
	BootstrapTokenTTL time.Duration `env:"PREGO_BOOTSTRAP_TOKEN_TTL" envDefault:"15m"`     // how long a booting host may present its token; at most 15m
	MaxRetries        int           `env:"PREGO_PROVISION_RETRIES" envDefault:"2"`         // new servers after the first one failed
	CapacityWait      time.Duration `env:"PREGO_CAPACITY_WAIT" envDefault:"1h" pace:"yes"` // how long a server waits for stock, quota or a provider that fails
	FleetWait         time.Duration `envDefault:"10m" pace:"yes"`                          // the same for a fleet's server, before another region is tried
	FleetParallel     int           `env:"PREGO_FLEET_PARALLEL" envDefault:"10"`           // concurrent servers of a fleet action
	FleetPoll         time.Duration `envDefault:"5s" pace:"yes"`                           // how often a draining server is checked
	CapacityPoll      time.Duration `envDefault:"30s" pace:"yes"`
	CreateBackoff     time.Duration `envDefault:"2s" pace:"yes"`                                  // delay before the second of three create calls; doubles. Failed tries are followed by pauses of 15 and 60 times it
	AmbiguousGrace    time.Duration `envDefault:"3m" pace:"yes"`                                  // how long a create of unknown outcome may still complete
	ContainerTimeout  time.Duration `env:"PREGO_CONTAINER_TIMEOUT" envDefault:"5m"`               // for pulling and starting a server's containers
	ContainerImage    string        `env:"PREGO_CONTAINER_IMAGE" envDefault:"frappe/erpnext:v15"` // image of benches: ${bench_image} in the stack
	StackFile         string        `env:"PREGO_STACK_FILE"`                                      // what runs on servers, see docs/containers.md; empty for the built-in stack
	UserDataLimit     int           // bytes; less than the provider's limit to test the two-stage boot
	BootPatience      time.Duration `envDefault:"4m"`                                        // how long a booting host retries a failing step; less than its boot may take
	ReconcileEvery    time.Duration `env:"PREGO_RECONCILE_EVERY" envDefault:"5m" pace:"yes"` // how often servers are compared with the provider's
	OrphanAge         time.Duration `env:"PREGO_ORPHAN_AGE" envDefault:"45m"`                // age of unknown servers that are deleted; more than the longest provisioning attempt
	OrphanMaxPerRun   int           `env:"PREGO_ORPHAN_MAX_PER_RUN" envDefault:"10"`         // servers that one comparison deletes; 0: none
	SweepEvery        time.Duration `envDefault:"10s" pace:"yes"`                            // how often silent agents are looked for; accepted but unstarted requests, twice as often
	NetEvery          time.Duration `envDefault:"15m" pace:"yes"`                            // how often each sweep runs although no worker found anything to do
	NetworkEvery      time.Duration `envDefault:"30s" pace:"yes"`                            // how often servers without a private address are looked for
	DegradedAfter     time.Duration `env:"PREGO_DEGRADED_AFTER" envDefault:"60s" pace:"yes"` // how long an agent may be silent before it counts as degraded
	FailedAfter       time.Duration `env:"PREGO_FAILED_AFTER" envDefault:"300s" pace:"yes"`  // how long an agent may be silent before its server counts as failed; tenants are then restored elsewhere
	Concurrency       int           `env:"PREGO_WORKER_CONCURRENCY" envDefault:"64"`         // concurrent short steps
	LongConcurrency   int           `env:"PREGO_WORKER_LONG_CONCURRENCY" envDefault:"64"`    // concurrent steps that wait for containers, copies, backups and builds
	OrgWork           int           `env:"PREGO_ORG_WORK_LIMIT" envDefault:"32"`             // concurrent long steps of an org: starts of instances, snapshots, restores
}

// Hetzner is the project of the servers.
type Hetzner struct {
	Endpoint string `env:"HCLOUD_ENDPOINT" envDefault:"https://api.hetzner.cloud/v1"` // address of the provider's API
	Token    string `env:"HCLOUD_TOKEN"`                                              // token of the provider's project; HCLOUD_TOKEN_FILE for a file
	// Simulated allows hosts without public addresses.
	Simulated bool          `env:"PREGO_SIMULATED"`
	Timeout   time.Duration `envDefault:"30s"`           // of one request
	Poll      time.Duration `envDefault:"1s" pace:"yes"` // of the shared action poller
}

// FromEnvironment reads the process's environment.
func FromEnvironment() (Config, error) {
	vars := env.ToMap(os.Environ())
	return From(vars)
}

// Secrets are the settings that can be read from a file, named by the variable with the
// suffix _FILE.
func Secrets() []string {
	return []string{"DATABASE_URL", "HCLOUD_TOKEN", "PREGO_MASTER_KEY", "PREGO_MASTER_KEY_EARLIER", "PREGO_API_OIDC_CLIENT_SECRET", "PLACEMENT_ADVISER_TOKEN", "PREGO_ACME_EAB_KEY", "PREGO_BACKUP_ACCESS_KEY", "PREGO_BACKUP_SECRET_KEY"}
}

// From reads settings from vars, as FromEnvironment does from the process. It reports
// all errors together.
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
	cfg.apply(merged)
	errs = append(errs, cfg.check()...)
	return cfg, errors.Join(errs...)
}

// Networks is the range of private networks, "" for none.
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
	if c.Pace <= 0 || c.Pace > 10 {
		bad("PREGO_PACE", "must be above 0 and at most 10; 1 is the pace of production")
	}
	if c.Gateway.CertTTL < 15*time.Minute {
		bad("PREGO_AGENTGW_CERT_TTL", "must be at least 15m: agents renew at half of a life, with a heartbeat, and certificates are valid from 5 minutes before they are issued")
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
	if _, err := server.ParseImage(c.Worker.ContainerImage); err != nil {
		bad("PREGO_CONTAINER_IMAGE", err.Error())
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
		"PREGO_STORAGE_GRACE": t.StorageGrace, "PREGO_MOVE_GRACE": c.Moves.Grace, "PREGO_DRILL_EVERY": c.Backups.DrillEvery,
	} {
		if d < 0 {
			bad(name, "must not be negative")
		}
	}
	for name, d := range map[string]time.Duration{
		"PREGO_TENANT_CAPACITY_WAIT": t.CapacityWait, "PREGO_SITE_TIMEOUT": t.SiteTimeout, "PREGO_BACKUP_UPLOAD_TIMEOUT": c.Backups.UploadFor,
		"PREGO_BACKUP_FINAL_FOR": c.Backups.FinalFor, "PREGO_MOVE_FREEZE_TIMEOUT": c.Moves.FreezeFor,
	} {
		if d <= 0 {
			bad(name, "must be above 0")
		}
	}
	if t.ThresholdPct < 0 || t.ThresholdPct > 100 {
		bad("PREGO_SCALE_OUT_THRESHOLD_PCT", "must be 0 for never, or up to 100")
	}
	for name, n := range map[string]int{
		"PREGO_SCALE_OUT_MAX_PER_REGION": t.ScaleOutMaxRole, "PREGO_DRILLS_AT_ONCE": c.Backups.DrillsAtOnce, "PREGO_RELEASE_SITES": c.Releases.Sites,
		"PREGO_AGENT_RELEASE_SERVERS": c.Releases.Agents, "PREGO_DRAIN_TENANTS": c.Moves.Tenants, "PREGO_ORG_WORK_LIMIT": c.Worker.OrgWork,
	} {
		if n < 1 {
			bad(name, "must be at least 1")
		}
	}
	if !c.Quotas.DefaultTier.Valid() {
		bad("PREGO_DEFAULT_TIER", "must be free, paid or enterprise")
	}
	if !siteDomain.MatchString(t.SiteDomain) {
		bad("PREGO_SITE_DOMAIN", "must be a domain name")
	}
	if b := c.Backups; b.Endpoint != "" && (b.Bucket == "" || b.AccessKey == "" || b.SecretKey == "") {
		bad("PREGO_BACKUP_ENDPOINT", "needs PREGO_BACKUP_BUCKET, PREGO_BACKUP_ACCESS_KEY and PREGO_BACKUP_SECRET_KEY")
	}
	if _, err := c.Backups.LostPlans(); err != nil {
		bad("PREGO_RESTORE_LOST", err.Error())
	}
	if _, err := server.NewPatchWindow(c.Workloads.PatchCron, c.Workloads.PatchFor); err != nil {
		bad("PREGO_PATCH_WINDOW and PREGO_PATCH_WINDOW_FOR", err.Error())
	}
	c.API.OIDC.check(bad)
	c.Keep.check(bad)
	c.Costs.check(bad)
	c.Traces.check(bad)
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
	if c.Worker.FleetParallel < 1 || c.Worker.FleetParallel > 100 {
		bad("PREGO_FLEET_PARALLEL", "must be 1 to 100")
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
