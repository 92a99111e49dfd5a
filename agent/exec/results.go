package exec

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// keptResults is how many results are remembered.
const keptResults = 1000

// results remembers the results of the latest commands, across restarts.
type results struct {
	dir string
	// key is for comparing secrets without storing them; it never leaves this host.
	key []byte

	mu    sync.Mutex
	calls map[string]*call // by audit id
	order []string         // oldest first
}

// kept is a result on disk, or the mark of a command that has begun.
type kept struct {
	Digest string    `json:"digest"` // of the command
	At     time.Time `json:"at"`
	// Begun: the outcome is not known yet and, if another process reads this, never
	// will be.
	Begun  bool            `json:"begun,omitempty"`
	Result wire.ExecResult `json:"result"`
}

// outcomeUnknown answers for a command that had begun when its process died, or that
// was killed by somebody else: it is not run twice under one id.
func outcomeUnknown() *policy.Problem {
	return &policy.Problem{Status: http.StatusConflict, Code: wire.CodeOutcomeUnknown, Detail: "the command had begun, and how it ended is not known; look, and ask with another id"}
}

// openResults reads the results of an earlier agent. Unreadable files are removed:
// their commands run again.
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
		if e.Name() == digestKeyFile || e.IsDir() {
			continue
		}
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
	r := &results{dir: dir, key: digestKey(filepath.Join(dir, digestKeyFile)), calls: make(map[string]*call)}
	ended := make(chan struct{})
	close(ended)
	for _, k := range found {
		var failed *policy.Problem
		if k.Begun {
			failed = outcomeUnknown()
		}
		r.remember(k.Result.AuditID, k.Digest, ended, k.Result, failed)
	}
	return r, nil
}

const digestKeyFile = "digest.key"

// digestKey is the stored key, or a new one. With another key, a repeated command with
// secrets is taken for a different one and refused; a full disk costs no more than
// that.
func digestKey(name string) []byte {
	if b, err := os.ReadFile(name); err == nil && len(b) == sha256.Size {
		return b
	}
	b := make([]byte, sha256.Size)
	_, _ = rand.Read(b) // never fails
	_ = host.WriteFile(name, b, 0o600)
	return b
}

// withSecrets is the digest of a command including its secrets. It is stored on disk: a
// guessed secret can only be verified with the key.
func (r *results) withSecrets(command string, secrets map[string]string) string {
	if len(secrets) == 0 {
		return command
	}
	mac := hmac.New(sha256.New, r.key)
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		fmt.Fprintf(mac, "%s\x00%s\x00", name, secrets[name])
	}
	return policy.Digest([]byte(command + hex.EncodeToString(mac.Sum(nil))))
}

// write writes a result down, or the mark of a command that has begun.
func (r *results) write(c *call, begun bool, result wire.ExecResult) error {
	result.AuditID = c.In.AuditID
	b, err := json.Marshal(kept{Digest: c.Digest, At: time.Now().UTC(), Begun: begun, Result: result})
	if err != nil {
		return err
	}
	return host.WriteFile(filepath.Join(r.dir, resultFile(c.In.AuditID)), b, 0o600)
}

// begin marks a command as begun, on disk, before it does anything.
func (r *results) begin(c *call) error { return r.write(c, true, wire.ExecResult{}) }

// forget removes the mark of a command that did nothing after all.
func (r *results) forget(c *call) { _ = os.Remove(filepath.Join(r.dir, resultFile(c.In.AuditID))) }

// lose records that the outcome of a command is unknown.
func (r *results) lose(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remember(c.In.AuditID, c.Digest, c.ended, wire.ExecResult{}, outcomeUnknown())
}

// resultFile is the name of an audit id's file, whatever characters the id has.
func resultFile(auditID string) string {
	return policy.Digest([]byte(auditID)) + ".json"
}

func (r *results) find(auditID string) (*call, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.calls[auditID]
	return c, ok
}

// keep stores a result, on disk first.
func (r *results) keep(c *call) error {
	err := r.write(c, false, c.result)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remember(c.In.AuditID, c.Digest, c.ended, c.result, nil)
	return err
}

// remember keeps how a command ended, without its output and arguments: a thousand results are kept.
func (r *results) remember(
	auditID, digest string, ended chan struct{}, result wire.ExecResult, failed *policy.Problem,
) {
	of := &policy.Command{In: wire.ExecRequest{AuditID: auditID}, Digest: digest}
	r.calls[auditID] = &call{Command: of, ended: ended, result: result, failed: failed}
	r.order = append(r.order, auditID)
	for len(r.order) > keptResults {
		delete(r.calls, r.order[0])
		_ = os.Remove(filepath.Join(r.dir, resultFile(r.order[0])))
		r.order = r.order[1:]
	}
}
