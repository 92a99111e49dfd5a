package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// machines provisions one server of each role, on both Debians, and shows from their
// consoles that they booted. It creates no more, since each is a whole system on this
// machine.
func (d *demo) machines() error {
	if err := d.atOnce("One server of each role:",
		"server create app-@ --role app --region eu --image debian-13 --watch",
		"server create db-shard-@ --role db-shard --region eu --image debian-12 --volume-gb 10 --watch",
		"server create redis-pool-@ --role redis-pool --region eu --image debian-13 --watch"); err != nil {
		return err
	}
	hosts, err := d.hosts()
	if err != nil {
		return err
	}
	fmt.Fprintln(d.out, "\nThe machines, and what they wrote to their consoles at last:")
	for _, name := range []string{"app-" + d.suffix, "db-shard-" + d.suffix, "redis-pool-" + d.suffix} {
		for _, h := range hosts {
			if !strings.HasSuffix(h.Name, name) {
				continue
			}
			url := fmt.Sprintf("%s/_sim/hosts/%d/console", d.cloud.Base, h.ID)
			text, err := page(d.ctx, url)
			if err != nil {
				return err
			}
			lines := strings.Split(strings.TrimSpace(text), "\n")
			fmt.Fprintf(d.out, "  %s at %s: %d lines, %s\n    %s\n", name, h.Addr, len(lines), url,
				strings.TrimSpace(lines[len(lines)-1]))
			if !strings.Contains(text, "Cloud-init v.") {
				return fmt.Errorf("the console of %s does not show cloud-init", name)
			}
		}
	}
	return nil
}

// page fetches a URL.
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
