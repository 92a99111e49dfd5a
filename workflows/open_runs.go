package workflows

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
)

// OpenRuns are the workflow ids of all runs of this installation's task queue that are open.
func (c *Client) OpenRuns(ctx context.Context) ([]string, error) {
	var out []string
	var page []byte
	for {
		r, err := c.Temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
			Namespace: c.Namespace, PageSize: 1000, NextPageToken: page, Query: fmt.Sprintf("TaskQueue = '%s' AND ExecutionStatus = 'Running'", c.TaskQueue),
		})
		if err != nil {
			return nil, fmt.Errorf("list runs: %w", err)
		}
		for _, e := range r.GetExecutions() {
			out = append(out, e.GetExecution().GetWorkflowId())
		}
		if page = r.GetNextPageToken(); len(page) == 0 {
			return out, nil
		}
	}
}

// EndRuns ends all runs of this installation's task queue that are open, without any last word of theirs: the rows
// decide what goes on, and the reconciliation starts what they need.
func (c *Client) EndRuns(ctx context.Context, why string) (n int, err error) {
	open, err := c.OpenRuns(ctx)
	if err != nil {
		return 0, err
	}
	for _, id := range open {
		err := c.Temporal.TerminateWorkflow(ctx, id, "", why)
		var gone *serviceerror.NotFound
		if err != nil && !errors.As(err, &gone) {
			return n, fmt.Errorf("end run %s: %w", id, err)
		}
		n++
	}
	return n, nil
}
