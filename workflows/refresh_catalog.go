package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/prego/prego/activities"
)

// catalogPatience bounds one reading of the catalog. The schedule starts the next one.
const catalogPatience = 10 * time.Minute

// RefreshCatalog reads the providers' catalogs.
func RefreshCatalog(ctx workflow.Context) (activities.CatalogRefresh, error) {
	var steps *activities.Catalogs
	out, err := periodically[activities.CatalogRefresh](ctx, "read what the provider sells", catalogPatience, steps.RefreshCatalog)
	if err == nil {
		workflow.SetCurrentDetails(ctx, fmt.Sprintf("%d machine types, %d locations, %d images; %d configured things can't be had", out.ServerTypes, out.Locations, out.Images, out.Problems))
	}
	return out, err
}
