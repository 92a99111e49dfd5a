package exec

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// leases undo commands whose control plane has not come back in time (wire.Lease). Each is a file, which is there
// before its command runs, and until its undoing has succeeded.
type leases struct {
	dir string

	mu   sync.Mutex
	held map[string]*lease // by key
}

// lease is one on disk.
type lease struct {
	Until time.Time        `json:"until"`
	Ended bool             `json:"ended,omitempty"` // it is being undone
	Undo  wire.ExecRequest `json:"undo"`
}

const (
	// leaseEvery is how often leases are looked at, and leaseRetry the pause after an undoing that failed.
	leaseEvery = time.Second
	leaseRetry = 5 * time.Second
)

// openLeases reads the leases of an earlier process.
func openLeases(dir string) (*leases, error) {
	l := &leases{dir: dir, held: map[string]*lease{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("leases of commands: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("leases of commands: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") { // of a write that did not end
			continue
		}
		var one lease
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			err = json.Unmarshal(b, &one)
		}
		if err != nil {
			return nil, fmt.Errorf("lease %s: %w", e.Name(), err)
		}
		l.held[e.Name()] = &one
	}
	return l, nil
}

// leaseKey names what a lease undoes: a command that repeats the undoing ends the lease.
func leaseKey(kind wire.CommandKind, undo []string) string {
	return policy.Digest([]byte(string(kind) + "\x00" + strings.Join(undo, "\x00")))[:32]
}

func (l *leases) write(key string, one *lease) error {
	b, err := json.Marshal(one)
	if err == nil {
		err = host.WriteFile(filepath.Join(l.dir, key), b, 0o600)
	}
	return err
}

func (l *leases) drop(key string) error {
	err := os.Remove(filepath.Join(l.dir, key))
	if err == nil || os.IsNotExist(err) {
		delete(l.held, key)
		return nil
	}
	return err
}

// begin records a command's lease before it runs. Instead of running a command, keep has its earlier effect last.
func (l *leases) begin(k *policy.Command) (keep bool, refused *policy.Problem) {
	of := k.In.Lease
	if of == nil {
		return false, nil
	}
	key := leaseKey(k.In.Kind, of.Undo)
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.held[key]
	switch {
	case one != nil && one.Ended || one == nil && of.Seconds == 0:
		return false, &policy.Problem{
			Status: http.StatusConflict, Code: wire.CodeLeaseEnded, Detail: "the host has undone the command: its lease has ended",
		}
	case of.Seconds == 0:
		if l.drop(key) != nil {
			return false, leaseNotKept()
		}
		return true, nil
	case one != nil: // a repeated command does not make it longer
		return false, nil
	}
	one = &lease{Until: time.Now().Add(time.Duration(of.Seconds) * time.Second), Undo: wire.ExecRequest{
		WorkflowID: k.In.WorkflowID, ServerID: k.In.ServerID, Kind: k.In.Kind, Args: of.Undo,
		WorkingDir: k.In.WorkingDir, TenantID: k.In.TenantID,
	}}
	if err := l.write(key, one); err != nil {
		return false, leaseNotKept()
	}
	l.held[key] = one
	return false, nil
}

func leaseNotKept() *policy.Problem {
	return &policy.Problem{
		Status: http.StatusServiceUnavailable, Code: "lease_not_kept", Detail: "the host can't record when to undo the command", RetryAfter: 5,
	}
}

// undone ends the lease of what a command has undone.
func (l *leases) undone(k *policy.Command) *policy.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	if key := leaseKey(k.In.Kind, k.In.Args); l.held[key] != nil && l.drop(key) != nil {
		return leaseNotKept()
	}
	return nil
}

// due ends the leases whose time is over, and returns what undoes them.
func (l *leases) due(now time.Time, log *slog.Logger) (undo []wire.ExecRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, one := range l.held {
		if now.Before(one.Until) {
			continue
		}
		next := *one
		next.Ended, next.Until = true, now.Add(leaseRetry)
		if err := l.write(key, &next); err != nil {
			log.Error("a lease can't be ended", "error", err.Error())
			continue
		}
		l.held[key] = &next
		undo = append(undo, next.Undo)
	}
	return undo
}

// endLeases undoes the commands whose leases have ended, until the process ends.
func (c *commands) endLeases(log *slog.Logger) {
	tick := time.NewTicker(leaseEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			for _, in := range c.leases.due(now, log) {
				log.Warn("undoing a command: its control plane did not come back in time", "args", strings.Join(in.Args, " "))
				if _, refused := c.submit(in, log); refused != nil {
					log.Error("a command can't be undone", "code", refused.Code, "detail", refused.Detail)
				}
			}
		case <-c.ctx.Done():
			return
		}
	}
}
