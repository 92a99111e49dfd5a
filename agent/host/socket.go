package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// UIDOf is a user's id; "" is this process's user.
func UIDOf(name string) (uint32, error) {
	if name == "" {
		return uint32(os.Getuid()), nil //nolint:gosec // a user id
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(uid), err
}

// Listen opens one of the host's sockets unless a service manager did.
func (h *Host) Listen(socket string) (net.Listener, error) {
	name := h.Path(socket)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	_ = os.Remove(name) // left by a dead process
	addr, done, err := socketAddr(name)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: addr, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(name, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	return l, nil
}

// PeerListener accepts only one user. The kernel reports the user at the other end.
type PeerListener struct {
	net.Listener
	UID uint32
	Log *slog.Logger
}

// Accept returns the next connection of that user.
func (l *PeerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(conn)
		if err == nil && uid == l.UID {
			return conn, nil
		}
		l.Log.Warn("a stranger was turned away", "uid", uid)
		_ = conn.Close()
	}
}

// Serve passes each connection of the named user, "" for its own, to f and then closes it, until ctx ends. It then
// waits for the connections in progress.
func Serve(ctx context.Context, listener net.Listener, caller string, log *slog.Logger, f func(net.Conn)) error {
	uid, err := UIDOf(caller)
	if err != nil {
		return fmt.Errorf("the caller: %w", err)
	}
	l := &PeerListener{Listener: listener, UID: uid, Log: log}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var work sync.WaitGroup
	for {
		conn, err := l.Accept()
		if err != nil {
			work.Wait()
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("socket: %w", err)
		}
		work.Go(func() {
			defer func() { _ = conn.Close() }()
			f(conn)
		})
	}
}

// ReadRequest reads a request of at most so many bytes. What follows it, and the end of its line, is in rest.
func ReadRequest(conn net.Conn, limit int64, into any) (rest io.Reader, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	dec := json.NewDecoder(io.LimitReader(conn, limit))
	dec.DisallowUnknownFields()
	err = dec.Decode(into)
	return io.MultiReader(dec.Buffered(), conn), err
}

func peerUID(conn net.Conn) (uint32, error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a socket of the host")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *syscall.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); cerr != nil {
		return 0, cerr
	}
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// DialSocket connects to a socket of the host, however long its name is.
func DialSocket(ctx context.Context, name string) (net.Conn, error) {
	addr, done, err := socketAddr(name)
	if err != nil {
		return nil, err
	}
	defer done()
	return (&net.Dialer{}).DialContext(ctx, "unix", addr)
}

// Ask sends a request to a process of the host, then rest, if any, and reads its answer into out.
func Ask(ctx context.Context, socket string, within time.Duration, in any, rest io.Reader, out any) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := DialSocket(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := json.NewEncoder(conn).Encode(in); err != nil {
		return err
	}
	if rest != nil {
		_, _ = io.Copy(conn, rest) // a refused request is not read to its end; the answer has the reason
	}
	return json.NewDecoder(conn).Decode(out)
}

// socketAddr is a path of a socket that is short enough for an address, which holds 107
// bytes. done is called once the address was used.
func socketAddr(name string) (addr string, done func(), err error) {
	if len(name) <= 100 {
		return name, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(name)), func() { _ = dir.Close() }, nil
}

// WriteTime is how long a reader may take to read a message.
const WriteTime = 30 * time.Second
