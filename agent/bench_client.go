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

// benchRequest is what the process that runs commands asks of the one that holds the
// engine's socket: a command line, or the owner of a site, or to keep who owns it.
type benchRequest struct {
	Args           []string `json:"args,omitempty"`
	WorkingDir     string   `json:"working_dir,omitempty"`
	TimeoutSeconds int      `json:"timeout_seconds,omitempty"`
	// Secrets are the request's; what the host adds to them is added where it runs.
	Secrets map[string]string `json:"secrets,omitempty"`

	OwnerOf string `json:"owner_of,omitempty"`
	GiveTo  string `json:"give_to,omitempty"`
}

// benchFrame is a piece of the answer. Exit, Refused and Lost end it.
type benchFrame struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	// Exit is the supervisor's status.
	Exit *int `json:"exit,omitempty"`
	// Refused: nothing ran, and why.
	Refused string `json:"refused,omitempty"`
	// Lost: it ran, and how it ended is not known.
	Lost string `json:"lost,omitempty"`
}

// askTime is how long what was asked for may take to end once it was told to.
const askTime = killTime + 5*time.Second

var errLost = errors.New("how it ended is not known")

// askBench asks for something to be run in the container. The end of this side's
// half of the connection is what kills it; the other half then tells how it ended.
func (h *Host) askBench(ctx context.Context, socket string, in benchRequest, stdout, stderr io.Writer) (status int, err error) {
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
	errs := &afterPreamble{to: stderr}
	var early bytes.Buffer // of the other stream, which may be ahead; or what the engine says instead of a supervisor
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

// askOwner asks for the owner of a site in the container, and makes giveTo the owner
// when that is not empty.
func (h *Host) askOwner(ctx context.Context, socket, site, giveTo string) (string, error) {
	var stdout, stderr tail
	status, err := h.askBench(ctx, socket, benchRequest{OwnerOf: site, GiveTo: giveTo}, &stdout, &stderr)
	switch {
	case err != nil:
		return "", err
	case status != 0:
		return "", fmt.Errorf("ended with %d: %s", status, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
