package online

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/prego/prego/agent/host"
)

// epoch is the highest epoch of the control plane that the host has seen. It grows when a restored database takes the
// place of another one.
type epoch struct {
	mu      sync.Mutex
	highest int64
	name    string // of the file
}

func openEpoch(name string) (*epoch, error) {
	e := &epoch{name: name}
	b, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return e, nil
	}
	if err == nil {
		e.highest, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	}
	if err != nil {
		return nil, fmt.Errorf("the control plane's epoch: %w", err)
	}
	return e, nil
}

// raise returns the highest epoch, which is on disk before a command of it runs.
func (e *epoch) raise(to int64) (highest int64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if to > e.highest {
		if err := host.WriteFile(e.name, []byte(strconv.FormatInt(to, 10)+"\n"), 0o600); err != nil {
			return e.highest, err
		}
		e.highest = to
	}
	return e.highest, nil
}
