package workflows

import (
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"
)

// Queue is a task queue. Each has separate slots in a worker, so that long waits block neither
// short steps nor scheduled work.
type Queue string

// The queues.
const (
	// QueueMain has the workflows, and the short steps: calls of the database, and of the
	// provider on the way to active.
	QueueMain Queue = "main"
	// QueueLong has the steps that wait: for images, containers, copies, backups, builds.
	QueueLong Queue = "long"
	// QueuePeriodic has sweeps and reconciliations.
	QueuePeriodic Queue = "periodic"
)

// Queues are all queues.
func Queues() []Queue { return []Queue{QueueMain, QueueLong, QueuePeriodic} }

// ParseQueues reads names of queues; no names are all.
func ParseQueues(names []string) ([]Queue, error) {
	if len(names) == 0 {
		return Queues(), nil
	}
	var out []Queue
	for _, n := range names {
		q := Queue(strings.TrimSpace(n))
		if !slices.Contains(Queues(), q) {
			return nil, fmt.Errorf("there is no queue %q: use main, long or periodic", n)
		}
		if !slices.Contains(out, q) {
			out = append(out, q)
		}
	}
	return out, nil
}

// Name is a queue's name in Temporal; base is that of the main one.
func (q Queue) Name(base string) string {
	if q == QueueMain {
		return base
	}
	return base + "-" + string(q)
}

// long sends a step to QueueLong, periodic to QueuePeriodic. Older histories, whose steps are all
// on the main queue, replay: replays do not compare queues.
func long(ctx workflow.Context) workflow.Context { return on(ctx, QueueLong) }

func periodic(ctx workflow.Context) workflow.Context { return on(ctx, QueuePeriodic) }

func on(ctx workflow.Context, q Queue) workflow.Context {
	return workflow.WithTaskQueue(ctx, q.Name(workflow.GetInfo(ctx).TaskQueueName))
}
