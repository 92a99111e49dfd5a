package workflows

import (
	"context"
	"fmt"

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
