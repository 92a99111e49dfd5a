package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego/agent/wire"
)

// Devices is the process that mounts the provider's volumes and sets the host's floating
// addresses, as root. It accepts requests from one user, and only the verbs of the tables
// for volumes and addresses, which it checks again.
type Devices struct {
	host *Host
	uid  uint32     // the only allowed caller
	one  sync.Mutex // held by the verb that runs
	log  *slog.Logger
}

// deviceRequest is what the executor asks for, deviceAnswer what it gets.
type deviceRequest struct {
	Kind wire.CommandKind `json:"kind"`
	Args []string         `json:"args"`
}

type deviceAnswer struct {
	Stdout string `json:"stdout,omitempty"`
	Failed string `json:"failed,omitempty"`
}

// NewDevices accepts requests from the named user only; "" is its own.
func NewDevices(h *Host, caller string, log *slog.Logger) (*Devices, error) {
	uid, err := uidOf(caller)
	if err != nil {
		return nil, fmt.Errorf("the caller: %w", err)
	}
	return &Devices{host: h, uid: uid, log: log}, nil
}

// Run restores what the host had before it was rebooted, tells the service manager, and
// serves until ctx ends. The engine starts after that (prego-agent-devices.service).
func (d *Devices) Run(ctx context.Context, l net.Listener) error {
	d.restore(ctx)
	if d.host.Root == "/" {
		if err := isolate(ctx); err != nil {
			return fmt.Errorf("isolation of containers: %w", err)
		}
	}
	if err := notifyReady(); err != nil {
		d.log.Warn("the service manager is not told", "error", err.Error())
	}
	d.log.Info("mounting volumes and setting addresses", "for_uid", d.uid)
	peers := &peerListener{Listener: l, uid: d.uid, log: d.log}
	return peers.handle(ctx, func(conn net.Conn) { d.answer(ctx, conn) })
}

func (d *Devices) answer(ctx context.Context, conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	var in deviceRequest
	var out deviceAnswer
	dec := json.NewDecoder(io.LimitReader(conn, maxExecBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		out.Failed = "this is no request"
	} else {
		var text strings.Builder
		d.one.Lock()
		err := d.host.device(ctx, in.Kind, in.Args, &text)
		d.one.Unlock()
		d.log.Info("done", "kind", in.Kind, "args", in.Args, "error", fmt.Sprint(err))
		if out.Stdout = text.String(); err != nil {
			out.Failed = err.Error()
		}
	}
	_ = conn.SetWriteDeadline(time.Now().Add(writeTime))
	_ = json.NewEncoder(conn).Encode(out)
}

// askDevices has a verb run by the process that may. A host that is a directory (--root)
// has no such process, and does by itself what it can.
func (h *Host) askDevices(ctx context.Context, k *call, out io.Writer) error {
	if h.Root != "/" {
		return h.device(ctx, k.in.Kind, k.in.Args, out)
	}
	conn, err := dialSocket(ctx, h.path(wire.DevicesSocket))
	if err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	var answer deviceAnswer
	if err := json.NewEncoder(conn).Encode(deviceRequest{Kind: k.in.Kind, Args: k.in.Args}); err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	if err := json.NewDecoder(conn).Decode(&answer); err != nil {
		return fmt.Errorf("%w: %w", errUnavailable, err) // every verb can be repeated
	}
	if answer.Failed != "" {
		return errors.New(answer.Failed)
	}
	_, _ = io.WriteString(out, answer.Stdout)
	return nil
}

// device runs a verb.
func (h *Host) device(ctx context.Context, kind wire.CommandKind, args []string, out io.Writer) error {
	if kind != wire.KindVolume && kind != wire.KindAddress {
		return errors.New("only volumes and addresses are seen to here")
	}
	verb, _ := permitted(kind, args)
	if verb == "" {
		return fmt.Errorf("%s may not be called like this", kind)
	}
	if kind == wire.KindAddress {
		return h.address(ctx, verb, args[1])
	}
	report, err := h.volume(ctx, verb, args[1])
	if err != nil || report == nil {
		return err
	}
	return json.NewEncoder(out).Encode(report)
}

// What is remembered is named by its kind and id.
const (
	rememberedVolume  = "volume-"
	rememberedAddress = "address-"
)

// remember notes that the host has something, before it has, and forget that it has it no
// longer, before it is gone.
func (h *Host) remember(name string) error {
	dir := h.path(wire.DevicesDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, name), nil, 0o600)
}

func (h *Host) forget(name string) error {
	if err := os.Remove(filepath.Join(h.path(wire.DevicesDir), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// remembered are the ids of a kind.
func (h *Host) remembered(kind string) []string {
	entries, err := os.ReadDir(h.path(wire.DevicesDir))
	if err != nil {
		return nil // nothing yet
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), kind); ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// restore brings back what a host had before a reboot. A volume that can't be mounted is
// reported: no container starts on it, and the control plane mounts it before the next
// one does.
func (d *Devices) restore(ctx context.Context) {
	for _, id := range d.host.remembered(rememberedAddress) {
		if verb, _ := permitted(wire.KindAddress, []string{"add", id}); verb == "" {
			continue
		}
		if err := d.host.address(ctx, "add", id); err != nil {
			d.log.Error("address not restored", "address", id, "error", err.Error())
		}
	}
	for _, id := range d.host.remembered(rememberedVolume) {
		if verb, _ := permitted(wire.KindVolume, []string{"mount", id}); verb == "" {
			continue
		}
		if _, err := d.host.volume(ctx, "remount", id); err != nil {
			d.log.Error("volume not mounted again", "volume", id, "error", err.Error())
		}
	}
}

// notifyReady tells the service manager that a service of the type notify is ready.
func notifyReady() error {
	socket := os.Getenv("NOTIFY_SOCKET") //nolint:forbidigo // the service manager's protocol
	if socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte("READY=1"))
	return err
}
