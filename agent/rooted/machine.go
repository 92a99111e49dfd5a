// Package rooted runs as root, or holds Docker's socket, which is equivalent: a process for each task, with a few
// verbs and a check of the caller. None of it listens to the network.
package rooted

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// Machine is a host as root works on it: its devices, its addresses and its packages. A host
// that is a directory has no processes for that, see Here.
type Machine struct {
	*host.Host

	// For tests: how much of the disk backups of volumes leave free, and a hook that is called while a file system is
	// frozen.
	keepFree     int64
	duringFreeze func()
}

// Do does what one of root's processes would, in this one.
func (h *Machine) Do(ctx context.Context, in host.DeviceRequest, from io.Reader, to io.Writer) error {
	switch in.Kind {
	case wire.KindPatch:
		return h.Patch(ctx, in.Args, to)
	case policy.KindSpool:
		return h.Piece(in.Args, from, to)
	}
	return h.Device(ctx, in.Kind, in.Args, in.Secrets, to)
}

// answer answers a request with what do writes, or why it failed.
func answer(conn net.Conn, log *slog.Logger, do func(in host.DeviceRequest, rest io.Reader, to io.Writer) error) {
	var in host.DeviceRequest
	var out host.DeviceAnswer
	var text bytes.Buffer
	rest, err := host.ReadRequest(conn, policy.MaxBody, &in)
	if err != nil {
		out.Failed = "this is no request"
	} else if err = do(in, rest, &text); err != nil {
		out.Failed = err.Error()
	}
	if in.Kind == policy.KindSpool {
		_ = conn.SetWriteDeadline(time.Now().Add(host.PieceTime))
	} else {
		log.Info("done", "kind", in.Kind, "args", in.Args, "error", fmt.Sprint(err))
		_ = conn.SetWriteDeadline(time.Now().Add(host.WriteTime))
	}
	if json.NewEncoder(conn).Encode(out) == nil && out.Failed == "" {
		_, _ = text.WriteTo(conn)
	}
}

// Here works on a host in this process, for a host that is a directory, which needs no root.
func Here(h *host.Host) *Machine { return &Machine{Host: h} }
