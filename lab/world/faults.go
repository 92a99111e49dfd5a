package world

import (
	"fmt"
	"maps"
	libraries "math/rand"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// Fault is a fault that happened: the nth opportunity of its kind.
type Fault struct {
	Kind  string
	N     int
	Where string
}

func (f Fault) String() string { return fmt.Sprintf("%s %d (%s)", f.Kind, f.N, f.Where) }

// kinds are the faults that there are, and how likely each is at an opportunity when a seed
// has it on.
var kinds = map[string]float64{
	"sql_cut":          0.004, // a connection is cut before its statement
	"sql_lost":         0.006, // after its transaction was committed, before the answer
	"temporal_away":    0.01,  // a request to the workflow service is not taken
	"start_away":       0.25,  // the same, of an API that starts a run
	"temporal_lost":    0.01,  // it is, and the answer is lost: activities that ended run again
	"provider_refused": 0.03,  // the provider's connection is refused
	"provider_lost":    0.03,  // it acted, and the answer is lost
	"provider_500":     0.03,
	"provider_429":     0.02,
	"provider_slow":    0.02, // it answers later than the request waits
	"provider_late":    0.02, // the answer is lost, and it acts a minute later
	"worker_dies":      0.0015,
	"gateway_dies":     0.001,
	"api_dies":         0.001,
	"api_lost":         0.05,   // a caller does not get the answer
	"agent_cut":        0.02,   // a host's request to the gateway fails
	"agent_lost":       0.02,   // or its answer is lost
	"exec_refused":     0.03,   // a host can't be reached
	"exec_lost":        0.03,   // a command ran, and its answer is lost
	"clock_jump":       0.0005, // nothing happens for minutes
	// all connections end, and none is taken for some seconds, as while a standby takes over
	"postgres_away":    0.0008,
	"signal_twice":     0.1,  // a signal comes twice
	"signal_late":      0.1,  // or half a minute late
	"host_full":        0.05, // a host's disk is full
	"s3_refused":       0.03, // object storage's connection is refused, to the control plane or to a host
	"s3_500":           0.03, // or it fails
	"s3_lost":          0.03, // or it acted, and the answer is lost
	"dns_refused":      0.05, // the provider's zones can't be reached
	"dns_500":          0.05, // or it fails
	"dns_lost":         0.06, // or it acted, and the answer is lost
	"resolver_refused": 0.03, // a name server does not answer, or fails
	"resolver_fails":   0.03,
	"resolver_stale":   0.1,   // a resolver answers with some minutes old data
	"acme_refused":     0.03,  // the certificate authority's connection is refused
	"acme_500":         0.03,  // or it fails
	"acme_lost":        0.03,  // or it acted, and the answer is lost
	"acme_nonce":       0.03,  // or it does not know a nonce any more
	"partition":        0.004, // a host and the control plane don't reach each other for three minutes
}

// Kinds are the kinds of faults, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// Faults decides by the seed which faults happen. Each kind has a separate random stream, so that leaving one out does
// not change the others.
type Faults struct {
	mu      sync.Mutex
	on      map[string]float64
	rng     map[string]*rand.Rand
	n       map[string]int
	log     []Fault
	only    map[string]bool // "kind n"; nil for all
	stopped bool
	seed    uint64
	sayf    func(format string, args ...any)
}

// newFaults turns a random subset of the kinds on.
func newFaults(seed uint64, sayf func(string, ...any)) *Faults {
	f := &Faults{seed: seed, on: map[string]float64{}, rng: map[string]*rand.Rand{}, n: map[string]int{}, sayf: sayf}
	swarm := rand.New(rand.NewPCG(seed, 2))
	for i, k := range Kinds() {
		f.rng[k] = rand.New(rand.NewPCG(seed, uint64(100+i)))
		if swarm.IntN(2) == 0 {
			f.on[k] = kinds[k] * (0.5 + 2*swarm.Float64())
		}
	}
	if swarm.IntN(10) == 0 { // some seeds have none: the order alone is tested
		f.on = map[string]float64{}
	}
	return f
}

// steady makes the pause of a library before its next attempt, which comes from a shared random source, independent of
// earlier draws.
func steady(seed, n uint64) {
	libraries.Seed(int64(seed*1_000_003 + n)) //nolint:staticcheck,gosec // works with GODEBUG=randseednop=0
}

// hit decides whether a fault happens at this opportunity.
func (f *Faults) hit(kind, where string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, on := f.on[kind]
	if !on || f.stopped {
		return false
	}
	f.n[kind]++
	if f.rng[kind].Float64() >= p {
		return false
	}
	fault := Fault{Kind: kind, N: f.n[kind], Where: where}
	if f.only != nil && !f.only[key(fault)] {
		return false
	}
	f.log = append(f.log, fault)
	steady(f.seed, uint64(len(f.log)))
	f.sayf("FAULT %s", fault)
	return true
}

func key(f Fault) string { return fmt.Sprintf("%s %d", f.Kind, f.N) }

func (f *Faults) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
}

func (f *Faults) isStopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stopped
}

// Log are the faults that happened.
func (f *Faults) Log() []Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// Swarm returns the active kinds.
func (f *Faults) Swarm() string { return strings.Join(slices.Sorted(maps.Keys(f.on)), " ") }
