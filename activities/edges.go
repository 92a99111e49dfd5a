package activities

import (
	"cmp"
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/prego/prego"
	"github.com/prego/prego/store"
)

// Edges are the steps that wait for edges.
type Edges struct {
	Store *store.Store
	// Within limits a step's wait. It then continues, since an edge that does not answer must not
	// delay a stop.
	Within time.Duration
	// Settle is how long requests that an edge had begun to forward may take before what
	// served them is stopped.
	Settle time.Duration
	// Poll is how often the acknowledgements are read, which come in about half a second; 0 is
	// 50 ms.
	Poll time.Duration
	Log  *zap.Logger
}

// AwaitEdgesInput names servers, of whose networks the edges are waited for.
type AwaitEdgesInput struct {
	ServerIDs []prego.ServerID `json:"server_ids"`
}

// AwaitEdgesResult is the outcome of the wait.
type AwaitEdgesResult struct {
	// Edges is false if there was no edge to wait for.
	Edges bool `json:"edges,omitempty"`
	// Behind are the edges, or their networks, that were not waited for any longer.
	Behind []string `json:"behind,omitempty"`
}

const edgesPoll = 50 * time.Millisecond

// AwaitEdges waits until the edges of servers' networks serve the state committed before the call.
// The wait is bounded; the result names late edges.
func (e *Edges) AwaitEdges(ctx context.Context, in AwaitEdgesInput) (AwaitEdgesResult, error) {
	networks, barrier, err := e.Store.EdgeBarrier(ctx, in.ServerIDs)
	if err != nil || len(networks) == 0 {
		return AwaitEdgesResult{}, err
	}
	out := AwaitEdgesResult{Edges: true}
	for end := time.Now().Add(e.Within); ; {
		if out.Behind, err = e.Store.EdgesBehind(ctx, networks, barrier); err != nil || len(out.Behind) == 0 {
			return out, err
		}
		if time.Now().After(end) {
			e.Log.Warn("edges do not serve the change yet; continuing without them", zap.Strings("behind", out.Behind))
			return out, nil
		}
		if err := prego.Sleep(ctx, cmp.Or(e.Poll, edgesPoll)); err != nil {
			return out, err
		}
	}
}

// DrainEdges waits until no edge sends new requests to upstreams without a row, and gives running
// requests a moment to end.
func DrainEdges(e *Edges) func(ctx context.Context, serverID prego.ServerID) error {
	return func(ctx context.Context, serverID prego.ServerID) error {
		r, err := e.AwaitEdges(ctx, AwaitEdgesInput{ServerIDs: []prego.ServerID{serverID}})
		if err != nil || !r.Edges {
			return err
		}
		return prego.Sleep(ctx, e.Settle)
	}
}
