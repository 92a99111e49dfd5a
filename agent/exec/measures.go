package exec

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/prego/prego/agent/host"
	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// maxWorkers bounds how many background workers are queried.
const maxWorkers = 256

// measures queries the host's services; what does not answer is left out.
func (h *workplace) measures(ctx context.Context) (m host.Measures) {
	ctx, cancel := context.WithTimeout(ctx, host.MeasureTime)
	defer cancel()
	services, err := h.Services()
	if err != nil {
		return m
	}
	ask := func(args ...string) (string, error) {
		var out strings.Builder
		k := &policy.Command{In: wire.ExecRequest{Args: args}, Permit: &policy.Permit{Verb: args[0]}}
		err := h.redis(ctx, services.Redis, k, &out)
		return out.String(), err
	}
	info, err := ask("info", "memory")
	if err != nil {
		return m
	}
	for line := range strings.Lines(info) {
		name, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		n, _ := strconv.ParseInt(v, 10, 64)
		switch name {
		case "used_memory":
			m.RedisUsed = n
		case "maxmemory":
			m.RedisLimit = n
		}
	}
	// Frappe's workers are RQ's, which store their state in the queue's Redis.
	workers, err := ask("smembers", "rq:workers")
	if err != nil {
		return m
	}
	for key := range strings.Lines(workers) {
		state, err := ask("hget", strings.TrimSpace(key), "state")
		if err != nil || m.WorkerSlots == maxWorkers {
			break
		}
		switch strings.TrimSpace(state) {
		case "busy":
			m.WorkersBusy++
			m.WorkerSlots++
		case "idle", "started":
			m.WorkerSlots++
		}
	}
	return m
}

// serveMeasures answers the agent.
func (e *Executor) serveMeasures(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(e.host.measures(r.Context()))
}
