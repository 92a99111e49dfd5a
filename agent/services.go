package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/prego/prego/agent/wire"
)

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
			err = c.host.mariadb(ctx, services.MariaDB, k.command, out)
		case wire.KindRedisCLI:
			err = c.host.redis(ctx, services.Redis, k.command, out)
		case wire.KindVolume, wire.KindAddress:
			err = c.host.asRoot.Device(ctx, k.in.Kind, k.in.Args, k.in.Secrets, out)
		case wire.KindPatch:
			err = c.host.asRoot.Patch(ctx, k.in.Args, out)
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
