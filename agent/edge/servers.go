package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// RefusedError means that a server rejected a configuration; the server keeps the previous one.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "configuration refused: " + e.Reason }

// caddy is a running Caddy, by its admin socket.
type caddy struct {
	client *http.Client
}

// loadTimeout is how long a server may take for a configuration; one with 10,000 hosts takes well under a second.
const loadTimeout = 30 * time.Second

func newCaddy(socket string) *caddy {
	return &caddy{client: &http.Client{Timeout: loadTimeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true, // the socket is another one after a restart
	}}}
}

// load makes Caddy use a configuration. Requests in progress end with their previous configuration. Loading the
// current configuration again changes nothing.
func (c *caddy) load(ctx context.Context, config []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://caddy/load", bytes.NewReader(config))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusOK:
		return nil
	}
	var said struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(answer, &said) != nil || said.Error == "" {
		said.Error = http.StatusText(resp.StatusCode)
	}
	return &RefusedError{Reason: said.Error}
}

// haproxy is a running HAProxy, by the socket of its master process.
type haproxy struct{ socket string }

// reload makes HAProxy read its file again. Connections that are open stay with the worker that has them.
func (h haproxy) reload(ctx context.Context) error {
	answer, err := h.ask(ctx, "reload")
	if err != nil {
		return fmt.Errorf("haproxy: %w", err)
	}
	first, log, _ := strings.Cut(answer, "\n")
	switch {
	case strings.HasPrefix(first, "Success=1"):
		return nil
	case strings.HasPrefix(first, "Success=0"):
		return &RefusedError{Reason: "haproxy: " + lastLine(log)}
	}
	// Before 2.7 the master reports nothing and becomes another process: ask the new one for its worker.
	for end := time.Now().Add(reloadTimeout); ; {
		answer, err := h.ask(ctx, "show proc")
		if err == nil {
			if fresh(answer) {
				return nil
			}
			if reloadFailed.MatchString(answer) || strings.Contains(answer, "# old workers") || time.Now().After(end) {
				return &RefusedError{Reason: "haproxy: it rejected the new configuration; see its log"}
			}
		} else if time.Now().After(end) {
			return fmt.Errorf("haproxy: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// session is a connection that a worker of HAProxy has.
type session struct{ frontend, backend string }

// cut ends connections of workers that a reload has replaced, and that wait until theirs have ended.
func (h haproxy) cut(ctx context.Context, which map[session]bool) error {
	processes, err := h.ask(ctx, "show proc")
	if err != nil {
		return err
	}
	for line := range strings.Lines(processes) {
		f := strings.Fields(line)
		if len(f) < 3 || f[1] != "worker" || f[2] == "0" {
			continue
		}
		all, err := h.ask(ctx, "@!"+f[0]+" show sess")
		if err != nil {
			return err
		}
		for line := range strings.Lines(all) {
			id, rest, _ := strings.Cut(line, ": ")
			var of session
			for word := range strings.FieldsSeq(rest) {
				switch name, value, _ := strings.Cut(word, "="); name {
				case "fe":
					of.frontend = value
				case "be":
					of.backend = value
				}
			}
			if !which[of] {
				continue
			}
			if _, err := h.ask(ctx, "@!"+f[0]+" shutdown session "+id); err != nil {
				return err
			}
		}
	}
	return nil
}

// reloadTimeout is how long a master of a version before 2.7 may take to reload.
const reloadTimeout = 5 * time.Second

// reloadFailed is the master's line in "show proc" when its last reloads failed.
var reloadFailed = regexp.MustCompile(`(?m)^\d+\s+master\s+\d+ \[failed: [1-9]`)

// fresh reports whether the master has a worker that began with the last reload:
// "<pid> worker <reloads since> <uptime> <version>".
func fresh(processes string) bool {
	for line := range strings.Lines(processes) {
		if f := strings.Fields(line); len(f) >= 3 && f[1] == "worker" && f[2] == "0" {
			return true
		}
	}
	return false
}

func (h haproxy) ask(ctx context.Context, command string) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", h.socket)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(loadTimeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, command+"\n"); err != nil {
		return "", err
	}
	// It answers until nothing more can be asked.
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 64<<20))
	return string(answer), err
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
