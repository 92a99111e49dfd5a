package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Events of PathExecStream: any number of progress events, then one result or one error. A stream that ends without
// either was cut off: the command may still be running, and the same audit id joins it. A refusal comes before the
// stream, as a Problem with its status.
const (
	EventProgress = "progress" // ExecProgress
	EventResult   = "result"   // ExecResult
	EventError    = "error"    // Problem
)

// ExecProgress is a line of a command's output.
type ExecProgress struct {
	Stream string `json:"stream"` // "stdout" or "stderr"
	Line   string `json:"line"`
	// Missed lines before this one are no longer kept: a late or slow reader never delays the command.
	Missed int `json:"missed,omitempty"`
}

// MaxEvent bounds an event's data, in bytes.
const MaxEvent = 256 << 10

// ErrEvent means that a stream does not consist of events.
var ErrEvent = errors.New("not a stream of events")

// WriteEvent writes one server-sent event.
func WriteEvent(w io.Writer, name string, v any) error {
	b, err := json.Marshal(v) // on one line
	if err != nil {
		return fmt.Errorf("event: %w", err)
	}
	_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, b)
	return err
}

// WriteKeepAlive writes a comment, which readers skip.
func WriteKeepAlive(w io.Writer) error {
	_, err := io.WriteString(w, ": keep-alive\n\n")
	return err
}

// EventReader reads server-sent events.
type EventReader struct{ r *bufio.Reader }

// NewEventReader reads from r.
func NewEventReader(r io.Reader) *EventReader { return &EventReader{r: bufio.NewReader(r)} }

// Next returns the next event. io.EOF means that the stream ended between two events.
func (e *EventReader) Next() (name string, data []byte, err error) {
	begun := false
	for {
		line, err := e.line()
		switch {
		case errors.Is(err, io.EOF) && begun:
			return "", nil, io.ErrUnexpectedEOF
		case err != nil:
			return "", nil, err
		case len(line) == 0 && name != "":
			return name, bytes.TrimSuffix(data, []byte("\n")), nil
		case len(line) == 0: // events without a name are not ours
			data, begun = nil, false
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "": // a comment
			continue
		case "event":
			name = string(value)
		case "data":
			if data = append(append(data, value...), '\n'); len(data) > MaxEvent {
				return "", nil, ErrEvent
			}
		}
		begun = true
	}
}

// line is the next line without its newline, which even the last one must have.
func (e *EventReader) line() ([]byte, error) {
	var out []byte
	for {
		part, err := e.r.ReadSlice('\n')
		if out = append(out, part...); len(out) > MaxEvent {
			return nil, ErrEvent
		}
		switch {
		case err == nil:
			return bytes.TrimSuffix(out[:len(out)-1], []byte("\r")), nil
		case errors.Is(err, io.EOF) && len(out) > 0:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
