package exec

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// serve runs a command of a kind that is spoken over its protocol. What a service refuses is the command's result.
func (c *commands) serve(ctx context.Context, k *call, out, errs io.Writer) (code int, err error) {
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
	switch cause := context.Cause(ctx); {
	case err == nil, errors.Is(cause, errStopping):
		return 0, err
	case errors.Is(cause, errTimeout):
		fmt.Fprintf(errs, "prego-agent: given up after %s\n", k.Limit())
		return ExitTimeout, nil
	case errors.Is(err, host.ErrUnavailable):
		return 0, err
	}
	fmt.Fprintln(errs, err.Error())
	return 1, nil
}
