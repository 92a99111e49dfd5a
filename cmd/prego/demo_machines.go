package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/internal/cli"
	"github.com/prego/prego/internal/sim"
	"github.com/prego/prego/server"
)

// demoMachines provisions one server of each role, on both Debians, and shows from their
// consoles that they booted. It makes no more of them, since each is a whole system on
// this machine.
func demoMachines(ctx context.Context, out io.Writer, c *cli.Client, cloud string) error {
	suffix := time.Now().UTC().Format("150405")
	servers, err := demoServers(ctx, out, &lockedWriter{w: out}, c, []server.CreateRequest{
		{ServerID: "app-" + suffix, Role: prego.RoleApp, Region: prego.RegionEU, Spec: server.Spec{Image: "debian-13"}},
		{ServerID: "db-shard-" + suffix, Role: prego.RoleDBShard, Region: prego.RegionEU, Spec: server.Spec{Image: "debian-12", VolumeGB: 10}},
		{ServerID: "redis-pool-" + suffix, Role: prego.RoleRedisPool, Region: prego.RegionEU, Spec: server.Spec{Image: "debian-13"}},
	})
	if err != nil {
		return err
	}
	at := cli.NewClient(cloud, "")
	var hosts struct{ Hosts []sim.HostInfo }
	if err := at.Do(ctx, http.MethodGet, "/_sim/hosts", nil, nil, &hosts); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nThe machines, and what they wrote to their consoles at last:")
	for _, s := range servers {
		for _, h := range hosts.Hosts {
			if !strings.HasSuffix(h.Name, s.ServerId) {
				continue
			}
			url := fmt.Sprintf("%s/_sim/hosts/%d/console", cloud, h.ID)
			text, err := page(ctx, url)
			if err != nil {
				return err
			}
			lines := strings.Split(strings.TrimSpace(text), "\n")
			fmt.Fprintf(out, "  %s at %s: %d lines, %s\n    %s\n", s.ServerId, h.Addr, len(lines), url, strings.TrimSpace(lines[len(lines)-1]))
			if !strings.Contains(text, "Cloud-init v.") {
				return fmt.Errorf("the console of %s does not show cloud-init", s.ServerId)
			}
		}
	}
	return nil
}

// page is what a URL answers.
func page(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %d: %s", url, resp.StatusCode, b)
	}
	return string(b), err
}
