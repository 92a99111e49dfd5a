// Package tenant is the domain of tenants: their states and the actions on them, their
// placements, sites, storage, snapshots and restores. It is pure.
package tenant

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prego/prego"
)

// State is the state of a tenant.
type State string

// The states of a tenant.
const (
	Trial        State = "trial" // requested on the trial plan, not started yet
	Provisioning State = "provisioning"
	Active       State = "active"
	Suspended    State = "suspended"
	GracePeriod  State = "grace_period"
	Terminated   State = "terminated"  // offline; its data is kept for the retention window
	DataPurged   State = "data_purged" // all data is erased
	Failed       State = "failed"
)

// States lists every state in the order of a tenant's life.
func States() []State {
	return []State{Trial, Provisioning, Active, Suspended, GracePeriod, Terminated, DataPurged, Failed}
}

// HasSite reports whether a tenant in this state has a site with its data.
func (s State) HasSite() bool {
	return s == Active || s == Suspended || s == GracePeriod
}

// Action is a requested change of an existing tenant.
type Action string

// The actions.
const (
	ActionSuspend    Action = "suspend"
	ActionResume     Action = "resume"
	ActionCancel     Action = "cancel"
	ActionReactivate Action = "reactivate"
	ActionTerminate  Action = "terminate"
	ActionRetry      Action = "retry"
	ActionPurge      Action = "purge" // only by the retention timer
)

// actionEdges map each state to the state that an action leads to.
var actionEdges = map[Action]map[State]State{
	ActionSuspend:    {Active: Suspended},
	ActionResume:     {Suspended: Active},
	ActionCancel:     {Trial: Terminated, Provisioning: Failed, Active: GracePeriod, Suspended: GracePeriod},
	ActionReactivate: {GracePeriod: Active},
	ActionTerminate:  {Trial: Terminated, GracePeriod: Terminated, Failed: Terminated},
	ActionRetry:      {Failed: Provisioning},
	ActionPurge:      {Terminated: DataPurged},
}

// Apply returns the state that an action leads to, or CodeInvalidTransition.
func (a Action) Apply(s State) (State, error) {
	next, ok := actionEdges[a][s]
	if !ok && a == ActionCancel && s == GracePeriod {
		return "", prego.Errorf(prego.CodeInvalidTransition,
			"cannot cancel: the tenant is in its grace period already; terminate ends it now, reactivate keeps it")
	}
	if !ok {
		return "", prego.Errorf(prego.CodeInvalidTransition, "cannot %s: the tenant is %s", a, s)
	}
	return next, nil
}

// LifecyclePeriods are how long a state lasts before its timer moves it on. Zero means
// forever.
type LifecyclePeriods struct {
	Trial     time.Duration // active on the trial plan → grace_period
	Grace     time.Duration // grace_period → terminated
	Retention time.Duration // terminated → data_purged
}

// For is how long a tenant of a plan stays in a state without an action.
func (p LifecyclePeriods) For(s State, plan prego.Plan) time.Duration {
	switch {
	case s == Active && plan == prego.PlanTrial:
		return p.Trial
	case s == GracePeriod:
		return p.Grace
	case s == Terminated:
		return p.Retention
	}
	return 0
}

// TimedAction is the action of a state's timer.
func (s State) TimedAction() (Action, prego.Reason, bool) {
	switch s {
	case Active, Suspended:
		return ActionCancel, prego.ReasonTrialExpired, true
	case GracePeriod:
		return ActionTerminate, prego.ReasonGraceOver, true
	case Terminated:
		return ActionPurge, prego.ReasonRetentionOver, true
	}
	return "", "", false
}

// SiteState is the state of a site in a pool (placement-policy §2.6).
type SiteState string

// The states of pool sites. A site being built is also reserved: it can't be claimed,
// and its reservation expires if the build is lost.
const (
	SiteAvailable SiteState = "available"
	SiteReserved  SiteState = "reserved"
	SiteAssigned  SiteState = "assigned"
	SiteFailed    SiteState = "failed"
	SiteDraining  SiteState = "draining"
)

