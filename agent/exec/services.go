package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// serve runs a command of a kind that is spoken over its protocol.
func (c *commands) serve(k *call) (wire.ExecResult, *policy.Problem) {
	ctx, cancel := context.WithTimeoutCause(c.ctx, k.Limit(), errTimeout)
	defer cancel()
	var stdout, stderr tail
	outLines, errLines := &lineWriter{to: k.progress, stream: "stdout"}, &lineWriter{to: k.progress, stream: "stderr"}
	out, errs := io.MultiWriter(&stdout, outLines), io.MultiWriter(&stderr, errLines)
	began := time.Now()
	services, err := c.host.Services()
	if err == nil {
		switch k.In.Kind {
		case wire.KindMariaDB:
			err = c.host.mariadb(ctx, services.MariaDB, k.Command, out)
		case wire.KindRedisCLI:
			err = c.host.redis(ctx, services.Redis, k.Command, out)
		case wire.KindVolume, wire.KindAddress, wire.KindPatch:
			err = c.host.asRoot.Do(ctx, host.DeviceRequest{Kind: k.In.Kind, Args: k.In.Args, Secrets: k.In.Secrets}, nil, out)
		default:
			err = fmt.Errorf("%w: %s is no service", host.ErrUnavailable, k.In.Kind)
		}
	}
	result := wire.ExecResult{AuditID: k.In.AuditID}
	switch cause := context.Cause(ctx); {
	case err == nil:
	case errors.Is(cause, errStopping):
		return result, policy.Stopping()
	case errors.Is(cause, errTimeout):
		result.ExitCode = ExitTimeout
		fmt.Fprintf(errs, "prego-agent: given up after %s\n", k.Limit())
	case errors.Is(err, host.ErrUnavailable):
		return result, &policy.Problem{Status: http.StatusServiceUnavailable, Code: "service_unavailable", Detail: string(k.In.Kind) + ": " + err.Error(), RetryAfter: 5}
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
