package server

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prego/prego"
)

// ResourceKind is a kind of resource at a provider that is billed or limited, and
// therefore must have an owner.
type ResourceKind string

// The kinds of resources that the control plane creates.
const (
	ResourceServer         ResourceKind = "server"
	ResourceVolume         ResourceKind = "volume"
	ResourcePrimaryIP      ResourceKind = "primary_ip"
	ResourceFloatingIP     ResourceKind = "floating_ip"
	ResourceFirewall       ResourceKind = "firewall"
	ResourcePlacementGroup ResourceKind = "placement_group"
	ResourceImage          ResourceKind = "image" // a snapshot of a server's disk
	ResourceNetwork        ResourceKind = "network"
	ResourceBackup         ResourceKind = "backup" // a tenant's, in object storage
)

// ResourceKinds lists every kind in a safe order of deletion.
func ResourceKinds() []ResourceKind {
	return []ResourceKind{ResourceServer, ResourceVolume, ResourcePrimaryIP, ResourceFloatingIP, ResourcePlacementGroup, ResourceFirewall, ResourceImage, ResourceNetwork}
}

// ResourceState is the state of a resource row: intended is written before the create
// call, created after it, releasing before the delete call, and released once the
// provider has confirmed the deletion.
type ResourceState string

// The states of a resource row.
const (
	ResourceIntended  ResourceState = "intended"
	ResourceCreated   ResourceState = "created"
	ResourceReleasing ResourceState = "releasing"
	ResourceReleased  ResourceState = "released"
)

// Label keys on everything that is created at a provider. Repeated steps use them to
// find their earlier creations, and the reconciler to distinguish our orphans from other
// people's resources.
const (
	LabelManagedBy   = "managed-by"
	LabelEnvironment = "prego-environment"
	LabelServerID    = "prego-server-id"
	LabelAttempt     = "prego-attempt"
	LabelSpecHash    = "prego-spec-hash"
	LabelRole        = "prego-role"
	LabelRegion      = "prego-region"
	LabelOrgID       = "prego-org-id" // of an org's resources
	// ManagedByPrego is the value of LabelManagedBy.
	ManagedByPrego = "prego"
)

// OwnerSelector is the label selector of everything that an environment owns.
func OwnerSelector(environment string) string {
	return fmt.Sprintf("%s=%s,%s=%s", LabelManagedBy, ManagedByPrego, LabelEnvironment, environment)
}

// Candidate is one machine type at one location; a region and role map to an
// ordered list of them.
type Candidate struct {
	ServerType string `json:"server_type"`
	Location   string `json:"location"`
}

func (c Candidate) String() string { return c.ServerType + " in " + c.Location }

// CreateParams is everything a provider needs to create one server. UserData is a
// secret: it holds the bootstrap token.
type CreateParams struct {
	Environment    string
	ServerID       prego.ServerID
	Role           prego.Role
	Region         prego.Region
	Attempt        int
	SpecHash       string // of every input of the creation, except the token; at most 63 characters
	Candidate      Candidate
	Image          string
	UserData       string
	FirewallID     string
	PublicFirewall string           // id of the firewall that lets everyone in; "" except for edges
	PlacementGroup string           // provider id; "" for none
	NetworkID      string           // provider id of the private network; "" for none
	VolumeIDs      []prego.VolumeID // provider ids of volumes to attach
	ImageID        prego.ImageID    // of the golden image that it builds; "" for servers of the fleet
}

// Labels are the labels of the requested server.
func (p CreateParams) Labels() map[string]string {
	labels := map[string]string{
		LabelManagedBy:   ManagedByPrego,
		LabelEnvironment: p.Environment,
		LabelServerID:    string(p.ServerID),
		LabelAttempt:     strconv.Itoa(p.Attempt),
		LabelSpecHash:    p.SpecHash,
		LabelRole:        string(p.Role),
		LabelRegion:      string(p.Region),
	}
	if p.ImageID != "" {
		labels[LabelImageID] = string(p.ImageID)
	}
	return labels
}

