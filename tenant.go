package prego

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Plan is what a tenant pays for (placement-policy §1.1).
type Plan string

// The plans.
const (
	PlanTrial      Plan = "trial"
	PlanStarter    Plan = "starter"
	PlanBusiness   Plan = "business"
	PlanEnterprise Plan = "enterprise"
)

// Plans lists every plan, the least first.
func Plans() []Plan { return []Plan{PlanTrial, PlanStarter, PlanBusiness, PlanEnterprise} }

// Valid reports whether p is one of Plans.
func (p Plan) Valid() bool { return slices.Contains(Plans(), p) }

// Priority orders waiting tenants: 1 is served first. It is Temporal's priority
// key, too.
func (p Plan) Priority() int {
	switch p {
	case PlanEnterprise:
		return 1
	case PlanBusiness:
		return 2
	case PlanStarter:
		return 3
	default:
		return 4
	}
}

// DefaultUsers and DefaultStorageGB are what a plan includes where the request
// does not say (placement-policy §1.1).
func (p Plan) DefaultUsers() int {
	return map[Plan]int{PlanTrial: 3, PlanStarter: 10, PlanBusiness: 50, PlanEnterprise: 250}[p]
}

// DefaultStorageGB is the storage that a plan includes.
func (p Plan) DefaultStorageGB() int {
	return map[Plan]int{PlanTrial: 1, PlanStarter: 10, PlanBusiness: 50, PlanEnterprise: 250}[p]
}

// TenantState is where a tenant stands in its life.
type TenantState string

// The states of a tenant.
const (
	TenantTrial        TenantState = "trial" // asked for on the trial plan, not begun yet
	TenantProvisioning TenantState = "provisioning"
	TenantActive       TenantState = "active"
	TenantSuspended    TenantState = "suspended"
	TenantGracePeriod  TenantState = "grace_period"
	TenantTerminated   TenantState = "terminated"  // offline, its data kept for the retention window
	TenantDataPurged   TenantState = "data_purged" // nothing is left of it
	TenantFailed       TenantState = "failed"
)

// TenantStates lists every state in the order of a tenant's life.
func TenantStates() []TenantState {
	return []TenantState{TenantTrial, TenantProvisioning, TenantActive, TenantSuspended, TenantGracePeriod, TenantTerminated, TenantDataPurged, TenantFailed}
}

// Valid reports whether s is one of TenantStates.
func (s TenantState) Valid() bool { return slices.Contains(TenantStates(), s) }

// tenantEdges are all transitions that there are.
var tenantEdges = map[TenantState][]TenantState{
	TenantTrial:        {TenantProvisioning, TenantTerminated},
	TenantProvisioning: {TenantActive, TenantFailed},
	TenantActive:       {TenantSuspended, TenantGracePeriod},
	TenantSuspended:    {TenantActive, TenantGracePeriod},
	TenantGracePeriod:  {TenantActive, TenantTerminated},
	TenantFailed:       {TenantProvisioning, TenantTerminated},
	TenantTerminated:   {TenantDataPurged},
}

// CanBecome reports whether a tenant may go from s to next.
func (s TenantState) CanBecome(next TenantState) bool { return slices.Contains(tenantEdges[s], next) }

// TenantAction is what a caller asks of a tenant that is there.
type TenantAction string

// The actions.
const (
	ActionSuspend    TenantAction = "suspend"
	ActionResume     TenantAction = "resume"
	ActionCancel     TenantAction = "cancel"
	ActionReactivate TenantAction = "reactivate"
	ActionTerminate  TenantAction = "terminate"
	ActionRetry      TenantAction = "retry"
	ActionPurge      TenantAction = "purge" // by the retention timer alone
)

