package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego/agent/wire"
)

// keptResults is how many results are remembered.
const keptResults = 1000

// results remembers what the latest commands came to, across restarts.
type results struct {
	dir string

	mu    sync.Mutex
	calls map[string]*call // by audit id
	order []string         // oldest first
}

// kept is a result on disk.
type kept struct {
	Digest string          `json:"digest"` // of the command
	At     time.Time       `json:"at"`
	Result wire.ExecResult `json:"result"`
}

// openResults reads what an earlier agent left. A file that can't be read is
// removed: its command runs again.
func openResults(dir string) (*results, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("results of commands: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("results of commands: %w", err)
	}
	var found []kept
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		var k kept
		b, err := os.ReadFile(name)
		if err != nil || json.Unmarshal(b, &k) != nil || e.Name() != resultFile(k.Result.AuditID) {
			_ = os.Remove(name)
			continue
		}
		found = append(found, k)
	}
	slices.SortFunc(found, func(a, b kept) int {
		return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Result.AuditID, b.Result.AuditID))
	})
	r := &results{dir: dir, calls: make(map[string]*call)}
	for _, k := range found {
		ended := make(chan struct{})
		close(ended)
		r.remember(&call{in: wire.ExecRequest{AuditID: k.Result.AuditID}, digest: k.Digest, ended: ended, result: k.Result})
	}
	return r, nil
}

// resultFile is the name of an audit id's file, whatever the id holds.
func resultFile(auditID string) string {
	return digest([]byte(auditID)) + ".json"
}

func (r *results) find(auditID string) (*call, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.calls[auditID]
	return c, ok
}

// keep remembers a result, on disk first.
func (r *results) keep(c *call) error {
	b, err := json.Marshal(kept{Digest: c.digest, At: time.Now().UTC(), Result: c.result})
	if err == nil {
		err = writeFile(filepath.Join(r.dir, resultFile(c.in.AuditID)), b, 0o600)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// Without what the command printed and was called with: a thousand are kept.
	r.remember(&call{in: wire.ExecRequest{AuditID: c.in.AuditID}, digest: c.digest, ended: c.ended, result: c.result})
	return err
}

func (r *results) remember(c *call) {
	r.calls[c.in.AuditID] = c
	r.order = append(r.order, c.in.AuditID)
	for len(r.order) > keptResults {
		delete(r.calls, r.order[0])
		_ = os.Remove(filepath.Join(r.dir, resultFile(r.order[0])))
		r.order = r.order[1:]
	}
}
