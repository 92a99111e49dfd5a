package online

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/wire"
)

// followCheck carries out a check until ctx ends, and calls changed when its outcome changes, by the rules of the
// engine's own checks: healthy after one success, unhealthy after the allowed failures, and failures in the start
// period don't count.
func followCheck(
	ctx context.Context, check wire.HealthCheck, started time.Time, try func(context.Context) error,
	changed func(wire.ContainerHealth, string),
) {
	seconds := func(n, least int) time.Duration { return time.Duration(max(n, least)) * time.Second }
	is, failures := wire.HealthStarting, 0
	for ctx.Err() == nil {
		tries, cancel := context.WithTimeout(ctx, seconds(check.TimeoutSeconds, 1))
		err := try(tries)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
			if is != wire.HealthHealthy {
				is = wire.HealthHealthy
				changed(is, "")
			}
		case is == wire.HealthStarting && time.Since(started) < seconds(check.StartPeriodSeconds, 0):
		default:
			if failures++; failures >= check.Retries && is != wire.HealthUnhealthy {
				is = wire.HealthUnhealthy
				changed(is, "its health check failed: "+err.Error())
			}
		}
		every := seconds(check.IntervalSeconds, 1)
		if is == wire.HealthStarting && time.Since(started) < every {
			every = startInterval // a service that starts fast is not kept waiting
		}
		if host.Sleep(ctx, every) != nil {
			return
		}
	}
}

// startInterval is the time between checks within the first interval.
const startInterval = 500 * time.Millisecond

// checkHealth tries once whether a container at an address is healthy.
func checkHealth(ctx context.Context, address string, check wire.HealthCheck) error {
	if address == "" {
		return errors.New("the container has no address")
	}
	at := net.JoinHostPort(address, strconv.Itoa(check.Port))
	if check.Kind == wire.HealthTCP {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	if check.Kind != wire.HealthHTTP {
		return fmt.Errorf("there is no kind %q of checks", check.Kind)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+check.Path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "prego-agent")
	resp, err := healthClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("it answered %d", resp.StatusCode)
	}
	return nil
}

// healthClient follows no redirect and goes through no proxy: a container must not make the agent ask anyone else.
var healthClient = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 32 << 10},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}