// actionEdges say what an action makes of each state.
var actionEdges = map[TenantAction]map[TenantState]TenantState{
	ActionSuspend:    {TenantActive: TenantSuspended},
	ActionResume:     {TenantSuspended: TenantActive},
	ActionCancel:     {TenantTrial: TenantTerminated, TenantProvisioning: TenantFailed, TenantActive: TenantGracePeriod, TenantSuspended: TenantGracePeriod},
	ActionReactivate: {TenantGracePeriod: TenantActive},
	ActionTerminate:  {TenantTrial: TenantTerminated, TenantGracePeriod: TenantTerminated, TenantFailed: TenantTerminated},
	ActionRetry:      {TenantFailed: TenantProvisioning},
	ActionPurge:      {TenantTerminated: TenantDataPurged},
}

// Apply is the state that an action leads to, or CodeInvalidTransition.
func (a TenantAction) Apply(s TenantState) (TenantState, error) {
	next, ok := actionEdges[a][s]
	if !ok {
		return "", Errorf(CodeInvalidTransition, "a tenant that is %s cannot be asked to %s", s, a)
	}
	return next, nil
}

// LifecyclePeriods are how long a state lasts before its timer moves it on. Zero
// is for ever.
type LifecyclePeriods struct {
	Trial     time.Duration // active on the trial plan → grace_period
	Grace     time.Duration // grace_period → terminated
	Retention time.Duration // terminated → data_purged
}

// For is how long a tenant of a plan stays in a state by itself.
func (p LifecyclePeriods) For(s TenantState, plan Plan) time.Duration {
	switch {
	case s == TenantActive && plan == PlanTrial:
		return p.Trial
	case s == TenantGracePeriod:
		return p.Grace
	case s == TenantTerminated:
		return p.Retention
	}
	return 0
}

// TimedAction is what the timer of a state does.
func (s TenantState) TimedAction() (TenantAction, Reason, bool) {
	switch s {
	case TenantActive, TenantSuspended:
		return ActionCancel, ReasonTrialExpired, true
	case TenantGracePeriod:
		return ActionTerminate, ReasonGraceOver, true
	case TenantTerminated:
		return ActionPurge, ReasonRetentionOver, true
	}
	return "", "", false
}

// Reasons of tenants, beside those of servers.
const (
	// ReasonFailedPlacement: no placement can ever satisfy the request.
	ReasonFailedPlacement Reason = "failed_placement"
	// ReasonFailedServer: the tenant's own server did not come to life.
	ReasonFailedServer Reason = "failed_server"
	// ReasonFailedSite: the site could not be made or promoted.
	ReasonFailedSite Reason = "failed_site"
	// ReasonFailedApps: an app could not be installed.
	ReasonFailedApps Reason = "failed_apps"
	// ReasonCancelled: the caller cancelled the provisioning.
	ReasonCancelled Reason = "cancelled"
	// ReasonCellMismatch: no server satisfies the tenant's constraint
	// (placement-pools, "Auctioneer").
	ReasonCellMismatch Reason = "cell_mismatch"
	// ReasonAwaitingSite: the placement holds until a pool site is ready.
	ReasonAwaitingSite Reason = "awaiting_site"
	// ReasonBuildingServer: the tenant's own server is being provisioned.
	ReasonBuildingServer Reason = "building_server"
	// ReasonTrialExpired, ReasonGraceOver and ReasonRetentionOver are the timers'.
	ReasonTrialExpired  Reason = "trial_expired"
	ReasonGraceOver     Reason = "grace_period_over"
	ReasonRetentionOver Reason = "retention_over"
)

// SiteState is the state of a site in a pool (placement-policy §2.6).
type SiteState string

// The states of pool sites. reserved is also the state of a site that is being
// built: nobody can take it, and its reservation runs out when the build is lost.
const (
	SiteAvailable SiteState = "available"
	SiteReserved  SiteState = "reserved"
	SiteAssigned  SiteState = "assigned"
	SiteFailed    SiteState = "failed"
	SiteDraining  SiteState = "draining"
)

