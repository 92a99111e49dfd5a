package agentgw

import (
	"sync"
	"time"

	"github.com/prego/prego"
)

// awaited are the servers whose runs wait for a heartbeat. A run is signalled once its condition holds, and not by
// each heartbeat while its containers start.
type awaited struct {
	mu       sync.Mutex
	expected map[prego.ServerID]bool // handshake done here, first heartbeat still to come
	told     map[prego.ServerID]told
}

// told is a signal sent to a run.
type told struct {
	attempt int
	at      time.Time
}

const (
	// tellAgain is after how long a heartbeat of a server that is still provisioning signals its run once more: the
	// run that received the previous signal may have ended.
	tellAgain = time.Minute
	// maxAwaited bounds the remembered servers. Forgetting one costs a signal.
	maxAwaited = 10_000
)

func newAwaited() awaited {
	return awaited{expected: map[prego.ServerID]bool{}, told: map[prego.ServerID]told{}}
}

// expect notes a handshake: the next heartbeat signals the server's run again.
func (a *awaited) expect(id prego.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.expected) >= maxAwaited {
		clear(a.expected)
	}
	a.expected[id] = true
	delete(a.told, id)
}

// arrived reports whether a heartbeat is the first one after a handshake.
func (a *awaited) arrived(id prego.ServerID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.expected[id]
	delete(a.expected, id)
	return first
}

// tell reports whether to signal the run of a provisioning server, and notes the signal.
func (a *awaited) tell(id prego.ServerID, attempt int, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t, was := a.told[id]; was && t.attempt == attempt && now.Sub(t.at) < tellAgain {
		return false
	}
	if len(a.told) >= maxAwaited {
		clear(a.told)
	}
	a.told[id] = told{attempt: attempt, at: now}
	return true
}

// forget makes the next heartbeat of a provisioning server signal its run.
func (a *awaited) forget(id prego.ServerID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.told, id)
}