// Limits of a tenant's request. The slug becomes part of a database's name
// ("tenant_<slug>_db"), which MariaDB limits to 64 characters.
const (
	MaxSlugLen     = 54
	MaxApps        = 32
	MaxExternalRef = 200 // characters
	MaxUsers       = 1_000_000
	MaxStorageGB   = 100_000
	databasePre    = "tenant_"
	databasePost   = "_db"
)

var (
	countryCode = regexp.MustCompile(`^[A-Z]{2}$`)
	appName     = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
)

// CreateRequest is the body of POST /v1/tenants.
type CreateRequest struct {
	Slug           string           `json:"slug"`
	ReservedSlug   bool             `json:"reserved_slug,omitempty"` // the slug may be a reserved label
	OrgID          prego.OrgID      `json:"org_id"`
	ParentOrgID    prego.OrgID      `json:"parent_org_id,omitempty"`
	Region         prego.Region     `json:"region"`
	Plan           prego.Plan       `json:"plan"`
	ExpectedUsers  int              `json:"expected_users,omitempty"`
	StorageQuotaGB int              `json:"storage_quota_gb,omitempty"`
	DataResidency  string           `json:"data_residency,omitempty"` // ISO 3166 country, "" for none
	Constraint     prego.Constraint `json:"constraint"`
	// Stack is another way to require the tag "stack:<name>"; Validate moves it to
	// Constraint, so that both forms are the same request.
	Stack          string   `json:"stack,omitempty"`
	DedicatedRedis bool     `json:"dedicated_redis,omitempty"` // business only
	Apps           []string `json:"apps,omitempty"`
	// Policy overrides the configured placement policy; operators only.
	Policy PlacementMode `json:"policy,omitempty"`
	// AdminEmail is the first user of the site, a System Manager; "" for none.
	AdminEmail string `json:"admin_email,omitempty"`
	AdminName  string `json:"admin_name,omitempty"` // the email when empty
	// ExternalRef is the caller's own reference, "" for none. Tenants may share one.
	ExternalRef string `json:"external_ref,omitempty"`
}

func validateSlug(slug string) error {
	switch {
	case slug == "":
		return prego.Invalid("slug", "is required")
	case len(slug) > MaxSlugLen:
		return prego.Invalid("slug", "must be at most "+strconv.Itoa(MaxSlugLen)+" characters")
	case !prego.IsLabel(slug, MaxSlugLen):
		return prego.Invalid("slug", "must be a DNS label: lower-case letters, digits and inner hyphens")
	}
	return prego.CheckIDNA("slug", slug)
}

// checkReserved refuses a slug that means something to programs, unless the caller has chosen it for that.
func checkReserved(slug string, chosen bool) error {
	meaning := prego.ReservedLabel(slug)
	if meaning == "" || chosen {
		return nil
	}
	return prego.Invalid("slug", "is reserved: "+meaning+"; an operator who means it sets reserved_slug")
}

// PlacementMode is a placement policy.
type PlacementMode string

// The policies (placement-policy, "One tenant, one server").
const (
	ModeOneTenantOneServer PlacementMode = "one_tenant_one_server"
	ModeShared             PlacementMode = "shared"
)

// Valid reports whether m is a policy.
func (m PlacementMode) Valid() bool { return m == ModeShared || m == ModeOneTenantOneServer }