// Limits of a tenant's request. The slug becomes part of a database's name
// ("tenant_<slug>_db"), of which MariaDB takes 64 characters.
const (
	MaxSlugLen   = 54
	MaxApps      = 32
	MaxUsers     = 1_000_000
	MaxStorageGB = 100_000
	databasePre  = "tenant_"
	databasePost = "_db"
)

var (
	countryCode = regexp.MustCompile(`^[A-Z]{2}$`)
	appName     = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
)

// CreateTenantRequest is the body of POST /v1/tenants.
type CreateTenantRequest struct {
	Slug           string     `json:"slug"`
	OrgID          string     `json:"org_id"`
	ParentOrgID    string     `json:"parent_org_id,omitempty"`
	Region         Region     `json:"region"`
	Plan           Plan       `json:"plan"`
	ExpectedUsers  int        `json:"expected_users,omitempty"`
	StorageQuotaGB int        `json:"storage_quota_gb,omitempty"`
	DataResidency  string     `json:"data_residency,omitempty"` // ISO 3166 country, "" for none
	Constraint     Constraint `json:"constraint"`
	// Stack is another way to require the tag "stack:<name>"; Validate folds it into
	// Constraint, so that both ways are the same request.
	Stack          string   `json:"stack,omitempty"`
	DedicatedRedis bool     `json:"dedicated_redis,omitempty"` // business only
	Apps           []string `json:"apps,omitempty"`
	// Policy overrides the configured placement policy; operators only.
	Policy PlacementMode `json:"policy,omitempty"`
	// AdminEmail is the first user of the site, a System Manager; "" for none.
	AdminEmail string `json:"admin_email,omitempty"`
	AdminName  string `json:"admin_name,omitempty"` // the email when empty
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

// Validate checks the request's own fields, normalizes its tags and fills in what
// the plan includes. Whether the org, the country and the slug are good is the
// store's to say.
func (r *CreateTenantRequest) Validate() error {
	switch {
	case r.Slug == "":
		return Invalid("slug", "is required")
	case len(r.Slug) > MaxSlugLen:
		return Invalid("slug", "must be at most "+strconv.Itoa(MaxSlugLen)+" characters")
	case !IsLabel(r.Slug, MaxSlugLen):
		return Invalid("slug", "must be a DNS label: lower-case letters, digits and inner hyphens")
	}
	if err := ValidateOrgID("org_id", r.OrgID); err != nil {
		return err
	}
	if r.ParentOrgID != "" {
		if err := ValidateOrgID("parent_org_id", r.ParentOrgID); err != nil {
			return err
		}
	}
	switch {
	case !r.Region.Valid():
		return Invalid("region", "must be one of sg, eu, us")
	case !r.Plan.Valid():
		return Invalid("plan", "must be one of trial, starter, business, enterprise")
	case r.ExpectedUsers < 0 || r.ExpectedUsers > MaxUsers:
		return Invalid("expected_users", fmt.Sprintf("must be 0 to %d", MaxUsers))
	case r.StorageQuotaGB < 0 || r.StorageQuotaGB > MaxStorageGB:
		return Invalid("storage_quota_gb", fmt.Sprintf("must be 0 to %d", MaxStorageGB))
	case r.DataResidency != "" && !countryCode.MatchString(r.DataResidency):
		return Invalid("data_residency", "must be an ISO 3166 country code of two capital letters")
	case r.DedicatedRedis && r.Plan != PlanBusiness && r.Plan != PlanEnterprise:
		return Invalid("dedicated_redis", "is part of the plans business and enterprise only")
	case len(r.Apps) > MaxApps:
		return Invalid("apps", fmt.Sprintf("must be at most %d apps", MaxApps))
	case r.Policy != "" && !r.Policy.Valid():
		return Invalid("policy", "must be shared or one_tenant_one_server")
	}
	seen := make(map[string]bool, len(r.Apps))
	for i, a := range r.Apps {
		if !appName.MatchString(a) || seen[a] {
			return Invalid(fmt.Sprintf("apps[%d]", i), "must be an app's name, each once: lower-case letters, digits and underscores")
		}
		seen[a] = true
	}
	if err := r.validateAdmin(); err != nil {
		return err
	}
	if r.ExpectedUsers == 0 {
		r.ExpectedUsers = r.Plan.DefaultUsers()
	}
	if r.StorageQuotaGB == 0 {
		r.StorageQuotaGB = r.Plan.DefaultStorageGB()
	}
	if err := r.Constraint.Validate("constraint"); err != nil {
		return err
	}
	err := r.Constraint.RequireStack(r.Stack)
	r.Stack = ""
	return err
}

func (r *CreateTenantRequest) validateAdmin() error {
	if r.AdminEmail == "" {
		if r.AdminName != "" {
			return Invalid("admin_name", "needs an admin_email")
		}
		return nil
	}
	if err := ValidateEmail("admin_email", r.AdminEmail); err != nil {
		return err
	}
	if r.AdminName == "" {
		r.AdminName = r.AdminEmail
	}
	return ValidatePerson("admin_name", r.AdminName)
}

// ValidateOrgID accepts a lower-case DNS label.
func ValidateOrgID(field, id string) error {
	return ValidateName(field, id, MaxOrgIDLen)
}

// ValidateTenantID accepts what NewTenant ids look like.
func ValidateTenantID(id string) error {
	if !IsLabel(id, MaxTenantID) {
		return Invalid("tenant_id", "must be at most "+strconv.Itoa(MaxTenantID)+" lower-case letters, digits and inner hyphens")
	}
	return nil
}

// ValidateIdempotencyKey accepts printable ASCII of at most 255 characters.
func ValidateIdempotencyKey(key string) error {
	if len(key) > maxIdempotencyKey || !tagPattern.MatchString(key) {
		return Invalid("Idempotency-Key", "must be 1 to 255 printable ASCII characters without spaces")
	}
	return nil
}

// Hash identifies the request.
func (r CreateTenantRequest) Hash() [32]byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic("prego: a CreateTenantRequest always marshals: " + err.Error())
	}
	return sha256.Sum256(b)
}

