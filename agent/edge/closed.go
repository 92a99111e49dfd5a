package edge

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prego/prego/agent/wire"
)

const (
	closedWithin = 2 * time.Second // for all requests about a document
	closedAtOnce = 64
)

// place is where a site is requested.
type place struct {
	Site    string `json:"site"`
	Address string `json:"address"`
}

// servingPlaces are the places of the sites that a document opens, by tenant.
func servingPlaces(d wire.EdgeDocument) map[string]place {
	at, out := placesOf(d), map[string]place{}
	for _, h := range d.Hosts {
		if h.Tenant != "" && h.State == wire.EdgeServing && at[h.Site] != "" {
			out[h.Tenant] = place{h.Site, at[h.Site]}
		}
	}
	return out
}

// Closed are the tenants whose sites answer where the last released document leads and don't where the served one does,
// sorted, at most wire.MaxEdgeClosed.
func (e *Edge) Closed() []string { return slices.Sorted(maps.Keys(e.closed)) }

// Release forgets the closed sites: all edges may have the document.
func (e *Edge) Release() { e.closed = nil }

// closing returns the sites that a document closes. What closed them may be an earlier document that is not released
// either.
func (e *Edge) closing(ctx context.Context, d wire.EdgeDocument) map[string]place {
	next, before := servingPlaces(d), servingPlaces(e.served)
	maps.Copy(before, e.closed)
	maps.DeleteFunc(before, func(tenant string, was place) bool { return next[tenant] == was })
	ctx, cancel := context.WithTimeout(ctx, closedWithin)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	out, slots := map[string]place{}, make(chan struct{}, closedAtOnce)
	for _, tenant := range slices.Sorted(maps.Keys(before))[:min(len(before), wire.MaxEdgeClosed)] {
		asking.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			was, now := before[tenant], next[tenant]
			answers := make(chan bool, 1)
			go func() { answers <- now.Address != "" && e.probe(ctx, now.Site, now.Address) == "" }()
			answered := e.probe(ctx, was.Site, was.Address) == ""
			if answered && !<-answers {
				mu.Lock()
				out[tenant] = was
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	return out
}
