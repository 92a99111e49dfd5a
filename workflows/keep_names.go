package workflows

import (
	"context"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego/activities"
)

// namesPatience bounds one run; the next one continues.
const namesPatience = 15 * time.Minute

// KeepNames writes the DNS records that changed and looks up orgs' names whose turn it is.
// A look starts it when there is something to do.
func KeepNames(ctx workflow.Context) (activities.NamesResult, error) {
	var steps *activities.Names
	return periodically[activities.NamesResult](ctx, "keep DNS records and orgs' names", namesPatience, steps.KeepNames)
}

// StartKeepNames starts keeping names unless a run is.
func (c *Client) StartKeepNames(ctx context.Context) error {
	_, err := c.startPeriodic(ctx, "names/"+c.Environment+"/found", "Keep DNS records and orgs' names", KeepNames)
	return err
}
