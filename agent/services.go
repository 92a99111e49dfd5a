package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/prego/prego/agent/wire"
)

// errUnavailable says that a service could not be reached. Any answer of the service,
// even a refusal, is the command's result.
var errUnavailable = errors.New("the service can't be reached")

// serve runs a command of a kind that is spoken over its protocol.
func (c *commands) serve(k *call) (wire.ExecResult, *problem) {
	ctx, cancel := context.WithTimeoutCause(c.ctx, k.timeout(), errTimeout)
	defer cancel()
	var stdout, stderr tail
	outLines, errLines := &lineWriter{to: k.progress, stream: "stdout"}, &lineWriter{to: k.progress, stream: "stderr"}
	out, errs := io.MultiWriter(&stdout, outLines), io.MultiWriter(&stderr, errLines)
	began := time.Now()
	services, err := c.host.services()
	if err == nil {
		switch k.in.Kind {
		case wire.KindMariaDB:
			err = c.host.mariadb(ctx, services.MariaDB, k, out)
		case wire.KindRedisCLI:
			err = c.host.redis(ctx, services.Redis, k, out)
		case wire.KindVolume, wire.KindAddress:
			err = c.host.askDevices(ctx, k, out)
		case wire.KindPatch:
			err = c.host.askPatcher(ctx, k.in.Args, out)
		default:
			err = fmt.Errorf("%w: %s is no service", errUnavailable, k.in.Kind)
		}
	}
	result := wire.ExecResult{AuditID: k.in.AuditID}
	switch cause := context.Cause(ctx); {
	case err == nil:
	case errors.Is(cause, errStopping):
		return result, stopping()
	case errors.Is(cause, errTimeout):
		result.ExitCode = exitTimeout
		fmt.Fprintf(errs, "prego-agent: given up after %s\n", k.timeout())
	case errors.Is(err, errUnavailable):
		return result, &problem{status: http.StatusServiceUnavailable, code: "service_unavailable", detail: string(k.in.Kind) + ": " + err.Error(), retryAfter: 5}
	default:
		result.ExitCode = 1
		fmt.Fprintln(errs, err.Error())
	}
	outLines.end()
	errLines.end()
	result.DurationMs = time.Since(began).Milliseconds()
	result.StdoutTruncated, result.StderrTruncated = stdout.String(), stderr.String()
	return result, nil
}

// services reads how to reach the host's services.
func (h *Host) services() (wire.Services, error) {
	var s wire.Services
	b, err := os.ReadFile(h.path(wire.ServicesPath))
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return s, fmt.Errorf("%w: %w", errUnavailable, err)
	default:
		if json.Unmarshal(b, &s) != nil { // may contain a secret
			return s, fmt.Errorf("%w: %s can't be read", errUnavailable, wire.ServicesPath)
		}
	}
	if s.MariaDB.User == "" {
		s.MariaDB.User = wire.DefaultServiceUser
	}
	if s.MariaDB.Socket == "" {
		s.MariaDB.Socket = wire.DefaultMariaDBSocket
	}
	if s.Redis.Socket == "" {
		s.Redis.Socket = wire.DefaultRedisSocket
	}
	if s.MariaDB.Addr != "" {
		return s, fmt.Errorf("%w: MariaDB is reached by its socket only", errUnavailable)
	}
	if s.Redis.Addr != "" {
		if a, err := netip.ParseAddrPort(s.Redis.Addr); err != nil || !a.Addr().IsLoopback() {
			return s, fmt.Errorf("%w: the address of Redis must be a loopback address and a port", errUnavailable)
		}
	}
	return s, nil
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