// Validate checks the request's own fields, normalizes its tags and fills in the plan's
// defaults. The org, the country and the slug are checked by the store.
func (r *CreateRequest) Validate() error {
	parent := cmp.Or(r.ParentOrgID, r.OrgID)
	err := cmp.Or(validateSlug(r.Slug), checkReserved(r.Slug, r.ReservedSlug),
		prego.ValidateOrgID("org_id", r.OrgID), prego.ValidateOrgID("parent_org_id", parent))
	if err != nil {
		return err
	}
	switch {
	case !r.Region.Valid():
		return prego.Invalid("region", "must be one of sg, eu, us")
	case !r.Plan.Valid():
		return prego.Invalid("plan", "must be one of trial, starter, business, enterprise")
	case r.ExpectedUsers < 0 || r.ExpectedUsers > MaxUsers:
		return prego.Invalid("expected_users", fmt.Sprintf("must be 0 to %d", MaxUsers))
	case r.StorageQuotaGB < 0 || r.StorageQuotaGB > MaxStorageGB:
		return prego.Invalid("storage_quota_gb", fmt.Sprintf("must be 0 to %d", MaxStorageGB))
	case r.DataResidency != "" && !countryCode.MatchString(r.DataResidency):
		return prego.Invalid("data_residency", "must be an ISO 3166 country code of two capital letters")
	case r.DedicatedRedis && r.Plan != prego.PlanBusiness && r.Plan != prego.PlanEnterprise:
		return prego.Invalid("dedicated_redis", "is part of the plans business and enterprise only")
	case len(r.Apps) > MaxApps:
		return prego.Invalid("apps", fmt.Sprintf("must be at most %d apps", MaxApps))
	case r.Policy != "" && !r.Policy.Valid():
		return prego.Invalid("policy", "must be shared or one_tenant_one_server")
	case utf8.RuneCountInString(r.ExternalRef) > MaxExternalRef || unprintable.MatchString(r.ExternalRef):
		return prego.Invalid("external_ref", fmt.Sprintf("must be at most %d printable characters", MaxExternalRef))
	}
	seen := make(map[string]bool, len(r.Apps))
	for i, a := range r.Apps {
		if !appName.MatchString(a) || seen[a] {
			return prego.Invalid(fmt.Sprintf("apps[%d]", i), "must be an app's name, each once: lower-case letters, digits and underscores")
		}
		seen[a] = true
	}
	if err := r.validateAdmin(); err != nil {
		return err
	}
	r.ExpectedUsers = cmp.Or(r.ExpectedUsers, r.Plan.DefaultUsers())
	r.StorageQuotaGB = cmp.Or(r.StorageQuotaGB, r.Plan.DefaultStorageGB())
	if err := r.Constraint.Validate("constraint"); err != nil {
		return err
	}
	err = r.Constraint.RequireStack("stack", r.Stack)
	r.Stack = ""
	return err
}

func (r *CreateRequest) validateAdmin() error {
	if r.AdminEmail == "" {
		if r.AdminName != "" {
			return prego.Invalid("admin_name", "needs an admin_email")
		}
		return nil
	}
	if err := ValidateEmail("admin_email", r.AdminEmail); err != nil {
		return err
	}
	r.AdminName = cmp.Or(r.AdminName, r.AdminEmail)
	return ValidatePerson("admin_name", r.AdminName)
}

// Hash identifies the request.
func (r CreateRequest) Hash() [32]byte { return prego.RequestHash(r) }

// DatabaseName is the database of a site created for a tenant (placement-policy §1.2):
// "tenant_<slug>_db".
func DatabaseName(slug string) string {
	return databasePre + strings.ReplaceAll(slug, "-", "_") + databasePost
}

// SiteName is the host name of a tenant's site.
func SiteName(slug, domain string) string { return slug + "." + domain }

// NewSite names the site and the database that are made for a tenant on demand. What a lost place left may be on the
// same servers under the tenant's own names, and stays there until the tenant is restored beside it: the names are the
// restore's alone then. No slug gives either of them.
func (t Tenant) NewSite(domain string) (site, database string) {
	if t.LostAt == nil {
		return SiteName(t.Slug, domain), DatabaseName(t.Slug)
	}
	id := strings.ToLower(string(t.TenantID))
	return fmt.Sprintf("restore-g%d.%s.%s", t.Generation, id, domain), fmt.Sprintf("pool_restore_%s_g%d", strings.ReplaceAll(id, "-", "_"), t.Generation)
}