// DatabaseName is the database of a site that is made for a tenant
// (placement-policy §1.2): "tenant_<slug>_db".
func DatabaseName(slug string) string {
	return databasePre + strings.ReplaceAll(slug, "-", "_") + databasePost
}

// SiteName is the host name of a tenant's site.
func SiteName(slug, domain string) string { return slug + "." + domain }

// Tenant is one row of tenants, as every room sees it.
type Tenant struct {
	TenantID       string
	Slug           string
	OrgID          string
	ParentOrgID    string
	Region         Region
	Plan           Plan
	ExpectedUsers  int
	StorageQuotaGB int
	DataResidency  string
	Constraint     Constraint
	DedicatedRedis bool
	Apps           []string
	Policy         PlacementMode
	AdminEmail     string // of the first user of its site, "" for none
	AdminName      string
	Mail           *MailSettings // nil for none

	State         TenantState
	StatusReason  Reason
	StatusMessage string
	Generation    int // 1, one more per retry
	// ConvergedState is the last state whose effects are all in place.
	ConvergedState TenantState
	Site           string // its site's name, "" while there is none
	Deadline       *time.Time
	WaitingSince   *time.Time
	WaitingRoles   []Role // that it waits for a server of, while WaitingSince is set
	// CancelRequestedAt is when somebody cancelled its provisioning; the run ends it.
	CancelRequestedAt *time.Time
	CreatedBy         string
	CreatedAt         time.Time
	UpdatedAt         time.Time
	ActiveAt          *time.Time
}

// Allocation is where a tenant lives (placement-policy §1.2).
type Allocation struct {
	AllocationID  int64
	TenantID      string
	AppServerID   string
	DBShardID     string
	RedisPoolID   string
	PoolSiteID    string // "" for a site that was made on demand
	SiteName      string // of the pool site, before its promotion
	DatabaseName  string
	InfraProvider InfraProviderID
	Algorithm     string
	Dedicated     bool
	CreatedAt     time.Time
	ReleasedAt    *time.Time
	ReleaseReason string
}

