package server

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"time"

	"github.com/prego/prego"
)

// AgentReleaseStatus is how a server stands to a release of the agent.
type AgentReleaseStatus string

// How servers stand to a release of the agent.
const (
	AgentPending AgentReleaseStatus = "pending"
	AgentOffered AgentReleaseStatus = "offered"
	AgentUpdated AgentReleaseStatus = "done"
	AgentBack    AgentReleaseStatus = "back"    // the host went back to the agent before
	AgentRefused AgentReleaseStatus = "refused" // the host never ran it
	AgentSilent  AgentReleaseStatus = "silent"  // it was not heard of in time
	AgentSkipped AgentReleaseStatus = "skipped"
)

// The reasons why a release of the agent stops.
const (
	ReasonAgentWentBack   prego.Reason = "went_back"
	ReasonAgentRefused    prego.Reason = "refused"
	ReasonHeartbeatsEnded prego.Reason = "heartbeats_stopped"
)

// AgentRelease is one row of agent_releases. It has the statuses of a stack release.
type AgentRelease struct {
	Version    string
	Serial     int64
	SHA256     string
	Rings      []ReleaseRing
	Status     ReleaseStatus
	Reason     prego.Reason
	Message    string
	CreatedBy  string
	CreatedAt  time.Time
	StartedAt  *time.Time
	FinishedAt *time.Time
}

// AgentReleaseServer is one row of agent_release_servers, with the version that the server's
// agent reported last.
type AgentReleaseServer struct {
	ServerID     prego.ServerID
	Ring         int
	Status       AgentReleaseStatus
	Message      string
	AgentVersion string
	OfferedAt    *time.Time
	FinishedAt   *time.Time
}

// SignedRelease is a release of the agent as it was signed.
type SignedRelease struct {
	Document  []byte
	Signature []byte
}

// SignedText is a SignedRelease in base64.
type SignedText struct {
	Document  string `json:"document"`
	Signature string `json:"signature"`
}

var sha256Digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// CreateAgentReleaseRequest is the body of POST /v1/agent-releases.
type CreateAgentReleaseRequest struct {
	Signed SignedText    `json:"signed"`
	Rings  []ReleaseRing `json:"rings,omitempty"`
}

// AgentReleaseSaid is the content of a signed release. Whether the signature is good is
// for hosts to judge: the control plane has no key for it.
type AgentReleaseSaid struct {
	Version string        `json:"version"`
	Serial  int64         `json:"serial"`
	SHA256  string        `json:"sha256"`
	Signed  SignedRelease `json:"-"`
}

// Validate checks the request's own fields and fills in the rings, of servers: percentages,
// and the rest.
func (r *CreateAgentReleaseRequest) Validate() (said AgentReleaseSaid, err error) {
	document, err := base64.StdEncoding.DecodeString(r.Signed.Document)
	signature, serr := base64.StdEncoding.DecodeString(r.Signed.Signature)
	said.Signed = SignedRelease{Document: document, Signature: signature}
	if err != nil || serr != nil || json.Unmarshal(document, &said) != nil || !releaseVersion.MatchString(said.Version) || said.Serial < 1 || !sha256Digest.MatchString(said.SHA256) || len(signature) == 0 {
		return said, prego.Invalid("signed", "must be what prego keys sign-agent prints")
	}
	rings := CreateStackReleaseRequest{Name: "agent", Image: "agent", Rings: r.Rings}
	if err := rings.Validate(); err != nil {
		return said, err
	}
	for _, ring := range rings.Rings {
		if len(ring.Tenants) > 0 {
			return said, prego.Invalid("rings", "are of servers, by percentages")
		}
	}
	r.Rings = rings.Rings
	return said, nil
}

// AgentReleaseLimits bound how a release of the agent is rolled out.
type AgentReleaseLimits struct {
	Servers int           // offered concurrently
	Within  time.Duration // how long a server may take
}

// AgentOffer is the serial of the release that a server should have.
type AgentOffer struct {
	ServerID prego.ServerID
	Serial   int64
}

// AgentReport is a host's report about the last release that it tried.
type AgentReport struct {
	Serial int64
	Status string
	Reason string
}

// AgentVersionCount is how many servers run a version of the agent.
type AgentVersionCount struct {
	Version string
	N       int
}
