package host

import (
	"net/url"
	"strconv"
	"time"

	"github.com/prego/prego/agent/wire"
)

// BenchRequest is what the executor asks of the process that holds the engine's socket:
// to run a command line, or to return or set the owner of a site.
type BenchRequest struct {
	Args           []string `json:"args,omitempty"`
	WorkingDir     string   `json:"working_dir,omitempty"`
	TimeoutSeconds int      `json:"timeout_seconds,omitempty"`
	// Secrets are the request's; the host's own are added where the command runs.
	Secrets map[string]string `json:"secrets,omitempty"`

	// Spool is set for pieces of sealed backups; then Args may only be one of their command lines.
	Spool bool `json:"spool,omitempty"`

	OwnerOf string `json:"owner_of,omitempty"`
	GiveTo  string `json:"give_to,omitempty"`
}

// BenchFrame is a part of the answer. Exit, Refused and Lost end it.
type BenchFrame struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	// Exit is the supervisor's status.
	Exit *int `json:"exit,omitempty"`
	// Refused is why nothing ran.
	Refused string `json:"refused,omitempty"`
	// Lost is set if it ran and its outcome is unknown.
	Lost string `json:"lost,omitempty"`
}

// SiteOwnerVerb makes the agent's program print a site's owner, and make it a tenant's.
const SiteOwnerVerb = "site-owner"

// OwnerTime is how long reading a site's owner in a container may take.
const OwnerTime = 30 * time.Second

// DeviceRequest is what the executor asks a process for that is root's.
type DeviceRequest struct {
	Kind    wire.CommandKind  `json:"kind"`
	Args    []string          `json:"args"`
	Secrets map[string]string `json:"secrets,omitempty"`
}

// DeviceAnswer is what the executor gets. Unless it failed, what the verb wrote follows.
type DeviceAnswer struct {
	Failed string `json:"failed,omitempty"`
}

// WatchFrame is a Watcher's report: the present containers, each as a whole.
type WatchFrame struct {
	Full       bool               `json:"full,omitempty"` // there are no others; previous frames are obsolete
	Containers []WatchedContainer `json:"containers,omitempty"`
}

// WatchedContainer is the state of one container. Its environment, which may hold secrets, is not passed on.
type WatchedContainer struct {
	Instance  string    `json:"instance"`
	Running   bool      `json:"running,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	Health    string    `json:"health,omitempty"` // of the engine's own check, "" if it has none
	Check     string    `json:"check,omitempty"`  // a wire.HealthCheck, "" for none
	Address   string    `json:"address,omitempty"`
	Detail    string    `json:"detail,omitempty"`
}

// PeersRequest hands a document over; without one it asks for the active document.
type PeersRequest struct {
	Signed *wire.SignedPeers `json:"signed,omitempty"`
	// Caller is where the control plane just called from, "" if it did not: a document that
	// does not let that address in is refused.
	Caller string `json:"caller,omitempty"`
}

// PeersAnswer is the active document after a request.
type PeersAnswer struct {
	Applied int64    `json:"applied"`
	Address string   `json:"address,omitempty"`
	Keys    []string `json:"keys,omitempty"`    // ids of the keys that may sign the next document
	Refused string   `json:"refused,omitempty"` // why the document of this request is not active
	// LeftOut are the parts of the active document that can't be applied, with the reasons.
	LeftOut string `json:"left_out,omitempty"`
}

// NFTTime bounds a run of nft.
const NFTTime = 20 * time.Second

// UpdateRequest asks for the state; with a release it has it tried, and its program follows.
type UpdateRequest struct {
	Offer *wire.SignedAgentUpdate `json:"offer,omitempty"`
	// Heard is the version of the agent that asks, once the gateway has taken its heartbeats.
	Heard string `json:"heard,omitempty"`
}

// UpdateAnswer is the state after a request.
type UpdateAnswer struct {
	wire.UpdateReport
	// Swapped is set if the program was replaced: the caller must start again.
	Swapped bool `json:"swapped,omitempty"`
}

// SwapTime bounds a request: a program is read, checked and started once.
const SwapTime = 2 * time.Minute

// PathMeasures is served only to the agent, on the host's socket.
const PathMeasures = "/measures"

// Measures are what the host's services report; 0 is unknown.
type Measures struct {
	WorkerSlots int   `json:"worker_slots"` // background workers
	WorkersBusy int   `json:"workers_busy"`
	RedisUsed   int64 `json:"redis_used"`  // bytes
	RedisLimit  int64 `json:"redis_limit"` // limit, in bytes
}

// MeasureTime bounds how long a heartbeat waits for the services.
const MeasureTime = 2 * time.Second

// PathPatches is served only to the agent, on the host's socket.
const PathPatches = "/patches"

// PathSpool is served only to the agent, on the host's socket.
const PathSpool = "/spool"

// PieceTime bounds the way of a piece of a sealed backup from one process to the next.
const PieceTime = 5 * time.Minute

// SpoolURL names a piece for the process that runs commands.
func SpoolURL(site, volume, backup string, offset, length int64) string {
	q := url.Values{"site": {site}, "volume": {volume}, "backup": {backup}, "offset": {strconv.FormatInt(offset, 10)}, "length": {strconv.FormatInt(length, 10)}}
	return "http://exec" + PathSpool + "?" + q.Encode()
}