// Tenant is one row of tenants, shared by all packages.
type Tenant struct {
	TenantID       prego.TenantID   `json:"tenant_id"`
	Slug           string           `json:"slug"`
	OrgID          prego.OrgID      `json:"org_id"`
	ParentOrgID    prego.OrgID      `json:"parent_org_id,omitempty"`
	Region         prego.Region     `json:"region"`
	Plan           prego.Plan       `json:"plan"`
	ExpectedUsers  int              `json:"expected_users"`
	StorageQuotaGB int              `json:"storage_quota_gb"`
	DataResidency  string           `json:"data_residency,omitempty"`
	Constraint     prego.Constraint `json:"constraint"`
	DedicatedRedis bool             `json:"dedicated_redis"`
	Apps           []string         `json:"apps"`
	Policy         PlacementMode    `json:"policy"`
	AdminEmail     string           `json:"admin_email,omitempty"` // of the first user of its site, "" for none
	AdminName      string           `json:"admin_name,omitempty"`
	ExternalRef    string           `json:"external_ref,omitempty"` // the caller's own reference
	Mail           *MailSettings    `json:"mail,omitempty"`         // nil for none

	State         State        `json:"state"`
	StatusReason  prego.Reason `json:"status_reason,omitempty"`
	StatusMessage string       `json:"status_message,omitempty"`
	Generation    int          `json:"generation"` // 1, one more per retry
	// ConvergedState is the last state whose effects are all in place.
	ConvergedState State        `json:"converged_state"`
	Site           string       `json:"site,omitempty"` // its site's name, "" if there is none
	Deadline       *time.Time   `json:"deadline_at,omitempty"`
	WaitingSince   *time.Time   `json:"waiting_since,omitempty"`
	WaitingRoles   []prego.Role `json:"waiting_roles"` // the role that it waits for, while WaitingSince is set
	// OpeningSince is since when its site is built and waits for an edge to open it.
	OpeningSince *time.Time `json:"-"`
	// LostAt is since when its site is gone with its server; nil while it has one.
	LostAt *time.Time `json:"-"`
	// RestoreFrom is the backup that its next site is made from, "" for none.
	RestoreFrom prego.BackupID `json:"restore_from,omitempty"`
	// Muted: its site sends no mail and runs no scheduled jobs.
	Muted bool `json:"muted,omitempty"`
	// CancelRequestedAt is when its provisioning was cancelled; the run ends it.
	CancelRequestedAt *time.Time `json:"cancel_requested_at,omitempty"`
	CreatedBy         string     `json:"created_by,omitempty"`
	CreatedAt         time.Time  `json:"created_at"`
	UpdatedAt         time.Time  `json:"updated_at"`
	ActiveAt          *time.Time `json:"active_at,omitempty"`
}

// Progress is, for its customer, how far its site is, and whether nothing more happens by itself. It names nothing of
// the installation.
func (t Tenant) Progress() (message string, finished bool) {
	switch t.State {
	case Trial, Provisioning:
		return t.building(), false
	case Active:
		return "The site is ready.", true
	case Suspended:
		return "The site is suspended.", true
	case GracePeriod, Terminated, DataPurged:
		return "The site is closed.", true
	case Failed:
		if t.StatusReason == prego.ReasonCancelled {
			return "The site was cancelled.", true
		}
		return "The site could not be created. The operator can see the reason.", true
	}
	return "", false
}

func (t Tenant) building() string {
	switch {
	case t.CancelRequestedAt != nil:
		return "The site is being cancelled."
	case t.WaitingSince != nil:
		return "The site waits for a server with room."
	case t.StatusReason == prego.ReasonBuildingServer:
		return "A server is being built for the site."
	case t.StatusReason == prego.ReasonAwaitingEdge:
		return "The site is built, and is being opened to visitors."
	case t.RestoreFrom != "":
		return "The site is being restored from a backup."
	}
	return "The site is being built."
}

// Listed is a tenant as lists show it.
type Listed struct {
	Tenant
	// ServerIDs are the servers of its site, database and cache, of both sides of its open move, and the server that is
	// being built for it.
	ServerIDs []prego.ServerID `json:"server_ids"`
	// SiteUp is whether every edge that probes its site reaches it, nil without such an edge.
	SiteUp      *bool `json:"site_up,omitempty"`
	MemoryBytes int64 `json:"memory_bytes,omitempty"` // that its plan has
}