// TenantEvent is one line of a tenant's timeline.
type TenantEvent struct {
	EventID   int64
	TenantID  string
	At        time.Time
	FromState TenantState
	ToState   TenantState
	Step      TenantStep
	Actor     string
	Reason    string
	Message   string
}

// TenantStep names what a tenant's event tells.
type TenantStep string

// Steps of a tenant's timeline.
const (
	TenantRequested        TenantStep = "requested"
	TenantPlaced           TenantStep = "placed"
	TenantAwaitingCapacity TenantStep = "awaiting_capacity"
	TenantAwaitingSite     TenantStep = "awaiting_site"
	TenantServerRequested  TenantStep = "server_requested"
	TenantSitePromoted     TenantStep = "site_promoted"
	TenantSiteCreated      TenantStep = "site_created"
	TenantAppsInstalled    TenantStep = "apps_installed"
	TenantChanged          TenantStep = "state_changed"
	TenantConverged        TenantStep = "effects_in_place"
	TenantReleased         TenantStep = "reservation_released"
	TenantSiteDropped      TenantStep = "site_dropped"
	TenantFinalBackup      TenantStep = "final_backup"
	TenantOverridden       TenantStep = "placement_override"
	TenantRunRestarted     TenantStep = "workflow_restarted"
)

// ActorPlacementEngine is the actor of placement events (placement-policy §7).
const ActorPlacementEngine = "placement_engine"

// TenantFilter selects a page of tenants; empty fields select all.
type TenantFilter struct {
	Region Region
	Plan   Plan
	State  TenantState
	OrgID  string
	Cursor string
	Limit  int
}

const (
	tenantProvisionPrefix = "tenant-provision/"
	tenantChangePrefix    = "tenant-change/"
	refillPrefix          = "site-pool-refill/"
)

// TenantProvisionWorkflowID is the id of the run that provisions a tenant.
func TenantProvisionWorkflowID(tenantID string) string { return tenantProvisionPrefix + tenantID }

// TenantIDFromProvisionWorkflow is the inverse of TenantProvisionWorkflowID.
func TenantIDFromProvisionWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, tenantProvisionPrefix)
}

// TenantChangeWorkflowID is the id of the run that puts a tenant's state into
// effect.
func TenantChangeWorkflowID(tenantID string) string { return tenantChangePrefix + tenantID }

// TenantIDFromChangeWorkflow is the inverse of TenantChangeWorkflowID.
func TenantIDFromChangeWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, tenantChangePrefix)
}

// RefillWorkflowID is the id of the run that fills an app server's site pool.
func RefillWorkflowID(appServerID string) string { return refillPrefix + appServerID }

// ServerIDFromRefillWorkflow is the inverse of RefillWorkflowID.
func ServerIDFromRefillWorkflow(workflowID string) (string, bool) {
	return strings.CutPrefix(workflowID, refillPrefix)
}

// ScaleOutWorkflowID is the id of the run that adds servers of a role to a region.
func ScaleOutWorkflowID(environment string, region Region, role Role) string {
	return fmt.Sprintf("scale-out/%s/%s/%s", environment, region, role)
}

// WarmPoolWorkflowID is the id of the run that keeps a warm server pool filled.
func WarmPoolWorkflowID(environment string, region Region, plan Plan) string {
	return fmt.Sprintf("warm-pool/%s/%s/%s", environment, region, plan)
}

// StorageWorkflowID is the id of the periodic run that measures sites.
func StorageWorkflowID(environment string) string { return "measure-sites/" + environment }

// TenantSweepWorkflowID is the id of the periodic run that looks after tenants.
func TenantSweepWorkflowID(environment string) string { return "tenant-sweep/" + environment }
