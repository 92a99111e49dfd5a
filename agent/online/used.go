package online

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
)

// leeway is more than the clocks of a host and the control plane may differ: a token is
// remembered for so long after its expiry.
const leeway = time.Minute

// seen remembers used tokens until they expire, across restarts: each is valid once.
type seen struct {
	mu   sync.Mutex
	ids  map[string]time.Time // by digest of the token's id
	file *os.File             // a line each
	size int                  // lines in the file
	name string               // of the file
}

// rewriteNext is the size of the file above which the next token triggers a rewrite.
const rewriteNext = 1 << 30

// openSeen reads and continues an earlier agent's file. An unreadable line is a partial write, of a token whose
// command never began.
//
// If the file can't be written, perhaps because the disk is full, heartbeats continue: tokens are refused until it
// can.
func openSeen(name string) (*seen, error) {
	s := &seen{ids: make(map[string]time.Time), name: name}
	b, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("used tokens: %w", err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		id, until, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseInt(until, 10, 64); err == nil {
			s.ids[id] = time.Unix(n, 0)
		}
	}
	if s.rewrite() != nil {
		s.size = rewriteNext
	}
	return s, nil
}

// rewrite drops expired tokens from the file.
func (s *seen) rewrite() error {
	s.forget(time.Now())
	var b bytes.Buffer
	for id, until := range s.ids {
		fmt.Fprintf(&b, "%s %d\n", id, until.Unix())
	}
	if err := host.WriteFile(s.name, b.Bytes(), 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(s.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("used tokens: %w", err)
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	s.file, s.size = f, len(s.ids)
	return nil
}

func (s *seen) forget(now time.Time) {
	for id, until := range s.ids {
		if now.After(until.Add(leeway)) {
			delete(s.ids, id)
		}
	}
}

// use accepts a token's id once. It is on disk before the command begins; a token that can't be recorded is refused.
func (s *seen) use(id string, expires time.Time) (bool, error) {
	id = policy.Digest([]byte(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(time.Now())
	if _, used := s.ids[id]; used {
		return false, nil
	}
	s.ids[id] = expires
	if s.size > 2*len(s.ids)+1000 {
		if err := s.rewrite(); err != nil { // the new one included
			return false, err
		}
		return true, nil
	}
	if _, err := fmt.Fprintf(s.file, "%s %d\n", id, expires.Unix()); err != nil {
		s.size = rewriteNext // a partial line may be there
		return false, fmt.Errorf("used tokens: %w", err)
	}
	s.size++
	if err := s.file.Sync(); err != nil {
		return false, fmt.Errorf("used tokens: %w", err)
	}
	return true, nil
}
