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
	"github.com/prego/prego/agent/wire"
)

// workplace is the host as commands work on it.
type workplace struct {
	*host.Host
	asRoot AsRoot
}

// AsRoot does for commands what takes root.
type AsRoot interface {
	// Do runs a verb on a volume, a floating address or security updates, or reads or writes a piece of a volume's
	// sealed backup.
	Do(ctx context.Context, in host.DeviceRequest, from io.Reader, to io.Writer) error
}

// rootProcesses asks the processes of the host that may.
type rootProcesses struct{ host *host.Host }

func (r rootProcesses) Do(ctx context.Context, in host.DeviceRequest, from io.Reader, to io.Writer) error {
	socket := wire.DevicesSocket
	if in.Kind == wire.KindPatch {
		socket = wire.PatchSocket
	}
	return AskRoot(ctx, r.host.Path(socket), in, from, to)
}

// AskRoot has a request answered by a process that is root's. from is what follows the request, nil for nothing.
func AskRoot(ctx context.Context, socket string, in host.DeviceRequest, from io.Reader, to io.Writer) error {
	conn, err := host.DialSocket(ctx, socket)
	if err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	var answer host.DeviceAnswer
	err = json.NewEncoder(conn).Encode(in)
	if err == nil && from != nil {
		_, err = io.Copy(conn, from)
	}
	dec := json.NewDecoder(conn)
	if err == nil {
		err = dec.Decode(&answer)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", host.ErrUnavailable, err) // every verb can be repeated
	}
	if answer.Failed != "" {
		return errors.New(answer.Failed)
	}
	rest := bufio.NewReader(io.MultiReader(dec.Buffered(), conn))
	_, _ = rest.ReadByte() // the end of the answer's line
	_, err = io.Copy(to, rest)
	return err
}

func (e *Executor) servePatches(w http.ResponseWriter, r *http.Request) {
	verb := "report"
	if r.URL.Query().Get("fetch") == "true" {
		verb = "check"
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	var out strings.Builder
	if err := e.host.asRoot.Do(r.Context(), host.DeviceRequest{Kind: wire.KindPatch, Args: []string{verb}}, nil, &out); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, out.String())
}
