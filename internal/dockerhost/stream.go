package dockerhost

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/prego/prego/server"
)

// LogOptions select a part of a container's output.
type LogOptions struct {
	Tail   int  // lines from the end, 0 for all
	Follow bool // continue until the container or ctx ends
	Since  time.Time
	Times  bool // prefix each line with its time
}

// Logs copies both streams of a container's output to w, unredacted.
func (h *Host) Logs(ctx context.Context, name string, o LogOptions, w io.Writer) error {
	opts := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: o.Follow, Timestamps: o.Times}
	if o.Tail > 0 {
		opts.Tail = strconv.Itoa(o.Tail)
	}
	if !o.Since.IsZero() {
		opts.Since = o.Since.UTC().Format(time.RFC3339Nano)
	}
	logs, err := h.c.ContainerLogs(ctx, h.name(name), opts)
	if cerrdefs.IsNotFound(err) {
		return fmt.Errorf("container %s: %w", name, ErrNoContainer)
	}
	if err != nil {
		return classify(name, classifyError("logs", err))
	}
	defer func() { _ = logs.Close() }()
	// Both streams come through one connection, each piece with a header.
	_, err = stdcopy.StdCopy(w, w, logs)
	if err == nil && ctx.Err() != nil { // a cancelled request can look like the end of the stream
		err = ctx.Err()
	}
	return classify(name, classifyError("logs", err))
}

// Stats takes one sample of a container's usage.
func (h *Host) Stats(ctx context.Context, name string) (server.ContainerStats, error) {
	got, err := h.c.ContainerStats(ctx, h.name(name), client.ContainerStatsOptions{})
	if cerrdefs.IsNotFound(err) {
		return server.ContainerStats{}, fmt.Errorf("container %s: %w", name, ErrNoContainer)
	}
	if err != nil {
		return server.ContainerStats{}, classify(name, classifyError("stats", err))
	}
	defer func() { _ = got.Body.Close() }()
	var s container.StatsResponse
	if err := json.NewDecoder(io.LimitReader(got.Body, 1<<20)).Decode(&s); err != nil {
		return server.ContainerStats{}, classify(name, classifyError("stats", err))
	}
	return server.ContainerStats{
		At: s.Read, CPU: time.Duration(s.CPUStats.CPUUsage.TotalUsage), //nolint:gosec // nanoseconds
		MemoryBytes: s.MemoryStats.Usage, MemoryLimit: s.MemoryStats.Limit, Pids: s.PidsStats.Current,
	}, nil
}

// lastBytes is how much of a container's output an error shows.
const lastBytes = 2 << 10

// lastLines are the last lines of a container's output, without its secrets.
func (h *Host) lastLines(ctx context.Context, spec server.ContainerSpec) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var all tail
	if err := h.Logs(ctx, spec.Name, LogOptions{Tail: 20}, &all); err != nil && all.Len() == 0 {
		return "its logs can't be read"
	}
	// Masked before it is cut, so that no half of a secret remains.
	text := strings.TrimSpace(strings.ToValidUTF8(spec.Redact(all.String()), "?"))
	text = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
	if over := len(text) - lastBytes; over > 0 {
		text = strings.ToValidUTF8(text[over:], "")
	}
	if text == "" {
		return "it wrote nothing"
	}
	return "its last lines: " + text
}

// tail keeps the last part of its input.
type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	const keep = 16 * lastBytes
	if len(p) > keep {
		p = p[len(p)-keep:]
	}
	if over := t.Len() + len(p) - keep; over > 0 {
		t.Next(over)
	}
	t.Buffer.Write(p)
	return n, nil
}
