package agent

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
)

var errLost = errors.New("how it ended is not known")

// askBench requests a command in the container. Closing this side's half of the
// connection kills it; the other half then reports how it ended.
//
// input, if it is not nil, is what the command reads after its secrets; if it ends with an
// error, so does the command.
func (h *workplace) askBench(ctx context.Context, socket string, in benchRequest, input io.Reader, stdout, stderr io.Writer) (status int, err error) {
	conn, err := dialSocket(ctx, h.path(socket))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() {
		_ = conn.(*net.UnixConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(askTime))
	})()
	if err := json.NewEncoder(conn).Encode(in); err != nil {
		return 0, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	if input != nil {
		go func() {
			if feedTo(conn, input) != nil {
				_ = conn.(*net.UnixConn).CloseWrite()
			}
		}()
	}
	errs := &afterPreamble{to: stderr}
	var early bytes.Buffer // of the other stream, which may be ahead; or the engine's error instead of a supervisor
	for dec := json.NewDecoder(conn); ; {
		var f benchFrame
		if err := dec.Decode(&f); err != nil {
			return 0, fmt.Errorf("%w: %w", errLost, err)
		}
		_, _ = errs.Write(f.Stderr)
		early.Write(f.Stdout)
		if errs.begun || early.Len() > maxOutput {
			_, _ = early.WriteTo(stdout)
		}
		switch {
		case f.Refused != "":
			return 0, fmt.Errorf("%w: %s", errUnavailable, f.Refused)
		case f.Lost != "":
			return 0, fmt.Errorf("%w: %s", errLost, f.Lost)
		case f.Exit != nil && !errs.begun:
			return 0, fmt.Errorf("%w: the container can't run it: %s", errUnavailable, printable(strings.TrimSpace(early.String())))
		case f.Exit != nil:
			return *f.Exit, nil
		}
	}
}

// askOwner reads the owner of a site in the container, after setting it to giveTo if
// that is not empty.
func (h *workplace) askOwner(ctx context.Context, socket, site, giveTo string) (string, error) {
	var stdout, stderr tail
	status, err := h.askBench(ctx, socket, benchRequest{OwnerOf: site, GiveTo: giveTo}, nil, &stdout, &stderr)
	switch {
	case err != nil:
		return "", err
	case status != 0:
		return "", fmt.Errorf("ended with %d: %s", status, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
