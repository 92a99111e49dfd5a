package ops

import "time"

// LookState is when a look was taken last, and what it came to.
type LookState struct {
	Look         string
	Holder       string     // the worker that looked last
	LookedAt     *time.Time // when one last succeeded
	FoundAt      *time.Time // when one last found something to do
	EverySeconds float64    // from the beginning of one to that of the next
	TookSeconds  float64    // the last one
	Error        string     // why the last one failed
}

// The processes beside the API, each with a look: its own readiness. Whichever process of the kind looks, one runs.
const (
	ProcessGateway = "agentgw"
	ProcessWorker  = "worker"

	// ProcessEvery is how often they look. A minute after the last look none counts as running.
	ProcessEvery = 10 * time.Second
)

// ProcessState is whether processes of a kind run.
type ProcessState struct {
	Process string
	SeenAt  *time.Time // nil: never
	Silent  bool       // for a minute
	Error   string     // why the last one that looked was not ready
}

// LookResult is what a look came to.
type LookResult struct {
	Found bool // something to do
	// Pause is the least time from the beginning of this look to that of the next one, for
	// looks that read more the larger the fleet is.
	Pause time.Duration
}

// serversPerSecond bounds how much of a fleet is read in a second by looks that read all of
// it; a larger fleet than a minute's is still read once a minute.
const serversPerSecond = 1000

// FleetPause is how long a look that reads a whole fleet pauses.
func FleetPause(servers int) time.Duration {
	return min(time.Duration(servers)*time.Second/serversPerSecond, time.Minute)
}
