package cli

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

func poolCommand(c *CLI) *cobra.Command {
	cmd := c.group("pool", "Manage pre-built sites and warm servers",
		List[api.SitePool]{
			Short: "List the site pool of each app server", Path: "/v1/site-pools", Items: "site_pools", Whole: true, Filters: "region",
			Table: Table[api.SitePool]{
				ID: "server_id", Columns: "server_id, role, region, status, tenant_count: tenants, available: ready, assigned: used, failed, oldest_build_at: building", Spare: "building, role, region, tenants", More: "reserved, draining",
			},
		},
		started("refill SERVER", "Refill the site pool of an app server now", "/v1/site-pools/{server}/refill", nil),
		List[api.SitePoolPolicy]{
			Use: "policies", Short: "List how many sites are kept per app server", Path: "/v1/site-pool-policies", Items: "site_pool_policies", Whole: true,
			Table: Table[api.SitePoolPolicy]{ID: "plan", Columns: "plan, low_watermark, target, refilled within", Computed: map[string]func(api.SitePoolPolicy) any{
				"refilled within": func(p api.SitePoolPolicy) any { return time.Duration(p.SloSeconds) * time.Second },
			}},
		},
	)
	cmd.AddCommand(c.group("warm", "Manage warm servers for plans",
		List[api.WarmPool]{
			Short: "List the warm server pools", Path: "/v1/warm-pools", Items: "warm_pools", Whole: true,
			Table: Table[api.WarmPool]{Columns: "region, plan, target, claimable, building, updated_by: set by, updated_at: changed", Spare: "set-by, changed"},
		},
		Action[api.WarmPoolAccepted]{
			Use: "set REGION PLAN SERVERS", Short: "Set the number of warm servers", Method: http.MethodPut, Path: "/v1/warm-pools/{region}/{plan}", Example: "  prego pool warm set eu starter 2",
			Body: func(in *call) (any, error) {
				n, err := whole(in.typed, "a number of servers")
				return api.PutWarmPool{Target: n}, err
			},
			Say: func(_ *call, p api.WarmPoolAccepted) string {
				return fmt.Sprintf("accepted: target %d for plan %s in %s, workflow %s", p.Target, p.Plan, p.Region, cmp.Or(deref(p.WorkflowId), "none"))
			},
		},
	))
	return cmd
}

func scalingCommand(c *CLI) *cobra.Command {
	return c.group("scaling", "Show why fleets grew",
		List[api.ScalingEvent]{
			Short: "List scaling events, newest first", Path: "/v1/scaling-events", Items: "scaling_events", Filters: "region, role, trigger", Sorts: "created_at", Limit: 50,
			Table: Table[api.ScalingEvent]{
				ID: "id", Columns: "created_at: age, region, role, trigger, waiting, requested: req, made, message", Spare: "req, role, trigger", More: "id, created_at, server_ids: servers, run_url: run",
			},
		})
}
