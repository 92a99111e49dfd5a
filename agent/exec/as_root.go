package exec

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// workplace is the host as commands work on it.
type workplace struct {
	*host.Host
	asRoot AsRoot
}

// AsRoot does for commands what takes root.
type AsRoot interface {
	// Device runs a verb on a volume or a floating address.
	Device(ctx context.Context, kind wire.CommandKind, args []string, secrets map[string]string, out io.Writer) error
	// Piece reads or writes a piece of a volume's sealed backup.
	Piece(ctx context.Context, args []string, from io.Reader, to io.Writer) error
	// Patch runs a verb on security updates.
	Patch(ctx context.Context, args []string, out io.Writer) error
}

// rootProcesses asks the processes of the host that may.
type rootProcesses struct{ host *host.Host }

func (r rootProcesses) Device(ctx context.Context, kind wire.CommandKind, args []string, secrets map[string]string, out io.Writer) error {
	return AskRoot(ctx, r.host.Path(wire.DevicesSocket), host.DeviceRequest{Kind: kind, Args: args, Secrets: secrets}, out)
}

func (r rootProcesses) Piece(ctx context.Context, args []string, from io.Reader, to io.Writer) error {
	return AskPiece(ctx, r.host.Path(wire.DevicesSocket), args, from, to)
}

func (r rootProcesses) Patch(ctx context.Context, args []string, out io.Writer) error {
	return AskRoot(ctx, r.host.Path(wire.PatchSocket), host.DeviceRequest{Kind: wire.KindPatch, Args: args}, out)
}

// AskPiece has the process at a socket read or write a piece of a volume's sealed backup.
func AskPiece(ctx context.Context, socket string, args []string, from io.Reader, to io.Writer) error {
	conn, err := host.DialSocket(ctx, socket)
	if err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if err := json.NewEncoder(conn).Encode(host.DeviceRequest{Kind: policy.KindSpool, Args: args}); err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	if from != nil {
		if _, err := io.Copy(conn, from); err != nil {
			return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
		}
	}
	var answer host.DeviceAnswer
	dec := json.NewDecoder(conn)
	if err := dec.Decode(&answer); err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	if answer.Failed != "" {
		return errors.New(answer.Failed)
	}
	rest := bufio.NewReader(io.MultiReader(dec.Buffered(), conn))
	_, _ = rest.ReadByte() // the end of the answer's line
	_, err = io.Copy(to, rest)
	return err
}

// AskRoot has a request answered by a process that is root's.
func AskRoot(ctx context.Context, socket string, in host.DeviceRequest, out io.Writer) error {
	conn, err := host.DialSocket(ctx, socket)
	if err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	var answer host.DeviceAnswer
	if err := json.NewEncoder(conn).Encode(in); err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err) // every verb can be repeated
	}
	if answer.Failed != "" {
		return errors.New(answer.Failed)
	}
	_, _ = io.WriteString(out, answer.Stdout)
	return nil
}

func (e *Executor) servePatches(w http.ResponseWriter, r *http.Request) {
	verb := "report"
	if r.URL.Query().Get("fetch") == "true" {
		verb = "check"
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	var out strings.Builder
	if err := e.host.asRoot.Patch(r.Context(), []string{verb}, &out); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, out.String())
}