// Handle is a server at a provider. It holds no secret and may be kept in a
// workflow's history.
type Handle struct {
	ProviderServerID string `json:"provider_server_id"`
	Name             string `json:"name"`
	Status           string `json:"status"` // the provider's status, "running" once it boots
	IPv4             string `json:"ipv4"`
	IPv6             string `json:"ipv6"` // CIDR
	// Private are its addresses in private networks; there may be none yet in the answer
	// to its creation.
	Private      []PrivateAddress `json:"private,omitempty"`
	ServerType   string           `json:"server_type"`
	Location     string           `json:"location"`
	Attempt      int              `json:"attempt"`
	SpecHash     string           `json:"spec_hash"`
	CreatedAt    time.Time        `json:"created_at"`
	PrimaryIPIDs []string         `json:"primary_ip_ids,omitempty"`
	ActionIDs    []int64          `json:"action_ids,omitempty"`
	Adopted      bool             `json:"adopted,omitempty"`
}

// OwnedResource is one resource at a provider that carries our labels.
type OwnedResource struct {
	Kind       ResourceKind
	ProviderID string
	Name       string
	Labels     map[string]string
	CreatedAt  time.Time
	Attached   bool   // to a server (volumes, primary IPs), or has servers (groups, firewalls, networks)
	AttachedTo string // the provider's id of that server, for volumes
	Protected  bool   // servers and volumes: the provider refuses to delete it
	// By what it is billed, as far as its kind has it.
	Type     string // machine type of a server, family of an address
	Location string
	SizeGB   float64
}

// InfraProtected is the code of the provider's refusal to delete what is protected.
const InfraProtected = "protected"

// InfraClass classifies a provider's errors by what to do about them.
type InfraClass string

// The classes of provider errors.
const (
	InfraRetry     InfraClass = "retry"      // retry the same call later
	InfraThrottled InfraClass = "throttled"  // retry when the rate limit budget has refilled
	InfraNext      InfraClass = "next"       // try another machine type, location or placement group
	InfraQuota     InfraClass = "quota"      // an account limit is reached: wait for capacity
	InfraNotFound  InfraClass = "not_found"  // it doesn't exist
	InfraForeign   InfraClass = "foreign"    // the name is taken by something that isn't ours
	InfraPermanent InfraClass = "permanent"  // never retry
	InfraAmbiguous InfraClass = "ambiguous"  // it may or may not have happened: look before retrying
	InfraAttempt   InfraClass = "superseded" // the server found belongs to a newer attempt
)

// InfraImageGone is the code of a create that names an image which the provider does
// not have.
const InfraImageGone = "image_gone"

// InfraNetworkFull is the code of a refusal because the network takes no more servers, and
// InfraNetworkGone because the provider does not have it.
const (
	InfraNetworkFull = "network_full"
	InfraNetworkGone = "network_gone"
)

// InfraGroupFull is the code of a refusal because the placement group holds no more servers.
const InfraGroupFull = "placement_error"

// InfraDedicatedLimit is the code of a refusal because of the account's limit of dedicated cores. It concerns the
// machine types that have them, and no others.
const InfraDedicatedLimit = "dedicated_core_limit"

// InfraError is a classified provider error. Message is safe to log: it went through
// the redactor.
type InfraError struct {
	Class      InfraClass
	Code       string // the provider's code, "" if it gave none
	Message    string
	RetryAfter time.Duration // 0 if the provider set none
	// Unsold is set if the provider does not sell the machine type or the location, whatever its catalog said.
	Unsold bool
}

func (e *InfraError) Error() string {
	if e.Code == "" {
		return "provider: " + e.Message
	}
	return fmt.Sprintf("provider: %s (%s)", e.Message, e.Code)
}

// FirewallParams describe a firewall: the ports are open to the CIDRs, the ports of Everyone to
// all, and nothing else is. All servers of an environment have a firewall that lets the control
// plane in, and its edges another that lets everyone in.
type FirewallParams struct {
	Environment string
	Name        string
	CIDRs       []string
	Ports       []int
	Everyone    []int
}

// VolumeParams describe a volume: a server's data volume, or an org's.
type VolumeParams struct {
	Environment string
	ServerID    prego.ServerID // or OrgID
	OrgID       prego.OrgID
	Name        string
	Location    string
	GB          int // 10 to 10,000
}

// FloatingIPParams describe an IPv4 address of an org.
type FloatingIPParams struct {
	Environment string
	OrgID       prego.OrgID
	Name        string
	Location    string
}

// VolumeHostPath is the directory of an attached volume that containers get, on its
// server. It is on the volume: it exists only while the volume is mounted.
func VolumeHostPath(providerID string) string { return "/mnt/HC_Volume_" + providerID + "/prego" }

// MaxServerVolumes is how many volumes the provider attaches to one server
// (github.com/hetznercloud/csi-driver/issues/197).
const MaxServerVolumes = 16
