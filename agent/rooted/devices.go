package rooted

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/seal"
	"github.com/prego/prego/agent/wire"
)

// Devices is the process that mounts the provider's volumes and sets the host's floating addresses, as root. It
// accepts requests from one user, and only the verbs of the tables for volumes and addresses, which it checks again.
type Devices struct {
	host   *Machine
	caller string     // the only allowed one
	one    sync.Mutex // held by the verb that runs
	log    *slog.Logger
}

// NewDevices accepts requests from the named user only; "" is its own.
func NewDevices(h *host.Host, caller string, log *slog.Logger) *Devices {
	return &Devices{host: &Machine{Host: h}, caller: caller, log: log}
}

// Run restores the host's devices after a reboot, notifies the service manager, and serves until ctx ends. The engine
// starts after that (prego-agent-devices.service).
func (d *Devices) Run(ctx context.Context, l net.Listener) error {
	if err := d.host.thawAll(); err != nil {
		d.log.Error("not thawed", "error", err.Error())
	}
	d.host.sweepSealed(time.Now())
	if err := d.host.sweepTried(); err != nil {
		d.log.Error("not deleted", "error", err.Error())
	}
	d.restore(ctx)
	if d.host.Root == "/" {
		if err := runNFT(ctx, isolation); err != nil {
			return fmt.Errorf("isolation of containers: %w", err)
		}
	}
	if err := notifyReady(); err != nil {
		d.log.Warn("the service manager could not be notified", "error", err.Error())
	}
	d.log.Info("mounting volumes and setting addresses", "for", d.caller)
	return host.Serve(ctx, l, d.caller, d.log, func(conn net.Conn) {
		answer(conn, d.log, func(in host.DeviceRequest, rest io.Reader, to io.Writer) error {
			if in.Kind != policy.KindSpool {
				return d.run(ctx, conn, in, to)
			}
			_ = conn.SetReadDeadline(time.Now().Add(host.PieceTime))
			content := bufio.NewReader(rest)
			_, _ = content.ReadByte() // the end of the request's line
			return d.host.Piece(in.Args, content, to)
		})
	})
}

// run runs a verb: long ones in parallel for different volumes, the others one at a time. A long verb ends with its
// caller, and yields to an unmount of its volume.
func (d *Devices) run(ctx context.Context, conn net.Conn, in host.DeviceRequest, out io.Writer) error {
	if p := policy.Permitted(in.Kind, in.Args); p != nil && p.Timeout > 0 {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		_ = conn.SetReadDeadline(time.Time{})
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			cancel()
		}()
		return d.host.Device(ctx, in.Kind, in.Args, in.Secrets, out)
	}
	if len(in.Args) > 1 && in.Args[0] == "unmount" {
		if err := inUse.end(ctx, d.host.Path(wire.VolumeMount(in.Args[1]))); err != nil {
			return err
		}
	}
	d.one.Lock()
	defer d.one.Unlock()
	return d.host.Device(ctx, in.Kind, in.Args, in.Secrets, out)
}

// Piece reads or writes a piece of a volume's sealed backup: a verb of policy.KindSpool.
func (h *Machine) Piece(args []string, from io.Reader, to io.Writer) error {
	p := policy.Permitted(policy.KindSpool, args)
	if p == nil || p.Volume == "" {
		return errors.New("this process only handles pieces of volumes")
	}
	offset, err1 := strconv.ParseInt(args[4], 10, 64)
	length, err2 := strconv.ParseInt(args[5], 10, 64)
	if err := errors.Join(err1, err2); err != nil || length > wire.MaxPiece {
		return errors.Join(err, fmt.Errorf("a piece has at most %d bytes", wire.MaxPiece))
	}
	if p.Verb == policy.VerbWriteSealed {
		content := io.LimitReader(from, length)
		err := h.writeSealed(args[1], args[3], offset, length, content)
		_, _ = io.Copy(io.Discard, content) // the caller reads the answer only after it has sent everything
		return err
	}
	root, err := h.sealed()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return seal.ReadPiece(root, sealedName(args[1], args[3]), args[3], offset, length, to)
}

// Device runs a verb on a volume or a floating address.
func (h *Machine) Device(ctx context.Context, kind wire.CommandKind, args []string, secrets map[string]string, out io.Writer) error {
	if kind != wire.KindVolume && kind != wire.KindAddress {
		return errors.New("this process only handles volumes and addresses")
	}
	p := policy.Permitted(kind, args)
	if p == nil {
		return fmt.Errorf("%s may not be called like this", kind)
	}
	if kind == wire.KindAddress {
		return h.address(ctx, p.Verb, args[1])
	}
	v := attached{host: h, id: args[1], at: h.Path(wire.VolumeMount(args[1]))}
	switch p.Verb {
	case "seal-volume":
		return ofVerb(inUse.with(ctx, v.at, func(ctx context.Context) error { return v.seal(ctx, args[2], args[3], out) }))
	case "open-volume":
		return ofVerb(inUse.with(ctx, v.at, func(ctx context.Context) error {
			return v.openSealed(ctx, args[2], args[3], args[4], secrets[wire.SecretBackupIdentity], out)
		}))
	case "try-volume":
		// It needs no volume, and blocks none.
		return ofVerb(inUse.with(ctx, h.triedDir(v.id, args[2]), func(ctx context.Context) error {
			return v.trySealed(ctx, args[2:], secrets[wire.SecretBackupIdentity], out)
		}))
	case "drop-sealed":
		return h.dropSealed(v.id, args[2])
	}
	report, err := h.volume(ctx, p.Verb, args[1])
	if err != nil || report == nil {
		return err
	}
	return json.NewEncoder(out).Encode(report)
}

// ofVerb marks the failure of a verb on a backup, like the failures of sites' verbs.
func ofVerb(err error) error {
	var f *seal.Failure
	if errors.As(seal.OfDisk(err), &f) {
		return fmt.Errorf("volume: %w", f)
	}
	if err != nil {
		err = fmt.Errorf("volume: %w", err)
	}
	return err
}

// Remembered devices are named by their kind and id.
const (
	rememberedVolume  = "volume-"
	rememberedAddress = "address-"
)

// remember notes that the host has something, before it has, and forget that it has it no longer, before it is gone.
func (h *Machine) remember(name string) error {
	dir := h.Path(wire.DevicesDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return host.WriteFile(filepath.Join(dir, name), nil, 0o600)
}

func (h *Machine) forget(name string) error {
	return removeIfThere(filepath.Join(h.Path(wire.DevicesDir), name))
}

// remembered are the ids of a kind.
func (h *Machine) remembered(kind string) []string {
	entries, err := os.ReadDir(h.Path(wire.DevicesDir))
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

// restore brings back what a host had before a reboot. A volume that can't be mounted is reported: no container
// starts on it, and the control plane mounts it before the next one does.
func (d *Devices) restore(ctx context.Context) {
	for _, id := range d.host.remembered(rememberedAddress) {
		if !policy.Is("ADDRESS", id) {
			continue
		}
		if err := d.host.address(ctx, "add", id); err != nil {
			d.log.Error("address not restored", "address", id, "error", err.Error())
		}
	}
	for _, id := range d.host.remembered(rememberedVolume) {
		if !policy.Is("VOLUME", id) {
			continue
		}
		if _, err := d.host.volume(ctx, "remount", id); err != nil {
			d.log.Error("volume not mounted again", "volume", id, "error", err.Error())
		}
	}
}

// notifyReady notifies the service manager that a service of the type notify is ready.
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
