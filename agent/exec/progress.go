package exec

import (
	"bytes"
	"strings"
	"sync"

	"github.com/prego/prego/agent/wire"
)

// Limits of the lines that are kept of a running command, for streams.
const (
	maxLine     = 4 << 10  // a longer one is passed on in parts
	maxProgress = 64 << 10 // of all lines together
	lineCost    = 64       // overhead of a line besides its text
)

// progress holds the latest lines of a running command. Any number of streams read
// them, each at its own pace; the command never waits for one.
type progress struct {
	mu    sync.Mutex
	lines []wire.ExecProgress // oldest first
	first int                 // the number of lines[0]
	size  int
	wake  chan struct{} // closed when there are more
}

func newProgress() *progress { return &progress{wake: make(chan struct{})} }

func (p *progress) add(stream string, text []byte) {
	line := wire.ExecProgress{Stream: stream, Line: strings.ToValidUTF8(string(text), "\uFFFD")}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, line)
	p.size += lineCost + len(line.Line)
	drop := 0
	for ; p.size > maxProgress; drop++ {
		p.size -= lineCost + len(p.lines[drop].Line)
		p.lines[drop] = wire.ExecProgress{}
	}
	p.lines, p.first = p.lines[drop:], p.first+drop
	close(p.wake)
	p.wake = make(chan struct{})
}

// from returns the lines from number n on, the number to continue with, and a channel
// that is closed when there are more. Lines that are no longer kept are counted in the
// first one's Missed.
func (p *progress) from(n int) (out []wire.ExecProgress, next int, wake <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out = append(out, p.lines[min(len(p.lines), max(0, n-p.first)):]...)
	if missed := p.first - n; missed > 0 && len(out) > 0 {
		out[0].Missed = missed
	}
	return out, p.first + len(p.lines), p.wake
}

// lineWriter splits a command's output into lines. A carriage return ends one, too:
// progress bars are drawn with it.
type lineWriter struct {
	to     *progress
	stream string
	part   []byte
	cr     bool // the last byte was a carriage return, so that a newline ends nothing
}

func (w *lineWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if w.cr && rest[0] == '\n' {
			rest, w.cr = rest[1:], false
			continue
		}
		w.cr = false
		i := bytes.IndexAny(rest, "\r\n")
		room := maxLine - len(w.part)
		switch {
		case i >= 0 && i <= room:
			w.part = append(w.part, rest[:i]...)
			w.cr = rest[i] == '\r'
			rest = rest[i+1:]
			w.emit()
		case len(rest) < room:
			w.part, rest = append(w.part, rest...), nil
		default:
			w.part, rest = append(w.part, rest[:room]...), rest[room:]
			w.emit()
		}
	}
	return len(p), nil
}

func (w *lineWriter) emit() {
	w.to.add(w.stream, w.part)
	w.part = w.part[:0]
}

// end flushes an unfinished last line.
func (w *lineWriter) end() {
	if len(w.part) > 0 {
		w.emit()
	}
}
