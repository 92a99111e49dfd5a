package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
)

// newHealthCommand asks an API about all processes. In the environment of a process it is the health check of images
// without a shell: it asks that process alone, at its address.
func newHealthCommand(api func() (string, error)) *cobra.Command {
	var live bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "health [URL]", Short: "Ask all processes whether they are ready; exits with 1 unless they are", Args: cobra.MaximumNArgs(1),
		Long: `Ask all processes whether they are ready; exits with 1 unless they are.

It asks the API, which knows when a worker and a gateway last gave a sign of life, and needs no token. With a URL it asks
the process there alone. So it does in the environment of a process: at PREGO_METRICS_LISTEN, and at PREGO_API_LISTEN
when that is not set.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "/readyz"
			if live {
				path = "/healthz"
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			listen := cmp.Or(os.Getenv("PREGO_METRICS_LISTEN"), os.Getenv("PREGO_API_LISTEN"))
			switch {
			case len(args) == 1:
				return checkHealth(ctx, strings.TrimSuffix(args[0], "/")+path)
			case listen != "":
				addr, err := healthAddr(listen)
				if err != nil {
					return err
				}
				return checkHealth(ctx, "http://"+addr+path)
			}
			base, err := api()
			if err != nil {
				return err
			}
			return allHealthy(ctx, cmd.OutOrStdout(), strings.TrimSuffix(base, "/")+path)
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "check only that it runs, not its dependencies")
	cmd.Flags().DurationVar(&wait, "timeout", 4*time.Second, "how long it may take")
	return cmd
}

// healthAddr is where to reach a process with this listen address from the same
// container: loopback, if it listens everywhere.
func healthAddr(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("listening address %q: %w", listen, err)
	}
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}

func checkHealth(ctx context.Context, url string) error {
	// No proxy: the process is in the same container.
	status, body, err := probe(ctx, &http.Transport{}, url)
	if err == nil && status != http.StatusOK {
		err = notReady(url, status, body)
	}
	return err
}

func probe(ctx context.Context, by http.RoundTripper, url string) (status int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	resp, err := (&http.Client{Transport: by}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err = io.ReadAll(io.LimitReader(resp.Body, 4<<10)); err != nil {
		err = fmt.Errorf("%s: %w", url, err)
	}
	return resp.StatusCode, body, err
}

func notReady(url string, status int, body []byte) error {
	var compact any = string(body)
	_ = json.Unmarshal(body, &compact)
	return prego.Errorf(prego.CodeNotReady, "%s: %d %s: %v", url, status, http.StatusText(status), compact)
}

// allHealthy prints a line for each kind of processes, as the API knows them.
func allHealthy(ctx context.Context, out io.Writer, url string) error {
	status, body, err := probe(ctx, http.DefaultTransport, url)
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	var said struct {
		Checks    map[string]string
		Processes map[string]string
		Status    string // of --live
	}
	if json.Unmarshal(body, &said) != nil || said.Checks == nil && said.Status == "" {
		return notReady(url, status, body)
	}
	all, failed := map[string]string{"api": "ok"}, 0
	for _, check := range slices.Sorted(maps.Keys(said.Checks)) {
		if why := said.Checks[check]; why != "ok" {
			all["api"] = check + " " + why
		}
	}
	maps.Copy(all, said.Processes)
	for _, process := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(out, "%-8s %s\n", process, all[process])
		if all[process] != "ok" {
			failed++
		}
	}
	if failed > 0 {
		return prego.Errorf(prego.CodeNotReady, "%d of %d kinds of processes are not ready", failed, len(all))
	}
	return nil
}
