package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/prego/prego"
	"github.com/prego/prego/api"
)

// demo provisions one server of each role and prints each step as it happens.
func demo(ctx context.Context, out io.Writer, c *apiClient) error {
	suffix := time.Now().UTC().Format("150405")
	requests := []prego.CreateServerRequest{
		{ServerID: "app-eu-" + suffix, Role: prego.RoleApp, Region: prego.RegionEU},
		{ServerID: "db-shard-sg-" + suffix, Role: prego.RoleDBShard, Region: prego.RegionSG, Spec: prego.ServerSpec{VolumeGB: 20}},
		{ServerID: "redis-pool-us-" + suffix, Role: prego.RoleRedisPool, Region: prego.RegionUS},
		{ServerID: "node-eu-" + suffix, Role: prego.RoleNode, Region: prego.RegionEU, Spec: prego.ServerSpec{Tags: []string{"demo"}}},
	}
	fmt.Fprintln(out, "\nOne server of each role, requested over HTTP:")
	lines := &lockedWriter{w: out}
	var wg sync.WaitGroup
	errs := make([]error, len(requests))
	runs := make([]string, len(requests))
	for i, r := range requests {
		r.InfraProvider = prego.ProviderHetzner
		var a api.Accepted
		if err := c.do(ctx, http.MethodPost, "/internal/servers/create", nil, r, &a); err != nil {
			return err
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			s, err := c.watch(ctx, lines, r.ServerID, func(s api.Server) bool { return rests(s.Status) })
			if err == nil && prego.ServerStatus(s.Status) != prego.ServerActive {
				err = fmt.Errorf("server %s is %s%s", s.ServerId, s.Status, reasonOf(s))
			}
			runs[i], errs[i] = deref(s.RunUrl), err
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nAll active. Their runs in Temporal's UI:")
	for i, r := range requests {
		fmt.Fprintf(out, "  %-24s %s\n", r.ServerID, runs[i])
	}
	return nil
}

// lockedWriter keeps lines of several writers whole.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
