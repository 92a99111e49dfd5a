package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prego/prego/agent/wire"
)

// Counter counts the requests in Caddy's log, by tenant and route.
type Counter struct {
	path string

	mu     sync.Mutex
	owners map[string]owner // by name of host
	passed map[string]bool  // names of hosts that other edges serve, and count
	counts map[owner]*wire.EdgeCounts
}

type owner struct{ tenant, route string }

// NewCounter counts what the server with its files in runDir logs.
func NewCounter(runDir string) *Counter {
	return &Counter{path: filepath.Join(runDir, accessLog), owners: map[string]owner{}, counts: map[owner]*wire.EdgeCounts{}}
}

// Follow sets the owners of the names.
func (c *Counter) Follow(d wire.EdgeDocument) {
	owners, passed := make(map[string]owner, len(d.Hosts)), map[string]bool{}
	for _, h := range d.Hosts {
		owners[h.Name] = owner{h.Tenant, h.Route}
		if len(h.Via) > 0 {
			passed[h.Name] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owners, c.passed = owners, passed
}

// Take returns at most n counts, and forgets them.
func (c *Counter) Take(n int) []wire.EdgeCounts {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]wire.EdgeCounts, 0, min(n, len(c.counts)))
	for o, v := range c.counts {
		if len(out) == n {
			break
		}
		out = append(out, *v)
		delete(c.counts, o)
	}
	return out
}

// Return gives back counts that could not be reported.
func (c *Counter) Return(counts []wire.EdgeCounts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range counts {
		t := c.of(owner{v.Tenant, v.Route})
		for i, n := range v.Statuses {
			t.Statuses[i] += n
		}
		for i, n := range v.Durations {
			t.Durations[i] += n
		}
		t.BytesIn, t.BytesOut, t.Seconds = t.BytesIn+v.BytesIn, t.BytesOut+v.BytesOut, t.Seconds+v.Seconds
	}
}

func (c *Counter) of(o owner) *wire.EdgeCounts {
	v := c.counts[o]
	if v == nil {
		v = &wire.EdgeCounts{Tenant: o.tenant, Route: o.route}
		c.counts[o] = v
	}
	return v
}

// entry is a line of Caddy's log.
type entry struct {
	Request struct {
		Host string `json:"host"`
	} `json:"request"`
	BytesRead int64   `json:"bytes_read"`
	Duration  float64 `json:"duration"` // seconds
	Size      int64   `json:"size"`
	Status    int     `json:"status"`
}

func (c *Counter) count(line []byte) {
	var e entry
	if json.Unmarshal(line, &e) != nil {
		return // cut by a crash
	}
	host := e.Request.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	class := e.Status/100 - 1
	if class < 0 || class > 4 {
		class = 4 // no answer: Caddy writes 0
	}
	bucket := 0
	for bucket < len(wire.EdgeDurations) && e.Duration > wire.EdgeDurations[bucket] {
		bucket++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if c.passed[host] {
		return
	}
	v := c.of(c.owners[host])
	v.Statuses[class]++
	v.Durations[bucket]++
	v.BytesIn, v.BytesOut, v.Seconds = v.BytesIn+e.BytesRead, v.BytesOut+e.Size, v.Seconds+e.Duration
}

// readEvery is how often the log is read. Between two reads Caddy would have to write more
// than two files' worth of lines, some 60,000 requests each, for some to be lost.
const readEvery = 500 * time.Millisecond

// Run follows the log, from its end, until ctx ends.
func (c *Counter) Run(ctx context.Context) {
	t := time.NewTicker(readEvery)
	defer t.Stop()
	var f *os.File
	defer func() {
		if f != nil {
			_ = f.Close()
		}
	}()
	var rest []byte
	for first := true; ; first = false {
		if f == nil {
			if opened, err := os.Open(c.path); err == nil {
				f, rest = opened, nil
				if first {
					_, _ = f.Seek(0, io.SeekEnd)
				}
			}
		}
		if f != nil {
			rest = c.drain(f, rest)
			if moved(f, c.path) {
				c.drain(f, rest) // the lines written before the move
				_ = f.Close()
				f = nil
				continue // the new one has begun already
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// drain counts whole lines, and returns the rest of the last line.
func (c *Counter) drain(f *os.File, rest []byte) []byte {
	r := bufio.NewReaderSize(f, 256<<10)
	for {
		line, err := r.ReadBytes('\n')
		if len(rest) > 0 {
			line = append(bytes.Clone(rest), line...)
			rest = nil
		}
		if err != nil {
			if len(line) > 64<<10 {
				return nil // no line of Caddy's
			}
			return line
		}
		c.count(line)
	}
}

// moved reports whether the log at a path has become another file.
func moved(f *os.File, path string) bool {
	at, err := os.Stat(path)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	mine, err := f.Stat()
	if err != nil {
		return true
	}
	a, ok := at.Sys().(*syscall.Stat_t)
	b, ok2 := mine.Sys().(*syscall.Stat_t)
	return ok && ok2 && a.Ino != b.Ino
}
