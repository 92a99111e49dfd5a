package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego"
)

// newHealthCommand is the health check of images without a shell: it asks the process
// in the same container, at the address in the environment.
func newHealthCommand() *cobra.Command {
	var live bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "health [URL]", Short: "Ask a process whether it is ready; exits with 1 when it is not", Args: cobra.MaximumNArgs(1),
		Long: `Ask a process whether it is ready; exits with 1 when it is not.

Without a URL it asks at PREGO_METRICS_LISTEN, and at PREGO_API_LISTEN when that is not set.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "/readyz"
			if live {
				path = "/healthz"
			}
			var url string
			if len(args) == 1 {
				url = strings.TrimSuffix(args[0], "/") + path
			} else {
				addr, err := healthAddr(cmp.Or(os.Getenv("PREGO_METRICS_LISTEN"), os.Getenv("PREGO_API_LISTEN"), "127.0.0.1:8080"))
				if err != nil {
					return err
				}
				url = "http://" + addr + path
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			return checkHealth(ctx, url)
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
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	// No proxy: the process is in the same container.
	resp, err := (&http.Client{Transport: &http.Transport{}}).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		var compact any = string(body)
		_ = json.Unmarshal(body, &compact)
		return prego.Errorf(prego.CodeNotReady, "%s: %s: %v", url, resp.Status, compact)
	}
	return nil
}