// Allocation is where a tenant is placed (placement-policy §1.2).
type Allocation struct {
	AllocationID  int64
	TenantID      prego.TenantID
	AppServerID   prego.ServerID
	DBShardID     prego.ShardID
	RedisPoolID   prego.RedisPoolID
	PoolSiteID    string // "" for a site created on demand
	SiteName      string // of the pool site, before it was promoted
	DatabaseName  string
	InfraProvider prego.InfraProviderID
	Algorithm     string
	Dedicated     bool
	// OnShard and OnPool report that its database is on the shard's server, and its cache on the
	// pool's; otherwise they are on the app server.
	OnShard, OnPool bool
	PasswordVersion int // its passwords are derived from it
	CreatedAt       time.Time
	ReleasedAt      *time.Time
	ReleaseReason   string
}

// Event is one line of a tenant's timeline.
type Event struct {
	EventID   int64 `json:"id"`
	TenantID  prego.TenantID
	At        time.Time
	FromState State
	ToState   State
	Step      Step
	Actor     string
	Reason    string
	Message   string
}

// Step names a kind of tenant event.
type Step string

// Steps of a tenant's timeline.
const (
	StepRequested        Step = "requested"
	StepPlaced           Step = "placed"
	StepAwaitingCapacity Step = "awaiting_capacity"
	StepAwaitingSite     Step = "awaiting_site"
	StepAwaitingEdge     Step = "awaiting_edge"
	StepServerRequested  Step = "server_requested"
	StepSitePromoted     Step = "site_promoted"
	StepSiteCreated      Step = "site_created"
	StepAppsInstalled    Step = "apps_installed"
	StepChanged          Step = "state_changed"
	StepConverged        Step = "effects_in_place"
	StepReleased         Step = "reservation_released"
	StepSiteDropped      Step = "site_dropped"
	StepFinalBackup      Step = "final_backup"
	StepSiteUpdated      Step = "site_updated"
	StepSiteUpdateUndone Step = "site_update_undone"
	StepSiteDown         Step = "site_down"
	StepSiteUp           Step = "site_up"
	StepBackedUp         Step = "backed_up"
	StepBackupFailed     Step = "backup_failed"
	StepOverridden       Step = "placement_override"
	StepRunRestarted     Step = "workflow_restarted"
	StepRestored         Step = "restored"
	StepBackupSkipped    Step = "backup_skipped" // by a restore, which uses an older one
	StepCloned           Step = "cloned"
	StepUnmuted          Step = "unmuted"
	StepMoveRequested    Step = "move_requested"
	StepMoved            Step = "moved"        // it lives on the other server
	StepMoveCleared      Step = "move_cleared" // nothing of it is left on the previous server
	StepMoveFailed       Step = "move_failed"
	StepMoveCancelled    Step = "move_cancelled"
	StepMoveReturned     Step = "move_returned" // the server that it had moved to is lost, and it is where it was again
)

// ProvisionWorkflowID is the id of the run that provisions a tenant.
func ProvisionWorkflowID(tenantID prego.TenantID) string {
	return string("tenant-provision/" + tenantID)
}

// ChangeWorkflowID is the id of the run that puts a tenant's state into effect.
func ChangeWorkflowID(tenantID prego.TenantID) string { return string("tenant-change/" + tenantID) }

// RefillWorkflowID is the id of the run that fills an app server's site pool.
func RefillWorkflowID(appServerID prego.ServerID) string {
	return string("site-pool-refill/" + appServerID)
}

// ScaleOutWorkflowID is the id of the run that adds servers of a role to a region.
func ScaleOutWorkflowID(environment string, region prego.Region, role prego.Role) string {
	return fmt.Sprintf("scale-out/%s/%s/%s", environment, region, role)
}

// WarmPoolWorkflowID is the id of the run that keeps a warm server pool filled.
func WarmPoolWorkflowID(environment string, region prego.Region, plan prego.Plan) string {
	return fmt.Sprintf("warm-pool/%s/%s/%s", environment, region, plan)
}

// StorageWorkflowID is the id of the periodic run that measures sites.
func StorageWorkflowID(environment string) string { return "measure-sites/" + environment }

// SweepWorkflowID is the id of the periodic sweep of tenants.
func SweepWorkflowID(environment string) string { return "tenant-sweep/" + environment }
