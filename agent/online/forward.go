package online

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// maxForwarded is how many requests may wait for commands concurrently.
const maxForwarded = 256

var errEnding = errors.New("the agent is ending")

// executorClient calls the process that runs commands.
func executorClient(h *host.Host) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return host.DialSocket(ctx, h.Path(wire.ExecSocket))
		},
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 8 << 10,
	}}
}

// askExecutor reads what only the process that runs commands can find out, as JSON.
func askExecutor(ctx context.Context, executor *http.Client, path string, within time.Duration, out any) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://exec"+path, nil)
	if err != nil {
		return err
	}
	resp, err := executor.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, host.Clip(host.Printable(string(body)), wire.MaxPatchText))
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, out)
}

// forward passes a request on and its answer back. When ctx ends, the caller gets an error; the command continues and
// can be joined by its audit id.
func (a *Agent) forward(ctx context.Context, w http.ResponseWriter, r *http.Request, body []byte, log *slog.Logger) *policy.Problem {
	select {
	case a.forwarded <- struct{}{}:
		defer func() { <-a.forwarded }()
	default:
		return &policy.Problem{Status: http.StatusTooManyRequests, Code: "busy", Detail: "too many callers wait for commands on this host", RetryAfter: 5}
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	defer func() { _ = control.SetWriteDeadline(time.Now().Add(host.WriteTime)) }()
	asking, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(errEnding) })()
	lost := func(err error) *policy.Problem {
		if errors.Is(context.Cause(asking), errEnding) {
			return policy.Stopping()
		}
		log.Warn("the process that runs commands did not answer", "error", err.Error())
		return &policy.Problem{Status: http.StatusServiceUnavailable, Code: "exec_unavailable", Detail: "the process that runs commands did not answer; ask again with the same audit id", RetryAfter: 5}
	}
	req, err := http.NewRequestWithContext(asking, http.MethodPost, "http://exec"+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return lost(err)
	}
	resp, err := a.executor.Do(req)
	if err != nil {
		if r.Context().Err() != nil {
			return nil // the caller is gone
		}
		return lost(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		relayExec(w, r, resp, lost)
		return nil
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, wire.MaxEvent))
	if err != nil {
		if r.Context().Err() != nil {
			return nil
		}
		return lost(err)
	}
	_ = control.SetWriteDeadline(time.Now().Add(host.WriteTime))
	copyHeader(w, resp)
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(answer)
	return nil
}

func copyHeader(w http.ResponseWriter, resp *http.Response) {
	for _, name := range []string{"Content-Type", "Retry-After", "Cache-Control"} {
		if v := resp.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
}

// relayExec passes whole events on, and reports it if they end before the last one.
func relayExec(w http.ResponseWriter, r *http.Request, resp *http.Response, lost func(error) *policy.Problem) {
	copyHeader(w, resp)
	w.WriteHeader(resp.StatusCode)
	control := http.NewResponseController(w)
	_ = control.Flush()
	in := bufio.NewReader(resp.Body)
	for {
		event, err := nextEvent(in)
		if err != nil {
			if r.Context().Err() == nil {
				_ = control.SetWriteDeadline(time.Now().Add(host.WriteTime))
				_ = wire.WriteEvent(w, wire.EventError, lost(err).Document())
			}
			return
		}
		_ = control.SetWriteDeadline(time.Now().Add(host.WriteTime))
		if _, err := w.Write(event); err != nil {
			return
		}
		if in.Buffered() == 0 {
			if control.Flush() != nil {
				return
			}
		}
		if bytes.HasPrefix(event, []byte("event: "+wire.EventResult+"\n")) || bytes.HasPrefix(event, []byte("event: "+wire.EventError+"\n")) {
			return
		}
	}
}

// nextEvent returns the text of an event with its empty line.
func nextEvent(in *bufio.Reader) ([]byte, error) {
	var out []byte
	for {
		line, err := in.ReadSlice('\n')
		out = append(out, line...)
		switch {
		case len(out) > wire.MaxEvent:
			return nil, wire.ErrEvent
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case bytes.HasSuffix(out, []byte("\n\n")):
			return out, nil
		}
	}
}
