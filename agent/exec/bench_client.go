package exec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/supervise"
)

var errLost = errors.New("how it ended is not known")

// askBench requests a command in the container. Closing this side's half of the
// connection kills it; the other half then reports how it ended.
//
// input, if it is not nil, is what the command reads after its secrets; if it ends with an
// error, so does the command.
func (h *workplace) askBench(ctx context.Context, socket string, in host.BenchRequest, input io.Reader, stdout, stderr io.Writer) (status int, err error) {
	conn, err := host.DialSocket(ctx, h.Path(socket))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() {
		_ = conn.(*net.UnixConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(supervise.AskTime))
	})()
	if err := json.NewEncoder(conn).Encode(in); err != nil {
		return 0, fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	if input != nil {
		go func() {
			if supervise.Feed(conn, input) != nil {
				_ = conn.(*net.UnixConn).CloseWrite()
			}
		}()
	}
	errs := &supervise.AfterPreamble{To: stderr}
	var early bytes.Buffer // of the other stream, which may be ahead; or the engine's error instead of a supervisor
	for dec := json.NewDecoder(conn); ; {
		var f host.BenchFrame
		if err := dec.Decode(&f); err != nil {
			return 0, fmt.Errorf("%w: %w", errLost, err)
		}
		_, _ = errs.Write(f.Stderr)
		early.Write(f.Stdout)
		if errs.Begun || early.Len() > MaxOutput {
			_, _ = early.WriteTo(stdout)
		}
		switch {
		case f.Refused != "":
			return 0, fmt.Errorf("%w: %s", host.ErrUnavailable, f.Refused)
		case f.Lost != "":
			return 0, fmt.Errorf("%w: %s", errLost, f.Lost)
		case f.Exit != nil && !errs.Begun:
			return 0, fmt.Errorf("%w: the container can't run it: %s", host.ErrUnavailable, host.Printable(strings.TrimSpace(early.String())))
		case f.Exit != nil:
			return *f.Exit, nil
		}
	}
}

// askOwner reads the owner of a site in the container, after setting it to giveTo if
// that is not empty.
func (h *workplace) askOwner(ctx context.Context, socket, site, giveTo string) (string, error) {
	var stdout, stderr tail
	status, err := h.askBench(ctx, socket, host.BenchRequest{OwnerOf: site, GiveTo: giveTo}, nil, &stdout, &stderr)
	switch {
	case err != nil:
		return "", err
	case status != 0:
		return "", fmt.Errorf("ended with %d: %s", status, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
